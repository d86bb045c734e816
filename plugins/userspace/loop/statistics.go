package loop

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Statistics are the engine's counters. All but Active grow from the start of
// the service; those of a removed service are gone.
type Statistics struct {
	// Active is the number of connections at present, also of removed services.
	Active int64
	// Sessions is the number of UDP sessions at present.
	Sessions int64
	// Services, ordered by ID.
	Services []ServiceStatistics
}

// ServiceStatistics are the counters of one service.
type ServiceStatistics struct {
	ID string
	// Listen are the addresses that are listened on for TCP, ListenUDP those for
	// UDP; without the latter while the service is empty.
	Listen, ListenUDP []netip.AddrPort
	// Active is the number of connections and UDP sessions at present.
	Active int64
	// Connections counts those that were accepted and not refused, UDP sessions
	// included.
	Connections uint64
	// Retries counts further endpoints tried after one had failed, Failed the
	// connections for which none answered.
	Retries, Failed uint64
	// Refused counts the connections that were reset at once, and the attempts
	// to begin a UDP session that came to nothing.
	Refused Refused
	// BytesIn came from clients, BytesOut went to them.
	BytesIn, BytesOut uint64
	// Dropped counts datagrams that were not carried: those that were refused,
	// had no endpoint, or found the kernel's buffers full.
	Dropped uint64
	// Evicted counts UDP sessions that made room for new ones.
	Evicted uint64
	// Endpoints in the order of the service.
	Endpoints []EndpointStatistics
}

// Refused says why connections were reset at once.
type Refused struct {
	Empty       uint64 // no endpoint takes connections
	Source      uint64 // client outside the allowed prefixes
	Limit       uint64 // more than the service or the engine may have
	Descriptors uint64 // no descriptor left
	Client      uint64 // more than one client may have
	Header      uint64 // no valid PROXY protocol header from a trusted source
}

// EndpointStatistics are the counters of one endpoint.
type EndpointStatistics struct {
	Address  netip.AddrPort
	Weight   int
	Draining bool
	Deadline time.Time
	// Active is the number of connections that use the endpoint or are being
	// made to it.
	Active int64
	// Connections were made, Failures were refused or timed out.
	Connections, Failures uint64
	BytesIn, BytesOut     uint64
	// LastFailure is why the last attempt that failed did so, and when; empty if
	// none has.
	LastFailure string
	FailedAt    time.Time
	// EjectedUntil is when an ejected endpoint takes new connections again; the
	// zero time for one that isn't ejected.
	EjectedUntil time.Time
}

// Statistics reads the counters of all services, bytes of connections that go
// on included.
func (e *Engine) Statistics() Statistics {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.countBytes()
	s := Statistics{Active: e.shared.active.Load(), Sessions: e.shared.udp.sessions.Load()}
	for _, v := range e.services {
		s.Services = append(s.Services, v.statistics(e.shared))
	}
	slices.SortFunc(s.Services, func(a, b ServiceStatistics) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// Service reads the counters of one service; false if there is none of this ID.
func (e *Engine) Service(id string) (ServiceStatistics, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.services[id]
	if v == nil {
		return ServiceStatistics{}, false
	}
	e.countBytes()
	return v.statistics(e.shared), true
}

func (e *Engine) countBytes() {
	e.onLoops(func(l *loop) {
		l.slots.each(func(_ int32, c *conn) {
			if c.dir[client].bytes|c.dir[server].bytes != 0 {
				l.count(c, l.shared.endpoints.get(c.endpoint))
			}
		})
		if l.relay != nil {
			l.relay.countAll()
		}
	})
}

func (s *service) statistics(common *shared) ServiceStatistics {
	t := ServiceStatistics{
		ID:          s.id,
		Active:      s.active.Load(),
		Connections: s.accepted.Load(),
		Retries:     s.retries.Load(),
		Failed:      s.failed.Load(),
		Refused: Refused{
			Empty:       s.refused[refusedEmpty].Load(),
			Source:      s.refused[refusedSource].Load(),
			Limit:       s.refused[refusedLimit].Load(),
			Descriptors: s.refused[refusedDescriptors].Load(),
			Client:      s.refused[refusedGuest].Load(),
			Header:      s.refused[refusedHeader].Load(),
		},
		BytesIn:  s.bytes[client].Load(),
		BytesOut: s.bytes[server].Load(),
		Dropped:  s.udp.dropped.Load(),
		Evicted:  s.udp.evicted.Load(),
	}
	for _, n := range s.listen {
		t.Listen = append(t.Listen, n.address)
	}
	for _, n := range s.udp.listen {
		if len(n.fds) > 0 {
			t.ListenUDP = append(t.ListenUDP, n.address)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := common.ticks()
	for _, p := range s.endpoints {
		v := EndpointStatistics{
			Address:     p.address,
			Weight:      int(p.weight),
			Draining:    p.draining,
			Deadline:    p.deadline,
			Active:      p.active.Load(),
			Connections: p.connections.Load(),
			Failures:    p.failures.Load(),
			BytesIn:     p.bytes[client].Load(),
			BytesOut:    p.bytes[server].Load(),
		}
		if why := p.trouble.last; why != 0 {
			v.LastFailure, v.FailedAt = why.Error(), common.tickTime(p.trouble.at)
		}
		if p.trouble.ejected && int32(p.trouble.until-now) > 0 {
			v.EjectedUntil = common.tickTime(p.trouble.until)
		}
		t.Endpoints = append(t.Endpoints, v)
	}
	return t
}
