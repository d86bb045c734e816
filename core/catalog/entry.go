package catalog

import (
	"cmp"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// entry is what the catalog keeps of one name: a service, a block that no
// source knows, or a name whose VIP others share.
type entry struct {
	name  string
	block *config.Service
	// offers of the sources that know it, in their precedence.
	offers []offer
	// last offer that counted, for a service that leaves.
	last offer

	judged judgement
	// usesLease is set while the lease of this name is to be kept.
	usesLease bool
	// hadOffers is whether some source knew it when it was judged.
	hadOffers bool
	standing  standing

	// published is the service in the snapshot; nil when it isn't there.
	published *Service
	// wakeAt is when to look again; zero for never.
	wakeAt time.Time
}

type offer struct {
	source  string
	service *source.Service
}

// endpoints that its dataplane has been told.
func (e *entry) endpoints() []dataplane.Endpoint {
	if e.published == nil || e.published.Desired == nil {
		return nil
	}
	return e.published.Desired.Endpoints
}

// drains tells whether an endpoint would drain, or still does, if the service
// went.
func (e *entry) drains(now time.Time) bool {
	return slices.ContainsFunc(e.endpoints(), func(p dataplane.Endpoint) bool {
		if p.State == dataplane.StateDraining {
			return now.Before(p.DrainDeadline)
		}
		return e.judged.policy.Drain > 0
	})
}

// entry gives the entry of a name, a new one when there is none.
func (c *Catalog) entry(name string) *entry {
	e := c.entries[name]
	if e == nil {
		e = &entry{name: name, block: c.policy.blocks[name]}
		c.entries[name] = e
		c.touch(e)
	}
	return e
}

// touch marks an entry as one to be worked out anew.
func (c *Catalog) touch(e *entry) { c.dirty[e] = struct{}{} }

func (c *Catalog) touchAll() {
	for _, e := range c.entries {
		e.block = c.policy.blocks[e.name]
		c.touch(e)
	}
}

// settle works out what has been touched, and publishes what has changed.
func (c *Catalog) settle() {
	now := c.now().Round(0)
	c.noteSources()
	if len(c.unread()) == 0 && !c.swept {
		c.sweepLeases()
	}
	before := map[*entry]*Service{}
	for len(c.dirty) > 0 {
		judged := c.judgeTouched(now)
		if err := c.leases.Sync(); err != nil {
			if !c.unsynced {
				c.log.Error("new leases of VIPs may be lost if the machine stops now", "error", err)
			}
			c.unsynced = true
		} else {
			c.unsynced = false
		}
		for _, e := range c.rivals.settle(judged) {
			if _, seen := before[e]; !seen {
				before[e] = e.published
			}
			c.finish(e, now)
		}
	}
	c.publish(before)
}

// judgeTouched takes the first step for all that is touched, in the order of
// names, so that services that come together get the same addresses on every
// node. It gives them, and what was touched on the way.
func (c *Catalog) judgeTouched(now time.Time) []*entry {
	done := map[*entry]struct{}{}
	for len(c.dirty) > 0 {
		batch := make([]*entry, 0, len(c.dirty))
		for e := range c.dirty {
			batch = append(batch, e)
		}
		clear(c.dirty)
		slices.SortFunc(batch, func(a, b *entry) int { return cmp.Compare(a.name, b.name) })
		for _, e := range batch {
			if c.entries[e.name] == e {
				c.judgeOne(e, now)
				done[e] = struct{}{}
			}
		}
	}
	out := make([]*entry, 0, len(done))
	for e := range done {
		out = append(out, e)
	}
	return out
}

func (c *Catalog) judgeOne(e *entry, now time.Time) {
	vips, waiting := e.judged.vips, e.judged.waiting
	hadOffers := e.hadOffers
	e.judged = c.judge(e, now)
	e.hadOffers = len(e.offers) > 0
	if j := &e.judged; j.service != nil && !j.leaving {
		e.last = offer{j.source, j.service}
	}
	// Whose VIP it shares takes a lease when it begins to be needed.
	if e.block != nil && e.block.VIPService != "" && hadOffers != e.hadOffers {
		c.touch(c.entry(e.block.VIPService))
	}
	if waiting != e.judged.waiting || !slices.Equal(vips, e.judged.vips) {
		for _, name := range c.policy.sharers[e.name] {
			c.touch(c.entry(name))
		}
	}
}

// sweepLeases gives back the leases of services that no source knows, once all
// have been read.
func (c *Catalog) sweepLeases() {
	c.swept = true
	for _, l := range c.leases.List() {
		if l.Held() && c.entries[l.Service] == nil {
			// The entry, judged, gives it back and is forgotten.
			c.entry(l.Service)
		}
	}
}

// finish is the third step: it works out what is published of an entry.
func (c *Catalog) finish(e *entry, now time.Time) {
	j := &e.judged
	if j.leaving && e.standing.lost != "" {
		c.endLeaving(e)
		return
	}
	if j.service == nil && e.block == nil {
		e.published, e.last = nil, offer{}
		// It may still wait for a lease on behalf of those that share its VIP.
		c.timers.set(e, j.retryAt)
		if len(e.offers) == 0 && len(c.policy.sharers[e.name]) == 0 {
			delete(c.entries, e.name)
		}
		return
	}
	s := &Service{ID: e.name, Source: j.source, Dataplane: j.dataplane, Rejected: cmp.Or(j.rejected, e.standing.lost), Waiting: j.waiting, Notes: slices.Clone(j.notes)}
	if j.service != nil {
		s.Instances = j.service.Instances
	}
	wake := j.retryAt
	if s.Rejected == "" {
		wake = earliest(wake, c.fill(s, e, now))
	}
	if j.leaving && (s.Desired == nil || len(s.Desired.Endpoints) == 0) {
		c.endLeaving(e)
		return
	}
	c.timers.set(e, wake)
	if !s.Equal(e.published) {
		e.published = s
	}
}

// endLeaving makes a service that its source knows no longer one that is gone:
// nothing drains any more, or somebody else has its frontend.
func (c *Catalog) endLeaving(e *entry) {
	e.last = offer{}
	c.touch(e)
}

// fill puts together what the dataplane shall carry, and gives when that
// changes of itself.
func (c *Catalog) fill(s *Service, e *entry, now time.Time) time.Time {
	j := &e.judged
	p := &j.policy
	caps := c.caps[j.dataplane]
	in := endpointInput{
		instances: j.service.Instances,
		frontends: j.frontends,
		warning:   p.Warning, prefer: p.Prefer,
		zone: c.policy.Node.Zone, local: c.policy.local,
		before: e.endpoints(), now: now, drain: p.Drain,
	}
	if caps != nil && !caps.Draining {
		in.drain, in.before = 0, nil
	}
	if caps != nil {
		in.weightless = !caps.Weights
	}
	out := in.build()
	s.Notes = append(s.Notes, out.notes...)
	if j.leaving {
		s.Notes = append(s.Notes, "its source knows it no longer; it is kept while its endpoints drain")
	}
	s.Drain = in.drain
	s.Desired = &dataplane.Service{
		ID:          e.name,
		Frontends:   j.frontends,
		Endpoints:   out.endpoints,
		Balance:     p.Balance,
		Affinity:    p.Affinity,
		OnEmpty:     p.OnEmpty,
		OnDrainEnd:  p.OnDrainEnd,
		Masquerade:  p.Masquerade,
		Allow:       p.Allow,
		OptionsJSON: p.OptionsJSON,
	}
	return out.next
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// publish makes the snapshot that follows, if anything is other than before.
func (c *Catalog) publish(before map[*entry]*Service) {
	var upserts []*Service
	var removed, ids []string
	var logged changeLog
	for e, old := range before {
		switch {
		case e.published == old:
			continue
		case e.published == nil:
			removed = append(removed, e.name)
		default:
			upserts = append(upserts, e.published)
			c.logChange(old, e.published, &logged)
		}
		ids = append(ids, e.name)
	}
	logged.summarise(c.log)
	last, unread := c.Snapshot(), c.unread()
	if len(ids) == 0 && slices.Equal(last.Unread, unread) {
		return
	}
	revision := last.Revision
	if len(ids) > 0 {
		revision = c.revision.next()
	}
	slices.Sort(ids)
	next := last.Next(revision, c.now(), upserts, removed)
	next.Unread = unread
	c.current.Store(next)
	for _, s := range c.subscribers {
		s.f(Change{Snapshot: next, IDs: ids})
	}
}

// loggedServices is how many services of one change are named in the log in
// each way; the rest are counted. A full disk concerns every service alike.
const loggedServices = 10

// changeLog counts what one change has logged.
type changeLog struct{ carried, refused int }

// logChange says in the log when a service is rejected, or no longer so.
func (c *Catalog) logChange(old, s *Service, logged *changeLog) {
	was := ""
	if old != nil {
		was = old.Rejected
	}
	switch {
	case s.Source == "" && len(c.unread()) > 0:
		c.log.Debug("service is waited for", "service", s.ID, "reason", s.Rejected)
	case s.Rejected != "" && s.Rejected != was:
		if logged.refused++; logged.refused <= loggedServices {
			c.log.Warn("service is not carried", "service", s.ID, "reason", s.Rejected)
		}
	case s.Rejected == "" && was != "":
		if logged.carried++; logged.carried <= loggedServices {
			c.log.Info("service is carried", "service", s.ID, "dataplane", s.Dataplane)
		}
	}
}

func (l *changeLog) summarise(log hclog.Logger) {
	if l.refused > loggedServices {
		log.Warn("more services are not carried: `patchbay services` has the reason of each", "services", l.refused-loggedServices)
	}
	if l.carried > loggedServices {
		log.Info("more services are carried", "services", l.carried-loggedServices)
	}
}
