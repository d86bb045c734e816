package consul

import (
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-proxy/patchbay/core/state"
)

const (
	savedKind    = "consul"
	savedVersion = 1
)

// saved is the state that outlives the process. It holds nothing secret.
type saved struct {
	SavedAt    time.Time               `json:"saved_at"`
	Address    string                  `json:"address"`
	Datacenter string                  `json:"datacenter"`
	Index      uint64                  `json:"index"`
	Filtered   bool                    `json:"filtered"`
	NodeName   string                  `json:"node_name,omitempty"`
	Hosts      map[string][]netip.Addr `json:"hosts,omitempty"`
	Services   []savedService          `json:"services"`
}

type savedService struct {
	Name      string            `json:"name"`
	Index     uint64            `json:"index"`
	Filtered  bool              `json:"filtered,omitempty"`
	ByListing bool              `json:"by_listing,omitempty"`
	ByMeta    bool              `json:"by_meta,omitempty"`
	Meta      map[string]string `json:"meta,omitempty"`
	Notes     []string          `json:"notes,omitempty"`
	Instances []instance        `json:"instances"`
}

// load reads the saved state. What is damaged is done without.
func (s *Source) load() {
	if s.statePath == "" {
		return
	}
	var from saved
	if err := state.Read(s.statePath, savedKind, savedVersion, &from); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("the saved state of Consul can't be used: its services are unknown until Consul answers", "error", err)
		}
		return
	}
	s.savedAt, s.nodeName = from.SavedAt, from.NodeName
	s.listing.known, s.listing.filtered = true, from.Filtered
	same := from.Address == s.settings.Address && from.Datacenter == s.settings.Datacenter
	if same {
		s.listing.seen = from.Index
	}
	for _, f := range from.Services {
		v := newService(f.Name)
		v.known, v.listed = true, true
		v.byListing, v.chosen = f.ByListing, f.ByMeta
		v.meta, v.notes = f.Meta, f.Notes
		v.instances, v.filtered = f.Instances, f.Filtered
		slices.SortFunc(v.instances, compareInstances)
		if same {
			v.seen = f.Index
		}
		s.services[v.name] = v
		s.hosts.use(v.name, v.instances)
	}
	s.hosts.load(from.Hosts)
	s.read = true
}

// save writes the state if it has changed since, or in any case; it then says
// for when it holds.
func (s *Source) save(always bool) {
	s.mu.Lock()
	if s.statePath == "" || !s.unsaved && !always || !s.read {
		s.mu.Unlock()
		return
	}
	to := saved{
		SavedAt: time.Now().UTC(), Address: s.settings.Address, Datacenter: s.settings.Datacenter,
		Index: s.listing.seen, Filtered: s.listing.filtered, NodeName: s.nodeName,
		Hosts: s.hosts.saved(),
	}
	if status := s.statusNow(); !status.StaleSince.IsZero() {
		to.SavedAt = status.StaleSince
	}
	for _, name := range slices.Sorted(maps.Keys(s.services)) {
		v := s.services[name]
		if !v.known || v.invalid || !v.visible() {
			continue
		}
		to.Services = append(to.Services, savedService{
			Name: name, Index: v.seen, Filtered: v.filtered, ByListing: v.byListing, ByMeta: v.chosen,
			Meta: v.meta, Notes: v.notes, Instances: v.all(),
		})
	}
	s.unsaved = false
	s.mu.Unlock()
	if err := state.Write(s.statePath, savedKind, savedVersion, to); err != nil {
		s.log.Error("the state of Consul can't be saved", "error", err)
		s.mu.Lock()
		s.unsaved = true
		s.mu.Unlock()
	}
}
