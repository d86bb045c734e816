package consul

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// metaPrefix begins the meta that is handed on to the catalog.
const metaPrefix = "patchbay-"

// reading is what Consul says of one service at one moment.
type reading struct {
	// instances in the order of their keys, without those of the mesh.
	instances []instance
	// proxies is set where there are instances, and all are of the mesh: its
	// proxies and gateways.
	proxies bool
	// meta that overrides policy.
	meta  map[string]string
	notes []string
	// chosen and excluded tell what selectors of meta say.
	chosen, excluded bool
}

// instance is one instance as Consul knows it, its health worked out. It is
// comparable, and its fields are what is saved.
type instance struct {
	Datacenter string `json:"datacenter"`
	Node       string `json:"node"`
	ID         string `json:"id"`
	// Address is an address or a host name.
	Address       string        `json:"address"`
	Port          uint16        `json:"port"`
	Weight        uint32        `json:"weight"`
	WarningWeight uint32        `json:"warning_weight"`
	Health        source.Health `json:"health"`
	Reason        string        `json:"reason,omitempty"`
	Zone          string        `json:"zone,omitempty"`
	// Outputs stands for what the checks have put out; 0 where those that are
	// critical have put out nothing. It holds within the process.
	Outputs uint64 `json:"-"`
}

// key identifies an instance over its life. A service id is unique on its node
// only.
func (i *instance) key() string { return i.Datacenter + "/" + i.Node + "/" + i.ID }

func (i *instance) at() string { return net.JoinHostPort(i.Address, strconv.Itoa(int(i.Port))) }

// usable tells whether it takes connections by its own health.
func (i *instance) usable() bool { return i.Health == source.Passing || i.Health == source.Warning }

func compareInstances(a, b instance) int {
	return cmp.Or(cmp.Compare(a.Datacenter, b.Datacenter), cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
}

// entry is the part of an item of health/service that is read.
type entry struct {
	Node *struct {
		Node, Address, Datacenter string
		Meta                      map[string]string
		Locality                  *locality
	}
	Service *struct {
		ID, Service, Kind, Address string
		Port                       int
		Meta                       map[string]string
		Weights                    *struct{ Passing, Warning int }
		Locality                   *locality
		ModifyIndex                uint64
	}
	Checks []struct{ CheckID, Name, Status, Notes, Output string }
}

type locality struct{ Region, Zone string }

// readListing reads the answer of catalog/services. The service consul itself
// is not in what it gives.
func readListing(body []byte) (map[string][]string, error) {
	var out map[string][]string
	if err := unmarshal(body, &out); err != nil {
		return nil, &unreadableError{fmt.Errorf("Consul's list of services is not as expected: %w", err)}
	}
	delete(out, "consul")
	return out, nil
}

// ofMesh are the kinds of instances that are parts of Consul's service mesh:
// they want to be asked as it does.
var ofMesh = map[string]bool{
	"connect-proxy": true, "mesh-gateway": true, "ingress-gateway": true, "terminating-gateway": true, "api-gateway": true,
}

// readService reads the answer of health/service for a name. An answer with one item that
// can't be read is not believed as a whole: to leave the item out would take an
// instance away that is there.
func readService(name string, body []byte, choose selection) (*reading, error) {
	var entries []entry
	if err := unmarshal(body, &entries); err != nil {
		return nil, &unreadableError{fmt.Errorf("Consul's list of instances is not as expected: %w", err)}
	}
	r := &reading{instances: make([]instance, 0, len(entries))}
	kept := entries[:0]
	for _, e := range entries {
		if e.Node == nil || e.Service == nil || e.Node.Node == "" || e.Service.ID == "" {
			return nil, &unreadableError{errors.New("Consul's list of instances is not as expected: an instance has no node or no id")}
		}
		// Consul's names are the same in upper and lower case.
		if !strings.EqualFold(e.Service.Service, name) {
			return nil, &unreadableError{fmt.Errorf("Consul's list of instances is not as expected: it has one of %q", printable(e.Service.Service, 100))}
		}
		if !ofMesh[e.Service.Kind] {
			kept = append(kept, e)
		}
	}
	r.proxies = len(entries) > 0 && len(kept) == 0
	var notes noteList
	for i := range kept {
		r.add(&kept[i], choose, &notes)
	}
	r.mergeMeta(kept, &notes)
	slices.SortStableFunc(r.instances, compareInstances)
	r.instances = slices.CompactFunc(r.instances, func(a, b instance) bool { return a.key() == b.key() })
	r.notes = notes.lines()
	return r, nil
}

// unmarshal reads JSON in which null is not a value.
func unmarshal(body []byte, out any) error {
	if bytes.Equal(bytes.TrimSpace(body), []byte("null")) {
		return errors.New("it is null")
	}
	return json.Unmarshal(body, out)
}

// add takes in one item.
func (r *reading) add(e *entry, choose selection, notes *noteList) {
	i := instance{
		Datacenter: e.Node.Datacenter, Node: e.Node.Node, ID: e.Service.ID,
		Address: cmp.Or(e.Service.Address, e.Node.Address),
		Zone:    zoneOf(e),
		Weight:  1, WarningWeight: 1,
	}
	r.chosen = r.chosen || choose.byMeta(choose.selected, e.Service.Meta)
	r.excluded = r.excluded || choose.byMeta(choose.excluded, e.Service.Meta)
	// Brackets around an address are a habit of those who write URLs.
	if inner, ok := strings.CutPrefix(i.Address, "["); ok && strings.HasSuffix(inner, "]") {
		i.Address = strings.TrimSuffix(inner, "]")
	}
	i.Health, i.Reason = health(e)
	i.Outputs = outputs(e)
	if w := e.Service.Weights; w != nil {
		i.Weight, i.WarningWeight = weight(w.Passing), weight(w.Warning)
		if w.Passing < 0 || w.Warning < 0 {
			notes.add("instances with a weight below 0 count as of weight 0", i.key())
		}
	}
	switch port := e.Service.Port; {
	case i.Address == "":
		notes.add("instances without an address are left out", i.key())
		return
	case port < 0 || port > math.MaxUint16:
		notes.add("instances whose port is not one are left out", fmt.Sprintf("%s (port %d)", i.key(), port))
		return
	case port == 0:
		notes.add("instances without a port are left out", i.key())
		return
	default:
		i.Port = uint16(port)
	}
	r.instances = append(r.instances, i)
}

func weight(w int) uint32 { return uint32(min(max(w, 0), math.MaxUint32)) }

// zoneOf gives the zone of an instance, from the place nearest to it.
func zoneOf(e *entry) string {
	zone := cmp.Or(e.Service.Meta["zone"], e.Node.Meta["zone"])
	for _, l := range []*locality{e.Service.Locality, e.Node.Locality} {
		if zone == "" && l != nil {
			zone = l.Zone
		}
	}
	return zone
}

// health gives the worst that the checks of the instance and of its node say,
// and which check says it. An instance without checks is up.
func health(e *entry) (source.Health, string) {
	worst, reason := source.Passing, ""
	for _, check := range e.Checks {
		name := printable(cmp.Or(check.Name, check.CheckID), 100)
		h, why := source.Passing, ""
		switch {
		case check.CheckID == "_node_maintenance":
			h, why = source.Maintenance, because("its node is in maintenance", check.Notes)
		case strings.HasPrefix(check.CheckID, "_service_maintenance:"):
			h, why = source.Maintenance, because("it is in maintenance", check.Notes)
		case check.Status == "passing":
		case check.Status == "critical":
			h, why = source.Critical, fmt.Sprintf("check %q is critical", name)
		case check.Status == "warning":
			h, why = source.Warning, fmt.Sprintf("check %q is in warning", name)
		default:
			// It is no reason to take the instance out, and none to be silent.
			h, why = source.Warning, fmt.Sprintf("check %q has the unknown status %q", name, printable(check.Status, 40))
		}
		// Of equal ones the first by name, whatever order Consul gives.
		if h > worst || h == worst && why < reason {
			worst, reason = h, why
		}
	}
	return worst, reason
}

var outputSeed = maphash.MakeSeed()

// outputs gives a number for what the checks have put out, whatever their order
// and status; 0 where no check that is critical has put out anything, as before
// its first run.
func outputs(e *entry) (sum uint64) {
	silent, critical := true, false
	for _, check := range e.Checks {
		if check.Output != "" {
			sum += maphash.String(outputSeed, check.CheckID+"\x00"+check.Output)
		}
		if check.Status == "critical" {
			critical, silent = true, silent && check.Output == ""
		}
	}
	if critical && silent {
		return 0
	}
	return sum
}

func because(what, notes string) string {
	if notes = printable(notes, 200); notes != "" {
		return what + ": " + notes
	}
	return what
}

// mergeMeta finds the meta that overrides policy. Where instances differ, as
// while a new version is rolled out, the one that was registered last counts:
// every node sees the same one.
func (r *reading) mergeMeta(entries []entry, notes *noteList) {
	type value struct {
		text, from string
		index      uint64
	}
	best := map[string]value{}
	differ := map[string]bool{}
	for _, e := range entries {
		from := e.Node.Datacenter + "/" + e.Node.Node + "/" + e.Service.ID
		for key, text := range e.Service.Meta {
			if !strings.HasPrefix(key, metaPrefix) {
				continue
			}
			was, found := best[key]
			differ[key] = differ[key] || found && was.text != text
			if now := (value{text, from, e.Service.ModifyIndex}); !found || now.index > was.index || now.index == was.index && now.from > was.from {
				best[key] = now
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(best)) {
		if r.meta == nil {
			r.meta = make(map[string]string, len(best))
		}
		r.meta[key] = best[key].text
		if differ[key] {
			notes.add(fmt.Sprintf("instances differ in meta %s: %q counts, of the one that was registered last", key, printable(best[key].text, 60)), best[key].from)
		}
	}
}

// noteList gathers notes: one for each kind, with the first few it is about.
type noteList struct {
	kinds map[string][]string
}

// notesNamed is how many a note names before it counts the rest.
const notesNamed = 3

func (n *noteList) add(kind, about string) {
	if n.kinds == nil {
		n.kinds = map[string][]string{}
	}
	n.kinds[kind] = append(n.kinds[kind], printable(about, 200))
}

func (n *noteList) lines() []string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(n.kinds)) {
		about := n.kinds[kind]
		slices.Sort(about)
		line := kind + ": " + strings.Join(about[:min(len(about), notesNamed)], ", ")
		if more := len(about) - notesNamed; more > 0 {
			line += fmt.Sprintf(" and %d more", more)
		}
		out = append(out, line)
	}
	return out
}
