package loop

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
)

const minute = uint32(time.Minute / tick)

// TestAffinity follows 10,000 clients of one service through weights, draining
// and time.
func TestAffinity(t *testing.T) {
	for b := range Maglev + 1 {
		t.Run(fmt.Sprint("balance ", b), func(t *testing.T) { affinityOf(t, b) })
	}
}

func affinityOf(t *testing.T, b Balance) {
	const clients = 10_000
	s := Service{Balance: b, Endpoints: weighted(1, 2, 3, 4), Affinity: 10 * time.Minute}
	c := newChooser(t, s)
	had := make([]*endpoint, clients)
	count := map[uint16]int{}
	for n := range had {
		had[n] = c.touch(clientAddress(n), 0)
		count[had[n].address.Port()]++
	}
	if b != LeastConnections { // whose clients are gone at once
		for i, w := range []int{1, 2, 3, 4} {
			if n := count[uint16(i+1)]; n < clients*w/10-300 || n > clients*w/10+300 {
				t.Errorf("endpoint %d of weight %d has %d of %d clients", i+1, w, n, clients)
			}
		}
	}
	stay := func(now uint32, when string, may func(n int) bool) (moved int) {
		t.Helper()
		for n := range had {
			e := c.touch(clientAddress(n), now)
			if e != had[n] {
				moved++
				if !may(n) {
					t.Fatalf("%s client %d moved from %s to %s", when, n, had[n].address, e.address)
				}
			}
			had[n] = e
		}
		return moved
	}
	nobody := func(int) bool { return false }
	// Counted from the last connection, not from the first.
	for now := uint32(0); now <= 30*minute; now += 10 * minute {
		stay(now, "within the timeout", nobody)
	}
	now := 30 * minute
	// Weights are for those who come.
	s.Endpoints = weighted(9, 1, 1, 1, 1)
	c.set(t, s)
	stay(now, "with other weights", nobody)

	s.Endpoints[1].Draining = true
	c.set(t, s)
	before := map[int]bool{}
	for n, e := range had {
		before[n] = e.address.Port() == 2
	}
	if moved := stay(now, "when another endpoint drained,", func(n int) bool { return before[n] }); moved == 0 && b != LeastConnections {
		t.Error("nobody had the draining endpoint")
	}
	for n, e := range had {
		if e.address.Port() == 2 {
			t.Fatalf("client %d got the draining endpoint", n)
		}
	}
	// Back, it gets none of those that went; weight 0 and leaving move them too.
	s.Endpoints[1].Draining = false
	c.set(t, s)
	stay(now, "when a drained endpoint came back,", nobody)
	for _, change := range []func(){
		func() { s.Endpoints[2].Weight = 0 },
		func() { s.Endpoints = append(s.Endpoints[:3:3], s.Endpoints[4:]...) },
	} {
		gone := map[string]bool{}
		for _, e := range c.members {
			gone[e.address.String()] = true
		}
		change()
		c.set(t, s)
		for _, e := range c.members {
			delete(gone, e.address.String())
		}
		stay(now, "when another endpoint went,", func(n int) bool { return gone[had[n].address.String()] })
	}
	// The time is over: each is chosen for anew.
	fresh := newChooser(t, Service{Balance: b, Endpoints: s.Endpoints})
	if b == SourceHash || b == Maglev {
		now += 10*minute + 1
		for n := range had {
			if e, want := c.touch(clientAddress(n), now), fresh.touch(clientAddress(n), 0); e.address != want.address {
				t.Fatalf("after its time client %d has %s, want %s", n, e.address, want.address)
			}
		}
	}
	s.Affinity = 0
	c.set(t, s)
	if c.affinity != nil {
		t.Error("affinity is off and clients are remembered")
	}
}

// TestAffinityBounded: the oldest are forgotten, be it for their number or for
// their age, and nothing of them is left.
func TestAffinityBounded(t *testing.T) {
	c := newChooser(t, Service{Endpoints: weighted(1, 1, 1), Affinity: time.Minute})
	const most = 1000
	c.affinity.most = most
	first := c.touch(clientAddress(0), 0)
	for n := 1; n < most; n++ {
		c.touch(clientAddress(n), 1)
	}
	second := c.touch(clientAddress(1), 2) // now the newest
	c.touch(clientAddress(most), 3)        // one too many
	known := func(n int, now uint32) *endpoint { return c.affinity.find(clientAddress(n), now) }
	if known(0, 3) != nil || known(1, 3) != second || known(2, 3) == nil {
		t.Errorf("the first %v, used again %v, the third %v", known(0, 3), known(1, 3), known(2, 3))
	}
	if c.touch(clientAddress(0), 3); known(0, 3) == nil || known(2, 3) != nil {
		t.Errorf("it came again: %v; the oldest: %v; it had %v", known(0, 3), known(2, 3), first.address)
	}
	c.affinity.verify(t, most)
	// Five times as many, of whom most are long gone when the last ones come.
	now := 2 * minute
	for n := range 5 * most {
		now++
		c.touch(clientAddress(10_000+n), now)
		c.affinity.verify(t, -1)
	}
	// With one a tick, a minute's worth is left.
	if n := len(c.affinity.places); n < int(minute) || n > int(minute)+2 {
		t.Errorf("%d clients are remembered, want a minute's worth, %d", n, minute)
	}
	if n := len(c.affinity.entries); n > most {
		t.Errorf("%d places for at most %d clients", n, most)
	}
}

// verify holds map, list and free places against each other. n of -1 is any.
func (a *affinity) verify(t *testing.T, n int) {
	t.Helper()
	listed, last := 0, int32(-1)
	for i := a.newest; i >= 0; i = a.entries[i].older {
		if a.entries[i].newer != last || a.places[a.entries[i].client] != i {
			t.Fatalf("entry %d is linked wrongly", i)
		}
		last = i
		listed++
	}
	free := 0
	for i := a.free; i >= 0; i = a.entries[i].older {
		free++
	}
	if last != a.oldest || listed != len(a.places) || listed+free != len(a.entries) || n >= 0 && listed != n {
		t.Fatalf("%d listed of %d, %d in the map, %d free of %d", listed, n, len(a.places), free, len(a.entries))
	}
}

// TestAffinityCarried: clients of many addresses, with real connections over
// several loops, while an endpoint drains and one refuses.
func TestAffinityCarried(t *testing.T) {
	e := newEngine(t, Options{})
	var peers []*peer
	for i := range 3 {
		peers = append(peers, newPeer(t, fmt.Sprintf("127.8.3.%d", i+1), named(fmt.Sprint(i))))
	}
	front := freeAddress(t, "127.8.3.10")
	s := Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(peers...), Affinity: time.Hour, Retries: 2}
	set(t, e, s)
	ask := func(client int) string {
		t.Helper()
		name, err := askFrom(netip.AddrFrom4([4]byte{127, 8, 100, byte(client)}), front)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	const clients = 60
	had := map[int]string{}
	for n := range clients {
		had[n] = ask(n)
	}
	same := func(when string, but string) {
		t.Helper()
		for range 2 {
			for n := range clients {
				name := ask(n)
				if name != had[n] && had[n] != but || name == but {
					t.Fatalf("%s client %d had %s and got %s", when, n, had[n], name)
				}
				had[n] = name
			}
		}
	}
	same("with all endpoints", "")
	s.Endpoints[0].Draining = true
	set(t, e, s)
	same("with one that drains", "0")
	peers[1].stop() // refuses from now on
	same("with one that refuses", "1")
}

// askFrom is ask from an address of the client's own.
func askFrom(client netip.Addr, front netip.AddrPort) (string, error) {
	d := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(client, 0))}
	return askBy(&d, front)
}
