package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// spread asks n times and counts who answered.
func spread(t *testing.T, a netip.AddrPort, n int) map[string]int {
	t.Helper()
	got := map[string]int{}
	for range n {
		name, err := ask(a)
		if err != nil {
			t.Fatal(err)
		}
		got[name]++
	}
	return got
}

func TestWeights(t *testing.T) {
	e := newEngine(t, Options{Loops: 3})
	a, b, c := newPeer(t, "127.8.2.1", named("a")), newPeer(t, "127.8.2.2", named("b")), newPeer(t, "127.8.2.3", named("c"))
	weights := func(x, y, z int) Service {
		list := at(a, b, c)
		list[0].Weight, list[1].Weight, list[2].Weight = x, y, z
		return Service{ID: "web", Endpoints: list}
	}
	front := freeAddress(t, "127.8.2.4")
	for _, w := range []struct {
		x, y, z int
		want    map[string]int
	}{
		{1, 1, 1, map[string]int{"a": 20, "b": 20, "c": 20}},
		{3, 2, 1, map[string]int{"a": 30, "b": 20, "c": 10}},
		{1, 0, 1, map[string]int{"a": 30, "c": 30}},
		{0, 0, 7, map[string]int{"c": 60}},
		{MaxWeight, MaxWeight, 1, map[string]int{"a": 30, "b": 30}},
	} {
		s := weights(w.x, w.y, w.z)
		s.Listen = []netip.AddrPort{front}
		set(t, e, s)
		// The turn survives updates, so that it may be one off.
		for name, n := range spread(t, front, 60) {
			if d := n - w.want[name]; d < -2 || d > 2 {
				t.Errorf("weights %d, %d, %d: %s got %d of 60, want %d", w.x, w.y, w.z, name, n, w.want[name])
			}
		}
	}
}

// TestSmooth: a heavy endpoint isn't served in a burst, and an update that
// changes nothing doesn't begin the round anew.
func TestSmooth(t *testing.T) {
	e := newEngine(t, Options{Loops: 1})
	list := []Endpoint{
		{Address: netip.MustParseAddrPort("127.8.2.5:1"), Weight: 5},
		{Address: netip.MustParseAddrPort("127.8.2.5:2"), Weight: 1},
		{Address: netip.MustParseAddrPort("127.8.2.5:3"), Weight: 1},
	}
	var got []string
	for range 14 {
		set(t, e, Service{ID: "web", Endpoints: list})
		p := e.services["web"].pick(netip.Addr{}, 0, nil)
		e.shared.endpoints.release(p)
		got = append(got, fmt.Sprint(p.address.Port()))
	}
	if s := strings.Join(got, ""); s != "11213111121311" {
		t.Errorf("turns %s", s)
	}
}

func TestLeastConnections(t *testing.T) {
	e := newEngine(t, Options{Loops: 2})
	a, b := newPeer(t, "127.8.2.6", echo), newPeer(t, "127.8.2.7", echo)
	front := freeAddress(t, "127.8.2.8")
	s := Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(a, b), Balance: LeastConnections}
	set(t, e, s)
	active := func() [2]int64 {
		v := statistics(t, e, "web")
		return [2]int64{v.Endpoints[0].Active, v.Endpoints[1].Active}
	}
	open := map[netip.AddrPort][]net.Conn{}
	hold := func(n int) {
		t.Helper()
		for range n {
			before := active()
			c := dial(t, front)
			say(t, c, "x")
			if active()[0] > before[0] {
				open[a.address] = append(open[a.address], c)
			} else {
				open[b.address] = append(open[b.address], c)
			}
		}
	}
	hold(10)
	if got := active(); got != [2]int64{5, 5} {
		t.Fatalf("even: %v", got)
	}
	// All of one end: it gets all new ones until they are even again.
	for _, c := range open[a.address] {
		c.Close()
	}
	eventually(t, "the counts follow", func() bool { return active() == [2]int64{0, 5} })
	hold(5)
	if got := active(); got != [2]int64{5, 5} {
		t.Errorf("after one lost all: %v", got)
	}
	// A weight counts from now on; established ones stay where they are.
	s.Endpoints[0].Weight = 3
	set(t, e, s)
	hold(10)
	if got := active(); got != [2]int64{15, 5} {
		t.Errorf("with weights 3 and 1: %v", got)
	}
}

func TestDraining(t *testing.T) {
	for _, reset := range []bool{false, true} {
		t.Run(fmt.Sprintf("reset %v", reset), func(t *testing.T) {
			e := newEngine(t, Options{})
			a, b := newPeer(t, "127.8.2.9", echo), newPeer(t, "127.8.2.10", echo)
			front := freeAddress(t, "127.8.2.11")
			s := Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(a), ResetOnDrainEnd: reset}
			set(t, e, s)
			first, second := dial(t, front), dial(t, front)
			say(t, first, "before")
			say(t, second, "before")

			s.Endpoints = at(a, b)
			s.Endpoints[0].Draining = true
			s.Endpoints[0].Deadline = time.Now().Add(time.Hour)
			set(t, e, s)
			say(t, first, "while draining")
			served := a.count()
			for range 10 {
				say(t, dial(t, front), "new")
			}
			if a.count() != served {
				t.Error("a draining endpoint got a new connection")
			}

			check := func(c net.Conn, when string) {
				t.Helper()
				if reset {
					if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("%s: %v", when, err)
					}
				} else {
					say(t, c, when)
				}
			}
			s.Endpoints[0].Deadline = time.Now().Add(50 * time.Millisecond)
			set(t, e, s)
			if !reset {
				time.Sleep(100 * time.Millisecond)
			}
			check(first, "after the deadline")
			s.Endpoints = at(b)
			set(t, e, s)
			check(second, "after the endpoint left")
			if errs := e.Update(nil, []string{"web"}); errs != nil {
				t.Fatal(errs)
			}
			if !reset {
				say(t, first, "after the service left")
				first.Close()
				second.Close()
				// The connections to b were closed by nobody yet.
			}
		})
	}
}

// TestEndpointLeaves: an endpoint that leaves without draining, alone or with
// its service, takes its connections with it where the service says so.
func TestEndpointLeaves(t *testing.T) {
	for _, reset := range []bool{false, true} {
		e := newEngine(t, Options{})
		front := freeAddress(t, "127.8.2.11")
		s := Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(newPeer(t, "127.8.2.9", echo)), ResetOnDrainEnd: reset}
		left := func(c net.Conn, how string) {
			t.Helper()
			if reset {
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%s: %v", how, err)
				}
			} else {
				say(t, c, how)
			}
		}
		set(t, e, s)
		c := dial(t, front)
		say(t, c, "before")
		s.Endpoints = at(newPeer(t, "127.8.2.10", echo))
		set(t, e, s)
		left(c, "the endpoint left")
		c = dial(t, front)
		say(t, c, "before")
		if errs := e.Update(nil, []string{"web"}); errs != nil {
			t.Fatal(errs)
		}
		left(c, "the service left")
	}
}

// TestEndpointComesBack: an endpoint that drains and becomes active again is
// not reset at its old deadline, and its connections count again.
func TestEndpointComesBack(t *testing.T) {
	e := newEngine(t, Options{})
	a := newPeer(t, "127.8.2.9", echo)
	front := freeAddress(t, "127.8.2.11")
	s := Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(a), ResetOnDrainEnd: true}
	set(t, e, s)
	c := dial(t, front)
	say(t, c, "before")
	s.Endpoints[0].Draining, s.Endpoints[0].Deadline = true, time.Now().Add(200*time.Millisecond)
	set(t, e, s)
	s.Endpoints = at(a)
	set(t, e, s)
	time.Sleep(400 * time.Millisecond)
	say(t, c, "after")
	if n := statistics(t, e, "web").Endpoints[0].Active; n != 1 {
		t.Errorf("%d active", n)
	}
}

// TestEndpointPlaces: places in the endpoint table are used again, but not
// before the last connection of an endpoint that has left.
func TestEndpointPlaces(t *testing.T) {
	e := newEngine(t, Options{})
	front := freeAddress(t, "127.8.2.12")
	s := Service{ID: "web", Listen: []netip.AddrPort{front}}
	old := newPeer(t, "127.8.2.13", echo)
	s.Endpoints = at(old)
	set(t, e, s)
	c := dial(t, front)
	say(t, c, "before")
	for i := range 1000 {
		s.Endpoints = []Endpoint{{Address: netip.AddrPortFrom(netip.MustParseAddr("127.8.2.14"), uint16(1+i)), Weight: 1}}
		set(t, e, s)
	}
	say(t, c, "after")
	e.onLoopsInTest(func(l *loop) {
		l.slots.each(func(_ int32, c *conn) {
			if got := l.shared.endpoints.get(c.endpoint).address; got != old.address {
				t.Errorf("the connection's endpoint has become %s", got)
			}
		})
	})
	c.Close()
	eventually(t, "its place is free", func() bool {
		e.shared.endpoints.mu.Lock()
		defer e.shared.endpoints.mu.Unlock()
		return int(e.shared.endpoints.next)-len(e.shared.endpoints.idle) == 1
	})
	if n := e.shared.endpoints.next; n > 3 {
		t.Errorf("%d places were needed", n)
	}
}

func TestAddressConflicts(t *testing.T) {
	e := newEngine(t, Options{})
	taken, err := net.Listen("tcp", "127.8.2.15:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := taken.Addr().(*net.TCPAddr).AddrPort()
	elsewhere := netip.MustParseAddrPort("192.0.2.1:8080")
	p := newPeer(t, "127.8.2.16", named("here"))
	x, y := freeAddress(t, "127.8.2.17"), freeAddress(t, "127.8.2.18")

	errs := e.Update([]Service{
		{ID: "busy", Listen: []netip.AddrPort{busy, x}, Endpoints: at(p)},
		{ID: "elsewhere", Listen: []netip.AddrPort{elsewhere}, Endpoints: at(p)},
		{ID: "late", Listen: []netip.AddrPort{x}, Endpoints: at(p)},
		{ID: "wrong", Listen: []netip.AddrPort{y}, Endpoints: []Endpoint{{Address: x, Weight: -1}}},
		{ID: "good", Listen: []netip.AddrPort{y}, Endpoints: at(p)},
	}, nil)
	for id, want := range map[string]error{"busy": syscall.EADDRINUSE, "elsewhere": syscall.EADDRNOTAVAIL} {
		var l *ListenError
		if !errors.Is(errs[id], want) || !errors.As(errs[id], &l) {
			t.Errorf("%s: %v", id, errs[id])
		}
	}
	if err := errs["late"]; err == nil || !strings.Contains(err.Error(), "service busy has this address") {
		t.Errorf("late: %v", err)
	}
	if errs["wrong"] == nil || errs["good"] != nil || len(errs) != 4 {
		t.Errorf("errors: %v", errs)
	}
	for _, a := range []netip.AddrPort{x, y} { // the other address of busy works
		if got, err := ask(a); got != "here" {
			t.Errorf("%s: %q, %v", a, got, err)
		}
	}
	taken.Close()
	set(t, e, Service{ID: "busy", Listen: []netip.AddrPort{busy, x}, Endpoints: at(p)})
	if got, err := ask(busy); got != "here" {
		t.Errorf("after it became free: %q, %v", got, err)
	}
}

// TestStranger: an address is never shared with another program, although our
// own sockets share it among themselves.
func TestStranger(t *testing.T) {
	a := newEngine(t, Options{Loops: 2})
	b := newEngine(t, Options{Loops: 2})
	front := freeAddress(t, "127.8.2.19")
	set(t, a, Service{ID: "web", Listen: []netip.AddrPort{front}})
	errs := b.Update([]Service{{ID: "web", Listen: []netip.AddrPort{front}}}, nil)
	if !errors.Is(errs["web"], syscall.EADDRINUSE) {
		t.Errorf("shared: %v", errs)
	}
}

// TestAddressMoves passes an address to and fro between two services under
// load: no connection is refused, and after each update all go to the new one.
func TestAddressMoves(t *testing.T) {
	e := newEngine(t, Options{})
	a, b := newPeer(t, "127.8.2.20", named("a")), newPeer(t, "127.8.2.21", named("b"))
	front := freeAddress(t, "127.8.2.22")
	own := []netip.AddrPort{front}
	set(t, e, Service{ID: "a", Listen: own, Endpoints: at(a)})
	stop := make(chan struct{})
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := ask(front); err != nil {
					t.Errorf("while the address moved: %v", err)
					return
				}
			}
		})
	}
	for i := range 50 {
		var errs map[string]error
		want := "b"
		switch i % 4 {
		case 0: // one is removed in the same update
			errs = e.Update([]Service{{ID: "b", Listen: own, Endpoints: at(b)}}, []string{"a"})
		case 1:
			errs = e.Update([]Service{{ID: "a", Listen: own, Endpoints: at(a)}, {ID: "b", Endpoints: at(b)}}, nil)
			want = "a"
		case 2: // both stay
			errs = e.Update([]Service{{ID: "a", Endpoints: at(a)}, {ID: "b", Listen: own, Endpoints: at(b)}}, nil)
		case 3:
			errs = e.Update([]Service{{ID: "a", Listen: own, Endpoints: at(a)}}, []string{"b"})
			want = "a"
		}
		if errs != nil {
			t.Fatal(errs)
		}
		if got, err := ask(front); got != want || err != nil {
			t.Fatalf("move %d: %q answered, %v", i, got, err)
		}
	}
	close(stop)
	load.Wait()
}

// TestQueueOfRemovedFrontend: connections that the kernel has accepted before
// their frontend goes are served.
func TestQueueOfRemovedFrontend(t *testing.T) {
	e := newEngine(t, Options{Loops: 2})
	p := newPeer(t, "127.8.2.23", echo)
	front := freeAddress(t, "127.8.2.24")
	set(t, e, Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(p)})
	var held sync.WaitGroup
	held.Add(len(e.loops))
	release := make(chan struct{})
	for _, l := range e.loops { // nobody accepts for now
		l.post(func(*loop) { held.Done(); <-release })
	}
	held.Wait()
	var queued []net.Conn
	for range 5 * acceptMost * len(e.loops) { // more than one event takes
		queued = append(queued, dial(t, front))
	}
	done := make(chan map[string]error)
	go func() { done <- e.Update(nil, []string{"web"}) }()
	close(release)
	if errs := <-done; errs != nil {
		t.Fatal(errs)
	}
	for _, c := range queued {
		say(t, c, "served")
	}
	if _, err := net.Dial("tcp", front.String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the removed frontend: %v", err)
	}
}

// TestUpdatesUnderLoad: 10,000 requests through 200 changes lose none, and no
// established connection is cut.
func TestUpdatesUnderLoad(t *testing.T) {
	e := newEngine(t, Options{})
	var peers []*peer
	for i := range 5 {
		peers = append(peers, newPeer(t, fmt.Sprintf("127.8.2.%d", 30+i), echo))
	}
	front, second := freeAddress(t, "127.8.2.25"), freeAddress(t, "127.8.2.26")
	set(t, e, Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(peers...)})
	const requests = 10_000
	var left, lost atomic.Int64
	left.Store(requests)
	var load sync.WaitGroup
	for w := range 8 {
		load.Go(func() {
			kept, err := net.Dial("tcp", front.String())
			if err != nil {
				t.Error(err)
				return
			}
			defer kept.Close()
			for left.Add(-1) >= 0 {
				c := kept
				if w%2 == 0 {
					if c, err = net.DialTimeout("tcp", front.String(), patience); err != nil {
						t.Error(err)
						lost.Add(1)
						continue
					}
				}
				c.SetDeadline(time.Now().Add(patience))
				if err := exchange(c, "request"); err != nil {
					t.Error(err)
					lost.Add(1)
				}
				if w%2 == 0 {
					c.Close()
				}
			}
		})
	}
	changes := 0
	for ; changes < 200 || left.Load() > 0; changes++ {
		s := Service{ID: "web", Listen: []netip.AddrPort{front}, Retries: 1, Balance: Balance(changes % 2)}
		s.Endpoints = at(peers[changes%5:]...)
		if changes%5 == 4 {
			s.Endpoints[0].Weight = 1 + changes%7
		} else {
			s.Endpoints[0].Draining = changes%2 == 0
		}
		if changes%3 == 0 {
			s.Listen = append(s.Listen, second)
		}
		set(t, e, s)
		if left.Load() > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	load.Wait()
	if lost.Load() > 0 {
		t.Errorf("%d of %d requests were lost in %d changes", lost.Load(), requests, changes)
	}
}

// TestUpdateTouchesOnlyItsServices: of 2,000 services an update changes one,
// and no other is as much as looked at.
func TestUpdateTouchesOnlyItsServices(t *testing.T) {
	e := newEngine(t, Options{Loops: 1})
	var all []Service
	for i := range 2000 {
		all = append(all, Service{ID: fmt.Sprint(i), Endpoints: []Endpoint{{Address: netip.AddrPortFrom(netip.MustParseAddr("127.8.2.27"), uint16(i+1)), Weight: 1}}})
	}
	set(t, e, all...)
	before := map[string]*settings{}
	for id, v := range e.services {
		before[id] = v.settings.Load()
	}
	all[7].Retries = 5
	set(t, e, all[7])
	changed := 0
	for id, v := range e.services {
		if v.settings.Load() != before[id] {
			changed++
		}
	}
	if changed != 1 {
		t.Errorf("%d services were touched", changed)
	}
	few, many := updateAllocations(t, 10), updateAllocations(t, 2000)
	if diff := cmp.Diff(few, many); diff != "" {
		t.Errorf("allocations of one change grow with the number of services: %s", diff)
	}
}

// updateAllocations counts what one change allocates beside n services.
func updateAllocations(t *testing.T, n int) int {
	e := newEngine(t, Options{Loops: 1})
	for i := range n {
		set(t, e, Service{ID: fmt.Sprint(i)})
	}
	s := []Service{{ID: "0", Endpoints: []Endpoint{{Address: netip.MustParseAddrPort("127.8.2.27:1"), Weight: 1}}}}
	return int(testing.AllocsPerRun(20, func() { e.Update(s, nil) }))
}

func TestClose(t *testing.T) {
	before := openDescriptors(t)
	e, err := New(Options{Loops: 2})
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, "127.8.2.28", echo)
	front := freeAddress(t, "127.8.2.29")
	set(t, e, Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(p)})
	short, long := dial(t, front), dial(t, front)
	say(t, short, "1")
	say(t, long, "2")
	ctx, cancel := context.WithCancel(context.Background())
	closed := make(chan error)
	go func() { closed <- e.Close(ctx) }()
	eventually(t, "new connections are refused", func() bool {
		c, err := net.Dial("tcp", front.String())
		if err == nil {
			c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	if errs := e.Update([]Service{{ID: "new"}}, nil); !errors.Is(errs["new"], ErrClosed) {
		t.Errorf("an update while closing: %v", errs)
	}
	say(t, short, "still carried")
	say(t, long, "still carried")
	short.Close()
	cancel()
	if err := <-closed; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "reset") {
		t.Errorf("close said %v", err)
	}
	if _, err := long.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection that was left: %v", err)
	}
	long.Close()
	if err := e.Close(context.Background()); err != nil {
		t.Errorf("a second close: %v", err)
	}
	if s := e.Statistics(); s.Active != 0 {
		t.Errorf("%d active after close", s.Active)
	}
	p.stop()
	eventually(t, "no descriptor left", func() bool { return openDescriptors(t) <= before })
}

// TestCloseWaits: with patience, close ends when the last connection has.
func TestCloseWaits(t *testing.T) {
	e, err := New(Options{Loops: 2})
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, "127.8.2.28", echo)
	front := freeAddress(t, "127.8.2.29")
	set(t, e, Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(p)})
	c := dial(t, front)
	say(t, c, "1")
	closed := make(chan error)
	go func() { closed <- e.Close(context.Background()) }()
	say(t, c, "2")
	c.CloseWrite()
	if _, err := io.ReadAll(c); err != nil {
		t.Error(err)
	}
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("close didn't end")
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
