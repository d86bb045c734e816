package catalog

import (
	"net/netip"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// Action is what a reload would do to a service.
type Action string

// The actions of a plan.
const (
	Added   Action = "added"
	Changed Action = "changed"
	Removed Action = "removed"
)

// Plan is what a reload would change, in the order of ids.
type Plan struct {
	Changes []PlannedChange
	// Leases that would be taken.
	Leases []PlannedLease
}

// PlannedChange is one service that would change.
type PlannedChange struct {
	ID     string
	Action Action
	// Rejected is why it would not be carried; empty when it would.
	Rejected string
	Fields   []FieldChange
}

// FieldChange is one field that would change, in words for people; the old
// value is empty for a service that is added, the new one for one removed.
type FieldChange struct {
	Field    string
	Old, New string
}

// PlannedLease is a lease that would be taken.
type PlannedLease struct {
	Service, Pool string
	Addresses     []netip.Addr
}

// Plan tells what Configure(policy) would change, if the static source said
// what services says. Nothing changes by it.
func (c *Catalog) Plan(policy Policy, services []*source.Service) *Plan { return &Plan{} }
