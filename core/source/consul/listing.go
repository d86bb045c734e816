package consul

import (
	"context"
	"errors"
	"slices"
	"time"
)

// listing is what is known of the list of services. The source's lock covers
// it.
type listing struct {
	// index to wait beyond, 0 to ask at once, and the highest that was
	// believed.
	index, seen uint64
	// asked is when the question that was answered last had been asked, and
	// answered when the answer came; zero until this round has one.
	asked, answered time.Time
	// heard is closed when there is an answer, and replaced.
	heard chan struct{}
	// known is set once one has been believed, and filtered when ACLs kept
	// something back from it.
	known, filtered bool
	denied          bool
	accepted        bool
	problem         problem
	// back is when it could be read again last after it could not.
	back  time.Time
	doubt doubt
	// stop ends the question that waits at Consul; nil while there is none.
	stop context.CancelCauseFunc
	// hurry makes the next question one that is answered at once.
	hurry bool
}

// doubt is on while Consul seems to have lost services that are still there:
// its index went backwards, or it has none left. What was known is kept.
type doubt struct {
	open  bool
	since time.Time
	why   string
	// until is when the services that have not come back are given up; zero
	// while none is there at all.
	until time.Time
}

func (d *doubt) extend(now time.Time, settle time.Duration) {
	if !d.until.IsZero() {
		d.until = now.Add(settle)
	}
}

// followListing asks for the list of services until ctx ends.
func (r *round) followListing(ctx context.Context) {
	s := r.s
	pace := pace{interval: s.timing.Pace}
	retry := backoff{first: s.timing.Retry / 16, most: s.timing.Retry}
	for {
		if !sleep(ctx, pace.delay(time.Now())) {
			return
		}
		asked, listing, reply, err := r.askListing(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errAskAgain) {
			continue
		}
		if err == nil {
			retry.reset()
			if !s.tookListing(r, asked, listing, reply) {
				pace.idle()
			}
			continue
		}
		s.failedListing(err, asked)
		wait := retry.next()
		var refused *refusedError
		if errors.As(err, &refused) {
			wait = max(wait, min(refused.after, time.Minute))
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

func (r *round) askListing(ctx context.Context) (time.Time, map[string][]string, reply, error) {
	s := r.s
	s.mu.Lock()
	if s.listing.hurry {
		s.listing.index, s.listing.hurry = 0, false
	}
	q := question{index: s.listing.index}
	limit := s.timing.Timeout
	if q.index > 0 {
		q.wait = s.timing.Wait
		limit += q.wait + q.wait/16
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	asked := time.Now()
	if q.wait > 0 {
		s.listing.stop = stop
	}
	s.mu.Unlock()
	listing, reply, err := r.client.services(ctx, q)
	s.mu.Lock()
	s.listing.stop = nil
	if err == nil && q.index > 0 && reply.index < q.index {
		// The servers have begun anew: what they have is asked for at once.
		s.listing.index, err = 0, errAskAgain
	}
	s.mu.Unlock()
	return asked, listing, reply, err
}

// awaitListing waits until the list of services has been read after a moment,
// or, unless only a later reading will do, is known to hold what was written
// with an index. It tells whether it was.
func (r *round) awaitListing(ctx context.Context, since time.Time, index uint64, later bool) bool {
	s := r.s
	for {
		s.mu.Lock()
		l := &s.listing
		heard := l.heard
		fresh := l.asked.After(since) || !later && l.problem.text == "" && !l.answered.IsZero() && l.seen >= index
		if !fresh {
			l.hurry = true
			if l.stop != nil {
				l.stop(errAskAgain)
			}
		}
		s.mu.Unlock()
		if fresh {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-heard:
		}
	}
}

// failedListing notes that the list can't be read.
func (s *Source) failedListing(err error, asked time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.listing
	if l.problem.text == "" {
		l.problem.since = time.Now()
		if errors.Is(err, context.DeadlineExceeded) {
			l.problem.since = asked
		}
	}
	if text := err.Error(); text != l.problem.text {
		s.log.Warn("Consul can't be read; the last state is kept", "error", err, "since", l.problem.since.UTC())
		l.problem.text = text
	}
	l.index = 0
	s.tellStatus()
}

// tookListing judges an answer, and brings the services that are followed to
// it. It tells whether anything was new.
func (s *Source) tookListing(r *round, asked time.Time, names map[string][]string, re reply) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.round != r {
		return true
	}
	l := &s.listing
	defer func() {
		s.resolveDoubt()
		close(l.heard)
		l.heard = make(chan struct{})
		s.checkRead()
		s.tellStatus()
	}()
	r.http2 = re.http2
	// It can be read, whether it is believed or not.
	l.asked, l.answered, l.index = asked, time.Now(), re.index
	if l.problem.text != "" && !l.denied {
		l.back = l.answered
		s.log.Info("Consul can be read again", "stale_since", l.problem.since.UTC())
	}
	if err := s.deniedListing(names, re); err != nil {
		if !l.denied {
			s.log.Warn("the list of services of Consul is not believed", "error", err)
			l.problem.since = asked
		}
		l.denied, l.problem.text = true, err.Error()
		for _, v := range s.services {
			r.start(v)
		}
		return true
	}
	l.denied, l.problem = false, problem{}
	s.doubtListing(names, re)
	if re.direct || re.filtered {
		l.filtered = re.filtered
	}
	l.known, l.seen = true, re.index
	s.savedAt = time.Time{}
	s.noticeFilter(re.filtered)
	changed := s.followed(r, names)
	l.accepted = false
	return changed
}

// deniedListing tells why an answer is not believed because of ACLs.
func (s *Source) deniedListing(names map[string][]string, re reply) error {
	l := &s.listing
	switch {
	case l.accepted || !l.known || !re.filtered:
		return nil
	case !l.filtered:
		return errFiltered
	case len(s.services) > 0 && len(s.candidates(names)) == 0:
		return errDeprived
	}
	return nil
}

// candidates gives the names that are to be read.
func (s *Source) candidates(names map[string][]string) map[string]bool {
	out := map[string]bool{}
	for name, tags := range names {
		if read, chosen := s.choose.byListing(name, tags); read {
			out[name] = chosen
		}
	}
	return out
}

// doubtListing opens a doubt where an answer shows that Consul may have lost
// what it knew, and ends one that the operator has decided.
func (s *Source) doubtListing(names map[string][]string, re reply) {
	l := &s.listing
	d := &l.doubt
	now := time.Now()
	if l.accepted {
		*d = doubt{}
		return
	}
	left := len(s.candidates(names))
	lost, instances := 0, 0
	for name, v := range s.services {
		if _, listed := names[name]; listed || !v.visible() {
			continue
		}
		if slices.ContainsFunc(v.all(), func(i instance) bool { return i.usable() }) {
			lost++
			instances += len(v.all())
		}
	}
	backwards := l.known && re.index < l.seen
	empty := left == 0 && lost > 0 && (backwards || d.open || instances > 1)
	switch {
	case empty:
		if !d.open || !d.until.IsZero() {
			s.log.Warn("Consul's catalog has turned empty: the last state is kept", "services", lost)
		}
		*d = doubt{open: true, since: now, why: "Consul's catalog has turned empty"}
		if backwards {
			d.why += ", and its index went backwards"
		}
	case backwards:
		s.log.Warn("Consul's index went backwards, as after a loss of data: what is missing is kept for now", "services", lost, "was", l.seen, "is", re.index)
		*d = doubt{open: true, since: now, until: now.Add(s.timing.Settle), why: "Consul's index went backwards"}
	case d.open && d.until.IsZero() && left > 0:
		s.log.Info("Consul's catalog has services again; what is still missing is kept for now", "services", left, "missing", lost)
		d.until = now.Add(s.timing.Settle)
	}
}

// endDoubt gives up what has not come back in time.
func (s *Source) endDoubt(now time.Time) {
	d := &s.listing.doubt
	if !d.open || d.until.IsZero() || now.Before(d.until) || s.listing.problem.text != "" {
		return
	}
	*d = doubt{}
	for _, v := range s.services {
		if !v.listed || len(v.held) > 0 {
			v.interrupt(s.round)
		}
	}
	s.tellStatus()
}

// resolveDoubt ends a doubt once everything has been read since and nothing is
// missing.
func (s *Source) resolveDoubt() {
	d := &s.listing.doubt
	if !d.open || d.until.IsZero() || s.listing.denied {
		return
	}
	for _, v := range s.services {
		if !v.invalid && (!v.listed || len(v.held) > 0 || !v.answered.After(d.since)) {
			return
		}
	}
	s.log.Info("nothing is missing in Consul any more")
	*d = doubt{}
}

// followed brings the services that are followed to the list.
func (s *Source) followed(r *round, names map[string][]string) bool {
	candidates := s.candidates(names)
	changed := false
	for name, v := range s.services {
		if _, wanted := candidates[name]; wanted {
			continue
		}
		changed = changed || v.listed
		v.listed = false
		_, inCatalog := names[name]
		switch {
		case inCatalog, s.listing.accepted, v.invalid:
			// It is there, and not selected any more.
			s.drop(v)
		case !s.listing.doubt.open:
			// It is asked for once more, and goes when nothing is held of it.
			v.interrupt(r)
		}
		r.start(v)
	}
	for name, chosen := range candidates {
		v := s.services[name]
		if v == nil {
			v = newService(name)
			s.services[name] = v
		}
		if !v.listed {
			changed = true
			s.listing.doubt.extend(time.Now(), s.timing.Settle)
		}
		if v.byListing != chosen || !v.listed || v.invalid {
			v.listed, v.byListing = true, chosen
			s.tell(v)
		}
		r.start(v)
	}
	return changed
}

// noticeFilter says once that ACLs keep something back.
func (s *Source) noticeFilter(filtered bool) {
	if filtered && !s.saidFiltered {
		s.saidFiltered = true
		s.log.Info("Consul's ACLs let the token see a part of the catalog only; what it doesn't see is not followed")
	}
}

// checkRead notes when everything has been read once.
func (s *Source) checkRead() {
	if s.read || !s.listing.known || s.listing.answered.IsZero() {
		return
	}
	for _, v := range s.services {
		if !v.read && !v.invalid && v.failures < maxFirstFailures {
			return
		}
	}
	s.read = true
	s.tellStatus()
}

// maxFirstFailures is how often a service that has never been read may fail
// until the source counts as read without it.
const maxFirstFailures = 5

// tellStatus gives the sink the status if it has changed.
func (s *Source) tellStatus() {
	if s.sink == nil {
		return
	}
	status := s.statusNow()
	if s.told && status == s.status {
		return
	}
	s.status, s.told = status, true
	s.sink.SetStatus(Name, status)
}
