package loop

import "net/netip"

// parties are the two ends of a client's connection, as a PROXY protocol header
// may have told them.
type parties struct {
	from netip.AddrPort // the client
	to   netip.AddrPort // what it connected to
}

// origin is what a loop keeps of a connection beside its conn, as long as it
// needs it: for most connections never.
type origin struct {
	parties
	service *service // whose connection it is while it has no endpoint
	// tried are the endpoints that have failed it.
	tried []int32
	// guest says that the service counts it among its client's.
	guest bool
	next  int32 // in the list of free places
}

// origins are the origins of a loop, named by place+1.
type origins struct {
	places []origin
	free   int32 // place+1
}

func (o *origins) take() int32 {
	i := o.free
	if i == 0 {
		o.places = append(o.places, origin{})
		return int32(len(o.places))
	}
	o.free = o.places[i-1].next
	o.places[i-1] = origin{}
	return i
}

// at is only good until the next take.
func (o *origins) at(i int32) *origin { return &o.places[i-1] }

func (o *origins) drop(i int32) {
	o.places[i-1] = origin{next: o.free}
	o.free = i
}

// inUse counts the places that are taken.
func (o *origins) inUse() int {
	n := len(o.places)
	for i := o.free; i != 0; i = o.places[i-1].next {
		n--
	}
	return n
}

// remember keeps the origin of a connection.
func (l *loop) remember(c *conn, s *service, p parties) *origin {
	if c.origin == 0 {
		c.origin = l.origins.take()
	}
	o := l.origins.at(c.origin)
	o.parties, o.service = p, s
	return o
}

// forget lets go of a connection's origin, if it has one.
func (l *loop) forget(c *conn, s *service) {
	if c.origin == 0 {
		return
	}
	if o := l.origins.at(c.origin); o.guest {
		s.guests.leave(o.from.Addr())
	}
	l.origins.drop(c.origin)
	c.origin = 0
}
