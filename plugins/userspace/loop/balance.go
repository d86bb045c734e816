package loop

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// service is what all loops share of one service.
type service struct {
	id       string
	settings atomic.Pointer[settings]

	mu        sync.Mutex
	balance   Balance
	endpoints []*endpoint // all of them
	members   []*endpoint // active, with a weight
	usable    []*endpoint // members that are not ejected
	turn      int         // where least connections begins to look
	shares    []int64     // running sums of usable's weights, for random
	random    rand.PCG
	table     *table    // of members, for maglev
	affinity  *affinity // nil where there is none
	ejection  ejection
	serial    uint32 // of the last endpoint

	guests   guests
	active   atomic.Int64
	bytes    [2]atomic.Uint64
	accepted atomic.Uint64
	retries  atomic.Uint64
	failed   atomic.Uint64
	refused  [refusals]atomic.Uint64
	udp      udpService

	// Below belongs to the engine's lock.
	listen  []*listener
	onEmpty OnEmpty
	cut     bool // ResetOnDrainEnd
}

func newService(id string) *service {
	s := &service{id: id}
	s.random.Seed(rand.Uint64(), rand.Uint64())
	return s
}

// endpoint is what all loops share of one endpoint. It lives until it has left
// its service and its last connection has ended.
type endpoint struct {
	id       int32  // its place in the engine's table
	serial   uint32 // its number in the service, never given twice
	service  *service
	address  netip.AddrPort
	hash     uint64 // of its address and port
	sockaddr sockaddr
	// looping says that the port lies in the range of ports given to outgoing
	// connections, so that a connect to this host can meet itself.
	looping bool

	// Guarded by service.mu.
	weight   int64
	current  int64 // of smooth weighted round robin
	draining bool
	deadline time.Time
	trouble  trouble

	watched time.Time // the deadline that Engine.drains knows; its lock's

	// active counts the connections that use this endpoint, also those that
	// still connect; with retired it says when the place in the table is free.
	active      atomic.Int64
	retired     atomic.Bool
	troubled    atomic.Bool // trouble has something that a success ends
	freed       atomic.Bool
	connections atomic.Uint64
	failures    atomic.Uint64
	bytes       [2]atomic.Uint64
}

// choosing takes over how a service wants its endpoints chosen; arrange follows.
// The service is locked.
func (s *service) choosing(want *Service) {
	s.balance = want.Balance
	s.ejection.after = want.EjectAfter
	s.ejection.time = max(toTicks(cmp.Or(want.EjectFor, 10*time.Second)), 1)
	switch timeout := toTicks(want.Affinity); {
	case timeout == 0:
		s.affinity = nil
	case s.affinity == nil:
		s.affinity = newAffinity(timeout)
	default:
		s.affinity.timeout = timeout
	}
}

// pick chooses an endpoint for a new connection, or a new session, of a client
// at the present tick, and counts it as active there; nil if there is none
// outside excluded (ids). Whoever gets an endpoint gives it back by
// endpointTable.release. The client's address matters to source_hash, maglev
// and affinity alone.
//
// The count is taken under the lock: whoever has taken an endpoint off the list
// knows that none will be added to it.
func (s *service) pick(client netip.Addr, now uint32, excluded []int32) *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ejection.out > 0 && int32(now-s.ejection.next) >= 0 {
		s.readmit(now)
	}
	var e *endpoint
	if s.affinity != nil {
		e = s.affinity.find(client, now)
		if e != nil && (e.trouble.ejected || slices.Contains(excluded, e.id)) {
			e = nil
		}
	}
	if e == nil {
		e = s.choose(client, excluded)
	}
	if e == nil {
		return nil
	}
	if s.affinity != nil {
		s.affinity.keep(client, e, now)
	}
	e.active.Add(1)
	return e
}

// choose asks the balance method. Where every endpoint that has not failed this
// client is ejected, one of those is better than none.
func (s *service) choose(client netip.Addr, excluded []int32) *endpoint {
	var e *endpoint
	switch s.balance {
	case LeastConnections:
		e = s.leastLoaded(excluded)
	case Random:
		e = s.lessLoadedOfTwo(excluded)
	case SourceHash:
		e = highest(s.usable, hashAddress(client), excluded)
	case Maglev:
		e = s.lookUp(client, excluded)
	default:
		e = s.nextInTurn(excluded)
	}
	if e == nil && s.ejection.out > 0 {
		e = highest(s.members, hashAddress(client), excluded)
	}
	return e
}

// arrange takes over a new list of endpoints. The service is locked; t is the
// table of the members, where the balance needs one.
func (s *service) arrange(all, members []*endpoint, t *table) {
	s.endpoints, s.members, s.table = all, members, t
	if s.affinity != nil {
		s.affinity.serve(members)
	}
	s.ejection.recount(members)
	s.settle()
}

// settle works out who is usable. The service is locked.
func (s *service) settle() {
	s.usable = s.members
	if s.ejection.out > 0 {
		s.usable = make([]*endpoint, 0, len(s.members))
		for _, e := range s.members {
			if !e.trouble.ejected {
				s.usable = append(s.usable, e)
			}
		}
	}
	s.shares = nil
	if s.balance == Random {
		s.shares = make([]int64, len(s.usable))
		var sum int64
		for i, e := range s.usable {
			sum += e.weight
			s.shares[i] = sum
		}
	}
}

// empty says that no endpoint takes new connections.
func (s *service) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.members) == 0
}

// release ends a connection's use of an endpoint.
func (t *endpointTable) release(e *endpoint) {
	if e.active.Add(-1) == 0 && e.retired.Load() {
		t.free(e)
	}
}

// retire is called once an endpoint is on no list any more.
func (t *endpointTable) retire(e *endpoint) {
	e.retired.Store(true)
	if e.active.Load() == 0 {
		t.free(e)
	}
}

// endpointTable gives endpoints small numbers, so that a connection can name
// its endpoint without a pointer. Loops read it without a lock: they only ask
// for numbers of endpoints that they have in use, whose places don't change.
type endpointTable struct {
	places atomic.Pointer[[]atomic.Pointer[endpoint]]

	mu   sync.Mutex
	next int32
	idle []int32
}

func (t *endpointTable) get(id int32) *endpoint {
	return (*t.places.Load())[id].Load()
}

func (t *endpointTable) add(e *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.idle); n > 0 {
		e.id = t.idle[n-1]
		t.idle = t.idle[:n-1]
	} else {
		e.id = t.next
		t.next++
	}
	old := t.places.Load()
	if old == nil || int(e.id) >= len(*old) {
		grown := make([]atomic.Pointer[endpoint], max(64, 2*int(e.id)))
		if old != nil {
			for i := range *old {
				grown[i].Store((*old)[i].Load())
			}
		}
		old = &grown
		t.places.Store(old)
	}
	(*old)[e.id].Store(e)
}

// free may be called by several loops and the engine at once; one does it.
func (t *endpointTable) free(e *endpoint) {
	if !e.freed.CompareAndSwap(false, true) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	(*t.places.Load())[e.id].Store(nil)
	t.idle = append(t.idle, e.id)
}

// sockaddr is an address as the kernel takes it; it lies in an endpoint, so on
// the heap, as raw calls need it.
type sockaddr struct {
	family int
	length uint32
	in4    unix.RawSockaddrInet4
	in6    unix.RawSockaddrInet6
}
