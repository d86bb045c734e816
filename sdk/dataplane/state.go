package dataplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"

	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// state is what the core wants of the dataplane, and what of it may not be in
// force. A difference costs what it names, not what there is.
type state struct {
	// known is false until an update has succeeded, and again after one of
	// unknown outcome: then only a full Apply is taken.
	known    bool
	revision uint64
	services map[string]*Service
	// suspect holds the ids whose state in the dataplane may not be the
	// desired one: those of an update that failed, and those that failed alone.
	suspect map[string]bool
}

func newState() *state {
	return &state{services: map[string]*Service{}, suspect: map[string]bool{}}
}

// doubt makes everything suspect, so that the next update, which must be a full
// one, has every service in Upserted.
func (st *state) doubt() {
	st.known = false
	for id := range st.services {
		st.suspect[id] = true
	}
}

// begin moves the desired state on and gives the update that leads there, and
// the services that can't be part of it. Until succeed, the state is unknown.
func (st *state) begin(tx *transaction, options *optionsDecoder) (*Update, map[string]error) {
	st.known = false
	u := &Update{revision: tx.revision}
	refused := map[string]error{}
	services := st.services
	if tx.full {
		services = make(map[string]*Service, len(tx.upserts))
	}
	for _, id := range tx.order {
		s, old := tx.upserts[id], st.services[id]
		if old != nil && s.Equal(old) {
			s = old // with its decoded options
		} else if err := options.prepare(s); err != nil {
			// What was in force for the service stays.
			refused[id] = err
			if s = old; s == nil {
				continue
			}
		}
		services[id] = s
		if s != old || st.suspect[id] {
			u.upserted = append(u.upserted, s)
		}
	}
	if tx.full {
		u.removed = st.missing(services)
	} else {
		u.removed = st.remove(tx.deletes)
	}
	st.services, u.services = services, services
	for _, s := range u.upserted {
		st.suspect[s.ID] = true
	}
	for _, id := range u.removed {
		st.suspect[id] = true
	}
	u.sort()
	return u, refused
}

// missing gives the ids that a full Apply doesn't name any more.
func (st *state) missing(services map[string]*Service) []string {
	var out []string
	for id := range st.services {
		if services[id] == nil {
			out = append(out, id)
		}
	}
	for id := range st.suspect {
		if services[id] == nil && st.services[id] == nil {
			out = append(out, id)
		}
	}
	return out
}

func (st *state) remove(ids []string) []string {
	var out []string
	for _, id := range ids {
		if st.services[id] != nil || st.suspect[id] {
			delete(st.services, id)
			out = append(out, id)
		}
	}
	return out
}

// succeed takes the update as being in force, but for the services that
// failed.
func (st *state) succeed(u *Update, failed map[string]error) {
	st.known, st.revision = true, u.revision
	for _, s := range u.upserted {
		delete(st.suspect, s.ID)
	}
	for _, id := range u.removed {
		delete(st.suspect, id)
	}
	for id := range failed {
		st.suspect[id] = true
	}
}

// optionsDecoder fills Service.Options.
type optionsDecoder struct {
	// of is the type of Description.Options without the pointer; nil for none.
	of reflect.Type
	// empty is what a service without options gets.
	empty any
	// emptyErr is why there is no such thing: an option is required.
	emptyErr error
}

func newOptionsDecoder(example any) *optionsDecoder {
	if example == nil {
		return &optionsDecoder{}
	}
	t := reflect.TypeOf(example)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	d := &optionsDecoder{of: t}
	d.empty, d.emptyErr = d.decode(nil)
	return d
}

func (d *optionsDecoder) decode(data json.RawMessage) (any, error) {
	v := reflect.New(d.of).Interface()
	if err := schema.Decode(data, v); err != nil {
		return nil, fmt.Errorf("options: %w", err)
	}
	return v, nil
}

// prepare makes a service ready for the author: options decoded, frontends and
// endpoints unique. An error concerns this service alone.
func (d *optionsDecoder) prepare(s *Service) error {
	if err := checkUnique(s); err != nil {
		return err
	}
	var err error
	switch {
	case d.of == nil && len(s.OptionsJSON) > 0 && string(s.OptionsJSON) != "{}":
		err = errors.New("options: this dataplane has none")
	case d.of == nil:
	case len(s.OptionsJSON) == 0:
		s.Options, err = d.empty, d.emptyErr
	default:
		s.Options, err = d.decode(s.OptionsJSON)
	}
	return err
}

func checkUnique(s *Service) error {
	type place struct {
		address  netip.AddrPort
		protocol Protocol
	}
	f := duplicate(len(s.Frontends), func(i int) place {
		return place{netip.AddrPortFrom(s.Frontends[i].Address, s.Frontends[i].Port), s.Frontends[i].Protocol}
	})
	if f >= 0 {
		return fmt.Errorf("frontend %v %v:%d is there twice", s.Frontends[f].Protocol, s.Frontends[f].Address, s.Frontends[f].Port)
	}
	e := duplicate(len(s.Endpoints), func(i int) netip.AddrPort { return s.Endpoints[i].Address })
	if e >= 0 {
		return fmt.Errorf("endpoint %v is there twice", s.Endpoints[e].Address)
	}
	return nil
}

// duplicate gives the index of an item that was there before, or -1.
func duplicate[K comparable](n int, key func(int) K) int {
	if n <= 16 { // cheaper than a map, and nearly every service
		for i := range n {
			for j := range i {
				if key(i) == key(j) {
					return i
				}
			}
		}
		return -1
	}
	seen := make(map[K]bool, n)
	for i := range n {
		if seen[key(i)] {
			return i
		}
		seen[key(i)] = true
	}
	return -1
}
