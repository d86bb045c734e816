package loop

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// backlog is how many connections may wait to be accepted; the kernel cuts it
// to net.core.somaxconn.
const backlog = 4096

// listener is one address on which a service listens, for TCP or for UDP: a
// socket for each loop. One of UDP has no sockets while its service is empty.
type listener struct {
	address netip.AddrPort
	index   int32
	fds     []int32
	owner   atomic.Pointer[service]
	silent  bool // has the filter that ignores every packet
}

func (n *listener) v6() bool { return n.address.Addr().Is6() }

// wildcard says that it listens on all addresses of the host.
func (n *listener) wildcard() bool { return n.address.Addr().IsUnspecified() }

// ListenError is an address that can't be listened on. Err is the kernel's
// reason: unix.EADDRINUSE, unix.EADDRNOTAVAIL, unix.EACCES and so on.
type ListenError struct {
	Address netip.AddrPort
	Err     error
}

func (e *ListenError) Error() string { return fmt.Sprintf("listening on %s: %v", e.Address, e.Err) }

// Unwrap gives the kernel's reason.
func (e *ListenError) Unwrap() error { return e.Err }

// listen opens a socket per loop. None of them is watched yet; connections wait
// in their queues.
func listen(address netip.AddrPort, loops int, o bindOptions) (*listener, error) {
	n := &listener{address: address}
	to, err := newSockaddr(address)
	if err != nil {
		return nil, &ListenError{address, err}
	}
	for i := range loops {
		fd, err := bind(&to, i == 0, o)
		if err != nil {
			n.close()
			return nil, &ListenError{address, err}
		}
		n.fds = append(n.fds, fd)
	}
	// Listening begins once all are bound, so that a failure refuses nobody who
	// has just been accepted.
	for _, fd := range n.fds {
		if err := unix.Listen(int(fd), backlog); err != nil {
			n.close()
			return nil, &ListenError{address, err}
		}
	}
	return n, nil
}

func (n *listener) close() {
	for _, fd := range n.fds {
		unix.Close(int(fd))
	}
}

type bindOptions struct {
	keepIdle int32
	free     bool // IPv6 addresses that no interface has
}

// bind makes a bound socket. The first of an address is bound without
// SO_REUSEPORT, which would share the address with a stranger of the same user
// without a word, and gets the option afterwards, for its siblings.
func bind(to *sockaddr, first bool, o bindOptions) (int32, error) {
	// The protocol is said: an MPTCP socket would be slower.
	s, err := unix.Socket(to.family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, err
	}
	options := []socketOption{
		{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1},
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}, // inherited, as the keepalive is
	}
	if to.family == unix.AF_INET6 {
		options = append(options, socketOption{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1})
		if o.free {
			options = append(options, socketOption{unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1})
		}
	}
	if o.keepIdle != 0 {
		k := keepalive(o.keepIdle)
		options = append(options, k[:]...)
	}
	return bindShared(s, to, options, first)
}

// bindShared sets a socket's options and binds it, as bind says. It closes the
// socket if that fails.
func bindShared(s int, to *sockaddr, options []socketOption, first bool) (int32, error) {
	share := socketOption{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1}
	if !first {
		options = append(options, share)
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(s, o.level, o.name, int(o.value)); err != nil {
			unix.Close(s)
			return -1, fmt.Errorf("setting a socket option: %w", err)
		}
	}
	if err := bindTo(s, to); err != 0 {
		unix.Close(s)
		return -1, err
	}
	if first {
		if err := unix.SetsockoptInt(s, share.level, share.name, int(share.value)); err != nil {
			unix.Close(s)
			return -1, fmt.Errorf("setting a socket option: %w", err)
		}
	}
	return int32(s), nil
}

func bindTo(fd int, to *sockaddr) errno {
	address := unsafe.Pointer(&to.in4)
	if to.family == unix.AF_INET6 {
		address = unsafe.Pointer(&to.in6)
	}
	_, err := raw(unix.SYS_BIND, uintptr(fd), uintptr(address), uintptr(to.length), 0, 0, 0)
	return err
}

// setSilent attaches, or takes away, a filter that drops every packet for the
// listener: to a client it is as if nobody were there at all.
func (n *listener) setSilent(on bool) error {
	if n.silent == on {
		return nil
	}
	for _, fd := range n.fds {
		var err error
		if on {
			nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
			err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing})
		} else {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
		}
		if err != nil {
			return fmt.Errorf("filtering packets for %s: %w", n.address, err)
		}
	}
	n.silent = on
	return nil
}
