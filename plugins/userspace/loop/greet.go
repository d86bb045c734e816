package loop

import (
	"github.com/patchbay-proxy/patchbay/plugins/userspace/loop/proxyheader"
	"golang.org/x/sys/unix"
)

// headerTimeout is how many ticks a trusted source has for its whole PROXY
// protocol header, from the moment its connection is accepted.
const headerTimeout = 50

// greet waits for the PROXY protocol header of an accepted connection.
func (l *loop) greet(fd int32, s *service, p parties) {
	i, c := l.enter(fd, s)
	c.state = stateGreeting
	l.remember(c, s, p)
	if err := l.kernel.watch(fd, i, client); err != 0 {
		l.turnAway(i, c, s, refusedDescriptors)
		return
	}
	l.arm(i, c, l.now+1+headerTimeout)
}

// greeted looks whether the header is there. It is left in the socket until it
// is whole, so that nothing has to be kept of a part; and whoever waits costs no
// more than a connection.
func (l *loop) greeted(i int32, c *conn) {
	o := l.origins.at(c.origin)
	s := o.service
	p := l.scratch[:proxyheader.Most]
	n, err := l.kernel.peek(c.fd[client], p)
	if err == unix.EAGAIN {
		return
	}
	h, length, bad := proxyheader.Parse(p[:n])
	if err != 0 || n == 0 || bad != nil {
		l.turnAway(i, c, s, refusedHeader)
		return
	}
	if length == 0 {
		if c.dir[client].flags&flagEnding != 0 {
			l.turnAway(i, c, s, refusedHeader) // the rest will never come
		}
		return
	}
	// An urgent mark in the header would end this read early.
	if m, err := l.kernel.recv(c.fd[client], p[:length]); err != 0 || m != length {
		l.turnAway(i, c, s, refusedHeader)
		return
	}
	if r := &c.dir[client]; n == length && r.flags&(flagEnding|flagUrgent) == 0 {
		r.flags &^= flagReadable // what comes next has an event of its own
	}
	if h.From.IsValid() {
		o.parties = parties{h.From, h.To}
	}
	l.disarm(c)
	l.admit(i, c, s)
}

// admit does what welcome and open couldn't do before the client was known.
func (l *loop) admit(i int32, c *conn, s *service) {
	t := s.settings.Load()
	o := l.origins.at(c.origin)
	a := o.from.Addr()
	if !t.allows(a) {
		l.turnAway(i, c, s, refusedSource)
		return
	}
	if t.guest > 0 {
		if !s.guests.enter(a, t.guest) {
			l.turnAway(i, c, s, refusedGuest)
			return
		}
		o.guest = true
	}
	e := s.pick(a, l.now, nil)
	if e == nil {
		l.turnAway(i, c, s, refusedEmpty)
		return
	}
	s.accepted.Add(1)
	c.state = stateConnecting
	l.dial(i, c, e)
}

// turnAway resets a client that has been waiting.
func (l *loop) turnAway(i int32, c *conn, s *service, why int) {
	if why == refusedDescriptors {
		l.shared.pressure()
	}
	l.giveUp(i, c, s, &s.refused[why])
}

// introduce sends an endpoint the header that tells who the client is, before
// any byte of the client. A connection that began before the service wanted
// headers is told as one of nobody's.
func (l *loop) introduce(c *conn) {
	var h proxyheader.Header
	if c.origin != 0 {
		o := l.origins.at(c.origin)
		h = proxyheader.Header{From: o.from, To: o.to}
	}
	p := h.Append(l.scratch[:0])
	var n int
	var err errno
	if c.dir[client].flags&(flagReadable|flagUrgent) == flagReadable {
		// The client's first bytes, or its end, are here, and pump is next.
		n, err = l.kernel.sendMore(c.fd[server], p)
	} else {
		n, err = l.kernel.send(c.fd[server], p)
	}
	if err != 0 && err != unix.EAGAIN {
		l.fail(c, server)
		return
	}
	if n < len(p) {
		// It will be counted as if the client had sent it.
		c.dir[client].buffer = l.buffers.park(p[n:])
		c.dir[client].flags |= flagBlocked
	}
}
