package loop

import (
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// udpUpdate is what an update has to do for UDP.
type udpUpdate struct {
	won map[string][]netip.AddrPort
	// before are endpoints that had sessions when the update began.
	before []*endpoint
	// hurried are services whose sessions are to end earlier than they were.
	hurried map[*service]bool
	opened  []*listener
	closed  []*listener // whose sockets go, and sessions end
	passed  []udpPassed // whose sockets another service gets
}

// udpPassed are sockets that go from one listener to another. A UDP listener
// never changes its owner, so that its sessions have the same.
type udpPassed struct{ from, to *listener }

// sessionEndpoints lists the endpoints of services in the update that may have
// sessions.
func (u *update) sessionEndpoints() []*endpoint {
	var list []*endpoint
	for _, s := range u.set {
		if v := u.engine.services[s.ID]; v != nil && len(v.udp.listen) > 0 {
			list = append(list, v.endpoints...)
		}
	}
	return list
}

// relay brings UDP to the state of the services in the update: their listeners,
// which are there only while the service has endpoints or is told to be silent
// without, and their sessions, which leave endpoints that drain or are gone.
func (u *update) relay() {
	u.assignDatagrams()
	u.endSessions()
	u.openDatagrams()
	for _, v := range u.touched {
		silent := v.onEmpty == Drop && v.empty()
		for _, n := range v.udp.listen {
			if err := n.setSilent(silent); err != nil {
				u.fail(v.id, err)
			}
		}
	}
}

// assignDatagrams finds out which listeners there are to be, with whose sockets.
func (u *update) assignDatagrams() {
	e := u.engine
	had := map[netip.AddrPort]*listener{}
	for _, v := range slices.Concat(u.removed, u.touched) {
		for _, n := range v.udp.listen {
			had[n.address] = n
		}
		v.udp.listen = nil
	}
	for _, v := range u.touched {
		open := v.onEmpty == Drop || !v.empty()
		for _, a := range u.udp.won[v.id] {
			n := had[a]
			if n == nil || n.owner.Load() != v {
				n = u.takeOver(v, a, n, open, had)
			} else {
				delete(had, a)
			}
			e.datagrams[a] = n
			v.udp.listen = append(v.udp.listen, n)
			switch has := len(n.fds) > 0; {
			case open && !has:
				u.udp.opened = append(u.udp.opened, n)
			case !open && has:
				u.udp.closed = append(u.udp.closed, n)
			}
		}
		slices.SortFunc(v.udp.listen, func(a, b *listener) int { return a.address.Compare(b.address) })
	}
	for a, n := range had {
		if len(n.fds) > 0 {
			u.udp.closed = append(u.udp.closed, n)
		} else {
			e.places = append(e.places, n.index) // no loop knows it
		}
		if e.datagrams[a] == n {
			delete(e.datagrams, a)
		}
	}
}

// takeOver makes a listener of a service, with the sockets of another service's
// if there are any and they are to be open.
func (u *update) takeOver(v *service, a netip.AddrPort, from *listener, open bool, had map[netip.AddrPort]*listener) *listener {
	n := &listener{address: a, index: u.engine.place()}
	n.owner.Store(v)
	if from != nil && len(from.fds) > 0 && open {
		n.fds, n.silent = from.fds, from.silent
		u.udp.passed = append(u.udp.passed, udpPassed{from, n})
		delete(had, a)
	}
	return n
}

// endSessions ends the sessions of listeners that go, with their sockets, and
// has others leave endpoints that drain or are gone.
func (u *update) endSessions() {
	e := u.engine
	leaving := map[*endpoint]bool{}
	for _, p := range u.udp.before {
		if p.active.Load() > 0 && p.leaving() {
			leaving[p] = true
		}
	}
	gone := map[int32]bool{}
	for _, n := range u.udp.closed {
		gone[n.index] = true
	}
	for _, p := range u.udp.passed {
		gone[p.from.index] = true
	}
	if len(leaving)+len(gone)+len(u.udp.hurried) == 0 {
		return
	}
	e.onLoops(func(l *loop) {
		r := l.relay
		if r == nil {
			return
		}
		r.dismiss(gone, leaving)
		r.hurry(u.udp.hurried)
		for _, n := range u.udp.closed {
			r.closeListener(n)
		}
		for _, p := range u.udp.passed {
			r.listeners[p.from.index] = nil
			r.place(p.to)
			r.attend(unix.EPOLL_CTL_MOD, p.to)
		}
	})
	for _, n := range u.udp.closed {
		n.fds, n.silent = nil, false
		if e.datagrams[n.address] != n {
			e.places = append(e.places, n.index)
		}
	}
	for _, p := range u.udp.passed {
		e.places = append(e.places, p.from.index)
	}
}

// leaving says that no session may stay at an endpoint.
func (p *endpoint) leaving() bool {
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	return p.draining || p.retired.Load()
}

// dismiss ends the sessions of listeners, and has those of endpoints leave.
func (r *relay) dismiss(listeners map[int32]bool, endpoints map[*endpoint]bool) {
	r.sessions.each(func(i int32, x *session) {
		if listeners[x.key.listener()] {
			r.end(i, x, r.serviceOf(x))
		} else if x.endpoint >= 0 && endpoints[r.loop.shared.endpoints.get(x.endpoint)] {
			r.leave(i, x)
		}
	})
}

// hurry gives the sessions of services, whose idle timeout is less than it was,
// their new timers.
func (r *relay) hurry(services map[*service]bool) {
	if len(services) == 0 {
		return
	}
	r.sessions.each(func(i int32, x *session) {
		if s := r.serviceOf(x); services[s] && x.queue != queueLeaving+1 {
			r.loop.clearAlarm(&x.alarm)
			r.loop.setAlarm(-(i + 1), &x.alarm, x.last+s.settings.Load().idleUDP)
		}
	})
}

// openDatagrams opens the listeners that are to be open and aren't.
func (u *update) openDatagrams() {
	e := u.engine
	if len(u.udp.opened)+len(u.udp.closed) == 0 {
		return
	}
	var opened []*listener
	for _, n := range u.udp.opened {
		fds, err := listenUDP(n.address, len(e.loops), e.freeBind)
		if err != nil {
			u.fail(n.owner.Load().id, err)
			e.forget(n)
			continue
		}
		n.fds = fds
		opened = append(opened, n)
	}
	defer e.setRoom()
	if len(opened) == 0 {
		return
	}
	failed := make([]errno, len(e.loops)*len(opened))
	e.onLoops(func(l *loop) {
		for i, n := range opened {
			failed[l.index*len(opened)+i] = l.addDatagrams(n)
		}
	})
	for k, err := range failed {
		n := opened[k%len(opened)]
		if err == 0 || e.datagrams[n.address] != n {
			continue
		}
		u.fail(n.owner.Load().id, &ListenError{n.address, err})
		e.forget(n)
		e.closeSockets([]*listener{n})
	}
}

// forget takes a listener off the books of the engine and its service.
func (e *Engine) forget(n *listener) {
	v := n.owner.Load()
	v.udp.listen = slices.DeleteFunc(v.udp.listen, func(m *listener) bool { return m == n })
	delete(e.datagrams, n.address)
	e.places = append(e.places, n.index)
}

// closeDatagrams closes all UDP listeners and ends all sessions.
func (e *Engine) closeDatagrams() {
	e.closeSockets(slices.Collect(maps.Values(e.datagrams)))
	clear(e.datagrams)
}

func (e *Engine) closeSockets(list []*listener) {
	gone := map[int32]bool{}
	list = slices.DeleteFunc(list, func(n *listener) bool { return len(n.fds) == 0 })
	for _, n := range list {
		gone[n.index] = true
	}
	if len(list) == 0 {
		return
	}
	e.onLoops(func(l *loop) {
		if l.relay == nil {
			return
		}
		l.relay.dismiss(gone, nil)
		for _, n := range list {
			l.relay.closeListener(n)
		}
	})
	for _, n := range list {
		n.fds = nil
	}
}

// countAll counts the bytes of all sessions.
func (r *relay) countAll() {
	r.sessions.each(func(_ int32, x *session) {
		if x.bytes[client]|x.bytes[server] != 0 {
			r.count(x, r.loop.shared.endpoints.get(x.endpoint))
		}
	})
}
