package consul

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// maxLookups is how many run at once.
const maxLookups = 16

// hosts resolves the host names that are instances' addresses, again and again
// while they are in use. A name that can't be resolved keeps its last answer.
type hosts struct {
	resolver source.Resolver
	interval time.Duration
	log      hclog.Logger
	// changed is called with the services that use a name, without the lock.
	changed func(services []string)
	wake    chan struct{}

	mu    sync.Mutex
	names map[string]*host
	// used are the names that each service uses.
	used map[string][]string
}

type host struct {
	addresses []netip.Addr
	// err is why it does not resolve; empty while it does.
	err   string
	tried bool
	due   time.Time
	busy  bool
	users map[string]struct{}
}

func newHosts(resolver source.Resolver, interval time.Duration, log hclog.Logger, changed func([]string)) *hosts {
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	return &hosts{
		resolver: resolver, interval: interval, log: log, changed: changed,
		wake:  make(chan struct{}, 1),
		names: map[string]*host{}, used: map[string][]string{},
	}
}

// use says which names a service has now.
func (h *hosts) use(service string, instances []instance) {
	var names []string
	for i := range instances {
		if a := instances[i].Address; net.ParseIP(a) == nil {
			names = append(names, a)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.used[service]
	if slices.Equal(before, names) {
		return
	}
	for _, name := range names {
		n := h.names[name]
		if n == nil {
			n = &host{users: map[string]struct{}{}}
			h.names[name] = n
		}
		n.users[service] = struct{}{}
	}
	for _, name := range before {
		if n := h.names[name]; n != nil && !slices.Contains(names, name) {
			delete(n.users, service)
			if len(n.users) == 0 {
				delete(h.names, name)
			}
		}
	}
	h.used[service] = names
	if len(names) == 0 {
		delete(h.used, service)
	}
	h.signal()
}

func (h *hosts) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// addresses gives the last answer, and why there is none now.
func (h *hosts) addresses(name string) ([]netip.Addr, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.names[name]
	switch {
	case n == nil, !n.tried && len(n.addresses) == 0:
		return nil, "not looked up yet"
	default:
		return n.addresses, n.err
	}
}

// saved gives the answers that outlive the process, and load takes them.
func (h *hosts) saved() map[string][]netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string][]netip.Addr{}
	for name, n := range h.names {
		if len(n.addresses) > 0 {
			out[name] = n.addresses
		}
	}
	return out
}

func (h *hosts) load(saved map[string][]netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, n := range h.names {
		n.addresses = source.CleanAddresses(saved[name])
	}
}

// run resolves until ctx ends.
func (h *hosts) run(ctx context.Context) {
	var lookups sync.WaitGroup
	defer lookups.Wait()
	slots := make(chan struct{}, maxLookups)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		case <-timer.C:
		}
		due, wait := h.take(time.Now())
		for _, name := range due {
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			lookups.Go(func() {
				h.resolve(ctx, name)
				<-slots
			})
		}
		timer.Reset(wait)
	}
}

// take gives the names to look up now, and the time until there are more.
func (h *hosts) take(now time.Time) ([]string, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var due []string
	wait := h.interval
	for name, n := range h.names {
		switch until := n.due.Sub(now); {
		case n.busy:
		case until <= 0:
			n.busy = true
			due = append(due, name)
		default:
			wait = min(wait, until)
		}
	}
	return due, max(wait, time.Millisecond)
}

func (h *hosts) resolve(ctx context.Context, name string) {
	found, failure := source.Lookup(ctx, h.resolver, name)
	failure = printable(failure, 100)
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	n := h.names[name]
	if n == nil {
		h.mu.Unlock()
		return
	}
	n.busy = false
	n.due = time.Now().Add(h.interval)
	if failure != "" {
		n.due = time.Now().Add(min(h.interval, source.LookupTimeout))
	}
	changed := !n.tried || failure != n.err
	if failure != "" && failure != n.err {
		h.log.Warn("a host name does not resolve; its last addresses are kept", "host", printable(name, 100), "error", failure, "addresses", n.addresses)
	}
	if failure == "" && !slices.Equal(found, n.addresses) {
		n.addresses, changed = found, true
	}
	n.tried, n.err = true, failure
	users := slices.Sorted(maps.Keys(n.users))
	h.mu.Unlock()
	h.signal()
	if changed {
		h.changed(users)
	}
}
