package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-proxy/patchbay/test/consultest"
)

// insideEnv makes the test's own binary the program that brings up loopback in
// a fresh network namespace and becomes the demo there.
const insideEnv = "PATCHBAY_TEST_INSIDE"

var built struct {
	bin string // folder with demo, patchbay and plugins/
	err error
}

func TestMain(m *testing.M) {
	if demo := os.Getenv(insideEnv); demo != "" {
		fmt.Fprintln(os.Stderr, inside(demo))
		os.Exit(3)
	}
	dir, err := os.MkdirTemp("", "demo-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	built.bin, built.err = dir, build(dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// inside gives an error, or doesn't return.
func inside(demo string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bringing up loopback: %w", err)
	}
	return syscall.Exec(demo, append([]string{demo}, os.Args[1:]...), os.Environ())
}

// build makes what `make demo` makes, in a folder of its own.
func build(dir string) error {
	cmd := exec.Command("make", "build", "BIN="+dir)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make build: %w\n%s", err, out)
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "demo"), ".").CombinedOutput(); err != nil {
		return fmt.Errorf("building the demo: %w\n%s", err, out)
	}
	return nil
}

// running is a demo that runs. Its output may be read at any time.
type running struct {
	t   *testing.T
	cmd *exec.Cmd
	tmp string
	end chan struct{}

	mu             sync.Mutex
	stdout, stderr bytes.Buffer
}

// prepare makes a demo that can be started: as root in a network namespace of
// its own, so that its ports are free whatever else runs; else on the machine's
// loopback.
func prepare(t *testing.T, args ...string) *running {
	t.Helper()
	if built.err != nil {
		t.Fatal(built.err)
	}
	// Short, for the sockets in it.
	tmp, err := os.MkdirTemp("", "pd")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, tmp: tmp, end: make(chan struct{})}
	args = append([]string{"-config", "../../config.hcl", "-bin", built.bin}, args...)
	demo := filepath.Join(built.bin, "demo")
	if os.Geteuid() == 0 {
		r.cmd = exec.Command("/proc/self/exe", args...)
		r.cmd.Env = append(os.Environ(), insideEnv+"="+demo)
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	} else {
		r.cmd = exec.Command(demo, args...)
		r.cmd.Env = os.Environ()
	}
	r.cmd.Env = append(r.cmd.Env, "TMPDIR="+tmp, "DEMO_ONCE=")
	r.cmd.Stdout, r.cmd.Stderr = &part{r, &r.stdout}, &part{r, &r.stderr}
	return r
}

func (r *running) start() {
	r.t.Helper()
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait() // its exit code is what is looked at
		close(r.end)
	}()
	r.t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // it has ended, unless the test has failed
		os.RemoveAll(r.tmp)
	})
}

func start(t *testing.T, args ...string) *running {
	t.Helper()
	r := prepare(t, args...)
	r.start()
	return r
}

// part writes to a buffer of r under its lock.
type part struct {
	r  *running
	to *bytes.Buffer
}

func (p *part) Write(b []byte) (int, error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	return p.to.Write(b)
}

func (r *running) said() (stdout, stderr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stdout.String(), r.stderr.String()
}

// wait gives the exit code.
func (r *running) wait() int {
	r.t.Helper()
	select {
	case <-r.end:
		return r.cmd.ProcessState.ExitCode()
	case <-time.After(150 * time.Second):
		out, errs := r.said()
		r.t.Fatalf("the demo goes on and on; it said:\n%s\n%s", out, errs)
		return -1
	}
}

// until waits until the output holds a text.
func (r *running) until(text string) {
	r.t.Helper()
	for limit := time.Now().Add(90 * time.Second); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		if out, _ := r.said(); strings.Contains(out, text) {
			return
		}
		select {
		case <-r.end:
			out, errs := r.said()
			r.t.Fatalf("the demo ended without saying %q; it said:\n%s\n%s", text, out, errs)
		default:
		}
	}
	out, errs := r.said()
	r.t.Fatalf("the demo does not say %q; it said:\n%s\n%s", text, out, errs)
}

// leavesNothing checks that no file and no process is left.
func (r *running) leavesNothing() {
	r.t.Helper()
	entries, err := os.ReadDir(r.tmp)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		r.t.Errorf("it left %s", filepath.Join(r.tmp, e.Name()))
	}
	for pid, command := range processes(r.t) {
		r.t.Errorf("it left the process %d: %s", pid, command)
	}
}

// processes gives those that run a program of the test's folder.
func processes(t *testing.T) map[int]string {
	t.Helper()
	found := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink("/proc/" + e.Name() + "/exe")
		if err == nil && strings.HasPrefix(exe, built.bin+"/") {
			found[pid] = exe
		}
	}
	return found
}

func TestOnce(t *testing.T) {
	before, err := os.ReadFile("../../config.hcl")
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, "-once")
	if code := r.wait(); code != 0 {
		out, errs := r.said()
		t.Fatalf("it ended with %d and said:\n%s\n%s", code, out, errs)
	}
	out, _ := r.said()
	for _, want := range []string{
		"$ patchbay services", "SERVICE", "userspace", "curl http://127.",
		"web-1 goes away", "web-1 comes back", "web-2 #", "web-3 #", "Done: every request was answered.",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("its output lacks %q:\n%s", want, out)
		}
	}
	r.leavesNothing()
	after, err := os.ReadFile("../../config.hcl")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("config.hcl was changed")
	}
}

// TestConsul: the same with a real Consul.
func TestConsul(t *testing.T) {
	// Its process is looked for by where its program is.
	program := filepath.Join(built.bin, "consul")
	if err := os.Link(consultest.Program(t), program); err != nil {
		data, err := os.ReadFile(consultest.Program(t))
		if err == nil {
			err = os.WriteFile(program, data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := start(t, "-once", "-consul", program)
	if code := r.wait(); code != 0 {
		out, errs := r.said()
		t.Fatalf("it ended with %d and said:\n%s\n%s", code, out, errs)
	}
	out, _ := r.said()
	for _, want := range []string{
		"web-1 goes away", "web-1 comes back", "web-1 is put into maintenance in Consul", "Consul is killed", "Source consul: stale since",
		"traffic goes on without Consul", "Consul is started again", "Done: every request was answered.",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("its output lacks %q:\n%s", want, out)
		}
	}
	r.leavesNothing()
	r = start(t, "-consul", program)
	r.until("curl http://")
	if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := r.wait(); code != 0 {
		_, errs := r.said()
		t.Errorf("it ended with %d and said %s", code, errs)
	}
	r.leavesNothing()
}

func TestSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			r := start(t)
			r.until("curl http://")
			if err := r.cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			if code := r.wait(); code != 0 {
				_, errs := r.said()
				t.Errorf("it ended with %d and said %s", code, errs)
			}
			r.leavesNothing()
		})
	}
	// The first moments too: the agent is about to start.
	t.Run("early", func(t *testing.T) {
		r := start(t)
		r.until("Agent: ")
		if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := r.wait(); code != 0 {
			_, errs := r.said()
			t.Errorf("it ended with %d and said %s", code, errs)
		}
		r.leavesNothing()
	})
}

// TestKilled: who is killed can't clean up, but its processes must not stay.
func TestKilled(t *testing.T) {
	r := start(t)
	r.until("curl http://")
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.wait()
	for limit := time.Now().Add(30 * time.Second); len(processes(t)) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("30 s after the demo was killed there still are %v", processes(t))
		}
	}
}

func TestClosedOutput(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	defer write.Close()
	r := prepare(t, "-once")
	r.cmd.Stdout = write
	r.start()
	code := r.wait()
	if _, errs := r.said(); code != 1 || !strings.Contains(errs, "standard output") {
		t.Errorf("with its output closed it ended with %d and said %q", code, errs)
	}
	r.leavesNothing()
}

func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := &backend{name: "web-1", address: l.Addr().String()}
	err = b.up()
	if err == nil || !strings.Contains(err.Error(), b.address) || !strings.Contains(err.Error(), "taken by another program") {
		t.Errorf("up on a taken port gives %v", err)
	}
}

func TestWrongUse(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"unknown flag", []string{"-nonsense"}, 2, "-nonsense"},
		{"nothing built", []string{"-once", "-bin", "nowhere"}, 1, "make build"},
		{"no configuration", []string{"-once", "-config", "nowhere.hcl"}, 1, "nowhere.hcl"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, c.args...)
			code := r.wait()
			if _, errs := r.said(); code != c.code || !strings.Contains(errs, c.says) {
				t.Errorf("it ended with %d and said %q, want %d and %q", code, errs, c.code, c.says)
			}
			r.leavesNothing()
		})
	}
}
