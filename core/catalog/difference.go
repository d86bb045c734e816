package catalog

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// FieldChange is one field that would change, in words for people; the old
// value is empty where there was none, the new one where there will be none.
type FieldChange struct {
	Field    string
	Old, New string
}

// fieldChanges tells in which fields two services differ, in a fixed order;
// either may be nil. Endpoints are told one by one, the deadline of a draining
// one aside.
func fieldChanges(old, s *Service) []FieldChange {
	var out []FieldChange
	add := func(field, a, b string) {
		if a != b {
			out = append(out, FieldChange{field, a, b})
		}
	}
	a, b := describe(old), describe(s)
	for i, f := range describedFields {
		add(f, a[i], b[i])
	}
	before, after := endpointsByAddress(old), endpointsByAddress(s)
	var addresses []netip.AddrPort
	for at := range before {
		addresses = append(addresses, at)
	}
	for at := range after {
		if _, known := before[at]; !known {
			addresses = append(addresses, at)
		}
	}
	slices.SortFunc(addresses, netip.AddrPort.Compare)
	for _, at := range addresses {
		add("endpoint "+at.String(), before[at], after[at])
	}
	return out
}

var describedFields = []string{"rejected", "source", "dataplane", "frontends", "balance", "affinity", "on_empty", "on_drain_end", "masquerade", "allow", "options", "notes"}

// describe gives the values of describedFields in words.
func describe(s *Service) []string {
	out := make([]string, len(describedFields))
	if s == nil {
		return out
	}
	out[0], out[1], out[2] = s.Rejected, s.Source, s.Dataplane
	out[11] = strings.Join(s.Notes, "; ")
	d := s.Desired
	if d == nil {
		return out
	}
	frontends := make([]string, 0, len(d.Frontends))
	for _, f := range d.Frontends {
		frontends = append(frontends, fmt.Sprintf("%s %s/%s", f.Kind, netip.AddrPortFrom(f.Address, f.Port), f.Protocol))
	}
	allow := make([]string, 0, len(d.Allow))
	for _, p := range d.Allow {
		allow = append(allow, p.String())
	}
	copy(out[3:], []string{
		strings.Join(frontends, ", "), d.Balance, duration(d.Affinity), d.OnEmpty.String(), d.OnDrainEnd.String(),
		d.Masquerade.String(), strings.Join(allow, ", "), string(d.OptionsJSON),
	})
	return out
}

func duration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func endpointsByAddress(s *Service) map[netip.AddrPort]string {
	out := map[netip.AddrPort]string{}
	if s == nil || s.Desired == nil {
		return out
	}
	for _, e := range s.Desired.Endpoints {
		out[e.Address] = describeEndpoint(e)
	}
	return out
}

func describeEndpoint(e dataplane.Endpoint) string {
	out := fmt.Sprintf("%s, weight %d", e.State, e.Weight)
	if e.Zone != "" {
		out += ", zone " + e.Zone
	}
	if e.Node != "" {
		out += ", node " + e.Node
	}
	return out
}
