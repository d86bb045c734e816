package loop

import (
	"math/bits"
	"time"
)

// tick is the step of all times of the data path.
const tick = 100 * time.Millisecond

// toTicks rounds up, so that no time ends early.
func toTicks(d time.Duration) uint32 {
	return uint32((d + tick - 1) / tick)
}

const wheelSlots = 1024

// wheel holds at most one timer per connection in slots of one tick. A timer
// further away than the wheel reaches waits in its last slot and is put in
// again; whoever moves a deadline later does nothing at all: when the old one
// fires, the connection says how long it really has.
type wheel struct {
	now  uint32 // the tick up to which everything has fired
	size int
	used [wheelSlots / 64]uint64
	head [wheelSlots]int32 // slot+1 of the first connection, 0 is none
}

// arm sets the timer of a connection that has none.
func (l *loop) arm(i int32, c *conn, deadline uint32) {
	w := &l.wheel
	away := int32(deadline - w.now)
	away = min(max(away, 1), wheelSlots-1)
	c.deadline = deadline
	s := (w.now + uint32(away)) % wheelSlots
	w.size++
	c.timer = uint16(s) + 1
	c.timerPrev = 0
	c.timerNext = w.head[s]
	if c.timerNext != 0 {
		l.slots.at(c.timerNext - 1).timerPrev = i + 1
	}
	w.head[s] = i + 1
	w.used[s/64] |= 1 << (s % 64)
}

// disarm takes a connection's timer off the wheel, if it has one.
func (l *loop) disarm(c *conn) {
	if c.timer == 0 {
		return
	}
	s := uint32(c.timer - 1)
	w := &l.wheel
	w.size--
	if c.timerPrev != 0 {
		l.slots.at(c.timerPrev - 1).timerNext = c.timerNext
	} else {
		w.head[s] = c.timerNext
		if c.timerNext == 0 {
			w.used[s/64] &^= 1 << (s % 64)
		}
	}
	if c.timerNext != 0 {
		l.slots.at(c.timerNext - 1).timerPrev = c.timerPrev
	}
	c.timer, c.timerNext, c.timerPrev = 0, 0, 0
}

// advance fires everything that is due at the loop's present tick.
func (l *loop) advance() {
	w := &l.wheel
	for int32(l.now-w.now) > 0 {
		if w.size == 0 {
			w.now = l.now
			return
		}
		w.now++
		s := w.now % wheelSlots
		if w.used[s/64]&(1<<(s%64)) == 0 {
			continue
		}
		// Whoever is armed again while this slot is handled lands in another
		// slot: arm never takes the present one.
		for w.head[s] != 0 {
			i := w.head[s] - 1
			c := l.slots.at(i)
			l.disarm(c)
			if int32(c.deadline-l.now) > 0 {
				l.arm(i, c, c.deadline)
				continue
			}
			l.expired(i, c)
		}
	}
}

// next says in how many ticks the next used slot comes; -1 if none is used.
func (w *wheel) next() int {
	if w.size == 0 {
		return -1
	}
	from := (w.now + 1) % wheelSlots
	word, bit := from/64, from%64
	if b := w.used[word] >> bit; b != 0 {
		return 1 + bits.TrailingZeros64(b)
	}
	away := 1 + 64 - int(bit)
	for k := uint32(1); k <= wheelSlots/64; k++ {
		if b := w.used[(word+k)%(wheelSlots/64)]; b != 0 {
			return away + bits.TrailingZeros64(b)
		}
		away += 64
	}
	return -1
}
