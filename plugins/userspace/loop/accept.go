package loop

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reasons for which an accepted connection is reset at once.
const (
	refusedEmpty = iota
	refusedSource
	refusedLimit
	refusedDescriptors
	refusedGuest
	refusedHeader
	refusals
)

const (
	// acceptMost is how many connections one event of a listener accepts.
	acceptMost = 16
	// refuseMost is how many one event refuses when descriptors have run out.
	refuseMost = 64
	// pause is how many ticks a loop leaves its listeners alone when it can't
	// even refuse.
	pause = 1
)

func outOfDescriptors(err errno) bool { return err == unix.EMFILE || err == unix.ENFILE }

// accept takes connections off a listener's queue.
func (l *loop) accept(n *listener) {
	for range acceptMost {
		if !l.acceptOne(n) {
			return
		}
	}
}

// acceptOne says whether another one may be waiting.
func (l *loop) acceptOne(n *listener) bool {
	fd, err := l.system.accept(n.fds[l.index])
	switch {
	case err == 0:
		l.welcome(fd, n)
		return true
	case err == unix.EAGAIN:
		return false
	case outOfDescriptors(err):
		return l.relieve(n)
	case err == unix.ENOMEM || err == unix.ENOBUFS || err == unix.EBADF || err == unix.EINVAL:
		l.pause()
		return false
	default:
		// The connection has failed while it waited: accept(2) lists a dozen
		// errors that mean just this.
		return true
	}
}

func (k *system) accept(fd int32) (int32, errno) {
	k.length = unix.SizeofSockaddrAny
	n, err := raw(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&k.addresses[0])), uintptr(unsafe.Pointer(&k.length)),
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if err != 0 {
		return -1, err
	}
	return int32(n), 0
}

// welcome checks an accepted connection against its service's rules. From where
// a PROXY protocol header is expected, the client isn't known yet: it waits for
// it, and counts while it does.
func (l *loop) welcome(fd int32, n *listener) {
	s := n.owner.Load()
	if s == nil {
		l.kernel.reset(fd)
		return
	}
	t := s.settings.Load()
	p := parties{addressOf(&l.system.addresses[0]), n.address}
	greets := len(t.trust) > 0 && contains(t.trust, p.from.Addr())
	switch {
	case len(t.allow) > 0 && !greets && !t.allows(p.from.Addr()):
		l.refuse(fd, s, refusedSource)
	case t.max > 0 && s.active.Load() >= t.max || l.shared.active.Load() >= l.shared.limit.Load():
		l.refuse(fd, s, refusedLimit)
	case l.shared.crowded():
		l.refuse(fd, s, refusedDescriptors)
	case greets:
		l.greet(fd, s, p)
	default:
		l.open(fd, s, p)
	}
}

func (l *loop) refuse(fd int32, s *service, why int) {
	s.refused[why].Add(1)
	if why == refusedDescriptors {
		l.shared.pressure()
	}
	l.kernel.reset(fd)
}

// relieve is called when accept finds no descriptor. First the loop gives back
// what it only keeps for later; where that is nothing, it uses the descriptor
// in reserve to take the waiting connections and reset them: left in the queue
// they would hang, and the listener would never be quiet again. It says whether
// accepting can go on.
func (l *loop) relieve(n *listener) bool {
	if l.pipes.trim(l.kernel) > 0 {
		return true
	}
	for range refuseMost {
		if l.reserve < 0 && !l.takeReserve() {
			break
		}
		l.kernel.close(l.reserve)
		l.reserve = -1
		fd, err := l.system.accept(n.fds[l.index])
		if err == unix.EAGAIN {
			l.takeReserve()
			return false
		}
		if outOfDescriptors(err) {
			break // somebody else was faster
		}
		if err == 0 {
			if s := n.owner.Load(); s != nil {
				l.refuse(fd, s, refusedDescriptors)
			} else {
				l.kernel.reset(fd)
			}
		}
	}
	if l.reserve < 0 && !l.takeReserve() {
		l.pause()
	}
	return false
}

func (l *loop) takeReserve() bool {
	fd, err := raw(unix.SYS_EVENTFD2, 0, unix.EFD_CLOEXEC, 0, 0, 0, 0)
	if err != 0 {
		return false
	}
	l.reserve = int32(fd)
	return true
}

// pause makes the listeners silent for a moment, so that a condition that this
// loop can't change doesn't make it spin.
func (l *loop) pause() {
	l.resume = l.now + pause + 1
	if !l.paused {
		l.paused = true
		l.watchListeners(unix.EPOLL_CTL_MOD, 0)
	}
}

func (l *loop) unpause() {
	l.paused = false
	if l.reserve < 0 {
		l.takeReserve()
	}
	l.watchListeners(unix.EPOLL_CTL_MOD, unix.EPOLLIN)
}

func (l *loop) watchListeners(op int, events uint32) {
	for _, n := range l.listeners {
		if n != nil {
			l.watchListener(op, n, events)
		}
	}
}

func (l *loop) watchListener(op int, n *listener, events uint32) errno {
	l.system.event = unix.EpollEvent{Events: events, Fd: n.index, Pad: eventListener}
	return l.system.control(op, n.fds[l.index])
}

// addListener begins to accept.
func (l *loop) addListener(n *listener) errno {
	for int(n.index) >= len(l.listeners) {
		l.listeners = append(l.listeners, nil)
	}
	l.listeners[n.index] = n
	events := uint32(unix.EPOLLIN)
	if l.paused {
		events = 0
	}
	return l.watchListener(unix.EPOLL_CTL_ADD, n, events)
}

// removeListener takes what is still in the listener's queue and closes it.
func (l *loop) removeListener(n *listener) {
	for l.acceptOne(n) {
	}
	l.listeners[n.index] = nil
	l.kernel.close(n.fds[l.index])
}
