package static

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// addresses of what an endpoint names: its own, or what the name resolved to
// last.
func (s *Source) addresses(name string) []netip.Addr {
	if a, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{a.Unmap()}
	}
	if h := s.hosts[name]; h != nil && (h.tried || len(h.addresses) > 0) {
		return h.addresses
	}
	return s.saved.hosts[name]
}

// followHosts brings the names that are resolved to those of the blocks.
func (s *Source) followHosts() {
	s.users = map[string][]string{}
	for _, block := range s.blocks {
		for _, e := range block.Endpoints {
			if _, err := netip.ParseAddr(e.Host); err != nil && !slices.Contains(s.users[e.Host], block.Name) {
				s.users[e.Host] = append(s.users[e.Host], block.Name)
			}
		}
	}
	for name, h := range s.hosts {
		if s.users[name] == nil {
			s.lookups.remove(h.task)
			delete(s.hosts, name)
			s.unsaved = true
		}
	}
	for name := range s.users {
		if s.hosts[name] != nil {
			continue
		}
		h := &host{addresses: s.saved.hosts[name]}
		h.task = &task{index: -1, run: func(ctx context.Context) time.Duration { return s.resolve(ctx, name, h) }}
		s.hosts[name] = h
		s.lookups.add(h.task, 0)
	}
}

// resolve looks a name up once.
func (s *Source) resolve(ctx context.Context, name string, h *host) time.Duration {
	found, failure := source.Lookup(ctx, s.options.Resolver, name)
	if ctx.Err() != nil {
		return s.options.ResolveInterval
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts[name] == h {
		s.resolved(name, h, found, failure)
	}
	if failure != "" {
		return min(s.options.ResolveInterval, 5*time.Second)
	}
	return s.options.ResolveInterval
}

// resolved takes in what a lookup came to. A failure keeps the last answer.
func (s *Source) resolved(name string, h *host, found []netip.Addr, failure string) {
	first, failed := !h.tried, h.err
	h.tried, h.err = true, failure
	changed := failure == "" && !slices.Equal(found, h.addresses)
	if changed {
		h.addresses = found
		s.unsaved = true
		for _, service := range s.users[name] {
			s.followTargets(service, 0)
		}
	}
	if failure != failed && failure != "" {
		s.log.Warn("a host name does not resolve; its last addresses are kept", "host", name, "error", failure, "addresses", h.addresses)
	}
	if first || changed || failure != failed {
		for _, service := range s.users[name] {
			s.touch(service)
		}
	}
}
