// Package test holds what can only be tested across packages and processes.
// This file holds the rules of the house: who may import whom.
package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/patchbay-proxy/patchbay"
	sdk    = module + "/sdk"
)

// goPackage is the part of `go list -json` that the rules look at.
type goPackage struct {
	ImportPath   string
	Name         string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// list gives the packages of the module in a folder, seen from the root.
func list(t *testing.T, folder string) []goPackage {
	t.Helper()
	command := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Imports,TestImports,XTestImports", "./...")
	command.Dir = path.Join("..", folder)
	out, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("listing the packages in %s: %v", folder, err)
	}
	var packages []goPackage
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("reading what go list says: %v", err)
		}
		packages = append(packages, p)
	}
	if len(packages) == 0 {
		t.Fatalf("no package in %s", folder)
	}
	return packages
}

// under tells whether an import path is a package, or lies below it.
func under(importPath, parent string) bool {
	return importPath == parent || strings.HasPrefix(importPath, parent+"/")
}

// area gives the part of the core that a package belongs to, such as "source"
// for core/source/static; empty for what is not in the core.
func area(importPath string) string {
	rest, ok := strings.CutPrefix(importPath, module+"/core/")
	if !ok {
		return ""
	}
	first, _, _ := strings.Cut(rest, "/")
	return first
}

// layers of the core, from the top: a package imports only what is in a layer
// below its own, or in its own area.
var layers = [][]string{
	{"cmd"},
	{"agent"},
	{"admin"},
	{"dispatch", "dns"},
	{"catalog"},
	{"source"},
	{"config", "vip", "pluginhost"},
	{"state"},
}

func layer(area string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, area) })
}

// violation gives what is wrong with one import.
func violation(from, to string) string {
	switch {
	case under(from, sdk):
		if under(to, module) && !under(to, sdk) {
			return "the sdk imports only itself of this project"
		}
	case under(from, module+"/plugins"):
		if under(to, module+"/core") {
			return "a plugin does not import the core"
		}
	case under(from, module+"/core"):
		if under(to, module+"/plugins") {
			return "the core never imports a plugin"
		}
		a, b := area(from), area(to)
		if b == "" || a == b {
			return ""
		}
		switch {
		case layer(a) < 0:
			return fmt.Sprintf("core/%s has no layer: give it one in this test", a)
		case layer(b) < 0:
			return fmt.Sprintf("core/%s has no layer: give it one in this test", b)
		case layer(b) <= layer(a):
			return "imports within the core run one way: cmd > agent > admin > dispatch, dns > catalog > source > config, vip, pluginhost"
		}
	}
	return ""
}

func TestImports(t *testing.T) {
	packages := append(list(t, "."), list(t, "sdk")...)
	for _, p := range packages {
		for _, imported := range p.Imports {
			if why := violation(p.ImportPath, imported); why != "" {
				t.Errorf("%s imports %s: %s", p.ImportPath, imported, why)
			}
		}
		// A test may reach across the layers of the core, but not out of the
		// sdk and not into a plugin.
		for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
			why := violation(p.ImportPath, imported)
			if why != "" && area(p.ImportPath) == "" || under(imported, module+"/plugins") && area(p.ImportPath) != "" {
				t.Errorf("a test of %s imports %s: %s", p.ImportPath, imported, why)
			}
		}
	}
}

// TestPackageNames refuses names that say nothing.
func TestPackageNames(t *testing.T) {
	for _, p := range append(list(t, "."), list(t, "sdk")...) {
		for _, element := range append(strings.Split(strings.TrimPrefix(p.ImportPath, module), "/"), p.Name) {
			switch element {
			case "util", "utils", "common", "helper", "helpers", "types", "manager", "misc", "shared":
				t.Errorf("package %s: the name %q says nothing about its job", p.ImportPath, element)
			}
		}
	}
}

// TestRules holds the rules themselves: each must find what it forbids.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		from, to string
		bad      bool
	}{
		{sdk + "/dataplane", module + "/core/config", true},
		{sdk + "/dataplane", module + "/plugins/userspace", true},
		{sdk + "/dataplane", sdk + "/schema", false},
		{sdk + "/dataplane", "github.com/hashicorp/go-plugin", false},
		{module + "/plugins/userspace", module + "/core/config", true},
		{module + "/plugins/userspace", sdk + "/dataplane", false},
		{module + "/plugins/userspace", module + "/plugins/internal/conntrack", false},
		{module + "/core/agent", module + "/plugins/userspace", true},
		{module + "/core/agent", module + "/core/admin", false},
		{module + "/core/admin", module + "/core/agent", true},
		{module + "/core/dispatch", module + "/core/catalog", false},
		{module + "/core/catalog", module + "/core/dispatch", true},
		{module + "/core/config", module + "/core/vip", true},
		{module + "/core/source/static", module + "/core/source", false},
		{module + "/core/source", module + "/core/config", false},
		{module + "/core/cmd/patchbay", module + "/core/config", false},
		{module + "/core/invented", module + "/core/config", true},
	} {
		if got := violation(c.from, c.to); (got != "") != c.bad {
			t.Errorf("%s importing %s: %q, want a violation: %v", c.from, c.to, got, c.bad)
		}
	}
}
