package catalog

import (
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

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

// PlannedLease is a lease that would be taken.
type PlannedLease struct {
	Service, Pool string
	Addresses     []netip.Addr
}

// Plan tells what Configure(policy) would change, if the static source said
// what services says; nil leaves what it says now. Nothing changes by it. It
// costs a walk over all services.
func (c *Catalog) Plan(policy Policy, services []*source.Service) *Plan {
	if services != nil {
		policy.Static = services
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	trial := c.trial()
	var ids []string
	trial.subscribers = []*subscriber{{func(change Change) { ids = change.IDs }}}
	trial.configure(policy)
	trial.settle()

	plan := &Plan{}
	for _, id := range ids {
		old, s := c.Snapshot().Get(id), trial.Snapshot().Get(id)
		if change, differs := plannedChange(id, old, s); differs {
			plan.Changes = append(plan.Changes, change)
		}
	}
	for _, after := range trial.leases.List() {
		before, _ := c.leases.Lease(after.Service)
		if after.Held() && !slices.Equal(before.Addresses, after.Addresses) {
			plan.Leases = append(plan.Leases, PlannedLease{Service: after.Service, Pool: after.Pool, Addresses: after.Addresses})
		}
	}
	return plan
}

// trial makes a catalog that is where this one is, and whose changes have no
// effect on it.
func (c *Catalog) trial() *Catalog {
	t := newCatalog(Options{Leases: c.leases.Preview(), Logger: hclog.NewNullLogger(), Now: c.now, RetryInterval: c.retry})
	t.revision.reserved = ^uint64(0)
	t.revision.last = c.revision.last
	for name, s := range c.sources {
		copied := *s
		copied.known = make(map[string]struct{}, len(s.known))
		for k := range s.known {
			copied.known[k] = struct{}{}
		}
		t.sources[name] = &copied
	}
	for name, caps := range c.caps {
		t.caps[name] = caps
	}
	for name, e := range c.entries {
		copied := *e
		copied.standing, copied.wakeAt = standing{}, time.Time{}
		t.entries[name] = &copied
	}
	t.current.Store(c.Snapshot())
	return t
}

func plannedChange(id string, old, s *Service) (PlannedChange, bool) {
	change := PlannedChange{ID: id, Fields: fieldChanges(old, s)}
	switch {
	case old == nil:
		change.Action = Added
	case s == nil:
		change.Action = Removed
	default:
		change.Action = Changed
	}
	if s != nil {
		change.Rejected = s.Rejected
	}
	return change, change.Action != Changed || len(change.Fields) > 0
}
