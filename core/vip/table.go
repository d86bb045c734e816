package vip

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// claim is one leased address. A service holds one per family, and may have
// others that rest.
type claim struct {
	Service  string     `json:"service"`
	Pool     string     `json:"pool"`
	Address  netip.Addr `json:"address"`
	Since    time.Time  `json:"since"`
	Released time.Time  `json:"released,omitzero"`
	// Forgotten ends the claim in a journal.
	Forgotten bool `json:"forgotten,omitempty"`
}

func (c claim) held() bool { return c.Released.IsZero() }

// table is what is leased to whom; every operation costs the service
// concerned, however many leases there are. It makes up its mind in two steps,
// so that nothing changes where a decision can't be recorded: first the claims
// that would change, then put.
type table struct {
	byAddress map[netip.Addr]claim
	byService map[string][]netip.Addr
	pools     []Pool
	reserved  map[netip.Addr]bool
	// taken counts, for each range, the addresses that can't be leased.
	taken map[netip.Prefix]uint64
	// rests holds released claims in the order of their release.
	rests []claim
}

func newTable() *table {
	return &table{byAddress: map[netip.Addr]claim{}, byService: map[string][]netip.Addr{}, taken: map[netip.Prefix]uint64{}}
}

func (t *table) configure(pools []Pool, reserved []netip.Addr) {
	t.pools = slices.Clone(pools)
	t.reserved = make(map[netip.Addr]bool, len(reserved))
	for _, a := range reserved {
		t.reserved[a.Unmap()] = true
	}
	t.taken = map[netip.Prefix]uint64{}
	for i, p := range t.pools {
		p.CIDR = slices.Clone(p.CIDR)
		slices.SortFunc(p.CIDR, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		t.pools[i] = p
		for _, r := range p.CIDR {
			t.taken[r] = 0
		}
	}
	for a := range t.byAddress {
		t.count(a, 1)
	}
	for a := range t.reserved {
		if _, ok := t.byAddress[a]; !ok {
			t.count(a, 1)
		}
	}
}

// count notes that an address has been taken (1) or given free (-1).
func (t *table) count(a netip.Addr, by int) {
	for r, n := range t.taken {
		if usable(r, a) {
			t.taken[r] = uint64(int64(n) + int64(by))
		}
	}
}

func (t *table) pool(name string) (Pool, error) {
	for _, p := range t.pools {
		if p.Name == name || name == "" {
			return p, nil
		}
	}
	if name == "" {
		return Pool{}, fmt.Errorf("%w: none is configured", ErrNoPool)
	}
	return Pool{}, fmt.Errorf("%w: %q", ErrNoPool, name)
}

// decide gives the claims that change when a service wants addresses of a
// pool: none when it has them.
func (t *table) decide(poolName, service string, now time.Time) ([]claim, error) {
	p, err := t.pool(poolName)
	if err != nil {
		return nil, err
	}
	var changed []claim
	wanted := make(map[netip.Addr]bool, 2)
	since := t.since(service, now)
	for _, r := range p.CIDR {
		c, err := t.choose(p, r, service, now)
		if err != nil {
			return nil, err
		}
		wanted[c.Address] = true
		if old, ok := t.byAddress[c.Address]; ok && old == c {
			continue
		}
		if c.Since.IsZero() {
			c.Since = since
		}
		changed = append(changed, c)
	}
	for _, a := range t.byService[service] {
		if c := t.byAddress[a]; c.held() && !wanted[a] {
			c.Released = now
			changed = append(changed, c)
		}
	}
	return changed, nil
}

// since is the age of a service's lease: that of the first address it holds.
func (t *table) since(service string, now time.Time) time.Time {
	oldest := now
	for _, a := range t.byService[service] {
		if c := t.byAddress[a]; c.held() && c.Since.Before(oldest) {
			oldest = c.Since
		}
	}
	return oldest
}

// choose gives the claim on an address of the range: the one held, else one of
// the service's own that rests, else the first candidate that is free.
func (t *table) choose(p Pool, r netip.Prefix, service string, now time.Time) (claim, error) {
	var resting *claim
	for _, a := range t.byService[service] {
		c := t.byAddress[a]
		if !usable(r, a) {
			continue
		}
		c.Pool = p.Name
		if c.held() {
			return c, nil
		}
		if !t.reserved[a] {
			c.Released = time.Time{}
			resting = &c
		}
	}
	if resting != nil {
		return *resting, nil
	}
	if t.taken[r] < Size(r) {
		for a := range Candidates(r, service) {
			if c, ok := t.byAddress[a]; (!ok || !c.held() && !now.Before(c.Released.Add(Rest))) && !t.reserved[a] {
				return claim{Service: service, Pool: p.Name, Address: a}, nil
			}
		}
	}
	return claim{}, fmt.Errorf("%w: vip_pool %q, %s", ErrExhausted, p.Name, r)
}

// put brings a claim into the table, or takes a forgotten one out.
func (t *table) put(c claim) {
	old, known := t.byAddress[c.Address]
	if known && (c.Forgotten || old.Service != c.Service) {
		t.unlink(old)
	}
	if c.Forgotten {
		if known {
			delete(t.byAddress, c.Address)
			if !t.reserved[c.Address] {
				t.count(c.Address, -1)
			}
		}
		return
	}
	if !known && !t.reserved[c.Address] {
		t.count(c.Address, 1)
	}
	if !known || old.Service != c.Service {
		t.byService[c.Service] = append(t.byService[c.Service], c.Address)
	}
	t.byAddress[c.Address] = c
	if !c.held() {
		t.rests = append(t.rests, c)
	}
}

func (t *table) unlink(c claim) {
	rest := slices.DeleteFunc(slices.Clone(t.byService[c.Service]), func(a netip.Addr) bool { return a == c.Address })
	if len(rest) == 0 {
		delete(t.byService, c.Service)
		return
	}
	t.byService[c.Service] = rest
}

// rested takes out the claims that have rested long enough, and gives them.
func (t *table) rested(now time.Time) []claim {
	var out []claim
	for len(t.rests) > 0 && !now.Before(t.rests[0].Released.Add(Rest)) {
		if c, ok := t.byAddress[t.rests[0].Address]; ok && c == t.rests[0] {
			c.Forgotten = true
			t.put(c)
			out = append(out, c)
		}
		t.rests = t.rests[1:]
	}
	return out
}

// sortRests puts the rests in order after claims were put in any order.
func (t *table) sortRests() {
	slices.SortFunc(t.rests, func(a, b claim) int { return a.Released.Compare(b.Released) })
}

// lease gives what a service holds.
func (t *table) lease(service string) (Lease, bool) {
	var l Lease
	for _, a := range t.byService[service] {
		c := t.byAddress[a]
		if !c.held() {
			continue
		}
		if len(l.Addresses) == 0 || c.Since.Before(l.Since) {
			l.Since = c.Since
		}
		l.Service, l.Pool = service, c.Pool
		l.Addresses = append(l.Addresses, a)
	}
	slices.SortFunc(l.Addresses, netip.Addr.Compare)
	return l, len(l.Addresses) > 0
}

func (t *table) list() []Lease {
	var out []Lease
	for service, addresses := range t.byService {
		if l, ok := t.lease(service); ok {
			out = append(out, l)
		}
		for _, a := range addresses {
			if c := t.byAddress[a]; !c.held() {
				out = append(out, Lease{Service: service, Pool: c.Pool, Addresses: []netip.Addr{a}, Since: c.Since, Released: c.Released})
			}
		}
	}
	slices.SortFunc(out, func(a, b Lease) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), a.Released.Compare(b.Released), a.Addresses[0].Compare(b.Addresses[0]))
	})
	return out
}

// release gives the claims that change when a service gives up its lease, or
// the rest of one.
func (t *table) release(service string, now time.Time) []claim {
	_, held := t.lease(service)
	var changed []claim
	for _, a := range t.byService[service] {
		c := t.byAddress[a]
		switch {
		case held && c.held():
			c.Released = now
			changed = append(changed, c)
		case !held:
			c.Forgotten = true
			changed = append(changed, c)
		}
	}
	return changed
}

// clone copies the table.
func (t *table) clone() *table {
	c := newTable()
	for a, v := range t.byAddress {
		c.byAddress[a] = v
	}
	for s, v := range t.byService {
		c.byService[s] = slices.Clone(v)
	}
	c.rests = slices.Clone(t.rests)
	c.configure(t.pools, nil)
	for a := range t.reserved {
		c.reserved[a] = true
		if _, ok := c.byAddress[a]; !ok {
			c.count(a, 1)
		}
	}
	return c
}
