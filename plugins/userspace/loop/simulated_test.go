package loop

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// simulated is a kernel with sockets whose peers the test moves. It behaves as
// Linux does where the loop relies on it: edges, short reads, urgent marks,
// resets that leave received bytes readable, errors that are reported once. It
// complains of every use of a descriptor that isn't open.
type simulated struct {
	next    int32
	sockets map[int32]*simSocket
	pipes   map[int32]*simPipe // both ends
	ready   []*simSocket       // in the order of their events
	faults  []string

	noPipes bool // pipe fails
	// connects are the sockets whose connect is under way.
	connects []*simSocket
	refuse   int // so many connects fail at once
	short    int // a splice moves at most so many bytes; 0 is no limit
	failing  int // so many sends fail, for want of memory, without an event
}

type simPipe struct {
	in, out int32
	data    []byte
	size    int
}

// simSocket is the proxy's socket and the peer at its other end.
type simSocket struct {
	fd      int32
	slot    int32
	side    int
	watched bool
	queued  bool // in the ready list

	connecting, connected bool
	stream                byte   // says what the peer writes
	greeting              []byte // what it writes before that
	// preface is what it has to get before the other side's stream.
	preface []byte

	// From the peer: what it has written in all, and what of it waits here.
	written int
	waiting []byte
	urged   bool
	mark    int // where in waiting the urgent byte is, -1 is nowhere
	ended   bool
	reset   bool
	err     errno

	// To the peer: bytes it has, and bytes that are still queued here.
	room     int // of the send queue
	grown    int // what room is once the peer has read, 0 is the same
	unsent   []byte
	got      []byte
	checked  int // of got
	noSpace  bool
	shut     bool // the proxy's end is behind unsent
	sawEnd   bool
	sawReset bool
	closed   bool
	failed   bool // a send has failed
	more     bool // bytes are held back for more to come
}

func newSimulated() *simulated {
	return &simulated{next: 100, sockets: map[int32]*simSocket{}, pipes: map[int32]*simPipe{}}
}

func (k *simulated) fault(format string, a ...any) {
	k.faults = append(k.faults, fmt.Sprintf(format, a...))
}

// content is byte n of a stream.
func content(stream byte, n int) byte { return byte(n) ^ byte(n>>8)*31 ^ byte(n>>16)*17 ^ stream*101 }

func (k *simulated) newSocket(room int) *simSocket {
	k.next++
	s := &simSocket{fd: k.next, mark: -1, room: room}
	k.sockets[s.fd] = s
	return s
}

func (k *simulated) open(fd int32) *simSocket {
	s := k.sockets[fd]
	if s == nil || s.closed {
		k.fault("descriptor %d is used and not open", fd)
		return &simSocket{fd: fd, mark: -1, closed: true}
	}
	return s
}

// mask is the state of a socket as epoll reports it.
func (s *simSocket) mask() uint32 {
	if s.connecting {
		return 0
	}
	var m uint32
	if len(s.waiting) > 0 || s.ended || s.reset {
		m |= eventIn
	}
	if s.mark >= 0 {
		m |= eventUrgent
	}
	if s.ended || s.reset {
		m |= eventEnd
	}
	if s.reset || s.ended && s.shut {
		m |= eventHangUp
	}
	if s.err != 0 {
		m |= eventError
	}
	if len(s.unsent) < s.room || s.reset {
		m |= eventOut
	}
	return m
}

// edge queues an event.
func (k *simulated) edge(s *simSocket) {
	if s.watched && !s.queued && !s.closed && s.mask() != 0 {
		s.queued = true
		k.ready = append(k.ready, s)
	}
}

type simEvent struct {
	slot int32
	side int
	mask uint32
}

// wait takes the events, as they stand now.
func (k *simulated) wait() []simEvent {
	var events []simEvent
	for _, s := range k.ready {
		s.queued = false
		if m := s.mask(); !s.closed && m != 0 {
			events = append(events, simEvent{s.slot, s.side, m})
		}
	}
	k.ready = nil
	return events
}

// What the peer does.

func (k *simulated) write(s *simSocket, n int) {
	if s.ended || s.reset || s.closed || s.connecting {
		return
	}
	greeting := min(n, len(s.greeting))
	s.waiting = append(s.waiting, s.greeting[:greeting]...)
	s.greeting = s.greeting[greeting:]
	for range n - greeting {
		s.waiting = append(s.waiting, content(s.stream, s.written))
		s.written++
	}
	k.edge(s)
}

// urge writes a byte that is not part of the stream.
func (k *simulated) urge(s *simSocket) {
	if s.ended || s.reset || s.closed || s.connecting || s.mark >= 0 {
		return
	}
	s.mark, s.urged = len(s.waiting), true
	s.waiting = append(s.waiting, '!')
	k.edge(s)
}

func (k *simulated) end(s *simSocket) {
	if s.ended || s.reset || s.closed || s.connecting {
		return
	}
	s.ended = true
	k.edge(s)
}

func (k *simulated) abort(s *simSocket) {
	if s.reset || s.closed || s.connecting {
		return
	}
	s.reset = true
	s.err = unix.ECONNRESET
	if s.ended {
		s.err = unix.EPIPE
	}
	s.unsent = nil
	k.edge(s)
}

// read lets the peer take up to n bytes of the send queue.
func (k *simulated) read(s *simSocket, n int) {
	n = min(n, len(s.unsent))
	s.got = append(s.got, s.unsent[:n]...)
	s.unsent = s.unsent[n:]
	if n > 0 && s.grown != 0 {
		s.room, s.grown = s.grown, 0
	}
	if len(s.unsent) == 0 && s.shut {
		s.sawEnd = true
	}
	if n > 0 && s.noSpace && len(s.unsent) < s.room {
		s.noSpace = false
		k.edge(s)
	}
}

func (k *simulated) answer(s *simSocket, ok bool) {
	s.connecting = false
	if ok {
		s.connected = true
	} else {
		s.reset, s.err = true, unix.ECONNREFUSED
	}
	k.edge(s)
}

// What the loop asks for.

func (k *simulated) socket(int) (int32, errno) {
	return k.newSocket(0).fd, 0
}

func (k *simulated) connect(fd int32, _ *sockaddr) errno {
	s := k.open(fd)
	if k.refuse > 0 {
		k.refuse--
		return unix.ECONNREFUSED
	}
	s.connecting = true
	k.connects = append(k.connects, s)
	return unix.EINPROGRESS
}

func (k *simulated) connectError(fd int32) errno {
	s := k.open(fd)
	e := s.err
	s.err = 0
	if e == unix.ECONNRESET || e == unix.EPIPE {
		return 0
	}
	return e
}

func (k *simulated) self(int32) bool { return false }

func (k *simulated) watch(fd, slot int32, side int) errno {
	s := k.open(fd)
	s.watched, s.slot, s.side = true, slot, side
	k.edge(s)
	return 0
}

func (k *simulated) recv(fd int32, p []byte) (int, errno) {
	s := k.open(fd)
	if s.mark == 0 {
		s.waiting, s.mark = s.waiting[1:], -1
	}
	n := min(len(p), len(s.waiting))
	if s.mark > 0 {
		n = min(n, s.mark)
		s.mark -= n
	}
	copy(p, s.waiting[:n])
	s.waiting = s.waiting[n:]
	if n > 0 {
		return n, 0
	}
	return 0, s.nothing()
}

func (k *simulated) peek(fd int32, p []byte) (int, errno) {
	s := k.open(fd)
	waiting := s.waiting
	if s.mark >= 0 {
		waiting = waiting[:s.mark]
	}
	if n := copy(p, waiting); n > 0 {
		return n, 0
	}
	if s.mark == 0 {
		return copy(p, s.waiting[1:]), 0
	}
	return 0, s.nothing()
}

// nothing is the answer of a read that finds no byte; 0 means the end.
func (s *simSocket) nothing() errno {
	switch {
	case s.err != 0:
		e := s.err
		s.err = 0
		return e
	case s.ended || s.reset:
		return 0
	}
	return unix.EAGAIN
}

func (k *simulated) send(fd int32, p []byte) (int, errno) {
	s := k.open(fd)
	s.more = false
	if s.connecting || s.shut {
		k.fault("bytes sent to descriptor %d, connecting %v, shut %v", fd, s.connecting, s.shut)
	}
	if s.reset {
		if e := s.err; e != 0 {
			s.err = 0
			return 0, e
		}
		return 0, unix.EPIPE
	}
	if k.failing > 0 {
		k.failing--
		s.failed = true
		return 0, unix.ENOMEM
	}
	n := min(len(p), s.room-len(s.unsent))
	s.unsent = append(s.unsent, p[:n]...)
	if n < len(p) {
		s.noSpace = true
	}
	if n == 0 {
		return 0, unix.EAGAIN
	}
	return n, 0
}

func (k *simulated) sendMore(fd int32, p []byte) (int, errno) {
	n, err := k.send(fd, p)
	k.open(fd).more = n == len(p)
	return n, err
}

func (k *simulated) pipe(large bool) (pipe, errno) {
	if k.noPipes {
		return pipe{}, unix.EMFILE
	}
	p := &simPipe{in: k.next + 1, out: k.next + 2, size: 64 << 10}
	if large {
		p.size = 256 << 10
	}
	k.next += 2
	k.pipes[p.in], k.pipes[p.out] = p, p
	return pipe{in: p.in, out: p.out, large: large}, 0
}

func (k *simulated) splice(from, to int32, n int) (int, errno) {
	if k.short > 0 {
		n = min(n, k.short)
	}
	if p := k.pipes[to]; p != nil && p.in == to {
		return k.fill(p, k.open(from), n)
	}
	p := k.pipes[from]
	if p == nil || p.out != from {
		k.fault("splice from %d to %d: no end of a pipe for that", from, to)
		return 0, unix.EINVAL
	}
	m, err := k.send(to, p.data[:min(n, len(p.data))])
	p.data = p.data[m:]
	return m, err
}

// fill moves bytes into a pipe; it doesn't pass an urgent mark.
func (k *simulated) fill(p *simPipe, s *simSocket, n int) (int, errno) {
	n = min(n, p.size-len(p.data), len(s.waiting))
	if len(p.data) > 0 {
		k.fault("bytes go into a pipe that has some")
	}
	if s.mark >= 0 {
		n = min(n, s.mark)
	}
	if n == 0 {
		return 0, s.nothing()
	}
	if s.mark > 0 {
		s.mark -= n
	}
	p.data = append(p.data, s.waiting[:n]...)
	s.waiting = s.waiting[n:]
	return n, 0
}

func (k *simulated) shutdown(fd int32) {
	s := k.open(fd)
	if s.shut {
		k.fault("descriptor %d is shut twice", fd)
	}
	s.shut, s.more = true, false
	s.sawEnd = len(s.unsent) == 0 && !s.reset
	k.edge(s) // the state changed: a hang-up, if the peer has ended too
}

func (k *simulated) close(fd int32) {
	if p := k.pipes[fd]; p != nil {
		delete(k.pipes, fd)
		return
	}
	s := k.open(fd)
	s.closed = true
	switch {
	case s.reset:
	case len(s.waiting) > 0: // Linux resets where bytes were not read
		s.sawReset = true
		s.unsent = nil
	default:
		s.got = append(s.got, s.unsent...)
		s.unsent = nil
		s.sawEnd = true
	}
}

func (k *simulated) reset(fd int32) {
	s := k.open(fd)
	s.closed, s.sawReset = true, true
	s.unsent = nil
}

func (k *simulated) unsent(fd int32) bool { return len(k.open(fd).unsent) > 0 }

func (k *simulated) keepalive(fd int32) { k.open(fd) }
