package agent

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// statistics are what one dataplane has counted: of each service since the
// plugin's start, and of all together since the agent's.
type statistics struct {
	known      bool
	services   map[string]dataplane.ServiceStatistics
	totals     dataplane.Counters
	refused    uint64
	repaired   uint64
	unrepaired uint64
}

func newStatistics() statistics {
	return statistics{services: map[string]dataplane.ServiceStatistics{}}
}

// take takes an event; services that nobody wants are left out.
func (s *statistics) take(e dataplane.WatchEvent, wanted func(id string) bool) {
	switch {
	case e.Drift == nil:
	case e.Drift.Repaired:
		s.repaired++
	default:
		s.unrepaired++
	}
	for _, now := range e.Statistics {
		s.known = true
		if !wanted(now.ID) {
			continue
		}
		before := s.services[now.ID]
		s.services[now.ID] = now
		add := func(total *uint64, before, now uint64) { *total += grown(before, now) }
		add(&s.totals.Connections, before.Connections, now.Connections)
		add(&s.totals.BytesIn, before.BytesIn, now.BytesIn)
		add(&s.totals.BytesOut, before.BytesOut, now.BytesOut)
		add(&s.totals.Failed, before.Failed, now.Failed)
		add(&s.refused, before.Refused, now.Refused)
		s.totals.Active += now.Active - before.Active
	}
}

// grown gives by how much a counter has grown, which began anew when it is
// smaller than before.
func grown(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// forget drops a service that is gone.
func (s *statistics) forget(id string) {
	if before, ok := s.services[id]; ok {
		s.totals.Active -= before.Active
		delete(s.services, id)
	}
}

// processGone drops what the process counted, but not the totals.
func (s *statistics) processGone() {
	clear(s.services)
	s.totals.Active = 0
}

func (s *statistics) endpoints(id string) map[netip.AddrPort]dataplane.Counters {
	service, ok := s.services[id]
	if !ok {
		return nil
	}
	out := make(map[netip.AddrPort]dataplane.Counters, len(service.Endpoints))
	for _, e := range service.Endpoints {
		out[e.Address] = e.Counters
	}
	return out
}

// sorted gives the counters of the services in the order of their ids.
func (s *statistics) sorted() []dataplane.ServiceStatistics {
	return slices.SortedFunc(maps.Values(s.services), func(a, b dataplane.ServiceStatistics) int { return cmp.Compare(a.ID, b.ID) })
}
