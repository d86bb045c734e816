package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// timePerService is added to an Apply's deadline for each service it carries:
// several times what the slowest of our dataplanes needs.
const timePerService = 5 * time.Millisecond

// job is one Apply.
type job struct {
	plugin     Applier
	generation uint64
	snapshot   *catalog.Snapshot
	dataplane  string
	change     dataplane.Change
	// sent is what a difference carries, nil for a deleted service; unused
	// when everything is sent.
	sent map[string]*dataplane.Service
	// since is when the oldest change in it came; zero for a check and for
	// retries alone.
	since time.Time
	// fresh is set when it carries something that is no retry.
	fresh bool
}

// check tells whether it only makes the plugin look after itself.
func (j *job) check() bool { return !j.change.Full && len(j.sent) == 0 }

// holds gives what the plugin will hold of a service once the job has
// succeeded, and whether the job says so at all. A nil job says nothing.
func (j *job) holds(id string) (*dataplane.Service, bool) {
	switch {
	case j == nil:
		return nil, false
	case j.change.Full:
		return j.snapshot.Desired(j.dataplane, id), true
	}
	service, ok := j.sent[id]
	return service, ok
}

// next decides what to do now: a job to send, or until when to sleep, zero for
// the next wake-up. The job's context is made here so that Detach can end it.
func (s *Session) next(ctx context.Context, now time.Time) (*flight, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.superseded != nil {
		return nil, time.Time{}, s.superseded
	}
	if s.plugin == nil || s.newest == nil || s.hold {
		return nil, time.Time{}, nil
	}
	if !s.open {
		if wait, until := s.gate(now); wait {
			return nil, until, nil
		}
		s.open = true
	}
	if until := later(s.attemptAt, s.restUntil); now.Before(until) {
		return nil, until, nil
	}
	job := s.plan(now)
	if job == nil {
		return nil, sooner(s.syncAt, s.retryAt), nil
	}
	return s.takeOff(ctx, job), time.Time{}, nil
}

// gate tells whether unread sources hold the session back, and until when.
func (s *Session) gate(now time.Time) (bool, time.Time) {
	switch {
	case s.released:
		return false, time.Time{}
	case s.adopted > 0:
		return true, time.Time{}
	default:
		return now.Before(s.graceOver), s.graceOver
	}
}

// plan chooses what is to be sent now; nil for nothing. Changes go before a
// check, except when churn has put it off by a whole interval.
func (s *Session) plan(now time.Time) *job {
	job := &job{
		plugin:     s.plugin,
		generation: s.generation,
		snapshot:   s.newest,
		dataplane:  s.options.Dataplane,
		change: dataplane.Change{
			Session:  s.options.SessionNumber,
			Revision: s.newest.Revision,
			Base:     s.base,
		},
	}
	if s.needFull {
		job.change.Full, job.change.Base, job.fresh = true, 0, true
		return job
	}
	if now.Before(s.syncAt.Add(s.options.SyncInterval)) {
		s.fillDifference(job, now)
	}
	if job.check() {
		if now.Before(s.syncAt) {
			return nil
		}
		// What is pending is not in it, so the revision stays.
		job.change.Revision = s.base
	}
	return job
}

// fillDifference puts what is pending, and the retries that are due, into a
// job. Its cost is theirs, whatever the number of services.
func (s *Session) fillDifference(job *job, now time.Time) {
	ids := s.takeRetries(now)
	job.fresh = len(s.pending) > 0
	for id := range s.pending {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	job.sent = make(map[string]*dataplane.Service, len(ids))
	for _, id := range ids {
		service := job.snapshot.Desired(job.dataplane, id)
		job.sent[id] = service
		if service != nil {
			job.change.Upserts = append(job.change.Upserts, service)
		} else {
			job.change.Deletes = append(job.change.Deletes, id)
		}
	}
}

// flight is a job that has been taken, with the context of its call.
type flight struct {
	*job
	ctx    context.Context
	cancel context.CancelFunc
}

// takeOff marks the job as in flight: what it carries is no longer pending.
func (s *Session) takeOff(ctx context.Context, job *job) *flight {
	services := len(job.sent)
	if job.change.Full {
		services = job.snapshot.Len()
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.ApplyTimeout+time.Duration(services)*timePerService)
	s.giveUp = cancel
	s.inFlight = job
	if !job.check() {
		job.since = s.waitingSince
		s.waitingSince = time.Time{}
		s.needFull = false
		clear(s.pending)
	}
	return &flight{job: job, ctx: ctx, cancel: cancel}
}

// send makes the call and takes in its outcome.
func (s *Session) send(f *flight) {
	defer f.cancel()
	if f.change.Full {
		f.snapshot.All(func(service *catalog.Service) bool {
			if service.Dataplane == f.dataplane && service.Desired != nil {
				f.change.Upserts = append(f.change.Upserts, service.Desired)
			}
			return true
		})
	}
	if f.check() {
		s.lookOver(f.snapshot)
	}
	started := time.Now()
	result, err := f.plugin.Apply(f.ctx, f.change)
	s.settle(f, outcome{result: result, err: err, started: started, ended: time.Now()})
}

// lookOver compares the whole snapshot with what the plugin has acknowledged,
// so that an id that no change has named is found at the next check at the
// latest. Only Run's goroutine writes acked: the long part needs no lock.
func (s *Session) lookOver(snapshot *catalog.Snapshot) {
	var differ []string
	wanted := 0
	snapshot.All(func(service *catalog.Service) bool {
		if service.Dataplane == s.options.Dataplane && service.Desired != nil {
			wanted++
			if !service.Desired.Equal(s.acked[service.ID].service) {
				differ = append(differ, service.ID)
			}
		}
		return true
	})
	if wanted-len(differ) < len(s.acked) {
		for id := range s.acked {
			if snapshot.Desired(s.options.Dataplane, id) == nil {
				differ = append(differ, id)
			}
		}
	}
	if len(differ) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.needFull {
		return
	}
	for _, id := range differ {
		s.note(id)
	}
	s.markWaiting(time.Now())
}
