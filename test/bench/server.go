package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The server is one event loop on raw descriptors, so that it costs far less
// than any proxy. On one port it answers every 128 bytes with 256; on the other
// it reads a length of 8 bytes and sends that many from a memory file, without
// copying. A datagram on the first is answered with one of 256 bytes.

const bulkFile = 1 << 20

type serverConn struct {
	bulk bool
	met  bool  // something has come
	got  int   // bytes of an unfinished request
	send int64 // bytes still to be sent
	head [8]byte
}

type server struct {
	ep      int
	memory  int
	listen  map[int]bool // descriptor -> bulk
	udp     map[int]bool
	conns   []*serverConn
	in, out []byte
}

func runServer() error {
	s := &server{listen: map[int]bool{}, udp: map[int]bool{}, in: make([]byte, 64<<10), out: make([]byte, 64<<10)}
	var err error
	if s.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if s.memory, err = unix.MemfdCreate("bulk", unix.MFD_CLOEXEC); err != nil {
		return err
	}
	if err := unix.Ftruncate(s.memory, bulkFile); err != nil {
		return err
	}
	for port, bulk := range map[int]bool{serverRequest: false, serverBulk: true} {
		fd, err := listenOn(port)
		if err != nil {
			return fmt.Errorf("listening on port %d: %w", port, err)
		}
		s.listen[fd] = bulk
		if err := s.register(fd, unix.EPOLLIN); err != nil {
			return err
		}
	}
	// One for each address: so answers leave from the one that was asked.
	for _, a := range serverAddrs() {
		fd, err := listenUDPOn(a, serverRequest)
		if err != nil {
			return fmt.Errorf("listening on %s for UDP: %w", a, err)
		}
		s.udp[fd] = true
		if err := s.register(fd, unix.EPOLLIN); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := unix.EpollWait(s.ep, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range events[:n] {
			s.event(int(e.Fd), e.Events)
		}
	}
}

func listenOn(port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	for _, o := range [][3]int{{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}, {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}} {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return -1, err
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
		return -1, err
	}
	return fd, unix.Listen(fd, 4096)
}

func listenUDPOn(addr string, port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: netip.MustParseAddr(addr).As4()})
}

func (s *server) register(fd int, events uint32) error {
	return unix.EpollCtl(s.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

func (s *server) event(fd int, events uint32) {
	if bulk, ok := s.listen[fd]; ok {
		s.accept(fd, bulk)
		return
	}
	if s.udp[fd] {
		s.datagrams(fd)
		return
	}
	c := s.conns[fd]
	if c == nil {
		return
	}
	var alive bool
	if c.bulk {
		alive = s.bulk(fd, c, events)
	} else {
		alive = s.request(fd, c)
	}
	if !alive {
		unix.Close(fd)
		s.conns[fd] = nil
	}
}

func (s *server) accept(listener int, bulk bool) {
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		for fd >= len(s.conns) {
			s.conns = append(s.conns, make([]*serverConn, 1024)...)
		}
		s.conns[fd] = &serverConn{bulk: bulk}
		if s.register(fd, unix.EPOLLIN) != nil {
			unix.Close(fd)
			s.conns[fd] = nil
		}
	}
}

// request answers what has come; false means that the connection is over. A
// client waits for its answer, so an answer always fits into the socket.
func (s *server) request(fd int, c *serverConn) bool {
	n, err := unix.Read(fd, s.in)
	if err == unix.EAGAIN || err == unix.EINTR {
		return true
	}
	if n <= 0 || err != nil {
		return false
	}
	if !c.met {
		c.met = true
		n -= greeting(s.in[:n])
	}
	c.got += n
	answer := c.got / requestSize * responseSize
	c.got %= requestSize
	if answer == 0 {
		return true
	}
	n, err = unix.Write(fd, s.out[:answer])
	return err == nil && n == answer
}

// datagrams answers those that have come. An answer for which there is no room
// is lost; the client notices.
func (s *server) datagrams(fd int) {
	for range 64 {
		_, from, err := unix.Recvfrom(fd, s.in, unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		_ = unix.Sendto(fd, s.out[:responseSize], unix.MSG_DONTWAIT, from)
	}
}

// greeting is the length of a PROXY protocol header of version 2 in front of a
// connection's first bytes. A proxy sends it in one piece.
func greeting(p []byte) int {
	const signature = "\r\n\r\n\x00\r\nQUIT\n"
	if len(p) < 16 || string(p[:len(signature)]) != signature {
		return 0
	}
	return 16 + int(binary.BigEndian.Uint16(p[14:]))
}

func (s *server) bulk(fd int, c *serverConn, events uint32) bool {
	if events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		return false
	}
	if events&unix.EPOLLIN != 0 {
		n, err := unix.Read(fd, c.head[c.got:])
		if n <= 0 || err != nil {
			return err == unix.EAGAIN || err == unix.EINTR
		}
		if c.got += n; c.got < len(c.head) {
			return true
		}
		c.got, c.send = 0, int64(binary.BigEndian.Uint64(c.head[:]))
		s.modify(fd, unix.EPOLLIN|unix.EPOLLOUT)
	}
	for range 4 {
		if c.send == 0 {
			break
		}
		var offset int64
		n, err := unix.Sendfile(fd, s.memory, &offset, int(min(c.send, bulkFile)))
		if err == unix.EAGAIN || err == unix.EINTR {
			return true
		}
		if err != nil {
			return false
		}
		if c.send -= int64(n); c.send == 0 {
			s.modify(fd, unix.EPOLLIN)
		}
	}
	return true
}

func (s *server) modify(fd int, events uint32) {
	// It fails only for a descriptor that isn't registered.
	_ = unix.EpollCtl(s.ep, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}
