package loop

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/quick"
)

// modelSession is what the table ought to know.
type modelSession struct {
	key   sessionKey
	last  uint32
	queue int
	since int // when it entered its queue's end
}

// TestSessionTable compares the table with a list that is searched from end to
// end, over random steps.
func TestSessionTable(t *testing.T) {
	check := func(seed uint64) bool {
		random := rand.New(rand.NewPCG(seed, 11))
		s := sessions{byKey: map[sessionKey]int32{}}
		model := map[int32]*modelSession{}
		now, steps := random.Uint32(), 0 // ticks may wrap
		fail := func(format string, a ...any) bool {
			t.Logf("seed %d, step %d: %s", seed, steps, fmt.Sprintf(format, a...))
			return false
		}
		for ; steps < 3000; steps++ {
			var k sessionKey
			k.setAddress(0, []byte{127, 0, 0, byte(random.IntN(60))})
			k.setPort(int32(random.IntN(3)), uint16(random.IntN(4)))
			i := s.find(&k)
			var known int32 = -1
			for j, m := range model {
				if m.key == k && m.queue != queueLeaving {
					known = j
				}
			}
			if i != known {
				return fail("find gives %d, want %d", i, known)
			}
			switch op := random.IntN(10); {
			case i < 0:
				i, x := s.add(&k, now)
				if model[i] != nil {
					return fail("slot %d is given twice", i)
				}
				if x.fd != -1 || x.endpoint != -1 || x.bytes != [2]uint64{} || x.timer != 0 {
					return fail("a new session isn't new: %+v", x)
				}
				model[i] = &modelSession{k, now, queueFresh, steps}
			case op < 5:
				if m := model[i]; m.last != now {
					m.last, m.since = now, steps
				}
				s.touch(i, s.at(i), now)
			case op < 7:
				q := random.IntN(queues)
				s.move(i, s.at(i), q)
				model[i].queue, model[i].since = q, steps
			case op < 9:
				s.drop(i, s.at(i))
				delete(model, i)
			default:
				now += uint32(random.IntN(50))
				s.recycle()
			}
			if s.used != len(model) {
				return fail("%d sessions, want %d", s.used, len(model))
			}
			// The first of each queue makes room, in order.
			want := int32(-1)
			for q := range queues {
				for j, m := range model {
					if m.queue == q && (want < 0 || m.since < model[want].since) {
						want = j
					}
				}
				if want >= 0 && now-model[want].last < silenceLeast[q] {
					want = -1
				}
				if want >= 0 {
					break
				}
			}
			if got := s.eldest(now); got != want {
				return fail("the eldest is %d, want %d", got, want)
			}
		}
		seen := map[int32]bool{}
		s.each(func(i int32, x *session) {
			if m := model[i]; m == nil || m.key != x.key || m.last != x.last || m.queue != int(x.queue)-1 || seen[i] {
				fail("slot %d has %+v, want %+v", i, x, m)
			}
			seen[i] = true
		})
		return len(seen) == len(model) && len(s.byKey) <= len(model)
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 20}); err != nil {
		t.Error(err)
	}
}

func TestSessionKey(t *testing.T) {
	for _, a := range []string{"192.0.2.1", "0.0.0.0", "255.255.255.255", "2001:db8::1", "fe80::1:2", "::"} {
		for _, port := range []uint16{0, 53, 65535} {
			var k sessionKey
			addr := netip.MustParseAddr(a)
			k.setAddress(0, addr.AsSlice())
			k.setAddress(2, addr.AsSlice())
			k.setPort(70000, port)
			k[5] = 7
			if got := k.client(); got != netip.AddrPortFrom(addr, port) {
				t.Errorf("%s and %d become %s", a, port, got)
			}
			if k.address(2).Unmap() != addr || k.listener() != 70000 || k.scope() != 7 {
				t.Errorf("%s, %d, %d", k.address(2), k.listener(), k.scope())
			}
		}
	}
}

// TestJoins: what is sent as segments of one message.
func TestJoins(t *testing.T) {
	type datagram struct {
		session         int32
		length, segment int
	}
	for _, c := range []struct {
		name string
		list []datagram
		want []int // datagrams in each message
	}{
		{"one size", []datagram{{1, 1200, 1200}, {1, 1200, 1200}, {1, 1200, 1200}}, []int{3}},
		{"the last is shorter", []datagram{{1, 1200, 1200}, {1, 10, 10}, {1, 1200, 1200}}, []int{2, 1}},
		{"one is longer", []datagram{{1, 10, 10}, {1, 11, 11}}, []int{1, 1}},
		{"empty ones", []datagram{{1, 0, 0}, {1, 0, 0}, {1, 5, 5}, {1, 0, 0}}, []int{1, 1, 1, 1}},
		{"two sessions", []datagram{{1, 100, 100}, {2, 100, 100}, {2, 100, 100}, {1, 100, 100}}, []int{1, 2, 1}},
		{"coalesced", []datagram{{1, 3600, 1200}, {1, 1200, 1200}, {1, 2500, 1200}, {1, 1200, 1200}}, []int{7, 1}},
		{"coalesced after a shorter", []datagram{{1, 1200, 1200}, {1, 2000, 1000}}, []int{1, 2}},
		{"beyond any MTU", []datagram{{1, 9000, 9000}, {1, 9000, 9000}}, []int{1, 1}},
		{"too many segments", []datagram{{1, 60 * 100, 100}, {1, 4 * 100, 100}, {1, 100, 100}}, []int{64, 1}},
		{"too many bytes", []datagram{{1, 54 * 1200, 1200}, {1, 1200, 1200}}, []int{54, 1}},
	} {
		s := &sending{}
		for _, d := range c.list {
			p := make([]byte, d.length)
			if s.joins(d.session, d.length, d.segment) {
				s.join(p, d.segment)
			} else {
				s.begin(d.session, p, d.segment)
			}
		}
		var got []int
		for _, r := range s.runs[:s.n] {
			got = append(got, r.count)
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
