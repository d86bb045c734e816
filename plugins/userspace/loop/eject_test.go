package loop

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// who are the ports of the endpoints that are chosen, of those with port 1 to n.
func (c *chooser) who(now uint32) []uint16 {
	seen := map[uint16]bool{}
	for n := range 400 {
		seen[c.touch(clientAddress(n), now).address.Port()] = true
	}
	var list []uint16
	for p := range seen {
		list = append(list, p)
	}
	slices.Sort(list)
	return list
}

func TestEjection(t *testing.T) {
	const second = uint32(time.Second / tick)
	for b := range Maglev + 1 {
		s := Service{Balance: b, Endpoints: weighted(1, 1, 1, 1, 1), EjectAfter: 3, EjectFor: 10 * time.Second}
		c := newChooser(t, s)
		all := []uint16{1, 2, 3, 4, 5}
		fail := func(i int, now uint32) { c.attemptFailed(c.endpoints[i], now, unix.ECONNREFUSED) }
		want := func(when string, now uint32, list ...uint16) {
			t.Helper()
			if got := c.who(now); !slices.Equal(got, list) {
				t.Fatalf("balance %d, %s: chosen are %v, want %v", b, when, got, list)
			}
		}
		fail(0, 0)
		fail(0, 0)
		c.attemptWorked(c.endpoints[0])
		fail(0, 0)
		fail(0, 0)
		want("two failures, a success, two failures", 0, all...)
		for _, why := range []errno{unix.EADDRNOTAVAIL, unix.ENOBUFS, unix.EPERM} {
			c.attemptFailed(c.endpoints[0], 0, why)
		}
		want("failures of this host", 0, all...)
		fail(0, 0)
		want("three failures in a row", 0, 2, 3, 4, 5)
		want("just before its end", 10*second-1, 2, 3, 4, 5)
		want("at its end", 10*second, all...)
		// One more failure is enough, and lasts twice as long, and so on.
		now := 10 * second
		for _, tens := range []uint32{2, 4, 8, 16, 32, 32} {
			fail(0, now)
			now += tens * 10 * second
			want("again, just before its end", now-1, 2, 3, 4, 5)
			want("again, at its end", now, all...)
		}
		c.attemptWorked(c.endpoints[0])
		for range 3 {
			fail(0, now)
		}
		now += 10 * second
		want("after a success it begins anew", now, all...)

		// Never more than half, and the half survives an update.
		for i := range 5 {
			for range 10 {
				fail(i, now)
			}
		}
		want("all fail", now, 3, 4, 5)
		c.set(t, s)
		want("after an update", now, 3, 4, 5)
		s.Endpoints = weighted(1, 1, 1)
		c.set(t, s)
		if got := c.who(now); len(got) != 2 {
			t.Fatalf("balance %d: of three endpoints two of which were ejected %v are chosen", b, got)
		}
		s.EjectAfter = 0
		c.set(t, s)
		want("without ejection", now, 1, 2, 3)

		// The last one, and one of two.
		s = Service{Balance: b, Endpoints: weighted(1, 1), EjectAfter: 1}
		c = newChooser(t, s)
		fail(0, 0)
		want("one of two", 0, 2)
		fail(1, 0)
		want("the other fails too", 0, 2)
		if e := c.pick(netip.Addr{}, 0, []int32{c.endpoints[1].id}); e != c.endpoints[0] {
			t.Errorf("balance %d: who has failed at the other gets %v, not the ejected one", b, e)
		}
		s.Endpoints = weighted(1)
		c.set(t, s)
		want("it is the only one now", 0, 1)
	}
}

// TestEjectionCarried: with real connections an endpoint that refuses is left
// alone after some failures, the reason is shown, and it comes back.
func TestEjectionCarried(t *testing.T) {
	e := newEngine(t, Options{})
	dead := freeAddress(t, "127.8.4.1")
	front := freeAddress(t, "127.8.4.2")
	s := Service{ID: "web", Listen: []netip.AddrPort{front}, Retries: 1, EjectAfter: 3, EjectFor: time.Hour,
		Endpoints: append(at(newPeer(t, "127.8.4.3", named("a")), newPeer(t, "127.8.4.4", named("b"))), Endpoint{Address: dead, Weight: 1})}
	set(t, e, s)
	for range 60 {
		if name, err := ask(front); err != nil || name == "" {
			t.Fatalf("%q, %v", name, err)
		}
	}
	v := statistics(t, e, "web").Endpoints[2]
	if v.Failures != 3 || v.LastFailure != "connection refused" || time.Until(v.EjectedUntil) < 50*time.Minute || time.Since(v.FailedAt) > time.Minute {
		t.Errorf("after 60 connections: %+v", v)
	}
	// Ejected for a moment only: it is tried again, and found alive.
	s.EjectFor = 200 * time.Millisecond
	s.Endpoints = s.Endpoints[:2]
	set(t, e, s)
	s.Endpoints = append(s.Endpoints, Endpoint{Address: dead, Weight: 1})
	set(t, e, s)
	eventually(t, "it is ejected again", func() bool {
		ask(front)
		return !statistics(t, e, "web").Endpoints[2].EjectedUntil.IsZero()
	})
	l, err := net.Listen("tcp", dead.String())
	if err != nil {
		t.Fatal(err)
	}
	revived := make(chan bool)
	go func() {
		defer close(revived)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			named("c")(c.(*net.TCPConn))
			c.Close()
		}
	}()
	eventually(t, "it serves", func() bool {
		name, err := ask(front)
		if err != nil {
			t.Fatal(err)
		}
		return name == "c"
	})
	l.Close()
	<-revived
}
