package catalog

import (
	"cmp"
	"container/heap"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// rank orders services that want the same frontend, the same way on every node:
// an address in a file, then the older lease, then the name.
type rank struct {
	class int
	since time.Time
	name  string
}

// The classes of ranks.
const (
	// rankFile has its addresses from a file.
	rankFile = iota
	// rankLease has a lease of its own.
	rankLease
	// rankOther has its address from meta, or shares it.
	rankOther
	// rankLeaving only has its endpoints drained, and gives way to everybody.
	rankLeaving
)

func (r rank) compare(o rank) int {
	return cmp.Or(cmp.Compare(r.class, o.class), r.since.Compare(o.since), cmp.Compare(r.name, o.name))
}

// over says in words why r comes before o.
func (r rank) over(o rank) string {
	switch {
	case r.class != o.class && r.class == rankFile:
		return "whose address is set in a file"
	case r.class != o.class && r.class == rankLease:
		return "which has the lease of the address"
	case r.class != o.class:
		return "which comes first"
	case !r.since.Equal(o.since):
		return "whose lease is older"
	default:
		return "whose name comes first"
	}
}

// frontendKey is what no two services may have in common.
type frontendKey struct {
	address  netip.Addr
	port     uint16
	protocol dataplane.Protocol
}

func keyOf(f dataplane.Frontend) frontendKey { return frontendKey{f.Address, f.Port, f.Protocol} }

// standing is where an entry stands among its rivals.
type standing struct {
	// claims it makes, as they are in the index, for this dataplane.
	claims    []dataplane.Frontend
	dataplane string
	rank      rank
	// wins is set while it may have them all; else lost says who is in the way,
	// unless it makes no claim.
	wins bool
	lost string
}

// rivals decides who of several services may have a frontend, and that all
// frontends of one VIP belong to one dataplane. A service wins when no better
// one that wins itself is in its way; it then has all its frontends, else none.
// The result depends on the claims alone, not on the order in which they came.
type rivals struct {
	frontends map[frontendKey][]*entry
	addresses map[netip.Addr]*addressClaims
}

// addressClaims are the services with frontends at one address, node frontends
// aside, which may belong to several dataplanes.
type addressClaims struct {
	entries    []*entry
	dataplanes map[string]int
}

func newRivals() rivals {
	return rivals{frontends: map[frontendKey][]*entry{}, addresses: map[netip.Addr]*addressClaims{}}
}

// settle takes in new judgements and decides anew where they differ in their
// claims. It gives them, and those whose standing changed because of them.
func (r *rivals) settle(judged []*entry) []*entry {
	affected := make(map[*entry]struct{}, len(judged))
	queue := contest{queued: map[*entry]struct{}{}}
	for _, e := range judged {
		affected[e] = struct{}{}
		if e.standing.same(&e.judged) {
			continue
		}
		// Rivals of what it gives up and of what it takes are to look again.
		queue.addRivals(r, e)
		r.drop(e)
		e.standing = standing{claims: e.judged.frontends, dataplane: e.judged.dataplane, rank: e.judged.rank}
		r.add(e)
		queue.addRivals(r, e)
		queue.add(e)
	}
	heap.Init(&queue)
	for len(queue.heap) > 0 {
		e := queue.next()
		lost := r.contest(e)
		wins := lost == "" && len(e.standing.claims) > 0
		if lost == e.standing.lost && wins == e.standing.wins {
			continue
		}
		affected[e] = struct{}{}
		changed := wins != e.standing.wins
		e.standing.wins, e.standing.lost = wins, lost
		if changed {
			// Only those below it can be affected, so each is decided once.
			r.each(e, func(o *entry) {
				if e.standing.rank.compare(o.standing.rank) < 0 {
					queue.push(o)
				}
			})
		}
	}
	out := make([]*entry, 0, len(affected))
	for e := range affected {
		out = append(out, e)
	}
	return out
}

func (s *standing) same(j *judgement) bool {
	return s.dataplane == j.dataplane && s.rank.compare(j.rank) == 0 && slices.Equal(s.claims, j.frontends)
}

// contest gives who is in the way of an entry, in words; empty for nobody.
func (r *rivals) contest(e *entry) string {
	s := &e.standing
	for _, f := range s.claims {
		if o := better(s.rank, r.frontends[keyOf(f)], func(*entry) bool { return true }); o != nil {
			return fmt.Sprintf("frontend %s/%s belongs to service %q, %s",
				netip.AddrPortFrom(f.Address, f.Port), f.Protocol, o.name, o.standing.rank.over(s.rank))
		}
		at := r.addresses[f.Address]
		if f.Kind == dataplane.Node || at == nil || len(at.dataplanes) < 2 {
			continue
		}
		o := better(s.rank, at.entries, func(o *entry) bool {
			return o.standing.dataplane != s.dataplane && (f.Kind == dataplane.Virtual || o.hasVIP(f.Address))
		})
		if o != nil {
			return fmt.Sprintf("VIP %s belongs to dataplane %q, because of service %q, %s",
				f.Address, o.standing.dataplane, o.name, o.standing.rank.over(s.rank))
		}
	}
	return ""
}

// better gives the best of the entries that win, come before a rank and are
// meant.
func better(than rank, entries []*entry, meant func(*entry) bool) *entry {
	var best *entry
	for _, o := range entries {
		if o.standing.wins && o.standing.rank.compare(than) < 0 && meant(o) && (best == nil || o.standing.rank.compare(best.standing.rank) < 0) {
			best = o
		}
	}
	return best
}

func (e *entry) hasVIP(a netip.Addr) bool {
	return slices.ContainsFunc(e.standing.claims, func(f dataplane.Frontend) bool {
		return f.Kind == dataplane.Virtual && f.Address == a
	})
}

// each calls f for the rivals of an entry, for some more than once.
func (r *rivals) each(e *entry, f func(*entry)) {
	for _, claim := range e.standing.claims {
		for _, o := range r.frontends[keyOf(claim)] {
			if o != e {
				f(o)
			}
		}
	}
	for _, a := range e.claimedAddresses() {
		at := r.addresses[a]
		if at == nil || len(at.dataplanes) < 2 {
			continue
		}
		for _, o := range at.entries {
			if o.standing.dataplane != e.standing.dataplane {
				f(o)
			}
		}
	}
}

func (r *rivals) add(e *entry) {
	for _, f := range e.standing.claims {
		r.frontends[keyOf(f)] = append(r.frontends[keyOf(f)], e)
	}
	for _, a := range e.claimedAddresses() {
		at := r.addresses[a]
		if at == nil {
			at = &addressClaims{dataplanes: map[string]int{}}
			r.addresses[a] = at
		}
		at.entries = append(at.entries, e)
		at.dataplanes[e.standing.dataplane]++
	}
}

func (r *rivals) drop(e *entry) {
	for _, f := range e.standing.claims {
		if rest := without(r.frontends[keyOf(f)], e); len(rest) > 0 {
			r.frontends[keyOf(f)] = rest
		} else {
			delete(r.frontends, keyOf(f))
		}
	}
	for _, a := range e.claimedAddresses() {
		at := r.addresses[a]
		if at.entries = without(at.entries, e); len(at.entries) == 0 {
			delete(r.addresses, a)
			continue
		}
		if at.dataplanes[e.standing.dataplane]--; at.dataplanes[e.standing.dataplane] == 0 {
			delete(at.dataplanes, e.standing.dataplane)
		}
	}
}

// claimedAddresses are the addresses of its frontends, node frontends aside.
func (e *entry) claimedAddresses() []netip.Addr {
	var out []netip.Addr
	for _, f := range e.standing.claims {
		// Claims are in the order of addresses.
		if f.Kind != dataplane.Node && (len(out) == 0 || out[len(out)-1] != f.Address) {
			out = append(out, f.Address)
		}
	}
	return out
}

func without(entries []*entry, e *entry) []*entry {
	i := slices.Index(entries, e)
	if i < 0 {
		return entries
	}
	entries[i] = entries[len(entries)-1]
	entries[len(entries)-1] = nil
	return entries[:len(entries)-1]
}

// contest is the queue of entries to decide, the best rank first.
type contest struct {
	heap   []*entry
	queued map[*entry]struct{}
}

// add puts an entry in before the heap is made.
func (q *contest) add(e *entry) {
	if _, ok := q.queued[e]; !ok {
		q.queued[e] = struct{}{}
		q.heap = append(q.heap, e)
	}
}

func (q *contest) addRivals(r *rivals, e *entry) { r.each(e, q.add) }

// push puts an entry in afterwards.
func (q *contest) push(e *entry) {
	if _, ok := q.queued[e]; !ok {
		q.queued[e] = struct{}{}
		heap.Push(q, e)
	}
}

func (q *contest) next() *entry {
	e := heap.Pop(q).(*entry)
	delete(q.queued, e)
	return e
}

func (q *contest) Len() int { return len(q.heap) }
func (q *contest) Less(i, j int) bool {
	return q.heap[i].standing.rank.compare(q.heap[j].standing.rank) < 0
}
func (q *contest) Swap(i, j int) { q.heap[i], q.heap[j] = q.heap[j], q.heap[i] }
func (q *contest) Push(x any)    { q.heap = append(q.heap, x.(*entry)) }
func (q *contest) Pop() any {
	e := q.heap[len(q.heap)-1]
	q.heap = q.heap[:len(q.heap)-1]
	return e
}
