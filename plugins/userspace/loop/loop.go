package loop

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What an event of the loop's epoll belongs to; a connection's side is below.
const (
	eventListener  = 2
	eventWake      = 3
	eventDatagrams = 4 // a UDP listener
	eventSession   = 5 // a UDP session's socket to its endpoint
)

// yieldEvery is how often a busy loop yields, which costs next to nothing, as
// nobody waits for its place. A goroutine that runs for 10 ms without yielding
// is taken for a hog: the scheduler's monitor takes its place away in the midst
// of a system call, and looks around every 20 us for a while, time and again.
const yieldEvery = 5 * time.Millisecond

// eventsMost is how many events one wait takes.
const eventsMost = 256

// shared is what all loops of an engine have in common.
type shared struct {
	endpoints endpointTable
	active    atomic.Int64
	// limit is the configured number of connections, room the number that the
	// descriptors allow.
	limit, room atomic.Int64
	udp         udpShared
	start       time.Time
	// pressed gets a signal when descriptors ran out, idle when the last
	// connection has ended while the engine is closing.
	pressed chan struct{}
	idle    chan struct{}
	closing atomic.Bool
	refused atomic.Uint64
}

// pressure notes a connection that was refused for want of a descriptor.
func (s *shared) pressure() {
	s.refused.Add(1)
	select {
	case s.pressed <- struct{}{}:
	default:
	}
}

// loop is one event loop. All but the queue of messages is touched only by its
// own goroutine.
type loop struct {
	index  int
	shared *shared
	kernel kernel
	system *system // the same, as itself

	now     uint32 // the present tick, read once per wait
	events  []unix.EpollEvent
	scratch []byte
	slots   slots
	again   []int32
	spare   []int32
	wheel   wheel
	buffers buffers
	pipes   pipes
	origins origins
	relay   *relay // of datagrams; nil until the first UDP listener

	listeners []*listener // by listener.index
	reserve   int32       // a descriptor kept for when none is left
	paused    bool
	resume    uint32 // tick

	wake  int32 // eventfd
	woken bool
	quit  bool
	mu    sync.Mutex
	queue []func(*loop)
}

// newLoop makes a loop with its descriptors; run makes it work.
func newLoop(index int, s *shared, keepIdle int32) (*loop, error) {
	k := &system{epoll: -1, keepIdle: keepIdle}
	l := &loop{
		index:   index,
		shared:  s,
		kernel:  k,
		system:  k,
		events:  make([]unix.EpollEvent, eventsMost),
		scratch: make([]byte, scratchSize),
		reserve: -1,
		wake:    -1,
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making an epoll instance: %w", err)
	}
	k.epoll = int32(epoll)
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		l.release()
		return nil, fmt.Errorf("making an eventfd: %w", err)
	}
	l.wake = int32(wake)
	k.event = unix.EpollEvent{Events: unix.EPOLLIN, Pad: eventWake}
	if err := k.control(unix.EPOLL_CTL_ADD, l.wake); err != 0 {
		l.release()
		return nil, fmt.Errorf("watching an eventfd: %w", err)
	}
	if !l.takeReserve() {
		l.release()
		return nil, fmt.Errorf("keeping a descriptor in reserve: %w", unix.EMFILE)
	}
	return l, nil
}

// release closes the loop's own descriptors.
func (l *loop) release() {
	l.pipes.trim(l.kernel)
	for _, fd := range []int32{l.system.epoll, l.wake, l.reserve} {
		if fd >= 0 {
			unix.Close(int(fd))
		}
	}
}

// post queues a message, which the loop handles between two batches of events.
func (l *loop) post(f func(*loop)) {
	l.mu.Lock()
	l.queue = append(l.queue, f)
	first := len(l.queue) == 1
	l.mu.Unlock()
	if first {
		one := [8]byte{1}
		if _, err := unix.Write(int(l.wake), one[:]); err != nil && err != unix.EAGAIN {
			panic("writing an eventfd: " + err.Error()) // only ever a bug of ours
		}
	}
}

// run is the loop. It ends after a message has set quit.
func (l *loop) run() {
	var yielded time.Duration
	for !l.quit {
		n := l.wait()
		now := time.Since(l.shared.start)
		l.now = uint32(now / tick)
		if now-yielded >= yieldEvery {
			yielded = now
			runtime.Gosched()
		}
		if l.wheel.size == 0 {
			l.wheel.now = l.now
		}
		for i := range n {
			l.dispatch(&l.events[i])
		}
		if l.relay != nil {
			l.relay.flush()
		}
		l.goOn()
		l.advance()
		if l.paused && int32(l.resume-l.now) <= 0 {
			l.unpause()
		}
		if l.woken {
			l.handleMessages()
		}
		l.slots.recycle()
		if l.relay != nil {
			l.relay.sessions.recycle()
		}
	}
}

func (s *shared) ticks() uint32 { return uint32(time.Since(s.start) / tick) }

// wait sleeps until events come or a timer is due.
func (l *loop) wait() int {
	if len(l.again) > 0 {
		n, err := raw(unix.SYS_EPOLL_PWAIT, uintptr(l.system.epoll), uintptr(unsafe.Pointer(&l.events[0])), eventsMost, 0, 0, 0)
		if err != 0 {
			return 0
		}
		return int(n)
	}
	n, err := unix.EpollWait(int(l.system.epoll), l.events, l.timeout())
	if err != nil { // EINTR; anything else would be a bug of ours
		return 0
	}
	return n
}

// timeout says how many milliseconds the loop may sleep, -1 is for ever.
func (l *loop) timeout() int {
	ticks := l.wheel.next()
	due := l.wheel.now + uint32(ticks)
	if l.paused && (ticks < 0 || int32(l.resume-due) < 0) {
		due, ticks = l.resume, 0
	}
	if ticks < 0 {
		return -1
	}
	away := time.Duration(due)*tick - time.Since(l.shared.start)
	if away <= 0 {
		return 0
	}
	return int((away + time.Millisecond - 1) / time.Millisecond)
}

func (l *loop) dispatch(e *unix.EpollEvent) {
	switch e.Pad {
	case client, server:
		l.ready(e.Fd, int(e.Pad), e.Events)
	case eventListener:
		if n := l.listeners[e.Fd]; n != nil {
			l.accept(n)
		}
	case eventWake:
		l.woken = true
	case eventDatagrams:
		l.relay.receive(e.Fd)
	case eventSession:
		l.relay.answer(e.Fd, e.Events)
	}
}

// goOn gives a further turn to the connections that had work left.
func (l *loop) goOn() {
	if len(l.again) == 0 {
		return
	}
	list := l.again
	l.again = l.spare[:0]
	for _, i := range list {
		c := l.slots.at(i)
		if c.flags&flagQueued == 0 || c.state != stateOpen {
			continue // ended since
		}
		c.flags &^= flagQueued
		l.pump(i, c, client)
	}
	l.spare = list
}

func (l *loop) handleMessages() {
	l.woken = false
	var number [8]byte
	_, _ = unix.Read(int(l.wake), number[:]) // EAGAIN: a wake-up that is no more
	l.mu.Lock()
	queue := l.queue
	l.queue = nil
	l.mu.Unlock()
	for _, f := range queue {
		f(l)
	}
}
