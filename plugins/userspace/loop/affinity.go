package loop

import "net/netip"

// affinityMost is how many clients of a service are remembered. When there are
// more, the one whose last connection is the longest ago is forgotten.
const affinityMost = 65_536

// affinity remembers which endpoint a client of a service had last. It belongs
// to the service's lock, has no pointers for the garbage collector but those to
// the members, and costs about 80 bytes for each client.
type affinity struct {
	timeout uint32 // ticks
	most    int
	// members by their serial: a client whose endpoint is not among them any
	// more gets another one.
	members map[uint32]*endpoint
	places  map[[16]byte]int32
	entries []sticky
	// The entries in the order of their use, from the newest to the oldest,
	// and those that are free; -1 is none.
	newest, oldest, free int32
}

// sticky is a client that is remembered.
type sticky struct {
	client       [16]byte
	serial       uint32
	used         uint32 // tick of its last connection
	newer, older int32
}

func newAffinity(timeout uint32) *affinity {
	return &affinity{
		timeout: timeout,
		most:    affinityMost,
		places:  map[[16]byte]int32{},
		newest:  -1,
		oldest:  -1,
		free:    -1,
	}
}

// serve takes over the endpoints that take new connections.
func (a *affinity) serve(members []*endpoint) {
	a.members = make(map[uint32]*endpoint, len(members))
	for _, e := range members {
		a.members[e.serial] = e
	}
}

// find is the endpoint that a client has to stay with; nil if there is none.
func (a *affinity) find(client netip.Addr, now uint32) *endpoint {
	i, ok := a.places[client.As16()]
	if !ok || now-a.entries[i].used > a.timeout {
		return nil
	}
	return a.members[a.entries[i].serial]
}

// keep remembers the endpoint of a client's new connection.
func (a *affinity) keep(client netip.Addr, e *endpoint, now uint32) {
	// Two go for one that comes, so what is over doesn't pile up.
	for range 2 {
		if a.oldest >= 0 && now-a.entries[a.oldest].used > a.timeout {
			a.forget(a.oldest)
		}
	}
	key := client.As16()
	i, ok := a.places[key]
	switch {
	case ok:
		a.unlink(i)
	case len(a.places) >= a.most:
		a.forget(a.oldest)
		fallthrough
	default:
		i = a.place()
		a.places[key] = i
	}
	a.entries[i] = sticky{client: key, serial: e.serial, used: now, newer: -1, older: a.newest}
	if a.newest >= 0 {
		a.entries[a.newest].newer = i
	} else {
		a.oldest = i
	}
	a.newest = i
}

func (a *affinity) place() int32 {
	if i := a.free; i >= 0 {
		a.free = a.entries[i].older
		return i
	}
	a.entries = append(a.entries, sticky{})
	return int32(len(a.entries) - 1)
}

func (a *affinity) forget(i int32) {
	delete(a.places, a.entries[i].client)
	a.unlink(i)
	a.entries[i] = sticky{older: a.free}
	a.free = i
}

func (a *affinity) unlink(i int32) {
	s := &a.entries[i]
	if s.newer >= 0 {
		a.entries[s.newer].older = s.older
	} else {
		a.newest = s.older
	}
	if s.older >= 0 {
		a.entries[s.older].newer = s.newer
	} else {
		a.oldest = s.newer
	}
}
