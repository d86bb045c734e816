package loop

import (
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// open begins to carry an accepted connection of a service.
func (l *loop) open(fd int32, s *service) {
	e := s.pick(nil)
	if e == nil {
		l.refuse(fd, s, refusedEmpty)
		return
	}
	s.accepted.Add(1)
	s.active.Add(1)
	l.shared.active.Add(1)
	i, c := l.slots.take()
	c.fd[client] = fd
	c.state = stateConnecting
	c.last = l.now
	if err := l.kernel.watch(fd, i, client); err != 0 {
		l.shared.endpoints.release(e)
		l.giveUp(i, c, s, &s.failed)
		return
	}
	l.dial(i, c, e)
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
		e = l.another(i, c, e)
	}
	l.giveUp(i, c, s, &s.failed)
}

// answered handles the outcome of a connect.
func (l *loop) answered(i int32, c *conn, events uint32) {
	e := l.shared.endpoints.get(c.endpoint)
	if events&(eventError|eventHangUp) != 0 && l.kernel.connectError(c.fd[server]) {
		l.retry(i, c, e)
		return
	}
	if events&eventError != 0 {
		// It was connected and has been reset since: what it sent still counts.
		c.flags |= flagDead << server
	} else if events&eventOut == 0 {
		return
	}
	if e.looping && l.kernel.self(c.fd[server]) {
		l.retry(i, c, e)
		return
	}
	l.connected(i, c, e)
}

func (l *loop) connected(i int32, c *conn, e *endpoint) {
	c.state = stateOpen
	c.last = l.now
	e.connections.Add(1)
	if len(l.tried) > 0 {
		delete(l.tried, i)
	}
	// The timer of connecting stays where it is: when it fires, the connection
	// is worth its keepalive. An idle timeout may be shorter.
	if idle := e.service.settings.Load().idle; idle != 0 && int32(c.deadline-l.now-idle) > 0 {
		l.disarm(c)
		l.arm(i, c, l.now+idle)
	}
	l.pump(i, c, client)
}

// retry turns to another endpoint, or gives up.
func (l *loop) retry(i int32, c *conn, e *endpoint) {
	l.disarm(c)
	s := e.service
	if next := l.another(i, c, e); next != nil {
		l.dial(i, c, next)
		return
	}
	l.giveUp(i, c, s, &s.failed)
}

// another gives back an endpoint that didn't answer and chooses one that has
// not been tried yet for this connection; nil if there is none or enough have
// been tried.
func (l *loop) another(i int32, c *conn, e *endpoint) *endpoint {
	s := e.service
	e.failures.Add(1)
	l.kernel.close(c.fd[server])
	c.fd[server] = -1
	c.endpoint = -1
	// What is known of the failed socket is not true of the next.
	c.dir[server].flags = 0
	c.flags &^= flagDead << server
	tried := append(slices.Clip(l.tried[i]), e.id)
	l.shared.endpoints.release(e)
	if len(tried) > s.settings.Load().retries {
		return nil
	}
	next := s.pick(tried)
	if next == nil {
		return nil
	}
	s.retries.Add(1)
	l.tried[i] = tried
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
	delete(l.tried, i)
	l.drop(i, c, s)
}

// abandon ends a connection whose client has gone before it was connected.
func (l *loop) abandon(i int32, c *conn) {
	delete(l.tried, i)
	c.flags |= flagDead << client
	l.end(i, c, true)
}

// expired handles a connection's timer.
func (l *loop) expired(i int32, c *conn) {
	switch c.state {
	case stateConnecting:
		l.retry(i, c, l.shared.endpoints.get(c.endpoint))
	case stateLingering:
		l.linger(i, c)
	case stateOpen:
		if c.flags&flagKeptAlive == 0 {
			c.flags |= flagKeptAlive
			l.kernel.keepalive(c.fd[server])
		}
		idle := l.shared.endpoints.get(c.endpoint).service.settings.Load().idle
		switch {
		case idle == 0:
		case int32(c.last+idle-l.now) > 0:
			l.arm(i, c, c.last+idle)
		default:
			l.end(i, c, false)
		}
	}
}
