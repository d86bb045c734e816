package loop

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// udpPeer is a server that answers each datagram with one or several.
type udpPeer struct {
	*net.UDPConn
	address netip.AddrPort
	done    sync.WaitGroup
}

// newUDPPeer answers with what f makes of a datagram.
func newUDPPeer(t testing.TB, address string, f func([]byte) [][]byte) *udpPeer {
	t.Helper()
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(address, "0")
	}
	a, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.ListenUDP("udp", a)
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadBuffer(4 << 20)
	p := &udpPeer{UDPConn: c, address: c.LocalAddr().(*net.UDPAddr).AddrPort()}
	p.done.Go(func() {
		b := make([]byte, datagramMost)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			for _, answer := range f(b[:n]) {
				c.WriteToUDPAddrPort(answer, from)
			}
		}
	})
	t.Cleanup(p.stop)
	return p
}

func (p *udpPeer) stop() {
	p.Close()
	p.done.Wait()
}

// repeated answers with the same.
func repeated(b []byte) [][]byte { return [][]byte{b} }

// called answers with a name and the same.
func called(name string) func([]byte) [][]byte {
	return func(b []byte) [][]byte { return [][]byte{append([]byte(name+" "), b...)} }
}

func udpAt(p ...*udpPeer) []Endpoint {
	var list []Endpoint
	for _, p := range p {
		list = append(list, Endpoint{Address: p.address, Weight: 1})
	}
	return list
}

func freeUDP(t testing.TB, ip string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return netip.AddrPortFrom(netip.MustParseAddr(ip), c.LocalAddr().(*net.UDPAddr).AddrPort().Port())
}

// oneUDP is a service with one UDP listener.
func oneUDP(t testing.TB, e *Engine, ip string, endpoints []Endpoint) (Service, netip.AddrPort) {
	t.Helper()
	a := freeUDP(t, ip)
	s := Service{ID: "dns", ListenUDP: []netip.AddrPort{a}, Endpoints: endpoints, Retries: 1}
	set(t, e, s)
	return s, a
}

// udpClient is a connected socket.
type udpClient struct {
	*net.UDPConn
	t testing.TB
	n int
}

func dialUDP(t testing.TB, a netip.AddrPort) *udpClient {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(a))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &udpClient{UDPConn: c, t: t}
}

// once sends a datagram and waits for one answer.
func (c *udpClient) once(b []byte, patience time.Duration) ([]byte, error) {
	if _, err := c.Write(b); err != nil {
		return nil, err
	}
	c.SetReadDeadline(time.Now().Add(patience))
	answer := make([]byte, datagramMost)
	n, err := c.Read(answer)
	return answer[:n], err
}

// who asks until somebody answers, and says who. Each question has a number, so
// that no late answer is taken for that of another.
func (c *udpClient) who() string {
	c.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		c.n++
		want := fmt.Sprint(c.n)
		b, err := c.once([]byte(want), 200*time.Millisecond)
		if name, number, _ := strings.Cut(string(b), " "); err == nil && number == want {
			return name
		}
	}
	c.t.Fatal("no answer ever came")
	return ""
}

// at waits until one answers, who must be the first to answer at all.
func (c *udpClient) must(want string) {
	c.t.Helper()
	if got := c.who(); got != want {
		c.t.Fatalf("%s answered, not %s", got, want)
	}
}

// refused waits until the socket is told that nobody is there. The kernel sends
// no more than so many such messages a second.
func (c *udpClient) refused() {
	c.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		b, err := c.once([]byte("anybody?"), 100*time.Millisecond)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			return
		case err == nil:
			c.t.Fatalf("%q answered in place of a refusal", b)
		}
	}
	c.t.Fatal("never refused")
}

func TestUDPRoundTrip(t *testing.T) {
	for _, c := range []struct{ name, front, back string }{
		{"IPv4", "127.9.0.1", "127.9.0.2"},
		{"IPv6", "::1", "::1"},
		{"IPv4 to IPv6", "127.9.0.1", "::1"},
		{"IPv6 to IPv4", "::1", "127.9.0.2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t, Options{})
			_, a := oneUDP(t, e, c.front, udpAt(newUDPPeer(t, c.back, repeated)))
			k := dialUDP(t, a)
			for range 100 {
				b, err := k.once([]byte("hello"), patience)
				if err != nil || string(b) != "hello" {
					t.Fatalf("%q, %v", b, err)
				}
			}
			s := statistics(t, e, "dns")
			if s.Active != 1 || s.Connections != 1 || s.BytesIn != 500 || s.BytesOut != 500 || s.Dropped != 0 {
				t.Errorf("counters: %+v", s)
			}
			if p := s.Endpoints[0]; p.Active != 1 || p.Connections != 1 || p.BytesIn != 500 || p.BytesOut != 500 || p.Failures != 0 {
				t.Errorf("counters of the endpoint: %+v", p)
			}
		})
	}
}

// TestUDPSizes: from nothing at all to the greatest there is, whatever the MTU.
func TestUDPSizes(t *testing.T) {
	e := newEngine(t, Options{})
	for _, ip := range []string{"127.9.0.3", "::1"} {
		s, a := oneUDP(t, e, ip, udpAt(newUDPPeer(t, ip, repeated)))
		k := dialUDP(t, a)
		k.SetReadBuffer(4 << 20)
		for _, size := range []int{0, 1, 512, 1200, 1350, 1472, 1473, 4096, 9000, 65507} {
			b := make([]byte, size)
			rand.NewChaCha8([32]byte{byte(size)}).Read(b)
			got, err := k.once(b, patience)
			if err != nil || !bytes.Equal(got, b) {
				t.Fatalf("%s, %d bytes: got %d, %v", ip, size, len(got), err)
			}
		}
		if errs := e.Update(nil, []string{s.ID}); errs != nil {
			t.Fatal(errs)
		}
	}
}

// TestUDPTooGreat: a datagram that fits into IPv6 but not into IPv4 is dropped,
// and the session goes on.
func TestUDPTooGreat(t *testing.T) {
	e := newEngine(t, Options{})
	_, a := oneUDP(t, e, "::1", udpAt(newUDPPeer(t, "127.9.0.3", called("a"))))
	k := dialUDP(t, a)
	k.must("a")
	if b, err := k.once(make([]byte, 65520), 100*time.Millisecond); err == nil {
		t.Errorf("%d bytes came back", len(b))
	}
	eventually(t, "it is counted", func() bool { return statistics(t, e, "dns").Dropped == 1 })
	k.must("a")
	if v := statistics(t, e, "dns"); v.Connections != 1 || v.Endpoints[0].Failures != 0 {
		t.Errorf("%+v", v)
	}
}

// TestUDPOneClient follows one socket of one client through every change.
func TestUDPOneClient(t *testing.T) {
	for _, ip := range []string{"127.9.0.4", "::1"} {
		for _, onEmpty := range []OnEmpty{Reject, Drop} {
			t.Run(fmt.Sprint(ip, onEmpty), func(t *testing.T) {
				e := newEngine(t, Options{})
				a, b, c := newUDPPeer(t, ip, called("a")), newUDPPeer(t, ip, called("b")), newUDPPeer(t, ip, called("c"))
				s, front := oneUDP(t, e, ip, nil)
				s.OnEmpty = onEmpty
				to := func(list ...Endpoint) {
					t.Helper()
					s.Endpoints = list
					set(t, e, s)
				}
				to()
				k := dialUDP(t, front)
				one := func(p *udpPeer) Endpoint { return udpAt(p)[0] }
				draining := func(p *udpPeer) Endpoint {
					return Endpoint{Address: p.address, Weight: 1, Draining: true, Deadline: time.Now().Add(time.Hour)}
				}
				idle := func(p *udpPeer) Endpoint { return Endpoint{Address: p.address} }
				nobody := func() {
					t.Helper()
					if onEmpty == Reject {
						k.refused()
						return
					}
					if b, err := k.once([]byte("x"), 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Fatalf("somebody answers with %q, %v", b, err)
					}
				}
				nobody()
				to(one(a)) // from none to some
				k.must("a")
				to(one(a), one(b)) // added: the client stays
				for range 5 {
					k.must("a")
				}
				to(one(a), idle(b))
				k.must("a")
				to(idle(a), one(b)) // weight 0 takes no new ones
				k.must("a")
				to(draining(a), one(b)) // moves at once
				k.must("b")
				to(one(a), one(b)) // comes back; the client stays
				k.must("b")
				to(one(a)) // removed
				k.must("a")
				to(draining(a)) // none but one that drains
				nobody()
				to(one(c))
				k.must("c")
				to() // from some to none
				nobody()
				to(one(b), one(b)) // and again
				k.must("b")
				if errs := e.Update(nil, []string{s.ID}); errs != nil {
					t.Fatal(errs)
				}
				k.refused() // the frontend is gone
				if n := e.Statistics().Sessions; n != 0 {
					t.Errorf("%d sessions are left", n)
				}
				to(one(a))
				k.must("a")
			})
		}
	}
}

// TestUDPReopened: a service that was empty for a while has other sockets, and
// answers leave from those.
func TestUDPReopened(t *testing.T) {
	e := newEngine(t, Options{})
	p := newUDPPeer(t, "127.9.0.62", called("a"))
	s, front := oneUDP(t, e, "127.9.0.63", udpAt(p))
	for range 8 { // on every loop
		dialUDP(t, front).must("a")
	}
	s.Endpoints = nil
	set(t, e, s)
	// The numbers of the closed sockets go to others.
	for range 8 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(pair[0]); unix.Close(pair[1]) })
	}
	s.Endpoints = udpAt(p)
	set(t, e, s)
	for range 8 {
		dialUDP(t, front).must("a")
	}
}

// TestUDPRefusal: an endpoint where nobody listens is left for another one.
func TestUDPRefusal(t *testing.T) {
	for _, ip := range []string{"127.9.0.5", "::1"} {
		t.Run(ip, func(t *testing.T) {
			e := newEngine(t, Options{})
			a, b := newUDPPeer(t, ip, called("a")), newUDPPeer(t, ip, called("b"))
			dead := []Endpoint{}
			for range 3 {
				dead = append(dead, Endpoint{Address: freeUDP(t, ip), Weight: 1})
			}
			_, front := oneUDP(t, e, ip, append(dead, udpAt(a, b)...))
			k := dialUDP(t, front)
			// Each question lost is one endpoint tried.
			first, tries := "", 0
			for ; first == "" && tries < 4; tries++ {
				if got, err := k.once([]byte("?"), 300*time.Millisecond); err == nil {
					first, _, _ = strings.Cut(string(got), " ")
				}
			}
			if first == "" {
				t.Fatal("four questions found none of two endpoints among five")
			}
			now, other := a, "b"
			if first == "b" {
				now, other = b, "a"
			}
			now.stop()
			k.must(other)
			s := statistics(t, e, "dns")
			var failures uint64
			for _, p := range s.Endpoints {
				failures += p.Failures
			}
			if failures == 0 || s.Active != 1 {
				t.Errorf("%d failures, %d sessions", failures, s.Active)
			}
			// All gone, then one comes back at its old place.
			if other == "a" {
				a.stop()
			} else {
				b.stop()
			}
			for range 10 {
				if got, err := k.once([]byte("?"), 20*time.Millisecond); err == nil {
					t.Fatalf("%q", got)
				}
			}
			newUDPPeer(t, now.address.String(), called("again"))
			k.must("again")
		})
	}
}

func TestUDPWeights(t *testing.T) {
	for _, balance := range []Balance{RoundRobin, LeastConnections} {
		e := newEngine(t, Options{})
		a, b, c := newUDPPeer(t, "127.9.0.6", called("a")), newUDPPeer(t, "127.9.0.6", called("b")), newUDPPeer(t, "127.9.0.6", called("c"))
		list := udpAt(a, b, c)
		list[0].Weight, list[1].Weight, list[2].Weight = 3, 1, 0
		s, front := oneUDP(t, e, "127.9.0.7", list)
		s.Balance = balance
		set(t, e, s)
		got := map[string]int{}
		for range 80 {
			got[dialUDP(t, front).who()]++
		}
		if got["a"] != 60 || got["b"] != 20 {
			t.Errorf("balance %d, weights 3, 1, 0: %v", balance, got)
		}
	}
}

func TestUDPAllow(t *testing.T) {
	e := newEngine(t, Options{})
	s, front := oneUDP(t, e, "127.9.0.8", udpAt(newUDPPeer(t, "127.9.0.8", called("a"))))
	s.Allow = []netip.Prefix{netip.MustParsePrefix("127.9.1.0/24"), netip.MustParsePrefix("127.9.2.0/24")}
	set(t, e, s)
	from := func(ip string) *udpClient {
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)}, net.UDPAddrFromAddrPort(front))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return &udpClient{UDPConn: c, t: t}
	}
	from("127.9.1.1").must("a")
	from("127.9.2.1").must("a")
	stranger := from("127.9.3.1")
	if b, err := stranger.once([]byte("x"), 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a stranger gets %q, %v", b, err)
	}
	v := statistics(t, e, "dns")
	if v.Refused.Source != 1 || v.Dropped != 1 || v.Active != 2 {
		t.Errorf("%+v", v)
	}
	s.Allow = nil
	set(t, e, s)
	stranger.must("a")
}

// TestUDPWildcard: the answer leaves from the address that was asked.
func TestUDPWildcard(t *testing.T) {
	for _, c := range []struct {
		listen string
		asked  []string
	}{{"0.0.0.0", []string{"127.0.0.1", "127.9.0.9", "127.200.0.1"}}, {"::", []string{"::1"}}} {
		e := newEngine(t, Options{})
		_, front := oneUDP(t, e, c.listen, udpAt(newUDPPeer(t, "127.9.0.9", called("a"))))
		// One unconnected socket: the frontend's address is part of the flow.
		u, err := net.ListenPacket("udp", net.JoinHostPort(c.asked[0], "0"))
		if err != nil {
			t.Fatal(err)
		}
		for _, ip := range c.asked {
			dialUDP(t, netip.AddrPortFrom(netip.MustParseAddr(ip), front.Port())).must("a")
			to := &net.UDPAddr{IP: net.ParseIP(ip), Port: int(front.Port())}
			if _, err := u.WriteTo([]byte("x"), to); err != nil {
				t.Fatal(err)
			}
			u.SetReadDeadline(time.Now().Add(patience))
			_, from, err := u.ReadFrom(make([]byte, 100))
			if err != nil || from.String() != to.String() {
				t.Errorf("asked %s, %v answered, %v", to, from, err)
			}
		}
		if n := statistics(t, e, "dns").Active; n != int64(2*len(c.asked)) {
			t.Errorf("%d sessions", n)
		}
		u.Close()
	}
}

// TestUDPIdle: a session ends when it has been silent, and not before.
func TestUDPIdle(t *testing.T) {
	e := newEngine(t, Options{})
	s, front := oneUDP(t, e, "127.9.0.10", udpAt(newUDPPeer(t, "127.9.0.10", called("a"))))
	busy, quiet := dialUDP(t, front), dialUDP(t, front)
	busy.must("a")
	quiet.must("a")
	before := openDescriptors(t)
	s.UDPIdleTimeout = 2 * time.Second // also for those that are there
	set(t, e, s)
	eventually(t, "the quiet one ends alone", func() bool {
		busy.must("a")
		return statistics(t, e, "dns").Active == 1
	})
	if n := statistics(t, e, "dns").Connections; n != 2 {
		t.Errorf("%d sessions in all: the busy one has ended, too", n)
	}
	s.UDPIdleTimeout = 200 * time.Millisecond
	set(t, e, s)
	eventually(t, "both end", func() bool { return statistics(t, e, "dns").Active == 0 })
	if n := openDescriptors(t); n != before-2 {
		t.Errorf("%d descriptors, %d before: want two less", n, before)
	}
	quiet.must("a")
}

// TestUDPPass: a frontend goes from one service to another, and to none.
func TestUDPPass(t *testing.T) {
	e := newEngine(t, Options{Loops: 2})
	a, b := newUDPPeer(t, "127.9.0.11", called("a")), newUDPPeer(t, "127.9.0.11", called("b"))
	s, front := oneUDP(t, e, "127.9.0.12", udpAt(a))
	k := dialUDP(t, front)
	for round := range 4 {
		k.must("a")
		// TCP and UDP may share a port, and be different services.
		other := Service{ID: "other", ListenUDP: []netip.AddrPort{front}, Endpoints: udpAt(b)}
		if errs := e.Update([]Service{other, {ID: s.ID, Listen: []netip.AddrPort{front}, Endpoints: s.Endpoints}}, nil); errs != nil {
			t.Fatal(errs)
		}
		k.must("b")
		if n, m := statistics(t, e, "dns").Active, statistics(t, e, "other").Active; n != 0 || m != 1 {
			t.Errorf("round %d: %d sessions of the former owner, %d of the new one", round, n, m)
		}
		// Two want it: the one that has it keeps it.
		if errs := e.Update([]Service{s}, nil); len(errs) != 1 || errs["dns"] == nil {
			t.Fatal(errs)
		}
		k.must("b")
		// An empty one keeps its claim, too.
		set(t, e, Service{ID: "other", ListenUDP: []netip.AddrPort{front}})
		k.refused()
		if errs := e.Update([]Service{s}, nil); len(errs) != 1 || errs["dns"] == nil {
			t.Fatal(errs)
		}
		if errs := e.Update([]Service{s}, []string{"other"}); errs != nil {
			t.Fatal(errs)
		}
	}
	k.must("a")
	if len(e.datagrams) != 1 || int(e.nextPlace)-len(e.places) != 1 {
		t.Errorf("%d listeners, %d places of %d are free", len(e.datagrams), len(e.places), e.nextPlace)
	}
}

// TestUDPTaken: an address that somebody else has is an error, and is tried
// again; nobody can share one of ours.
func TestUDPTaken(t *testing.T) {
	e := newEngine(t, Options{Loops: 2})
	stranger, err := net.ListenPacket("udp", "127.9.0.13:0")
	if err != nil {
		t.Fatal(err)
	}
	front := stranger.LocalAddr().(*net.UDPAddr).AddrPort()
	s := Service{ID: "dns", ListenUDP: []netip.AddrPort{front}, Endpoints: udpAt(newUDPPeer(t, "127.9.0.13", called("a")))}
	errs := e.Update([]Service{s}, nil)
	if !errors.Is(errs["dns"], unix.EADDRINUSE) {
		t.Fatal(errs)
	}
	stranger.Close()
	set(t, e, s)
	dialUDP(t, front).must("a")
	reuse := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}}
	if c, err := reuse.ListenPacket(t.Context(), "udp", front.String()); err == nil {
		c.Close()
		t.Error("another socket got the address as well")
	}
}
