// Package static is the source of the services that the configuration lists
// with their endpoints.
//
// In go service blocks with endpoints ([Source.Set], at start and on each
// reload); out go services to the catalog, whenever a block, the addresses of a
// host name or an endpoint's health has changed. Endpoints of a service with a
// check block are checked over TCP or HTTP; others are up. The agent owns it:
//
//	src := static.New(static.Options{StatePath: ...})
//	src.Set(config.Services)
//	go src.Run(ctx, catalog)  // until ctx ends; saves the state at its end
//	src.Set(changed.Services) // on reload
//
// An endpoint begins as the saved state says, else up, but then its first
// failed check takes it down. A reload keeps the state of each endpoint whose
// service, address and kind of check are as before. A host name stands for all
// its addresses, is resolved again every so often, and keeps its last answer
// while it can't be.
package static

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/core/state"
)

// Options of a Source; the zero value of each is a default.
type Options struct {
	// StatePath of the file that keeps health and addresses over a restart;
	// empty for none.
	StatePath string
	// Troubles gets what is wrong with that file; nil for none.
	Troubles *state.Troubles
	Logger   hclog.Logger
	// MaxChecks that run at once; 256 by default.
	MaxChecks int
	// ResolveInterval is how often a host name is resolved again; 30 s by
	// default, because the system's resolver doesn't tell the TTL.
	ResolveInterval time.Duration
	// Resolver of host names; the system's by default.
	Resolver source.Resolver
	// UserAgent of HTTP checks; "patchbay-check" by default.
	UserAgent string
	// SaveInterval is how often the state is saved at most; 5 s by default.
	SaveInterval time.Duration
}

func (o *Options) fill() {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.MaxChecks <= 0 {
		o.MaxChecks = 256
	}
	if o.ResolveInterval <= 0 {
		o.ResolveInterval = 30 * time.Second
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	if o.UserAgent == "" {
		o.UserAgent = "patchbay-check"
	}
	if o.SaveInterval <= 0 {
		o.SaveInterval = 5 * time.Second
	}
}

// maxLookups is how many run at once.
const maxLookups = 16

// Source is the static source. Its methods may be called from any goroutine.
type Source struct {
	options Options
	log     hclog.Logger
	// changed holds one token while services are dirty.
	changed chan struct{}
	checks  *scheduler
	lookups *scheduler

	mu sync.Mutex
	// blocks with endpoints, by name.
	blocks map[string]*config.Service
	// hosts are the names that blocks use, targets the endpoints to check, by
	// service.
	hosts   map[string]*host
	targets map[string]map[targetKey]*target
	// users of a host name are the services to look at when it changes.
	users map[string][]string
	// saved is what the last process knew; it counts for what this one has
	// not looked at itself.
	saved struct {
		hosts  map[string][]netip.Addr
		health map[targetKey]health
	}
	// dirty are services to tell the sink about, or to take back.
	dirty map[string]struct{}
	// retell is set while the sink is to be told everything again.
	retell bool
	// failing is set while the state can't be saved; save alone uses it.
	failing bool
	// unsaved is set while the state differs from the saved one.
	unsaved bool
}

// host is a name that is resolved.
type host struct {
	addresses []netip.Addr
	// err is why it does not resolve; empty when it does.
	err string
	// tried is set once it has been looked up.
	tried bool
	task  *task
}

// targetKey identifies what is checked, and how.
type targetKey struct {
	Service string         `json:"service"`
	Host    string         `json:"host"`
	At      netip.AddrPort `json:"at"`
	// Check is "tcp", or the path that is asked for.
	Check string `json:"check"`
}

// target is an endpoint that is checked.
type target struct {
	check  *config.Check
	health health
	task   *task
}

// New makes a source, and reads its saved state; what is damaged of it is
// logged and done without.
func New(options Options) *Source {
	options.fill()
	s := &Source{
		options: options, log: options.Logger,
		changed: make(chan struct{}, 1),
		checks:  newScheduler(options.MaxChecks),
		lookups: newScheduler(maxLookups),
		blocks:  map[string]*config.Service{},
		hosts:   map[string]*host{},
		targets: map[string]map[targetKey]*target{},
		dirty:   map[string]struct{}{},
	}
	s.saved.hosts = map[string][]netip.Addr{}
	s.saved.health = map[targetKey]health{}
	s.load()
	return s
}

// Name implements source.Source.
func (s *Source) Name() string { return source.Static }

// Set gives the source all service blocks; those without endpoints are left to
// other sources. Nothing is checked before Run. It may be called at any time;
// a service that comes out the same is told as the same *source.Service.
func (s *Source) Set(services []*config.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.blocks {
		s.touch(name)
	}
	s.retell = true
	s.blocks = map[string]*config.Service{}
	for _, block := range services {
		if block.Static() {
			s.blocks[block.Name] = block
			s.touch(block.Name)
		}
	}
	s.followHosts()
	// The first checks come soon where they are few, and spread out where they
	// are many.
	endpoints := 0
	for _, block := range s.blocks {
		endpoints += len(block.Endpoints)
	}
	for name := range s.dirty {
		s.followTargets(name, time.Duration(endpoints)*5*time.Millisecond)
	}
}

// Preview gives what the source would tell right after Set of these blocks.
func (s *Source) Preview(services []*config.Service) []*source.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []*source.Service{}
	for _, block := range services {
		if block.Static() {
			out = append(out, s.build(block))
		}
	}
	return out
}

// touch marks a service as one to tell about.
func (s *Source) touch(name string) {
	s.dirty[name] = struct{}{}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// followTargets brings the endpoints of a service that are checked to those of
// its block. New ones are checked within spread, or their interval if that is
// shorter.
func (s *Source) followTargets(service string, spread time.Duration) {
	block := s.blocks[service]
	wanted := map[targetKey]bool{}
	if block != nil {
		s.eachTarget(block, func(key targetKey) { wanted[key] = true })
	}
	for key, t := range s.targets[service] {
		if !wanted[key] {
			s.checks.remove(t.task)
			delete(s.targets[service], key)
			s.unsaved = true
		}
	}
	if len(wanted) == 0 {
		delete(s.targets, service)
		return
	}
	if s.targets[service] == nil {
		s.targets[service] = make(map[targetKey]*target, len(wanted))
	}
	for key := range wanted {
		if t := s.targets[service][key]; t != nil {
			t.check = block.Check
			continue
		}
		t := &target{check: block.Check, health: s.saved.health[key]}
		delete(s.saved.health, key)
		t.task = &task{index: -1, run: func(ctx context.Context) time.Duration { return s.checkTarget(ctx, key, t) }}
		s.targets[service][key] = t
		s.checks.add(t.task, rand.N(max(min(spread, block.Check.Interval), 1)))
	}
}

// eachTarget calls f for what is to be checked of a block.
func (s *Source) eachTarget(block *config.Service, f func(targetKey)) {
	if block.Check == nil {
		return
	}
	for _, e := range block.Endpoints {
		for _, address := range s.addresses(e.Host) {
			f(keyOf(block, &e, address))
		}
	}
}

func keyOf(block *config.Service, e *config.Endpoint, address netip.Addr) targetKey {
	key := targetKey{Service: block.Name, Host: e.Host, At: netip.AddrPortFrom(address, e.Port), Check: "tcp"}
	if !block.Check.TCP {
		key.Check = block.Check.HTTP
	}
	return key
}

// checkTarget checks once, and gives the time until the next one: the interval,
// a tenth more or less, so that checks that began together part.
func (s *Source) checkTarget(ctx context.Context, key targetKey, t *target) time.Duration {
	s.mu.Lock()
	check := t.check
	s.mu.Unlock()
	err := s.probe(ctx, check, key.Host, key.At)
	interval := max(check.Interval, 10*time.Millisecond)
	next := interval - interval/10 + rand.N(interval/5+1)
	if ctx.Err() != nil {
		return next // it was called off, which says nothing of the endpoint
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets[key.Service][key] != t {
		return next
	}
	was := t.health.Down
	if t.health.result(err, check.Rise, check.Fall) {
		s.unsaved = true
		s.touch(key.Service)
	}
	if t.health.Down != was {
		health := source.Passing
		if t.health.Down {
			health = source.Critical
		}
		s.log.Info("endpoint has changed its health", "service", key.Service, "endpoint", key.At, "health", health, "reason", t.health.Reason)
	}
	return next
}
