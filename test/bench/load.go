package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// load says what a client shall do.
type load struct {
	// Kind is newconn, request, bulk, idle or udp.
	Kind string
	Addr string
	// Conns open at once.
	Conns int
	// Seconds to go on, for all kinds but idle.
	Seconds float64
}

// outcome is what a client measured.
type outcome struct {
	Count    int64 // connections, requests or bytes
	Errors   int64
	Seconds  float64
	P50, P99 float64 // of a connection or request, in milliseconds
}

// The client is one event loop on raw descriptors. It says "ready" when it has
// warmed up, begins when it is told "go", and prints its outcome when it has
// ended; idle connections stay open until its input ends.
type client struct {
	load
	to      *unix.SockaddrInet4
	ep      int
	events  []unix.EpollEvent
	conns   []clientConn // by descriptor
	in, out []byte
	outcome
	latency []time.Duration
	stop    bool // open and ask no more
	open    int
}

type clientConn struct {
	used, connected bool
	got             int
	begun           time.Time
}

func runClient(spec string) error {
	c := &client{events: make([]unix.EpollEvent, 256), in: make([]byte, 64<<10), out: make([]byte, requestSize)}
	if err := json.Unmarshal([]byte(spec), &c.load); err != nil {
		return err
	}
	fd, err := connect(c.Addr, 0)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", c.Addr, err)
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return err
	}
	unix.Close(fd)
	c.to = peer.(*unix.SockaddrInet4)
	if c.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	stdin := bufio.NewReader(os.Stdin)
	if err := c.warm(); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := stdin.ReadString('\n'); err != nil {
		return fmt.Errorf("waiting for go: %w", err)
	}
	c.outcome, c.latency = outcome{}, c.latency[:0]
	if c.Kind != "idle" {
		if err := c.run(time.Duration(c.load.Seconds * float64(time.Second))); err != nil {
			return err
		}
	}
	c.percentiles()
	if err := json.NewEncoder(os.Stdout).Encode(c.outcome); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, stdin)
	return err
}

// warm opens the connections that are used later, and moves something over
// each.
func (c *client) warm() error {
	switch c.Kind {
	case "newconn":
		return c.run(200 * time.Millisecond)
	case "request", "bulk", "udp":
		return c.run(100 * time.Millisecond)
	case "idle":
		return c.fill()
	}
	return fmt.Errorf("unknown kind of load %q", c.Kind)
}

// fill opens the idle connections, a hundred at a time, each with one request
// and its answer.
func (c *client) fill() error {
	for have := 0; have < c.Conns; {
		n := min(100, c.Conns-have)
		for range n {
			if err := c.dial(); err != nil {
				return err
			}
		}
		have += n
		limit := time.Now().Add(20 * time.Second)
		for c.Count < int64(have) {
			if c.Errors > 0 || time.Now().After(limit) {
				return fmt.Errorf("%d of %d idle connections came about, %d failed", c.Count, have, c.Errors)
			}
			if err := c.wait(100); err != nil {
				return err
			}
		}
	}
	return nil
}

// run keeps c.Conns connections busy for that time. The first run opens them;
// between runs those of request and bulk stay open.
func (c *client) run(d time.Duration) error {
	c.stop = false
	if c.open == 0 {
		for range c.Conns {
			if err := c.dial(); err != nil {
				return err
			}
		}
	} else {
		for fd := range c.conns {
			if c.conns[fd].used {
				c.ask(fd)
			}
		}
	}
	begun := time.Now()
	for time.Since(begun) < d {
		if err := c.wait(50); err != nil {
			return err
		}
		if c.Errors > 100 {
			return errors.New("more than 100 errors: the proxy does not carry the load")
		}
	}
	c.outcome.Seconds = time.Since(begun).Seconds()
	if c.Kind == "bulk" {
		return nil // streams never end
	}
	// What is under way comes to its end, uncounted in time but counted.
	c.stop = true
	limit := time.Now().Add(20 * time.Second)
	for c.busy() && time.Now().Before(limit) {
		if err := c.wait(50); err != nil {
			return err
		}
	}
	if c.Kind == "udp" {
		c.countLost()
	}
	return nil
}

// countLost counts the datagrams that were never answered as errors.
func (c *client) countLost() {
	for i := range c.conns {
		if k := &c.conns[i]; k.used && !k.begun.IsZero() {
			c.Errors++
			k.begun = time.Time{}
		}
	}
}

func (c *client) busy() bool {
	for i := range c.conns {
		if c.conns[i].used && !c.conns[i].begun.IsZero() {
			return true
		}
	}
	return false
}

func (c *client) dial() error {
	begun := time.Now()
	fd, err := c.socket()
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	for fd >= len(c.conns) {
		c.conns = append(c.conns, make([]clientConn, 1024)...)
	}
	c.conns[fd] = clientConn{used: true, begun: begun}
	c.open++
	return unix.EpollCtl(c.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(fd)})
}

func (c *client) socket() (int, error) {
	if c.Kind != "udp" {
		return connectTo(c.to, unix.SOCK_NONBLOCK)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, c.to); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (c *client) wait(ms int) error {
	n, err := unix.EpollWait(c.ep, c.events, ms)
	if err == unix.EINTR {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range c.events[:n] {
		if err := c.event(int(e.Fd)); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) event(fd int) error {
	k := &c.conns[fd]
	if !k.used {
		return nil
	}
	if !k.connected {
		if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || n != 0 {
			return c.failed(fd)
		}
		k.connected = true
		if err := unix.EpollCtl(c.ep, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return err
		}
		if c.Kind == "newconn" {
			return c.send(fd, c.out)
		}
		if !c.stop {
			c.ask(fd)
		}
		return nil
	}
	if c.Kind == "bulk" {
		return c.discard(fd)
	}
	n, err := unix.Read(fd, c.in)
	if err == unix.EAGAIN || err == unix.EINTR {
		return nil
	}
	if n <= 0 || err != nil {
		return c.failed(fd)
	}
	if k.got += n; k.got < responseSize {
		return nil
	}
	c.answered(fd)
	return nil
}

// ask sends the next request of a connection that stays.
func (c *client) ask(fd int) {
	out := c.out
	if c.Kind == "bulk" {
		if !c.conns[fd].begun.IsZero() && c.conns[fd].got > 0 {
			return // is streaming already
		}
		out = binary.BigEndian.AppendUint64(nil, 1<<60)
	}
	c.conns[fd].begun = time.Now()
	if err := c.send(fd, out); err != nil {
		c.Errors++
	}
}

func (c *client) send(fd int, b []byte) error {
	if n, err := unix.Write(fd, b); err != nil || n != len(b) {
		return c.failed(fd)
	}
	return nil
}

func (c *client) answered(fd int) {
	k := &c.conns[fd]
	c.Count++
	c.latency = append(c.latency, time.Since(k.begun))
	k.got, k.begun = 0, time.Time{}
	switch {
	case c.Kind == "newconn":
		c.close(fd)
		if !c.stop && c.dial() != nil {
			c.Errors++
		}
	case (c.Kind == "request" || c.Kind == "udp") && !c.stop:
		c.ask(fd)
	}
}

// discard takes bulk data without copying it: with MSG_TRUNC the kernel drops
// what a TCP socket has received.
func (c *client) discard(fd int) error {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&c.in[0])), 4<<20,
		unix.MSG_TRUNC|unix.MSG_DONTWAIT, 0, 0)
	if e == unix.EAGAIN || e == unix.EINTR {
		return nil
	}
	if e != 0 || n == 0 {
		return c.failed(fd)
	}
	c.conns[fd].got = 1
	c.Count += int64(n)
	return nil
}

// failed counts a connection that broke and opens another in its place.
func (c *client) failed(fd int) error {
	c.Errors++
	c.close(fd)
	if c.stop || c.Kind == "idle" {
		return nil
	}
	return c.dial()
}

func (c *client) close(fd int) {
	unix.Close(fd)
	c.conns[fd] = clientConn{}
	c.open--
}

func (c *client) percentiles() {
	if len(c.latency) == 0 {
		return
	}
	slices.Sort(c.latency)
	at := func(p int) float64 {
		return float64(c.latency[min(len(c.latency)*p/100, len(c.latency)-1)]) / float64(time.Millisecond)
	}
	c.P50, c.P99 = at(50), at(99)
}
