package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// seed adds the files of testdata with that ending.
func seed(f *testing.F, ext string) {
	f.Helper()
	for _, pattern := range []string{"testdata/good/*", "testdata/bad/*", "testdata/good/*/*", "testdata/bad/*/*", "../../config.hcl"} {
		paths, err := filepath.Glob(pattern + ext)
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range paths {
			if data, err := os.ReadFile(path); err == nil && len(data) < 10_000 {
				f.Add(data)
			}
		}
	}
}

// seedHostile adds the shorter ones of what is hostile on purpose.
func seedHostile(f *testing.F, file string) {
	f.Helper()
	for _, h := range hostile {
		if h.file == file && len(h.text) < 10_000 {
			f.Add([]byte(h.text))
		}
	}
}

// fuzzLoad loads and binds any bytes: nothing panics, what is valid is bound,
// and what is bound is what the schema allows.
func fuzzLoad(t *testing.T, path string, data []byte) {
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	schemas := testSchemas(t)
	cfg, diags := Load([]string{path}, testOptions())
	bound, more := Bind(cfg, schemas, Unasked{})
	diags.Append(more)
	var out bytes.Buffer
	if err := diags.WriteText(&out, true); err != nil {
		t.Fatal(err)
	}
	if err := diags.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	if diags.HasErrors() {
		if diags.Error() == "" {
			t.Error("errors without a word")
		}
		return
	}
	names := map[string]bool{}
	for _, d := range bound.Dataplanes {
		if _, known := schemas[d.Name]; known != (d.PluginJSON != nil) {
			t.Errorf("dataplane %q: known %v, JSON %s", d.Name, known, d.PluginJSON)
		}
		if d.Name == "userspace" {
			if err := schema.Decode(d.PluginJSON, &testConfig{}); err != nil {
				t.Errorf("the plugin refuses its configuration: %v\n%s", err, d.PluginJSON)
			}
		}
	}
	for _, s := range bound.Services {
		if names[s.Name] || !serviceName.MatchString(s.Name) {
			t.Errorf("service name %q", s.Name)
		}
		names[s.Name] = true
		if s.OptionsJSON != nil {
			if err := schema.Decode(s.OptionsJSON, &testServiceOptions{}); err != nil {
				t.Errorf("the plugin refuses options: %v\n%s", err, s.OptionsJSON)
			}
		}
		for _, e := range s.Endpoints {
			if e.Host == "" || e.Port == 0 {
				t.Errorf("endpoint %+v of a valid service", e)
			}
		}
	}
}

func FuzzLoadNative(f *testing.F) {
	seed(f, ".hcl")
	seedHostile(f, "a.hcl")
	path := filepath.Join(f.TempDir(), "fuzz.hcl")
	f.Fuzz(func(t *testing.T, data []byte) { fuzzLoad(t, path, data) })
}

func FuzzLoadJSON(f *testing.F) {
	seed(f, ".json")
	seedHostile(f, "a.json")
	path := filepath.Join(f.TempDir(), "fuzz.json")
	f.Fuzz(func(t *testing.T, data []byte) { fuzzLoad(t, path, data) })
}

// FuzzPieces holds that a file means the same in pieces of any size.
func FuzzPieces(f *testing.F) {
	seed(f, ".hcl")
	f.Fuzz(func(t *testing.T, data []byte) {
		if guardText(data, "fuzz.hcl") != nil {
			return
		}
		whole, pieces := loadBody(t, "fuzz.hcl", data, len(data)+1), loadBody(t, "fuzz.hcl", data, 8)
		if diff := cmp.Diff(whole.report.finish().All(), pieces.report.finish().All(), cmpopts.IgnoreUnexported(Diagnostic{})); diff != "" {
			t.Errorf("diagnostics differ (-whole +pieces):\n%s", diff)
		}
		if diff := cmp.Diff(describe(t, whole.cfg), describe(t, pieces.cfg)); diff != "" {
			t.Errorf("configurations differ (-whole +pieces):\n%s", diff)
		}
	})
}

// FuzzFormat holds that formatting changes neither the meaning nor, done
// again, anything.
func FuzzFormat(f *testing.F) {
	seed(f, ".hcl")
	f.Fuzz(func(t *testing.T, data []byte) {
		out, diags := Format("fuzz.hcl", data)
		if diags.HasErrors() {
			if !bytes.Equal(out, data) {
				t.Error("changed what it can't format")
			}
			return
		}
		if !sameTokens(data, out, "fuzz.hcl") {
			t.Errorf("other tokens:\n%s", out)
		}
		if strings.TrimSpace(string(data)) == "" {
			return
		}
		if _, diags := Format("fuzz.hcl", out); diags.HasErrors() {
			t.Errorf("can't be formatted again: %v\n%s", diags.All(), out)
		}
	})
}
