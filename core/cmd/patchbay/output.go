package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
)

// format is the value of -format.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
)

func (f *format) String() string { return string(*f) }

// Set takes the flag's value.
func (f *format) Set(text string) error {
	switch format(text) {
	case formatTable, formatJSON:
		*f = format(text)
		return nil
	}
	return fmt.Errorf("use table or json")
}

// Type names the value in the help.
func (f *format) Type() string { return "table|json" }

func addFormat(cmd *cobra.Command) *format {
	f := formatTable
	cmd.Flags().Var(&f, "format", "how to print")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return &f
}

// printJSON prints a body as the API gave it.
func printJSON(w io.Writer, body any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(body)
}

// table prints rows under a head, in columns.
type table struct {
	writer *tabwriter.Writer
}

func newTable(w io.Writer, head ...string) *table {
	t := &table{writer: tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.StripEscape)}
	if len(head) > 0 {
		t.row(head...)
	}
	return t
}

// row adds a row; an empty cell shows as "-" unless it is the last.
func (t *table) row(cells ...string) {
	for i, c := range cells {
		c = printable(c)
		if c == "" && i < len(cells)-1 {
			c = "-"
		}
		cells[i] = c
	}
	fmt.Fprintln(t.writer, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

func (t *table) flush() error { return t.writer.Flush() }

// printable keeps what others wrote (a name, a plugin's reason) from moving
// the cursor or breaking the table.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t', r == '\r':
			return ' '
		case unicode.IsControl(r), r == unicode.ReplacementChar:
			return '?'
		}
		return r
	}, s)
}

// printableText is the same for text of several lines.
func printableText(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = printable(strings.ReplaceAll(l, "\t", "    "))
	}
	return strings.Join(lines, "\n")
}

// number shows 0 as "-".
func number[T ~int | ~uint64](n T) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}

// ago shows how long ago a moment was, in one unit or two.
func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < 0:
		return "in " + short(-d)
	default:
		return short(d) + " ago"
	}
}

func short(d time.Duration) string {
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
