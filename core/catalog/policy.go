package catalog

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/core/vip"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// policies is a Policy made ready to be asked for one service.
type policies struct {
	Policy
	// sources in their precedence, the static one first.
	sources []string
	blocks  map[string]*config.Service
	// sharers of the VIP of a service, by its name.
	sharers      map[string][]string
	dataplanes   map[string]bool
	defaultPlane string
	defaults     *config.Service
	local        map[netip.Addr]bool
}

func (p *policies) set(policy Policy) {
	*p = policies{
		Policy:     policy,
		sources:    []string{source.Static},
		blocks:     make(map[string]*config.Service, len(policy.Config.Services)),
		sharers:    map[string][]string{},
		dataplanes: map[string]bool{},
		defaults:   builtinDefaults(),
		local:      map[netip.Addr]bool{},
	}
	// What came with the policy has been taken, and would only cost memory.
	p.Static = nil
	for _, name := range policy.Sources {
		if !slices.Contains(p.sources, name) {
			p.sources = append(p.sources, name)
		}
	}
	for _, b := range policy.Config.Services {
		p.blocks[b.Name] = b
		if b.VIPService != "" {
			p.sharers[b.VIPService] = append(p.sharers[b.VIPService], b.Name)
		}
	}
	for _, d := range policy.Config.Dataplanes {
		p.dataplanes[d.Name] = true
		if d.Default || len(policy.Config.Dataplanes) == 1 {
			p.defaultPlane = d.Name
		}
	}
	if policy.Defaults != nil {
		d := *policy.Defaults
		fillDefaults(&d)
		p.defaults = &d
	}
	for _, a := range policy.Node.Addresses {
		p.local[a.Unmap()] = true
	}
}

func (p *policies) pools() []vip.Pool {
	out := make([]vip.Pool, 0, len(p.Config.Pools))
	for _, pool := range p.Config.Pools {
		out = append(out, vip.Pool{Name: pool.Name, CIDR: pool.CIDR})
	}
	return out
}

// reserved are the addresses that the configuration gives to services itself.
func (p *policies) reserved() []netip.Addr {
	var out []netip.Addr
	for _, b := range p.Config.Services {
		out = append(out, b.VIP...)
		out = append(out, b.External...)
	}
	return out
}

func builtinDefaults() *config.Service {
	s := &config.Service{Drain: 30 * time.Second}
	fillDefaults(s)
	return s
}

// fillDefaults gives the arguments without which a policy has no sense their
// default.
func fillDefaults(s *config.Service) {
	if len(s.Protocols) == 0 {
		s.Protocols = []dataplane.Protocol{dataplane.TCP}
	}
	if s.Warning == "" {
		s.Warning = warningUse
	}
	if s.Prefer == "" {
		s.Prefer = preferNone
	}
	if s.Masquerade == 0 {
		s.Masquerade = dataplane.MasqueradeAuto
	}
	if s.OnEmpty == 0 {
		s.OnEmpty = dataplane.EmptyReject
	}
	if s.OnDrainEnd == 0 {
		s.OnDrainEnd = dataplane.DrainEndKeep
	}
}

// effective gives the policy of one service: what its block says, else its
// meta, else the defaults. explicit tells that the VIPs stand in a file. A meta
// value that can't be used is left out with a note, except one that says where
// the service is or who may use it: then it is refused.
func (p *policies) effective(block *config.Service, s *source.Service) (policy config.Service, explicit bool, notes []string, refused string) {
	policy = *p.defaults
	if block != nil {
		policy = *block
		fillDefaults(&policy)
	}
	explicit = len(policy.VIP) > 0
	if s != nil && len(s.Meta) > 0 {
		before := cmp.Or(policy.Dataplane, p.defaultPlane)
		notes, refused = applyMeta(&policy, p.defaults, s.Meta)
		if policy.Dataplane != before {
			// The options are those of another plugin.
			policy.OptionsJSON = nil
		}
	}
	if policy.Port == 0 && s != nil {
		policy.Port = s.Port
	}
	if policy.Dataplane == "" {
		policy.Dataplane = p.defaultPlane
	}
	return policy, explicit, notes, refused
}
