package consul

import (
	"slices"

	"github.com/patchbay-proxy/patchbay/core/config/selector"
)

// selection chooses services.
type selection struct {
	selected, excluded []selector.Selector
}

func newSelection(settings *Settings) (selection, error) {
	chosen := settings.Select
	if len(chosen) == 0 {
		chosen = []string{"tag:patchbay"}
	}
	var s selection
	var err error
	if s.selected, err = selector.ParseAll(chosen); err != nil {
		return s, err
	}
	s.excluded, err = selector.ParseAll(settings.Exclude)
	return s, err
}

// byListing tells what name and tags say of a service: whether it has to be
// read, and whether it is chosen whatever its meta says. The listing knows no
// meta, so with a selector of meta every service is read that isn't excluded.
func (s selection) byListing(name string, tags []string) (read, chosen bool) {
	matches := func(l selector.Selector) bool { return l.MatchListing(name, tags) }
	if slices.ContainsFunc(s.excluded, matches) {
		return false, false
	}
	chosen = slices.ContainsFunc(s.selected, matches)
	return chosen || slices.ContainsFunc(s.selected, func(l selector.Selector) bool { return l.Kind == selector.Meta }), chosen
}

// byMeta tells whether one of the selectors chooses an instance by its meta.
func (s selection) byMeta(of []selector.Selector, meta map[string]string) bool {
	return slices.ContainsFunc(of, func(l selector.Selector) bool { return l.MatchMeta(meta) })
}
