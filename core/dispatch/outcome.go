package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// loggedFailures is how many services of one Apply are named in the log; the
// rest are counted.
const loggedFailures = 10

// outcome is what became of a call.
type outcome struct {
	result         dataplane.Result
	err            error
	started, ended time.Time
}

func (o outcome) duration() time.Duration { return o.ended.Sub(o.started) }

// settle takes in the outcome of a job.
func (s *Session) settle(f *flight, o outcome) {
	if o.err == nil && o.result.Revision != f.change.Revision {
		o.err = fmt.Errorf("the plugin acknowledged another revision than the %d it was sent", f.change.Revision)
	}
	hung := 0
	s.mu.Lock()
	// What comes from a plugin that has been taken away is of no interest.
	stale := f.generation != s.generation
	if !stale {
		s.giveUp = nil
		if o.err != nil {
			hung = s.settleError(f, o)
		} else {
			s.settleSuccess(f.job, o)
		}
		s.markWaiting(o.ended)
	}
	s.mu.Unlock()
	if stale {
		return
	}
	if s.options.OnApplied != nil {
		s.options.OnApplied(f.applied(o))
	}
	if hung > 0 && s.options.OnHang != nil {
		s.options.OnHang(f.plugin, hung)
	}
}

// settleError prepares for sending everything again, and gives the number of
// hangs in a row if this was one.
func (s *Session) settleError(f *flight, o outcome) (hung int) {
	s.counts.FailedApplies++
	s.counts.LastError, s.counts.LastErrorTime = o.err.Error(), o.ended
	if errors.Is(o.err, dataplane.ErrStaleSession) {
		s.forget(o.ended)
		s.supersede(o.err)
		return 0
	}
	if errors.Is(f.ctx.Err(), context.DeadlineExceeded) {
		s.hangs++
		hung = s.hangs
	}
	s.forget(o.ended)
	if errors.Is(o.err, dataplane.ErrBaseUnknown) && !f.change.Full {
		// The plugin says that it did nothing: no reason to wait.
		s.log.Info("plugin does not hold the base, sending everything", "revision", f.change.Revision, "base", f.change.Base)
		return hung
	}
	s.attempts++
	s.attemptAt = o.ended.Add(backoff(attemptBackoffMin, s.attempts))
	if f.ctx.Err() == nil || hung > 0 {
		s.log.Warn("apply failed, everything will be sent again", "revision", f.change.Revision,
			"full", f.change.Full, "attempt", s.attempts, "retry_in", s.attemptAt.Sub(o.ended).Round(time.Millisecond), "error", o.err)
	}
	return hung
}

// settleSuccess makes the plugin's word the base of what follows.
func (s *Session) settleSuccess(j *job, o outcome) {
	s.inFlight = nil
	s.attempts, s.hangs, s.attemptAt = 0, 0, time.Time{}
	s.base = j.change.Revision
	if !j.check() {
		s.agreed = j.change.Revision
	}
	if j.change.Full {
		s.acknowledgeAll(j, o)
	} else {
		s.acknowledgeSent(j, o)
	}
	s.refuse(j, o)

	if j.change.Full || j.check() {
		s.syncAt = o.ended.Add(jitter(s.options.SyncInterval))
	}
	if !j.check() {
		rest := min(max(o.duration(), s.options.MinInterval), 10*s.options.MinInterval)
		s.restUntil = o.ended.Add(rest)
	}
	s.count(j, o)
}

func (s *Session) acknowledgeAll(j *job, o outcome) {
	s.acked = make(map[string]acknowledged, len(j.change.Upserts))
	for _, service := range j.change.Upserts {
		s.acknowledge(service.ID, service, j, o)
	}
	for id := range s.failed {
		s.acknowledge(id, s.acked[id].service, j, o)
	}
}

func (s *Session) acknowledgeSent(j *job, o outcome) {
	for id, service := range j.sent {
		s.acknowledge(id, service, j, o)
	}
}

// acknowledge records one service as carried, unless the plugin says otherwise.
func (s *Session) acknowledge(id string, service *dataplane.Service, j *job, o outcome) {
	if _, refused := o.result.Failed[id]; refused {
		return
	}
	if f := s.failed[id]; f != nil {
		s.log.Info("service is carried again", "service", id, "revision", j.change.Revision, "attempts", f.Attempts)
		delete(s.failed, id)
	}
	if service == nil {
		delete(s.acked, id)
		return
	}
	s.acked[id] = acknowledged{service, j.change.Revision}
}

// refuse records the services that the plugin could not carry: those that it
// was sent, and those that it found broken by itself. Others, which nobody
// knows, are only believed where everything was sent, as remains that it could
// not take away.
func (s *Session) refuse(j *job, o outcome) {
	logged, silent := 0, 0
	for id, reason := range o.result.Failed {
		sent, ok := j.holds(id)
		if !ok {
			if known, carried := s.acked[id]; carried {
				sent = known.service
			} else if f := s.failed[id]; f != nil {
				sent = f.sent
			} else {
				s.log.Warn("plugin reports a service that it was never sent", "service", id, "error", reason)
				continue
			}
		}
		news := s.failed[id] == nil || s.failed[id].Err != reason
		s.fail(id, reason, sent, o.ended)
		switch {
		case !news:
		case logged < loggedFailures:
			logged++
			s.log.Warn("plugin can't carry a service, it will be tried again", "service", id,
				"revision", j.change.Revision, "retry_at", s.failed[id].NextRetry, "error", reason)
		default:
			silent++
		}
	}
	if silent > 0 {
		s.log.Warn("plugin can't carry more services", "services", silent, "revision", j.change.Revision)
	}
}

func (s *Session) count(j *job, o outcome) {
	c := &s.counts
	switch {
	case j.change.Full:
		c.FullApplies++
	case j.check():
		c.CheckApplies++
	default:
		c.DifferenceApplies++
	}
	c.ServicesUpserted += uint64(len(j.change.Upserts))
	c.ServicesDeleted += uint64(len(j.change.Deletes))
	c.LastApply, c.LastDuration = o.ended, o.duration()
	c.LastError, c.LastErrorTime = "", time.Time{}
}

// applied tells the outcome in the words of OnApplied.
func (j *job) applied(o outcome) Applied {
	a := Applied{
		Plugin: j.plugin, Revision: j.change.Revision, Full: j.change.Full,
		Upserts: len(j.change.Upserts), Deletes: len(j.change.Deletes),
		Duration: o.duration(), Err: o.err,
	}
	if o.err == nil {
		a.Failed = len(o.result.Failed)
		if j.fresh {
			a.Latency = max(o.ended.Sub(j.snapshot.Time), 0)
		}
	}
	return a
}
