package loop

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// open begins to carry an accepted connection of a service.
func (l *loop) open(fd int32, s *service, p parties) {
	t := s.settings.Load()
	if t.guest > 0 && !s.guests.enter(p.from.Addr(), t.guest) {
		l.refuse(fd, s, refusedGuest)
		return
	}
	e := s.pick(p.from.Addr(), l.now, nil)
	if e == nil {
		if t.guest > 0 {
			s.guests.leave(p.from.Addr())
		}
		l.refuse(fd, s, refusedEmpty)
		return
	}
	s.accepted.Add(1)
	i, c := l.enter(fd, s)
	if t.origin {
		l.remember(c, s, p).guest = t.guest > 0
	}
	if err := l.kernel.watch(fd, i, client); err != 0 {
		l.shared.endpoints.release(e)
		l.giveUp(i, c, s, &s.failed)
		return
	}
	c.state = stateConnecting
	l.dial(i, c, e)
}

// enter gives an accepted connection its slot, and counts it.
func (l *loop) enter(fd int32, s *service) (int32, *conn) {
	s.active.Add(1)
	l.shared.active.Add(1)
	i, c := l.slots.take()
	c.fd[client] = fd
	c.last, c.begun = l.now, l.now
	return i, c
}

// dial connects to an endpoint, or to the next where that fails at once.
func (l *loop) dial(i int32, c *conn, e *endpoint) {
	s := e.service
	for e != nil {
		c.endpoint = e.id
		fd, err := l.kernel.socket(e.sockaddr.family)
		if err != 0 {
			l.shared.endpoints.release(e)
			why := &s.failed
			if outOfDescriptors(err) {
				l.shared.pressure()
				why = &s.refused[refusedDescriptors]
			}
			l.giveUp(i, c, s, why)
			return
		}
		c.fd[server] = fd
		err = l.kernel.connect(fd, &e.sockaddr)
		if err == 0 || err == unix.EINPROGRESS {
			if err = l.kernel.watch(fd, i, server); err == 0 {
				l.arm(i, c, l.now+1+s.settings.Load().connect)
				return
			}
		}
		e = l.another(c, e, err)
	}
	l.giveUp(i, c, s, &s.failed)
}

// answered handles the outcome of a connect.
func (l *loop) answered(i int32, c *conn, events uint32) {
	e := l.shared.endpoints.get(c.endpoint)
	if events&(eventError|eventHangUp) != 0 {
		if why := l.kernel.connectError(c.fd[server]); why != 0 {
			l.retry(i, c, e, why)
			return
		}
	}
	if events&eventError != 0 {
		// It was connected and has been reset since: what it sent still counts.
		c.flags |= flagDead << server
	} else if events&eventOut == 0 {
		return
	}
	if e.looping && l.kernel.self(c.fd[server]) {
		l.retry(i, c, e, unix.ECONNREFUSED)
		return
	}
	l.connected(i, c, e)
}

func (l *loop) connected(i int32, c *conn, e *endpoint) {
	s := e.service
	t := s.settings.Load()
	c.state = stateOpen
	c.last = l.now
	e.connections.Add(1)
	if e.troubled.Load() {
		s.attemptWorked(e)
	}
	if t.send {
		l.introduce(c)
	}
	if c.origin != 0 {
		if o := l.origins.at(c.origin); o.guest {
			o.tried = nil
		} else {
			l.forget(c, s)
		}
	}
	// The timer of connecting stays where it is: when it fires, the connection
	// is worth its keepalive. A limit may come earlier.
	l.armLimits(i, c, t)
	l.pump(i, c, client)
}

// armLimits makes the timer of an open connection fire when the first of its
// limits is reached, if it would fire later.
func (l *loop) armLimits(i int32, c *conn, t *settings) {
	due, ok := c.due(t)
	if !ok || c.timer != 0 && int32(c.deadline-due) <= 0 {
		return
	}
	l.disarm(c)
	l.arm(i, c, due)
}

// due is the tick in which the first limit of an open connection is reached;
// false if it has none.
func (c *conn) due(t *settings) (uint32, bool) {
	idle, life := c.last+t.idle, c.begun+t.life
	switch {
	case t.idle == 0 && t.life == 0:
		return 0, false
	case t.idle == 0 || t.life != 0 && int32(life-idle) < 0:
		return life, true
	}
	return idle, true
}

// retry turns to another endpoint, or gives up.
func (l *loop) retry(i int32, c *conn, e *endpoint, why errno) {
	l.disarm(c)
	s := e.service
	if next := l.another(c, e, why); next != nil {
		l.dial(i, c, next)
		return
	}
	l.giveUp(i, c, s, &s.failed)
}

// another gives back an endpoint that didn't answer and chooses one that has
// not been tried yet for this connection; nil if there is none or enough have
// been tried.
func (l *loop) another(c *conn, e *endpoint, why errno) *endpoint {
	s := e.service
	s.attemptFailed(e, l.now, why)
	l.kernel.close(c.fd[server])
	c.fd[server] = -1
	c.endpoint = -1
	// What is known of the failed socket is not true of the next.
	c.dir[server].flags = 0
	c.flags &^= flagDead << server
	if c.origin == 0 {
		l.remember(c, s, parties{})
	}
	o := l.origins.at(c.origin)
	o.tried = append(o.tried, e.id)
	l.shared.endpoints.release(e)
	if len(o.tried) > s.settings.Load().retries {
		return nil
	}
	next := s.pick(o.from.Addr(), l.now, o.tried)
	if next != nil {
		s.retries.Add(1)
	}
	return next
}

// giveUp resets a client for whom no endpoint was found, and counts it. The
// connection has no endpoint any more.
func (l *loop) giveUp(i int32, c *conn, s *service, count *atomic.Uint64) {
	count.Add(1)
	l.kernel.reset(c.fd[client])
	if c.fd[server] >= 0 {
		l.kernel.close(c.fd[server])
	}
	l.disarm(c)
	l.drop(i, c, s)
}

// abandon ends a connection whose client has gone before it was connected.
func (l *loop) abandon(i int32, c *conn) {
	c.flags |= flagDead << client
	l.end(i, c, true)
}

// expired handles a connection's timer.
func (l *loop) expired(i int32, c *conn) {
	switch c.state {
	case stateGreeting:
		l.turnAway(i, c, l.origins.at(c.origin).service, refusedHeader)
	case stateConnecting:
		l.retry(i, c, l.shared.endpoints.get(c.endpoint), unix.ETIMEDOUT)
	case stateLingering:
		l.linger(i, c)
	case stateOpen:
		if c.flags&flagKeptAlive == 0 {
			c.flags |= flagKeptAlive
			l.kernel.keepalive(c.fd[server])
		}
		t := l.shared.endpoints.get(c.endpoint).service.settings.Load()
		due, ok := c.due(t)
		switch {
		case !ok:
		case int32(due-l.now) > 0:
			l.arm(i, c, due)
		default:
			// Bytes may be on their way when a life is over, and a truncated
			// stream must not look like a finished one.
			l.end(i, c, t.life != 0 && int32(c.begun+t.life-l.now) <= 0)
		}
	}
}
