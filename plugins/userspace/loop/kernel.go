package loop

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// errno is the kernel's answer; 0 is success.
type errno = unix.Errno

// kernel is what connections ask of the operating system. All calls return at
// once. Byte counts are 0 where errno isn't.
type kernel interface {
	// socket makes a non-blocking TCP socket.
	socket(family int) (int32, errno)
	connect(fd int32, to *sockaddr) errno
	// connectError says why a socket that reports an error was never connected;
	// 0 if it was. It takes the error off the socket.
	connectError(fd int32) errno
	// self says whether a socket is connected to itself.
	self(fd int32) bool
	// watch registers a socket for everything, edge-triggered.
	watch(fd, slot int32, side int) errno
	recv(fd int32, p []byte) (int, errno)
	// peek is recv that leaves the bytes where they are.
	peek(fd int32, p []byte) (int, errno)
	send(fd int32, p []byte) (int, errno)
	// sendMore is send of what another send or the end follows at once, so that
	// all goes in one packet.
	sendMore(fd int32, p []byte) (int, errno)
	pipe(large bool) (pipe, errno)
	splice(from, to int32, n int) (int, errno)
	// shutdown ends the direction away from here.
	shutdown(fd int32)
	close(fd int32)
	// reset closes a socket so that its peer gets a reset and what was queued
	// is thrown away.
	reset(fd int32)
	// unsent says whether bytes wait to be received by the peer's kernel.
	unsent(fd int32) bool
	keepalive(fd int32)
}

// Events of a socket. Urgent marks are watched because they end a read early.
const (
	eventIn     = unix.EPOLLIN
	eventOut    = unix.EPOLLOUT
	eventUrgent = unix.EPOLLPRI
	eventEnd    = unix.EPOLLRDHUP
	eventHangUp = unix.EPOLLHUP
	eventError  = unix.EPOLLERR
	watched     = eventIn | eventOut | eventUrgent | eventEnd | unix.EPOLLET
)

// system is the real kernel, as one loop uses it. It is always on the heap, and
// so is what its calls point to.
type system struct {
	epoll     int32
	keepIdle  int32 // seconds, 0 is off
	largePipe int   // bytes
	event     unix.EpollEvent
	number    int32
	linger    unix.Linger
	length    uint32
	addresses [2]unix.RawSockaddrAny
	ends      [2]int32
}

// raw repeats a call that a signal interrupted (the Go scheduler sends them).
// It is a loop around RawSyscall: none of these calls can block.
func raw(trap, a, b, c, d, e, f uintptr) (uintptr, errno) {
	for {
		r, _, err := unix.RawSyscall6(trap, a, b, c, d, e, f)
		if err != unix.EINTR {
			return r, err
		}
	}
}

func (k *system) socket(family int) (int32, errno) {
	fd, err := raw(unix.SYS_SOCKET, uintptr(family), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP, 0, 0, 0)
	if err != 0 {
		return -1, err
	}
	k.number = 1
	raw(unix.SYS_SETSOCKOPT, fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, uintptr(unsafe.Pointer(&k.number)), 4, 0)
	return int32(fd), 0
}

func (k *system) connect(fd int32, to *sockaddr) errno {
	address := unsafe.Pointer(&to.in4)
	if to.family == unix.AF_INET6 {
		address = unsafe.Pointer(&to.in6)
	}
	// Not repeated: an interrupted connect goes on by itself.
	_, _, err := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(address), uintptr(to.length))
	if err == unix.EINTR {
		return unix.EINPROGRESS
	}
	return err
}

// connectError: a reset of an established connection is ECONNRESET, or EPIPE
// once the peer has ended its direction; one that answers a SYN is ECONNREFUSED.
func (k *system) connectError(fd int32) errno {
	k.number, k.length = 0, 4
	_, err := raw(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_ERROR, uintptr(unsafe.Pointer(&k.number)), uintptr(unsafe.Pointer(&k.length)), 0)
	if err != 0 {
		return err
	}
	if e := errno(k.number); e != unix.ECONNRESET && e != unix.EPIPE {
		return e
	}
	return 0
}

func (k *system) self(fd int32) bool {
	for i, trap := range [2]uintptr{unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME} {
		k.length = unix.SizeofSockaddrAny
		_, err := raw(trap, uintptr(fd), uintptr(unsafe.Pointer(&k.addresses[i])), uintptr(unsafe.Pointer(&k.length)), 0, 0, 0)
		if err != 0 {
			return false
		}
	}
	return addressOf(&k.addresses[0]) == addressOf(&k.addresses[1])
}

func (k *system) watch(fd, slot int32, side int) errno {
	k.event = unix.EpollEvent{Events: watched, Fd: slot, Pad: int32(side)}
	return k.control(unix.EPOLL_CTL_ADD, fd)
}

func (k *system) control(op int, fd int32) errno {
	_, err := raw(unix.SYS_EPOLL_CTL, uintptr(k.epoll), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&k.event)), 0, 0)
	return err
}

func (k *system) recv(fd int32, p []byte) (int, errno) { return receive(fd, p, unix.MSG_DONTWAIT) }

func (k *system) peek(fd int32, p []byte) (int, errno) {
	return receive(fd, p, unix.MSG_DONTWAIT|unix.MSG_PEEK)
}

func receive(fd int32, p []byte, flags uintptr) (int, errno) {
	n, err := raw(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), flags, 0, 0)
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}

func (k *system) send(fd int32, p []byte) (int, errno) {
	return transmit(fd, p, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

func (k *system) sendMore(fd int32, p []byte) (int, errno) {
	return transmit(fd, p, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL|unix.MSG_MORE)
}

func transmit(fd int32, p []byte, flags uintptr) (int, errno) {
	n, err := raw(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), flags, 0, 0)
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}

func (k *system) pipe(large bool) (pipe, errno) {
	_, err := raw(unix.SYS_PIPE2, uintptr(unsafe.Pointer(&k.ends)), unix.O_NONBLOCK|unix.O_CLOEXEC, 0, 0, 0, 0)
	if err != 0 {
		return pipe{}, err
	}
	if large {
		// Refused where the user has too many pages in pipes; small will do.
		raw(unix.SYS_FCNTL, uintptr(k.ends[1]), unix.F_SETPIPE_SZ, uintptr(k.largePipe), 0, 0, 0)
	}
	return pipe{out: k.ends[0], in: k.ends[1], large: large}, 0
}

func (k *system) splice(from, to int32, n int) (int, errno) {
	m, err := raw(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	if err != 0 {
		return 0, err
	}
	return int(m), 0
}

func (k *system) shutdown(fd int32) {
	raw(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0, 0, 0, 0)
}

// close is not repeated after EINTR: the descriptor is gone in any case.
func (k *system) close(fd int32) {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
}

func (k *system) reset(fd int32) {
	k.linger = unix.Linger{Onoff: 1}
	raw(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER, uintptr(unsafe.Pointer(&k.linger)), unsafe.Sizeof(k.linger), 0)
	k.close(fd)
}

func (k *system) unsent(fd int32) bool {
	k.number = 0
	_, err := raw(unix.SYS_IOCTL, uintptr(fd), unix.SIOCOUTQ, uintptr(unsafe.Pointer(&k.number)), 0, 0, 0)
	return err == 0 && k.number > 0
}

func (k *system) keepalive(fd int32) {
	for _, o := range keepalive(k.keepIdle) {
		k.number = o.value
		raw(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(o.level), uintptr(o.name), uintptr(unsafe.Pointer(&k.number)), 4, 0)
	}
}

type socketOption struct {
	level, name int
	value       int32
}

// keepalive are the options that make a dead peer known: first asked after so
// many seconds of silence, given up after three more questions.
func keepalive(seconds int32) [4]socketOption {
	on := int32(1)
	if seconds == 0 {
		on, seconds = 0, 30
	}
	return [4]socketOption{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, on},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, max(seconds/3, 1)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
	}
}
