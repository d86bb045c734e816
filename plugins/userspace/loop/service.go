package loop

import (
	"errors"
	"fmt"
	"net/netip"
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
)

// OnEmpty says what happens to a new connection when no endpoint takes any.
type OnEmpty uint8

const (
	// Reject resets the connection.
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
	// Listen are the addresses and ports of its frontends.
	Listen []netip.AddrPort
	// Endpoints in any order. Of two with one address the first counts.
	Endpoints []Endpoint
	Balance   Balance
	// Retries is the number of further endpoints that are tried after the first
	// when connecting fails.
	Retries int
	// ConnectTimeout bounds one attempt to connect, in steps of 0.1 s; 0 means
	// 2 s.
	ConnectTimeout time.Duration
	// IdleTimeout closes a connection that moved no byte for so long; 0 means
	// never.
	IdleTimeout time.Duration
	// Allow are the prefixes from which clients may connect; empty means all.
	// Others are reset once accepted.
	Allow []netip.Prefix
	// MaxConnections is the greatest number of connections at once; more are
	// reset. 0 means no limit.
	MaxConnections int
	OnEmpty        OnEmpty
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
	for _, a := range s.Listen {
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
	if s.Retries < 0 || s.MaxConnections < 0 || s.ConnectTimeout < 0 || s.IdleTimeout < 0 {
		return errors.New("a limit or a time is below zero")
	}
	return nil
}

// settings are the parts of a service that loops read when a connection comes
// or a timer fires; replaced as a whole.
type settings struct {
	retries int
	connect uint32 // ticks
	idle    uint32 // ticks, 0 is none
	allow   []netip.Prefix
	max     int64 // 0 is none
}

func newSettings(s *Service) *settings {
	t := &settings{
		retries: s.Retries,
		connect: toTicks(s.ConnectTimeout),
		idle:    toTicks(s.IdleTimeout),
		max:     int64(s.MaxConnections),
	}
	if s.ConnectTimeout == 0 {
		t.connect = toTicks(2 * time.Second)
	}
	for _, p := range s.Allow {
		t.allow = append(t.allow, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()).Masked())
	}
	return t
}

// allows says whether a client of this address may connect.
func (t *settings) allows(a netip.Addr) bool {
	if len(t.allow) == 0 {
		return true
	}
	for _, p := range t.allow {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
