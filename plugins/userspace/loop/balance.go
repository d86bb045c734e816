package loop

import (
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
	usable    []*endpoint // active, with a weight
	turn      int         // where least connections begins to look

	active   atomic.Int64
	bytes    [2]atomic.Uint64
	accepted atomic.Uint64
	retries  atomic.Uint64
	failed   atomic.Uint64
	refused  [refusals]atomic.Uint64

	// Below belongs to the engine's lock.
	listen  []*listener
	onEmpty OnEmpty
	cut     bool // ResetOnDrainEnd
}

// endpoint is what all loops share of one endpoint. It lives until it has left
// its service and its last connection has ended.
type endpoint struct {
	id       int32 // its place in the engine's table
	service  *service
	address  netip.AddrPort
	sockaddr sockaddr
	// looping says that the port lies in the range of ports given to outgoing
	// connections, so that a connect to this host can meet itself.
	looping bool

	// Guarded by service.mu.
	weight   int64
	current  int64 // of smooth weighted round robin
	draining bool
	deadline time.Time

	watched time.Time // the deadline that Engine.drains knows; its lock's

	// active counts the connections that use this endpoint, also those that
	// still connect; with retired it says when the place in the table is free.
	active      atomic.Int64
	retired     atomic.Bool
	freed       atomic.Bool
	connections atomic.Uint64
	failures    atomic.Uint64
	bytes       [2]atomic.Uint64
}

// pick chooses an endpoint for a new connection and counts it as active there;
// nil if there is none outside excluded (ids). The count is taken under the
// lock: whoever has taken an endpoint off the list knows that none will be
// added to it.
func (s *service) pick(excluded []int32) *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	var best *endpoint
	switch {
	case s.balance == LeastConnections:
		best = s.leastLoaded(excluded)
	default:
		best = s.nextInTurn(excluded)
	}
	if best != nil {
		best.active.Add(1)
	}
	return best
}

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

// empty says that no endpoint takes new connections.
func (s *service) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.usable) == 0
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
