package loop

import "golang.org/x/sys/unix"

const (
	// scratchSize is the most that one read takes, and so the most that one
	// direction parks.
	scratchSize = 64 << 10
	// After bigReads reads of bigRead bytes or more in a row a direction
	// changes to splice; after as many smaller splices it changes back.
	bigRead  = 16 << 10
	bigReads = 4
	// spliceMost is the most that one splice asks for: more than a pipe holds.
	spliceMost = 1 << 20
	// rounds is how many reads one direction gets before others have their turn.
	rounds = 16
	// lingerMost is how many ticks a reset waits for what is queued before it.
	lingerMost = 600
)

// ready handles an event of one side of a connection.
func (l *loop) ready(i int32, side int, events uint32) {
	c := l.slots.at(i)
	if c.state == stateFree {
		return // freed earlier in this batch
	}
	from, to := &c.dir[side], &c.dir[1-side]
	if events&(eventIn|eventEnd|eventHangUp|eventError|eventUrgent) != 0 {
		from.flags |= flagReadable
	}
	if events&(eventEnd|eventHangUp|eventError) != 0 {
		from.flags |= flagEnding
	}
	if events&eventUrgent != 0 {
		from.flags |= flagUrgent
	}
	if events&(eventOut|eventHangUp|eventError) != 0 {
		to.flags &^= flagBlocked
	}
	switch c.state {
	case stateOpen:
		if events&eventError != 0 {
			// What it has sent can still be read, so nothing else changes; but
			// a side that has ended before isn't read again.
			c.flags |= flagDead << side
		}
		l.pump(i, c, side)
	case stateGreeting:
		l.greeted(i, c)
	case stateConnecting:
		if side == server {
			l.answered(i, c, events)
		} else if events&eventError != 0 {
			l.abandon(i, c)
		}
	case stateLingering:
		// An event of the failed side may still be in this batch.
		if events&eventError != 0 && c.fd[side] >= 0 {
			l.cut(i, c)
		}
	}
}

// pump moves what can be moved in both directions, first from the given side,
// then ends what has come to its end.
func (l *loop) pump(i int32, c *conn, first int) {
	var more bool
	for {
		dead := c.flags & (flagDead | flagDeadOther)
		more = l.move(c, first)
		more = l.move(c, 1-first) || more
		// A side found dead while bytes were sent to it has its last bytes
		// read now.
		if c.flags&(flagDead|flagDeadOther) == dead {
			break
		}
	}
	if l.settle(i, c) {
		return
	}
	if more && c.flags&flagQueued == 0 {
		c.flags |= flagQueued
		l.again = append(l.again, i)
	}
}

// move carries one direction until its source is empty, its receiver full or
// its turn over; only then it says that there is more to do.
func (l *loop) move(c *conn, d int) bool {
	r := &c.dir[d]
	for turn := 0; ; turn++ {
		if r.flags&(flagOver|flagBlocked) != 0 {
			return false
		}
		if r.buffer != 0 && !l.flushBuffer(c, d) || r.pipe != 0 && !l.flushPipe(c, d) {
			return false
		}
		if r.flags&flagEnded != 0 {
			r.flags |= flagOver
			return false
		}
		if r.flags&flagReadable == 0 {
			return false
		}
		if turn == rounds {
			return true
		}
		if r.big < bigReads || !l.splice(c, d) {
			l.copy(c, d)
		}
	}
}

// copy receives once and sends what it got.
func (l *loop) copy(c *conn, d int) {
	r := &c.dir[d]
	n, err := l.kernel.recv(c.fd[d], l.scratch)
	switch {
	case err == unix.EAGAIN && !c.dead(d):
		r.flags &^= flagReadable
		return
	case err != 0 && err != unix.EAGAIN:
		c.flags |= flagDead << d
		fallthrough
	case n == 0:
		r.flags |= flagEnded
		return
	}
	c.last = l.now
	if n < len(l.scratch) && r.flags&(flagEnding|flagUrgent) == 0 {
		r.flags &^= flagReadable
	}
	switch {
	case n < bigRead || r.flags&flagUrgent != 0:
		r.big = 0
	case r.big < bigReads:
		r.big++
	}
	m, err := l.kernel.send(c.fd[1-d], l.scratch[:n])
	if err != 0 && err != unix.EAGAIN {
		l.fail(c, 1-d)
		return
	}
	r.bytes += uint64(m)
	if m < n {
		r.buffer = l.buffers.park(l.scratch[m:n])
		r.flags |= flagBlocked
	}
}

// flushBuffer sends what is parked; false if the receiver doesn't take all.
func (l *loop) flushBuffer(c *conn, d int) bool {
	r := &c.dir[d]
	n, err := l.kernel.send(c.fd[1-d], l.buffers.rest(r.buffer))
	if err != 0 && err != unix.EAGAIN {
		l.fail(c, 1-d)
		return false
	}
	if n > 0 {
		c.last = l.now
		r.bytes += uint64(n)
		if l.buffers.took(r.buffer, n) {
			r.buffer = 0
			return true
		}
	}
	r.flags |= flagBlocked
	return false
}

// splice moves a block without copying it; false if it can't now and the bytes
// must be copied.
func (l *loop) splice(c *conn, d int) bool {
	r := &c.dir[d]
	if r.flags&flagUrgent != 0 {
		r.big = 0
		return false
	}
	p := l.pipes.take(l.kernel)
	if p == 0 {
		return false
	}
	n, err := l.kernel.splice(c.fd[d], l.pipes.places[p-1].in, spliceMost)
	if n == 0 {
		l.pipes.give(l.kernel, p)
		return l.spliced0(c, d, err)
	}
	c.last = l.now
	l.pipes.places[p-1].held = n
	r.pipe = p
	if n >= bigRead {
		r.small = 0
	} else if r.small++; r.small >= bigReads {
		r.big, r.small = 0, 0
	}
	return true
}

// spliced0 handles a splice that gave nothing.
func (l *loop) spliced0(c *conn, d int, err errno) bool {
	r := &c.dir[d]
	switch {
	case err == unix.EAGAIN && r.flags&flagEnding == 0:
		r.flags &^= flagReadable
		return true
	case err == 0 || err == unix.EAGAIN:
		// The end, or an urgent mark that hides bytes, or a side that failed
		// without an end: recv knows, and copy decides.
	case err == unix.EINVAL:
		r.flags |= flagUrgent // a socket that doesn't splice
	default:
		c.flags |= flagDead << d
		r.flags |= flagEnding | flagUrgent
	}
	r.big = 0
	return false
}

// flushPipe sends what is in the pipe; false if the receiver doesn't take all.
func (l *loop) flushPipe(c *conn, d int) bool {
	r := &c.dir[d]
	p := &l.pipes.places[r.pipe-1]
	for p.held > 0 {
		n, err := l.kernel.splice(p.out, c.fd[1-d], p.held)
		if err == unix.EAGAIN {
			r.flags |= flagBlocked
			return false
		}
		if n == 0 {
			l.fail(c, 1-d)
			return false
		}
		c.last = l.now
		r.bytes += uint64(n)
		p.held -= n
	}
	l.pipes.give(l.kernel, r.pipe)
	r.pipe = 0
	return true
}

// fail notes that a side takes no more bytes: those on the way to it are lost,
// those that it had sent before are still carried.
func (l *loop) fail(c *conn, side int) {
	c.flags |= flagDead << side
	l.discard(c, 1-side)
	c.dir[1-side].flags |= flagEnded | flagOver
	c.dir[side].flags |= flagReadable | flagEnding
}

// discard throws away what a direction holds.
func (l *loop) discard(c *conn, d int) {
	r := &c.dir[d]
	if r.buffer != 0 {
		l.buffers.drop(r.buffer)
		r.buffer = 0
	}
	if r.pipe != 0 {
		l.pipes.give(l.kernel, r.pipe)
		r.pipe = 0
	}
}

// settle passes on the ends that have been reached, and says whether the
// connection is no longer open.
func (l *loop) settle(i int32, c *conn) bool {
	for d := range 2 {
		if c.dead(d) && c.dir[d].flags&flagOver != 0 {
			l.passReset(i, c, d)
			return true
		}
	}
	if c.dir[client].flags&c.dir[server].flags&flagOver != 0 {
		// Closing says the end too: no shutdown needed.
		l.end(i, c, false)
		return true
	}
	for d := range 2 {
		r := &c.dir[d]
		if r.flags&(flagOver|flagShut) == flagOver {
			r.flags |= flagShut
			if !c.dead(1 - d) {
				l.kernel.shutdown(c.fd[1-d])
			}
		}
	}
	return false
}

// passReset tells the other side that this one has failed. A reset throws away
// what the kernel still has to deliver, so it may have to wait.
func (l *loop) passReset(i int32, c *conn, side int) {
	other := 1 - side
	if c.dead(other) || !l.kernel.unsent(c.fd[other]) {
		l.end(i, c, true)
		return
	}
	l.discard(c, other)
	l.kernel.close(c.fd[side])
	c.fd[side] = -1
	c.state = stateLingering
	c.last = l.now
	l.disarm(c)
	l.arm(i, c, l.now+1)
}

// linger looks, once a tick, whether the reset can be sent.
func (l *loop) linger(i int32, c *conn) {
	for side := range 2 {
		if fd := c.fd[side]; fd >= 0 && l.kernel.unsent(fd) && l.now-c.last < lingerMost {
			l.arm(i, c, l.now+1)
			return
		}
	}
	l.end(i, c, true)
}

// cut resets both sides at once.
func (l *loop) cut(i int32, c *conn) { l.end(i, c, true) }

// end closes both sides and frees the connection.
func (l *loop) end(i int32, c *conn, reset bool) {
	for side := range 2 {
		fd := c.fd[side]
		switch {
		case fd < 0:
		case reset && !c.dead(side):
			l.kernel.reset(fd)
		default:
			l.kernel.close(fd)
		}
	}
	l.discard(c, client)
	l.discard(c, server)
	l.disarm(c)
	if c.endpoint < 0 {
		l.drop(i, c, l.origins.at(c.origin).service)
		return
	}
	e := l.shared.endpoints.get(c.endpoint)
	l.count(c, e)
	s := e.service
	l.shared.endpoints.release(e)
	l.drop(i, c, s)
}

// count adds a connection's bytes to its endpoint's and its service's.
func (l *loop) count(c *conn, e *endpoint) {
	for d := range 2 {
		if n := c.dir[d].bytes; n != 0 {
			e.bytes[d].Add(n)
			e.service.bytes[d].Add(n)
			c.dir[d].bytes = 0
		}
	}
}

func (l *loop) drop(i int32, c *conn, s *service) {
	l.forget(c, s)
	l.slots.drop(i, c)
	s.active.Add(-1)
	if l.shared.active.Add(-1) == 0 && l.shared.closing.Load() {
		select {
		case l.shared.idle <- struct{}{}:
		default:
		}
	}
}
