package vip

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var randomSeed = flag.Uint64("random-seed", 0, "seed of the random changes; 0 for a new one")

// TestRandomLeases does random things, and checks after each that addresses
// are unique, that nobody's address moves unless his pool does, that addresses
// rest, and that the file says the same as the memory.
func TestRandomLeases(t *testing.T) {
	seed := *randomSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -run %s -random-seed %d", t.Name(), seed)
	r := rand.New(rand.NewPCG(seed, 0))
	ranges := [][]Pool{
		{pool("a", "10.96.0.0/29", "fd00::/125"), pool("b", "10.97.0.0/30")},
		{pool("a", "10.96.0.0/29"), pool("b", "10.97.0.0/30", "fd01::/126")},
		{pool("b", "10.96.0.0/28")},
	}
	pools := ranges[0]
	s := open(t, pools...)
	released := map[netip.Addr]claim{}
	for step := range 1500 {
		service := fmt.Sprint("s", r.IntN(12))
		what := ""
		switch r.IntN(10) {
		case 0:
			pools = ranges[r.IntN(len(ranges))]
			reserved := []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.96.0.", r.IntN(10)))}
			s.Configure(pools, reserved)
			what = fmt.Sprint("configure ", pools, reserved)
		case 1:
			d := []time.Duration{time.Minute, time.Hour, 13 * time.Hour}[r.IntN(3)]
			s.now = s.now.Add(d)
			what = "pass " + d.String()
		case 2:
			before := s.List()
			s.reopen()
			if diff := cmp.Diff(before, s.List(), compareAddresses); diff != "" || s.log.Len() > 0 {
				t.Errorf("after reopening (-before +after):\n%s\n%s", diff, s.log.String())
			}
			what = "reopen"
		case 3, 4:
			if err := s.Release(service); err != nil {
				t.Fatal(err)
			}
			what = "release " + service
		default:
			what = "claim of " + service
			before, had := s.Lease(service)
			name := pools[r.IntN(len(pools))].Name
			l, err := s.Claim(name, service)
			switch {
			case errors.Is(err, ErrExhausted):
				if after, _ := s.Lease(service); !cmp.Equal(before, after, compareAddresses) {
					t.Errorf("a claim that failed has changed %v to %v", before, after)
				}
			case err != nil:
				t.Fatal(err)
			default:
				checkLease(t, s, l, pools, before, had, released)
			}
		}
		consistent(t, s.table)
		for a, c := range s.table.byAddress {
			if c.held() {
				delete(released, a)
			} else {
				released[a] = c
			}
		}
		for a, c := range released {
			// Forgotten by hand, or rested.
			if _, there := s.table.byAddress[a]; !there && (what == "release "+c.Service || !s.now.Before(c.Released.Add(Rest))) {
				delete(released, a)
			}
		}
		if t.Failed() {
			t.Fatalf("after step %d: %s", step, what)
		}
	}
}

func checkLease(t *testing.T, s *shelf, l Lease, pools []Pool, before Lease, had bool, released map[netip.Addr]claim) {
	t.Helper()
	p := pools[slices.IndexFunc(pools, func(p Pool) bool { return p.Name == l.Pool })]
	if len(l.Addresses) != len(p.CIDR) {
		t.Errorf("lease %v has not one address for each of %v", l, p.CIDR)
	}
	for _, a := range l.Addresses {
		if !slices.ContainsFunc(p.CIDR, func(r netip.Prefix) bool { return usable(r, a) }) {
			t.Errorf("%s is not one of %v", a, p.CIDR)
		}
		if slices.Contains(before.Addresses, a) {
			continue
		}
		if s.table.reserved[a] {
			t.Errorf("%s is reserved, and was given to %s", a, l.Service)
		}
		if c, rests := released[a]; rests && c.Service != l.Service && s.now.Before(c.Released.Add(Rest)) {
			t.Errorf("%s rests for %s, and was given to %s", a, c.Service, l.Service)
		}
	}
	for _, a := range before.Addresses {
		if had && slices.ContainsFunc(p.CIDR, func(r netip.Prefix) bool { return usable(r, a) }) && !slices.Contains(l.Addresses, a) {
			t.Errorf("%s lost %s, which is in its pool", l.Service, a)
		}
	}
}
