package loop

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newSockaddr makes an address as the kernel takes it. The error is of a zone
// that is no interface of this host.
func newSockaddr(a netip.AddrPort) (sockaddr, error) {
	port := [2]byte{byte(a.Port() >> 8), byte(a.Port())}
	if ip := a.Addr().Unmap(); ip.Is4() {
		s := sockaddr{family: unix.AF_INET, length: unix.SizeofSockaddrInet4}
		s.in4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: ip.As4()}
		*(*[2]byte)(unsafe.Pointer(&s.in4.Port)) = port
		return s, nil
	}
	s := sockaddr{family: unix.AF_INET6, length: unix.SizeofSockaddrInet6}
	s.in6 = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: a.Addr().As16()}
	*(*[2]byte)(unsafe.Pointer(&s.in6.Port)) = port
	if zone := a.Addr().Zone(); zone != "" {
		index, err := zoneIndex(zone)
		if err != nil {
			return sockaddr{}, fmt.Errorf("zone of %s: %w", a, err)
		}
		s.in6.Scope_id = index
	}
	return s, nil
}

func zoneIndex(zone string) (uint32, error) {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, err
	}
	return uint32(i.Index), nil
}

// addressOf reads an address that the kernel wrote. Zones are left out.
func addressOf(a *unix.RawSockaddrAny) netip.AddrPort {
	switch a.Addr.Family {
	case unix.AF_INET:
		s := (*unix.RawSockaddrInet4)(unsafe.Pointer(a))
		p := (*[2]byte)(unsafe.Pointer(&s.Port))
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(p[0])<<8|uint16(p[1]))
	case unix.AF_INET6:
		s := (*unix.RawSockaddrInet6)(unsafe.Pointer(a))
		p := (*[2]byte)(unsafe.Pointer(&s.Port))
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr).Unmap(), uint16(p[0])<<8|uint16(p[1]))
	}
	return netip.AddrPort{}
}
