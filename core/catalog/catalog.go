package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/core/state"
	"github.com/patchbay-proxy/patchbay/core/vip"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// Options of a Catalog.
type Options struct {
	// Leases of VIPs; required.
	Leases vip.Store
	// StatePath of the file that keeps the revision over a restart; empty for
	// none.
	StatePath string
	// Troubles gets what is wrong with that file; nil for none.
	Troubles *state.Troubles
	Logger   hclog.Logger
	// Now is the clock; nil for the machine's.
	Now func() time.Time
	// RetryInterval is how often a service that waits for an address asks
	// again; 5 s by default.
	RetryInterval time.Duration
}

// Policy is what the catalog applies to what the sources say.
type Policy struct {
	Config *config.Config
	Node   NodeFacts
	// Sources that are declared, in their order; the static one is always and
	// need not be named. What another source says is not taken.
	Sources []string
	// Defaults apply to a service without a block; nil for those of the
	// project.
	Defaults *config.Service
	// Static is what the static source says of this configuration, to come
	// into force with it; nil to wait for the source.
	Static []*source.Service
}

// NodeFacts are what the agent knows of its node.
type NodeFacts struct {
	// Zone of the node; empty when it has none.
	Zone string
	// Addresses where node frontends listen.
	Addresses []netip.Addr
}

// Catalog works out the desired state. Its methods may be called from any
// goroutine.
type Catalog struct {
	log   hclog.Logger
	now   func() time.Time
	retry time.Duration

	inbox inbox

	// mu covers what follows.
	mu       sync.Mutex
	leases   vip.Store
	revision revisions
	policy   policies
	caps     map[string]*dataplane.Capabilities
	sources  map[string]*sourceState
	entries  map[string]*entry
	rivals   rivals
	timers   timers
	dirty    map[*entry]struct{}
	// swept is set once the leases of services that no source knows have been
	// given back, which is when every source has been read.
	swept bool
	// unsynced is set while leases can't be put on disk.
	unsynced    bool
	subscribers []*subscriber

	// What others read without the lock.
	current  atomic.Pointer[Snapshot]
	statuses atomic.Pointer[[]SourceStatus]
}

var _ source.Sink = (*Catalog)(nil)

// New makes a catalog that knows nothing yet; it is to be configured before
// Run. Saved state that is damaged is logged and done without; it is an error
// that it was written by a newer version.
func New(options Options) (*Catalog, error) {
	if options.Leases == nil {
		return nil, errors.New("a catalog needs a store of leases")
	}
	c := newCatalog(options)
	if err := c.revision.load(options.StatePath, c.now, c.log, options.Troubles); err != nil {
		return nil, err
	}
	c.current.Store(EmptySnapshot().Next(c.revision.last, c.now(), nil, nil))
	return c, nil
}

func newCatalog(options Options) *Catalog {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.RetryInterval <= 0 {
		options.RetryInterval = 5 * time.Second
	}
	c := &Catalog{
		log: options.Logger, now: options.Now, retry: options.RetryInterval,
		leases:  options.Leases,
		caps:    map[string]*dataplane.Capabilities{},
		sources: map[string]*sourceState{},
		entries: map[string]*entry{},
		rivals:  newRivals(),
		dirty:   map[*entry]struct{}{},
	}
	c.inbox.wake = make(chan struct{}, 1)
	c.policy.set(Policy{Config: &config.Config{}})
	c.noteSources()
	return c
}

// Configure sets the policy, at start and on each reload. When it returns, the
// snapshot follows the new policy.
func (c *Catalog) Configure(policy Policy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.configure(policy)
	c.settle()
}

func (c *Catalog) configure(policy Policy) {
	if policy.Config == nil {
		policy.Config = &config.Config{}
	}
	c.policy.set(policy)
	c.leases.Configure(c.policy.pools(), c.policy.reserved())
	c.declare()
	c.takeInbox()
	if policy.Static != nil {
		c.takeChanges(source.Static, newPending(source.Changes{Upserts: policy.Static, Replace: true}))
	}
	for name := range c.policy.blocks {
		c.entry(name)
	}
	c.touchAll()
	// A block that went leaves leases behind.
	c.swept = false
}

// SetCapabilities tells what the plugin of a dataplane can carry, or with nil
// that it isn't known, which is how a dataplane begins: nothing is refused
// then.
func (c *Catalog) SetCapabilities(name string, capabilities *dataplane.Capabilities) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caps[name] = capabilities
	for _, e := range c.entries {
		if e.judged.dataplane == name {
			c.touch(e)
		}
	}
	c.settle()
}

// Change implements source.Sink. It is worked in by Run; what changes again
// before that is worked in once.
func (c *Catalog) Change(name string, changes source.Changes) { c.inbox.change(name, changes) }

// SetStatus implements source.Sink.
func (c *Catalog) SetStatus(name string, status source.Status) { c.inbox.setStatus(name, status) }

// Run works in what the sources say and ends drain times, until ctx ends.
func (c *Catalog) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.inbox.wake:
		case <-timer.C:
		}
		timer.Reset(c.step())
	}
}

// step works in everything that is known now, and gives the time until there
// is more to do of its own accord.
func (c *Catalog) step() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.takeInbox()
	for _, e := range c.timers.due(now) {
		c.touch(e)
	}
	c.settle()
	next, ok := c.timers.next()
	if !ok {
		return time.Hour
	}
	// A clock that stands still (or was set back) must not make a busy loop.
	return max(next.Sub(c.now()), time.Millisecond)
}

// Snapshot gives the newest one.
func (c *Catalog) Snapshot() *Snapshot { return c.current.Load() }

type subscriber struct{ f func(Change) }

// Subscribe calls f with the newest snapshot, at once with all its ids and then
// after every change, one call at a time. f must not block, nor call the
// catalog back except for Snapshot. cancel returns when f won't be called any
// more; it is not for f to call.
func (c *Catalog) Subscribe(f func(Change)) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &subscriber{f}
	c.subscribers = append(c.subscribers, s)
	snapshot := c.Snapshot()
	ids := make([]string, 0, snapshot.Len())
	snapshot.All(func(v *Service) bool { ids = append(ids, v.ID); return true })
	f(Change{Snapshot: snapshot, IDs: ids})
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.subscribers = slices.DeleteFunc(c.subscribers, func(o *subscriber) bool { return o == s })
	}
}

// Errors of ReleaseLease.
var (
	// ErrLeaseInUse means that a service of the catalog has the lease.
	ErrLeaseInUse = errors.New("the lease is in use")
	// ErrNoLease means that there is none.
	ErrNoLease = errors.New("no such lease")
)

// ReleaseLease gives back the lease of a service that doesn't use it, so that
// its address rests; a lease that rests already is forgotten, and its address
// is free at once.
func (c *Catalog) ReleaseLease(service string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[service]; e != nil && e.usesLease {
		return fmt.Errorf("releasing the VIP of service %q: %w", service, ErrLeaseInUse)
	}
	known := func(l vip.Lease) bool { return l.Service == service }
	if !slices.ContainsFunc(c.leases.List(), known) {
		return fmt.Errorf("releasing the VIP of service %q: %w", service, ErrNoLease)
	}
	return errors.Join(c.leases.Release(service), c.leases.Sync())
}
