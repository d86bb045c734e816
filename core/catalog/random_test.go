package catalog

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/core/vip"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

var (
	randomSeed  = flag.Uint64("random-seed", 0, "seed of the random changes; 0 for a new one")
	randomSteps = flag.Int("random-steps", 3000, "how many random changes")
)

// TestRandomChanges applies random changes one after another, and compares the
// catalog with one that is given the end state at once. After every single
// change it checks what must always hold.
func TestRandomChanges(t *testing.T) {
	seed := *randomSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -run %s -random-seed %d", t.Name(), seed)
	r := &randomWorld{
		Rand:  rand.New(rand.NewPCG(seed, 0)),
		world: newWorld(t, &config.Config{}),
		said:  map[string]map[string]*source.Service{source.Static: {}},
		caps:  map[string]*dataplane.Capabilities{},
		read:  map[string]bool{},
	}
	r.last = r.cat.Snapshot()
	for step := range *randomSteps {
		what := r.change()
		r.check()
		if step%10 == 9 {
			r.compare()
		}
		if t.Failed() {
			t.Fatalf("after step %d: %s", step, what)
		}
	}
}

type randomWorld struct {
	*rand.Rand
	*world
	said map[string]map[string]*source.Service
	caps map[string]*dataplane.Capabilities
	read map[string]bool
	last *Snapshot
}

var (
	randomNames = []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	randomVIPs  = []string{"10.96.0.1", "10.96.0.2", "10.96.0.3", "fd00::1", "fd00::2"}
)

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// change does one random thing, and says what.
func (r *randomWorld) change() string {
	switch r.IntN(12) {
	case 0, 1:
		r.reload()
		return "reload"
	case 2:
		name := pick(r.Rand, "userspace", "ipvs")
		r.caps[name] = r.capabilities()
		r.cat.SetCapabilities(name, r.caps[name])
		return "capabilities of " + name
	case 3:
		d := pick(r.Rand, time.Second, 20*time.Second, time.Minute, 25*time.Hour)
		r.pass(d)
		return "pass " + d.String()
	case 4:
		name := pick(r.Rand, r.policySources()...)
		r.read[name] = true
		r.cat.SetStatus(name, source.Status{Read: true})
		r.cat.step()
		return "read " + name
	case 5:
		// Several at once, of several sources, worked in together.
		for range 4 {
			r.speak()
		}
		r.cat.step()
		return "burst"
	default:
		what := r.speak()
		r.cat.step()
		return what
	}
}

func (r *randomWorld) policySources() []string {
	return append([]string{source.Static}, r.policy.Sources...)
}

// speak lets a source say something.
func (r *randomWorld) speak() string {
	name := pick(r.Rand, r.policySources()...)
	known := r.said[name]
	switch r.IntN(8) {
	case 0:
		clear(known)
		var all []*source.Service
		for range r.IntN(4) {
			s := r.service()
			known[s.Name] = s
		}
		for _, s := range known {
			all = append(all, s)
		}
		r.cat.Change(name, source.Changes{Upserts: all, Replace: true})
		return name + " says all"
	case 1, 2:
		gone := pick(r.Rand, randomNames...)
		delete(known, gone)
		r.cat.Change(name, source.Changes{Removed: []string{gone}})
		return name + " knows no " + gone
	default:
		s := r.service()
		known[s.Name] = s
		r.cat.Change(name, source.Changes{Upserts: []*source.Service{s}})
		return name + " says " + s.Name
	}
}

func (r *randomWorld) service() *source.Service {
	s := service(pick(r.Rand, randomNames...))
	for range r.IntN(4) {
		s.Instances = append(s.Instances, instance(fmt.Sprintf("%s:80 %s zone=%s w=%d id=%d %s",
			pick(r.Rand, "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.0.0.5", "[fd00:1::1]", "10.96.0.1", "db"),
			pick(r.Rand, "", "", "", "warning", "critical", "maintenance"),
			pick(r.Rand, "z1", "z2"), r.IntN(3), r.IntN(1000), pick(r.Rand, "", "local"))))
	}
	if r.IntN(3) == 0 {
		s = withMeta(s, "patchbay-port", pick(r.Rand, "80", "81", "x"), "patchbay-vip", pick(r.Rand, randomVIPs...), "patchbay-allow", pick(r.Rand, "10.0.0.0/8", "10.0.0.0/8", "x"))
	}
	return s
}

// reload changes the configuration: the blocks, the pools, the sources.
func (r *randomWorld) reload() {
	cfg := blocks()
	if r.IntN(4) > 0 {
		cfg = withPool(cfg, pick(r.Rand, "10.96.0.0/30", "10.96.0.0/29", "10.98.0.0/30"), pick(r.Rand, "fd00::/125", "fd01::/126"))
	}
	cfg.Dataplanes = cfg.Dataplanes[:pick(r.Rand, 1, 2, 2)]
	for _, name := range randomNames {
		if r.IntN(4) > 0 {
			cfg.Services = append(cfg.Services, r.block(name))
		}
	}
	r.policy.Config = cfg
	r.policy.Sources = pick(r.Rand, nil, []string{"x"}, []string{"x", "y"}, []string{"y", "x"})
	r.policy.Static = nil
	for _, name := range []string{"x", "y"} {
		switch declared := slices.Contains(r.policy.Sources, name); {
		case !declared:
			delete(r.said, name)
			delete(r.read, name)
		case r.said[name] == nil:
			r.said[name] = map[string]*source.Service{}
		}
	}
	if r.IntN(2) == 0 {
		known := map[string]*source.Service{}
		for _, b := range cfg.Services {
			if b.Static() {
				s := r.service()
				s.Name = b.Name
				known[b.Name] = s
			}
		}
		r.said[source.Static] = known
		r.policy.Static = slices.AppendSeq([]*source.Service{}, maps.Values(known))
	}
	before, leases := r.cat.Snapshot(), r.leases.List()
	plan := r.cat.Plan(r.policy, r.policy.Static)
	if diff := cmp.Diff(leases, r.leases.List(), cmpopts.EquateComparable(netip.Addr{})); diff != "" || r.cat.Snapshot() != before {
		r.t.Errorf("a plan has changed something: leases\n%s", diff)
	}
	r.cat.Configure(r.policy)
	r.checkPlan(plan, before, leases)
}

// checkPlan compares what was planned with what has come of it.
func (r *randomWorld) checkPlan(plan *Plan, before *Snapshot, leases []vip.Lease) {
	after := r.cat.Snapshot()
	var want []PlannedChange
	for _, id := range r.ids(before, after) {
		old, s := before.Get(id), after.Get(id)
		if change, differs := plannedChange(id, old, s); differs && !old.Equal(s) {
			want = append(want, change)
		}
	}
	if diff := cmp.Diff(want, plan.Changes); diff != "" {
		r.t.Errorf("what came (-) is not what was planned (+):\n%s", diff)
	}
	for _, l := range r.leases.List() {
		same := func(o vip.Lease) bool {
			return o.Held() && o.Service == l.Service && slices.Equal(o.Addresses, l.Addresses)
		}
		planned := func(o PlannedLease) bool {
			return o.Service == l.Service && slices.Equal(o.Addresses, l.Addresses)
		}
		if l.Held() && !slices.ContainsFunc(leases, same) != slices.ContainsFunc(plan.Leases, planned) {
			r.t.Errorf("lease %v was taken and not planned, or the other way", l)
		}
	}
}

func (r *randomWorld) block(name string) *config.Service {
	b := block(name)
	b.Port = pick[uint16](r.Rand, 0, 80, 80, 81)
	b.Dataplane = pick(r.Rand, "", "", "", "ipvs")
	b.Prefer = pick(r.Rand, "none", "node", "zone")
	b.Warning = pick(r.Rand, "use", "weigh", "drop")
	b.Drain = pick(r.Rand, 0, 10*time.Second, 30*time.Second)
	b.NodePort = pick[uint16](r.Rand, 0, 0, 0, 80, 81)
	b.Protocols = pick(r.Rand, b.Protocols, b.Protocols, []dataplane.Protocol{dataplane.TCP, dataplane.UDP})
	switch r.IntN(4) {
	case 0:
		b.VIP = addresses(pick(r.Rand, randomVIPs[:3]...))
		if r.IntN(2) == 0 {
			b.VIP = append(b.VIP, netip.MustParseAddr(pick(r.Rand, randomVIPs[3:]...)))
		}
	case 1:
		b.VIPService = pick(r.Rand, randomNames...)
	}
	if r.IntN(6) == 0 {
		b.External = addresses(pick(r.Rand, "10.96.0.1", "203.0.113.1"))
	}
	if r.IntN(3) == 0 {
		static(b)
	}
	return b
}

func (r *randomWorld) capabilities() *dataplane.Capabilities {
	if r.IntN(3) == 0 {
		return nil
	}
	return &dataplane.Capabilities{
		Protocols:     pick(r.Rand, []dataplane.Protocol{dataplane.TCP}, []dataplane.Protocol{dataplane.TCP, dataplane.UDP}),
		Families:      pick(r.Rand, []dataplane.Family{dataplane.IPv4}, []dataplane.Family{dataplane.IPv4, dataplane.IPv6}),
		FrontendKinds: []dataplane.FrontendKind{dataplane.Virtual, dataplane.Node, dataplane.External}[:1+r.IntN(3)],
		Weights:       r.IntN(2) == 0, Draining: r.IntN(3) > 0, SourceFilter: r.IntN(3) > 0,
	}
}

// check is what holds after every change.
func (r *randomWorld) check() {
	r.t.Helper()
	r.checkChanges()
	owners := map[frontendKey]string{}
	planes := map[netip.Addr]string{}
	r.cat.Snapshot().All(func(s *Service) bool {
		if (s.Desired == nil) == (s.Rejected == "") {
			r.t.Errorf("service %s is both carried and rejected, or neither: %q", s.ID, s.Rejected)
		}
		if s.Desired == nil {
			return true
		}
		for _, f := range s.Desired.Frontends {
			if other, taken := owners[keyOf(f)]; taken {
				r.t.Errorf("services %s and %s both have %v", other, s.ID, f)
			}
			owners[keyOf(f)] = s.ID
			if f.Kind == dataplane.Virtual {
				if plane, known := planes[f.Address]; known && plane != s.Dataplane {
					r.t.Errorf("VIP %s belongs to two dataplanes", f.Address)
				}
				planes[f.Address] = s.Dataplane
			}
		}
		for i, e := range s.Desired.Endpoints {
			if i > 0 && s.Desired.Endpoints[i-1].Address.Compare(e.Address) >= 0 {
				r.t.Errorf("endpoints of %s are out of order: %v", s.ID, s.Desired.Endpoints)
			}
			if (e.State == dataplane.StateDraining) != e.DrainDeadline.After(r.now) {
				r.t.Errorf("endpoint %v of %s: its state and its deadline differ", e, s.ID)
			}
		}
		return true
	})
}

// checkChanges: what was published names exactly what differs, and a revision
// stands for a difference.
func (r *randomWorld) checkChanges() {
	r.t.Helper()
	for _, c := range r.changes {
		var differ []string
		for _, id := range r.ids(r.last, c.Snapshot) {
			if !r.last.Get(id).Equal(c.Snapshot.Get(id)) {
				differ = append(differ, id)
			}
		}
		if !slices.Equal(differ, c.IDs) {
			r.t.Errorf("revision %d names %q, and %q differ", c.Snapshot.Revision, c.IDs, differ)
		}
		if (len(differ) > 0) != (c.Snapshot.Revision > r.last.Revision) {
			r.t.Errorf("revision %d follows %d with the differences %q", c.Snapshot.Revision, r.last.Revision, differ)
		}
		r.last = c.Snapshot
	}
	if r.last != r.cat.Snapshot() {
		r.t.Errorf("the snapshot has changed to revision %d, and nobody was told", r.cat.Snapshot().Revision)
	}
	r.changes = nil
}

func (r *randomWorld) ids(snapshots ...*Snapshot) []string {
	var ids []string
	for _, s := range snapshots {
		s.All(func(v *Service) bool { ids = append(ids, v.ID); return true })
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// compare computes the catalog afresh from the end state, once all drain times
// are over and nobody waits for an address any more.
func (r *randomWorld) compare() {
	r.t.Helper()
	for range 3 {
		r.pass(2 * time.Minute)
	}
	r.check()
	fresh, err := New(Options{Leases: r.leases.Preview(), Now: func() time.Time { return r.now }})
	if err != nil {
		r.t.Fatal(err)
	}
	policy := r.policy
	policy.Static = nil
	fresh.Configure(policy)
	for name, caps := range r.caps {
		fresh.SetCapabilities(name, caps)
	}
	for name, known := range r.said {
		fresh.Change(name, source.Changes{Upserts: slices.Collect(maps.Values(known)), Replace: true})
		fresh.SetStatus(name, source.Status{Read: r.read[name]})
	}
	fresh.step()
	got, want := r.cat.Snapshot(), fresh.Snapshot()
	for _, id := range r.ids(got, want) {
		if diff := cmp.Diff(want.Get(id), got.Get(id), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}), cmpopts.EquateEmpty()); diff != "" {
			r.t.Errorf("service %s, computed at once (-) and step by step (+):\n%s", id, diff)
		}
	}
	if diff := cmp.Diff(want.Unread, got.Unread); diff != "" {
		r.t.Errorf("unread sources:\n%s", diff)
	}
	if diff := cmp.Diff(fresh.leases.List(), r.leases.List(), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		r.t.Errorf("leases:\n%s", diff)
	}
}
