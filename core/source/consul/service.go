package consul

import (
	"context"
	"errors"
	"math/rand/v2"
	"regexp"
	"time"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// service is one service that is followed. The source's lock covers it, save
// pace and retry, which belong to whoever asks for it.
type service struct {
	name string
	// invalid is set when the name can't be one of a service here; it is not
	// asked for, only shown.
	invalid bool

	// listed is set while the list of services has it as one to read, and
	// byListing when its name or tags choose it.
	listed, byListing bool
	// chosen and excluded are what its meta says, and proxies that there is
	// nothing but parts of the mesh.
	chosen, excluded, proxies bool
	belief
	meta  map[string]string
	notes []string

	// index to wait beyond, 0 to ask at once, and the highest that was
	// believed.
	index, seen uint64
	// hurry makes the next question one that is answered at once.
	hurry bool
	// read is set once this process has read it, or has given it up for now.
	read bool
	// denied is set while its answers are not believed because of ACLs, and
	// accepted when the operator has said that they are right.
	denied, accepted bool
	// problem is shown while it alone can't be read.
	problem  problem
	failures int

	// running is set once this round has somebody who asks for it; stop ends a
	// question that waits, and quit all that asks.
	running bool
	busy    bool
	asked   time.Time
	// answered is when the question that was believed last had been asked.
	answered time.Time
	// after is when one that is read in turn may be read again.
	after time.Time
	stop  context.CancelCauseFunc
	quit  context.CancelFunc
	gone  bool

	told *source.Service

	pace  pace
	retry backoff
}

var validName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,253}$`)

func newService(name string) *service {
	return &service{name: name, invalid: !validName.MatchString(name)}
}

// visible tells whether the catalog is to know of it.
func (v *service) visible() bool {
	if v.gone || !(v.known || v.invalid || v.problem.text != "") || v.excluded {
		return false
	}
	// Of parts of the mesh alone there is no service, except what is held.
	return (v.byListing || v.chosen) && (!v.proxies || len(v.held) > 0)
}

// Causes for which a question that waits is ended.
var (
	errAskAgain = errors.New("the question is asked again")
	errHoldOver = errors.New("the time of holding is over")
)

// interrupt ends a question that waits, so that the next is answered at once.
func (v *service) interrupt(r *round) {
	v.hurry = true
	if r != nil {
		r.nudge()
	}
	if v.stop != nil {
		v.stop(errAskAgain)
	}
}

// follow asks for one service with blocking queries until ctx ends.
func (r *round) follow(ctx context.Context, v *service) {
	for ctx.Err() == nil {
		if !sleep(ctx, v.pace.delay(time.Now())) {
			return
		}
		sleep(ctx, r.read(ctx, v, true))
	}
}

// read asks for a service until there is an answer that can be taken in, or
// none can be had; then it gives the time after which to ask again.
//
// An answer that takes away what should not be given up lightly is only taken
// when it came straight from the servers, and once more after the list of
// services has been read.
func (r *round) read(ctx context.Context, v *service, blocking bool) time.Duration {
	verified := false
	for {
		a := r.ask(ctx, v, blocking)
		if a.err != nil {
			return r.failed(ctx, v, a)
		}
		grave, backwards := r.s.weigh(v, &a)
		switch {
		case !a.reply.direct && (grave || backwards):
		case grave && !verified:
			if !r.awaitListing(ctx, time.Now(), a.reply.index, backwards) {
				return 0
			}
			verified = true
		default:
			r.s.took(r, v, a)
			return 0
		}
		r.s.mu.Lock()
		v.index = 0
		r.s.mu.Unlock()
	}
}

// weigh tells whether an answer takes away what should not be given up
// lightly: all there was, or anything when the index went backwards.
func (s *Source) weigh(v *service, a *answered) (grave, backwards bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The agent's cache counts for itself.
	backwards = !a.cached && a.reply.index < v.seen
	return v.losesAll(a.reading) || backwards && v.loses(a.reading), backwards
}

// answered is one question and what became of it.
type answered struct {
	asked             time.Time
	confirmed, cached bool
	reading           *reading
	reply             reply
	err               error
}

// ask puts one question.
func (r *round) ask(ctx context.Context, v *service, blocking bool) answered {
	s := r.s
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s.mu.Lock()
	if v.hurry {
		v.index, v.hurry = 0, false
	}
	until, choose := v.until, s.choose
	a := answered{asked: time.Now()}
	a.confirmed = !until.IsZero() && !a.asked.Before(until)
	q := question{index: v.index}
	switch {
	case a.confirmed:
		q = question{consistent: true}
	case !blocking && v.index > 0:
		q, a.cached = question{cached: true}, true
	case v.index > 0:
		q.wait = s.timing.Wait
	}
	v.asked, v.stop = a.asked, stop
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		v.stop = nil
		s.mu.Unlock()
	}()

	limit := s.timing.Timeout
	switch {
	case q.wait > 0:
		limit += q.wait + q.wait/16
		if !until.IsZero() {
			timer := time.AfterFunc(time.Until(until), func() { stop(errHoldOver) })
			defer timer.Stop()
		}
	case !q.cached:
		// Many that begin at once go a few at a time.
		select {
		case r.ramp <- struct{}{}:
			defer func() { <-r.ramp }()
		case <-ctx.Done():
			a.err = context.Cause(ctx)
			return a
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a.reading, a.reply, a.err = r.client.service(ctx, v.name, q, choose)
	if a.err == nil && a.reply.age > maxCacheAge {
		a.err = errCutOff
	}
	return a
}

// maxCacheAge is how long the agent's cache may have been cut off.
const maxCacheAge = 10 * time.Second

var errCutOff = errors.New("Consul's agent gives old answers: it can't reach its servers")

// took judges an answer and tells the sink.
func (s *Source) took(r *round, v *service, a answered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.gone || s.round != r {
		return
	}
	now := time.Now()
	before := len(v.held)
	back := s.listing.back
	if s.listing.problem.text != "" && !s.listing.denied {
		// The list hasn't been heard yet: Consul is just coming back.
		back = now
	}
	err := v.take(a.reading, a.reply, weighing{
		now: now, hold: s.settings.Hold, confirmed: a.confirmed, accepted: v.accepted, reset: s.listing.doubt.open,
		uncheckedUntil: back.Add(s.settings.Hold),
	})
	v.failures, v.read = 0, true
	v.retry.reset()
	v.index = a.reply.index
	if err != nil {
		if !v.denied {
			s.log.Warn("an answer of Consul is not believed", "service", v.name, "error", err)
		}
		v.denied = true
		s.setProblem(v, a.asked, err.Error())
		return
	}
	if v.denied {
		s.log.Info("the answers of Consul are believed again", "service", v.name)
	}
	v.denied, v.accepted, v.answered = false, false, a.asked
	if !a.cached {
		v.seen = a.reply.index
	}
	v.chosen, v.excluded, v.proxies = a.reading.chosen, a.reading.excluded, a.reading.proxies
	if len(v.held) == 0 || len(v.instances) > 0 {
		v.meta, v.notes = a.reading.meta, a.reading.notes
	}
	status := s.listing.doubt.open
	if v.problem.text != "" {
		s.log.Info("the service can be read again", "service", v.name)
		v.problem, status = problem{}, true
	}
	switch {
	case len(v.held) > 0 && before == 0:
		s.log.Warn("instances vanished from Consul at once; they are kept for now", "service", v.name, "held", len(v.held), "left", len(v.instances))
	case len(v.held) < before && s.listing.doubt.open:
		s.listing.doubt.extend(now, s.timing.Settle)
	}
	s.hosts.use(v.name, v.all())
	s.noticeFilter(a.reply.filtered)
	told := v.told
	if !v.listed && len(v.all()) == 0 && !s.listing.doubt.open {
		s.drop(v)
	} else {
		s.tell(v)
	}
	if v.told == told {
		v.pace.idle()
	} else {
		s.unsaved = true
	}
	s.checkRead()
	if status {
		s.resolveDoubt()
		s.tellStatus()
	}
}

// drop forgets a service that is gone.
func (s *Source) drop(v *service) {
	v.gone = true
	s.tell(v)
	s.hosts.use(v.name, nil)
	delete(s.services, v.name)
	s.unsaved = true
	if v.quit != nil {
		v.quit()
	}
	if s.round != nil {
		s.round.promote()
	}
}

// setProblem notes why a service alone can't be read.
func (s *Source) setProblem(v *service, since time.Time, text string) {
	if v.problem.since.IsZero() {
		v.problem.since = since
	}
	v.problem.text = text
	s.tell(v)
	s.checkRead()
	s.tellStatus()
}

// failed notes that a question was not answered, and gives the time after which
// there is sense in the next: what concerns all is left to the list of services,
// which alone asks while Consul can't be reached; what concerns this service
// alone is asked again after a time that grows.
func (r *round) failed(ctx context.Context, v *service, a answered) time.Duration {
	s := r.s
	if ctx.Err() != nil || errors.Is(a.err, errAskAgain) || errors.Is(a.err, errHoldOver) {
		return 0
	}
	s.mu.Lock()
	v.index = 0
	v.failures++
	first := v.failures == 1
	s.mu.Unlock()
	if concernsAll(a.err) {
		if !r.awaitListing(ctx, time.Now(), 0, true) {
			return 0
		}
		if first {
			// Others ask again at this moment too.
			return rand.N(s.timing.Retry/16 + 1)
		}
	}
	s.mu.Lock()
	if v.problem.text == "" {
		s.log.Warn("a service can't be read from Consul; it is kept as it was", "service", v.name, "error", a.err)
	}
	s.setProblem(v, a.asked, a.err.Error())
	s.mu.Unlock()
	wait := v.retry.next()
	if refused := (*refusedError)(nil); errors.As(a.err, &refused) {
		wait = max(wait, min(refused.after, time.Minute))
	}
	return wait
}
