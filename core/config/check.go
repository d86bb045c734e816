package config

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// check compares the blocks with each other, once all have been read.
func (l *loader) check() {
	l.checkDataplanes()
	l.checkPools()
	byName := make(map[string]*serviceBlock, len(l.services))
	for _, s := range l.services {
		byName[s.Name] = s
	}
	c := &crossCheck{
		loader:    l,
		byName:    byName,
		frontends: make(map[frontend]*serviceBlock, len(l.services)),
		owners:    map[string]*serviceBlock{},
		roots:     map[*serviceBlock]*serviceBlock{},
		hasPool:   map[string]bool{},
	}
	for _, p := range l.cfg.Pools {
		c.hasPool[p.Name] = true
		c.poolNames = append(c.poolNames, p.Name)
	}
	for _, d := range l.cfg.Dataplanes {
		c.dataplaneNames = append(c.dataplaneNames, d.Name)
	}
	for _, s := range l.services {
		l.report.within = fmt.Sprintf("service %q", s.Name)
		c.references(s)
		c.static(s)
		c.families(s)
		c.vips(s)
		c.conflicts(s)
	}
	// Of a block whose name is another's only what stands by itself is said:
	// that both want one address follows from the name.
	for _, s := range l.spare {
		l.report.within = fmt.Sprintf("service %q", clip(s.Name, 80))
		c.references(s)
		c.static(s)
		c.families(s)
	}
	l.report.within = ""
}

// maxDataplanes of a node. They are looked up one by one.
const maxDataplanes = 64

func (l *loader) checkDataplanes() {
	dps := l.cfg.Dataplanes
	if len(dps) == 0 {
		if l.incomplete || l.declared["dataplane"] > 0 {
			return
		}
		l.report.errorf(nil, "No dataplane", "Nothing would carry the traffic: add a dataplane block, such as dataplane \"userspace\" {}.")
		return
	}
	if len(dps) > maxDataplanes {
		at := dps[maxDataplanes].Range
		l.report.errorf(&at, "Too many dataplanes", "A node has at most %d dataplanes, each a process of its own; here are %d.", maxDataplanes, len(dps))
		l.cfg.Dataplanes, l.incomplete = dps[:maxDataplanes], true
		dps = l.cfg.Dataplanes
	}
	var first *Dataplane
	for i := range dps {
		switch {
		case !dps[i].Default:
		case first == nil:
			first = &dps[i]
		default:
			l.report.within = fmt.Sprintf("dataplane %q", dps[i].Name)
			l.report.errorf(&dps[i].Range, "Several defaults", "dataplane %q at %s is the default already.", first.Name, place(first.Range))
			l.report.within = ""
		}
	}
	if len(dps) == 1 {
		dps[0].Default = true
	}
}

// frontend is what no two services may share. A VIP that comes from a pool is
// known by the service that leases it.
type frontend struct {
	kind     dataplane.FrontendKind
	address  netip.Addr
	lease    string
	port     uint16
	protocol dataplane.Protocol
}

type crossCheck struct {
	*loader
	byName    map[string]*serviceBlock
	frontends map[frontend]*serviceBlock
	// owners tells by VIP, or by the service that leases it, the first service
	// there: its dataplane is that of all others.
	owners map[string]*serviceBlock
	roots  map[*serviceBlock]*serviceBlock

	hasPool                   map[string]bool
	poolNames, dataplaneNames []string
	names                     []string // of the services, sorted, once asked for
}

// references checks the names of other blocks.
func (c *crossCheck) references(s *serviceBlock) {
	if c.incomplete {
		return
	}
	if s.Pool != "" && !c.hasPool[s.Pool] {
		c.report.unknown(s.poolAt, "vip_pool", s.Pool, c.poolNames)
	}
	switch {
	case len(c.cfg.Dataplanes) == 0:
	case s.Dataplane != "" && c.cfg.Dataplane(s.Dataplane) == nil:
		c.report.unknown(s.dataplaneAt, "dataplane", s.Dataplane, c.dataplaneNames)
	case s.Dataplane == "" && c.cfg.Dataplane("") == nil:
		c.report.errorf(&s.Range, "No default dataplane",
			"The service names no dataplane, and none is the default: write dataplane = ... here or in the defaults block, or default = true in a dataplane block.")
	}
	if s.VIPService != "" {
		c.sharedVIP(s)
	}
}

// unknown reports a name that no block of that type has.
func (r *report) unknown(at *hcl.Range, block, given string, names []string) {
	what := strings.TrimPrefix(block, "vip_")
	r.errorf(at, "Unknown "+what, "There is no %s%s.%s", block, r.named(given, at), r.hint(given, at, names))
}

// hint suggests a name that was written out, or lists what there is.
func (r *report) hint(given string, at *hcl.Range, names []string) string {
	if r.full() || r.src.computed(at) {
		return ""
	}
	if s := didYouMean(given, names); s != "" {
		return s
	}
	if len(names) == 0 {
		return ""
	}
	return " There is " + oneOf(names) + "."
}

// sharedVIP follows vip = service(...) to its end.
func (c *crossCheck) sharedVIP(s *serviceBlock) {
	if _, ok := c.byName[s.VIPService]; !ok {
		if c.declared["source"] > 0 {
			return // it may be discovered
		}
		c.report.errorf(s.vipAt, "Unknown service", "There is no service%s to share a VIP with.%s",
			c.report.named(s.VIPService, s.vipAt), c.similarService(s))
		return
	}
	if root := c.root(s); root == nil {
		c.report.errorf(s.vipAt, "Circle of services", "The VIPs are shared in a circle: %s. One of them must have a VIP of its own.", c.circle(s))
	}
}

// similarService suggests one of the services; not without end, for comparing
// with 20,000 names takes a while.
func (c *crossCheck) similarService(s *serviceBlock) string {
	if len(c.report.found) > maxDiagnostics || len(c.byName) > 20_000 {
		return ""
	}
	if c.names == nil {
		c.names = sortedKeys(c.byName)
	}
	return c.report.meant(s.VIPService, s.vipAt, c.names)
}

// root is the service whose VIPs s has; s itself where it shares with none,
// nil where there is no end. Every service of the way is remembered, for a long
// chain would otherwise be walked from each of its links.
func (c *crossCheck) root(s *serviceBlock) *serviceBlock {
	var way []*serviceBlock
	root, known := c.roots[s]
	for at := s; !known; {
		if at.VIPService == "" {
			root = at
			break
		}
		c.roots[at] = nil // until the end is found: who comes back here is in a circle
		way = append(way, at)
		if at = c.byName[at.VIPService]; at == nil {
			break
		}
		root, known = c.roots[at]
	}
	for _, w := range way {
		c.roots[w] = root
	}
	return root
}

// circle names the way that sharing takes, until it comes back.
func (c *crossCheck) circle(s *serviceBlock) string {
	const most = 8
	way, seen := s.Name, map[*serviceBlock]bool{s: true}
	for at := c.byName[s.VIPService]; at != nil; at = c.byName[at.VIPService] {
		way += " -> " + at.Name
		if seen[at] {
			break
		}
		if seen[at] = true; len(seen) > most {
			return way + " -> ..."
		}
	}
	return way
}

// static checks what a service with endpoints needs.
func (c *crossCheck) static(s *serviceBlock) {
	if !s.Static() {
		if s.check != nil {
			c.report.warnf(s.checkAt, "Nothing to check", "The check has no effect: the service has no endpoint blocks.")
		}
		return
	}
	if s.Port == 0 && s.portAt == nil && !c.incomplete {
		c.report.errorf(&s.Range, "Missing argument", "A service with endpoints needs port, at which clients reach it.")
	}
	if len(s.VIP) == 0 && s.vipAt == nil && s.NodePort == 0 && len(s.External) == 0 && !c.incomplete && c.declared["vip_pool"] == 0 {
		c.report.warnf(&s.Range, "No address", "The service will be rejected, because it has no address: set vip or add a vip_pool.")
	}
	if len(s.Endpoints) < 2 {
		return
	}
	type address struct {
		host string
		port uint16
	}
	seen := make(map[address]hcl.Range, len(s.Endpoints))
	for _, e := range s.Endpoints {
		if e.Host == "" {
			continue
		}
		a := address{e.Host, e.Port}
		if first, twice := seen[a]; twice {
			at := e.Range
			c.report.errorf(&at, "Duplicate endpoint", "This address is that of the service's endpoint at %s already.", place(first))
			continue
		}
		seen[a] = e.Range
	}
}

// families warns of endpoints that no frontend's family fits.
func (c *crossCheck) families(s *serviceBlock) {
	root := c.root(s)
	if !s.Static() || root == nil || s.NodePort != 0 || c.incomplete {
		return // a node's addresses are known when it runs
	}
	var has [3]bool
	for _, a := range append(root.VIP[:len(root.VIP):len(root.VIP)], s.External...) {
		has[dataplane.FamilyOf(a)] = true
	}
	if len(root.VIP) == 0 && root.vipAt == nil {
		for _, p := range c.cfg.Pools {
			if root.Pool == p.Name || root.Pool == "" {
				for _, r := range p.CIDR {
					has[dataplane.FamilyOf(r.Addr())] = true
				}
				break
			}
		}
	}
	v4, v6 := has[dataplane.IPv4], has[dataplane.IPv6]
	if v4 == v6 {
		return
	}
	for _, e := range s.Endpoints {
		a, err := netip.ParseAddr(e.Host)
		if err != nil || has[dataplane.FamilyOf(a)] {
			continue
		}
		mine, theirs := "IPv4", "IPv6"
		if v4 {
			mine, theirs = theirs, mine
		}
		c.report.warnf(&e.Range, "Endpoint without a frontend",
			"No client ever gets to this endpoint: it has an %s address, and the service's own are of %s alone. A frontend and its endpoints are of one family.", mine, theirs)
	}
}

// vips checks explicit VIPs against the pools.
func (c *crossCheck) vips(s *serviceBlock) {
	for _, vip := range s.VIP {
		holding := c.pools.around(vip, vip.BitLen())
		for _, i := range holding {
			pool := c.pools.ranges[i]
			if what := edge(pool.prefix, vip); what != "" {
				c.report.errorf(s.vipAt, "Unusable VIP", "%s is the %s address of %s, the range of vip_pool %q.",
					c.report.bare(vip, "vip", s.vipAt), what, c.report.bare(pool.prefix, "cidr", &pool.at), pool.pool)
			}
		}
		if len(holding) == 0 && len(c.pools.bits[dataplane.FamilyOf(vip)]) > 0 && !vip.IsLoopback() {
			c.report.warnf(s.vipAt, "VIP outside the pools",
				"%s lies in no vip_pool: a dataplane that routes whole pools to itself doesn't see its traffic unless something else routes it to this node.", c.report.bare(vip, "vip", s.vipAt))
		}
	}
}

// edge tells whether an address is the first or last of a range, which no host
// can have where the range is a network of more than two.
func edge(cidr netip.Prefix, a netip.Addr) string {
	if cidr.Bits() >= a.BitLen()-1 {
		return ""
	}
	if a == cidr.Addr() {
		return "network"
	}
	if a.Is4() {
		b, n := a.As4(), cidr.Addr().As4()
		hosts := uint32(1)<<(32-cidr.Bits()) - 1
		if binary.BigEndian.Uint32(b[:])-binary.BigEndian.Uint32(n[:]) == hosts {
			return "broadcast"
		}
	}
	return ""
}

// conflicts checks that the service has its frontends for itself, and one VIP
// one dataplane.
func (c *crossCheck) conflicts(s *serviceBlock) {
	root := c.root(s)
	if root == nil {
		return
	}
	claim := func(f frontend, at *hcl.Range, what func() string) {
		for _, f.protocol = range s.Protocols {
			other, taken := c.frontends[f]
			if !taken {
				c.frontends[f] = s
				continue
			}
			c.report.errorf(cmp.Or(at, &s.Range), "Frontend taken", "%s, %s, belongs to service %q at %s already.",
				what(), f.protocol, other.Name, place(other.Range))
			return
		}
	}
	port := func() string { return c.report.bare(s.Port, "port", s.portAt) }
	at := func(a netip.Addr, argument string, where *hcl.Range) func() string {
		return func() string {
			if c.report.src.computed(where) || c.report.src.computed(s.portAt) {
				return "The frontend of " + argument + " and port"
			}
			return netip.AddrPortFrom(a, s.Port).String()
		}
	}
	for _, vip := range root.VIP {
		c.oneDataplane(s, vip.String(), func() string { return c.report.bare(vip, "vip", root.vipAt) })
		if s.Port != 0 {
			claim(frontend{address: vip, port: s.Port}, s.portAt, at(vip, "vip", root.vipAt))
		}
	}
	if len(root.VIP) == 0 && root.vipAt == nil {
		c.oneDataplane(s, "lease of "+root.Name, func() string { return fmt.Sprintf("the VIP of service %q", root.Name) })
		if s.Port != 0 {
			claim(frontend{lease: root.Name, port: s.Port}, s.portAt, func() string {
				return fmt.Sprintf("port %s of the VIP of service %q", port(), root.Name)
			})
		}
	}
	for _, a := range s.External {
		if s.Port != 0 {
			claim(frontend{address: a, port: s.Port}, s.externalAt, at(a, "external", s.externalAt))
		}
	}
	if s.NodePort != 0 {
		claim(frontend{kind: dataplane.Node, port: s.NodePort}, s.nodePortAt, func() string {
			return "node_port " + c.report.bare(s.NodePort, "node_port", s.nodePortAt)
		})
	}
}

func (c *crossCheck) oneDataplane(s *serviceBlock, key string, what func() string) {
	owner, ok := c.owners[key]
	if !ok {
		c.owners[key] = s
		return
	}
	mine, theirs := c.carrier(s), c.carrier(owner)
	if mine != "" && theirs != "" && mine != theirs {
		c.report.errorf(cmp.Or(s.dataplaneAt, &s.Range), "One VIP, two dataplanes",
			"All services on %s belong to one dataplane; service %q at %s is on %q, this one on %q.", what(), owner.Name, place(owner.Range), theirs, mine)
	}
}

// carrier is the name of the dataplane that carries a service, or "".
func (c *crossCheck) carrier(s *serviceBlock) string {
	if d := c.cfg.Dataplane(s.Dataplane); d != nil {
		return d.Name
	}
	return ""
}
