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

// wheel holds at most one timer per connection and per UDP session in slots of
// one tick. A timer further away than the wheel reaches waits in its last slot
// and is put in again; whoever moves a deadline later does nothing at all: when
// the old one fires, the connection says how long it really has.
type wheel struct {
	now  uint32 // the tick up to which everything has fired
	size int
	used [wheelSlots / 64]uint64
	head [wheelSlots]int32 // whose timer is the first in the slot
}

// alarm is a timer of the wheel. Whose it is, is said by one number: slot+1 of
// a connection, -(slot+1) of a session, 0 is nobody.
type alarm struct {
	timerNext int32
	timerPrev int32
	deadline  uint32 // tick
	timer     uint16 // slot of the wheel+1, 0 is none
}

func (l *loop) alarmOf(who int32) *alarm {
	if who < 0 {
		return &l.relay.sessions.at(-who - 1).alarm
	}
	return &l.slots.at(who - 1).alarm
}

// arm sets the timer of a connection that has none.
func (l *loop) arm(i int32, c *conn, deadline uint32) { l.setAlarm(i+1, &c.alarm, deadline) }

// disarm takes a connection's timer off the wheel, if it has one.
func (l *loop) disarm(c *conn) { l.clearAlarm(&c.alarm) }

func (l *loop) setAlarm(who int32, t *alarm, deadline uint32) {
	w := &l.wheel
	away := int32(deadline - w.now)
	away = min(max(away, 1), wheelSlots-1)
	t.deadline = deadline
	s := (w.now + uint32(away)) % wheelSlots
	w.size++
	t.timer = uint16(s) + 1
	t.timerPrev = 0
	t.timerNext = w.head[s]
	if t.timerNext != 0 {
		l.alarmOf(t.timerNext).timerPrev = who
	}
	w.head[s] = who
	w.used[s/64] |= 1 << (s % 64)
}

func (l *loop) clearAlarm(t *alarm) {
	if t.timer == 0 {
		return
	}
	s := uint32(t.timer - 1)
	w := &l.wheel
	w.size--
	if t.timerPrev != 0 {
		l.alarmOf(t.timerPrev).timerNext = t.timerNext
	} else {
		w.head[s] = t.timerNext
		if t.timerNext == 0 {
			w.used[s/64] &^= 1 << (s % 64)
		}
	}
	if t.timerNext != 0 {
		l.alarmOf(t.timerNext).timerPrev = t.timerPrev
	}
	t.timer, t.timerNext, t.timerPrev = 0, 0, 0
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
		// slot: setAlarm never takes the present one.
		for w.head[s] != 0 {
			who := w.head[s]
			t := l.alarmOf(who)
			l.clearAlarm(t)
			switch {
			case int32(t.deadline-l.now) > 0:
				l.setAlarm(who, t, t.deadline)
			case who < 0:
				l.relay.expired(-who - 1)
			default:
				l.expired(who-1, l.slots.at(who-1))
			}
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
