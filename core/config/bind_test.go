package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// TestBindAgain holds that Bind leaves its Config as it was, so that it can be
// bound to the schema of another version of the plugin.
func TestBindAgain(t *testing.T) {
	type second struct {
		Speed int `name:"speed" default:"3"`
	}
	cfg, diags := Load([]string{write(t, "a.hcl", `
dataplane "userspace" {
  speed = 5
}

service "web" {
  vip     = "127.96.0.1"
  port    = 80
  options = { speed = 6 }
}
`)}, testOptions())
	if diags.Len() > 0 {
		t.Fatal(diags.All())
	}
	_, diags = Bind(cfg, testSchemas(t), Unasked{})
	if !strings.Contains(diags.Error(), "speed") {
		t.Errorf("the first schema has no speed, but: %v", diags.All())
	}
	s, err := schema.Of(second{})
	if err != nil {
		t.Fatal(err)
	}
	bound, diags := Bind(cfg, map[string]PluginSchema{"userspace": {Config: s, Options: s}}, Unasked{})
	if diags.Len() > 0 {
		t.Fatal(diags.All())
	}
	if got := string(bound.Dataplanes[0].PluginJSON); got != `{"speed":5}` {
		t.Errorf("PluginJSON %s", got)
	}
	if got := string(bound.Services[0].OptionsJSON); got != `{"speed":6}` {
		t.Errorf("OptionsJSON %s", got)
	}
	if cfg.Dataplanes[0].PluginJSON != nil || cfg.Services[0].OptionsJSON != nil {
		t.Error("Bind has changed the Config that it was given")
	}
}

// TestBindAtOnce lets the race detector see that Binds don't disturb each
// other.
func TestBindAtOnce(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"token": "hunter2\n",
		"a.hcl": "dataplane \"userspace\" {\n  token = file(\"token\")\n  retires = 1\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, _ := Load([]string{dir}, testOptions())
	schemas := testSchemas(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			bound, diags := Bind(cfg, schemas, Unasked{})
			if !diags.HasErrors() || !slices.Contains(bound.Files, filepath.Join(dir, "token")) {
				t.Errorf("diagnostics %v, files %v", diags.All(), bound.Files)
			}
		})
	}
	wg.Wait()
}

// TestOptionsOfDefaults holds that options of the defaults block reach every
// service, and that a mistake in them is said once.
func TestOptionsOfDefaults(t *testing.T) {
	text := "dataplane \"userspace\" {}\ndefaults {\n  vip = \"127.96.0.1\"\n  options = { retries = RETRIES }\n}\n" +
		numbered("service \"s%d\" {\n  port = %d\n}\n", 50)
	for value, want := range map[string]int{"4": 0, "\"four\"": 1} {
		bound, diags := validate(t, write(t, "a.hcl", strings.ReplaceAll(text, "RETRIES", value)))
		diags.items = slices.DeleteFunc(diags.items, func(d Diagnostic) bool { return strings.Contains(d.Summary, "Port") })
		if diags.Len() != want {
			t.Errorf("retries = %s: %v", value, diags.All())
		}
		for _, s := range bound.Services {
			if want == 0 && string(s.OptionsJSON) != `{"retries":4,"timeout":2000000000}` {
				t.Errorf("service %s: options %s", s.Name, s.OptionsJSON)
			}
		}
	}
}

func TestWrongSchema(t *testing.T) {
	cfg, _ := Load([]string{write(t, "a.hcl", "dataplane \"userspace\" {\n  user = \"nobody\"\n}\n")}, testOptions())
	for name, s := range map[string]*schema.Schema{
		"reserved":  {Arguments: []*schema.Argument{{Name: "user", Type: schema.TypeString}}},
		"type":      {Arguments: []*schema.Argument{{Name: "a", Type: 99}}},
		"null":      {Arguments: []*schema.Argument{nil}},
		"no object": {Arguments: []*schema.Argument{{Name: "a", Type: schema.TypeObject}}},
	} {
		bound, diags := Bind(cfg, map[string]PluginSchema{"userspace": {Config: s}}, Unasked{})
		if !diags.HasErrors() || bound.Dataplanes[0].PluginJSON != nil {
			t.Errorf("%s: %v", name, diags.All())
		}
	}
}

func TestRefused(t *testing.T) {
	path := write(t, "a.hcl", "dataplane \"userspace\" {\n  retries = 3\n\n  tls {\n    certificate = \"c\"\n    key         = \"hunter2\"\n  }\n}\n")
	bound, diags := validate(t, path)
	if diags.Len() > 0 {
		t.Fatal(diags.All())
	}
	got := Refused(bound, "userspace", testSchemas(t)["userspace"], []dataplane.Diagnostic{
		{Summary: "Unreadable key", Detail: "The key has no end.", Path: []string{"tls", "key"}},
		{Summary: "Many retries", Detail: "Three is a lot.", Path: []string{"retries"}, Warning: true},
	})
	var lines []string
	for _, d := range got.All() {
		lines = append(lines, d.Severity+" "+strings.TrimSpace(d.SourceLine))
	}
	want := []string{"warning retries = 3", "error key         = (sensitive)"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDiagnosticsOutput(t *testing.T) {
	var none *Diagnostics
	if none.HasErrors() || none.Len() != 0 || none.Error() != "" || none.Omitted() != 0 {
		t.Error("nil has diagnostics")
	}
	path := write(t, "a.hcl", "data_dri = 1\ndataplane \"userspace\" {\n  old_limit = 1\n}\n")
	_, diags := validate(t, path)
	var text, data bytes.Buffer
	if err := diags.WriteText(&text, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "\x1b[1;31mError:\x1b[0m") || !strings.Contains(text.String(), "\x1b[1;33mWarning:\x1b[0m") {
		t.Errorf("no colour: %q", text.String())
	}
	if err := diags.WriteJSON(&data); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Diagnostics []map[string]any
		Omitted     int
	}
	if err := json.Unmarshal(data.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{
		{
			"severity": "error", "summary": "Unknown argument", "detail": `There is no argument "data_dri" here. Did you mean "data_dir"?`,
			"file": path, "line": 1.0, "column": 1.0, "source_line": "data_dri = 1",
		},
		{
			"severity": "warning", "summary": "Deprecated argument", "detail": "old_limit is deprecated: use max_connections.", "within": `dataplane "userspace"`,
			"file": path, "line": 3.0, "column": 3.0, "source_line": "  old_limit = 1",
		},
	}
	if diff := cmp.Diff(want, got.Diagnostics); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, want := diags.Error(), path+`:1: Unknown argument: There is no argument "data_dri" here. Did you mean "data_dir"?`; got != want {
		t.Errorf("Error() is %q, want %q", got, want)
	}
	again, _ := Load([]string{path}, testOptions())
	_, more := Bind(again, testSchemas(t), Unasked{})
	before := diags.Len()
	if diags.Append(more); diags.Len() != before {
		t.Errorf("said twice: %v", diags.All())
	}
}

func TestHostNetworks(t *testing.T) {
	networks, err := HostNetworks()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range networks {
		if n.Interface == "" || !n.Prefix.IsValid() || n.Prefix.Addr().IsLoopback() {
			t.Errorf("network %+v", n)
		}
	}
}

func TestSuggest(t *testing.T) {
	words := []string{"port", "pool", "protocols", "prefer", "balance", "tcp", "endpoint"}
	for given, want := range map[string]string{
		"prot": "port", "poool": "pool", "protocol": "protocols", "blanace": "balance", "tpc": "tcp", "Port": "port",
		"endpoints": "endpoint", "xyz": "", "": "", "address": "",
	} {
		if got := suggest(given, words); got != want {
			t.Errorf("suggest(%q) = %q, want %q", given, got, want)
		}
	}
}

func BenchmarkBind(b *testing.B) {
	path := write(b, "a.hcl", "dataplane \"userspace\" {}\n"+strings.ReplaceAll(
		numbered("service \"s%d\" {\n  vip = \"127.96.0.1\"\n  port = %d\n  options = { retries = 2 }\n}\n", 5000), "port = ", "port = 1"))
	cfg, _ := Load([]string{path}, testOptions())
	schemas := testSchemas(b)
	b.ReportAllocs()
	for b.Loop() {
		Bind(cfg, schemas, Unasked{})
	}
}

// TestBindUnasked: why a plugin was not asked stands with its block, as a
// warning or, where that is asked for, an error.
func TestBindUnasked(t *testing.T) {
	cfg, diags := Load([]string{write(t, "a.hcl", "dataplane \"userspace\" {}\n")}, testOptions())
	if diags.Len() > 0 {
		t.Fatal(diags.All())
	}
	why := map[string]error{"userspace": errors.New("it\ncrashed.")}
	for _, c := range []struct {
		name     string
		schemas  map[string]PluginSchema
		unasked  Unasked
		severity string
		detail   string
	}{
		{"no reason", nil, Unasked{}, "warning", `could not be asked, so its own arguments and its services' options are not checked.`},
		{"a reason", nil, Unasked{Why: why}, "warning", `are not checked: it crashed.`},
		{"strict", nil, Unasked{Why: why, Strict: true}, "error", `are not checked: it crashed.`},
		{"its schema is known", testSchemas(t), Unasked{Why: why, Strict: true}, "error", `The plugin of dataplane "userspace" did not check its block: it crashed.`},
	} {
		_, diags := Bind(cfg, c.schemas, c.unasked)
		got := diags.All()
		if len(got) != 1 || got[0].Severity != c.severity || got[0].Line != 1 || !strings.HasSuffix(got[0].Detail, c.detail) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
