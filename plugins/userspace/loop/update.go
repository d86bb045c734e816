package loop

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Update sets services, in place of those with the same IDs, and removes
// others, in one step: an address may pass from one service to another in it
// without a connection being refused. Its cost is that of the services named.
//
// What fails, fails for its service alone and is in the answer under its ID:
// a service that is wrong in itself changes nothing; of one that can't listen
// on all its addresses, the others work. Naming it again tries again. Where two
// services want one address, the one that has it keeps it, else the first ID
// gets it.
//
// Connections to endpoints that stay or drain go on; so do others, unless their
// service says ResetOnDrainEnd. Once Update has returned, no connection begins
// that the new state doesn't allow.
func (e *Engine) Update(set []Service, remove []string) map[string]error {
	e.mu.Lock()
	defer e.mu.Unlock()
	u := &update{engine: e, errs: map[string][]error{}, udp: udpUpdate{hurried: map[*service]bool{}}}
	if e.closed || e.shared.closing.Load() {
		for _, s := range set {
			u.fail(s.ID, ErrClosed)
		}
		return u.errors()
	}
	u.read(set, remove)
	u.won = u.claim((*Service).listenTCP, u.engine.listeners)
	u.udp.won = u.claim((*Service).listenUDP, u.engine.datagrams)
	u.udp.before = u.sessionEndpoints()
	u.open()
	u.apply()
	u.release()
	u.silence()
	u.relay()
	return u.errors()
}

// update is the work of one call of Engine.Update.
type update struct {
	engine  *Engine
	set     []*Service // valid ones, by ID
	removed []*service
	ids     map[string]bool // of both
	errs    map[string][]error

	won     map[string][]netip.AddrPort
	opened  []*listener
	freed   []*listener
	touched []*service
	ended   map[*endpoint]bool // whose connections are to be reset
	udp     udpUpdate
}

func (u *update) fail(id string, err error) { u.errs[id] = append(u.errs[id], err) }

func (u *update) errors() map[string]error {
	if len(u.errs) == 0 {
		return nil
	}
	m := map[string]error{}
	for id, errs := range u.errs {
		m[id] = errors.Join(errs...)
	}
	return m
}

// read checks the services one by one.
func (u *update) read(set []Service, remove []string) {
	u.ids = map[string]bool{}
	u.ended = map[*endpoint]bool{}
	for i := range set {
		s := &set[i]
		if err := s.check(); err != nil {
			u.fail(s.ID, err)
			continue
		}
		if u.ids[s.ID] {
			u.fail(s.ID, errors.New("the service is in the update twice"))
			continue
		}
		u.ids[s.ID] = true
		u.set = append(u.set, s)
	}
	slices.SortFunc(u.set, func(a, b *Service) int { return cmp.Compare(a.ID, b.ID) })
	for _, id := range remove {
		if v := u.engine.services[id]; v != nil && !u.ids[id] {
			u.ids[id] = true
			u.removed = append(u.removed, v)
		}
	}
}

// claim finds out which service gets which of the addresses that it wants, of
// those that are given to a service already and of others.
func (u *update) claim(wants func(*Service) []netip.AddrPort, given map[netip.AddrPort]*listener) map[string][]netip.AddrPort {
	claims := map[netip.AddrPort][]string{}
	for _, s := range u.set {
		for _, a := range wants(s) {
			a = plain(a)
			if !slices.Contains(claims[a], s.ID) {
				claims[a] = append(claims[a], s.ID)
			}
		}
	}
	won := map[string][]netip.AddrPort{}
	for a, ids := range claims {
		winner := ids[0]
		if n := given[a]; n != nil {
			if owner := n.owner.Load().id; slices.Contains(ids, owner) || !u.ids[owner] {
				winner = owner
			}
		}
		for _, id := range ids {
			if id == winner {
				won[id] = append(won[id], a)
			} else {
				u.fail(id, fmt.Errorf("listening on %s: service %s has this address already", a, winner))
			}
		}
	}
	return won
}

func (s *Service) listenTCP() []netip.AddrPort { return s.Listen }
func (s *Service) listenUDP() []netip.AddrPort { return s.ListenUDP }

// plain writes an IPv4 address in one way only.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// open listens on the addresses that nobody has yet. No loop accepts there
// before the services are in place.
func (u *update) open() {
	e := u.engine
	for _, s := range u.set {
		var got []netip.AddrPort
		for _, a := range u.won[s.ID] {
			if e.listeners[a] == nil {
				n, err := listen(a, len(e.loops), bindOptions{e.keepIdle, e.freeBind})
				if err != nil {
					u.fail(s.ID, err)
					continue
				}
				n.index = e.place()
				e.listeners[a] = n
				u.opened = append(u.opened, n)
			}
			got = append(got, a)
		}
		u.won[s.ID] = got
	}
}

func (e *Engine) place() int32 {
	if n := len(e.places); n > 0 {
		i := e.places[n-1]
		e.places = e.places[:n-1]
		return i
	}
	e.nextPlace++
	return e.nextPlace - 1
}

// apply puts the services in place and gives them their listeners.
func (u *update) apply() {
	e := u.engine
	// Every address that a changed service had is free unless it is claimed.
	had := map[*listener]bool{}
	for _, v := range u.removed {
		for _, n := range v.listen {
			had[n] = true
		}
		delete(e.services, v.id)
	}
	for _, s := range u.set {
		v := e.services[s.ID]
		if v == nil {
			v = newService(s.ID)
			e.services[s.ID] = v
		}
		for _, n := range v.listen {
			had[n] = true
		}
		u.configure(v, s)
		v.listen = nil
		for _, a := range u.won[s.ID] {
			v.listen = append(v.listen, e.listeners[a])
		}
		slices.SortFunc(v.listen, func(a, b *listener) int { return a.address.Compare(b.address) })
		u.touched = append(u.touched, v)
	}
	for _, v := range u.touched {
		for _, n := range v.listen {
			n.owner.Store(v)
			delete(had, n)
		}
	}
	u.freed = slices.Collect(maps.Keys(had))
	u.watchOpened()
}

func (u *update) watchOpened() {
	e := u.engine
	if len(u.opened) == 0 {
		return
	}
	// Read only after all loops have answered.
	failed := make([]errno, len(e.loops)*len(u.opened))
	e.onLoops(func(l *loop) {
		for i, n := range u.opened {
			failed[l.index*len(u.opened)+i] = l.addListener(n)
		}
	})
	for k, err := range failed {
		n := u.opened[k%len(u.opened)]
		if err == 0 || slices.Contains(u.freed, n) {
			continue
		}
		v := n.owner.Load()
		v.listen = slices.DeleteFunc(v.listen, func(m *listener) bool { return m == n })
		u.freed = append(u.freed, n)
		u.fail(v.id, &ListenError{n.address, err})
	}
	e.setRoom()
}

// release closes the listeners that nobody wants any more and lets go of the
// endpoints of removed services. The queues of the listeners are taken first,
// while their services still have endpoints.
func (u *update) release() {
	e := u.engine
	if len(u.freed) > 0 {
		e.closeListeners(u.freed)
	} else if len(u.removed) > 0 {
		// A loop may have accepted for a removed service just before its address
		// passed to another; once it answers it has chosen an endpoint.
		e.onLoops(func(*loop) {})
	}
	for _, v := range u.removed {
		u.setEndpoints(v, nil, v.cut)
	}
	if len(u.ended) > 0 {
		e.cutEndpoints(u.ended)
	}
}

func (e *Engine) closeListeners(list []*listener) {
	if len(list) == 0 {
		return
	}
	e.onLoops(func(l *loop) {
		for _, n := range list {
			l.removeListener(n)
		}
	})
	for _, n := range list {
		delete(e.listeners, n.address)
		e.places = append(e.places, n.index)
	}
	e.setRoom()
}

// cutEndpoints resets the connections to endpoints.
func (e *Engine) cutEndpoints(ended map[*endpoint]bool) {
	e.onLoops(func(l *loop) {
		l.slots.each(func(i int32, c *conn) {
			if c.endpoint >= 0 && ended[l.shared.endpoints.get(c.endpoint)] {
				l.cut(i, c)
			}
		})
	})
}

// configure brings a service up to its new description.
func (u *update) configure(v *service, s *Service) {
	old := v.settings.Load()
	now := newSettings(s)
	v.settings.Store(now)
	v.onEmpty = s.OnEmpty
	v.cut = s.ResetOnDrainEnd
	v.mu.Lock()
	v.choosing(s)
	v.mu.Unlock()
	u.setEndpoints(v, s, v.cut)
	if old != nil && (sooner(now.idle, old.idle) || sooner(now.life, old.life)) {
		u.engine.armLimits(v)
	}
	if old != nil && now.idleUDP < old.idleUDP {
		u.udp.hurried[v] = true
	}
}

// sooner says whether a limit, 0 for none, ends earlier than another.
func sooner(a, b uint32) bool { return a != 0 && (b == 0 || a < b) }

// armLimits gives timers to connections that came when their limits were later
// or none.
func (e *Engine) armLimits(v *service) {
	e.onLoops(func(l *loop) {
		l.slots.each(func(i int32, c *conn) {
			if c.state == stateOpen && l.shared.endpoints.get(c.endpoint).service == v {
				l.armLimits(i, c, v.settings.Load())
			}
		})
	})
}

// setEndpoints replaces a service's endpoints; those that stay keep their
// counts and their turn. s is nil for none.
func (u *update) setEndpoints(v *service, s *Service, cut bool) {
	e := u.engine
	gone := map[netip.AddrPort]*endpoint{}
	for _, p := range v.endpoints { // only ever replaced under the engine's lock
		gone[p.address] = p
	}
	type change struct {
		endpoint *endpoint
		want     Endpoint
	}
	var list []change
	seen := map[netip.AddrPort]bool{}
	if s != nil {
		for _, w := range s.Endpoints {
			a := plain(w.Address)
			if seen[a] {
				continue
			}
			seen[a] = true
			p := gone[a]
			if p == nil {
				to, err := newSockaddr(a)
				if err != nil {
					u.fail(s.ID, err)
					continue
				}
				v.serial++
				p = &endpoint{service: v, serial: v.serial, address: a, hash: hashEndpoint(a), sockaddr: to,
					looping: a.Port() >= e.ports[0] && a.Port() <= e.ports[1]}
				e.shared.endpoints.add(p)
			}
			delete(gone, a)
			list = append(list, change{p, w})
		}
	}
	all := make([]*endpoint, 0, len(list))
	members := make([]*endpoint, 0, len(list))
	var keys []tableKey
	for _, c := range list {
		if !c.want.Draining && c.want.Weight > 0 {
			members = append(members, c.endpoint)
			keys = append(keys, tableKey{c.endpoint.address, int64(c.want.Weight)})
		}
	}
	var t *table
	if v.balance == Maglev {
		t = newTable(keys, v.table) // outside the lock: it takes its time
		t.bind(members)
	}
	v.mu.Lock()
	for _, c := range list {
		p := c.endpoint
		p.weight = int64(c.want.Weight)
		p.draining = c.want.Draining
		p.deadline = c.want.Deadline
		all = append(all, p)
	}
	v.arrange(all, members, t)
	v.mu.Unlock()
	for _, p := range gone {
		if cut && p.active.Load() > 0 {
			u.ended[p] = true
		}
		e.shared.endpoints.retire(p)
	}
	if cut {
		e.drains.watch(all)
	}
}

// silence makes the listeners of services without endpoints silent or not.
func (u *update) silence() {
	for _, v := range u.touched {
		silent := v.onEmpty == Drop && v.empty()
		for _, n := range v.listen {
			if err := n.setSilent(silent); err != nil {
				u.fail(v.id, err)
			}
		}
	}
}
