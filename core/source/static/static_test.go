package static

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
)

func TestInstances(t *testing.T) {
	block := service("web", nil, "10.0.0.1:80", "[fd00::1]:81")
	block.Endpoints[0].Weight, block.Endpoints[0].Zone = 3, "z1"
	r := run(t, Options{}, block, service("discovered", nil))
	r.until(t, "the service", func() bool { return r.show("web") != "none" && r.status.Read })
	want := &source.Service{Name: "web", Instances: []source.Instance{
		{ID: "10.0.0.1:80", Address: "10.0.0.1", Port: 80, Weight: 3, WarningWeight: 3, Health: source.Passing, Zone: "z1"},
		{ID: "[fd00::1]:81", Address: "fd00::1", Port: 81, Weight: 1, WarningWeight: 1, Health: source.Passing},
	}}
	if diff := cmp.Diff(map[string]*source.Service{"web": want}, r.services); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
	// The same again is no change; another block is; none takes it away.
	before := r.changes
	r.Set([]*config.Service{service("web", nil, "10.0.0.1:80", "[fd00::1]:81"), service("last", nil, "10.0.0.9:1")})
	r.want(t, "last", "10.0.0.9:1 up")
	r.want(t, "web", "10.0.0.1:80 up\nfd00::1:81 up")
	r.Set([]*config.Service{service("last", nil, "10.0.0.9:1")})
	r.want(t, "web", "none")
	r.Set([]*config.Service{service("last", nil, "10.0.0.9:1")})
	r.Set([]*config.Service{service("last", nil, "10.0.0.9:2")})
	r.want(t, "last", "10.0.0.9:2 up")
	if got := r.changes - before; got != 3 {
		t.Errorf("%d changes, want 3", got)
	}
}

// TestSetTellsEverything: a reload may have given the catalog a preview that is
// older than the last change it was told; Set puts that right.
func TestSetTellsEverything(t *testing.T) {
	address, stop := serve(t, hang)
	stop()
	blocks := []*config.Service{service("web", quick(func(c *config.Check) { c.Interval = time.Hour }), address)}
	r := run(t, Options{}, blocks...)
	old := r.Preview(blocks)
	down := address + " down connection refused"
	r.want(t, "web", down)
	r.sink.Change(source.Static, source.Changes{Upserts: []*source.Service{{Name: "web", Instances: old[0].Instances[:0]}}, Replace: true})
	r.Set(blocks)
	r.want(t, "web", down)
}

// TestHealthFollowsTheEndpoint: down when it goes, up when it is back.
func TestHealthFollowsTheEndpoint(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	stop := serveOn(t, l, hang)
	r := run(t, Options{}, service("web", quick(), address))
	r.want(t, "web", address+" up")
	stop()
	r.want(t, "web", address+" down connection refused")
	if l, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, hang)
	r.want(t, "web", address+" up")
}

// TestReloadKeepsHealth: an endpoint that was down before a reload is never up
// in between, unless it is checked in another way.
func TestReloadKeepsHealth(t *testing.T) {
	address, stop := serve(t, hang)
	stop()
	down := address + " down connection refused"
	r := run(t, Options{}, service("web", quick(), address))
	r.want(t, "web", down)
	changes := r.changes
	for range 50 {
		again := service("web", quick(func(c *config.Check) { c.Interval, c.Rise, c.Fall = time.Hour, 5, 5 }), address)
		if got := show(r.Preview([]*config.Service{again})[0]); got != down {
			t.Fatalf("the reload would make it %q", got)
		}
		r.Set([]*config.Service{again})
	}
	other := service("other", nil, "10.0.0.1:1")
	r.Set([]*config.Service{service("web", quick(func(c *config.Check) { c.Interval = time.Hour }), address), other})
	r.want(t, "other", "10.0.0.1:1 up")
	if got := r.show("web"); got != down || r.changes != changes+1 {
		t.Errorf("it is %q after %d changes", got, r.changes-changes)
	}
	// Without a check it is up; with another kind it begins anew.
	r.Set([]*config.Service{service("web", nil, address)})
	r.want(t, "web", address+" up")
	asking := service("web", quick(asks("/"), func(c *config.Check) { c.Interval = time.Hour }), address)
	if got := show(r.Preview([]*config.Service{asking})[0]); got != address+" up" {
		t.Errorf("with another check it would be %q", got)
	}
}

// TestSavedHealth: an endpoint begins as it ended.
func TestSavedHealth(t *testing.T) {
	path := filepath.Join(t.TempDir(), "static.json")
	up, _ := serve(t, hang)
	gone, stop := serve(t, hang)
	stop()
	blocks := []*config.Service{service("web", quick(), up, gone), service("unchecked", nil, gone)}
	r := run(t, Options{StatePath: path}, blocks...)
	ended := up + " up\n" + gone + " down connection refused"
	r.want(t, "web", ended)
	for known := 0; known < 2; time.Sleep(time.Millisecond) {
		known = 0
		r.Source.mu.Lock()
		for _, target := range r.targets["web"] {
			if target.health.known {
				known++
			}
		}
		r.Source.mu.Unlock()
	}
	r.stop()

	// The next process says the same before it has checked anything.
	next := New(Options{StatePath: path})
	next.Set(blocks)
	if got := show(next.Preview(blocks)[0]); got != ended {
		t.Errorf("it begins as\n%s\nand ended as\n%s", got, ended)
	}
	if got := show(New(Options{StatePath: path}).Preview(blocks)[0]); got != ended {
		t.Errorf("before Set, the preview is\n%s\nwant\n%s", got, ended)
	}
	// One that was up doesn't fall at its first failure, one that is new does.
	if h := next.targets["web"]; len(h) != 2 {
		t.Fatalf("targets are %v", h)
	}
	for key, target := range next.targets["web"] {
		if !target.health.known {
			t.Errorf("%v counts as new", key)
		}
	}
	// An unchanged run writes nothing.
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	next.save()
	if after, _ := os.Stat(path); !os.SameFile(before, after) {
		t.Error("the file was written although nothing had changed")
	}
}

func TestDamagedState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "static.json")
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	address, stop := serve(t, hang)
	stop()
	block := service("web", quick(), address)
	if got := show(New(Options{StatePath: path}).Preview([]*config.Service{block})[0]); got != address+" up" {
		t.Errorf("it begins as %q", got)
	}
	r := run(t, Options{StatePath: path}, block)
	r.want(t, "web", address+" down connection refused")
	r.stop()
	if got := show(New(Options{StatePath: path}).Preview([]*config.Service{block})[0]); got != address+" down connection refused" {
		t.Errorf("it begins as %q", got)
	}
}

// TestSavesWhileItRuns: a process that is killed has saved what it knew.
func TestSavesWhileItRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "static.json")
	address, stop := serve(t, hang)
	stop()
	run(t, Options{StatePath: path, SaveInterval: time.Millisecond}, service("web", quick(), address))
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if data, _ := os.ReadFile(path); strings.Contains(string(data), "connection refused") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was saved")
		}
	}
}

// TestHostNames: a name stands for all its addresses, follows them, and keeps
// the last ones while it doesn't resolve.
func TestHostNames(t *testing.T) {
	n := &names{}
	n.set("db", "10.0.0.2", "10.0.0.1", "::ffff:10.0.0.1")
	n.fail(errServers, false)
	options := Options{Resolver: n, ResolveInterval: 5 * time.Millisecond, StatePath: filepath.Join(t.TempDir(), "static.json")}
	block := service("db", nil, "db:5432", "10.0.0.9:5432")
	r := run(t, options, block)
	r.want(t, "db", "db:5432 down server misbehaving\n10.0.0.9:5432 up")
	n.fail(nil, false)
	both := "10.0.0.1:5432 up\n10.0.0.2:5432 up\n10.0.0.9:5432 up"
	r.want(t, "db", both)
	if i := r.services["db"].Instances[0]; i.ID != "db:5432/10.0.0.1" || i.Host != "db" {
		t.Errorf("instance is %+v", i)
	}
	n.set("db", "10.0.0.3")
	r.want(t, "db", "10.0.0.3:5432 up\n10.0.0.9:5432 up")
	n.set("db")
	kept := "10.0.0.3:5432 up\n10.0.0.9:5432 up\nnote: host name db does not resolve (no such host): its last addresses are kept"
	r.want(t, "db", kept)
	r.stop()

	// The next process knows them before it has asked.
	if got := show(New(options).Preview([]*config.Service{block})[0]); got != "10.0.0.3:5432 up\n10.0.0.9:5432 up" {
		t.Errorf("the next process begins with\n%s", got)
	}
	r = run(t, options, block)
	r.want(t, "db", kept)
	n.set("db", "10.0.0.4")
	r.want(t, "db", "10.0.0.4:5432 up\n10.0.0.9:5432 up")
}

// TestUnreadUntilLookedUp: before a name has been looked up once, nothing is
// to be taken away from a dataplane.
func TestUnreadUntilLookedUp(t *testing.T) {
	n := &names{}
	n.set("db", "10.0.0.1")
	n.fail(nil, true)
	r := run(t, Options{Resolver: n, ResolveInterval: 5 * time.Millisecond}, service("db", nil, "db:1"), service("web", nil, "10.0.0.1:80"))
	r.want(t, "db", "db:1 down not looked up yet")
	r.want(t, "web", "10.0.0.1:80 up")
	if r.status.Read {
		t.Error("the source counts as read")
	}
	n.fail(nil, false)
	r.until(t, "the source to be read", func() bool { r.sink.mu.Lock(); defer r.sink.mu.Unlock(); return r.status.Read })
	r.want(t, "db", "10.0.0.1:1 up")
}

// TestHostNameIsChecked: each of its addresses on its own.
func TestHostNameIsChecked(t *testing.T) {
	address, _ := serve(t, hang)
	_, port, _ := net.SplitHostPort(address)
	n := &names{}
	n.set("db", "127.0.0.1", "127.0.0.77")
	r := run(t, Options{Resolver: n, ResolveInterval: 5 * time.Millisecond}, service("db", quick(), "db:"+port))
	r.want(t, "db", "127.0.0.1:"+port+" up\n127.0.0.77:"+port+" down connection refused")
	n.set("db", "127.0.0.1")
	r.want(t, "db", "127.0.0.1:"+port+" up")
}

// TestManyEndpoints: thousands are checked, all of them, with few goroutines.
func TestManyEndpoints(t *testing.T) {
	var accepted atomic.Int64
	address, _ := serve(t, func(net.Conn) { accepted.Add(1) })
	_, port, _ := net.SplitHostPort(address)
	var blocks []*config.Service
	want := strings.TrimSpace(strings.Repeat("127.0.0.1:"+port+" up\n", 1))
	for i := range 2000 {
		name := "s" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + time.Duration(i).String()
		b := service(name, quick(func(c *config.Check) { c.Interval = 2 * time.Second }), "127.0.0.1:"+port)
		// The second endpoint has nobody.
		b.Endpoints = append(b.Endpoints, config.Endpoint{Host: "127.0.0.2", Port: b.Endpoints[0].Port, Weight: 1})
		blocks = append(blocks, b)
	}
	r := run(t, Options{MaxChecks: 64}, blocks...)
	r.until(t, "every second endpoint to be down", func() bool {
		for _, b := range blocks {
			if r.show(b.Name) != want+"\n127.0.0.2:"+port+" down connection refused" {
				return false
			}
		}
		return true
	})
	r.stop()
	if accepted.Load() < 1000 {
		t.Errorf("%d checks reached the server", accepted.Load())
	}
}
