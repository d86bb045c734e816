package loop

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMaxLifetime: an old connection is reset however busy it is, also one that
// came before there was a limit; together with an idle timeout the earlier
// counts.
func TestMaxLifetime(t *testing.T) {
	e := newEngine(t, Options{})
	front := freeAddress(t, "127.8.8.1")
	s := Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(newPeer(t, "127.8.8.2", echo)), ConnectTimeout: time.Second}
	set(t, e, s)
	early := dial(t, front)
	say(t, early, "before")
	s.MaxLifetime, s.IdleTimeout = 400*time.Millisecond, time.Hour
	set(t, e, s)
	began := time.Now()
	late := dial(t, front)
	for _, c := range []net.Conn{early, late} {
		var err error
		for err == nil {
			err = exchange(c, "busy")
			time.Sleep(10 * time.Millisecond)
		}
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
		if c == late && time.Since(began) < 400*time.Millisecond {
			t.Errorf("ended after %v", time.Since(began))
		}
	}
	s.MaxLifetime, s.IdleTimeout = time.Hour, 300*time.Millisecond
	set(t, e, s)
	c := dial(t, front)
	say(t, c, "once")
	if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
		t.Errorf("an idle connection ended with %q, %v", b, err)
	}
	eventually(t, "none is left", func() bool { return statistics(t, e, "web").Active == 0 })
}

// TestIdleTimeoutShortened: established connections follow a shorter timeout at
// once, not when the longer one would have ended.
func TestIdleTimeoutShortened(t *testing.T) {
	e := newEngine(t, Options{})
	front := freeAddress(t, "127.8.8.3")
	s := Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(newPeer(t, "127.8.8.4", echo)), IdleTimeout: time.Hour, ConnectTimeout: time.Hour}
	set(t, e, s)
	c := dial(t, front)
	say(t, c, "before")
	s.IdleTimeout = 100 * time.Millisecond
	set(t, e, s)
	if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
		t.Errorf("ended with %q, %v", b, err)
	}
}

// TestMaxPerClient: each address has its own count, over all loops, and what
// ends, fails or is refused is counted no more.
func TestMaxPerClient(t *testing.T) {
	e := newEngine(t, Options{})
	front := freeAddress(t, "127.8.8.5")
	s := Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(newPeer(t, "127.8.8.6", echo)), MaxPerClient: 3}
	set(t, e, s)
	try := func(ip string) (*net.TCPConn, error) {
		d := net.Dialer{LocalAddr: tcpAddr(ip + ":0"), Timeout: patience}
		c, err := d.Dial("tcp", front.String())
		if err != nil {
			return nil, err
		}
		c.SetDeadline(time.Now().Add(patience))
		t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn), nil
	}
	from := func(ip string) *net.TCPConn {
		t.Helper()
		c, err := try(ip)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// refused may come so early that it is connect that fails.
	refused := func(ip string) error {
		c, err := try(ip)
		if errors.Is(err, syscall.ECONNRESET) {
			return nil
		}
		if err != nil {
			return err
		}
		return reset(c)
	}
	const one, other = "127.8.8.7", "127.8.8.8"
	var open []*net.TCPConn
	for range 3 {
		c := from(one)
		say(t, c, "one")
		open = append(open, c)
	}
	for range 2 {
		if err := refused(one); err != nil {
			t.Error("a fourth:", err)
		}
	}
	say(t, from(other), "other")
	if v := statistics(t, e, "web"); v.Refused != (Refused{Client: 2}) || v.Active != 4 {
		t.Errorf("counted %+v", v)
	}
	open[0].Close()
	eventually(t, "one has ended", func() bool { return statistics(t, e, "web").Active == 3 })
	say(t, from(one), "again")

	// Without endpoints, and with one that refuses, nobody is counted.
	good := s.Endpoints
	for _, list := range [][]Endpoint{nil, {{Address: freeAddress(t, "127.8.8.9"), Weight: 1}}} {
		s.Endpoints = list
		set(t, e, s)
		for range 5 {
			if err := refused(other); err != nil {
				t.Error(err)
			}
		}
	}
	s.Endpoints = good
	set(t, e, s)
	say(t, from(other), "still a second")
	// The limit goes: those that were counted end rightly, and others come.
	s.MaxPerClient = 0
	set(t, e, s)
	for range 5 {
		say(t, from(one), "no limit")
	}
	s.MaxPerClient = 1
	set(t, e, s)
	if err := refused(one); err != nil {
		t.Error("the connections of before the limit count:", err)
	}
}

// TestKeepAlive: both sides are asked whether they are still there.
func TestKeepAlive(t *testing.T) {
	e := newEngine(t, Options{KeepAlive: 7 * time.Second, Loops: 1})
	front := freeAddress(t, "127.8.8.10")
	set(t, e, Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(newPeer(t, "127.8.8.11", echo)), ConnectTimeout: 100 * time.Millisecond})
	c := dial(t, front)
	say(t, c, "hello")
	idle := func() (list [2]int) {
		e.onLoopsInTest(func(l *loop) {
			l.slots.each(func(_ int32, c *conn) {
				for side := range 2 {
					if on, _ := unix.GetsockoptInt(int(c.fd[side]), unix.SOL_SOCKET, unix.SO_KEEPALIVE); on == 1 {
						list[side], _ = unix.GetsockoptInt(int(c.fd[side]), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
					}
				}
			})
		})
		return list
	}
	eventually(t, "both are asked", func() bool { return idle() == [2]int{7, 7} })
}
