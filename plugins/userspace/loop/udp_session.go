package loop

import (
	"encoding/binary"
	"net/netip"
)

// session is the flow of datagrams between one client and one frontend. Like
// conn it has no pointers. It names its client by the key under which it is
// found; one that leaves isn't found any more, but still passes on what its
// endpoint answers.
type session struct {
	key      sessionKey
	bytes    [2]uint64 // carried and not yet counted
	fd       int32     // connected to the endpoint; -1 where there is none
	endpoint int32     // its place in the endpoint table, -1 is none
	alarm
	last       uint32 // the tick of the last datagram
	next, prev int32  // in its queue, or the list of free slots: slot+1
	queue      uint8  // queue+1 in which it stands; 0 is a free slot
	flags      uint8
}

// Flags of a session.
const (
	// flagBulk: many datagrams come at once, so they are received coalesced.
	flagBulk = 1 << iota
	// flagApart: the way to the endpoint takes no segmented datagrams.
	flagApart
	// flagGuest: the service counts it among its client's connections.
	flagGuest
)

// Queues of sessions, in each the one that has been silent longest first, and
// in the order in which they make room for new ones.
const (
	queueLeaving  = iota // its endpoint is gone or drains
	queueFresh           // its endpoint has not answered yet
	queueAnswered        // its endpoint has answered
	queues
)

// sessionKey is a client and a listener: the client's address, the frontend's
// (where the listener has all of the host's), listener and port, scope.
type sessionKey [6]uint64

func (k *sessionKey) listener() int32 { return int32(k[4] >> 16) }
func (k *sessionKey) port() uint16    { return uint16(k[4]) }
func (k *sessionKey) scope() uint32   { return uint32(k[5]) }

// client is the client's address and port, without a zone.
func (k *sessionKey) client() netip.AddrPort {
	return netip.AddrPortFrom(k.address(0).Unmap(), k.port())
}

// address reads the client's (0) or the frontend's (2) address.
func (k *sessionKey) address(at int) netip.Addr {
	return netip.AddrFrom16(k.bytes(at))
}

func (k *sessionKey) bytes(at int) (b [16]byte) {
	binary.BigEndian.PutUint64(b[:8], k[at])
	binary.BigEndian.PutUint64(b[8:], k[at+1])
	return b
}

// setAddress writes an address of 4 (mapped) or 16 bytes.
func (k *sessionKey) setAddress(at int, b []byte) {
	if len(b) == 4 {
		k[at], k[at+1] = 0, 0xffff<<32|uint64(binary.BigEndian.Uint32(b))
		return
	}
	k[at], k[at+1] = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
}

// setPort writes listener and client's port.
func (k *sessionKey) setPort(listener int32, port uint16) {
	k[4] = uint64(uint32(listener))<<16 | uint64(port)
}

// sessions are the sessions of a loop, named by their place.
type sessions struct {
	chunks []*[chunk]session
	free   int32 // place+1
	dying  int32 // place+1: freed in this batch, used again after it
	used   int
	byKey  map[sessionKey]int32
	queues [queues]sessionQueue
}

// sessionQueue is a list by slot+1.
type sessionQueue struct{ head, tail int32 }

func (s *sessions) at(i int32) *session {
	return &s.chunks[uint32(i)/chunk][uint32(i)%chunk]
}

// find gives the session of a key, -1 if there is none.
func (s *sessions) find(k *sessionKey) int32 {
	if i, ok := s.byKey[*k]; ok {
		return i
	}
	return -1
}

// add makes the session of a key that has none, at a tick, in queueFresh.
func (s *sessions) add(k *sessionKey, now uint32) (int32, *session) {
	if s.free == 0 {
		base := int32(len(s.chunks)) * chunk
		s.chunks = append(s.chunks, new([chunk]session))
		for i := int32(chunk - 1); i >= 0; i-- {
			s.at(base + i).next = s.free
			s.free = base + i + 1
		}
	}
	i := s.free - 1
	x := s.at(i)
	s.free = x.next
	s.used++
	*x = session{key: *k, fd: -1, endpoint: -1, last: now}
	s.enter(i, x, queueFresh)
	s.byKey[*k] = i
	return i, x
}

// touch notes a datagram: the session is the last of its queue.
func (s *sessions) touch(i int32, x *session, now uint32) {
	if x.last != now {
		x.last = now
		if q := int(x.queue) - 1; s.queues[q].tail != i+1 {
			s.quit(x)
			s.enter(i, x, q)
		}
	}
}

// move puts a session last into another queue. One that leaves isn't found by
// its key any more.
func (s *sessions) move(i int32, x *session, q int) {
	if q == queueLeaving && x.queue != queueLeaving+1 {
		delete(s.byKey, x.key)
	}
	s.quit(x)
	s.enter(i, x, q)
}

func (s *sessions) enter(i int32, x *session, q int) {
	list := &s.queues[q]
	x.queue, x.next, x.prev = uint8(q+1), 0, list.tail
	if list.tail != 0 {
		s.at(list.tail - 1).next = i + 1
	} else {
		list.head = i + 1
	}
	list.tail = i + 1
}

func (s *sessions) quit(x *session) {
	list := &s.queues[x.queue-1]
	if x.prev != 0 {
		s.at(x.prev - 1).next = x.next
	} else {
		list.head = x.next
	}
	if x.next != 0 {
		s.at(x.next - 1).prev = x.prev
	} else {
		list.tail = x.prev
	}
}

// drop frees a session's slot, for use after recycle.
func (s *sessions) drop(i int32, x *session) {
	if x.queue != queueLeaving+1 {
		delete(s.byKey, x.key)
	}
	s.quit(x)
	*x = session{next: s.dying, fd: -1}
	s.dying = i + 1
	s.used--
}

// recycle makes the slots freed in this batch usable.
func (s *sessions) recycle() {
	for s.dying != 0 {
		i := s.dying - 1
		x := s.at(i)
		s.dying = x.next
		x.next = s.free
		s.free = i + 1
	}
}

// silenceLeast is for how many ticks a session must have been silent before it
// makes room for a new one: one that has had no answer yet may get it within a
// second; one that is in use never goes.
var silenceLeast = [queues]uint32{queueLeaving: 0, queueFresh: 10, queueAnswered: 100}

// eldest is the session that makes room for a new one: who leaves, then who has
// had no answer, then who has had one; of each the one that has been silent
// longest, if that is long enough. It is -1 if there is none.
func (s *sessions) eldest(now uint32) int32 {
	for q := range s.queues {
		i := s.queues[q].head - 1
		if i >= 0 && now-s.at(i).last >= silenceLeast[q] {
			return i
		}
	}
	return -1
}

// each calls f for every session; f may drop the one it is given.
func (s *sessions) each(f func(i int32, x *session)) {
	for n := range s.chunks {
		for m := range s.chunks[n] {
			if x := &s.chunks[n][m]; x.queue != 0 {
				f(int32(n*chunk+m), x)
			}
		}
	}
}
