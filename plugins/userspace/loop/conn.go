package loop

// The two sides of a connection. A direction has the number of the side that
// its bytes come from.
const (
	client = 0
	server = 1
)

// States of a connection.
const (
	stateFree     = iota
	stateGreeting // its PROXY protocol header is awaited
	stateConnecting
	stateOpen
	stateLingering
)

// Flags of a connection.
const (
	flagDead      = 1 << iota // side client has failed; shifted by one: server
	flagDeadOther             // = flagDead << server
	flagQueued                // is on the list of those with work left
	flagKeptAlive             // the endpoint's socket has its keepalive set
)

// Flags of a direction.
const (
	// flagReadable: bytes may be waiting at the source.
	flagReadable = 1 << iota
	// flagEnding: the source has announced its end, so a short read isn't the
	// last one.
	flagEnding
	// flagUrgent: an urgent mark was seen, which reads stop at and splice
	// doesn't pass.
	flagUrgent
	// flagBlocked: the receiver takes nothing until its next eventOut.
	flagBlocked
	// flagEnded: the source has been read to its end.
	flagEnded
	// flagOver: nothing is left to carry, or nobody to carry it to.
	flagOver
	// flagShut: the receiver has been told the end.
	flagShut
)

// conn is one carried connection. It has no pointers: see the package comment.
type conn struct {
	fd       [2]int32 // -1 where there is none
	endpoint int32    // its place in the endpoint table, -1 is none
	next     int32    // in the list of free slots, slot+1

	alarm
	last   uint32 // the tick in which bytes last moved
	begun  uint32 // the tick in which it was accepted
	origin int32  // its place in loop.origins+1, 0 is none
	state  uint8
	flags  uint8

	dir [2]direction
}

// direction is the way from one side to the other.
type direction struct {
	bytes uint64 // delivered and not yet counted
	// buffer and pipe hold what the receiver hasn't taken; 0 is none. Never
	// both: the source isn't read while one of them does.
	buffer int32
	pipe   int32
	flags  uint8
	big    uint8 // big reads in a row; from bigReads on: splice
	small  uint8 // small splices in a row
}

func (c *conn) dead(side int) bool { return c.flags&(flagDead<<side) != 0 }

const chunk = 256

// slots are the connections of a loop, named by their place.
type slots struct {
	chunks []*[chunk]conn
	free   int32 // place+1
	dying  int32 // place+1: freed in this batch, used again after it
	used   int
}

func (s *slots) at(i int32) *conn {
	return &s.chunks[uint32(i)/chunk][uint32(i)%chunk]
}

// take gives a zeroed slot.
func (s *slots) take() (int32, *conn) {
	if s.free == 0 {
		base := int32(len(s.chunks)) * chunk
		s.chunks = append(s.chunks, new([chunk]conn))
		for i := int32(chunk - 1); i >= 0; i-- {
			s.at(base + i).next = s.free
			s.free = base + i + 1
		}
	}
	i := s.free - 1
	c := s.at(i)
	s.free = c.next
	s.used++
	*c = conn{fd: [2]int32{-1, -1}, endpoint: -1}
	return i, c
}

func (s *slots) drop(i int32, c *conn) {
	*c = conn{next: s.dying}
	s.dying = i + 1
	s.used--
}

// recycle makes the slots freed in this batch usable.
func (s *slots) recycle() {
	for s.dying != 0 {
		i := s.dying - 1
		c := s.at(i)
		s.dying = c.next
		c.next = s.free
		s.free = i + 1
	}
}

// each calls f for every connection.
func (s *slots) each(f func(i int32, c *conn)) {
	for n := range s.chunks {
		for m := range s.chunks[n] {
			if c := &s.chunks[n][m]; c.state != stateFree {
				f(int32(n*chunk+m), c)
			}
		}
	}
}
