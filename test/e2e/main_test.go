package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
)

// built holds what TestMain has built.
var built struct {
	dir      string
	patchbay string
	// plugins by name, without the names that files of plugins need.
	plugins map[string]string
}

func TestMain(m *testing.M) {
	// These tests mostly wait for other processes, so more of them at once are
	// no more work.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = parallel.Value.Set("8")
	}
	code := 1
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, "building the programs:", err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(built.dir)
	os.Exit(code)
}

func build() error {
	dir, err := os.MkdirTemp("", "patchbay-e2e-*")
	if err != nil {
		return err
	}
	built.dir = dir
	built.patchbay = filepath.Join(dir, "patchbay")
	built.plugins = map[string]string{}
	if err := goBuild("../..", "./core/cmd/patchbay", built.patchbay, raceFlags...); err != nil {
		return err
	}
	for _, p := range []struct{ name, module, pkg string }{
		{"null", "../../examples/null", "."},
		{"faulty", "../..", "./test/plugins/faulty"},
		{"userspace", "../..", "./plugins/userspace"},
	} {
		built.plugins[p.name] = filepath.Join(dir, p.name)
		if err := goBuild(p.module, p.pkg, built.plugins[p.name]); err != nil {
			return err
		}
	}
	return nil
}

// raceFlags build the agent with the race detector where the tests have it.
var raceFlags []string

func goBuild(module, pkg, out string, flags ...string) error {
	command := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), pkg)...)
	command.Dir = module
	if len(flags) == 0 {
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	var stderr bytes.Buffer
	command.Stderr = &stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", pkg, err, stderr.String())
	}
	return nil
}
