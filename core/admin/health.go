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
}

// Judge tells whether an agent is healthy: every source is read or held
// knowingly, every dataplane is connected, and nothing waits for
// acknowledgement longer than twice the sync interval.
func Judge(sources []SourceStatus, dataplanes []DataplaneStatus, syncInterval time.Duration, now time.Time) Health {
	reasons := []string{}
	for _, s := range sources {
		if !s.Read {
			reasons = append(reasons, because(fmt.Sprintf("source %s has not been read", s.Name), s.Error))
		}
	}
	limit := 2 * syncInterval
	for _, d := range dataplanes {
		switch {
		case !d.Connected:
			reasons = append(reasons, because(fmt.Sprintf("dataplane %s is not connected", d.Name), d.Error))
		case d.WaitingSince != nil && now.Sub(*d.WaitingSince) > limit:
			cause := d.Holding
			if cause == "" {
				cause = d.Error
			}
			reasons = append(reasons, because(fmt.Sprintf("dataplane %s has not acknowledged a change for %s, the limit is %s",
				d.Name, now.Sub(*d.WaitingSince).Round(time.Second), limit), cause))
		}
	}
	return Health{Healthy: len(reasons) == 0, Reasons: reasons}
}

func because(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}
