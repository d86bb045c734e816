// Package vip gives services their addresses: pools of them, and leases.
//
// In go the pools of the configuration, the addresses that it sets itself
// (never leased), and the name of a service that wants an address; out comes
// the [Lease] that it holds. The catalog calls it, and the command line through
// the admin API.
//
// A service's first candidate is derived from its name alone ([Candidates]), so
// that nodes that share nothing mostly agree, and so that most services keep
// their addresses even if the leases are lost. An address that is given back
// rests for 24 hours: its service gets it again, others don't.
package vip

import (
	"errors"
	"net/netip"
	"time"
)

// Rest is how long an address that was given back is kept from others, because
// clients and caches may still know it as its last owner.
const Rest = 24 * time.Hour

// Pool is where addresses are taken from.
type Pool struct {
	Name string
	// CIDR holds one range per family at most.
	CIDR []netip.Prefix
}

// Lease is the record that a service holds addresses of a pool.
type Lease struct {
	Service string
	Pool    string
	// Addresses, one per family of the pool, IPv4 first.
	Addresses []netip.Addr
	// Since is when the service got its first address here: of two leases the
	// older one is in the right.
	Since time.Time
	// Released is when the service gave it back; zero while it is held.
	Released time.Time
}

// Held tells whether the lease is in use.
func (l Lease) Held() bool { return l.Released.IsZero() }

// Errors of [Store.Claim].
var (
	// ErrNoPool means that there is no pool of that name.
	ErrNoPool = errors.New("no such vip_pool")
	// ErrExhausted means that every address of the pool is taken or rests.
	ErrExhausted = errors.New("the pool has no free address")
	// ErrWaiting means that the answer isn't known yet, because the lease
	// can't be recorded now. The error that wraps it says why; the claim is
	// to be made again.
	ErrWaiting = errors.New("waiting for the lease to be recorded")
)

// Store keeps leases. A store may be shared by many nodes, so that a claim can
// be refused, or be known only later; it never blocks for long. Its methods may
// be called from any goroutine.
type Store interface {
	// Configure sets the pools, and the addresses that are never leased
	// because the configuration gives them to a service itself. Leases that
	// exist stay as they are until they are claimed again.
	Configure(pools []Pool, reserved []netip.Addr)
	// Claim gives the lease that a service holds, or a new one. A service
	// holds one lease: a claim on another pool gives the first back.
	Claim(pool, service string) (Lease, error)
	// Lease gives what a service holds now, and whether it does.
	Lease(service string) (Lease, bool)
	// Release gives a lease back; its addresses rest. One that rests already
	// is forgotten, and its addresses are free.
	Release(service string) error
	// List gives all leases in the order of services, the resting included.
	List() []Lease
	// Sync returns when everything claimed before is recorded for good. It is
	// called once for many claims.
	Sync() error
	// Preview gives a store that answers as this one would, and records
	// nothing: for what a reload would change.
	Preview() Store
}
