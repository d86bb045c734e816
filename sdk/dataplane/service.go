package dataplane

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Balance methods of the contract. A dataplane lists those it has in
// Capabilities.Balance and may add its own.
const (
	BalanceRoundRobin       = "round_robin"
	BalanceLeastConnections = "least_connections"
	BalanceRandom           = "random"
	BalanceSourceHash       = "source_hash"
	BalanceMaglev           = "maglev"
)

// Service is what clients address: frontends, the endpoints behind them, and a
// policy. A Service is immutable once it has been handed on.
type Service struct {
	// ID is the name, [A-Za-z0-9._-]{1,253}.
	ID        string
	Frontends []Frontend
	Endpoints []Endpoint
	// Balance method; empty for the dataplane's own.
	Balance string
	// Affinity is how long a client stays with its endpoint; 0 for off.
	Affinity   time.Duration
	OnEmpty    EmptyAction
	OnDrainEnd DrainEndAction
	Masquerade Masquerade
	// Allow lists the sources that may connect; empty for all.
	Allow []netip.Prefix
	// OptionsJSON are the service's options for this dataplane, as checked
	// against its schema; empty for none.
	OptionsJSON json.RawMessage
	// Options, in a plugin, is of the type of Description.Options, filled from
	// OptionsJSON with defaults; nil where Description.Options is. It is
	// always nil in the core.
	Options any
}

// Frontend is one address at which a service is reached. It is comparable and
// unique within a node.
type Frontend struct {
	Kind     FrontendKind
	Address  netip.Addr
	Port     uint16
	Protocol Protocol
}

// Endpoint is one instance of a service.
type Endpoint struct {
	Address netip.AddrPort
	// Weight is its share of new connections; 0 takes none.
	Weight uint32
	State  EndpointState
	// DrainDeadline is when a draining endpoint will be taken away; zero
	// unless draining.
	DrainDeadline time.Time
	Zone, Node    string
	// Local is set for an endpoint on this node.
	Local bool
}

// Usable tells whether the endpoint takes new connections.
func (e Endpoint) Usable() bool { return e.State == StateActive && e.Weight > 0 }

// Protocol of a frontend.
type Protocol uint8

// The protocols.
const (
	TCP Protocol = iota + 1
	UDP
	SCTP
)

// Family of an address.
type Family uint8

// The families.
const (
	IPv4 Family = iota + 1
	IPv6
)

// FamilyOf gives the family of an address; a mapped address counts as IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// FrontendKind says where a frontend's address comes from.
type FrontendKind uint8

// The kinds of frontends.
const (
	// Virtual is a VIP.
	Virtual FrontendKind = iota + 1
	// Node is a port on the node's own addresses.
	Node
	// External is an address routed to this node by someone else.
	External
)

// EndpointState says whether an endpoint takes new connections.
type EndpointState uint8

// The states of an endpoint.
const (
	StateActive EndpointState = iota + 1
	StateDraining
)

// EmptyAction is what a client of a service without a usable endpoint meets.
type EmptyAction uint8

// The actions of an empty service.
const (
	// EmptyReject refuses at once.
	EmptyReject EmptyAction = iota + 1
	// EmptyDrop answers nothing.
	EmptyDrop
)

// DrainEndAction is what becomes of an endpoint's connections when its drain
// time has ended.
type DrainEndAction uint8

// The actions at the end of the drain time.
const (
	DrainEndKeep DrainEndAction = iota + 1
	DrainEndReset
)

// Masquerade says whether an endpoint sees the node's address in place of the
// client's.
type Masquerade uint8

// The masquerade policies.
const (
	MasqueradeAuto Masquerade = iota + 1
	MasqueradeAlways
	MasqueradeNever
)
