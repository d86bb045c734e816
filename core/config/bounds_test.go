package config

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// hostile are configurations that once took minutes, or all memory.
var hostile = []struct {
	name, file, text string
	// says is in the diagnostics, which are at least that many; errors tells
	// that there are any.
	says string
	want int
}{
	{"pools that overlap", "a.hcl", numbered("vip_pool \"p%[1]d\" {\n  cidr = [\"10.96.0.0/16\"]\n}\n", 3000), "Overlapping pools", 2999},
	{"pools in pools", "a.hcl", `vip_pool "all" { cidr = ["10.0.0.0/8"] }` + "\n" + numbered("vip_pool \"p%[1]d\" {\n  cidr = [\"10.96.0.%[1]d/32\"]\n}\n", 200), "10.0.0.0/8 of vip_pool \"all\"", 200},
	{"pools, the largest last", "a.hcl", numbered("vip_pool \"p%[1]d\" {\n  cidr = [\"10.96.0.%[1]d/32\"]\n}\n", 40) + `vip_pool "all" { cidr = ["10.0.0.0/8"] }` + "\n", "10.0.0.0/8 overlaps 10.96.0.0/32 of vip_pool \"p0\"", 40},
	{"unknown pools", "a.hcl", numbered("service \"s%[1]d\" {\n  pool = \"q%[1]d\"\n}\nvip_pool \"p%[1]d\" {\n}\n", 4000), "Missing argument", 4000},
	{"unknown names", "a.hcl", "agent {\n" + numbered("  log_lefel%[1]d = 1\n", 80_000) + "}\n", "Unknown argument", 80_000},
	{"blocks of unknown names", "a.hcl", numbered("agent {\n  log_lefel%[1]d = 1\n}\n", 20_000), "Unknown argument", 20_000},
	{"unknown services", "a.hcl", numbered("service \"s%[1]d\" {\n  port = 80\n  vip = service(\"t%[1]d\")\n}\n", 10_000), "Unknown service", 10_000},
	{"dataplanes", "a.hcl", numbered("dataplane \"d%[1]d\" {\n}\nservice \"s%[1]d\" {\n}\n", 5000), "Too many dataplanes", 1},
	{"for in for", "a.hcl", "node {\n  zone = " + strings.Repeat("[for x in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] : ", 8) + "1" + strings.Repeat("]", 8) + "\n}\n", tooComplex, 1},
	{"for in an object's for", "a.hcl", "node {\n  zone = {for a in [1] : a => [ # why\n for b in [1] : b]}\n}\n", tooComplex, 1},
	{"for over for", "a.hcl", "node {\n  zone = [/* */ for a in [for b in [1] : b] : a]\n}\n", tooComplex, 1},
	{"for of a template", "a.hcl", "node {\n  zone = \"%{ for a in [1] }%{~ for b in [2] }${b}%{ endfor }%{ endfor }\"\n}\n", tooComplex, 1},
	{"for in a template's for", "a.hcl", "node {\n  zone = \"%{ for a in [1] }${[for b in [2] : b][0]}%{ endfor }\"\n}\n", tooComplex, 1},
	{"long for", "a.hcl", "node {\n  zone = [for a in [" + strings.Repeat("1, ", 3000) + "] : a]\n}\n", tooComplex, 1},
	{"for in for in JSON", "a.json", `{"node": {"zone": "${[for a in [1] : [for b in [1] : b]]}"}}`, tooComplex, 1},
	{"template's for in JSON", "a.json", `{"node": {"zone": "%{ for a in [1] }\u0025{ for b in [1] }%{ endfor }%{ endfor }"}}`, tooComplex, 1},
	{"a very long word", "a.hcl", "agent {\n  log_level = \"" + strings.Repeat("debug", 200_000) + "\"\n}\n", "Unknown value", 1},
}

// TestHostile: what takes long on purpose is refused, or comes to an end all
// the same.
func TestHostile(t *testing.T) {
	for _, h := range hostile {
		t.Run(h.name, func(t *testing.T) {
			path, done := write(t, h.file, h.text), make(chan *Diagnostics, 1)
			go func() {
				cfg, diags := Load([]string{path}, testOptions())
				_, more := Bind(cfg, nil, Unasked{})
				diags.Append(more)
				done <- diags
			}()
			select {
			case diags := <-done:
				if diags.Len() < h.want || !strings.Contains(fmt.Sprint(diags.All()), h.says) {
					t.Errorf("%d diagnostics, want %d with %q: %.3000s", diags.Len(), h.want, h.says, diags.Error())
				}
			case <-time.After(60 * time.Second):
				t.Fatal("no end after a minute") // it goes on, and the test process ends with it
			}
		})
	}
}

// TestFor: one for after another is allowed, and the word elsewhere too.
func TestFor(t *testing.T) {
	cfg, diags := Load([]string{write(t, "a.hcl", `
# for is in [ for ] comments
dataplane "userspace" {}
node {
  zone           = "for %{ for a in ["x", "y"] }${a}%{ endfor }%{ for b in ["z"] }${b}%{ endfor } for"
  local_networks = concat_free ? [] : []
}
`)}, testOptions())
	if diags.Len() != 1 || !strings.Contains(diags.Error(), "no variables") || cfg.Node.Zone != "for xyz for" {
		t.Errorf("zone %q: %v", cfg.Node.Zone, diags.All())
	}
	cfg, diags = Load([]string{write(t, "a.hcl", `
dataplane "userspace" {}
node {
  addresses      = [for a in ["1", "2"] : "10.1.0.${a}"]
  local_networks = [
    for a in ["3", "4"] : "10.${a}.0.0/16"
  ]
}
`)}, testOptions())
	if diags.Len() != 0 || len(cfg.Node.Addresses) != 2 || len(cfg.Node.LocalNetworks) != 2 {
		t.Errorf("%+v: %v", cfg.Node, diags.All())
	}
}
