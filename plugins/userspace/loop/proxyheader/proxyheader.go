// Package proxyheader reads and writes the header of the PROXY protocol, by which
// a proxy tells whom it speaks for (haproxy.org, proxy-protocol.txt, versions 1
// and 2). It works on bytes that have been received so far, without a reader or a
// goroutine: package loop, which calls it, must never wait.
package proxyheader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Header is what a header tells: the client's address and port, and those that
// it connected to. From is not valid where the header says that the connection
// is the proxy's own (LOCAL), or tells nothing of its kind (UNKNOWN, UNSPEC, a
// unix socket, datagrams): then the connection's own addresses are true.
type Header struct {
	From, To netip.AddrPort
}

// Most is the greatest length of a header that is read, with its extensions,
// which are skipped.
const Most = 4 << 10

// MostWritten is the greatest length of a header that Append writes.
const MostWritten = headLength + 36

const (
	signature = "\r\n\r\n\x00\r\nQUIT\n"
	// headLength is that of a version 2 header without addresses.
	headLength = len(signature) + 4
	// textMost is the greatest length of a version 1 header, its end included.
	textMost = 107
	prefix   = "PROXY"
)

// Version 2's command and family bytes.
const (
	commandLocal = 0x20
	commandProxy = 0x21
	stream4      = 0x11
	stream6      = 0x21
)

// Append writes a version 2 header behind p. Two addresses of one family are
// written as they are, else both as IPv6; an invalid one makes it LOCAL.
func (h Header) Append(p []byte) []byte {
	p = append(p, signature...)
	from, to := h.From.Addr().Unmap(), h.To.Addr().Unmap()
	switch {
	case !from.IsValid() || !to.IsValid():
		return append(p, commandLocal, 0, 0, 0)
	case from.Is4() && to.Is4():
		p = append(p, commandProxy, stream4, 0, 12)
		a, b := from.As4(), to.As4()
		p = append(append(p, a[:]...), b[:]...)
	default:
		p = append(p, commandProxy, stream6, 0, 36)
		a, b := from.As16(), to.As16()
		p = append(append(p, a[:]...), b[:]...)
	}
	p = binary.BigEndian.AppendUint16(p, h.From.Port())
	return binary.BigEndian.AppendUint16(p, h.To.Port())
}

// Parse reads the header at the beginning of what has been received, and says
// how long it is; 0 if more has to come. The error is of bytes that can't become
// a header, or become one longer than Most.
func Parse(p []byte) (Header, int, error) {
	switch {
	case has(p, signature):
		return parseBinary(p)
	case has(p, prefix):
		return parseText(p)
	}
	return Header{}, 0, errors.New("no PROXY protocol header")
}

// has says whether p begins with s, or is its beginning.
func has(p []byte, s string) bool {
	n := min(len(p), len(s))
	return string(p[:n]) == s[:n]
}

func parseBinary(p []byte) (Header, int, error) {
	var h Header
	if len(p) < headLength {
		return h, 0, nil
	}
	command, family := p[len(signature)], p[len(signature)+1]
	length := int(binary.BigEndian.Uint16(p[len(signature)+2:]))
	if command != commandLocal && command != commandProxy {
		return h, 0, fmt.Errorf("version and command %#x are unknown", command)
	}
	least, ok := families[family]
	if !ok {
		return h, 0, fmt.Errorf("address family and protocol %#x are unknown", family)
	}
	if command == commandLocal {
		least = 0 // whatever is there has to be skipped
	}
	if length < least {
		return h, 0, fmt.Errorf("%d bytes of addresses, where family %#x has %d", length, family, least)
	}
	end := headLength + length
	if end > Most {
		return h, 0, fmt.Errorf("a header of %d bytes; at most %d are read", end, Most)
	}
	if len(p) < end {
		return h, 0, nil
	}
	if command == commandLocal {
		return h, end, nil
	}
	switch p = p[headLength:]; family {
	case stream4:
		h.From = addressAndPort(p[0:4], p[8:])
		h.To = addressAndPort(p[4:8], p[10:])
	case stream6:
		h.From = addressAndPort(p[0:16], p[32:])
		h.To = addressAndPort(p[16:32], p[34:])
	}
	return h, end, nil
}

// families are those that the protocol knows, with the length of their
// addresses.
var families = map[byte]int{
	0:       0,
	stream4: 12, 0x12: 12,
	stream6: 36, 0x22: 36,
	0x31: 216, 0x32: 216,
}

func addressAndPort(address, port []byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(address) // of 4 or 16 bytes, as it is called
	return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(port))
}

func parseText(p []byte) (Header, int, error) {
	end := bytes.IndexByte(p[:min(len(p), textMost)], '\n')
	if end < 0 {
		if len(p) >= textMost {
			return Header{}, 0, fmt.Errorf("a version 1 header without an end in %d bytes", textMost)
		}
		return Header{}, 0, nil
	}
	line, ok := bytes.CutSuffix(p[:end], []byte("\r"))
	if !ok {
		return Header{}, 0, errors.New("a version 1 header that doesn't end in CR LF")
	}
	h, err := parseLine(string(line))
	return h, end + 1, err
}

func parseLine(line string) (Header, error) {
	// Exactly one space between the parts, as the protocol says.
	part := strings.Split(line, " ")
	if len(part) < 2 || part[0] != prefix {
		return Header{}, errors.New("a version 1 header without a protocol")
	}
	if part[1] == "UNKNOWN" {
		return Header{}, nil
	}
	if len(part) != 6 || part[1] != "TCP4" && part[1] != "TCP6" {
		return Header{}, fmt.Errorf("version 1 header %q", line)
	}
	from, err := textAddress(part[1], part[2], part[4])
	if err != nil {
		return Header{}, err
	}
	to, err := textAddress(part[1], part[3], part[5])
	if err != nil {
		return Header{}, err
	}
	return Header{from, to}, nil
}

func textAddress(family, address, port string) (netip.AddrPort, error) {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if a.Is4() != (family == "TCP4") || a.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%s is no address of %s", address, family)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || len(port) > 1 && port[0] == '0' {
		return netip.AddrPort{}, fmt.Errorf("%q is no port", port)
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), nil
}
