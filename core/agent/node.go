package agent

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/core/config"
)

// nodeFacts are what the configuration says of the node, and what the host
// says where it is silent.
func nodeFacts(cfg *config.Config) catalog.NodeFacts {
	facts := catalog.NodeFacts{Zone: cfg.Node.Zone, Addresses: cfg.Node.Addresses}
	if len(facts.Addresses) == 0 {
		facts.Addresses = defaultAddresses()
	}
	return facts
}

// followAddresses brings the node's addresses up to date where the
// configuration doesn't set them: a host gets its address late, or another one.
// A family that has no address just now keeps the one that it had.
func (a *Agent) followAddresses(ctx context.Context) {
	cfg := a.inForce()
	if len(cfg.Node.Addresses) > 0 {
		return
	}
	a.mu.Lock()
	had := a.node.Addresses
	a.mu.Unlock()
	if slices.Equal(had, keepFamilies(had, defaultAddresses())) {
		return
	}
	if a.changing.acquire(ctx) != nil {
		return
	}
	defer a.changing.release()
	a.mu.Lock()
	loaded, bound, schemas := a.loaded, a.config, a.schemas
	a.mu.Unlock()
	a.adopt(loaded, bound, schemas, nil)
	for i := range bound.Dataplanes {
		a.updateCarrier(ctx, bound, &bound.Dataplanes[i])
	}
	a.mu.Lock()
	now := a.node.Addresses
	a.mu.Unlock()
	a.log.Info("the node's addresses have changed", "before", had, "now", now)
}

// keepFamilies gives the addresses of now, and those of before whose family
// has none now.
func keepFamilies(before, now []netip.Addr) []netip.Addr {
	out := slices.Clone(now)
	for _, a := range before {
		if !slices.ContainsFunc(now, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare) // IPv4 first
	return out
}

// defaultAddresses gives the address of the default route, one per family that
// has one. Connecting a UDP socket asks the kernel which source it would take,
// and sends nothing; the targets are addresses for documentation (RFC 5737,
// RFC 3849), which no host has a route of their own for.
func defaultAddresses() []netip.Addr {
	var found []netip.Addr
	for _, target := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", target)
		if err != nil {
			continue
		}
		if local, ok := conn.LocalAddr().(*net.UDPAddr); ok {
			address := local.AddrPort().Addr().Unmap().WithZone("")
			if !address.IsLoopback() && !address.IsUnspecified() && !address.IsLinkLocalUnicast() {
				found = append(found, address)
			}
		}
		_ = conn.Close()
	}
	return found
}
