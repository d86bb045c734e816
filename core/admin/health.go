package admin

import (
	"fmt"
	"time"
)

// Health is the body of GET /healthz: status 200 when healthy, else 503.
type Health struct {
	Healthy bool `json:"healthy"`
	// Reasons say what is wrong; empty when healthy.
	Reasons []string `json:"reasons"`
	// Notes say what an operator should know though it is no reason: a source
	// that is stale, whose last state is kept.
	Notes []string `json:"notes,omitempty"`
}

// Judge tells whether an agent is healthy: every source is read or held
// knowingly, every dataplane is connected and answers, and nothing waits for
// acknowledgement longer than twice the sync interval. unsaved says which files
// of the agent's state can't be written.
func Judge(unsaved []string, sources []SourceStatus, dataplanes []DataplaneStatus, syncInterval time.Duration, now time.Time) Health {
	reasons := append([]string{}, unsaved...)
	var notes []string
	for _, s := range sources {
		switch {
		case !s.Read:
			reasons = append(reasons, because(fmt.Sprintf("source %s has not been read", s.Name), s.Error))
		case s.StaleSince != nil:
			notes = append(notes, because(fmt.Sprintf("source %s is stale since %s", s.Name, s.StaleSince.UTC().Format(time.RFC3339)), s.Error))
		case s.Error != "":
			notes = append(notes, fmt.Sprintf("source %s: %s", s.Name, s.Error))
		}
	}
	limit := 2 * syncInterval
	for _, d := range dataplanes {
		switch {
		case !d.Connected:
			reasons = append(reasons, because(fmt.Sprintf("dataplane %s is not connected", d.Name), d.Error))
		case d.SilentSince != nil:
			reasons = append(reasons, fmt.Sprintf("dataplane %s: %s", d.Name, d.Silence(now)))
		case d.WaitingSince != nil && now.Sub(*d.WaitingSince) > limit:
			cause := d.Holding
			if cause == "" {
				cause = d.Error
			}
			reasons = append(reasons, because(fmt.Sprintf("dataplane %s has not acknowledged a change for %s, the limit is %s",
				d.Name, now.Sub(*d.WaitingSince).Round(time.Second), limit), cause))
		}
	}
	return Health{Healthy: len(reasons) == 0, Reasons: reasons, Notes: notes}
}

func because(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}
