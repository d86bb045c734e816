package loop

import (
	"cmp"
	"net/netip"
	"slices"
)

// Sizes of a maglev table: primes, the greater one for services of more than
// tableCrowd endpoints. A table of another size sends nearly every client
// elsewhere, so there are only two, and the step lies where few services go.
const (
	tableSmall = 65_537
	tableLarge = 655_373
	tableCrowd = 655 // so that each endpoint has a hundred slots
)

// maglevMost is the greatest number of endpoints of a table.
const maglevMost = 1<<16 - 1

// table is a maglev lookup table (Eisenbud and others, NSDI 2016, section 3.4):
// a client's hash modulo its length gives the endpoint. Each endpoint has its
// own order of all slots and takes the next free one when it is its turn; with
// weights an endpoint of half the greatest weight has a turn in every other
// round, as in Envoy. Each has a slot at least, however small its weight.
//
// A table is built when endpoints or weights change, by the caller of
// Engine.Update, and never changed: loops see the old one or the new one.
type table struct {
	keys    []tableKey
	slots   []uint16 // place in keys
	members []*endpoint
}

// tableKey is all that a table depends on.
type tableKey struct {
	address netip.AddrPort
	weight  int64
}

// newTable builds the table of some endpoints, or takes what an old one had if
// nothing has changed. members of the result have to be set by bind.
func newTable(keys []tableKey, old *table) *table {
	if len(keys) == 0 {
		return nil
	}
	slices.SortFunc(keys, func(a, b tableKey) int { return a.address.Compare(b.address) })
	if old != nil && slices.Equal(keys, old.keys) {
		return &table{keys: old.keys, slots: old.slots}
	}
	size := uint64(tableSmall)
	if len(keys) > tableCrowd {
		size = tableLarge
	}
	return &table{keys: keys, slots: fill(keys, size)}
}

// fill deals out the slots. turns is a heap of who is next: the round, and in a
// round the order of the keys.
func fill(keys []tableKey, size uint64) []uint16 {
	type way struct{ at, step, taken uint64 }
	ways := make([]way, len(keys))
	turns := make([]uint64, len(keys))
	heaviest := int64(0)
	for i, k := range keys {
		h := hashEndpoint(k.address)
		ways[i] = way{at: mix(h) % size, step: mix(h^0x9e3779b97f4a7c15)%(size-1) + 1}
		turns[i] = uint64(i) // all in round 0: a heap already
		heaviest = max(heaviest, k.weight)
	}
	const free = maglevMost
	slots := make([]uint16, size)
	for i := range slots {
		slots[i] = free
	}
	for range slots {
		i := turns[0] & 0xffff
		w := &ways[i]
		for slots[w.at] != free {
			if w.at += w.step; w.at >= size {
				w.at -= size
			}
		}
		slots[w.at] = uint16(i)
		w.taken++
		// The heaviest has a turn in every round, so there are never more
		// rounds than slots.
		round := min(w.taken*uint64(heaviest)/uint64(keys[i].weight), size)
		turns[0] = round<<16 | i
		sink(turns)
	}
	return slots
}

// sink puts the first of a heap where it belongs.
func sink(h []uint64) {
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if h[i] <= h[child] {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

// bind gives the table its endpoints: the same addresses in any order.
func (t *table) bind(members []*endpoint) {
	if t == nil {
		return
	}
	t.members = slices.SortedFunc(slices.Values(members), func(a, b *endpoint) int {
		return cmp.Or(a.address.Compare(b.address), cmp.Compare(a.id, b.id))
	})
}

// lookUp asks the table. The clients of an endpoint that is ejected, or has
// failed them, are shared out by the highest score among the others.
func (s *service) lookUp(client netip.Addr, excluded []int32) *endpoint {
	if s.table == nil {
		return nil
	}
	h := hashAddress(client)
	e := s.table.members[s.table.slots[h%uint64(len(s.table.slots))]]
	if e.trouble.ejected || excluded != nil && slices.Contains(excluded, e.id) {
		return highest(s.usable, h, excluded)
	}
	return e
}
