package dispatch

import (
	"time"
)

// Status tells how the session stands.
func (s *Session) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.counts
	status.Dataplane = s.options.Dataplane
	status.State = s.state(time.Now())
	if s.newest != nil {
		status.WantedRevision = s.newest.Revision
	}
	status.AcknowledgedRevision = s.agreed
	status.WaitingSince = s.waitingSince
	if s.inFlight != nil {
		status.WaitingSince = sooner(s.waitingSince, s.inFlight.since)
	}
	if s.settled() {
		status.AcknowledgedRevision = status.WantedRevision
	}
	if s.attempts > 0 && s.plugin != nil {
		status.NextAttempt = s.attemptAt
	}
	if s.superseded != nil {
		status.LastError = s.superseded.Error()
	}
	status.Acknowledged = len(s.acked)
	status.Failed = make(map[string]Failure, len(s.failed))
	for id, f := range s.failed {
		status.Failed[id] = f.Failure
	}
	return status
}

// settled tells whether the plugin has answered to all there is.
func (s *Session) settled() bool {
	return s.newest != nil && !s.needFull && len(s.pending) == 0 && (s.inFlight == nil || !s.inFlight.fresh)
}

func (s *Session) state(now time.Time) State {
	switch {
	case s.superseded != nil:
		return StateSuperseded
	case s.plugin == nil:
		return StateDisconnected
	case s.hold:
		return StateHeld
	case s.inFlight != nil && !s.inFlight.check():
		return StateApplying
	case s.newest == nil:
		return StateWaiting
	case !s.open:
		// Before Run has begun there is no telling when the grace ends.
		if wait, _ := s.gate(now); wait || s.graceOver.IsZero() {
			return StateWaiting
		}
		return StatePending
	case now.Before(s.attemptAt):
		return StateBackoff
	case s.needFull || len(s.pending) > 0:
		return StatePending
	default:
		return StateSynced
	}
}

// Acknowledged tells what the plugin has said of one service.
func (s *Session) Acknowledged(id string) Ack {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.acked[id]
	ack := Ack{Revision: known.revision}
	if f := s.failed[id]; f != nil {
		failure := f.Failure
		ack.Failure = &failure
		return ack
	}
	if !s.needFull && s.newest != nil {
		_, pending := s.pending[id]
		_, flying := s.inFlight.holds(id)
		ack.Current = !pending && !flying && known.service.Equal(s.newest.Desired(s.options.Dataplane, id))
	}
	return ack
}
