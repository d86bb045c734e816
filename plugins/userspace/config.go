package main

import (
	"fmt"
	"net/netip"
	"time"
)

// Config is the body of the dataplane block.
type Config struct {
	_ struct{} `description:"Carries TCP connections and UDP datagrams in user space, by event loops; needs no privileges on 127.0.0.0/8."`

	Capture        string        `name:"capture" default:"auto" enum:"auto,bind" description:"How traffic gets here. bind listens on the service's own address, with a local route for one that is not on this node; auto is bind."`
	Retries        int           `name:"retries" default:"1" min:"0" max:"16" description:"How many further endpoints are tried when connecting to one fails, before the client notices."`
	ConnectTimeout time.Duration `name:"connect_timeout" default:"2s" min:"100ms" max:"5m" description:"How long one attempt to connect may take."`
	IdleTimeout    time.Duration `name:"idle_timeout" default:"0s" max:"720h" description:"After how long without a byte in either direction a connection is closed; 0s is never."`
	MaxLifetime    time.Duration `name:"max_lifetime" default:"0s" max:"8760h" description:"After how long a connection is reset, however busy it is; 0s is never."`
	MaxConnections int           `name:"max_connections" default:"0" min:"0" description:"Greatest number of connections of all services at once, more are reset; 0 is as many as descriptors allow, two for each."`
	UDPIdleTimeout time.Duration `name:"udp_idle_timeout" default:"60s" min:"100ms" max:"24h" description:"After how long without a datagram in either direction a UDP session ends."`
	MaxUDPSessions int           `name:"max_udp_sessions" default:"65536" min:"1" max:"1000000" description:"Greatest number of UDP sessions of all services at once; each takes a descriptor. A new one takes the place of one that has had no answer, or that has been silent for 10s at least; else its datagrams are dropped."`
	Keepalive      time.Duration `name:"keepalive" default:"30s" max:"2h" description:"After how long a silence a peer is asked whether it is still there; 0s is never. A change holds from the plugin's next start."`
	Loops          int           `name:"loops" default:"0" min:"0" max:"256" description:"Number of event loops; 0 is one for each core. A change holds from the plugin's next start."`

	AcceptProxyProtocol []network     `name:"accept_proxy_protocol" description:"Networks from which every TCP connection begins with a PROXY protocol header, version 1 or 2, and whose word about the client is taken."`
	EjectAfter          int           `name:"eject_after" default:"0" min:"0" max:"1000" description:"After how many failed attempts to connect in a row an endpoint takes no new connections for eject_for; 0 is never. At most half of a service's endpoints at once."`
	EjectFor            time.Duration `name:"eject_for" default:"10s" min:"100ms" max:"1h" description:"For how long the first time; twice as long each time until a connection succeeds, 32 times as long at most."`
}

// ServiceOptions are the options of one service.
type ServiceOptions struct {
	_ struct{} `description:"What the dataplane block says for all services, for one."`

	Retries        *int           `name:"retries" min:"0" max:"16" description:"How many further endpoints are tried when connecting to one fails."`
	ConnectTimeout *time.Duration `name:"connect_timeout" min:"100ms" max:"5m" description:"How long one attempt to connect may take."`
	IdleTimeout    *time.Duration `name:"idle_timeout" max:"720h" description:"After how long without a byte in either direction a connection is closed; 0s is never."`
	MaxLifetime    *time.Duration `name:"max_lifetime" max:"8760h" description:"After how long a connection is reset, however busy it is; 0s is never."`
	UDPIdleTimeout *time.Duration `name:"udp_idle_timeout" min:"100ms" max:"24h" description:"After how long without a datagram in either direction a UDP session ends."`
	MaxConnections int            `name:"max_connections" default:"0" min:"0" description:"Greatest number of connections and UDP sessions of the service at once, more are reset or their datagrams dropped; 0 is no limit of its own."`
	MaxPerClient   int            `name:"max_connections_per_client" default:"0" min:"0" description:"Greatest number of connections and UDP sessions at once of one client address, more are reset or their datagrams dropped; 0 is no limit."`

	ProxyProtocol       string         `name:"proxy_protocol" default:"off" enum:"off,v2" description:"v2 begins each TCP connection to an endpoint with a PROXY protocol header that tells the client's address."`
	AcceptProxyProtocol *[]network     `name:"accept_proxy_protocol" description:"Networks from which every TCP connection begins with a PROXY protocol header, version 1 or 2, and whose word about the client is taken."`
	EjectAfter          *int           `name:"eject_after" min:"0" max:"1000" description:"After how many failed attempts to connect in a row an endpoint takes no new connections for eject_for; 0 is never."`
	EjectFor            *time.Duration `name:"eject_for" min:"100ms" max:"1h" description:"For how long the first time; twice as long each time until a connection succeeds, 32 times as long at most."`
}

// network is a range of addresses, or one address.
type network struct{ netip.Prefix }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *network) UnmarshalText(text []byte) error {
	if a, err := netip.ParseAddr(string(text)); err == nil && a.Zone() == "" {
		n.Prefix = netip.PrefixFrom(a, a.BitLen())
		return nil
	}
	p, err := netip.ParsePrefix(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a network such as \"10.0.0.0/8\"", text)
	}
	n.Prefix = p
	return nil
}

// or gives what the service says, else what the block says.
func or[T any](own *T, common T) T {
	if own != nil {
		return *own
	}
	return common
}
