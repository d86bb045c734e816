package dispatch

import (
	"math/rand/v2"
	"time"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// Backoff of an Apply that failed as a whole, and of a single service.
const (
	attemptBackoffMin = 100 * time.Millisecond
	retryBackoffMin   = time.Second
	backoffMax        = time.Minute
	// retryGrid is what times of retries are rounded up to, so that many
	// failed services are sent together and looked through seldom.
	retryGrid = 250 * time.Millisecond
)

// schedule is when what may be done; a zero time means now, except for
// retryAt, where it means never.
type schedule struct {
	// restUntil is the end of the rest after an Apply.
	restUntil time.Time
	// attemptAt is when an Apply that failed as a whole may be tried again;
	// attempts counts such failures in a row, hangs those by the deadline.
	attemptAt       time.Time
	attempts, hangs int
	// syncAt is when the plugin should check itself.
	syncAt time.Time
	// retryAt is not later than the first retry of a failed service.
	retryAt time.Time
}

// failure is a service that the plugin did not carry as asked.
type failure struct {
	Failure
	// sent is what it refused, nil for a deletion; last when.
	sent *dataplane.Service
	last time.Time
}

// fail records that the plugin refused a service.
func (s *Session) fail(id, reason string, sent *dataplane.Service, now time.Time) {
	f := s.failed[id]
	if f == nil {
		f = &failure{Failure: Failure{Since: now}}
		s.failed[id] = f
	}
	delete(s.acked, id)
	delete(s.pending, id)
	f.Err, f.sent, f.last = reason, sent, now
	f.Attempts++
	f.NextRetry = now.Add(backoff(retryBackoffMin, f.Attempts)).Truncate(retryGrid).Add(retryGrid)
	s.retryAt = sooner(s.retryAt, f.NextRetry)
	s.reconsider(f, s.newest.Desired(s.options.Dataplane, id))
}

// reconsider lets a failed service try its luck soon when it differs from what
// was refused, but not more often than the shortest backoff.
func (s *Session) reconsider(f *failure, desired *dataplane.Service) {
	if desired.Equal(f.sent) {
		return
	}
	f.NextRetry = sooner(f.NextRetry, f.last.Add(retryBackoffMin))
	s.retryAt = sooner(s.retryAt, f.NextRetry)
}

func (s *Session) retryDue(now time.Time) bool {
	return !s.retryAt.IsZero() && !now.Before(s.retryAt)
}

// takeRetries gives the ids whose retry is due, and finds the next time.
func (s *Session) takeRetries(now time.Time) []string {
	if !s.retryDue(now) {
		return nil
	}
	var due []string
	s.retryAt = time.Time{}
	for id, f := range s.failed {
		if now.Before(f.NextRetry) {
			s.retryAt = sooner(s.retryAt, f.NextRetry)
		} else {
			due = append(due, id)
		}
	}
	return due
}

// backoff doubles from least with every attempt, up to a minute, and varies by
// a fifth so that many don't come together.
func backoff(least time.Duration, attempt int) time.Duration {
	d := backoffMax
	if attempt < 16 {
		d = min(least<<(max(attempt, 1)-1), backoffMax)
	}
	return jitter(d)
}

func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// sooner gives the earlier of two times, of which a zero one means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// later gives the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
