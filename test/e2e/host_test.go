package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

// patience is how long a test waits for what must come about; what it asserts
// is that it does, not how fast.
const patience = 30 * time.Second

// host is a folder with everything that an agent needs.
type host struct {
	t                        *testing.T
	dir                      string
	configDir, data, plugins string
	socket                   string
	client                   *admin.Client
	env                      []string
	sysProc                  *syscall.SysProcAttr
	wrap                     []string // a command that runs the agent
	agent                    *process
}

// newHost makes a host with the plugins that it names, such as "userspace".
func newHost(t *testing.T, plugins ...string) *host {
	t.Helper()
	// A short name: the path of a socket may have 107 bytes.
	dir, err := os.MkdirTemp("", "pb-*")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{
		t: t, dir: dir,
		configDir: filepath.Join(dir, "etc"),
		data:      filepath.Join(dir, "data"),
		plugins:   filepath.Join(dir, "plugins"),
		socket:    filepath.Join(dir, "sock"),
	}
	for _, d := range []string{h.configDir, h.plugins} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.client = admin.NewClient(h.socket)
	t.Cleanup(func() {
		h.client.Close()
		h.endStrays()
		if t.Failed() && h.agent != nil {
			t.Logf("the agent's log:\n%s", tail(h.agent.log(), 60))
		}
		_ = os.RemoveAll(dir)
	})
	for _, name := range plugins {
		h.install(name, name, pluginVersions[name])
	}
	return h
}

// pluginVersions are those that the plugins say they are.
var pluginVersions = map[string]string{"null": "1.0.0", "faulty": "1.0.0", "userspace": userspaceVersion()}

func userspaceVersion() string {
	text, err := os.ReadFile("../../plugins/userspace/VERSION")
	if err != nil {
		return "0.1.0"
	}
	return strings.TrimSpace(string(text))
}

// install puts a built plugin into the plugin folder, under a name.
func (h *host) install(program, name, version string) string {
	h.t.Helper()
	path := filepath.Join(h.plugins, fmt.Sprintf("patchbay-dataplane-%s_v%s", name, version))
	source, err := os.Open(built.plugins[program])
	if err != nil {
		h.t.Fatal(err)
	}
	defer source.Close()
	target, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		h.t.Fatal(err)
	}
	_, err = io.Copy(target, source)
	if err := errors.Join(err, target.Close()); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// faults sets what the faulty plugin at that path does wrong from now on.
func (h *host) faults(path string, words ...string) {
	h.t.Helper()
	h.put(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".faults"), strings.Join(words, "\n"))
}

// put replaces a file in one step.
func (h *host) put(path, text string) {
	h.t.Helper()
	if err := os.WriteFile(path+".tmp", []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		h.t.Fatal(err)
	}
}

// config writes a configuration file.
func (h *host) config(name, text string) string {
	h.t.Helper()
	path := filepath.Join(h.configDir, name)
	h.put(path, text)
	return path
}

// agentArgs are the arguments of the agent.
func (h *host) agentArgs() []string {
	return []string{"agent", "-config", h.configDir, "-data-dir", h.data, "-plugin-dir", h.plugins, "-socket", h.socket}
}

// start starts the agent and waits until it answers.
func (h *host) start(more ...string) {
	h.t.Helper()
	h.agent = h.run(append(h.agentArgs(), more...)...)
	h.eventually("the agent answers", func() error {
		if !h.agent.alive() {
			h.t.Fatalf("the agent ended with %d:\n%s", h.agent.code(), h.agent.log())
		}
		_, err := h.client.Version(h.t.Context())
		return err
	})
}

// run starts patchbay with arguments.
func (h *host) run(args ...string) *process {
	h.t.Helper()
	command := append(slices.Clone(h.wrap), built.patchbay)
	return startProcess(h.t, h.env, h.sysProc, append(command, args...)...)
}

// endStrays ends the processes that write into the host's folder: plugins that
// no agent has ended, which is a failure of the test.
func (h *host) endStrays() {
	outputs, _ := filepath.Glob("/proc/[0-9]*/fd/1")
	for _, path := range outputs {
		target, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(target, h.dir+"/") {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil {
			continue
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		h.t.Errorf("process %d (%s) was left running", pid, strings.Trim(string(name), "\x00"))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// stop ends the agent with SIGINT and waits.
func (h *host) stop() {
	h.t.Helper()
	h.signal(syscall.SIGINT)
	if !h.agent.wait(patience) {
		h.agent.kill()
		h.t.Errorf("the agent did not end within %s of an interrupt", patience)
	}
}

func (h *host) signal(s syscall.Signal) {
	h.t.Helper()
	if err := h.agent.cmd.Process.Signal(s); err != nil {
		h.t.Fatalf("signalling the agent: %v", err)
	}
}

// eventually waits for a condition, and fails with its last error.
func (h *host) eventually(what string, condition func() error) {
	h.t.Helper()
	eventually(h.t, what, condition)
}

func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	var err error
	for {
		if err = condition(); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s until %s: %v", patience, what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// service gives one service as the agent shows it.
func (h *host) service(id string) (admin.Service, error) {
	detail, err := h.client.Service(h.t.Context(), id)
	return detail.Service, err
}

// awaitService waits until a service is in a state, with a reason that
// contains some text.
func (h *host) awaitService(id string, state admin.ServiceState, reason string) admin.Service {
	h.t.Helper()
	var s admin.Service
	h.eventually(fmt.Sprintf("service %s is %s", id, state), func() (err error) {
		if s, err = h.service(id); err != nil {
			return err
		}
		if s.State != state || !strings.Contains(s.Reason, reason) {
			return fmt.Errorf("it is %s (%s), want %s (%s)", s.State, s.Reason, state, reason)
		}
		return nil
	})
	return s
}

// awaitPlugin waits until a plugin is as the function wants it.
func (h *host) awaitPlugin(name, what string, want func(admin.Plugin) bool) admin.Plugin {
	h.t.Helper()
	var p admin.Plugin
	h.eventually("plugin "+name+" is "+what, func() error {
		list, err := h.client.Plugins(h.t.Context())
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list.Plugins, func(p admin.Plugin) bool { return p.Name == name })
		if i < 0 {
			return errors.New("it is not listed")
		}
		if p = list.Plugins[i]; !want(p) {
			return fmt.Errorf("it is %+v", p)
		}
		return nil
	})
	return p
}

func running(p admin.Plugin) bool { return p.State == "running" }

// reload makes the agent load its files anew, which must be without mistakes.
func (h *host) reload() admin.Reload {
	h.t.Helper()
	r, err := h.client.Reload(h.t.Context())
	if err != nil {
		h.t.Fatalf("reload: %v", err)
	}
	if !r.OK {
		h.t.Fatalf("reload refused:\n%s", r.Text)
	}
	return r
}

// cli runs a command of the command line and gives its output and exit code.
func (h *host) cli(args ...string) (stdout, stderr string, code int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	command := exec.CommandContext(ctx, built.patchbay, args...)
	command.Env = append(os.Environ(), "PATCHBAY_SOCKET="+h.socket)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("patchbay %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), command.ProcessState.ExitCode()
}

// metric gives the value of a metric, by its name and labels as the text
// format has them; false when it isn't there.
func (h *host) metric(series string) (float64, bool) {
	h.t.Helper()
	text, err := h.get("/metrics")
	if err != nil {
		h.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			var value float64
			if _, err := fmt.Sscan(rest, &value); err != nil {
				h.t.Fatalf("metric %s: %v", series, err)
			}
			return value, true
		}
	}
	return 0, false
}

// process is a program that runs, with its output.
type process struct {
	cmd    *exec.Cmd
	output lockedBuffer
	done   chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// startProcess starts a program that ends with the test.
func startProcess(t *testing.T, env []string, sys *syscall.SysProcAttr, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = sys
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", args[0], err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		// Asked first: a killed agent leaves its plugins running.
		if p.alive() && (p.cmd.Process.Signal(syscall.SIGINT) != nil || !p.wait(patience)) {
			t.Errorf("%s did not end within %s of an interrupt", args[0], patience)
			p.kill()
		}
		for _, bad := range []string{"DATA RACE", "panic:", "fatal error:"} {
			if i := strings.Index(p.log(), bad); i >= 0 {
				t.Errorf("%s:\n%s", bad, p.log()[i:])
			}
		}
	})
	return p
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) wait(limit time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(limit):
		return false
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// code is the exit code of a process that has ended.
func (p *process) code() int { return p.cmd.ProcessState.ExitCode() }

func (p *process) log() string { return p.output.String() }

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// decode reads JSON that a command printed.
func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

// skipOrFail skips a test that can't run here, and fails it in CI, where
// everything must run.
func skipOrFail(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}
