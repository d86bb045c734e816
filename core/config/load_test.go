package config

import "net/netip"

func testNetworks() ([]Network, error) {
	return []Network{
		{Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.7/24")},
		{Interface: "eth0", Prefix: netip.MustParsePrefix("2001:db8:1::7/64")},
		{Interface: "docker0", Prefix: netip.MustParsePrefix("172.17.0.1/16")},
	}, nil
}
