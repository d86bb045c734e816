package catalog

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
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
	Logger    hclog.Logger
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
	// Sources that are declared, in their order; all but the static one. A
	// source that isn't named here comes after them.
	Sources []string
	// Defaults apply to a service without a block; nil for those of the
	// project.
	Defaults *config.Service
}

// NodeFacts are what the agent knows of its node.
type NodeFacts struct {
	// Name and Zone of the node; may be empty.
	Name, Zone string
	// Addresses where node frontends listen.
	Addresses []netip.Addr
}

// SourceStatus is what is known of one source.
type SourceStatus struct {
	Name string
	source.Status
	// Services that it knows.
	Services int
}

// Catalog works out the desired state. Its methods may be called from any
// goroutine.
type Catalog struct {
	options Options
	mu      sync.Mutex
	current atomic.Pointer[Snapshot]
}

var _ source.Sink = (*Catalog)(nil)

// New makes a catalog that knows nothing yet; it is to be configured before
// Run.
func New(options Options) (*Catalog, error) {
	c := &Catalog{options: options}
	c.current.Store(&Snapshot{services: iradix.New[*Service]()})
	return c, nil
}

// Configure sets the policy, at start and on each reload. When it returns, the
// snapshot follows the new policy.
func (c *Catalog) Configure(policy Policy) {}

// SetCapabilities tells what the plugin of a dataplane can carry, or with nil
// that it isn't known, which is how a dataplane begins: nothing is refused
// then.
func (c *Catalog) SetCapabilities(name string, capabilities *dataplane.Capabilities) {}

// Subscribe calls f with the newest snapshot, at once with all its ids and then
// after every change, one call at a time. f must not block, nor call the
// catalog back except for Snapshot. cancel returns when f won't be called any
// more.
func (c *Catalog) Subscribe(f func(Change)) (cancel func()) { return func() {} }

// Snapshot gives the newest one.
func (c *Catalog) Snapshot() *Snapshot { return c.current.Load() }

// Sources gives the status of every source that is declared or has spoken, in
// the order of their precedence.
func (c *Catalog) Sources() []SourceStatus { return nil }

// Change implements source.Sink. It is worked in by Run.
func (c *Catalog) Change(name string, changes source.Changes) {}

// SetStatus implements source.Sink.
func (c *Catalog) SetStatus(name string, status source.Status) {}

// ReleaseLease gives back the lease of a service that doesn't use it, so that
// its address rests; a lease that rests already is forgotten.
func (c *Catalog) ReleaseLease(service string) error { return nil }

// Run works in what the sources say and ends drain times, until ctx ends.
func (c *Catalog) Run(ctx context.Context) error { <-ctx.Done(); return nil }
