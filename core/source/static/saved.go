package static

import (
	"cmp"
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/core/state"
)

const savedVersion = 1

// saved is the state that outlives the process.
type saved struct {
	Hosts     map[string][]netip.Addr `json:"hosts"`
	Endpoints []savedEndpoint         `json:"endpoints"`
}

type savedEndpoint struct {
	targetKey
	health
}

// load reads the saved state. What is damaged is done without: every endpoint
// is then checked afresh.
func (s *Source) load() {
	if s.options.StatePath == "" {
		return
	}
	var from saved
	if err := state.Read(s.options.StatePath, "static", savedVersion, &from); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.options.Troubles.Damaged("the saved health of endpoints can't be used; they are up until a check fails", err)
			s.log.Warn("the saved health of endpoints can't be used; they are up until a check fails", "error", err)
		}
		return
	}
	for name, addresses := range from.Hosts {
		s.saved.hosts[name] = source.CleanAddresses(addresses)
	}
	for _, e := range from.Endpoints {
		e.known = true
		s.saved.health[e.targetKey] = e.health
	}
}

// save writes the state if it has changed since.
func (s *Source) save() {
	s.mu.Lock()
	if s.options.StatePath == "" || !s.unsaved {
		s.mu.Unlock()
		return
	}
	to := saved{Hosts: map[string][]netip.Addr{}}
	for name, h := range s.hosts {
		if len(h.addresses) > 0 {
			to.Hosts[name] = h.addresses
		}
	}
	for _, targets := range s.targets {
		for key, t := range targets {
			if t.health.known {
				to.Endpoints = append(to.Endpoints, savedEndpoint{key, t.health})
			}
		}
	}
	s.unsaved = false
	s.mu.Unlock()

	slices.SortFunc(to.Endpoints, func(a, b savedEndpoint) int { return a.compare(b.targetKey) })
	err := state.Write(s.options.StatePath, "static", savedVersion, to)
	s.options.Troubles.Written(s.options.StatePath, err)
	news := err != nil && !s.failing
	if s.failing = err != nil; news {
		s.log.Error("the health of endpoints can't be saved", "error", err)
	}
	if err != nil {
		s.mu.Lock()
		s.unsaved = true
		s.mu.Unlock()
	}
}

func (k targetKey) compare(o targetKey) int {
	return cmp.Or(cmp.Compare(k.Service, o.Service), cmp.Compare(k.Host, o.Host), k.At.Compare(o.At), cmp.Compare(k.Check, o.Check))
}
