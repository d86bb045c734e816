package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostRouter is the router of the network namespace that the process is in.
type hostRouter struct{}

// loopbackIndex is the number of lo in every network namespace.
const loopbackIndex = 1

func (hostRouter) local(a netip.Addr) (bool, error) {
	list, err := netlink.RouteGet(a.AsSlice())
	switch {
	case errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) ||
		errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES): // blackhole, prohibit
		return false, nil
	case err != nil:
		return false, err
	}
	return len(list) > 0 && list[0].Type == unix.RTN_LOCAL, nil
}

func (hostRouter) ours() ([]netip.Addr, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: routeProtocol, Type: unix.RTN_LOCAL}
	var found []netip.Addr
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TYPE)
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return nil, err
		}
		for _, r := range list {
			if r.Dst == nil {
				continue
			}
			if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
				found = append(found, a.Unmap())
			}
		}
	}
	return found, nil
}

func (hostRouter) add(a, src netip.Addr) error {
	r := localRoute(a)
	if src.IsValid() {
		r.Src = src.AsSlice()
	}
	err := netlink.RouteAdd(r)
	if err != nil && src.IsValid() && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("with source %s: %w", src, err)
	}
	return err
}

func (hostRouter) remove(a netip.Addr) error {
	err := netlink.RouteDel(localRoute(a))
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func localRoute(a netip.Addr) *netlink.Route {
	r := &netlink.Route{
		Dst:       &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		LinkIndex: loopbackIndex,
		Table:     unix.RT_TABLE_LOCAL,
		Type:      unix.RTN_LOCAL,
		Protocol:  routeProtocol,
	}
	if a.Is4() {
		r.Scope = netlink.SCOPE_HOST
	}
	return r
}
