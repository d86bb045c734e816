package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/core/vip"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// judgement is what a service comes to before rivals and instances are looked
// at.
type judgement struct {
	// source and service that count; nil for a block that no source knows.
	source  string
	service *source.Service
	policy  config.Service
	// dataplane that is to carry it, if it is known.
	dataplane string
	// vips of the service, which those that share them want to know.
	vips      []netip.Addr
	frontends []dataplane.Frontend
	rank      rank
	// rejected is why it is not carried, rivals aside.
	rejected string
	// waiting is set where that passes of itself.
	waiting bool
	notes   []string
	// leaving is set for a service that its source knows no longer, while its
	// endpoints drain.
	leaving bool
	// retryAt is when to judge again because a lease is being waited for.
	retryAt time.Time
}

var validName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,253}$`)

// judge is the first step. It takes or gives back a lease, and changes nothing
// else.
func (c *Catalog) judge(e *entry, now time.Time) judgement {
	j := judgement{}
	c.chooseOffer(e, &j, now)
	var explicit bool
	var refused string
	j.policy, explicit, j.notes, refused = c.policy.effective(e.block, j.service)
	if j.service != nil {
		j.notes = append(j.notes, j.service.Notes...)
	}
	if len(e.offers) > 1 && j.service != nil {
		for _, o := range e.offers {
			if o.source != j.source {
				j.notes = append(j.notes, fmt.Sprintf("source %q knows a service of this name too; that of source %q counts", o.source, j.source))
			}
		}
	}
	if c.policy.dataplanes[j.policy.Dataplane] {
		j.dataplane = j.policy.Dataplane
	}
	j.rejected = c.unknown(e, &j)
	j.waiting = j.rejected != "" && len(c.unread()) > 0
	j.rejected = cmp.Or(j.rejected, refused, c.unfit(e, &j))
	c.findVIPs(e, &j, explicit, now)
	if j.rejected == "" {
		j.rejected = c.findFrontends(&j)
	}
	if j.rejected != "" {
		j.frontends = nil
	}
	j.rank.name = e.name
	return j
}

// chooseOffer finds the source that counts: endpoints in a file, else the
// source declared first.
func (c *Catalog) chooseOffer(e *entry, j *judgement, now time.Time) {
	for _, o := range e.offers {
		// What the static source says of a block that has just gone, or has no
		// endpoints any more, is out of date.
		if o.source == source.Static && (e.block == nil || !e.block.Static()) {
			continue
		}
		j.source, j.service = o.source, o.service
		return
	}
	// A discovered service whose last instance went drains like any endpoint
	// that goes. One deleted from a file is deleted.
	if e.last.service != nil && e.last.source != source.Static && c.sources[e.last.source] != nil && e.drains(now) {
		gone := *e.last.service
		gone.Instances = nil
		j.source, j.service, j.leaving = e.last.source, &gone, true
	}
}

// unknown is why a service that no source knows is rejected.
func (c *Catalog) unknown(e *entry, j *judgement) string {
	switch {
	case j.service != nil:
		return ""
	case len(c.unread()) > 0:
		return fmt.Sprintf("no source knows it yet: waiting for %s", strings.Join(c.unread(), ", "))
	default:
		return "the block has no endpoint, and no source knows a service of this name"
	}
}

// unfit is why a service is rejected whatever its addresses are.
func (c *Catalog) unfit(e *entry, j *judgement) string {
	p := &j.policy
	switch {
	case !validName.MatchString(e.name):
		return "the name is not one: use letters, digits, dot, hyphen and underscore, at most 253"
	case p.Port == 0:
		return "no port: set port in its block"
	case p.Dataplane == "":
		return "no dataplane: mark one as default, or set dataplane in its block"
	case j.dataplane == "":
		return fmt.Sprintf("no dataplane %q: add a dataplane block of that name", p.Dataplane)
	}
	return refusal(c.caps[j.dataplane], j.dataplane, p)
}

// findVIPs finds the virtual addresses, and with them the rank among rivals.
func (c *Catalog) findVIPs(e *entry, j *judgement, explicit bool, now time.Time) {
	p := &j.policy
	e.usesLease = false
	switch {
	case explicit:
		j.vips, j.rank.class = p.VIP, rankFile
	case p.VIPService != "":
		j.rank.class = rankOther
		c.shareVIPs(e, j)
	case len(p.VIP) > 0:
		j.vips, j.rank.class = p.VIP, rankOther
	default:
		c.leaseVIPs(e, j, now)
	}
	j.vips = sortedAddresses(j.vips)
	if j.leaving {
		j.rank = rank{class: rankLeaving}
	}
	if !e.usesLease {
		c.giveBackLease(e)
	}
}

func (c *Catalog) shareVIPs(e *entry, j *judgement) {
	target := c.entry(j.policy.VIPService)
	switch {
	case target.block != nil && target.block.VIPService != "":
		j.reject(fmt.Sprintf("it shares the VIP of %q, which shares that of %q: name the latter", target.name, target.block.VIPService))
	case len(target.judged.vips) == 0 && target.judged.waiting:
		j.await(fmt.Sprintf("it shares the VIP of %q, which waits for it", target.name))
	case len(target.judged.vips) == 0:
		j.reject(fmt.Sprintf("it shares the VIP of %q, which has none", target.name))
	default:
		j.vips = target.judged.vips
	}
}

func (j *judgement) reject(why string) { j.rejected = cmp.Or(j.rejected, why) }

// await is reject for what passes of itself.
func (j *judgement) await(why string) {
	j.waiting = j.waiting || j.rejected == ""
	j.reject(why)
}

// leaseVIPs uses the lease that the service has, or takes one if it or a
// service that shares its VIP has a use for it.
func (c *Catalog) leaseVIPs(e *entry, j *judgement, now time.Time) {
	j.rank.class = rankLease
	otherFrontends := j.policy.NodePort != 0 || len(j.policy.External) > 0
	wanted := j.rejected == "" || c.shared(e)
	switch {
	case wanted && len(c.policy.Config.Pools) == 0 && j.policy.Pool == "":
		j.rank.class = rankFile
		if !otherFrontends {
			j.rank.class = rankOther
			j.reject("no address: set vip or add a vip_pool")
		}
	case wanted:
		lease, err := c.leases.Claim(j.policy.Pool, e.name)
		held := err == nil
		if err != nil {
			// What it has it keeps, whatever became of the pool.
			lease, held = c.leases.Lease(e.name)
			c.refuseLease(j, err, held, now)
		}
		j.vips, j.rank.since, e.usesLease = lease.Addresses, lease.Since, held
	case j.service != nil || len(c.unread()) > 0:
		// Rejected for now: it keeps the address that it has.
		lease, held := c.leases.Lease(e.name)
		j.vips, j.rank.since, e.usesLease = lease.Addresses, lease.Since, held
	}
}

// refuseLease says why there is no new lease. A service that has one all the
// same goes on with it.
func (c *Catalog) refuseLease(j *judgement, err error, held bool, now time.Time) {
	after := c.retry
	if errors.Is(err, vip.ErrExhausted) {
		after = exhaustedRetry
	}
	switch {
	case errors.Is(err, vip.ErrNoPool):
		j.reject(fmt.Sprintf("no vip_pool %q", j.policy.Pool))
		return
	case held:
		j.notes = append(j.notes, "it keeps the address that it has: "+err.Error())
	case errors.Is(err, vip.ErrExhausted):
		j.reject("no address: " + err.Error())
	default:
		j.await("no address yet: " + err.Error())
	}
	j.retryAt = now.Add(after)
}

// exhaustedRetry is how often a service asks an exhausted pool again.
const exhaustedRetry = time.Minute

// shared tells whether a service that some source knows shares the VIP of e.
func (c *Catalog) shared(e *entry) bool {
	return slices.ContainsFunc(c.policy.sharers[e.name], func(name string) bool {
		sharer := c.entries[name]
		return sharer != nil && len(sharer.offers) > 0
	})
}

func (c *Catalog) giveBackLease(e *entry) {
	if _, held := c.leases.Lease(e.name); !held {
		return
	}
	if err := c.leases.Release(e.name); err != nil {
		c.log.Warn("a lease that is not used any more could not be given back", "service", e.name, "error", err)
		return
	}
	c.log.Info("gave back the lease of a VIP; its address rests", "service", e.name)
}

// findFrontends gives the reason if there are none, or one that can't be.
func (c *Catalog) findFrontends(j *judgement) string {
	p, caps := &j.policy, c.caps[j.dataplane]
	var out []dataplane.Frontend
	add := func(kind dataplane.FrontendKind, address netip.Addr, port uint16, explicit bool) string {
		address = address.Unmap()
		if why := cantCarry(caps, j.dataplane, kind, dataplane.FamilyOf(address)); why != "" {
			if explicit {
				return why
			}
			// Nobody chose this address for the service: it does without.
			j.notes = append(j.notes, fmt.Sprintf("not reached at %s: %s", address, why))
			return ""
		}
		for _, protocol := range p.Protocols {
			out = append(out, dataplane.Frontend{Kind: kind, Address: address, Port: port, Protocol: protocol})
		}
		return ""
	}
	explicit := len(p.VIP) > 0
	var refused string
	for _, a := range j.vips {
		refused = cmp.Or(refused, add(dataplane.Virtual, a, p.Port, explicit))
	}
	if p.NodePort != 0 {
		for _, a := range c.policy.Node.Addresses {
			refused = cmp.Or(refused, add(dataplane.Node, a, p.NodePort, false))
		}
		if len(c.policy.Node.Addresses) == 0 {
			j.notes = append(j.notes, "node_port has no effect: this node has no address")
		}
	}
	for _, a := range p.External {
		refused = cmp.Or(refused, add(dataplane.External, a, p.Port, true))
	}
	slices.SortFunc(out, compareFrontends)
	j.frontends = slices.CompactFunc(out, sameFrontend)
	if refused == "" && len(out) == 0 {
		return fmt.Sprintf("dataplane %q can carry none of its addresses", j.dataplane)
	}
	return refused
}

func cantCarry(caps *dataplane.Capabilities, name string, kind dataplane.FrontendKind, family dataplane.Family) string {
	switch {
	case caps == nil:
		return ""
	case !slices.Contains(caps.Families, family):
		return fmt.Sprintf("dataplane %q doesn't carry %s", name, family)
	case !slices.Contains(caps.FrontendKinds, kind):
		return fmt.Sprintf("dataplane %q has no %s frontends", name, kind)
	}
	return ""
}

func compareFrontends(a, b dataplane.Frontend) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Kind, b.Kind))
}

func sameFrontend(a, b dataplane.Frontend) bool { return keyOf(a) == keyOf(b) }

func sortedAddresses(in []netip.Addr) []netip.Addr {
	out := slices.Clone(in)
	for i, a := range out {
		out[i] = a.Unmap()
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// refusal is why a dataplane can't carry a service, by what it said of itself;
// empty when it can, or when it hasn't said.
func refusal(caps *dataplane.Capabilities, name string, p *config.Service) string {
	if caps == nil {
		return ""
	}
	for _, protocol := range p.Protocols {
		if !slices.Contains(caps.Protocols, protocol) {
			return fmt.Sprintf("dataplane %q doesn't carry %s", name, protocol)
		}
	}
	kinds := []struct {
		kind   dataplane.FrontendKind
		wanted bool
		what   string
	}{
		{dataplane.Node, p.NodePort != 0, "node_port"},
		{dataplane.External, len(p.External) > 0, "external addresses"},
		{dataplane.Virtual, len(p.VIP) > 0 || p.VIPService != "" || p.NodePort == 0 && len(p.External) == 0, "VIPs"},
	}
	for _, k := range kinds {
		if k.wanted && !slices.Contains(caps.FrontendKinds, k.kind) {
			return fmt.Sprintf("dataplane %q has no %s", name, k.what)
		}
	}
	switch {
	case p.Balance != "" && !slices.Contains(caps.Balance, p.Balance):
		return fmt.Sprintf("dataplane %q has no balance %q: it has %s", name, p.Balance, strings.Join(caps.Balance, ", "))
	case p.Affinity > 0 && !caps.Affinity:
		return fmt.Sprintf("dataplane %q has no affinity", name)
	case len(p.Allow) > 0 && !caps.SourceFilter:
		return fmt.Sprintf("dataplane %q can't filter sources, so allow would have no effect", name)
	case p.Masquerade == dataplane.MasqueradeNever && !caps.KeepsClientAddress:
		return fmt.Sprintf("dataplane %q can't keep the client's address, so masquerade = \"never\" would have no effect", name)
	}
	return ""
}
