package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

// plugins is a folder with the plugin that does nothing, built once.
var plugins = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "patchbay-agent-test-*")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "patchbay-dataplane-null_v1.0.0"), ".")
	build.Dir = "../../examples/null"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("building the plugin: %w\n%s", err, out)
	}
	return dir, os.Chmod(dir, 0o755)
})

// options are those of an agent with a configuration of that text.
func options(t *testing.T, text string) Options {
	t.Helper()
	dir, err := plugins()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "pb-*") // short, for the socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	path := filepath.Join(home, "patchbay.hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Options{
		ConfigPaths: []string{path},
		DataDir:     filepath.Join(home, "data"),
		PluginDir:   dir,
		Socket:      filepath.Join(home, "sock"),
		Output:      &bytes.Buffer{},
	}
}

const oneService = `
dataplane "null" {
  default = true
}
service "web" {
  vip  = ["198.18.0.1"]
  port = 80
  endpoint { address = "203.0.113.1:80" }
}
`

// TestRunLeavesNoGoroutine: an agent in this process, from start to end, with
// reloads and requests that wait; goleak looks at what is left.
func TestRunLeavesNoGoroutine(t *testing.T) {
	o := options(t, oneService)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	client := admin.NewClient(o.Socket)
	defer client.Close()
	var list admin.ServiceList
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var err error
		list, err = client.Services(t.Context(), admin.Watch{})
		if err == nil && len(list.Services) == 1 && list.Services[0].State == admin.StateOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the service is not carried: %+v, %v", list, err)
		}
	}
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		_, _ = client.Services(context.Background(), admin.Watch{Index: list.Index, Wait: 10 * time.Minute})
	}()
	for range 3 {
		if r, err := client.Reload(t.Context()); err != nil || !r.OK || r.Changed {
			t.Errorf("reload of the same file: %+v, %v", r, err)
		}
	}
	if _, err := LockDataDir(o.DataDir); err == nil {
		t.Error("the data folder of a running agent was locked")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	<-waiting
	report, err := Cleanup(t.Context(), o)
	if err != nil || !slices.Equal(report.Cleaned, []string{"null"}) || len(report.Left) > 0 {
		t.Errorf("cleanup: %+v, %v", report, err)
	}
}

func TestRunRefuses(t *testing.T) {
	o := options(t, strings.Replace(oneService, "port", "prot", 1))
	var invalid *InvalidConfigError
	if err := Run(t.Context(), o); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "prot") {
		t.Errorf("invalid configuration: %v", err)
	}
	if _, err := os.Stat(o.DataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an invalid configuration made the data folder: %v", err)
	}

	o = options(t, oneService)
	lock, err := LockDataDir(o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	var held *HeldError
	if err := Run(t.Context(), o); !errors.As(err, &held) {
		t.Errorf("a folder that is held: %v", err)
	}
	if _, err := Cleanup(t.Context(), o); !errors.As(err, &held) {
		t.Errorf("cleanup of a folder that is held: %v", err)
	}
	lock.Release()

	if err := os.WriteFile(o.Socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "it is no socket") {
		t.Errorf("a file in the place of the socket: %v", err)
	}
	if _, err := os.Stat(filepath.Join(o.DataDir, sessionName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an agent that could not start left its state: %v", err)
	}
}

func TestKeepFamilies(t *testing.T) {
	four, other, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1")
	for _, c := range []struct{ before, now, want []netip.Addr }{
		{nil, nil, nil},
		{nil, []netip.Addr{four, six}, []netip.Addr{four, six}},
		{[]netip.Addr{four, six}, nil, []netip.Addr{four, six}},
		{[]netip.Addr{four, six}, []netip.Addr{other}, []netip.Addr{other, six}},
		{[]netip.Addr{four}, []netip.Addr{six}, []netip.Addr{four, six}},
	} {
		if got := keepFamilies(c.before, c.now); !slices.Equal(got, c.want) {
			t.Errorf("before %v, now %v: %v, want %v", c.before, c.now, got, c.want)
		}
	}
}
