package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/plugins/userspace/loop"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// options of newUserspace.
type options struct {
	log hclog.Logger
	// started is told the number of event loops, once they run; may be nil.
	started func(loops int)
}

// userspace is the dataplane.
type userspace struct {
	log     hclog.Logger
	started func(int)
	drift   chan dataplane.Drift

	mu       sync.Mutex
	engine   *loop.Engine // nil before Configure and after Close
	config   Config       // in force
	fixed    Config       // as it was when the engine started
	held     bool
	settled  bool // the whole state has been applied once
	services map[string]*dataplane.Service
	routes   *routes
}

// newUserspace makes a dataplane that does nothing before it is configured.
func newUserspace(o options) *userspace {
	return &userspace{
		log:      o.log,
		started:  o.started,
		drift:    make(chan dataplane.Drift, 16),
		services: map[string]*dataplane.Service{},
		routes:   newRoutes(hostRouter{}),
	}
}

// Describe implements dataplane.Dataplane.
func (u *userspace) Describe() dataplane.Description {
	return dataplane.Description{
		Name:    "userspace",
		Version: version,
		Capabilities: dataplane.Capabilities{
			Protocols:     []dataplane.Protocol{dataplane.TCP, dataplane.UDP},
			Families:      []dataplane.Family{dataplane.IPv4, dataplane.IPv6},
			FrontendKinds: []dataplane.FrontendKind{dataplane.Virtual, dataplane.Node, dataplane.External},
			Balance:       balances,
			Affinity:      true,
			Weights:       true,
			Draining:      true,
			Statistics:    true,
			SourceFilter:  true,
			CleansHost:    true,
		},
		// The first for addresses that are not on this node, the second for
		// ports below 1024.
		Privileges: dataplane.Privileges{Capabilities: []string{"CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"}},
		Config:     &Config{},
		Options:    &ServiceOptions{},
	}
}

// Configure implements dataplane.Dataplane.
func (u *userspace) Configure(_ context.Context, config dataplane.Config) (dataplane.Adopted, error) {
	c, ok := config.Block.(*Config)
	if !ok {
		return dataplane.Adopted{}, fmt.Errorf("the configuration is a %T, not a %T", config.Block, c)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.routes.configure(config.NodeAddresses); err != nil {
		return dataplane.Adopted{}, err
	}
	if u.engine == nil {
		return dataplane.Adopted{}, u.start(*c)
	}
	if c.Loops != u.fixed.Loops || c.Keepalive != u.fixed.Keepalive {
		u.log.Warn("loops and keepalive of the dataplane block hold from the plugin's next start", "dataplane", "userspace")
	}
	u.config = *c
	u.engine.SetMaxConnections(c.MaxConnections)
	u.engine.SetMaxUDPSessions(c.MaxUDPSessions)
	u.carry(slices.Collect(maps.Values(u.services)), nil, u.logFailure)
	return dataplane.Adopted{Services: len(u.services)}, nil
}

func (u *userspace) logFailure(id string, err error) {
	u.log.Error("a service can't be carried with the new configuration", "service", id, "error", err)
}

func (u *userspace) start(c Config) error {
	keepalive := c.Keepalive
	if keepalive == 0 {
		keepalive = -1
	}
	engine, err := loop.New(loop.Options{
		Loops:          c.Loops,
		MaxConnections: c.MaxConnections,
		MaxUDPSessions: c.MaxUDPSessions,
		KeepAlive:      keepalive,
		FreeBind:       true, // routes.ensure makes sure of the address
		Pressure: func(refused uint64) {
			u.log.Warn("connections are refused: no descriptors are left; raise the limit (LimitNOFILE of the agent's unit) or set max_connections",
				"dataplane", "userspace", "refused", refused)
		},
	})
	if err != nil {
		return fmt.Errorf("starting the event loops: %w", err)
	}
	u.engine, u.config, u.fixed = engine, c, c
	if u.started != nil {
		u.started(engine.Loops())
	}
	return nil
}

var errNotConfigured = errors.New("the dataplane is not configured")

// Apply implements dataplane.Dataplane. An update without changes looks after
// the routes.
func (u *userspace) Apply(_ context.Context, update *dataplane.Update) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.engine == nil {
		return errNotConfigured
	}
	set, removed := update.Upserted(), update.Removed()
	u.carry(set, removed, update.Fail)
	if !u.settled {
		// This was the whole state: what an earlier process has left and it
		// doesn't name, nobody wants.
		u.settled = true
		u.routes.forgetAdopted()
	}
	u.sweep()
	if len(set)+len(removed) == 0 && !u.held {
		u.repair()
	}
	return nil
}

// carry brings the engine to the state of some services and without others.
func (u *userspace) carry(set []*dataplane.Service, removed []string, fail func(string, error)) {
	services := make([]loop.Service, 0, len(set))
	failed := map[string]error{}
	for _, s := range set {
		u.services[s.ID] = s
		v, err := translate(s, &u.config)
		err = u.prepare(s, &v, err)
		if err != nil {
			failed[s.ID] = err
		}
		services = append(services, v)
	}
	for id, err := range u.engine.Update(services, removed) {
		failed[id] = errors.Join(failed[id], explain(err))
	}
	for _, id := range removed {
		delete(u.services, id)
		u.routes.want(id, nil)
	}
	for id, err := range failed {
		fail(id, err)
	}
}

// sweep removes the routes that are not needed any more. That one is left
// harms no service.
func (u *userspace) sweep() {
	if err := u.routes.sweep(); err != nil {
		u.log.Warn("a local route is left for now", "error", err)
	}
}

// prepare makes the addresses of a service local, and takes away those that
// can't be.
func (u *userspace) prepare(s *dataplane.Service, v *loop.Service, err error) error {
	var routable []netip.Addr
	for _, f := range s.Frontends {
		if f.Kind != dataplane.Node {
			routable = append(routable, f.Address.Unmap())
		}
	}
	u.routes.want(s.ID, routable)
	failed := map[netip.Addr]error{}
	errs := []error{err}
	elsewhere := func(a netip.AddrPort) bool {
		err, known := failed[a.Addr()]
		if !known {
			err = u.routes.ensure(a.Addr(), slices.Contains(routable, a.Addr()))
			failed[a.Addr()] = err
			errs = append(errs, err)
		}
		return err != nil
	}
	v.Listen = slices.DeleteFunc(v.Listen, elsewhere)
	v.ListenUDP = slices.DeleteFunc(v.ListenUDP, elsewhere)
	return errors.Join(errs...)
}

// repair puts back the routes that somebody has taken away.
func (u *userspace) repair() {
	for _, d := range u.routes.repair() {
		select {
		case u.drift <- d:
		default: // nobody listens; the log says it
		}
		u.log.Warn("a route of ours was gone", "reason", d.Message, "repaired", d.Repaired)
	}
}

// Drift implements dataplane.Notifier.
func (u *userspace) Drift() <-chan dataplane.Drift { return u.drift }

// Hold implements dataplane.Holder.
func (u *userspace) Hold(_ context.Context, hold bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.engine == nil {
		return errNotConfigured
	}
	u.held = hold
	u.engine.Hold(hold)
	return nil
}

// Close implements dataplane.Dataplane. Connections live in this process: only
// a handover waits for their end.
func (u *userspace) Close(ctx context.Context, mode dataplane.CloseMode) error {
	u.mu.Lock()
	engine := u.engine
	u.engine = nil
	u.mu.Unlock()
	var errs []error
	if engine != nil {
		if mode != dataplane.CloseHandover {
			now, cancel := context.WithCancel(ctx)
			cancel()
			ctx = now
		}
		if err := engine.Close(ctx); err != nil {
			u.log.Info("ended with connections open", "reason", err)
		}
	}
	if mode == dataplane.CloseCleanup {
		errs = append(errs, u.routes.removeAll())
	}
	return errors.Join(errs...)
}
