package loop

import (
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// receiveRounds is how many batches of a socket are taken in a row.
	receiveRounds = 4
	// bulkFrom is how many datagrams at once make a session one of bulk.
	bulkFrom = 4
	// leaveTime is how many ticks a session whose endpoint is gone still passes
	// on answers: as long as a resolver waits for one.
	leaveTime = 50
	// connectMost is how many endpoints are tried for one datagram.
	connectMost = 4
)

// udpService is what a service has of UDP.
type udpService struct {
	dropped atomic.Uint64 // datagrams
	evicted atomic.Uint64 // sessions
	listen  []*listener   // the engine's lock's
}

// udpShared is what all loops have in common of UDP.
type udpShared struct {
	sessions atomic.Int64
	limit    atomic.Int64 // of sessions, as configured
}

// crowded says that the descriptors are used up that connections and sessions
// may have: room counts pairs.
func (s *shared) crowded() bool {
	return s.active.Load()+s.udp.sessions.Load()/2 >= s.room.Load()
}

// relay carries the datagrams of one loop. What comes from clients is sent on
// as soon as a batch of it has been read; what comes from endpoints is gathered
// over all sessions that have something, and sent on when the loop has handled
// a batch of events.
type relay struct {
	loop      *loop
	sessions  sessions
	listeners []*listener // by listener.index

	in, out  *received
	filled   int // places of out that are waiting in down
	up, down sending
	upTo     int32 // the session of up
	downFrom *listener
	// tried are the endpoints that have refused a session since one answered.
	tried map[int32][]int32
}

func newRelay(l *loop) *relay {
	return &relay{
		loop:     l,
		sessions: sessions{byKey: map[sessionKey]int32{}},
		in:       newReceived(true),
		out:      newReceived(false),
		tried:    map[int32][]int32{},
	}
}

// chooseFor chooses an endpoint for a client's session.
func chooseFor(s *service, client netip.AddrPort, now uint32, excluded []int32) *endpoint {
	return s.pick(client.Addr(), now, excluded)
}

// receive takes what clients have sent to a listener.
func (r *relay) receive(index int32) {
	n := r.listeners[index]
	if n == nil {
		return
	}
	for range receiveRounds {
		k, err := r.in.receive(n.fds[r.loop.index], 0, batchMost)
		if err != 0 {
			return
		}
		for i := range k {
			r.forward(n, i)
		}
		r.sendUp()
		if k < batchMost {
			return
		}
	}
}

// forward gives a client's datagram to its session.
func (r *relay) forward(n *listener, at int) {
	var key sessionKey
	segment := r.identify(n, at, &key)
	p := r.in.bytes(at)
	if segment == 0 {
		segment = len(p)
	}
	count := datagrams(len(p), segment)
	i := r.sessions.find(&key)
	if i < 0 {
		r.sendUp() // whose session may have to make room
		if i = r.begin(n, &key, count); i < 0 {
			return
		}
	}
	x := r.sessions.at(i)
	r.sessions.touch(i, x, r.loop.now) // from now on it makes room for nobody
	if x.fd < 0 {                      // its endpoint has refused it
		r.sendUp()
		if !r.dial(i, x, n.owner.Load()) {
			n.owner.Load().udp.dropped.Add(uint64(count))
			return
		}
	}
	x.bytes[client] += uint64(len(p))
	if r.up.n > 0 && r.upTo != i {
		r.sendUp()
	}
	if x.flags&flagApart == 0 && r.up.joins(i, len(p), segment) {
		r.up.join(p, segment)
		return
	}
	r.upTo, r.up.fd = i, x.fd
	r.up.begin(i, p, segment)
}

// identify reads whose datagram it is, and the size of those it was coalesced
// of, if it was.
func (r *relay) identify(n *listener, at int, key *sessionKey) int {
	var port uint16
	name := &r.in.names[at]
	if n.v6() {
		key.setAddress(0, name.Addr[:])
		key[5] = uint64(name.Scope_id)
		b := (*[2]byte)(unsafe.Pointer(&name.Port))
		port = uint16(b[0])<<8 | uint16(b[1])
	} else {
		name := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		key.setAddress(0, name.Addr[:])
		b := (*[2]byte)(unsafe.Pointer(&name.Port))
		port = uint16(b[0])<<8 | uint16(b[1])
	}
	key.setPort(n.index, port)
	segment, to, device := r.in.said(at, n.wildcard())
	if to != nil {
		key.setAddress(2, to)
		if len(to) == 16 && to[0] == 0xfe && to[1]&0xc0 == 0x80 {
			key[5] = uint64(device) // link-local
		}
	}
	return segment
}

// begin makes a client's session, if it may have one; else its datagrams are
// dropped, and it is -1.
func (r *relay) begin(n *listener, key *sessionKey, count int) int32 {
	s := n.owner.Load()
	why, ok := r.admit(s, key)
	if !ok {
		if why == refusedDescriptors {
			r.loop.shared.pressure()
		}
		s.refused[why].Add(1)
		s.udp.dropped.Add(uint64(count))
		return -1
	}
	i, x := r.sessions.add(key, r.loop.now)
	if s.settings.Load().guest > 0 {
		x.flags |= flagGuest
	}
	s.active.Add(1)
	r.loop.shared.udp.sessions.Add(1)
	if !r.dial(i, x, s) {
		s.udp.dropped.Add(uint64(count))
		r.end(i, x, s)
		return -1
	}
	s.accepted.Add(1)
	r.loop.setAlarm(-(i + 1), &x.alarm, r.loop.now+s.settings.Load().idleUDP)
	return i
}

// admit says whether a client may have a session, or why not.
func (r *relay) admit(s *service, key *sessionKey) (why int, ok bool) {
	t := s.settings.Load()
	switch {
	case len(t.allow) > 0 && !t.allows(key.client().Addr()):
		return refusedSource, false
	case t.max > 0 && s.active.Load() >= t.max:
		return refusedLimit, false
	}
	g := r.loop.shared
	room := g.room.Load()
	why, ok = 0, true
	switch {
	case g.udp.sessions.Load() >= g.udp.limit.Load():
		why, ok = refusedLimit, r.evict()
	case g.crowded() || g.udp.sessions.Load() >= room+room/2: // the rest is left to connections
		why, ok = refusedDescriptors, r.evict()
	}
	if ok && t.guest > 0 && !s.guests.enter(key.client().Addr(), t.guest) {
		return refusedGuest, false
	}
	return why, ok
}

// evict ends a session of this loop that is worth less than a new one, if there
// is any.
func (r *relay) evict() bool {
	i := r.sessions.eldest(r.loop.now)
	if i < 0 {
		return false
	}
	x := r.sessions.at(i)
	s := r.serviceOf(x)
	s.udp.evicted.Add(1)
	r.end(i, x, s)
	return true
}

func (r *relay) serviceOf(x *session) *service {
	if x.endpoint >= 0 {
		return r.loop.shared.endpoints.get(x.endpoint).service
	}
	return r.listeners[x.key.listener()].owner.Load()
}

// dial connects a session to an endpoint: one that has not refused it, where
// there is one. If it can't be, that is counted.
func (r *relay) dial(i int32, x *session, s *service) bool {
	tried := r.tried[i]
	for range connectMost {
		e := chooseFor(s, x.key.client(), r.loop.now, tried)
		if e == nil && len(tried) > 0 {
			tried = nil
			delete(r.tried, i)
			e = chooseFor(s, x.key.client(), r.loop.now, nil)
		}
		if e == nil {
			s.refused[refusedEmpty].Add(1)
			return false
		}
		err := r.connect(i, x, e)
		if err == 0 {
			e.connections.Add(1)
			return true
		}
		r.loop.shared.endpoints.release(e)
		if outOfDescriptors(err) {
			if x.queue == queueFresh+1 && r.evictOther(i) {
				continue
			}
			r.loop.shared.pressure()
			s.refused[refusedDescriptors].Add(1)
			return false
		}
		s.attemptFailed(e, r.loop.now, err)
		tried = append(tried, e.id)
		r.tried[i] = tried
	}
	s.failed.Add(1)
	return false
}

// evictOther is evict, but for a session that is being made.
func (r *relay) evictOther(i int32) bool {
	return r.sessions.eldest(r.loop.now) != i && r.evict()
}

// connect makes a session's socket to an endpoint.
func (r *relay) connect(i int32, x *session, e *endpoint) errno {
	k := r.loop.system
	n, err := raw(unix.SYS_SOCKET, uintptr(e.sockaddr.family), unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP, 0, 0, 0)
	if err != 0 {
		return err
	}
	fd := int32(n)
	err = k.connect(fd, &e.sockaddr)
	if err == 0 && e.looping && k.self(fd) {
		err = unix.ECONNREFUSED
	}
	if err == 0 {
		err = r.watch(unix.EPOLL_CTL_ADD, i, fd)
	}
	if err != 0 {
		k.close(fd)
		return err
	}
	x.fd, x.endpoint = fd, e.id
	x.flags &= flagGuest
	return 0
}

// watch registers a session's socket, or asks to be told again what has been
// told already.
func (r *relay) watch(op int, i, fd int32) errno {
	k := r.loop.system
	k.event = unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: i, Pad: eventSession}
	return k.control(op, fd)
}

// answer takes what an endpoint has sent to a session, or the news that nobody
// listens there. Less than was asked for means that there is no more, and the
// next event tells when there is; unless an error has cut it short.
func (r *relay) answer(i int32, events uint32) {
	x := r.sessions.at(i)
	if x.queue == 0 || x.fd < 0 {
		return // ended in this batch of events
	}
	for range receiveRounds {
		most := r.roomFor(x)
		k, err := r.out.receive(x.fd, r.filled, r.filled+most)
		if err != 0 {
			if r.silence(i, x, err) {
				continue
			}
			return
		}
		if k >= bulkFrom && x.flags&flagBulk == 0 {
			x.flags |= flagBulk
			r.coalesce(x.fd)
		}
		for range k {
			r.reply(i, x, r.filled)
			r.filled++
		}
		if k < most && events&eventError == 0 {
			return
		}
	}
	r.watch(unix.EPOLL_CTL_MOD, i, x.fd)
}

// roomFor makes room in out for what a session may have, and says for how many.
func (r *relay) roomFor(x *session) int {
	most := bulkFrom
	if x.flags&flagBulk != 0 {
		most = batchMost
	}
	if free := batchMost - r.filled; free >= 2 {
		return min(free, most)
	}
	r.flush()
	return most
}

// silence handles that a session's socket has given nothing, and says whether
// it may have more: an error of the path (EMSGSIZE, some ICMP errors) is read
// once, and what came besides it afterwards.
func (r *relay) silence(i int32, x *session, err errno) bool {
	if err == unix.EAGAIN {
		return false
	}
	if refusal(err) {
		r.refused(i, x, err)
		return false
	}
	return true
}

// coalesce lets the kernel put datagrams of one size together. Where it can't,
// all is as before.
func (r *relay) coalesce(fd int32) {
	k := r.loop.system
	k.number = 1
	raw(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_UDP, unix.UDP_GRO, uintptr(unsafe.Pointer(&k.number)), 4, 0)
}

// refusal says whether an error of a session's socket means that nobody
// listens there.
func refusal(err errno) bool {
	switch err {
	case unix.ECONNREFUSED, unix.ENOPROTOOPT, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENETDOWN:
		return true
	}
	return false
}

// reply puts a datagram of an endpoint among those to be sent.
func (r *relay) reply(i int32, x *session, at int) {
	l := r.loop
	n := r.listeners[x.key.listener()]
	p := r.out.bytes(at)
	segment, _, _ := r.out.said(at, false)
	if segment == 0 {
		segment = len(p)
	}
	if x.queue == queueFresh+1 {
		r.sessions.move(i, x, queueAnswered)
		if len(r.tried) > 0 {
			delete(r.tried, i)
		}
		if e := l.shared.endpoints.get(x.endpoint); e.troubled.Load() {
			e.service.attemptWorked(e)
		}
	}
	r.sessions.touch(i, x, l.now)
	x.bytes[server] += uint64(len(p))
	if r.downFrom != n {
		r.sendDown()
		r.downFrom, r.down.fd = n, n.fds[l.index]
	}
	if r.down.joins(i, len(p), segment) {
		r.down.join(p, segment)
		return
	}
	h := r.down.begin(i, p, segment)
	m := r.down.n - 1
	n.name(&r.down.names[m], &x.key, h)
	if n.wildcard() {
		r.down.addSource(m, &x.key, n.v6())
	}
}

// name writes the address of a session's client.
func (n *listener) name(name *unix.RawSockaddrInet6, key *sessionKey, h *unix.Msghdr) {
	h.Name = (*byte)(unsafe.Pointer(name))
	b, port := key.bytes(0), key.port()
	if n.v6() {
		*name = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: b, Scope_id: key.scope()}
		*(*[2]byte)(unsafe.Pointer(&name.Port)) = [2]byte{byte(port >> 8), byte(port)}
		h.Namelen = unix.SizeofSockaddrInet6
		return
	}
	to := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
	*to = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: [4]byte(b[12:])}
	*(*[2]byte)(unsafe.Pointer(&to.Port)) = [2]byte{byte(port >> 8), byte(port)}
	h.Namelen = unix.SizeofSockaddrInet4
}

// flush sends the answers that have been gathered.
func (r *relay) flush() {
	r.sendDown()
	r.filled = 0
}

func (r *relay) sendDown() {
	s := &r.down
	if s.n == 0 {
		return
	}
	owner := r.downFrom.owner.Load()
	for i := range s.n {
		s.addSegment(i)
	}
	for i := 0; i < s.n; {
		n, err := s.send(i)
		i += n
		if err == 0 {
			continue
		}
		switch {
		case retriable(err) && s.runs[i].count > 1:
			owner.udp.dropped.Add(uint64(s.sendApart(i)))
		case retriable(err):
			if n, err := s.send(i); err == 0 {
				i += n
				continue
			}
			owner.udp.dropped.Add(1)
		default:
			owner.udp.dropped.Add(uint64(s.runs[i].count))
		}
		i++
	}
	s.reset()
}

// retriable says whether a failed send may work the next time, or in smaller
// pieces: the socket has told of a path's new MTU, or segments are greater than
// the MTU, or the device can't make checksums.
func retriable(err errno) bool {
	return err == unix.EMSGSIZE || err == unix.EINVAL || err == unix.EIO
}

// sendUp sends what one client has sent to its endpoint, or, where that turns
// out to refuse, to another one.
func (r *relay) sendUp() {
	s := &r.up
	if s.n == 0 {
		return
	}
	i, x := r.upTo, r.sessions.at(r.upTo)
	for m := range s.n {
		s.addSegment(m)
	}
	if n, err := s.send(0); err != 0 || n < s.n {
		r.sendAgain(i, x, n, err)
	}
	s.reset()
}

// sendAgain goes on where sendUp has come to an error, or not to the end.
func (r *relay) sendAgain(i int32, x *session, m int, err errno) {
	s := &r.up
	owner := r.serviceOf(x)
	retried, moves := false, 0
	for ; m < s.n; err = r.sendRest(&m) {
		again := retriable(err)
		switch {
		case err == 0:
			retried = false
			continue
		case again && s.runs[m].count > 1:
			x.flags |= flagApart
			owner.udp.dropped.Add(uint64(s.sendApart(m)))
		case again && !retried:
			retried = true
			continue
		case refusal(err) && moves < connectMost:
			moves++
			r.refused(i, x, err)
			if r.dial(i, x, owner) {
				s.fd = x.fd
				continue
			}
			for ; m < s.n; m++ {
				owner.udp.dropped.Add(uint64(s.runs[m].count))
			}
			continue
		default:
			owner.udp.dropped.Add(uint64(s.runs[m].count))
		}
		m, retried = m+1, false
	}
}

// sendRest sends the messages of up from m on, and moves m behind those that
// have gone.
func (r *relay) sendRest(m *int) errno {
	if *m >= r.up.n {
		return 0
	}
	n, err := r.up.send(*m)
	*m += n
	return err
}

// refused takes a session from an endpoint that doesn't want it: its client's
// next datagram goes to another one.
func (r *relay) refused(i int32, x *session, why errno) {
	l := r.loop
	e := l.shared.endpoints.get(x.endpoint)
	e.service.attemptFailed(e, l.now, why)
	if x.queue == queueLeaving+1 {
		r.end(i, x, e.service)
		return
	}
	r.tried[i] = append(r.tried[i], e.id)
	r.disconnect(x, e)
	if x.queue == queueAnswered+1 {
		r.sessions.move(i, x, queueFresh)
	}
}

// disconnect takes a session from its endpoint.
func (r *relay) disconnect(x *session, e *endpoint) {
	r.count(x, e)
	r.loop.system.close(x.fd)
	x.fd, x.endpoint = -1, -1
	r.loop.shared.endpoints.release(e)
}

// count adds a session's bytes to its endpoint's and its service's.
func (r *relay) count(x *session, e *endpoint) {
	for d := range 2 {
		if n := x.bytes[d]; n != 0 {
			e.bytes[d].Add(n)
			e.service.bytes[d].Add(n)
			x.bytes[d] = 0
		}
	}
}

// end ends a session of a service.
func (r *relay) end(i int32, x *session, s *service) {
	if x.fd >= 0 {
		r.disconnect(x, r.loop.shared.endpoints.get(x.endpoint))
	}
	r.loop.clearAlarm(&x.alarm)
	if len(r.tried) > 0 {
		delete(r.tried, i)
	}
	if x.flags&flagGuest != 0 {
		s.guests.leave(x.key.client().Addr())
	}
	r.sessions.drop(i, x)
	s.active.Add(-1)
	r.loop.shared.udp.sessions.Add(-1)
}

// leave takes a session out of its client's way, whose next datagram begins a
// new one. For a moment it still passes on what its endpoint answers.
func (r *relay) leave(i int32, x *session) {
	if x.queue == queueLeaving+1 {
		return
	}
	r.sessions.move(i, x, queueLeaving)
	r.loop.clearAlarm(&x.alarm)
	r.loop.setAlarm(-(i + 1), &x.alarm, r.loop.now+leaveTime)
}

// expired handles a session's timer.
func (r *relay) expired(i int32) {
	l, x := r.loop, r.sessions.at(i)
	s := r.serviceOf(x)
	idle := s.settings.Load().idleUDP
	if x.queue != queueLeaving+1 && int32(x.last+idle-l.now) > 0 {
		l.setAlarm(-(i + 1), &x.alarm, x.last+idle)
		return
	}
	r.end(i, x, s)
}
