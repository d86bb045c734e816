package consul

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// belief is what is held to be true of the instances of one service. Not all
// that Consul answers is: a token that lost its rights, a server that lost its
// data and an agent that lost its services all look like instances that left.
type belief struct {
	// instances as Consul gave them last, in the order of their keys.
	instances []instance
	// held are instances that vanished and are kept, in the same order.
	held []instance
	// until is when what is held is asked for once more; zero for no set time.
	until time.Time
	// whole is set when the instances held keep their health, because it is
	// Consul that is in doubt.
	whole bool
	// known is set once something has been believed, and filtered when ACLs
	// kept something back from it.
	known, filtered bool
	// unchecked is how many instances keep their health because their checks
	// have not run since Consul came back.
	unchecked int
}

// weighing is what else there is to know when a reading is judged.
type weighing struct {
	now time.Time
	// hold is how long instances that vanish at once are kept.
	hold time.Duration
	// confirmed is set for the reading that decides when that time is over.
	confirmed bool
	// accepted is set when the operator has said that it is right.
	accepted bool
	// reset is set while Consul seems to have lost data.
	reset bool
	// uncheckedUntil is until when a critical instance may be one whose checks
	// have not run since Consul came back; zero for never.
	uncheckedUntil time.Time
}

// Errors of readings that are not believed.
var (
	errFiltered = errors.New("Consul's answers are now filtered by ACLs, which they were not: the last state is kept. Give the token its rights again, or run patchbay reload -accept-empty if it is right")
	errDeprived = errors.New("Consul's ACLs keep everything back that was there: the last state is kept. Give the token its rights again, or run patchbay reload -accept-empty if it is right")
)

// take judges a reading, and takes it in. With an error it is not believed, and
// nothing has changed.
func (b *belief) take(r *reading, re reply, w weighing) error {
	if !w.accepted && b.known {
		if re.filtered && !b.filtered {
			return errFiltered
		}
		if re.filtered && len(r.instances) == 0 && !r.proxies && len(b.instances)+len(b.held) > 0 {
			return errDeprived
		}
	}
	if re.direct || re.filtered {
		// Only an answer that came straight from the servers tells that
		// nothing was kept back.
		b.filtered = re.filtered
	}
	before := b.all()
	b.keepUnchecked(r.instances, w)
	vanished := missing(before, r.instances)
	b.known = true
	b.instances = r.instances
	switch {
	case w.accepted || len(vanished) == 0:
		b.release()
	case w.reset:
		b.held, b.whole, b.until = vanished, true, time.Time{}
	case b.whole && re.direct, w.confirmed:
		b.release()
	case len(b.held) > 0:
		b.held = vanished
	case suspicious(before, vanished):
		b.held, b.until = vanished, w.now.Add(w.hold)
	default:
		b.release()
	}
	if b.unchecked > 0 && b.until.IsZero() {
		b.until = w.uncheckedUntil
	}
	return nil
}

// keepUnchecked gives instances back the health that they had where only Consul
// was begun anew: it then has every check as critical until it runs, with no
// output or that of its last run. One that has run and failed has put out something
// else.
func (b *belief) keepUnchecked(now []instance, w weighing) {
	b.unchecked = 0
	if w.accepted || w.confirmed || !w.now.Before(w.uncheckedUntil) {
		return
	}
	for n := range now {
		i := &now[n]
		if i.Health != source.Critical {
			continue
		}
		at, found := slices.BinarySearchFunc(b.instances, *i, compareInstances)
		if !found {
			continue
		}
		if was := &b.instances[at]; was.usable() && (i.Outputs == 0 || was.Outputs == i.Outputs) && was.at() == i.at() {
			i.Health, i.Reason = was.Health, was.Reason
			b.unchecked++
		}
	}
}

func (b *belief) release() { b.held, b.whole, b.until = nil, false, time.Time{} }

// all gives every instance, those held included.
func (b *belief) all() []instance {
	if len(b.held) == 0 {
		return b.instances
	}
	out := slices.Concat(b.instances, b.held)
	slices.SortFunc(out, compareInstances)
	return out
}

// losesAll tells whether a reading takes away all there was.
func (b *belief) losesAll(r *reading) bool {
	return len(r.instances) == 0 && len(b.instances) > 0
}

// loses tells whether a reading takes something away.
func (b *belief) loses(r *reading) bool { return len(missing(b.instances, r.instances)) > 0 }

// missing gives what was there and isn't any more. An instance that is there
// again under another id, at the same address, is not missing.
func missing(before, now []instance) []instance {
	if len(before) == 0 {
		return nil
	}
	keys := make(map[string]bool, len(now))
	places := make(map[string]bool, len(now))
	for i := range now {
		keys[now[i].key()] = true
		places[now[i].at()] = true
	}
	var out []instance
	for i := range before {
		if !keys[before[i].key()] && !places[before[i].at()] {
			out = append(out, before[i])
		}
	}
	return out
}

// suspicious tells whether instances vanish as they don't by themselves: more
// than half at once, and not one of them was failing or in maintenance before.
// The last one leaving is ordinary.
func suspicious(before, vanished []instance) bool {
	return len(before) > 1 && 2*len(vanished) > len(before) &&
		!slices.ContainsFunc(vanished, func(i instance) bool { return !i.usable() })
}

// view gives the instances as the catalog is to see them. Those held drain
// where others can do their work, and else stay as they were.
func (b *belief) view() (out []instance, notes []string) {
	if b.unchecked > 0 {
		notes = append(notes, fmt.Sprintf("%d of %d instances keep their health: Consul has come back and has not checked them yet", b.unchecked, len(b.instances)))
	}
	if len(b.held) == 0 {
		return b.instances, notes
	}
	drain := !b.whole && slices.ContainsFunc(b.instances, func(i instance) bool { return i.usable() })
	out = slices.Clone(b.instances)
	for _, i := range b.held {
		if drain && i.usable() {
			i.Health, i.Reason = source.Critical, "it vanished from Consul together with others"
		}
		out = append(out, i)
	}
	slices.SortFunc(out, compareInstances)
	if b.whole {
		return out, append(notes, fmt.Sprintf("%d of %d instances are missing in Consul, which seems to have lost data: they are kept", len(b.held), len(out)))
	}
	return out, append(notes, fmt.Sprintf("%d of %d instances vanished from Consul at once: they are kept until %s, when Consul is asked again",
		len(b.held), len(out), b.until.UTC().Format("15:04:05")))
}
