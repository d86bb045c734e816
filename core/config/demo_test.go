package config

import (
	"os"
	"strings"
	"testing"
)

// TestDemoConfiguration holds that the configuration at the top of the
// repository is right as it is, laid out canonically, and names every argument
// that the core has.
func TestDemoConfiguration(t *testing.T) {
	const path = "../../config.hcl"
	cfg, diags := Load([]string{path}, testOptions())
	if diags.Len() > 0 {
		t.Fatal(diags.All())
	}
	if len(cfg.Services) == 0 || cfg.DataDir != "/data" {
		t.Errorf("services %d, data_dir %q", len(cfg.Services), cfg.DataDir)
	}
	for _, s := range cfg.Services {
		if s.Port < 1024 || !s.Static() {
			t.Errorf("service %q needs root, or has no endpoints", s.Name)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out, diags := Format(path, text)
	if diags.Len() > 0 || string(out) != string(text) {
		t.Errorf("not in canonical layout: run patchbay fmt config.hcl\n%v", diags.All())
	}
	reference, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*shape{rootShape, agentShape, nodeShape, poolShape, coreShape, serviceShape, endpointShape, checkShape} {
		for _, name := range s.names() {
			if name == "source" || name == "dns" {
				continue
			}
			if !strings.Contains(string(text), name) {
				t.Errorf("%s is not in config.hcl", name)
			}
			if !strings.Contains(string(reference), "`"+name+"`") {
				t.Errorf("%s is not in docs/configuration.md", name)
			}
		}
	}
}
