package loop

import (
	"net"
	"net/netip"
	"testing"
)

// TestDistributionCarried is TestDistribution with real connections, over all
// loops, from clients of many addresses.
func TestDistributionCarried(t *testing.T) {
	e := newEngine(t, Options{})
	var list []Endpoint
	port := map[string]int{} // of the oracle's endpoint, by the name that answers
	for i, name := range []string{"a", "b", "c"} {
		p := newPeer(t, "127.8.9.1", named(name))
		list = append(list, Endpoint{Address: p.address, Weight: i + 1})
		port[name] = i
	}
	front := freeAddress(t, "127.8.9.2")
	client := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{127, 8, 110, byte(n)}) }
	const n = 600
	for _, b := range []Balance{RoundRobin, Random, SourceHash, Maglev} {
		s := Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: list, Balance: b}
		set(t, e, s)
		oracle := newChooser(t, s)
		counts := make([]int, len(list))
		for i := range n {
			name, err := askFrom(client(i%200), front)
			if err != nil {
				t.Fatal(err)
			}
			counts[port[name]]++
			if b == SourceHash || b == Maglev {
				if want := oracle.touch(client(i%200), 0); want.address != list[port[name]].Address {
					t.Errorf("balance %d: client %s got %s, want that at %s", b, client(i%200), name, want.address)
				}
			}
		}
		t.Logf("balance %d: %v", b, counts)
		switch b {
		case RoundRobin:
			if counts[0] != n/6 || counts[1] != n/3 || counts[2] != n/2 {
				t.Errorf("in turn: %v", counts)
			}
		case Random:
			// Connections end a moment after their clients have seen the end, so
			// this is near to the weights, not exactly a draw.
			if x := chiSquare(counts, []float64{1, 2, 3}); x > tooFar(2) {
				t.Errorf("chi-square %.1f: %v", x, counts)
			}
		}
	}
	// Clients that stay, for those who count.
	for _, b := range []Balance{LeastConnections, Random} {
		s := Service{ID: "held", Listen: []netip.AddrPort{freeAddress(t, "127.8.9.3")}, Balance: b}
		for i := range 3 {
			p := newPeer(t, "127.8.9.4", func(c *net.TCPConn) { c.Read(make([]byte, 1)) })
			s.Endpoints = append(s.Endpoints, Endpoint{Address: p.address, Weight: i + 1})
		}
		set(t, e, s)
		for range 120 {
			dial(t, s.Listen[0])
		}
		eventually(t, "all are carried", func() bool { return statistics(t, e, "held").Active == 120 })
		for i, p := range statistics(t, e, "held").Endpoints {
			most := int64(0)
			if b == Random {
				most = 12
			}
			if off := p.Active - int64(20*(i+1)); off > most || off < -most {
				t.Errorf("balance %d: endpoint %d of weight %d has %d of 120", b, i, i+1, p.Active)
			}
		}
		if errs := e.Update(nil, []string{"held"}); errs != nil {
			t.Fatal(errs)
		}
	}
}
