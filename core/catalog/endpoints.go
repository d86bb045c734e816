package catalog

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// What a policy says of instances in warning, and of instances elsewhere.
const (
	warningUse   = "use"
	warningWeigh = "weigh"
	warningDrop  = "drop"

	preferNode = "node"
	preferZone = "zone"
	preferNone = "none"
)

// endpointInput is all that the endpoints of a service depend on.
type endpointInput struct {
	instances       []source.Instance
	frontends       []dataplane.Frontend
	warning, prefer string
	// zone and local addresses of this node.
	zone  string
	local map[netip.Addr]bool
	// before are the endpoints that the dataplane has been told, in order.
	before []dataplane.Endpoint
	now    time.Time
	// drain is how long an endpoint that takes no new connections stays; 0
	// takes it away at once.
	drain time.Duration
	// weightless is set where the dataplane knows no weights.
	weightless bool
}

// endpointOutput is what they come to.
type endpointOutput struct {
	// endpoints in the order of addresses, which are unique.
	endpoints []dataplane.Endpoint
	notes     []string
	// next is when the first drain time ends; zero for none.
	next time.Time
}

// candidate is an instance that can be an endpoint.
type candidate struct {
	endpoint dataplane.Endpoint
	id, host string
	// active is set while it takes new connections; else it is to drain if it
	// has any.
	active bool
}

func (in *endpointInput) build() endpointOutput {
	var notes noteList
	candidates := in.candidates(&notes)
	in.preferNear(candidates)
	in.noteActive(candidates, &notes)
	out := endpointOutput{notes: notes.lines()}
	in.merge(candidates, &out)
	return out
}

// candidates are the instances with an address that can be used, in the order
// of addresses.
func (in *endpointInput) candidates(notes *noteList) []candidate {
	v4, v6 := in.families()
	out := make([]candidate, 0, len(in.instances))
	var unreached []candidate
	for i := range in.instances {
		c, why := in.candidate(&in.instances[i])
		if why != "" {
			notes.add(why, c.id)
			continue
		}
		if is4 := c.endpoint.Address.Addr().Is4(); is4 && !v4 || !is4 && !v6 {
			unreached = append(unreached, c)
			continue
		}
		out = append(out, c)
	}
	noteUnreached(unreached, out, notes)
	slices.SortFunc(out, func(a, b candidate) int {
		// Of two instances at one address, the one that is in use counts.
		return cmp.Or(a.endpoint.Address.Compare(b.endpoint.Address), -compareBool(a.active, b.active), cmp.Compare(a.id, b.id))
	})
	unique := out[:0]
	for _, c := range out {
		if n := len(unique); n > 0 && unique[n-1].endpoint.Address == c.endpoint.Address {
			notes.add("instances with the address of another one are left out", c.id)
			continue
		}
		unique = append(unique, c)
	}
	return unique
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// noteUnreached reports instances of a family without frontend; of a host name
// with addresses of both, one is enough.
func noteUnreached(unreached, reached []candidate, notes *noteList) {
	for _, u := range unreached {
		same := func(c candidate) bool { return c.host == u.host }
		if u.host == "" || !slices.ContainsFunc(reached, same) {
			family := dataplane.FamilyOf(u.endpoint.Address.Addr())
			notes.add(fmt.Sprintf("the service has no %s frontend for endpoints of that family", family), u.endpoint.Address.String())
		}
	}
}

func (in *endpointInput) families() (v4, v6 bool) {
	for _, f := range in.frontends {
		if f.Address.Is4() {
			v4 = true
		} else {
			v6 = true
		}
	}
	return v4, v6
}

// candidate turns an instance into an endpoint, or says why it can't be.
func (in *endpointInput) candidate(i *source.Instance) (candidate, string) {
	c := candidate{id: i.ID, host: i.Host}
	address, err := netip.ParseAddr(i.Address)
	if err != nil {
		c.id = i.Address
		if i.Reason != "" {
			return c, "host names without an address (" + i.Reason + ")"
		}
		return c, "host names without an address"
	}
	address = address.Unmap()
	at := netip.AddrPortFrom(address, i.Port)
	c.endpoint = dataplane.Endpoint{
		Address: at, Weight: i.Weight, State: dataplane.StateActive,
		Zone: i.Zone, Node: i.Node,
		Local: i.Local || in.local[address] || address.IsLoopback(),
	}
	switch {
	case i.Port == 0 || address.Zone() != "" || address.IsUnspecified() || address.IsMulticast():
		c.id = cmp.Or(i.ID, at.String())
		return c, "instances whose address can't be an endpoint are left out"
	case slices.ContainsFunc(in.frontends, func(f dataplane.Frontend) bool { return f.Address == address && f.Port == i.Port }):
		c.id = at.String()
		return c, "instances that are the service's own frontend are left out"
	}
	switch i.Health {
	case source.Critical, source.Maintenance:
	case source.Warning:
		if in.warning == warningWeigh {
			c.endpoint.Weight = i.WarningWeight
		}
		c.active = in.warning != warningDrop
	default:
		c.active = true
	}
	if in.weightless && c.endpoint.Weight == 0 {
		c.active = false
	}
	return c, ""
}

// preferNear leaves those of the best locality active: for each family the
// nearest level that has a usable endpoint.
func (in *endpointInput) preferNear(candidates []candidate) {
	if in.prefer != preferNode && in.prefer != preferZone {
		return
	}
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		nearest := 3
		for _, c := range candidates {
			if c.active && c.endpoint.Usable() && dataplane.FamilyOf(c.endpoint.Address.Addr()) == family {
				nearest = min(nearest, in.distance(c.endpoint))
			}
		}
		for i, c := range candidates {
			if dataplane.FamilyOf(c.endpoint.Address.Addr()) == family && in.distance(c.endpoint) > nearest {
				candidates[i].active = false
			}
		}
	}
}

// distance is 0 for this node, 1 for its zone, 2 for elsewhere, as far as the
// policy cares.
func (in *endpointInput) distance(e dataplane.Endpoint) int {
	switch {
	case in.prefer == preferNode && e.Local:
		return 0
	case in.zone != "" && e.Zone == in.zone, in.prefer == preferZone && e.Local:
		return 1
	default:
		return 2
	}
}

// noteActive reports what is odd about the endpoints in use.
func (in *endpointInput) noteActive(candidates []candidate, notes *noteList) {
	outside := slices.ContainsFunc(in.frontends, func(f dataplane.Frontend) bool { return !f.Address.IsLoopback() })
	var weight uint32
	for _, c := range candidates {
		if !c.active {
			continue
		}
		if outside && c.endpoint.Address.Addr().IsLoopback() {
			notes.add("endpoints on loopback serve clients on this node only", c.endpoint.Address.String())
		}
		if weight == 0 {
			weight = c.endpoint.Weight
		} else if in.weightless && weight != c.endpoint.Weight {
			notes.add("the dataplane knows no weights: its endpoints get equal shares", "")
		}
	}
}

// merge puts together the endpoints in use and those that drain. An endpoint
// drains only if it has been in use: one that comes up failing has no
// connection to keep.
func (in *endpointInput) merge(candidates []candidate, out *endpointOutput) {
	v4, v6 := in.families()
	out.endpoints = make([]dataplane.Endpoint, 0, len(candidates))
	before := in.before
	leave := func(e dataplane.Endpoint) {
		if is4 := e.Address.Addr().Is4(); is4 && !v4 || !is4 && !v6 {
			return
		}
		if e.State == dataplane.StateActive {
			e.State, e.DrainDeadline = dataplane.StateDraining, in.now.Add(in.drain)
		}
		if !in.now.Before(e.DrainDeadline) {
			return
		}
		out.next = earliest(out.next, e.DrainDeadline)
		out.endpoints = append(out.endpoints, e)
	}
	for _, c := range candidates {
		for len(before) > 0 && before[0].Address.Compare(c.endpoint.Address) < 0 {
			leave(before[0])
			before = before[1:]
		}
		known := len(before) > 0 && before[0].Address == c.endpoint.Address
		switch {
		case c.active:
			out.endpoints = append(out.endpoints, c.endpoint)
		case known:
			leave(before[0])
		}
		if known {
			before = before[1:]
		}
	}
	for _, e := range before {
		leave(e)
	}
}

// noteList gathers notes: one for each kind, with the first few it is about.
type noteList struct {
	kinds []string
	about map[string][]string
}

// notesNamed is how many a note names before it counts the rest.
const notesNamed = 3

func (n *noteList) add(kind, about string) {
	if n.about == nil {
		n.about = map[string][]string{}
	}
	if _, known := n.about[kind]; !known {
		n.kinds = append(n.kinds, kind)
	}
	n.about[kind] = append(n.about[kind], about)
}

func (n *noteList) lines() []string {
	var out []string
	for _, kind := range n.kinds {
		about := n.about[kind]
		slices.Sort(about)
		about = slices.Compact(about)
		if about[0] == "" {
			out = append(out, kind)
			continue
		}
		line := kind + ": " + strings.Join(about[:min(len(about), notesNamed)], ", ")
		if more := len(about) - notesNamed; more > 0 {
			line += fmt.Sprintf(" and %d more", more)
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}
