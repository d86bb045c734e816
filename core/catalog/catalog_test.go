package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/core/state"
	"github.com/patchbay-proxy/patchbay/core/vip"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// TestOneChangeIsOneService: a change names the service concerned and its
// rivals, and what is the same again makes no revision.
func TestOneChangeIsOneService(t *testing.T) {
	w := newWorld(t, blocks(block("a", at("10.96.0.1")), block("b", at("10.96.0.2")), block("c", at("10.96.0.1"))), "consul").read()
	w.say("consul", service("a", "10.1.0.1:80"), service("b", "10.1.0.2:80"))
	w.wantChanges("a,b")
	b := w.cat.Snapshot().Get("b")
	w.say("consul", service("a", "10.1.0.1:80", "10.1.0.3:80"))
	w.wantChanges("a")
	if w.cat.Snapshot().Get("b") != b {
		t.Error("b was made anew")
	}
	revision := w.cat.Snapshot().Revision
	w.say("consul", service("a", "10.1.0.1:80", "10.1.0.3:80"))
	w.cat.Configure(w.policy)
	w.cat.SetCapabilities("ipvs", &dataplane.Capabilities{})
	w.cat.SetStatus("consul", source.Status{Read: true, Err: "no route to host"})
	w.cat.step()
	w.wantChanges()
	if got := w.cat.Snapshot().Revision; got != revision {
		t.Errorf("revision %d follows %d without a change", got, revision)
	}
	w.say("consul", service("c", "10.1.0.9:80"))
	w.wantChanges("c")
	w.unsay("consul", "a")
	w.wantChanges("a,c")
	// Two changes before the catalog looks are one.
	w.cat.Change("consul", source.Changes{Upserts: []*source.Service{service("b")}})
	w.cat.Change("consul", source.Changes{Upserts: []*source.Service{service("b", "10.1.0.2:80")}})
	w.cat.step()
	w.wantChanges()
}

// TestReplaceAndRemove: the last word of a source counts, in whatever steps it
// was said.
func TestReplaceAndRemove(t *testing.T) {
	says := func(names ...string) (out []*source.Service) {
		for _, n := range names {
			out = append(out, service(n))
		}
		return out
	}
	for _, test := range []struct {
		name    string
		changes []source.Changes
		want    string
	}{
		{"removed", []source.Changes{{Removed: []string{"a"}}}, "b c"},
		{"replaced", []source.Changes{{Upserts: says("c", "d"), Replace: true}}, "c d"},
		{"replaced by nothing", []source.Changes{{Replace: true}}, ""},
		{"removed and back", []source.Changes{{Removed: []string{"a"}}, {Upserts: says("a")}}, "a b c"},
		{"replaced, then more", []source.Changes{{Upserts: says("d"), Replace: true}, {Upserts: says("e")}, {Removed: []string{"d", "x"}}}, "e"},
		{"more, then replaced", []source.Changes{{Upserts: says("e"), Removed: []string{"a"}}, {Upserts: says("a"), Replace: true}}, "a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, withPool(blocks(), "10.96.0.0/24"), "consul").read()
			w.policy.Defaults = block("", func(b *config.Service) { b.Drain = 0 })
			w.cat.Configure(w.policy)
			w.say("consul", says("a", "b", "c")...)
			for _, c := range test.changes {
				w.cat.Change("consul", c)
			}
			w.cat.step()
			w.pass(time.Hour)
			var got []string
			w.cat.Snapshot().All(func(s *Service) bool { got = append(got, s.ID); return true })
			if s := strings.Join(got, " "); s != test.want {
				t.Errorf("services are %q, want %q", s, test.want)
			}
			if n := w.cat.Sources()[1].Services; n != len(got) {
				t.Errorf("the source knows %d services, want %d", n, len(got))
			}
		})
	}
}

func TestSubscribe(t *testing.T) {
	w := newWorld(t, blocks(block("a", at("10.96.0.1")), block("b", at("10.96.0.2"))), "consul").read()
	w.say("consul", service("a"))
	var got []string
	cancel := w.cat.Subscribe(func(c Change) {
		if c.Snapshot != w.cat.Snapshot() {
			t.Error("it is not the newest snapshot")
		}
		got = append(got, strings.Join(c.IDs, ","))
	})
	w.say("consul", service("b"))
	cancel()
	w.unsay("consul", "a")
	if want := "a,b b"; strings.Join(got, " ") != want {
		t.Errorf("it was told %q, want %q", got, want)
	}
}

// TestUnread: when a source has been read, subscribers learn it, though no
// service differs.
func TestUnread(t *testing.T) {
	w := newWorld(t, blocks(), "consul")
	for _, name := range []string{"consul", source.Static} {
		w.cat.SetStatus(name, source.Status{Read: true})
		w.cat.step()
	}
	var got []string
	for _, c := range w.changes {
		got = append(got, fmt.Sprint(c.Snapshot.Revision, c.Snapshot.Unread, c.IDs))
	}
	if diff := cmp.Diff([]string{"0 [static] []", "0 [] []"}, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestSourcesInOrder(t *testing.T) {
	w := newWorld(t, blocks(), "consul", "nomad")
	since := time.Unix(1, 0)
	w.cat.SetStatus("nomad", source.Status{StaleSince: since, Err: "x"})
	w.cat.SetStatus("other", source.Status{Read: true})
	w.say("consul", service("a"), service("b"))
	want := []SourceStatus{
		{Name: source.Static}, {Name: "consul", Services: 2}, {Name: "nomad", Status: source.Status{StaleSince: since, Err: "x"}},
	}
	if diff := cmp.Diff(want, w.cat.Sources()); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

// stuck is a store that can't record leases, until it can.
type stuck struct {
	vip.Store
	err error
}

func (s *stuck) Claim(pool, service string) (vip.Lease, error) {
	if s.err != nil {
		return vip.Lease{}, s.err
	}
	return s.Store.Claim(pool, service)
}

// TestWaitingForALease: a new service waits and says so, one that has a lease
// goes on, and the waiting ends by itself.
func TestWaitingForALease(t *testing.T) {
	w := newWorld(t, withPool(blocks(block("a"), block("b")), "10.96.0.0/24"), "consul").read()
	s := &stuck{Store: w.leases}
	w.cat.leases = s
	w.say("consul", service("a"))
	s.err = fmt.Errorf("%w: no space left on device", vip.ErrWaiting)
	w.say("consul", service("b"), service("a", "10.1.0.1:80"))
	w.want("b", "rejected: no address yet: waiting for the lease to be recorded: no space left on device")
	if !w.cat.Snapshot().Get("b").Waiting || w.cat.Snapshot().Get("a").Waiting {
		t.Error("b waits, and a does not")
	}
	if a := show(w.cat.Snapshot().Get("a")); !strings.Contains(a, "10.1.0.1:80 1 active\nnote: it keeps the address that it has: waiting for") {
		t.Errorf("a is %s", a)
	}
	w.pass(time.Minute)
	w.want("b", "rejected: no address yet: waiting for the lease to be recorded: no space left on device")
	s.err = nil
	w.pass(5 * time.Second)
	if b := w.cat.Snapshot().Get("b"); b.Desired == nil || b.Waiting {
		t.Errorf("b is %s", show(b))
	}
}

// TestOneCauseFewLines: what concerns every service alike is not a line in the
// log for each.
func TestOneCauseFewLines(t *testing.T) {
	var log bytes.Buffer
	names := make([]*config.Service, 200)
	services := make([]*source.Service, len(names))
	for i := range names {
		names[i], services[i] = block(fmt.Sprintf("s%03d", i)), service(fmt.Sprintf("s%03d", i))
	}
	w := newWorld(t, withPool(blocks(names...), "10.96.0.0/16"), "consul").read()
	s := &stuck{Store: w.leases, err: fmt.Errorf("%w: no space left on device", vip.ErrWaiting)}
	w.cat.leases, w.cat.log = s, hclog.New(&hclog.LoggerOptions{Output: &log})
	w.say("consul", services...)
	if lines := strings.Count(log.String(), "\n"); lines != loggedServices+1 || !strings.Contains(log.String(), "services=190") {
		t.Errorf("%d lines:\n%s", lines, log.String())
	}
	log.Reset()
	s.err = nil
	w.pass(time.Minute)
	if lines := strings.Count(log.String(), "\n"); lines != loggedServices+1 || !strings.Contains(log.String(), "services=190") {
		t.Errorf("%d lines when all is well:\n%s", lines, log.String())
	}
}

// TestRevisionsOverRestarts: a revision is never used again.
func TestRevisionsOverRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.json")
	leases, err := vip.OpenFile(filepath.Join(t.TempDir(), vip.FileName), vip.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer leases.Close()
	used := map[uint64]bool{}
	start := func(changes int) {
		t.Helper()
		c, err := New(Options{Leases: leases, StatePath: path})
		if err != nil {
			t.Fatal(err)
		}
		c.Configure(Policy{Config: blocks(block("a", at("10.96.0.1"), static))})
		for i := range changes {
			c.Change(source.Static, source.Changes{Upserts: []*source.Service{service("a", fmt.Sprintf("10.1.0.1:%d", 1+i%2))}})
			c.step()
			r := c.Snapshot().Revision
			if used[r] {
				t.Fatalf("revision %d is used again", r)
			}
			used[r] = true
		}
	}
	for range 3 {
		start(5)
	}
	start(revisionBlock + 5)
	start(5)
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	start(5)
	start(5)
	if err := state.Write(path, "catalog", 99, savedRevision{}); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Leases: leases, StatePath: path}); err == nil {
		t.Error("a newer version's state was taken")
	}
	if _, err := New(Options{}); err == nil {
		t.Error("there is a catalog without leases")
	}
}

// TestRevisionThatCantBeSaved: the catalog goes on.
func TestRevisionThatCantBeSaved(t *testing.T) {
	r := revisions{path: filepath.Join(t.TempDir(), "none", "x")}
	if err := r.load(r.path, time.Now, newCatalog(Options{}).log, nil); err != nil {
		t.Fatal(err)
	}
	if a, b := r.next(), r.next(); a != 1 || b != 2 {
		t.Errorf("revisions are %d and %d", a, b)
	}
}

// TestRun: what sources say and what time brings is worked in without anybody
// else's help.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		leases, err := vip.OpenFile(filepath.Join(dir, vip.FileName), vip.FileOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer leases.Close()
		c, err := New(Options{Leases: leases})
		if err != nil {
			t.Fatal(err)
		}
		c.Configure(Policy{Config: blocks(block("s", at("10.96.0.1"))), Sources: []string{"consul"}})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		endpoints := func() int {
			synctest.Wait()
			if s := c.Snapshot().Get("s"); s.Desired != nil {
				return len(s.Desired.Endpoints)
			}
			return -1
		}
		c.Change("consul", source.Changes{Upserts: []*source.Service{service("s", "10.1.0.1:80", "10.1.0.2:80")}})
		if n := endpoints(); n != 2 {
			t.Errorf("%d endpoints, want 2", n)
		}
		c.Change("consul", source.Changes{Upserts: []*source.Service{service("s", "10.1.0.1:80")}})
		time.Sleep(30*time.Second - 1)
		if n := endpoints(); n != 2 {
			t.Errorf("just before the end of the drain time: %d endpoints, want 2", n)
		}
		time.Sleep(2 * time.Millisecond)
		if n := endpoints(); n != 1 {
			t.Errorf("after the drain time: %d endpoints, want 1", n)
		}
		cancel()
		running.Wait()
	})
}

// TestManyTalkAtOnce is for the race detector; at its end the catalog must be
// where the last words lead to.
func TestManyTalkAtOnce(t *testing.T) {
	w := newWorld(t, withPool(blocks(block("s0"), block("s1", at("10.97.0.1"))), "10.96.0.0/16"), "x", "y")
	ctx, cancel := context.WithCancel(t.Context())
	var running, talking sync.WaitGroup
	running.Go(func() { _ = w.cat.Run(ctx) })
	for _, name := range []string{"x", "y"} {
		talking.Go(func() {
			for i := range 300 {
				w.cat.Change(name, source.Changes{Upserts: []*source.Service{
					withMeta(service(fmt.Sprintf("s%d", i%5), fmt.Sprintf("10.1.0.1:%d", i+1)), "patchbay-port", "80"),
				}})
				w.cat.SetStatus(name, source.Status{Read: true})
			}
		})
	}
	talking.Go(func() {
		for range 50 {
			w.cat.Configure(w.policy)
			_ = w.cat.Plan(w.policy, nil)
			_ = w.cat.Sources()
		}
	})
	talking.Go(func() {
		for range 50 {
			w.cat.SetCapabilities("userspace", nil)
			w.cat.Subscribe(func(c Change) { _ = c.Snapshot.Len() })()
			_ = w.cat.ReleaseLease("s2")
			w.cat.Snapshot().All(func(s *Service) bool { return s.ID != "" })
		}
	})
	talking.Wait()
	last := func() string { return show(w.cat.Snapshot().Get("s4")) }
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(last(), "10.1.0.1:300 1 active"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("s4 is %s", last())
		}
	}
	cancel()
	running.Wait()
}

// TestPlan is what a reload would change, in words.
func TestPlan(t *testing.T) {
	old := blocks(
		block("changed", at("10.96.0.1"), static),
		block("gone", at("10.96.0.2"), static),
		block("same", at("10.96.0.3"), static),
		block("loser", at("10.96.0.4"), static),
	)
	w := newWorld(t, old)
	says := func(names ...string) (out []*source.Service) {
		for _, n := range names {
			out = append(out, service(n, "10.1.0.1:80", "10.1.0.2:80 w=2"))
		}
		return out
	}
	w.cat.Change(source.Static, source.Changes{Upserts: says("changed", "gone", "same", "loser"), Replace: true})
	w.read()
	before := w.cat.Snapshot()

	next := withPool(blocks(
		block("changed", at("10.96.0.1"), static, func(b *config.Service) {
			b.Port, b.Balance, b.Allow, b.Affinity = 81, "random", prefixes("10.0.0.0/8"), time.Minute
		}),
		block("same", at("10.96.0.3"), static),
		block("loser", at("10.96.0.4"), static),
		block("added", static),
		block("a-winner", at("10.96.0.4"), static),
	), "10.97.0.1/32")
	services := says("same", "loser", "added", "a-winner")
	services = append(services, service("changed", "10.1.0.1:80", "10.1.0.2:80 w=5 zone=z2", "10.1.0.3:80"))
	policy := w.policy
	policy.Config = next
	plan := w.cat.Plan(policy, services)

	carried := func(vip string) []FieldChange {
		return []FieldChange{
			{"source", "", "static"}, {"dataplane", "", "userspace"}, {"frontends", "", "virtual " + vip + "/tcp"},
			{"on_empty", "", "reject"}, {"on_drain_end", "", "keep"}, {"masquerade", "", "auto"},
			{"endpoint 10.1.0.1:80", "", "active, weight 1"}, {"endpoint 10.1.0.2:80", "", "active, weight 2"},
		}
	}
	turned := func(in []FieldChange) []FieldChange {
		for i := range in {
			in[i].Old, in[i].New = in[i].New, in[i].Old
		}
		return in
	}
	lost := `frontend 10.96.0.4:80/tcp belongs to service "a-winner", whose name comes first`
	want := &Plan{
		Changes: []PlannedChange{
			{ID: "a-winner", Action: Added, Fields: carried("10.96.0.4:80")},
			{ID: "added", Action: Added, Fields: carried("10.97.0.1:80")},
			{ID: "changed", Action: Changed, Fields: []FieldChange{
				{"frontends", "virtual 10.96.0.1:80/tcp", "virtual 10.96.0.1:81/tcp"},
				{"balance", "", "random"}, {"affinity", "", "1m0s"}, {"allow", "", "10.0.0.0/8"},
				{"endpoint 10.1.0.2:80", "active, weight 2", "active, weight 5, zone z2"},
				{"endpoint 10.1.0.3:80", "", "active, weight 1"},
			}},
			{ID: "gone", Action: Removed, Fields: turned(carried("10.96.0.2:80"))},
			{ID: "loser", Action: Changed, Rejected: lost, Fields: append([]FieldChange{{"rejected", "", lost}}, turned(carried("10.96.0.4:80"))[2:]...)},
		},
		Leases: []PlannedLease{{Service: "added", Pool: "default", Addresses: addresses("10.97.0.1")}},
	}
	if diff := cmp.Diff(want, plan, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if w.cat.Snapshot() != before || len(w.leases.List()) > 0 {
		t.Error("the plan has changed something")
	}

	// It comes as planned, and then there is nothing to plan.
	policy.Static = services
	w.cat.Configure(policy)
	if left := w.cat.Plan(policy, nil); len(left.Changes) > 0 || len(left.Leases) > 0 {
		t.Errorf("after the reload, the plan is %+v", left)
	}
}

// TestOptions: what the plugin is given, as the configuration bound it.
func TestOptions(t *testing.T) {
	w := newWorld(t, blocks(block("a", at("10.96.0.1"), func(b *config.Service) { b.OptionsJSON = []byte(`{"retries":2}`) })), "consul").read()
	w.say("consul", service("a"))
	if got := string(w.cat.Snapshot().Desired("userspace", "a").OptionsJSON); got != `{"retries":2}` {
		t.Errorf("options are %q", got)
	}
	if got := w.cat.Snapshot().Desired("ipvs", "a"); got != nil {
		t.Errorf("ipvs has it too: %v", got)
	}
}

func TestReleaseErrors(t *testing.T) {
	w := newWorld(t, withPool(blocks(block("s")), "10.96.0.0/24"), "consul").read()
	w.say("consul", service("s"))
	if err := w.cat.ReleaseLease("s"); !errors.Is(err, ErrLeaseInUse) {
		t.Errorf("error is %v, want ErrLeaseInUse", err)
	}
	if err := w.cat.ReleaseLease("none"); !errors.Is(err, ErrNoLease) {
		t.Errorf("error is %v, want ErrNoLease", err)
	}
}
