package loop

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// receiveBuffer is how many bytes may wait at a UDP listener's socket, if the
// process may ask for so much; else net.core.rmem_max counts.
const receiveBuffer = 4 << 20

// listenUDP opens a socket per loop. The kernel gives each client's datagrams to
// always the same of them, as long as their number doesn't change: so all are
// opened, and closed, together.
func listenUDP(address netip.AddrPort, loops int, free bool) ([]int32, error) {
	to, err := newSockaddr(address)
	if err != nil {
		return nil, &ListenError{address, err}
	}
	var fds []int32
	for i := range loops {
		fd, err := bindUDP(&to, address.Addr().IsUnspecified(), i == 0, free)
		if err != nil {
			for _, fd := range fds {
				unix.Close(int(fd))
			}
			return nil, &ListenError{address, err}
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// bindUDP makes a bound socket; see bind. SO_REUSEADDR would let any other
// socket with this option take the address away.
func bindUDP(to *sockaddr, wildcard, first, free bool) (int32, error) {
	s, err := unix.Socket(to.family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, err
	}
	var options []socketOption
	if to.family == unix.AF_INET6 {
		options = append(options, socketOption{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1})
		if free {
			options = append(options, socketOption{unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1})
		}
		if wildcard {
			options = append(options, socketOption{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1})
		}
	} else if wildcard {
		options = append(options, socketOption{unix.IPPROTO_IP, unix.IP_PKTINFO, 1})
	}
	// What may be refused, and then is done without.
	for _, o := range []socketOption{
		{unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer},
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer},
		{unix.SOL_UDP, unix.UDP_GRO, 1},
	} {
		_ = unix.SetsockoptInt(s, o.level, o.name, int(o.value))
	}
	return bindShared(s, to, options, first)
}

// addDatagrams begins to receive.
func (l *loop) addDatagrams(n *listener) errno {
	if l.relay == nil {
		l.relay = newRelay(l)
	}
	l.relay.place(n)
	return l.relay.attend(unix.EPOLL_CTL_ADD, n)
}

func (r *relay) place(n *listener) {
	for int(n.index) >= len(r.listeners) {
		r.listeners = append(r.listeners, nil)
	}
	r.listeners[n.index] = n
}

func (r *relay) attend(op int, n *listener) errno {
	k := r.loop.system
	k.event = unix.EpollEvent{Events: unix.EPOLLIN, Fd: n.index, Pad: eventDatagrams}
	return k.control(op, n.fds[r.loop.index])
}

// closeListener closes this loop's socket.
func (r *relay) closeListener(n *listener) {
	if r.downFrom == n {
		// The number of its socket is soon another's.
		r.flush()
		r.downFrom = nil
	}
	r.listeners[n.index] = nil
	r.loop.system.close(n.fds[r.loop.index])
}
