package consul

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// all is a condition made of several.
func all(conditions ...func(map[string]*source.Service, source.Status) bool) func(map[string]*source.Service, source.Status) bool {
	return func(services map[string]*source.Service, status source.Status) bool {
		return !slices.ContainsFunc(conditions, func(c func(map[string]*source.Service, source.Status) bool) bool { return !c(services, status) })
	}
}

// TestIndexMovesAlone holds that a wake-up is no change: the sink hears
// nothing, and Consul is not asked without end.
func TestIndexMovesAlone(t *testing.T) {
	t.Parallel()
	f := newFakeConsul()
	f.put("web", item("web", "a", "10.0.0.1", 80))
	timing := quick
	timing.Pace = 200 * time.Millisecond
	r := run(t, Settings{Address: f.serve(t).URL}, Options{Timing: timing})
	r.await(t, "the source is read", fresh)
	asked := f.questions("/v1/health/service/web")
	for range 200 {
		f.moveIndexes()
	}
	f.stir(t)
	r.mu0(func() {
		if r.changes["web"] != 1 {
			t.Errorf("the sink was told of %d changes, want 1", r.changes["web"])
		}
	})
	if more := f.questions("/v1/health/service/web") - asked; more > 20 {
		t.Errorf("200 wake-ups led to %d questions", more)
	}
}

func (r *running) mu0(f func()) {
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	f()
}

// TestIndexGoesBackwards holds that an index which starts anew, with the same
// services, is followed again at once.
func TestIndexGoesBackwards(t *testing.T) {
	f := newFakeConsul()
	f.put("web", item("web", "a", "10.0.0.1", 80), item("web", "b", "10.0.0.2", 80))
	timing := quick
	timing.Settle = time.Hour
	r := run(t, Settings{Address: f.serve(t).URL}, Options{Timing: timing})
	r.await(t, "the source is read", fresh)
	end := r.watch(t, "web")
	f.mu.Lock()
	f.index, f.listedAt, f.at["web"] = 3, 3, 3
	clear(f.direct)
	f.wake()
	f.mu.Unlock()
	for port := range 5 {
		f.put("web", item("web", "a", "10.0.0.1", 80), item("web", "b", "10.0.0.2", 100+port))
		r.await(t, "a change flows", has("web", "10.0.0.1:80", fmt.Sprintf("10.0.0.2:%d", 100+port)))
	}
	f.mu.Lock()
	for _, path := range []string{"/v1/catalog/services", "/v1/health/service/web"} {
		if f.direct[path] == 0 {
			t.Errorf("%s was not asked for anew, without an index", path)
		}
	}
	f.mu.Unlock()
	// Nothing was lost, so the next that leaves leaves at once.
	f.put("web", item("web", "a", "10.0.0.1", 80))
	r.await(t, "one leaves", has("web", "10.0.0.1:80"))
	end()
}

// TestUnchecked holds that instances stay usable while Consul, which was begun
// anew, has not run their checks yet: it has them as critical, with no output
// or that of their last run. Checks that have failed are believed at once, and the time
// of waiting ends.
func TestUnchecked(t *testing.T) {
	with := func(id, status, output string) map[string]any {
		c := check("http", status)
		c["Output"] = output
		return item("web", id, "10.0.0."+map[string]string{"a": "1", "b": "2", "c": "3"}[id], 80, checks(check("serfHealth", "passing"), c))
	}
	hangUp := func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
	f := newFakeConsul()
	f.put("web", with("a", "passing", "200 OK"), with("b", "warning", "429"), with("c", "critical", "refused"))
	// restart is one of Consul, after which it has these instances.
	restart := func(r *running, instances ...map[string]any) {
		t.Helper()
		f.setFault(hangUp)
		r.await(t, "Consul is gone", stale("can't be asked"))
		f.put("web", instances...)
		f.setFault(nil)
		r.await(t, "Consul is back", fresh)
	}
	settings := Settings{Address: f.serve(t).URL, Hold: time.Hour}
	r := run(t, settings, Options{})
	r.await(t, "the source is read", all(fresh, has("web", "10.0.0.1:80", "10.0.0.2:80 warning", "10.0.0.3:80 critical")))
	end := r.watch(t, "web")
	noted := func(services map[string]*source.Service, _ source.Status) bool {
		return strings.Contains(strings.Join(services["web"].Notes, " "), "2 of 3 instances keep their health")
	}
	restart(r, with("a", "critical", "200 OK"), with("b", "critical", "429"), with("c", "critical", "refused"))
	r.await(t, "what was usable stays", all(noted, has("web", "10.0.0.1:80", "10.0.0.2:80 warning", "10.0.0.3:80 critical")))
	f.put("web", with("a", "critical", "200 OK"), with("b", "critical", "timeout"), with("c", "passing", "200 OK"))
	r.await(t, "a check that has run and failed is believed", has("web", "10.0.0.1:80", "10.0.0.2:80 critical", "10.0.0.3:80"))
	f.put("web", with("a", "passing", "200 OK"), with("b", "critical", "timeout"), with("c", "critical", "refused"))
	r.await(t, "so is another one", has("web", "10.0.0.1:80", "10.0.0.2:80 critical", "10.0.0.3:80 critical"))
	restart(r, with("a", "critical", ""), with("b", "critical", ""), with("c", "critical", ""))
	r.await(t, "without an output no check has run", all(has("web", "10.0.0.1:80", "10.0.0.2:80 critical", "10.0.0.3:80 critical"), func(services map[string]*source.Service, _ source.Status) bool {
		return strings.Contains(strings.Join(services["web"].Notes, " "), "1 of 3 instances keep")
	}))
	end()
	r.stop()

	// Without a loss of Consul a status counts as it is, and the time ends.
	settings.Hold = 300 * time.Millisecond
	f.put("web", with("a", "passing", "200 OK"))
	r = run(t, settings, Options{})
	r.await(t, "the source is read", all(fresh, has("web", "10.0.0.1:80")))
	f.put("web", with("a", "critical", "200 OK"))
	r.await(t, "an ordinary change of status", has("web", "10.0.0.1:80 critical"))
	f.put("web", with("a", "passing", "200 OK"))
	r.await(t, "an ordinary change of status", has("web", "10.0.0.1:80"))
	restart(r, with("a", "critical", "200 OK"))
	r.await(t, "it is believed after a time", has("web", "10.0.0.1:80 critical"))
}

// TestLostData goes through Consul's loss of everything it knew: all is kept,
// services that come back are followed, and those that don't are given up a
// time after the last that did.
func TestLostData(t *testing.T) {
	t.Parallel()
	f := newFakeConsul()
	for n := range 5 {
		name := fmt.Sprint("s", n)
		f.put(name, item(name, "a", fmt.Sprint("10.0.1.", n), 80), item(name, "b", fmt.Sprint("10.0.2.", n), 80))
	}
	timing := quick
	timing.Settle = 700 * time.Millisecond
	r := run(t, Settings{Address: f.serve(t).URL}, Options{Timing: timing})
	r.await(t, "the source is read", fresh)
	before := r.state()
	end := r.watch(t, "s0", "s1", "s2", "s3", "s4")
	f.lose()
	r.await(t, "the loss is shown", all(stale("turned empty"), stale("5 services are missing"), stale("reload -accept-empty")))
	f.stir(t)
	for name, s := range r.state() {
		if !slices.Equal(s.Instances, before[name].Instances) {
			t.Errorf("%s was %v, is %v", name, before[name].Instances, s.Instances)
		}
	}
	// They come back one by one, the first with one instance of two.
	f.put("s0", item("s0", "a", "10.0.1.0", 81))
	r.await(t, "what is back is followed, what is missing kept", has("s0", "10.0.1.0:81", "10.0.2.0:80"))
	f.put("s0", item("s0", "a", "10.0.1.0", 81), item("s0", "b", "10.0.2.0", 81))
	r.await(t, "s0 is back", has("s0", "10.0.1.0:81", "10.0.2.0:81"))
	for _, name := range []string{"s1", "s2", "s3"} {
		f.put(name, item(name, "a", "10.0.3.3", 80), item(name, "b", "10.0.4.4", 80))
		r.await(t, name+" is back", has(name, "10.0.3.3:80", "10.0.4.4:80"))
	}
	end()
	r.await(t, "what has not come back is given up", gone("s4"))
	for _, name := range []string{"s1", "s2", "s3"} {
		r.await(t, name+" is as Consul says", has(name, "10.0.3.3:80", "10.0.4.4:80"))
	}
	r.await(t, "all is well", fresh)
}

// TestLostDataOfOne holds that the last instance of the last service, which
// leaves as ordinary things do, is kept when the index went backwards.
func TestLostDataOfOne(t *testing.T) {
	f := newFakeConsul()
	f.put("web", item("web", "a", "10.0.0.1", 80))
	r := run(t, Settings{Address: f.serve(t).URL}, Options{})
	r.await(t, "the source is read", fresh)
	end := r.watch(t, "web")
	f.lose()
	r.await(t, "the loss is shown", stale("its index went backwards"))
	f.stir(t)
	end()
	if !r.AcceptEmpty() {
		t.Error("AcceptEmpty: nothing is held, want something")
	}
	r.await(t, "the operator accepts", all(gone("web"), fresh))
	if r.AcceptEmpty() {
		t.Error("AcceptEmpty: something is held, want nothing")
	}
}

// TestTurnsEmpty holds that services which all vanish at once stay until there
// are services again, or the operator accepts it.
func TestTurnsEmpty(t *testing.T) {
	f := newFakeConsul()
	fill := func() {
		f.change(func() {
			f.set("web", []string{"patchbay"}, item("web", "a", "10.0.0.1", 80), item("web", "b", "10.0.0.2", 80))
			f.set("db", []string{"patchbay"}, item("db", "d", "10.0.0.3", 5432))
		})
	}
	fill()
	r := run(t, Settings{Address: f.serve(t).URL, Hold: 20 * time.Millisecond}, Options{})
	r.await(t, "the source is read", fresh)
	empty := func() {
		f.change(func() { f.set("web", nil); f.set("db", nil) })
		r.await(t, "it is shown", stale("turned empty"))
		f.stir(t)
		r.await(t, "all stay", all(has("web", "10.0.0.1:80", "10.0.0.2:80"), has("db", "10.0.0.3:5432")))
	}
	end := r.watch(t, "web", "db")
	empty()
	fill()
	r.await(t, "they are back", fresh)
	empty()
	end()
	if !r.AcceptEmpty() {
		t.Error("AcceptEmpty: nothing is held, want something")
	}
	r.await(t, "the operator accepts", all(gone("web"), gone("db"), fresh))
}

// TestShrinks holds the guard against a service that loses most of its
// instances at once, seen from the catalog.
func TestShrinks(t *testing.T) {
	t.Parallel()
	f := newFakeConsul()
	f.put("other", item("other", "o", "10.0.0.9", 80))
	four := func() {
		f.put("web", item("web", "a", "10.0.0.1", 80), item("web", "b", "10.0.0.2", 80), item("web", "c", "10.0.0.3", 80), item("web", "d", "10.0.0.4", 80))
	}
	four()
	r := run(t, Settings{Address: f.serve(t).URL, Hold: 400 * time.Millisecond}, Options{})
	r.await(t, "the source is read", fresh)
	f.put("web", item("web", "a", "10.0.0.1", 80))
	r.await(t, "the vanished drain", has("web", "10.0.0.1:80", "10.0.0.2:80 critical", "10.0.0.3:80 critical", "10.0.0.4:80 critical"))
	r.await(t, "then they are gone", has("web", "10.0.0.1:80"))
	four()
	r.await(t, "they are back", has("web", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"))
	end := r.watch(t, "web")
	f.put("web")
	f.stir(t)
	r.await(t, "all vanished: they stay", has("web", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"))
	end()
	r.await(t, "then the service is gone", gone("web"))
	four()
	r.await(t, "they are back", has("web", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"))
	f.put("web", item("web", "a", "10.0.0.1", 80))
	r.await(t, "the vanished drain", has("web", "10.0.0.1:80", "10.0.0.2:80 critical", "10.0.0.3:80 critical", "10.0.0.4:80 critical"))
	if !r.AcceptEmpty() {
		t.Error("AcceptEmpty: nothing is held, want something")
	}
	r.await(t, "the operator accepts", has("web", "10.0.0.1:80"))
}

// TestSavedState holds that a start without Consul has what was known, and
// that a loss is known as one over a restart.
func TestSavedState(t *testing.T) {
	t.Parallel()
	f := newFakeConsul()
	f.put("web", item("web", "a", "10.0.0.1", 80, meta("patchbay-port", "8080")), item("web", "b", "host.example", 80))
	f.put("db", item("db", "d", "10.0.0.3", 5432))
	server := f.serve(t)
	settings := Settings{Address: server.URL, Token: "secret-token"}
	options := Options{
		StatePath: filepath.Join(t.TempDir(), "consul.json"), Timing: quick,
		Resolver: &names{known: map[string][]netip.Addr{"host.example": {netip.MustParseAddr("10.0.0.2")}}},
	}
	r := run(t, settings, options)
	r.await(t, "the name is resolved", has("web", "10.0.0.1:80", "10.0.0.2:80"))
	r.await(t, "the source is read", fresh)
	r.stop()
	before := r.state()
	saved, err := os.ReadFile(options.StatePath)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(saved), "secret-token") {
		t.Error("the token is in the saved state")
	}

	f.setFault(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
	options.Resolver = &names{}
	r = run(t, settings, options)
	r.await(t, "it counts as read, and stale", all(stale("can't be asked"), func(_ map[string]*source.Service, s source.Status) bool { return s.Read }))
	if diff := diffInstances(before, r.state()); diff != "" {
		t.Error(diff)
	}
	f.setFault(nil)
	f.put("db", item("db", "d", "10.0.0.3", 5433))
	r.await(t, "a change flows", all(has("db", "10.0.0.3:5433"), fresh))
	r.stop()

	f.lose()
	r = run(t, settings, options)
	r.await(t, "a loss while it was down is known as one", stale("its index went backwards"))
	r.await(t, "and nothing is given up", all(has("db", "10.0.0.3:5433"), has("web", "10.0.0.1:80", "10.0.0.2:80")))
	r.stop()

	if err := os.WriteFile(options.StatePath, saved[:len(saved)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	r = run(t, settings, options)
	r.await(t, "damaged state is done without", fresh)
	if len(r.state()) != 0 {
		t.Errorf("services from nowhere: %v", r.state())
	}
}

func diffInstances(a, b map[string]*source.Service) string {
	for name, s := range a {
		if b[name] == nil || !slices.Equal(s.Instances, b[name].Instances) || s.Meta["patchbay-port"] != b[name].Meta["patchbay-port"] {
			return fmt.Sprintf("%s was %+v, is %+v", name, s, b[name])
		}
	}
	return ""
}

// names resolves from a table.
type names struct {
	mu    sync.Mutex
	known map[string][]netip.Addr
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a := n.known[host]; a != nil {
		return a, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// TestHostNames holds that a name stands for all its addresses, follows them,
// and keeps the last while it does not resolve.
func TestHostNames(t *testing.T) {
	resolver := &names{known: map[string][]netip.Addr{"db.example": {netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::2")}}}
	f := newFakeConsul()
	f.put("db", item("db", "d", "db.example", 80), item("db", "e", "none.example", 80))
	r := run(t, Settings{Address: f.serve(t).URL}, Options{Resolver: resolver})
	r.await(t, "both addresses, and the name that has none", has("db", "10.0.0.2:80", "2001:db8::2:80", "none.example:80 critical"))
	r.await(t, "ids and host", func(services map[string]*source.Service, _ source.Status) bool {
		return slices.ContainsFunc(services["db"].Instances, func(i source.Instance) bool {
			return i.ID == "dc1/node-d/d/10.0.0.2" && i.Host == "db.example"
		})
	})
	resolver.mu.Lock()
	resolver.known["db.example"] = []netip.Addr{netip.MustParseAddr("10.0.0.7")}
	resolver.mu.Unlock()
	r.await(t, "a new address", has("db", "10.0.0.7:80", "none.example:80 critical"))
	resolver.mu.Lock()
	delete(resolver.known, "db.example")
	resolver.mu.Unlock()
	r.await(t, "it does not resolve any more: the last is kept, with a note", func(services map[string]*source.Service, status source.Status) bool {
		return has("db", "10.0.0.7:80", "none.example:80 critical")(services, status) &&
			slices.ContainsFunc(services["db"].Notes, func(n string) bool { return strings.Contains(n, "does not resolve (no such host)") })
	})
	f.put("db", item("db", "d", "10.0.0.8", 80), item("db", "e", "none.example", 80))
	r.await(t, "an address in its place", has("db", "10.0.0.8:80", "none.example:80 critical"))
}

// TestSelection holds that what is selected follows the settings, and that a
// meta selector looks at instances.
func TestSelection(t *testing.T) {
	f := newFakeConsul()
	f.change(func() {
		f.set("web", []string{"patchbay", "x"}, item("web", "a", "10.0.0.1", 80))
		f.set("redis", nil, item("redis", "b", "10.0.0.2", 80, meta("team", "shop")))
		f.set("web-sidecar-proxy", nil, item("web-sidecar-proxy", "p", "10.0.0.1", 20000, inService("Kind", "connect-proxy")))
		f.set("web-2", nil, item("web-2", "c", "10.0.0.3", 80, meta("team", "none")))
		f.set("bad name/here", []string{"patchbay"}, item("bad name/here", "c", "10.0.0.3", 80))
	})
	url := f.serve(t).URL
	r := run(t, Settings{Address: url}, Options{})
	known := func(names ...string) func(map[string]*source.Service, source.Status) bool {
		return func(services map[string]*source.Service, status source.Status) bool {
			return slices.Equal(sortedKeys(services), names) && fresh(services, status)
		}
	}
	r.await(t, "tag patchbay; what has a bad name is left to be refused by the catalog", known("bad name/here", "web"))
	for _, c := range []struct {
		chosen, exclude []string
		want            []string
	}{
		{[]string{"name:web*"}, nil, []string{"web", "web-2"}},
		{[]string{"name:*"}, []string{"name:web-*", "name:bad*"}, []string{"redis", "web"}},
		{[]string{"meta:team=shop"}, nil, []string{"redis"}},
		{[]string{"meta:team"}, []string{"meta:team=none"}, []string{"redis"}},
		{[]string{"meta:team", "tag:x"}, []string{"tag:patchbay"}, []string{"redis", "web-2"}},
		{[]string{"name:consul", "tag:x"}, nil, []string{"web"}},
		{[]string{"tag:nobody"}, nil, []string{}},
	} {
		if err := r.Set(Settings{Address: url, Select: c.chosen, Exclude: c.exclude}); err != nil {
			t.Fatal(err)
		}
		r.await(t, fmt.Sprintf("select %q exclude %q", c.chosen, c.exclude), func(services map[string]*source.Service, _ source.Status) bool {
			return slices.Equal(sortedKeys(services), c.want)
		})
	}
	// The meta that chooses a service may change, too.
	if err := r.Set(Settings{Address: url, Select: []string{"meta:team=shop"}}); err != nil {
		t.Fatal(err)
	}
	r.await(t, "redis", known("redis"))
	f.change(func() { f.set("web-2", nil, item("web-2", "c", "10.0.0.3", 80, meta("team", "shop"))) })
	r.await(t, "another", known("redis", "web-2"))
	if err := r.Set(Settings{Select: []string{"team:shop"}}); err == nil {
		t.Error("a selector that is none was taken")
	}
}

// TestManyServices holds that over plain HTTP the questions that wait are
// bounded, and that every service is followed nevertheless.
func TestManyServices(t *testing.T) {
	t.Parallel()
	const many, blocking = 500, 20
	f := newFakeConsul()
	name := func(n int) string { return fmt.Sprintf("s%03d", n) }
	f.change(func() {
		for n := range many {
			f.set(name(n), []string{"patchbay"}, item(name(n), "a", "10.0.0.1", 1000+n), item(name(n), "b", "10.0.0.2", 1000+n))
		}
	})
	r := run(t, Settings{Address: f.serve(t).URL, MaxBlocking: blocking, Hold: 50 * time.Millisecond}, Options{})
	r.await(t, "all are read", func(services map[string]*source.Service, status source.Status) bool {
		return len(services) == many && status.Read
	})
	for _, n := range []int{0, 3, 100, 250, 499} {
		f.put(name(n), item(name(n), "a", "10.0.0.3", 1000+n))
		r.await(t, "a change of "+name(n), has(name(n), fmt.Sprintf("10.0.0.3:%d", 1000+n)))
	}
	// Services with a blocking query go, and others take their place.
	f.change(func() {
		for n := range 100 {
			f.at[name(n)] = f.index
			f.instances[name(n)] = f.instances[name(n)][:1]
		}
	})
	for n := range 100 {
		f.put(name(n))
	}
	r.await(t, "those that left are gone", func(services map[string]*source.Service, _ source.Status) bool { return len(services) == many-100 })
	f.put(name(499), item(name(499), "a", "10.0.0.4", 80))
	r.await(t, "the others are followed", func(services map[string]*source.Service, _ source.Status) bool {
		return slices.ContainsFunc(services[name(499)].Instances, func(i source.Instance) bool { return i.Address == "10.0.0.4" })
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mostWaiting > blocking {
		t.Errorf("%d questions waited at once, want at most %d", f.mostWaiting, blocking)
	}
	if strings.Count(r.log.String(), "http_max_conns_per_client") != 1 {
		t.Error("the log does not say once which setting of Consul would do better")
	}
}

// TestLocal holds that instances on the agent's own node are known as such.
func TestLocal(t *testing.T) {
	f := newFakeConsul()
	f.put("web", item("web", "a", "10.0.0.1", 80, inNode("Node", "here")), item("web", "b", "10.0.0.2", 80))
	r := run(t, Settings{Address: f.serve(t).URL}, Options{})
	r.await(t, "one is local", func(services map[string]*source.Service, _ source.Status) bool {
		s := services["web"]
		return s != nil && len(s.Instances) == 2 && s.Instances[0].Local && !s.Instances[1].Local
	})
}

// TestUnusable holds that settings which can't be used are shown, and that the
// source begins when they can.
func TestUnusable(t *testing.T) {
	f := newFakeConsul()
	f.put("web", item("web", "a", "10.0.0.1", 80))
	server := httptest.NewServer(f)
	defer server.Close()
	token := filepath.Join(t.TempDir(), "token")
	r := run(t, Settings{Address: server.URL, TokenFile: token}, Options{})
	r.await(t, "the file that is missing is shown", stale(token))
	if err := os.WriteFile(token, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.await(t, "then it begins", all(fresh, has("web", "10.0.0.1:80")))
	for _, address := range []string{"ftp://x", "http://user:pass@host:8500", "unix://relative", "http://", "host:port:more"} {
		if err := r.Set(Settings{Address: address}); err != nil {
			t.Fatal(err)
		}
		r.await(t, address, stale("address"))
		if strings.Contains(r.log.String(), "pass@") {
			t.Error("the password of an address is in the log")
		}
	}
	server.CloseClientConnections()
}
