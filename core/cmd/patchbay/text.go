package main

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

// facts prints names and values in two columns, and leaves out what is empty.
type facts struct{ writer *tabwriter.Writer }

func newFacts(w io.Writer) *facts {
	return &facts{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
}

func (f *facts) add(name, value string) {
	if value != "" {
		fmt.Fprintf(f.writer, "%s:\t%s\n", name, printable(value))
	}
}

func (f *facts) flush() error { return f.writer.Flush() }

func joinHostPort(f admin.Frontend) string {
	return net.JoinHostPort(f.Address.String(), strconv.Itoa(int(f.Port))) + "/" + f.Protocol.String()
}

func joinNonEmpty(separator string, parts ...string) string {
	var kept []string
	for _, p := range parts {
		if p != "" {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, separator)
}

func texts[T fmt.Stringer](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = v.String()
	}
	return out
}
