package loop

import (
	"math/rand/v2"
	"testing"
	"testing/quick"
)

// wheelLoop is a loop that can only keep time.
func wheelLoop() *loop { return &loop{} }

// TestWheel arms timers near and far, moves some deadlines without telling the
// wheel, disarms some, and lets the clock jump: each fires once, not early, and
// not later than the first look at the clock after it was due.
func TestWheel(t *testing.T) {
	check := func(seed uint64) bool {
		random := rand.New(rand.NewPCG(seed, 7))
		l := wheelLoop()
		l.now = random.Uint32() // ticks may wrap
		l.wheel.now = l.now
		deadlines := map[int32]uint32{}
		for range 200 {
			i, c := l.slots.take()
			c.state = stateFree + 9 // expired does nothing
			d := l.now + 1 + uint32(random.IntN(3*wheelSlots))
			l.arm(i, c, d)
			deadlines[i] = d
			if random.IntN(10) == 0 {
				l.disarm(c)
				delete(deadlines, i)
			}
		}
		for len(deadlines) > 0 {
			if next := l.wheel.next(); next < 0 || next >= wheelSlots {
				t.Logf("next is %d with %d timers", next, len(deadlines))
				return false
			}
			last := l.now
			l.now += uint32(1 + random.IntN(100))
			l.advance()
			for i, d := range deadlines {
				c := l.slots.at(i)
				due := int32(d-l.now) <= 0
				if due != (c.timer == 0) {
					t.Logf("timer for %d at %d (before %d): armed %v", d, l.now, last, c.timer != 0)
					return false
				}
				if due {
					delete(deadlines, i)
				}
			}
		}
		return l.wheel.size == 0 && l.wheel.next() == -1
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 200}); err != nil {
		t.Error(err)
	}
}

// TestWheelNext: the loop wakes at the next used slot, wherever that is.
func TestWheelNext(t *testing.T) {
	for _, now := range []uint32{0, 1, 63, 64, 1000, 1023, 1 << 31, ^uint32(0)} {
		for _, away := range []uint32{1, 2, 63, 64, 65, 500, 1022, 1023} {
			l := wheelLoop()
			l.now, l.wheel.now = now, now
			i, c := l.slots.take()
			l.arm(i, c, now+away)
			if got := l.wheel.next(); got != int(away) {
				t.Errorf("at %d: the next timer is %d away, not %d", now, away, got)
			}
		}
	}
}
