package static

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
)

// Run implements source.Source: it checks, resolves, and tells sink what has
// changed, until ctx ends. The source counts as read when every host name has
// been looked up once.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	var parts sync.WaitGroup
	parts.Go(func() { s.checks.run(ctx) })
	parts.Go(func() { s.lookups.run(ctx) })
	defer s.save()
	defer parts.Wait()

	s.mu.Lock()
	s.retell = true
	s.mu.Unlock()
	told := map[string]*source.Service{}
	s.tell(sink, told)
	save := time.NewTicker(s.options.SaveInterval)
	defer save.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
			s.tell(sink, told)
		case <-save.C:
			s.save()
		}
	}
}

// tell gives sink the services that differ from what it was told; after Set all
// of them, because sink may have been given a Preview meanwhile that is older
// than what it was told.
func (s *Source) tell(sink source.Sink, told map[string]*source.Service) {
	s.mu.Lock()
	changes := source.Changes{Replace: s.retell}
	if s.retell {
		for name := range s.blocks {
			s.dirty[name] = struct{}{}
		}
	}
	for name := range s.dirty {
		block := s.blocks[name]
		if block == nil {
			if told[name] != nil {
				changes.Removed = append(changes.Removed, name)
			}
			delete(told, name)
			continue
		}
		built := s.build(block)
		if !equal(told[name], built) {
			told[name] = built
		} else if !s.retell {
			continue
		}
		changes.Upserts = append(changes.Upserts, told[name])
	}
	clear(s.dirty)
	s.retell = false
	read := true
	for _, h := range s.hosts {
		read = read && h.tried
	}
	s.mu.Unlock()
	if changes.Replace || len(changes.Upserts) > 0 || len(changes.Removed) > 0 {
		sink.Change(source.Static, changes)
	}
	sink.SetStatus(source.Static, source.Status{Read: read})
}

// build gives a service as it is known now.
func (s *Source) build(block *config.Service) *source.Service {
	out := &source.Service{Name: block.Name}
	for i := range block.Endpoints {
		e := &block.Endpoints[i]
		out.Instances = append(out.Instances, s.instances(block, e)...)
		if h := s.hosts[e.Host]; h != nil && h.err != "" && len(h.addresses) > 0 {
			note := fmt.Sprintf("host name %s does not resolve (%s): its last addresses are kept", e.Host, h.err)
			if !slices.Contains(out.Notes, note) {
				out.Notes = append(out.Notes, note)
			}
		}
	}
	return out
}

// instances gives those of one endpoint block: one for each address.
func (s *Source) instances(block *config.Service, e *config.Endpoint) []source.Instance {
	id := net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
	like := source.Instance{ID: id, Address: e.Host, Port: e.Port, Weight: e.Weight, WarningWeight: e.Weight, Health: source.Passing, Zone: e.Zone}
	addresses := s.addresses(e.Host)
	if len(addresses) == 0 {
		like.Health, like.Reason = source.Critical, "not looked up yet"
		if h := s.hosts[e.Host]; h != nil && h.tried {
			like.Reason = h.err
		}
		return []source.Instance{like}
	}
	_, err := netip.ParseAddr(e.Host)
	named := err != nil
	out := make([]source.Instance, 0, len(addresses))
	for _, address := range addresses {
		i := like
		i.Address = address.String()
		if named {
			i.Host = e.Host
			i.ID = id + "/" + i.Address
		}
		if h := s.healthOf(block, e, address); h.Down {
			i.Health, i.Reason = source.Critical, h.Reason
		}
		out = append(out, i)
	}
	return out
}

func (s *Source) healthOf(block *config.Service, e *config.Endpoint, address netip.Addr) health {
	if block.Check == nil {
		return health{}
	}
	key := keyOf(block, e, address)
	if t := s.targets[key.Service][key]; t != nil {
		return t.health
	}
	return s.saved.health[key]
}

func equal(a, b *source.Service) bool {
	return a != nil && b != nil && a.Name == b.Name && a.Port == b.Port && slices.Equal(a.Instances, b.Instances) && slices.Equal(a.Notes, b.Notes)
}
