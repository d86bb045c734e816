package vip

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"net/netip"
)

// Candidates gives every address of a range once, in the order in which a
// service tries them. The order depends on the name and the range only, and is
// part of the contract between nodes and versions: the first is offset
// h1 mod 2^n, each next one h2|1 further, where h1 and h2 are the first and
// second eight bytes, big endian, of SHA-256 of the name, and n the number of
// host bits, 64 at most.
//
// The network and the broadcast address of an IPv4 range and the router
// anycast address of an IPv6 range (RFC 4291, 2.6.1) are left out, except in
// ranges of one or two addresses (RFC 3021, RFC 6164).
func Candidates(r netip.Prefix, service string) iter.Seq[netip.Addr] {
	sum := sha256.Sum256([]byte(service))
	offset := binary.BigEndian.Uint64(sum[:8])
	// An odd step visits all offsets of a range whose size is a power of two.
	step := binary.BigEndian.Uint64(sum[8:16]) | 1
	mask := offsetMask(r)
	return func(yield func(netip.Addr) bool) {
		first := offset & mask
		for o := first; ; {
			if usableOffset(r, o) && !yield(addressAt(r, o)) {
				return
			}
			if o = (o + step) & mask; o == first {
				return
			}
		}
	}
}

// hostBits of a range that are used for offsets.
func hostBits(r netip.Prefix) int { return min(r.Addr().BitLen()-r.Bits(), 64) }

// offsetMask covers the offsets of a range.
func offsetMask(r netip.Prefix) uint64 {
	n := hostBits(r)
	if n == 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// Size is the number of addresses of a range that can be leased, 2^63 where
// there are more.
func Size(r netip.Prefix) uint64 {
	n := hostBits(r)
	switch {
	case n >= 63:
		return 1 << 63
	case n <= 1:
		return 1 << n
	case r.Addr().Is4():
		return 1<<n - 2
	default:
		return 1<<n - 1
	}
}

func usableOffset(r netip.Prefix, offset uint64) bool {
	if hostBits(r) <= 1 {
		return true
	}
	return offset != 0 && !(r.Addr().Is4() && offset == offsetMask(r))
}

// usable tells whether an address of the range may be leased.
func usable(r netip.Prefix, a netip.Addr) bool {
	if !r.Contains(a) {
		return false
	}
	b := a.As16()
	return usableOffset(r, binary.BigEndian.Uint64(b[8:])&offsetMask(r))
}

func addressAt(r netip.Prefix, offset uint64) netip.Addr {
	base := r.Masked().Addr()
	b := base.As16()
	low := binary.BigEndian.Uint64(b[8:]) | offset
	binary.BigEndian.PutUint64(b[8:], low)
	a := netip.AddrFrom16(b)
	if base.Is4() {
		return a.Unmap()
	}
	return a
}
