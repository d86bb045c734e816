package loop

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Balance says how a service chooses between its endpoints.
type Balance uint8

const (
	// RoundRobin takes endpoints in turn, in proportion to their weights and as
	// evenly in time as weights allow (smooth weighted round robin).
	RoundRobin Balance = iota
	// LeastConnections takes the endpoint with the fewest connections for its
	// weight.
	LeastConnections
	// Random draws two endpoints in proportion to weights and takes the one
	// with fewer connections for its weight.
	Random
	// SourceHash takes an endpoint by the client's address alone: the same on
	// every node that knows the same endpoints. When one leaves, its clients
	// alone move. Its cost grows with the number of endpoints.
	SourceHash
	// Maglev is the same with a table, which costs 128 KiB for a service and
	// some milliseconds to build (1.3 MiB above 655 endpoints), and nothing
	// that grows for a connection; a few clients of others move too.
	Maglev
)

// OnEmpty says what happens to a new connection when no endpoint takes any.
type OnEmpty uint8

const (
	// Reject resets the connection. For UDP the listener is closed, so that the
	// kernel answers each datagram that the port is unreachable.
	Reject OnEmpty = iota
	// Drop stays silent: the listener ignores every packet.
	Drop
)

// MaxWeight is the greatest weight of an endpoint.
const MaxWeight = 1<<32 - 1

// Service is everything the engine must know of one service. It is a value:
// the engine keeps none of its slices.
type Service struct {
	// ID names the service; an update replaces the one of the same ID.
	ID string
	// Listen are the addresses and ports of its TCP frontends, ListenUDP those
	// of its UDP frontends.
	Listen, ListenUDP []netip.AddrPort
	// Endpoints in any order. Of two with one address the first counts.
	Endpoints []Endpoint
	Balance   Balance
	// Affinity is how long a client, by its address, stays with its endpoint,
	// counted from its last connection; 0 is off. 65,536 clients are
	// remembered, those with the latest connections.
	Affinity time.Duration
	// EjectAfter is after how many failed attempts in a row an endpoint takes
	// no new connections for EjectFor, twice as long each time until one
	// succeeds, 32 times as long at most; 0 is never. At most half of the
	// endpoints are ejected at once. EjectFor of 0 means 10 s.
	EjectAfter int
	EjectFor   time.Duration
	// Retries is the number of further endpoints that are tried after the first
	// when connecting fails.
	Retries int
	// ConnectTimeout bounds one attempt to connect, in steps of 0.1 s; 0 means
	// 2 s.
	ConnectTimeout time.Duration
	// IdleTimeout closes a connection that moved no byte for so long; 0 means
	// never.
	IdleTimeout time.Duration
	// MaxLifetime resets a connection that is so old; 0 means never.
	MaxLifetime time.Duration
	// UDPIdleTimeout ends a UDP session in which no datagram went either way for
	// so long; 0 means 60 s.
	UDPIdleTimeout time.Duration
	// Allow are the prefixes from which clients may connect; empty means all.
	// Others are reset once accepted; their datagrams are dropped.
	Allow []netip.Prefix
	// MaxConnections is the greatest number of connections at once; more are
	// reset. 0 means no limit.
	MaxConnections int
	// MaxPerClient is the same for the connections of one client address.
	MaxPerClient int
	// SendProxy begins each connection to an endpoint with a PROXY protocol
	// header of version 2 that tells the client's address.
	SendProxy bool
	// TrustProxy are the prefixes from which every connection has to begin with
	// a PROXY protocol header, version 1 or 2. The client that it tells is the
	// client for all purposes; connections from elsewhere are ordinary ones.
	TrustProxy []netip.Prefix
	OnEmpty    OnEmpty
	// ResetOnDrainEnd cuts the connections to an endpoint whose drain deadline
	// has passed or that has left the list; otherwise they are left alone.
	ResetOnDrainEnd bool
}

// Endpoint is one instance of a service.
type Endpoint struct {
	Address netip.AddrPort
	// Weight is the share of new connections; 0 takes none, MaxWeight at most.
	Weight int
	// Draining endpoints take no new connections and keep those they have.
	Draining bool
	// Deadline is when draining ends; the zero time means never.
	Deadline time.Time
}

// check says what is wrong with a service as such.
func (s *Service) check() error {
	if s.ID == "" {
		return errors.New("a service without an id")
	}
	for _, a := range slices.Concat(s.Listen, s.ListenUDP) {
		if !a.IsValid() || a.Port() == 0 {
			return fmt.Errorf("%q is no address and port to listen on", a)
		}
	}
	for _, e := range s.Endpoints {
		if !e.Address.IsValid() || e.Address.Port() == 0 || e.Address.Addr().IsUnspecified() {
			return fmt.Errorf("%q is no address and port of an endpoint", e.Address)
		}
		if e.Weight < 0 || e.Weight > MaxWeight {
			return fmt.Errorf("weight %d of endpoint %s is not between 0 and %d", e.Weight, e.Address, MaxWeight)
		}
	}
	if s.Retries < 0 || s.MaxConnections < 0 || s.ConnectTimeout < 0 || s.IdleTimeout < 0 || s.UDPIdleTimeout < 0 {
		return errors.New("a limit or a time is below zero")
	}
	return s.checkChoice()
}

func (s *Service) checkChoice() error {
	if s.MaxLifetime < 0 || s.MaxPerClient < 0 || s.Affinity < 0 || s.EjectAfter < 0 || s.EjectFor < 0 {
		return errors.New("a limit or a time is below zero")
	}
	if s.Balance == Maglev && len(s.Endpoints) > maglevMost {
		return fmt.Errorf("maglev takes at most %d endpoints, not %d", maglevMost, len(s.Endpoints))
	}
	return nil
}

// settings are the parts of a service that loops read when a connection comes
// or a timer fires; replaced as a whole.
type settings struct {
	retries int
	connect uint32 // ticks
	idle    uint32 // ticks, 0 is none
	idleUDP uint32 // ticks
	allow   []netip.Prefix
	max     int64  // 0 is none
	life    uint32 // ticks, 0 is none
	guest   int    // most of one client, 0 is none
	send    bool   // SendProxy
	trust   []netip.Prefix
	// origin says that what is known of a client is needed after its endpoint
	// has been chosen.
	origin bool
}

func newSettings(s *Service) *settings {
	t := &settings{
		retries: s.Retries,
		connect: toTicks(s.ConnectTimeout),
		idle:    toTicks(s.IdleTimeout),
		max:     int64(s.MaxConnections),
		life:    toTicks(s.MaxLifetime),
		allow:   plainPrefixes(s.Allow),
		guest:   s.MaxPerClient,
		send:    s.SendProxy,
		trust:   plainPrefixes(s.TrustProxy),
		origin:  s.SendProxy || s.MaxPerClient > 0 || s.Affinity > 0 || s.Balance == SourceHash || s.Balance == Maglev,
		idleUDP: toTicks(s.UDPIdleTimeout),
	}
	if s.UDPIdleTimeout == 0 {
		t.idleUDP = toTicks(60 * time.Second)
	}
	if s.ConnectTimeout == 0 {
		t.connect = toTicks(2 * time.Second)
	}
	return t
}

// plainPrefixes writes prefixes of mapped IPv4 addresses as those of IPv4.
func plainPrefixes(list []netip.Prefix) []netip.Prefix {
	var plain []netip.Prefix
	for _, p := range list {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		plain = append(plain, p.Masked())
	}
	return plain
}

// allows says whether a client of this address may connect.
func (t *settings) allows(a netip.Addr) bool {
	return len(t.allow) == 0 || contains(t.allow, a)
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
