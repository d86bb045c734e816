package catalog

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/core/vip"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// world is a catalog with a clock that stands still until it is moved, and the
// changes that it has published.
type world struct {
	t       testing.TB
	now     time.Time
	cat     *Catalog
	leases  *vip.File
	policy  Policy
	changes []Change
}

func newWorld(t testing.TB, cfg *config.Config, sources ...string) *world {
	t.Helper()
	w := &world{t: t, now: time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return w.now }
	var err error
	if w.leases, err = vip.OpenFile(t.TempDir()+"/leases.json", vip.FileOptions{Now: clock}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.leases.Close() })
	if w.cat, err = New(Options{Leases: w.leases, Now: clock}); err != nil {
		t.Fatal(err)
	}
	w.policy = Policy{Config: cfg, Sources: sources, Node: NodeFacts{Zone: "z1", Addresses: addresses("10.0.0.5")}}
	w.cat.Configure(w.policy)
	w.cat.Subscribe(func(c Change) { w.changes = append(w.changes, c) })
	w.changes = nil
	return w
}

// read makes every source a read one.
func (w *world) read() *world {
	for _, s := range w.cat.Sources() {
		w.cat.SetStatus(s.Name, source.Status{Read: true})
	}
	w.cat.step()
	w.changes = nil
	return w
}

func (w *world) say(name string, services ...*source.Service) {
	w.cat.Change(name, source.Changes{Upserts: services})
	w.cat.step()
}

func (w *world) unsay(name string, services ...string) {
	w.cat.Change(name, source.Changes{Removed: services})
	w.cat.step()
}

// pass lets time go by.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.cat.step()
}

func (w *world) configure(change func(*config.Config)) {
	cfg := *w.policy.Config
	cfg.Services = slices.Clone(cfg.Services)
	change(&cfg)
	w.policy.Config = &cfg
	w.cat.Configure(w.policy)
}

// want compares one service with its lines as show writes them.
func (w *world) want(id string, lines ...string) {
	w.t.Helper()
	got := show(w.cat.Snapshot().Get(id))
	if want := strings.Join(lines, "\n"); got != want {
		w.t.Errorf("service %s is\n%s\nwant\n%s", id, got, want)
	}
}

// wantChanges compares the ids that were published since the last call.
func (w *world) wantChanges(ids ...string) {
	w.t.Helper()
	var got []string
	for _, c := range w.changes {
		got = append(got, strings.Join(c.IDs, ","))
	}
	w.changes = nil
	if !slices.Equal(got, ids) {
		w.t.Errorf("changes are %q, want %q", got, ids)
	}
}

// show writes a service down: what carries it, its frontends, its endpoints,
// its notes; or why it is rejected.
func show(s *Service) string {
	if s == nil {
		return "none"
	}
	var lines []string
	if s.Desired == nil {
		lines = append(lines, "rejected: "+s.Rejected)
	} else {
		line := s.Dataplane + " at"
		for _, f := range s.Desired.Frontends {
			line += fmt.Sprintf(" %s:%s/%s", f.Kind, netip.AddrPortFrom(f.Address, f.Port), f.Protocol)
		}
		lines = append(lines, line)
		for _, e := range s.Desired.Endpoints {
			line := fmt.Sprintf("  %s %d %s", e.Address, e.Weight, e.State)
			if e.State == dataplane.StateDraining {
				line += " until " + e.DrainDeadline.Format("15:04:05")
			}
			lines = append(lines, line)
		}
	}
	for _, n := range s.Notes {
		lines = append(lines, "note: "+n)
	}
	return strings.Join(lines, "\n")
}

func addresses(in ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range in {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func prefixes(in ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range in {
		out = append(out, netip.MustParsePrefix(a))
	}
	return out
}

// blocks makes a configuration with two dataplanes and these service blocks.
func blocks(services ...*config.Service) *config.Config {
	return &config.Config{
		Dataplanes: []config.Dataplane{{Name: "userspace", Default: true}, {Name: "ipvs"}},
		Services:   services,
	}
}

func withPool(cfg *config.Config, ranges ...string) *config.Config {
	cfg.Pools = []config.Pool{{Name: "default", CIDR: prefixes(ranges...)}}
	return cfg
}

// block makes a service block on port 80 with the defaults of the project.
func block(name string, change ...func(*config.Service)) *config.Service {
	b := builtinDefaults()
	b.Name, b.Port = name, 80
	for _, f := range change {
		f(b)
	}
	return b
}

func at(vips ...string) func(*config.Service) {
	return func(b *config.Service) { b.VIP = addresses(vips...) }
}

// static gives a block an endpoint, which makes it one of the static source.
func static(b *config.Service) {
	b.Endpoints = []config.Endpoint{{Host: "10.1.0.1", Port: 8080, Weight: 1}}
}

// service makes what a source says; each instance is written as
// "10.1.0.1:8080 warning w=3 ww=1 zone=z1 node=n1 local".
func service(name string, instances ...string) *source.Service {
	s := &source.Service{Name: name}
	for _, text := range instances {
		s.Instances = append(s.Instances, instance(text))
	}
	return s
}

func instance(text string) source.Instance {
	words := strings.Fields(text)
	i := source.Instance{ID: words[0], Weight: 1, WarningWeight: 1, Health: source.Passing}
	at := strings.LastIndex(words[0], ":")
	i.Address = strings.Trim(words[0][:at], "[]")
	port, _ := strconv.Atoi(words[0][at+1:])
	i.Port = uint16(port)
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		number, _ := strconv.Atoi(value)
		switch key {
		case "warning":
			i.Health = source.Warning
		case "critical":
			i.Health = source.Critical
		case "maintenance":
			i.Health = source.Maintenance
		case "w":
			i.Weight = uint32(number)
		case "ww":
			i.WarningWeight = uint32(number)
		case "zone":
			i.Zone = value
		case "node":
			i.Node = value
		case "host":
			i.Host = value
		case "id":
			i.ID = value
		case "local":
			i.Local = true
		default:
			panic("unknown word " + w)
		}
	}
	return i
}

func withMeta(s *source.Service, pairs ...string) *source.Service {
	s.Meta = map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		s.Meta[pairs[i]] = pairs[i+1]
	}
	return s
}
