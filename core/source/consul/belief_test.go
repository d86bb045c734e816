package consul

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// list makes instances from words such as "a", "b!" (critical), "c?" (warning),
// "d#" (maintenance) and "e@9" (at the address of 10.0.0.9).
func list(words string) []instance {
	var out []instance
	for n, word := range strings.Fields(words) {
		i := instance{Datacenter: "dc1", Node: "n", Health: source.Passing, Port: 80, Weight: 1}
		word, at, placed := strings.Cut(word, "@")
		if !placed {
			at = fmt.Sprint("x", n, word[:1])
		}
		switch word[len(word)-1] {
		case '!':
			i.Health = source.Critical
		case '?':
			i.Health = source.Warning
		case '#':
			i.Health = source.Maintenance
		}
		i.ID = strings.TrimRight(word, "!?#")
		if !placed {
			at = i.ID
		}
		i.Address = "10.0.0." + at
		out = append(out, i)
	}
	slices.SortFunc(out, compareInstances)
	return out
}

// words is the reverse of list, for what the catalog sees.
func words(instances []instance) string {
	var out []string
	for _, i := range instances {
		out = append(out, i.ID+map[source.Health]string{source.Critical: "!", source.Warning: "?", source.Maintenance: "#"}[i.Health])
	}
	return strings.Join(out, " ")
}

// TestBelief goes through what one service's answers are believed to mean, step
// by step: after each, what the catalog sees.
func TestBelief(t *testing.T) {
	const hold = 15 * time.Second
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	type step struct {
		// at is the time since the start.
		at    time.Duration
		given string
		// how the answer came: direct unless it says "waited"; "filtered",
		// "confirmed", "accepted", "reset", "proxies".
		how  string
		sees string
		err  error
		held int
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"instances come and go one by one", []step{
			{given: "a b c", sees: "a b c"}, {given: "a b", sees: "a b"}, {given: "b d e", sees: "b d e"}, {given: "b d", sees: "b d"}, {given: "d", sees: "d"}, {given: "", sees: ""},
		}},
		{"half at once is ordinary", []step{{given: "a b c d", sees: "a b c d"}, {given: "a b", sees: "a b"}}},
		{"more than half at once drain while others can be used", []step{
			{given: "a b c", sees: "a b c"},
			{given: "a", sees: "a b! c!", held: 2},
			{at: 14 * time.Second, given: "a d", sees: "a b! c! d", held: 2},
			{at: 15 * time.Second, given: "a d", how: "confirmed", sees: "a d"},
		}},
		{"all at once stay as they were", []step{
			{given: "a b? c", sees: "a b? c"}, {given: "", sees: "a b? c", held: 3}, {at: hold, given: "", how: "confirmed", sees: ""},
		}},
		{"those left can't be used: the vanished stay", []step{
			{given: "a b c", sees: "a b c"}, {given: "a!", sees: "a! b c", held: 2}, {given: "a", sees: "a b! c!", held: 2}, {given: "a#", sees: "a# b c", held: 2},
		}},
		{"they come back", []step{
			{given: "a b c", sees: "a b c"}, {given: "", sees: "a b c", held: 3}, {given: "a", sees: "a b! c!", held: 2}, {given: "a b c", sees: "a b c"},
			{given: "b c", sees: "b c"},
		}},
		{"one of them was critical: ordinary", []step{{given: "a! b c", sees: "a! b c"}, {given: "c", sees: "c"}}},
		{"one of them was in maintenance: ordinary", []step{{given: "a# b c", sees: "a# b c"}, {given: "", sees: ""}}},
		{"a critical one that stays excuses nothing", []step{{given: "a! b c", sees: "a! b c"}, {given: "a!", sees: "a! b c", held: 2}}},
		{"more vanish while some are held", []step{
			{given: "a b c d", sees: "a b c d"}, {given: "a", sees: "a b! c! d!", held: 3}, {at: time.Second, given: "", sees: "a b c d", held: 4},
			{at: hold, given: "", how: "confirmed", sees: ""},
		}},
		{"under another id at the same address nothing vanishes", []step{
			{given: "a@1 b@2 c@3", sees: "a b c"}, {given: "x@1 y@2 z@3", sees: "x y z"},
		}},
		{"all replaced at once by new ones", []step{
			{given: "a b c", sees: "a b c"}, {given: "x y z", sees: "a! b! c! x y z", held: 3}, {at: hold, given: "x y z", how: "confirmed", sees: "x y z"},
		}},
		{"Consul in doubt: all stay as they were until they are back", []step{
			{given: "a b c d", sees: "a b c d"}, {given: "a b c", how: "reset", sees: "a b c d", held: 1}, {given: "", how: "reset", sees: "a b c d", held: 4},
			{at: time.Hour, given: "d", how: "reset waited", sees: "a b c d", held: 3}, {given: "a b c d", how: "reset", sees: "a b c d"},
		}},
		{"Consul in doubt no longer: what a direct answer says", []step{
			{given: "a b c", sees: "a b c"}, {given: "a", how: "reset", sees: "a b c", held: 2}, {given: "a", how: "waited", sees: "a b c", held: 2}, {given: "a", sees: "a"},
		}},
		{"the operator accepts", []step{
			{given: "a b c", sees: "a b c"}, {given: "", sees: "a b c", held: 3}, {given: "", how: "accepted", sees: ""},
		}},
		{"always filtered is normal", []step{
			{given: "a b", how: "filtered", sees: "a b"}, {given: "a b c", how: "waited", sees: "a b c"}, {given: "a b c", how: "filtered", sees: "a b c"}, {given: "b c", how: "filtered", sees: "b c"},
		}},
		{"turns filtered", []step{
			{given: "a b", sees: "a b"}, {given: "a", how: "filtered", sees: "a b", err: errFiltered}, {given: "a b", how: "filtered", sees: "a b", err: errFiltered},
			{given: "a", how: "filtered accepted", sees: "a"}, {given: "a b", how: "filtered", sees: "a b"},
		}},
		{"filtered, and has lost everything", []step{
			{given: "a b", how: "filtered", sees: "a b"}, {given: "", how: "filtered", sees: "a b", err: errDeprived}, {given: "", sees: "a b", held: 2},
			{given: "", how: "filtered", sees: "a b", held: 2, err: errFiltered},
		}},
		{"unfiltered by the cache is no proof", []step{
			{given: "a", how: "filtered", sees: "a"}, {given: "a b", how: "waited", sees: "a b"}, {given: "a", how: "filtered", sees: "a"},
		}},
		{"proxies alone, filtered", []step{
			{given: "a", how: "filtered", sees: "a"}, {given: "", how: "filtered proxies", sees: ""},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b belief
			for n, step := range c.steps {
				has := func(word string) bool { return slices.Contains(strings.Fields(step.how), word) }
				r := &reading{instances: list(step.given), proxies: has("proxies")}
				err := b.take(r, reply{index: 1, direct: !has("waited"), filtered: has("filtered")}, weighing{
					now: start.Add(step.at), hold: hold, confirmed: has("confirmed"), accepted: has("accepted"), reset: has("reset"),
				})
				if !errors.Is(err, step.err) {
					t.Errorf("step %d (%q, %s): error %v, want %v", n, step.given, step.how, err, step.err)
				}
				seen, notes := b.view()
				if diff := cmp.Diff(step.sees, words(seen)); diff != "" {
					t.Errorf("step %d (%q, %s): the catalog sees (-want +got):\n%s", n, step.given, step.how, diff)
				}
				if len(b.held) != step.held || (step.held > 0) != (len(notes) > 0) {
					t.Errorf("step %d (%q, %s): %d are held, want %d; notes %q", n, step.given, step.how, len(b.held), step.held, notes)
				}
			}
		})
	}
}

// TestPace holds how fast a question may be asked again.
func TestPace(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	p := pace{}
	ask := func(after time.Duration) time.Duration {
		now = now.Add(after)
		wait := p.delay(now)
		now = now.Add(wait)
		return wait
	}
	for n, want := range []time.Duration{0, 0, time.Second, time.Second} {
		if got := ask(0); got != want {
			t.Errorf("question %d at once waits %v, want %v", n+1, got, want)
		}
	}
	if got := ask(10 * time.Second); got != 0 {
		t.Errorf("after a rest a question waits %v, want none", got)
	}
	// A change a second, again and again, is followed at that pace.
	for n := range 25 {
		if got := ask(time.Second); got > time.Second {
			t.Fatalf("change %d of one a second waits %v", n, got)
		}
	}
	// One that is answered at once without end is slowed down to one in 15 s,
	slowest := time.Duration(0)
	for range 100 {
		slowest = ask(0)
	}
	if slowest != 15*time.Second {
		t.Errorf("after 100 answers at once the wait is %v, want 15s", slowest)
	}
	// and forgiven after a rest.
	if ask(time.Minute) != 0 || ask(0) != 0 || ask(0) != time.Second {
		t.Error("after a minute of rest the pace is not what it was at the start")
	}
	// Answers that bring nothing new slow it down sooner.
	p = pace{}
	questions := 0
	for ask(0) < 15*time.Second {
		p.idle()
		questions++
	}
	if questions > 20 {
		t.Errorf("%d answers at once without news until the slowest pace, want at most 20", questions)
	}
}

// TestPaceGaps holds that no two questions are ever further apart than the pace
// asks for, which is never more than fifteen intervals, while it grows: whether
// answers come at once or after a time, and bring something new or nothing.
func TestPaceGaps(t *testing.T) {
	for _, answer := range []time.Duration{0, time.Millisecond, 300 * time.Millisecond, 900 * time.Millisecond} {
		for _, idle := range []bool{false, true} {
			now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
			p := pace{}
			var last time.Time
			var gaps []time.Duration
			for range 100 {
				now = now.Add(p.delay(now))
				// The first few, which go without a wait, are no gaps.
				if gap := now.Sub(last).Round(time.Microsecond); !last.IsZero() && (len(gaps) > 0 || gap >= time.Second) {
					gaps = append(gaps, gap)
				}
				last = now
				now = now.Add(answer)
				if idle {
					p.idle()
				}
			}
			var steps []time.Duration
			for n, gap := range gaps {
				if n == 0 || gap != gaps[n-1] {
					steps = append(steps, gap/time.Millisecond)
				}
			}
			if want := []time.Duration{1000, 2000, 4000, 8000, 15000}; !slices.Equal(steps, want) {
				t.Errorf("answers after %v, idle %v: the gaps go through %d ms, want %d", answer, idle, steps, want)
			}
		}
	}
}

// TestBackoff holds that attempts never end, never get further apart than the
// most, and are spread.
func TestBackoff(t *testing.T) {
	b := backoff{first: 100 * time.Millisecond, most: 5 * time.Second}
	seen := map[time.Duration]bool{}
	for n := range 1000 {
		d := b.next()
		if d < 50*time.Millisecond || d > 5*time.Second || n > 10 && d < 2500*time.Millisecond {
			t.Fatalf("attempt %d after %v", n, d)
		}
		seen[d] = true
	}
	if len(seen) < 500 {
		t.Errorf("only %d different times among 1000", len(seen))
	}
}
