package proxyheader

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	proxyproto "github.com/pires/go-proxyproto"
)

var addrPorts = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

func header(from, to string) Header {
	return Header{netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)}
}

// TestAppend: what is written is what another implementation reads, and so is
// what is read.
func TestAppend(t *testing.T) {
	for _, c := range []struct {
		name     string
		h        Header
		from, to string // as the other reads it
		length   int
	}{
		{"IPv4", header("192.0.2.1:56324", "192.0.2.2:443"), "192.0.2.1:56324", "192.0.2.2:443", 28},
		{"IPv6", header("[2001:db8::1]:1", "[2001:db8::2]:65535"), "[2001:db8::1]:1", "[2001:db8::2]:65535", 52},
		{"mapped", header("[::ffff:192.0.2.1]:7", "192.0.2.2:8"), "192.0.2.1:7", "192.0.2.2:8", 28},
		{"mixed", header("192.0.2.1:7", "[2001:db8::2]:8"), "192.0.2.1:7", "[2001:db8::2]:8", 52},
		{"nobody", Header{}, "", "", 16},
		{"half of it", Header{From: netip.MustParseAddrPort("192.0.2.1:7")}, "", "", 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.h.Append([]byte("before"))[len("before"):]
			if len(p) != c.length || len(p) > MostWritten {
				t.Errorf("%d bytes", len(p))
			}
			r := bufio.NewReader(bytes.NewReader(append(slices.Clone(p), "rest"...)))
			other, err := proxyproto.Read(r)
			if err != nil {
				t.Fatal(err)
			}
			from, to := "", ""
			if other.Command == proxyproto.PROXY {
				from, to = other.SourceAddr.String(), other.DestinationAddr.String()
			}
			if from != c.from || to != c.to {
				t.Errorf("another reads %q, %q", from, to)
			}
			if rest, _ := r.Peek(4); string(rest) != "rest" {
				t.Errorf("behind it %q", rest)
			}
			got, n, err := Parse(append(slices.Clone(p), "rest"...))
			if err != nil || n != len(p) || got.From.String() != orInvalid(c.from) || got.To.String() != orInvalid(c.to) {
				t.Errorf("read again: %v, %d, %v", got, n, err)
			}
		})
	}
}

func orInvalid(s string) string {
	if s == "" {
		return netip.AddrPort{}.String()
	}
	return s
}

// TestParse reads what another implementation has written, in every state of
// its arrival.
func TestParse(t *testing.T) {
	tcp := func(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	extended := &proxyproto.Header{Version: 2, Command: proxyproto.PROXY, TransportProtocol: proxyproto.TCPv4, SourceAddr: tcp("1.2.3.4:5"), DestinationAddr: tcp("6.7.8.9:10")}
	if err := extended.SetTLVs([]proxyproto.TLV{{Type: proxyproto.PP2_TYPE_AUTHORITY, Value: bytes.Repeat([]byte("x"), 3000)}}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		made *proxyproto.Header
		want Header
	}{
		"v1 IPv4":       {proxyproto.HeaderProxyFromAddrs(1, tcp("192.0.2.1:1"), tcp("192.0.2.2:2")), header("192.0.2.1:1", "192.0.2.2:2")},
		"v1 IPv6":       {proxyproto.HeaderProxyFromAddrs(1, tcp("[2001:db8::1]:65535"), tcp("[2001:db8::2]:2")), header("[2001:db8::1]:65535", "[2001:db8::2]:2")},
		"v1 unknown":    {&proxyproto.Header{Version: 1, Command: proxyproto.PROXY, TransportProtocol: proxyproto.UNSPEC}, Header{}},
		"v2 IPv4":       {proxyproto.HeaderProxyFromAddrs(2, tcp("192.0.2.1:1"), tcp("192.0.2.2:2")), header("192.0.2.1:1", "192.0.2.2:2")},
		"v2 IPv6":       {proxyproto.HeaderProxyFromAddrs(2, tcp("[2001:db8::1]:65535"), tcp("[2001:db8::2]:2")), header("[2001:db8::1]:65535", "[2001:db8::2]:2")},
		"v2 extensions": {extended, header("1.2.3.4:5", "6.7.8.9:10")},
		"v2 local":      {&proxyproto.Header{Version: 2, Command: proxyproto.LOCAL, TransportProtocol: proxyproto.UNSPEC}, Header{}},
		"v2 unix": {proxyproto.HeaderProxyFromAddrs(2, &net.UnixAddr{Net: "unix", Name: "a"}, &net.UnixAddr{Net: "unix", Name: "b"}),
			Header{}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := c.made.Format()
			if err != nil {
				t.Fatal(err)
			}
			for n := range p {
				if h, length, err := Parse(p[:n]); length != 0 || err != nil {
					t.Fatalf("of %d bytes the first %d: %v, %d, %v", len(p), n, h, length, err)
				}
			}
			for _, rest := range []string{"", "GET", "\r\n"} {
				h, n, err := Parse(append(slices.Clone(p), rest...))
				if err != nil || n != len(p) {
					t.Fatalf("%d of %d bytes, %v", n, len(p), err)
				}
				if d := cmp.Diff(c.want, h, addrPorts); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func TestParseBad(t *testing.T) {
	v2 := func(command, family byte, length int, more int) string {
		return signature + string([]byte{command, family, byte(length >> 8), byte(length)}) + strings.Repeat("\x01", more)
	}
	for name, p := range map[string]string{
		"something else":         "GET / HTTP/1.1\r\n",
		"the wrong way":          "PROXX TCP4",
		"nearly the signature":   signature[:11] + "X",
		"v1 without a protocol":  "PROXY\r\n",
		"v1 two spaces":          "PROXY  TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
		"v1 too few":             "PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
		"v1 too many":            "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
		"v1 port too great":      "PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n",
		"v1 port below zero":     "PROXY TCP4 1.2.3.4 5.6.7.8 -1 2\r\n",
		"v1 port with zeros":     "PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n",
		"v1 family":              "PROXY TCP4 ::1 5.6.7.8 1 2\r\n",
		"v1 other family":        "PROXY TCP6 1.2.3.4 ::1 1 2\r\n",
		"v1 zone":                "PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
		"v1 lower case":          "PROXY tcp4 1.2.3.4 5.6.7.8 1 2\r\n",
		"v1 no CR":               "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n",
		"v1 without end":         "PROXY UNKNOWN " + strings.Repeat("x", 93),
		"v1 datagrams":           "PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
		"v2 version 1":           v2(0x11, stream4, 12, 12),
		"v2 command 2":           v2(0x22, stream4, 12, 12),
		"v2 family 4":            v2(commandProxy, 0x41, 12, 12),
		"v2 protocol 3":          v2(commandProxy, 0x13, 12, 12),
		"v2 short for IPv4":      v2(commandProxy, stream4, 11, 11),
		"v2 short for IPv6":      v2(commandProxy, stream6, 35, 35),
		"v2 longer than is read": v2(commandProxy, stream4, Most-headLength+1, 0),
		"v2 as long as it gets":  v2(commandProxy, stream4, 65535, 65535),
	} {
		if h, n, err := Parse([]byte(p)); err == nil {
			t.Errorf("%s: %v, %d bytes, no error", name, h, n)
		}
	}
	if _, n, err := Parse([]byte(v2(commandProxy, stream4, Most-headLength, Most-headLength))); n != Most || err != nil {
		t.Errorf("the longest header: %d, %v", n, err)
	}
}

// FuzzParse: what is read is the same whether it comes at once or in pieces,
// and is what the other implementation reads, where that is as strict.
func FuzzParse(f *testing.F) {
	for _, h := range []Header{header("192.0.2.1:1", "192.0.2.2:2"), header("[2001:db8::1]:1", "[2001:db8::2]:2"), {}} {
		f.Add(h.Append(nil))
	}
	f.Add([]byte("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"))
	f.Add([]byte("PROXY TCP6 ::1 ::2 1 65535\r\nrest"))
	f.Add([]byte("PROXY UNKNOWN whatever\r\n"))
	f.Fuzz(func(t *testing.T, p []byte) {
		h, n, err := Parse(p)
		if n < 0 || n > min(len(p), Most) {
			t.Fatalf("%d of %d bytes", n, len(p))
		}
		if err != nil {
			return
		}
		if n == 0 {
			return // more has to come
		}
		for m := range n {
			if _, k, err := Parse(p[:m]); k != 0 || err != nil {
				t.Fatalf("whole at %d bytes, and at %d already: %d, %v", n, m, k, err)
			}
		}
		other, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(p[:n]), Most))
		if err != nil || other.Command == proxyproto.LOCAL || !h.From.IsValid() {
			return
		}
		for _, c := range []struct {
			got  netip.AddrPort
			want net.Addr
		}{{h.From, other.SourceAddr}, {h.To, other.DestinationAddr}} {
			want := c.want.(*net.TCPAddr).AddrPort()
			if c.got != netip.AddrPortFrom(want.Addr().Unmap(), want.Port()) {
				t.Fatalf("%v, another reads %v", c.got, c.want)
			}
		}
		again, _, err := Parse(h.Append(nil))
		if err != nil || fmt.Sprint(again) != fmt.Sprint(h) {
			t.Fatalf("written and read again: %v, %v, %v", h, again, err)
		}
	})
}
