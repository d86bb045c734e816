package loop

import (
	"time"

	"golang.org/x/sys/unix"
)

// ejection is a service's passive ejection: an endpoint to which so many
// attempts to connect in a row have failed takes no new connections for a
// while. It belongs to the service's lock.
type ejection struct {
	after int    // failures in a row; 0 is never
	time  uint32 // ticks, of the first ejection
	out   int    // endpoints that are ejected now
	next  uint32 // the tick at which the next of them comes back
}

// trouble is what is known of an endpoint's failures.
type trouble struct {
	misses    int // in a row
	ejections int // since the last success
	ejected   bool
	until     uint32 // tick
	last      errno  // why the last attempt failed; 0 if none has
	at        uint32 // tick of it
}

// ejectionsMost is up to which number an ejection lasts twice as long as the
// one before.
const ejectionsMost = 6

// attemptFailed notes a failed attempt to connect. At most half of a service's
// endpoints are ejected at once, so never the last one: one that stays, because
// too many others are away, is tried again with the next connection.
func (s *service) attemptFailed(e *endpoint, now uint32, why errno) {
	e.failures.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &e.trouble
	t.last, t.at = why, now
	j := &s.ejection
	if j.after == 0 || !endpointsFault(why) {
		return
	}
	t.misses++
	e.troubled.Store(true)
	if t.misses < j.after || t.ejected || e.draining || e.weight == 0 || e.retired.Load() || 2*(j.out+1) > len(s.members) {
		return
	}
	t.ejections = min(t.ejections+1, ejectionsMost)
	t.ejected = true
	t.until = now + j.time<<(t.ejections-1)
	j.recount(s.members)
	s.settle()
}

// endpointsFault tells failures of an endpoint from those of this host.
func endpointsFault(why errno) bool {
	switch why {
	case unix.EADDRNOTAVAIL, unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM, unix.ENOSPC, unix.EPERM, unix.EACCES:
		return false
	}
	return true
}

// attemptWorked ends a row of failures.
func (s *service) attemptWorked(e *endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.troubled.Store(false)
	e.trouble.misses = 0
	if !e.trouble.ejected {
		e.trouble.ejections = 0
	}
}

// readmit takes back those whose time is over. The next failure ejects one
// again, for longer, unless it has succeeded in between.
func (s *service) readmit(now uint32) {
	for _, e := range s.members {
		if e.trouble.ejected && int32(now-e.trouble.until) >= 0 {
			e.trouble.ejected = false
		}
	}
	s.ejection.recount(s.members)
	s.settle()
}

// recount looks who is ejected, after a change, and takes back the nearest to
// their end where that is more than half.
func (j *ejection) recount(members []*endpoint) {
	for {
		j.out = 0
		var first *endpoint
		for _, e := range members {
			t := &e.trouble
			if j.after == 0 {
				t.ejected, t.misses, t.ejections = false, 0, 0
			}
			if !t.ejected {
				continue
			}
			j.out++
			if first == nil || int32(t.until-first.trouble.until) < 0 {
				first = e
			}
		}
		if first == nil {
			return
		}
		if 2*j.out <= len(members) {
			j.next = first.trouble.until
			return
		}
		first.trouble.ejected = false
	}
}

// tickTime is the time of a tick.
func (s *shared) tickTime(t uint32) time.Time { return s.start.Add(time.Duration(t) * tick) }
