package consul

import (
	"fmt"
	"time"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// statusNow puts together what operators are to know, the worst first.
func (s *Source) statusNow() source.Status {
	status := source.Status{Read: s.read}
	since := func(at time.Time, text string) source.Status {
		if !s.savedAt.IsZero() && s.savedAt.Before(at) {
			at = s.savedAt
		}
		status.StaleSince, status.Err = at.UTC(), text
		return status
	}
	l := &s.listing
	switch {
	case s.unusable.text != "":
		return since(s.unusable.since, s.unusable.text)
	case l.problem.text != "":
		return since(l.problem.since, l.problem.text)
	case !s.savedAt.IsZero():
		return since(s.savedAt, "Consul has not answered since the start; this is what was known before")
	}
	if missing := s.missing(); missing > 0 {
		return since(l.doubt.since, fmt.Sprintf("%s: %d services are missing in it and kept as they were, until they are back or an operator says that it is right: patchbay reload -accept-empty", l.doubt.why, missing))
	}
	var first *service
	failing := 0
	for _, v := range s.services {
		if v.problem.text == "" {
			continue
		}
		failing++
		if first == nil || v.problem.since.Before(first.problem.since) || v.problem.since.Equal(first.problem.since) && v.name < first.name {
			first = v
		}
	}
	switch failing {
	case 0:
		status.Err = s.badFile
	case 1:
		return since(first.problem.since, fmt.Sprintf("service %q can't be read: %s", first.name, first.problem.text))
	default:
		return since(first.problem.since, fmt.Sprintf("%d services can't be read, the first of them %q: %s", failing, first.name, first.problem.text))
	}
	return status
}

// missing counts the services that are kept, whole or in part, while Consul is
// in doubt.
func (s *Source) missing() int {
	if !s.listing.doubt.open {
		return 0
	}
	n := 0
	for _, v := range s.services {
		if v.visible() && (!v.listed && len(v.all()) > 0 || len(v.held) > 0) {
			n++
		}
	}
	return n
}
