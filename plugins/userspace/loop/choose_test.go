package loop

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// choices is how often the tests of balance choose.
const choices = 100_000

// chooser is a service without sockets.
type chooser struct {
	*service
	engine *Engine
}

func newChooser(t testing.TB, s Service) *chooser {
	t.Helper()
	e := &Engine{shared: &shared{start: time.Now()}, services: map[string]*service{}}
	c := &chooser{newService("web"), e}
	c.random.Seed(1, 2)
	c.set(t, s)
	return c
}

func (c *chooser) set(t testing.TB, s Service) {
	t.Helper()
	s.ID = "web"
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	u := &update{engine: c.engine, errs: map[string][]error{}}
	u.configure(c.service, &s)
	if err := u.errors(); err != nil {
		t.Fatal(err)
	}
}

// touch chooses for a connection that ends at once.
func (c *chooser) touch(client netip.Addr, now uint32) *endpoint {
	e := c.pick(client, now, nil)
	if e != nil {
		c.engine.shared.endpoints.release(e)
	}
	return e
}

// clientAddress is one of many, of both families.
func clientAddress(n int) netip.Addr {
	if n%4 == 3 {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0xd, 0xb8, 12: byte(n >> 24), 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// weighted makes endpoints of these weights; the first has the port 1.
func weighted(weights ...int) []Endpoint {
	var list []Endpoint
	for i, w := range weights {
		list = append(list, Endpoint{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), uint16(i+1)), Weight: w})
	}
	return list
}

func equal(n int) []int { return slices.Repeat([]int{1}, n) }

// chiSquare compares counts with the shares that they should have. With the
// right shares the result is near to the number of counts less one, and above
// what tooFar says once in a million cases.
func chiSquare(counts []int, shares []float64) float64 {
	var n, all, x float64
	for i := range counts {
		n += float64(counts[i])
		all += shares[i]
	}
	for i := range counts {
		want := n * shares[i] / all
		x += (float64(counts[i]) - want) * (float64(counts[i]) - want) / want
	}
	return x
}

// tooFar is the Wilson-Hilferty approximation of the chi-square quantile at 4.75
// standard deviations.
func tooFar(degrees int) float64 {
	k := float64(degrees)
	return k * math.Pow(1-2/(9*k)+4.75*math.Sqrt(2/(9*k)), 3)
}

var weightings = map[string][]int{
	"two":           {1, 1},
	"three":         {5, 2, 1},
	"ten, one idle": {1, 2, 3, 4, 5, 6, 7, 8, 9, 0},
	"hundred":       equal(100),
	"far apart":     {1, 50},
}

// TestDistribution compares what each method chooses, for clients that stay and
// for clients that go at once, with its definition.
func TestDistribution(t *testing.T) {
	for name, weights := range weightings {
		for _, b := range []Balance{RoundRobin, LeastConnections, Random, SourceHash, Maglev} {
			for _, stay := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/stay %v", name, b, stay), func(t *testing.T) {
					distribution(t, b, weights, stay)
				})
			}
		}
	}
}

func distribution(t *testing.T, b Balance, weights []int, stay bool) {
	c := newChooser(t, Service{Balance: b, Endpoints: weighted(weights...)})
	counts := make([]int, len(weights))
	for n := range choices {
		e := c.pick(clientAddress(n), 0, nil)
		counts[int(e.address.Port())-1]++
		if !stay {
			c.engine.shared.endpoints.release(e)
		}
	}
	var shares []float64
	var some []int
	total := 0
	for i, w := range weights {
		total += w
		if w == 0 {
			if counts[i] != 0 {
				t.Errorf("weight 0 was chosen %d times", counts[i])
			}
			continue
		}
		shares, some = append(shares, float64(w)), append(some, counts[i])
	}
	exact := func(most float64) {
		for i, w := range weights {
			if want := float64(choices*w) / float64(total); math.Abs(float64(counts[i])-want) > most {
				t.Errorf("endpoint %d of weight %d was chosen %d times, want %.1f within %v", i+1, w, counts[i], want, most)
			}
		}
	}
	random := func() {
		if x := chiSquare(some, shares); x > tooFar(len(some)-1) {
			t.Errorf("chi-square %.1f of %d counts, at most %.1f expected: %v", x, len(some), tooFar(len(some)-1), counts)
		}
	}
	switch b {
	case RoundRobin:
		exact(1)
	case LeastConnections:
		if stay {
			exact(1)
			return
		}
		// None has any connection, so the heaviest are best, in turn.
		heaviest := slices.Max(weights)
		for i, w := range weights {
			if (w == heaviest) != (counts[i] > 0) {
				t.Errorf("endpoint %d of weight %d was chosen %d times", i+1, w, counts[i])
			}
		}
	case Random:
		if stay {
			// One choice of two keeps the load even: at most a few connections
			// above the mean for a weight of 1, where a single draw is off by
			// the square root of its share.
			heaviest := slices.Max(weights)
			exact(6 * float64(heaviest))
			return
		}
		random()
	case SourceHash:
		random()
	case Maglev:
		for i, n := range shareOf(c.table) {
			shares[i] = float64(n)
		}
		random()
	}
}

// shareOf counts the slots of each endpoint, in the order of addresses.
func shareOf(t *table) []int {
	counts := make([]int, len(t.keys))
	for _, i := range t.slots {
		counts[i]++
	}
	return counts
}

// TestTableShares: each endpoint has its share of the table, to one slot or two.
func TestTableShares(t *testing.T) {
	for name, weights := range weightings {
		c := newChooser(t, Service{Balance: Maglev, Endpoints: weighted(weights...)})
		total := 0
		for _, w := range weights {
			total += w
		}
		for i, n := range shareOf(c.table) {
			want := float64(len(c.table.slots)*weights[i]) / float64(total)
			if math.Abs(float64(n)-want) > 2 {
				t.Errorf("%s: endpoint %d of weight %d has %d slots, want %.1f", name, i+1, weights[i], n, want)
			}
		}
	}
	// However small its weight, and however many there are.
	weights := equal(tableCrowd + 1)
	weights[3] = MaxWeight
	c := newChooser(t, Service{Balance: Maglev, Endpoints: weighted(weights...)})
	if n := len(c.table.slots); n != tableLarge {
		t.Errorf("the table of %d endpoints has %d slots", len(weights), n)
	}
	for i, n := range shareOf(c.table) {
		if i != 3 && n != 1 {
			t.Errorf("endpoint %d of weight 1 beside one of %d has %d slots", i+1, MaxWeight, n)
		}
	}
	for _, n := range []int{tableSmall, tableLarge} {
		for d := 2; d*d <= n; d++ {
			if n%d == 0 {
				t.Errorf("%d is no prime", n)
			}
		}
	}
}

// TestFewKeysMove: when one of 100 endpoints leaves, its clients move, and of
// the others almost none.
func TestFewKeysMove(t *testing.T) {
	for b, most := range map[Balance]int{SourceHash: 0, Maglev: choices * 2 / 100} {
		list := weighted(equal(100)...)
		c := newChooser(t, Service{Balance: b, Endpoints: list})
		before := make([]*endpoint, choices)
		for n := range before {
			before[n] = c.touch(clientAddress(n), 0)
		}
		left := list[41].Address
		others := slices.Delete(slices.Clone(list), 41, 42)
		c.set(t, Service{Balance: b, Endpoints: others})
		moved, lost := 0, 0
		for n, old := range before {
			e := c.touch(clientAddress(n), 0)
			switch {
			case old.address == left:
				lost++
			case e != old:
				moved++
			}
		}
		t.Logf("balance %d: of %d keys of others %d moved, %.2f%%", b, choices-lost, moved, 100*float64(moved)/float64(choices-lost))
		if moved > most || lost == 0 {
			t.Errorf("balance %d: %d keys of others moved, at most %d may; %d of its own", b, moved, most, lost)
		}
		// It comes back: all is as it was.
		c.set(t, Service{Balance: b, Endpoints: list})
		for n, old := range before {
			if e := c.touch(clientAddress(n), 0); e.address != old.address {
				t.Fatalf("balance %d: client %s had %s, now %s", b, clientAddress(n), old.address, e.address)
			}
		}
	}
}

// TestNodesAgree: two nodes that learned of the same endpoints in another order,
// one after another, choose alike, also when the first choice fails.
func TestNodesAgree(t *testing.T) {
	for _, b := range []Balance{SourceHash, Maglev} {
		list := weighted(3, 1, 4, 1, 5, 9, 2, 6, 5, 3)
		one := newChooser(t, Service{Balance: b, Endpoints: list})
		mixed := slices.Clone(list)
		rand.New(rand.NewPCG(3, 4)).Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		other := newChooser(t, Service{Balance: b, Endpoints: weighted(7)})
		for n := range mixed {
			other.set(t, Service{Balance: b, Endpoints: mixed[:n+1]})
		}
		for n := range 5000 {
			a := clientAddress(n)
			var x, y []int32
			for try := range len(list) {
				p, q := one.pick(a, 0, x), other.pick(a, 0, y)
				if p == nil || q == nil || p.address != q.address {
					t.Fatalf("balance %d, client %s, try %d: one node takes %v, the other %v", b, a, try, p, q)
				}
				x, y = append(x, p.id), append(y, q.id)
			}
			if e := one.pick(a, 0, x); e != nil {
				t.Fatalf("balance %d: %s was chosen again", b, e.address)
			}
		}
	}
}

// TestChoicesOfToday: nodes of different versions have to choose alike, so these
// answers may never change.
func TestChoicesOfToday(t *testing.T) {
	got := map[string]string{}
	for name, b := range map[string]Balance{"source_hash": SourceHash, "maglev": Maglev} {
		c := newChooser(t, Service{Balance: b, Endpoints: append(weighted(1, 2, 1), Endpoint{Address: netip.MustParseAddrPort("[2001:db8::9]:4"), Weight: 2})})
		for _, a := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.77", "2001:db8::1", "2001:db8::2", "::ffff:192.0.2.1"} {
			e := c.touch(netip.MustParseAddr(a), 0)
			got[name] += fmt.Sprint(e.address.Port())
		}
	}
	want := map[string]string{"source_hash": "2414422", "maglev": "4414314"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestExcluded: no method takes an endpoint that has failed the client, and all
// take the last one that hasn't.
func TestExcluded(t *testing.T) {
	for b := range Maglev + 1 {
		c := newChooser(t, Service{Balance: b, Endpoints: weighted(equal(12)...)})
		for n := range 200 {
			var excluded []int32
			for range 12 {
				e := c.pick(clientAddress(n), 0, excluded)
				if e == nil || slices.Contains(excluded, e.id) {
					t.Fatalf("balance %d: %v without %v", b, e, excluded)
				}
				excluded = append(excluded, e.id)
			}
			if e := c.pick(clientAddress(n), 0, excluded); e != nil {
				t.Fatalf("balance %d took %s, which had failed", b, e.address)
			}
		}
	}
}

// TestTakesNone: draining endpoints and those of weight 0 get nothing, by any
// method, and an empty service gives nobody.
func TestTakesNone(t *testing.T) {
	for b := range Maglev + 1 {
		list := weighted(1, 0, 5, 2)
		list[2].Draining = true
		c := newChooser(t, Service{Balance: b, Endpoints: list, Affinity: time.Minute})
		for n := range 1000 {
			if p := c.touch(clientAddress(n), 0).address.Port(); p == 2 || p == 3 {
				t.Fatalf("balance %d: endpoint %d was chosen", b, p)
			}
		}
		list[0].Weight, list[3].Draining = 0, true
		c.set(t, Service{Balance: b, Endpoints: list, Affinity: time.Minute})
		if e := c.touch(clientAddress(1), 0); e != nil || !c.empty() {
			t.Errorf("balance %d: %v was chosen where none is", b, e)
		}
	}
}

// TestTableKept: a table is built for endpoints and weights, and for nothing
// else.
func TestTableKept(t *testing.T) {
	list := weighted(1, 2, 3)
	c := newChooser(t, Service{Balance: Maglev, Endpoints: list})
	first := &c.table.slots[0]
	slices.Reverse(list)
	c.set(t, Service{Balance: Maglev, Endpoints: list, Retries: 3, Affinity: time.Minute})
	if &c.table.slots[0] != first {
		t.Error("the table was built again for the same endpoints")
	}
	list[0].Weight++
	c.set(t, Service{Balance: Maglev, Endpoints: list})
	if &c.table.slots[0] == first {
		t.Error("the table was kept for other weights")
	}
	c.set(t, Service{Balance: Random, Endpoints: list})
	if c.table != nil {
		t.Error("a service with another balance has a table")
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{10, 1000} {
		for m := range Maglev + 1 {
			for _, affinity := range []time.Duration{0, time.Minute} {
				b.Run(fmt.Sprintf("endpoints=%d/balance=%d/affinity=%v", n, m, affinity), func(b *testing.B) {
					c := newChooser(b, Service{Balance: m, Endpoints: weighted(equal(n)...), Affinity: affinity})
					for k := 0; b.Loop(); k++ {
						c.touch(clientAddress(k%10_000), 0)
					}
				})
			}
		}
	}
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var keys []tableKey
			for _, e := range weighted(equal(n)...) {
				keys = append(keys, tableKey{e.Address, int64(e.Weight)})
			}
			for b.Loop() {
				newTable(slices.Clone(keys), nil)
			}
		})
	}
}
