package loop

import (
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"sort"

	"github.com/cespare/xxhash/v2"
)

// The balance methods. All of them choose among service.usable, leave out
// excluded (ids of endpoints that have failed this client already), and are
// called with the service locked.

func (s *service) nextInTurn(excluded []int32) *endpoint {
	var best *endpoint
	var total int64
	for _, e := range s.usable {
		if excluded != nil && slices.Contains(excluded, e.id) {
			continue
		}
		e.current += e.weight
		total += e.weight
		if best == nil || e.current > best.current {
			best = e
		}
	}
	if best != nil {
		best.current -= total
	}
	return best
}

// leastLoaded compares (connections + 1) / weight, so that an idle service
// begins with its heaviest endpoints; among equals it goes round.
func (s *service) leastLoaded(excluded []int32) *endpoint {
	n := len(s.usable)
	if n == 0 {
		return nil
	}
	s.turn++
	if s.turn >= n {
		s.turn = 0
	}
	var best *endpoint
	var load int64
	for i := range n {
		j := s.turn + i
		if j >= n {
			j -= n
		}
		e := s.usable[j]
		if excluded != nil && slices.Contains(excluded, e.id) {
			continue
		}
		l := e.active.Load() + 1
		if best == nil || l*best.weight < load*e.weight {
			best, load = e, l
		}
	}
	return best
}

// lessLoadedOfTwo draws two endpoints in proportion to their weights and takes
// the one with fewer connections for its weight, of equals the first drawn. So
// an idle service is served in proportion to weights, and a busy one evens out,
// at a cost that doesn't grow with the number of endpoints.
func (s *service) lessLoadedOfTwo(excluded []int32) *endpoint {
	a, b := s.draw(excluded), s.draw(excluded)
	if a == nil || b.active.Load()*a.weight >= a.active.Load()*b.weight {
		return a
	}
	return b
}

// drawMost is how often draw tries before it looks at all endpoints.
const drawMost = 8

// draw takes an endpoint at random, in proportion to weights.
func (s *service) draw(excluded []int32) *endpoint {
	n := len(s.shares)
	if n == 0 {
		return nil
	}
	for range drawMost {
		at := s.below(s.shares[n-1])
		e := s.usable[sort.Search(n, func(i int) bool { return s.shares[i] > at })]
		if len(excluded) == 0 || !slices.Contains(excluded, e.id) {
			return e
		}
	}
	var total int64
	for _, e := range s.usable {
		if !slices.Contains(excluded, e.id) {
			total += e.weight
		}
	}
	if total == 0 {
		return nil
	}
	at := s.below(total)
	for _, e := range s.usable {
		if slices.Contains(excluded, e.id) {
			continue
		}
		if at -= e.weight; at < 0 {
			return e
		}
	}
	return nil
}

// below is a random number from 0 to n-1; its bias, of n in 2^64, can't be seen.
func (s *service) below(n int64) int64 {
	high, _ := bits.Mul64(s.random.Uint64(), uint64(n))
	return int64(high)
}

// What follows gives the same answer on every node, as long as the nodes know
// the same endpoints: it depends on addresses, ports and weights alone, and the
// functions are fixed.
//
//   - The hash of a client is XXH64 (seed 0) of its address in 16 bytes, an IPv4
//     address as ::ffff:a.b.c.d. Its port has no part in it.
//   - The hash of an endpoint is XXH64 of "address:port" as text, an IPv6
//     address in brackets.
//   - mix is the finalizer of MurmurHash3 (64 bits).

func hashAddress(a netip.Addr) uint64 {
	b := a.As16()
	return xxhash.Sum64(b[:])
}

func hashEndpoint(a netip.AddrPort) uint64 { return xxhash.Sum64String(a.String()) }

func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// highest is weighted rendezvous hashing: the endpoint with the highest score,
// weight / -ln(u), where u between 0 and 1 is made from the hashes of client
// and endpoint. When an endpoint leaves, its clients alone move; when it has
// failed one, that client goes to its second highest.
func highest(list []*endpoint, client uint64, excluded []int32) *endpoint {
	var best *endpoint
	var most float64
	for _, e := range list {
		if excluded != nil && slices.Contains(excluded, e.id) {
			continue
		}
		// 52 bits and a half more: never 0 and never 1.
		u := (float64(mix(client^e.hash)>>12) + 0.5) / (1 << 52)
		score := float64(e.weight) / -math.Log(u)
		if best == nil || score > most || score == most && e.hash > best.hash {
			best, most = e, score
		}
	}
	return best
}
