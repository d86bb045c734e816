package agent

import (
	"net"
	"net/netip"

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
