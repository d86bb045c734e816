package pluginhost

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
)

// built is the test plugin; its copies behave as their names say.
var built string

func TestMain(m *testing.M) {
	if os.Getenv("PLUGINHOST_TEST_CORE") != "" {
		runCore()
		return
	}
	dir, err := os.MkdirTemp("", "pluginhost-test-")
	if err != nil {
		panic(err)
	}
	built = filepath.Join(dir, "plugin")
	if out, err := exec.Command("go", "build", "-o", built, "./testdata/plugin").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("building the test plugin: %v\n%s", err, out))
	}
	code := m.Run()
	if err := errors.Join(os.RemoveAll(dir), goleak.Find()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// bench is the folders of one test.
type bench struct {
	t                             *testing.T
	plugins, state, logs, runtime string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	// The path of a socket is short: not below t.TempDir.
	dir, err := os.MkdirTemp("", "ph-")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{
		t: t, plugins: filepath.Join(dir, "plugins"), state: filepath.Join(dir, "state"),
		logs: filepath.Join(dir, "log"), runtime: filepath.Join(dir, "run"),
	}
	for _, sub := range []string{b.plugins, b.runtime} {
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		b.nothingLeft()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return b
}

// install puts a plugin there and gives its path. Copies of other versions have
// other sums, as real ones do.
func (b *bench) install(name, version string) string {
	b.t.Helper()
	path := filepath.Join(b.plugins, filePrefix+name+"_v"+version)
	copyFile(b.t, built, path, version)
	return path
}

func copyFile(t *testing.T, from, to, suffix string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, append(data, suffix...), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o755); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

// nothingLeft looks for processes whose output or program is ours, and for
// folders of sockets.
func (b *bench) nothingLeft() {
	b.t.Helper()
	entries, err := os.ReadDir(b.runtime)
	if err != nil || len(entries) > 0 {
		b.t.Errorf("left in the runtime folder: %v %v", entries, err)
	}
	waitUntil(b.t, "no process is left", func() error {
		if left := processesUsing(filepath.Dir(b.plugins)); len(left) > 0 {
			return fmt.Errorf("left running: %v", left)
		}
		return nil
	})
}

// processesUsing gives the processes that run a program below dir, write their
// output there, or have it in their environment.
func processesUsing(dir string) []string {
	var out []string
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		environment, _ := os.ReadFile(filepath.Join(p, "environ"))
		if strings.Contains(string(environment), "="+dir+"/") {
			out = append(out, filepath.Base(p)+" by its environment")
			continue
		}
		for _, link := range []string{"exe", "fd/1", "fd/2", "fd/3"} {
			target, err := os.Readlink(filepath.Join(p, link))
			if err == nil && strings.HasPrefix(target, dir+"/") && p != fmt.Sprintf("/proc/%d", os.Getpid()) {
				out = append(out, filepath.Base(p)+" "+target)
				break
			}
		}
	}
	return out
}

// zombies gives the dead children of this process that nobody has reaped.
func zombies() []string {
	var out []string
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", os.Getpid(), os.Getpid()))
	for _, pid := range strings.Fields(string(children)) {
		stat, _ := os.ReadFile("/proc/" + pid + "/stat")
		if i := strings.LastIndexByte(string(stat), ')'); i > 0 && strings.HasPrefix(string(stat[i:]), ") Z") {
			out = append(out, pid)
		}
	}
	return out
}

// waitUntil waits for a condition, with a limit that only a broken machine
// meets.
func waitUntil(t *testing.T, what string, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// rig is a supervisor that runs.
type rig struct {
	*Supervisor
	t     *testing.T
	ready chan *Process
	gone  chan error
	stop  func()
}

// run starts a supervisor with the plugin's OnReady, nil for one that
// configures nothing.
func (b *bench) run(name string, change func(*Options), onReady func(context.Context, *Process) error) *rig {
	b.t.Helper()
	r := &rig{t: b.t, ready: make(chan *Process, 100), gone: make(chan error, 100)}
	options := Options{
		Name: name, Dir: b.plugins, StateDir: b.state, LogDir: b.logs, RuntimeDir: b.runtime,
		Logger: testLogger(),
		OnReady: func(ctx context.Context, p *Process) error {
			if onReady != nil {
				if err := onReady(ctx, p); err != nil {
					return err
				}
			}
			r.ready <- p
			return nil
		},
		OnGone: func(_ *Process, err error) { r.gone <- err },
	}
	if change != nil {
		change(&options)
	}
	r.Supervisor = New(options)
	r.rules.backoffMin, r.rules.backoffMax, r.rules.heldMin = time.Millisecond, 20*time.Millisecond, 5*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = onceStop(b.t, cancel, done)
	b.t.Cleanup(r.stop)
	return r
}

func (r *rig) wantReady() *Process {
	r.t.Helper()
	select {
	case p := <-r.ready:
		return p
	case <-time.After(30 * time.Second):
		r.t.Fatalf("the plugin did not get ready: %+v", r.Status())
		return nil
	}
}

func (r *rig) wantGone() error {
	r.t.Helper()
	select {
	case err := <-r.gone:
		return err
	case <-time.After(30 * time.Second):
		r.t.Fatalf("the plugin did not go: %+v", r.Status())
		return nil
	}
}

func (r *rig) wantState(want State) Status {
	r.t.Helper()
	waitUntil(r.t, "the state is "+string(want), func() error {
		if s := r.Status(); s.State != want {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
	return r.Status()
}

func testLogger() hclog.Logger {
	options := &hclog.LoggerOptions{Level: hclog.Debug, Output: io.Discard}
	if testing.Verbose() {
		options.Output = os.Stderr
	}
	return hclog.New(options)
}

// onceStop gives a function that ends a supervisor.
func onceStop(t *testing.T, cancel context.CancelFunc, done <-chan error) func() {
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}
