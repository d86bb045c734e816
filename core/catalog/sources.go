package catalog

import (
	"maps"
	"slices"
	"sync"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// inbox holds what the sources have said until the catalog works it in. Of a
// service that changes several times meanwhile, the last word counts.
type inbox struct {
	// wake holds one token while there is something.
	wake chan struct{}

	mu sync.Mutex
	// pending changes and status by source; nil for none.
	pending map[string]*pending
	status  map[string]source.Status
}

// pending are the changes of one source.
type pending struct {
	// replace is set when services holds everything that the source knows.
	replace bool
	// services by name; nil for one that is removed.
	services map[string]*source.Service
}

func newPending(changes source.Changes) *pending {
	p := &pending{}
	p.add(changes)
	return p
}

func (p *pending) add(changes source.Changes) {
	if changes.Replace || p.services == nil {
		p.replace = p.replace || changes.Replace
		p.services = make(map[string]*source.Service, len(changes.Upserts)+len(changes.Removed))
	}
	for _, s := range changes.Upserts {
		p.services[s.Name] = s
	}
	for _, name := range changes.Removed {
		p.services[name] = nil
	}
}

func (i *inbox) change(name string, changes source.Changes) {
	i.mu.Lock()
	if i.pending == nil {
		i.pending = map[string]*pending{}
	}
	if p := i.pending[name]; p != nil {
		p.add(changes)
	} else {
		i.pending[name] = newPending(changes)
	}
	i.mu.Unlock()
	i.signal()
}

func (i *inbox) setStatus(name string, status source.Status) {
	i.mu.Lock()
	if i.status == nil {
		i.status = map[string]source.Status{}
	}
	i.status[name] = status
	i.mu.Unlock()
	i.signal()
}

func (i *inbox) signal() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *inbox) take() (map[string]*pending, map[string]source.Status) {
	i.mu.Lock()
	defer i.mu.Unlock()
	p, s := i.pending, i.status
	i.pending, i.status = nil, nil
	return p, s
}

// SourceStatus is what is known of one source.
type SourceStatus struct {
	Name string
	source.Status
	// Services that it knows.
	Services int
}

type sourceState struct {
	status source.Status
	// known are the names of its services.
	known map[string]struct{}
	// order of precedence; the lowest wins.
	order int
}

// Sources gives the status of every source that is declared, in the order of
// their precedence. It never waits, not even for a disk that hangs.
func (c *Catalog) Sources() []SourceStatus { return slices.Clone(*c.statuses.Load()) }

// noteSources makes the status of the sources known to those who ask.
func (c *Catalog) noteSources() {
	out := make([]SourceStatus, 0, len(c.sources))
	for _, name := range c.sourceOrder() {
		s := c.sources[name]
		out = append(out, SourceStatus{Name: name, Status: s.status, Services: len(s.known)})
	}
	c.statuses.Store(&out)
}

func (c *Catalog) sourceOrder() []string {
	return slices.SortedFunc(maps.Keys(c.sources), func(a, b string) int { return c.sources[a].order - c.sources[b].order })
}

// declare brings the sources to those of the policy: one that is no longer
// declared is forgotten with all it said.
func (c *Catalog) declare() {
	for _, s := range c.sources {
		s.order = -1
	}
	for i, name := range c.policy.sources {
		if c.sources[name] == nil {
			c.sources[name] = &sourceState{known: map[string]struct{}{}}
		}
		c.sources[name].order = i
	}
	for name, s := range c.sources {
		if s.order < 0 {
			c.takeChanges(name, newPending(source.Changes{Replace: true}))
			delete(c.sources, name)
		}
	}
	for _, e := range c.entries {
		slices.SortFunc(e.offers, func(a, b offer) int { return c.sources[a.source].order - c.sources[b.source].order })
	}
}

// takeInbox works in what the sources have said, without settling it.
func (c *Catalog) takeInbox() {
	changes, status := c.inbox.take()
	for name, p := range changes {
		c.takeChanges(name, p)
	}
	before := c.unread()
	for name, s := range status {
		if c.sources[name] == nil {
			continue
		}
		// What has been read once stays read: its last state is kept.
		s.Read = s.Read || c.sources[name].status.Read
		c.sources[name].status = s
	}
	if slices.Equal(before, c.unread()) {
		return
	}
	for _, e := range c.entries {
		if e.judged.service == nil {
			c.touch(e)
		}
	}
}

// unread names the sources that have not been read yet.
func (c *Catalog) unread() []string {
	var out []string
	for _, name := range c.sourceOrder() {
		if !c.sources[name].status.Read {
			out = append(out, name)
		}
	}
	return out
}

func (c *Catalog) takeChanges(name string, p *pending) {
	state := c.sources[name]
	if state == nil {
		c.log.Warn("a source that is not declared has spoken; it is not listened to", "source", name)
		return
	}
	if p.replace {
		for known := range state.known {
			if p.services[known] == nil {
				c.offer(known, name, nil)
			}
		}
	}
	for service, s := range p.services {
		if s != nil {
			state.known[service] = struct{}{}
			c.offer(service, name, s)
		} else if _, known := state.known[service]; known {
			c.offer(service, name, nil)
		}
	}
}

// offer notes what a source says of one service, nil for nothing any more.
func (c *Catalog) offer(service, name string, s *source.Service) {
	e := c.entry(service)
	at := slices.IndexFunc(e.offers, func(o offer) bool { return o.source == name })
	switch {
	case s == nil && at >= 0:
		e.offers = slices.Delete(slices.Clone(e.offers), at, at+1)
	case s != nil && at >= 0:
		e.offers = slices.Clone(e.offers)
		e.offers[at].service = s
	case s != nil:
		e.offers = append(slices.Clone(e.offers), offer{name, s})
		slices.SortFunc(e.offers, func(a, b offer) int { return c.sources[a.source].order - c.sources[b.source].order })
	}
	if s == nil {
		delete(c.sources[name].known, service)
	}
	c.touch(e)
}
