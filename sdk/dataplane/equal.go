package dataplane

import (
	"bytes"
	"slices"
)

// Equal tells whether both say the same. The order of frontends, endpoints and
// prefixes counts; the decoded Options don't, their JSON does.
func (s *Service) Equal(o *Service) bool {
	if s == o {
		return true
	}
	if s == nil || o == nil {
		return false
	}
	return s.ID == o.ID &&
		s.Balance == o.Balance &&
		s.Affinity == o.Affinity &&
		s.OnEmpty == o.OnEmpty &&
		s.OnDrainEnd == o.OnDrainEnd &&
		s.Masquerade == o.Masquerade &&
		slices.Equal(s.Frontends, o.Frontends) &&
		slices.EqualFunc(s.Endpoints, o.Endpoints, Endpoint.Equal) &&
		slices.Equal(s.Allow, o.Allow) &&
		bytes.Equal(s.OptionsJSON, o.OptionsJSON)
}

// Equal tells whether both say the same.
func (e Endpoint) Equal(o Endpoint) bool {
	deadline, other := e.DrainDeadline, o.DrainDeadline
	e.DrainDeadline, o.DrainDeadline = other, other
	return e == o && deadline.Equal(other)
}
