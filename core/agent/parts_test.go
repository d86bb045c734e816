package agent

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

func TestNotice(t *testing.T) {
	n := newNotice()
	before := n.now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.wait(context.Background(), before)
	}()
	n.bump()
	<-done
	if n.now() == before {
		t.Error("the index is as before")
	}
	n.wait(context.Background(), before) // returns at once: it differs
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.wait(ctx, n.now()) // returns at once: the context has ended
}

func TestFoldersOf(t *testing.T) {
	dir := t.TempDir()
	mkdir := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write := func(path string) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, path string) {
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	etc, other := mkdir("etc"), mkdir("other")
	plain := filepath.Join(etc, "plain.hcl")
	write(plain)
	elsewhere := filepath.Join(other, "elsewhere.hcl")
	write(elsewhere)
	link(elsewhere, filepath.Join(etc, "link.hcl"))
	version := mkdir("etc/..2026")
	write(filepath.Join(version, "map.hcl"))
	link("..2026", filepath.Join(etc, "..data"))
	link("..data/map.hcl", filepath.Join(etc, "map.hcl"))
	link("loop.hcl", filepath.Join(etc, "loop.hcl"))

	for _, c := range []struct {
		path string
		want []string
	}{
		{plain, []string{etc}},
		{etc, []string{dir, etc}},
		{filepath.Join(etc, "link.hcl"), []string{etc, other}},
		{filepath.Join(etc, "map.hcl"), []string{etc, version}},
		{filepath.Join(etc, "none.hcl"), []string{etc}},
		{filepath.Join(etc, "loop.hcl"), []string{etc}},
	} {
		got := map[string]bool{}
		for _, d := range foldersOf(c.path) {
			real, err := filepath.EvalSymlinks(d)
			if err != nil {
				t.Fatal(err)
			}
			got[real] = true
		}
		want := map[string]bool{}
		for _, d := range c.want {
			want[d] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.path, diff)
		}
	}
}

func TestFileWatch(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.hcl")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1")
	w := newFileWatch(hclog.NewNullLogger())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	w.watch([]string{dir, path}, fingerprint([]string{dir, path}))
	// What is written before the watch has begun may count as known: write until
	// it is told.
	for n, told := 0, false; !told; n++ {
		if n > 200 {
			t.Fatal("a changed file is not told")
		}
		write(string(rune('a' + n%20)))
		select {
		case <-w.changed:
			told = true
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// TestFingerprint: a file that is written with what it held, or a
// file that is none of the configuration's, is no change.
func TestFingerprint(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.hcl")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.hcl", "one")
	paths := []string{dir, path}
	first := fingerprint(paths)
	write("a.hcl", "one")
	write("notes.txt", "none of ours")
	write(".a.hcl.swp", "an editor's")
	write(".hidden.hcl", "an editor's")
	if fingerprint(paths) != first {
		t.Error("the same content has another fingerprint")
	}
	write("b.hcl", "")
	second := fingerprint(paths)
	if second == first {
		t.Error("a new file has the same fingerprint")
	}
	write("a.hcl", "two")
	if fingerprint(paths) == second {
		t.Error("another content has the same fingerprint")
	}
}

// TestKnownFiles: a file that may have changed while it was read is read again.
func TestKnownFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.hcl")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := knownFiles([]string{path}, time.Now().Add(-time.Minute)); got != "" {
		t.Error("a file that was written after the reading began counts as known")
	}
	if got := knownFiles([]string{path}, time.Now().Add(time.Minute)); got != fingerprint([]string{path}) {
		t.Error("a file that was there before is not known")
	}
	w := newFileWatch(hclog.NewNullLogger())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	w.watch([]string{path}, "")
	select {
	case <-w.changed:
	case <-time.After(30 * time.Second):
		t.Error("files of which nothing is known are not read again")
	}
}

func TestStatistics(t *testing.T) {
	s := newStatistics()
	endpoint := netip.MustParseAddrPort("10.0.0.1:80")
	event := func(id string, connections, active uint64) dataplane.WatchEvent {
		c := dataplane.Counters{Connections: connections, Active: active, BytesIn: 10 * connections}
		return dataplane.WatchEvent{Statistics: []dataplane.ServiceStatistics{{ID: id, Counters: c,
			Endpoints: []dataplane.EndpointStatistics{{Address: endpoint, Counters: c}}}}}
	}
	all := func(string) bool { return true }
	check := func(when string, connections, active, bytes uint64) {
		t.Helper()
		want := dataplane.Counters{Connections: connections, Active: active, BytesIn: bytes}
		if diff := cmp.Diff(want, s.totals); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	s.take(event("web", 5, 2), all)
	s.take(event("api", 7, 1), all)
	check("two services", 12, 3, 120)
	s.take(event("web", 9, 0), all)
	check("one has grown", 16, 1, 160)
	s.take(event("stranger", 1000, 1000), func(id string) bool { return id != "stranger" })
	check("a service that nobody wants", 16, 1, 160)
	if got := s.endpoints("web")[endpoint].Connections; got != 9 {
		t.Errorf("the endpoint has %d connections, want 9", got)
	}
	s.forget("api")
	check("one is gone", 16, 0, 160)
	s.processGone()
	s.take(event("web", 3, 3), all)
	check("a new process counts from zero", 19, 3, 190)
	s.take(event("web", 1, 1), all)
	check("a counter that went back began anew", 20, 1, 200)
	if len(s.sorted()) != 1 || s.sorted()[0].ID != "web" {
		t.Errorf("services: %v", s.sorted())
	}
	s.take(dataplane.WatchEvent{Drift: &dataplane.Drift{Repaired: true}}, all)
	s.take(dataplane.WatchEvent{Drift: &dataplane.Drift{}}, all)
	if s.repaired != 1 || s.unrepaired != 1 {
		t.Errorf("drift: %d repaired, %d not", s.repaired, s.unrepaired)
	}
}

// TestMasked: no sensitive value of a service's options is shown, wherever it
// stands.
func TestMasked(t *testing.T) {
	s, err := schema.Of(struct {
		Plain  string `name:"plain"`
		Secret string `name:"secret" sensitive:"true"`
		Object struct {
			Key  string `name:"key" sensitive:"true"`
			Path string `name:"path"`
		} `name:"object"`
		List []struct {
			Key string `name:"key" sensitive:"true"`
		} `name:"list"`
	}{})
	if err != nil {
		t.Fatal(err)
	}
	in := `{"plain":"a","secret":"s1","object":{"key":"s2","path":"b"},"list":[{"key":"s3"},{"key":"s4"}],"unknown":"s5"}`
	want := `{"list":[{"key":"(sensitive)"},{"key":"(sensitive)"}],"object":{"key":"(sensitive)","path":"b"},"plain":"a","secret":"(sensitive)","unknown":"(sensitive)"}`
	if diff := cmp.Diff(want, string(masked(s, json.RawMessage(in)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, odd := range []string{`[]`, `"s1"`, `{"object":"s1"}`, `{"list":{"key":"s1"}}`, `{"list":"s1"}`, `{`} {
		if got := string(masked(s, json.RawMessage(odd))); strings.Contains(got, "s1") {
			t.Errorf("%s is shown as %s", odd, got)
		}
	}
}

func TestLateSettings(t *testing.T) {
	before := &config.Config{DataDir: "/a", SyncInterval: time.Second, Agent: config.Agent{Socket: "/s", LogLevel: "info"}}
	if notes := lateSettings(before, before); len(notes) > 0 {
		t.Errorf("nothing changed: %v", notes)
	}
	after := *before
	after.Agent.LogLevel = "debug"
	if notes := lateSettings(before, &after); len(notes) > 0 {
		t.Errorf("the log level takes effect at once: %v", notes)
	}
	after.SyncInterval, after.Agent.Socket = 2*time.Second, "/t"
	if notes := lateSettings(before, &after); len(notes) != 2 {
		t.Errorf("notes: %v", notes)
	}
}

// TestPlanShowsNoValues: a plugin's arguments may be secrets.
func TestPlanShowsNoValues(t *testing.T) {
	before := &config.Config{Dataplanes: []config.Dataplane{{Name: "x", PluginJSON: json.RawMessage(`{"token":"old","same":1}`)}, {Name: "gone"}}}
	after := &config.Config{Dataplanes: []config.Dataplane{{Name: "x", Version: "~> 1.0", PluginJSON: json.RawMessage(`{"token":"new","same":1,"more":2}`)}, {Name: "new"}}}
	got, err := json.Marshal(planDataplanes(before, after))
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"action":"change","kind":"dataplane","name":"x","details":["version: ~\u003e 1.0","more changes","token changes"]},` +
		`{"action":"add","kind":"dataplane","name":"new"},{"action":"remove","kind":"dataplane","name":"gone"}]`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
