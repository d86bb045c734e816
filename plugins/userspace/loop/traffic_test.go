package loop

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// one is a service with one listener on an address of its own.
func one(t testing.TB, e *Engine, ip string, endpoints []Endpoint, more ...func(*Service)) netip.AddrPort {
	t.Helper()
	a := freeAddress(t, ip)
	s := Service{ID: "web", Listen: []netip.AddrPort{a}, Endpoints: endpoints, Retries: 1}
	for _, f := range more {
		f(&s)
	}
	set(t, e, s)
	return a
}

func TestRoundTrip(t *testing.T) {
	for _, c := range []struct{ name, front, back string }{
		{"IPv4", "127.8.0.1", "127.8.0.2"},
		{"IPv6", "::1", "::1"},
		{"IPv4 to IPv6", "127.8.0.1", "::1"},
		{"IPv6 to IPv4", "::1", "127.8.0.2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t, Options{})
			a := one(t, e, c.front, at(newPeer(t, c.back, echo)))
			k := dial(t, a)
			for range 100 {
				say(t, k, "hello")
			}
			if s := statistics(t, e, "web"); s.Active != 1 || s.Connections != 1 || s.BytesIn != 500 || s.BytesOut != 500 {
				t.Errorf("counters: %+v", s)
			}
		})
	}
}

// TestBulk carries more than fits anywhere, in both directions at once, so that
// splice, parking and budgets all have their turn.
func TestBulk(t *testing.T) {
	e := newEngine(t, Options{})
	a := one(t, e, "127.8.0.3", at(newPeer(t, "127.8.0.4", echo)))
	const size = 64 << 20
	var wait sync.WaitGroup
	for n := range 3 {
		c := dial(t, a)
		wait.Go(func() {
			sent, got := sha256.New(), sha256.New()
			var writer sync.WaitGroup
			writer.Go(func() {
				io.CopyBuffer(io.MultiWriter(c, sent), io.LimitReader(rand.NewChaCha8([32]byte{byte(n)}), size), make([]byte, 100_000))
				c.CloseWrite()
			})
			k, err := io.Copy(got, c)
			writer.Wait()
			if err != nil || k != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
				t.Errorf("%d bytes of %d came back, equal: %v, %v", k, size, bytes.Equal(sent.Sum(nil), got.Sum(nil)), err)
			}
		})
	}
	wait.Wait()
	eventually(t, "all connections end", func() bool { return statistics(t, e, "web").Active == 0 })
	s := statistics(t, e, "web")
	if s.BytesIn != 3*size || s.BytesOut != 3*size {
		t.Errorf("counted %d in, %d out, want %d", s.BytesIn, s.BytesOut, 3*size)
	}
	for _, l := range e.loops {
		e.onLoopsInTest(func(m *loop) {
			if m != l {
				return
			}
			if n := l.pipes.open - len(l.pipes.spare); n != 0 || l.buffers.inUse() != 0 {
				t.Errorf("loop %d still has %d pipes and %d buffers in use", l.index, n, l.buffers.inUse())
			}
		})
	}
}

func (e *Engine) onLoopsInTest(f func(*loop)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.onLoops(f)
}

func TestHalfClose(t *testing.T) {
	t.Run("client first", func(t *testing.T) {
		e := newEngine(t, Options{})
		p := newPeer(t, "127.8.0.6", func(c *net.TCPConn) {
			b, _ := io.ReadAll(c) // ends only when the client's end arrives
			time.Sleep(20 * time.Millisecond)
			c.Write(bytes.ToUpper(b))
		})
		c := dial(t, one(t, e, "127.8.0.5", at(p)))
		io.WriteString(c, "quiet")
		c.CloseWrite()
		b, err := io.ReadAll(c)
		if string(b) != "QUIET" || err != nil {
			t.Errorf("got %q, %v", b, err)
		}
	})
	t.Run("server first", func(t *testing.T) {
		e := newEngine(t, Options{})
		got := make(chan string, 1)
		p := newPeer(t, "127.8.0.6", func(c *net.TCPConn) {
			io.WriteString(c, "banner")
			c.CloseWrite()
			b, _ := io.ReadAll(c)
			got <- string(b)
		})
		c := dial(t, one(t, e, "127.8.0.5", at(p)))
		b, err := io.ReadAll(c)
		if string(b) != "banner" || err != nil {
			t.Fatalf("got %q, %v", b, err)
		}
		io.WriteString(c, "late, ")
		time.Sleep(20 * time.Millisecond)
		io.WriteString(c, "but heard")
		c.Close()
		if s := <-got; s != "late, but heard" {
			t.Errorf("the server got %q", s)
		}
	})
	t.Run("before the endpoint is connected", func(t *testing.T) {
		e := newEngine(t, Options{})
		c := dial(t, one(t, e, "127.8.0.5", at(newPeer(t, "127.8.0.6", echo))))
		io.WriteString(c, "x")
		c.CloseWrite()
		b, err := io.ReadAll(c)
		if string(b) != "x" || err != nil {
			t.Errorf("got %q, %v", b, err)
		}
	})
}

// TestResetWithDataQueued: what was sent before a reset arrives, and then the
// reset, not an ordinary end.
func TestResetWithDataQueued(t *testing.T) {
	for _, size := range []int{10, 100_000, 3_000_000} {
		e := newEngine(t, Options{})
		p := newPeer(t, "127.8.0.8", func(c *net.TCPConn) {
			c.Read(make([]byte, 1)) // the client has seen that it is connected
			c.Write(make([]byte, size))
			waitSent(c)
			c.SetLinger(0)
		})
		c := dial(t, one(t, e, "127.8.0.7", at(p)))
		c.Write([]byte("!"))
		time.Sleep(50 * time.Millisecond) // let the reset overtake the reader
		n, err := io.Copy(io.Discard, c)
		if n != int64(size) || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%d bytes of %d, then %v", n, size, err)
		}
		eventually(t, "the connection ends", func() bool { return statistics(t, e, "web").Active == 0 })
	}
}

// waitSent waits until the peer's kernel has everything: a reset throws away
// what is still queued at its sender.
func waitSent(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		left := 0
		raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if left == 0 {
			return
		}
	}
}

func TestClientReset(t *testing.T) {
	e := newEngine(t, Options{})
	ended := make(chan error, 1)
	p := newPeer(t, "127.8.0.8", func(c *net.TCPConn) {
		b := make([]byte, 100)
		n, err := io.ReadFull(c, b)
		if n != 5 {
			t.Errorf("the server got %d bytes", n)
		}
		ended <- err
	})
	c := dial(t, one(t, e, "127.8.0.7", at(p)))
	io.WriteString(c, "hello")
	waitSent(c)
	eventually(t, "the bytes pass", func() bool { return statistics(t, e, "web").BytesIn == 5 })
	c.SetLinger(0)
	c.Close()
	if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server saw %v", err)
	}
}

// TestBackpressure: a client that never reads stops its server, holds no more
// than it may, and nobody else; then it reads everything after all.
func TestBackpressure(t *testing.T) {
	e := newEngine(t, Options{Loops: 1})
	const size = 64 << 20
	var sent atomic.Int64
	p := newPeer(t, "127.8.0.10", func(c *net.TCPConn) {
		b := make([]byte, 64<<10)
		for sent.Load() < size {
			n, err := c.Write(b)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	other := newPeer(t, "127.8.0.11", echo)
	a := one(t, e, "127.8.0.9", at(p))
	b := freeAddress(t, "127.8.0.9")
	set(t, e, Service{ID: "other", Listen: []netip.AddrPort{b}, Endpoints: at(other)})

	c := dial(t, a)
	var before int64 = -1
	eventually(t, "the server is stopped", func() bool {
		now := sent.Load()
		still := now > 0 && now == before
		before = now
		time.Sleep(100 * time.Millisecond)
		return still
	})
	if before >= size {
		t.Fatal("nothing held the server back")
	}
	k := dial(t, b)
	for range 100 {
		say(t, k, "still here")
	}
	n, err := io.Copy(io.Discard, c)
	if n < size || err != nil {
		t.Errorf("%d bytes of %d came, %v", n, size, err)
	}
}

// TestUrgent: an urgent mark makes a read short although more is there.
func TestUrgent(t *testing.T) {
	for _, before := range []int{0, 100, 1 << 20} {
		e := newEngine(t, Options{})
		got := make(chan int, 1)
		p := newPeer(t, "127.8.0.13", func(c *net.TCPConn) {
			n, _ := io.Copy(io.Discard, c)
			got <- int(n)
		})
		c := dial(t, one(t, e, "127.8.0.12", at(p)))
		c.Write(make([]byte, before))
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			raw.Write(func(fd uintptr) bool {
				return unix.Send(int(fd), []byte("!"), unix.MSG_OOB) != unix.EAGAIN
			})
			c.Write(make([]byte, 50_000))
		}
		c.CloseWrite()
		select {
		// An urgent byte is carried if a newer one overtakes it.
		case n := <-got:
			if n < before+150_000 || n > before+150_003 {
				t.Errorf("%d bytes came of %d and three urgent ones", n, before+150_000)
			}
		case <-time.After(patience):
			t.Fatalf("stuck at the urgent mark after %d bytes", before)
		}
	}
}

func TestRetryRefused(t *testing.T) {
	e := newEngine(t, Options{})
	p := newPeer(t, "127.8.0.15", named("here"))
	dead := Endpoint{Address: freeAddress(t, "127.8.0.16"), Weight: 1}
	a := one(t, e, "127.8.0.14", append(at(p), dead))
	for range 40 {
		if got, err := ask(a); got != "here" || err != nil {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	s := statistics(t, e, "web")
	if s.Retries != 20 || s.Failed != 0 || s.Endpoints[1].Failures != 20 || s.Endpoints[1].Connections != 0 {
		t.Errorf("counters: %+v", s)
	}
}

func TestRetryLimit(t *testing.T) {
	e := newEngine(t, Options{})
	var list []Endpoint
	for range 3 {
		list = append(list, Endpoint{Address: freeAddress(t, "127.8.0.16"), Weight: 1})
	}
	for retries, failures := range []uint64{1, 2, 3, 3} {
		a := one(t, e, "127.8.0.14", list, func(s *Service) { s.ID = string(rune('a' + retries)); s.Retries = retries })
		if _, err := ask(a); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%d retries: %v", retries, err)
		}
		s := statistics(t, e, string(rune('a'+retries)))
		var n uint64
		for _, p := range s.Endpoints {
			n += p.Failures
		}
		if n != failures || s.Failed != 1 || s.Active != 0 {
			t.Errorf("%d retries: %d failures, want %d; %+v", retries, n, failures, s)
		}
	}
}

// fullListener listens and answers nobody: its queue is full.
func fullListener(t *testing.T, ip string) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(ip).As4()}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	a := netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(name.(*unix.SockaddrInet4).Port))
	for range 8 {
		c, err := net.DialTimeout("tcp", a.String(), 200*time.Millisecond)
		if err != nil {
			return a
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the queue never was full")
	return a
}

func TestRetryTimeout(t *testing.T) {
	e := newEngine(t, Options{})
	p := newPeer(t, "127.8.0.18", named("here"))
	full := Endpoint{Address: fullListener(t, "127.8.0.19"), Weight: 1}
	a := one(t, e, "127.8.0.17", append([]Endpoint{full}, at(p)...), func(s *Service) { s.ConnectTimeout = 300 * time.Millisecond })
	for range 4 {
		if got, err := ask(a); got != "here" || err != nil {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	s := statistics(t, e, "web")
	if s.Retries != 2 || s.Endpoints[0].Failures != 2 {
		t.Errorf("counters: %+v", s)
	}
	// And with nobody else, the client learns it.
	set(t, e, Service{ID: "web", Listen: s.Listen, Endpoints: []Endpoint{full}, Retries: 3, ConnectTimeout: 200 * time.Millisecond})
	if _, err := ask(a); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v", err)
	}
}

// TestClientGoneWhileConnecting: the attempt ends with its client.
func TestClientGoneWhileConnecting(t *testing.T) {
	e := newEngine(t, Options{})
	full := Endpoint{Address: fullListener(t, "127.8.0.19"), Weight: 1}
	a := one(t, e, "127.8.0.17", []Endpoint{full}, func(s *Service) { s.ConnectTimeout = time.Hour })
	c := dial(t, a)
	eventually(t, "connecting begins", func() bool { return statistics(t, e, "web").Active == 1 })
	c.SetLinger(0)
	c.Close()
	eventually(t, "connecting ends", func() bool { return statistics(t, e, "web").Active == 0 })
	if n := statistics(t, e, "web").Endpoints[0].Active; n != 0 {
		t.Errorf("the endpoint still counts %d", n)
	}
}

func TestIdleTimeout(t *testing.T) {
	e := newEngine(t, Options{})
	p := newPeer(t, "127.8.0.21", echo)
	a := one(t, e, "127.8.0.20", at(p), func(s *Service) { s.ConnectTimeout = 100 * time.Millisecond })
	old := dial(t, a)
	say(t, old, "before there was a time-out")
	eventually(t, "no timer is left", func() bool {
		timers := make([]int, len(e.loops))
		e.onLoopsInTest(func(l *loop) { timers[l.index] = l.wheel.size })
		return slices.Max(timers) == 0
	})
	set(t, e, Service{ID: "web", Listen: []netip.AddrPort{a}, Endpoints: at(p), IdleTimeout: time.Second})
	c := dial(t, a)
	for range 8 { // longer than the time-out altogether
		say(t, c, "busy")
		time.Sleep(200 * time.Millisecond)
	}
	for _, k := range []net.Conn{c, old} {
		if n, err := k.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("read %d, %v", n, err)
		}
	}
}

// TestPlainPrefixes: a prefix of mapped addresses holds the clients that it names.
func TestPlainPrefixes(t *testing.T) {
	for text, client := range map[string]string{
		"10.1.2.3/8":           "10.9.9.9",
		"::ffff:127.1.0.0/112": "127.1.2.3",
		"::ffff:127.1.0.1/128": "127.1.0.1",
		"2001:db8::1/32":       "2001:db8:1::",
	} {
		list := plainPrefixes([]netip.Prefix{netip.MustParsePrefix(text)})
		if !contains(list, netip.MustParseAddr(client)) || contains(list, netip.MustParseAddr("192.0.2.1")) {
			t.Errorf("%s became %v", text, list)
		}
	}
}

func TestAllow(t *testing.T) {
	e := newEngine(t, Options{})
	p := newPeer(t, "127.8.0.23", echo)
	a := one(t, e, "127.8.0.22", at(p), func(s *Service) {
		s.Allow = []netip.Prefix{netip.MustParsePrefix("127.8.1.0/24"), netip.MustParsePrefix("fd00::/8")}
	})
	from := func(ip string) error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: patience}
		c, err := d.Dial("tcp", a.String())
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		return exchange(c, "hi")
	}
	if err := from("127.8.1.77"); err != nil {
		t.Error(err)
	}
	if err := from("127.8.2.1"); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a stranger got %v", err)
	}
	if s := statistics(t, e, "web"); s.Refused.Source != 1 || s.Connections != 1 {
		t.Errorf("counters: %+v", s)
	}
}

func TestNoEndpoint(t *testing.T) {
	e := newEngine(t, Options{})
	p := newPeer(t, "127.8.0.25", named("here"))
	for name, list := range map[string][]Endpoint{
		"none":     nil,
		"draining": {{Address: p.address, Weight: 1, Draining: true}},
		"weight 0": {{Address: p.address}},
	} {
		a := one(t, e, "127.8.0.24", list, func(s *Service) { s.ID = name })
		if _, err := ask(a); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v", name, err)
		}
		if n := statistics(t, e, name).Refused.Empty; n != 1 {
			t.Errorf("%s: %d refused", name, n)
		}
	}
}

// TestDropWhenEmpty: silence, until there is an endpoint again.
func TestDropWhenEmpty(t *testing.T) {
	e := newEngine(t, Options{})
	p := newPeer(t, "127.8.0.25", echo)
	a := one(t, e, "127.8.0.24", at(p), func(s *Service) { s.OnEmpty = Drop })
	old := dial(t, a)
	say(t, old, "before")
	empty := Service{ID: "web", Listen: []netip.AddrPort{a}, OnEmpty: Drop}
	set(t, e, empty)
	c, err := net.DialTimeout("tcp", a.String(), 500*time.Millisecond)
	if err == nil {
		c.Close()
		t.Error("connected to a service that drops")
	} else if timeout, ok := err.(net.Error); !ok || !timeout.Timeout() {
		t.Errorf("not silent: %v", err)
	}
	say(t, old, "after")
	empty.Endpoints = at(p)
	set(t, e, empty)
	say(t, dial(t, a), "again")
}

func TestLimits(t *testing.T) {
	e := newEngine(t, Options{MaxConnections: 3})
	p := newPeer(t, "127.8.0.27", echo)
	a := one(t, e, "127.8.0.26", at(p), func(s *Service) { s.MaxConnections = 2 })
	b := freeAddress(t, "127.8.0.26")
	set(t, e, Service{ID: "other", Listen: []netip.AddrPort{b}, Endpoints: at(p)})
	refused := func(a netip.AddrPort) {
		t.Helper()
		if _, err := ask(a); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("over the limit: %v", err)
		}
	}
	first, second := dial(t, a), dial(t, a)
	say(t, first, "1")
	say(t, second, "2")
	refused(a)
	say(t, dial(t, b), "3")
	refused(b)
	first.Close()
	eventually(t, "room again", func() bool { return statistics(t, e, "web").Active == 1 })
	say(t, dial(t, a), "4")
	if n, m := statistics(t, e, "web").Refused.Limit, statistics(t, e, "other").Refused.Limit; n != 1 || m != 1 {
		t.Errorf("refused %d and %d", n, m)
	}
}

// TestManyShort makes and ends connections as fast as it can, so that slots are
// used again all the time, with ends of all kinds in one batch.
func TestManyShort(t *testing.T) {
	e := newEngine(t, Options{})
	a := one(t, e, "127.8.0.28", at(newPeer(t, "127.8.0.29", echo), newPeer(t, "127.8.0.30", echo)))
	var wait sync.WaitGroup
	for w := range 16 {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for range 150 {
				c, err := net.DialTimeout("tcp", a.String(), patience)
				if err != nil {
					t.Error(err)
					return
				}
				c.SetDeadline(time.Now().Add(patience))
				text := strings.Repeat("x", 1+random.IntN(3000))
				if err := exchange(c, text); err != nil {
					t.Error(err)
				}
				switch random.IntN(3) {
				case 0:
					c.(*net.TCPConn).SetLinger(0)
				case 1:
					c.(*net.TCPConn).CloseWrite()
					if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
						t.Errorf("after the end: %d, %v", n, err)
					}
				}
				c.Close()
			}
		})
	}
	wait.Wait()
	eventually(t, "all connections end", func() bool { return e.shared.active.Load() == 0 })
	e.onLoopsInTest(func(l *loop) {
		if l.slots.used != 0 {
			t.Errorf("loop %d still uses %d slots", l.index, l.slots.used)
		}
		if n := len(l.slots.chunks); n > 1 {
			t.Errorf("loop %d needed %d chunks for 16 connections at once", l.index, n)
		}
		if l.origins.inUse() != 0 || l.wheel.size != 0 {
			t.Errorf("loop %d has %d timers and %d origins left", l.index, l.wheel.size, l.origins.inUse())
		}
	})
}

// TestResetAfterEnd: a client that has ended its half and then resets is still
// heard, although its bytes have been read to the end.
func TestResetAfterEnd(t *testing.T) {
	e := newEngine(t, Options{})
	heard := make(chan error, 1)
	p := newPeer(t, "127.8.0.32", func(c *net.TCPConn) {
		io.ReadAll(c)
		io.WriteString(c, "go on")
		_, err := c.Read(make([]byte, 1)) // the end, again
		for err == io.EOF {
			if _, err = c.Write([]byte("x")); err != nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
			err = io.EOF
		}
		heard <- err
	})
	c := dial(t, one(t, e, "127.8.0.31", at(p)))
	c.CloseWrite()
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	c.SetLinger(0)
	c.Close()
	select {
	case err := <-heard:
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("the server saw %v", err)
		}
	case <-time.After(patience):
		t.Error("the server never saw the reset")
	}
	eventually(t, "the connection ends", func() bool { return statistics(t, e, "web").Active == 0 })
}
