package pluginhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-proxy/patchbay/core/state"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// configure is an OnReady that does what the agent does.
func configure(ctx context.Context, p *Process) error {
	_, err := p.Client().Configure(ctx, dataplane.HostConfig{ConfigJSON: json.RawMessage("{}")})
	return err
}

func fullChange(revision uint64, ids ...string) dataplane.Change {
	c := dataplane.Change{Session: 1, Revision: revision, Full: true}
	for _, id := range ids {
		c.Upserts = append(c.Upserts, &dataplane.Service{
			ID: id, OnEmpty: dataplane.EmptyReject, OnDrainEnd: dataplane.DrainEndKeep, Masquerade: dataplane.MasqueradeAuto,
		})
	}
	return c
}

func apply(t *testing.T, p *Process, change dataplane.Change) (dataplane.Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return p.Client().Apply(ctx, change)
}

func TestRunsAndStops(t *testing.T) {
	b := newBench(t)
	b.install("good", "1.0.0")
	path := b.install("good", "1.10.0")
	b.install("good", "1.9.0")
	b.install("other", "7.0.0")
	t.Setenv("SECRET", "not for plugins")
	r := b.run("good", nil, configure)
	p := r.wantReady()
	if result, err := apply(t, p, fullChange(3, "a", "b")); err != nil || result.Revision != 3 || len(result.Failed) != 0 {
		t.Errorf("apply: %+v, %v", result, err)
	}
	status := r.wantState(StateRunning)
	if status.Version != "1.10.0" || status.Path != path || status.PID != p.PID() || len(status.SHA256) != 64 || status.Starts != 1 {
		t.Errorf("status %+v", status)
	}
	if d := p.Description(); d.Name != "good" || d.Version != "1.10.0" {
		t.Errorf("description %+v", d)
	}
	checkSurroundings(t, b, p)
	r.stop()
	if err := r.wantGone(); err != nil {
		t.Errorf("gone: %v", err)
	}
	if got := r.Status(); got.State != StateStopped || got.PID != 0 || got.Crashes != 0 {
		t.Errorf("status %+v", got)
	}
	if _, err := os.Stat(filepath.Join(b.state, processFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the process is still noted: %v", err)
	}
}

// checkSurroundings looks at what the plugin was given.
func checkSurroundings(t *testing.T, b *bench, p *Process) {
	t.Helper()
	_, detail, err := p.Client().Inspect(context.Background(), "x")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Env, Args []string
		FDs       map[string]string
		SID, PID  int
		Dir       string
	}
	if err := json.Unmarshal(detail, &got); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range got.Env {
		name, _, _ := strings.Cut(e, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{
		"LANG", "PATCHBAY_HOST_UID", "PATCHBAY_LOG_LEVEL", "PATCHBAY_PLUGIN", "PATH",
		"PLUGIN_MAX_PORT", "PLUGIN_MIN_PORT", "PLUGIN_PROTOCOL_VERSIONS", "PLUGIN_UNIX_SOCKET_DIR",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if got.SID != got.PID || got.PID != p.PID() || got.Dir != "/" {
		t.Errorf("session %d, pid %d (%d), folder %s", got.SID, got.PID, p.PID(), got.Dir)
	}
	if diff := cmp.Diff([]string{"patchbay-dataplane-good_v1.10.0"}, got.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	wantFDs := map[string]string{
		"0": "/dev/null", "1": "/memfd:good.stdout (deleted)", "2": filepath.Join(b.logs, "good.stderr"),
	}
	ours := map[string]bool{}
	for _, target := range descriptors(t) {
		ours[target] = target != "" && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/sys/")
	}
	for fd, target := range got.FDs {
		if want, ok := wantFDs[fd]; ok && target != want || !ok && ours[target] {
			t.Errorf("descriptor %s is %s", fd, target)
		}
	}
}

// descriptors gives what this process has open.
func descriptors(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, e := range entries {
		target, _ := os.Readlink("/proc/self/fd/" + e.Name())
		targets = append(targets, target)
	}
	return targets
}

func TestPluginThatDoesNotStart(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, want string }{
		{"crash", `it exited with status 3: the plugin did not tell where it listens: it ended before its first line`},
		{"crash", `no such table: I give up`},
		{"panic", `panic: out of ideas`},
		{"garbage", `plugin garbage: the plugin did not tell where it listens: its first line is not that of a plugin: hello, I am a plugin`},
		{"endless", `its first line is not that of a plugin: no end of line`},
		{"protocol", `it speaks version 9 of the contract, and this core 1`},
		{"elsewhere", `it listens at unix /tmp/elsewhere.sock, not in the folder`},
		{"othername", `the file's name says that it is the dataplane "othername", the plugin that it is "somebody-else"`},
		{"otherversion", `the file's name says version 1.0.0, the plugin "9.9.9"`},
		{"hangdescribe", `deadline exceeded`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.install(test.name, "1.0.0")
			binaries, refusals, err := Find(b.plugins, test.name)
			if err != nil || len(refusals) > 0 || len(binaries) != 1 {
				t.Fatalf("found %v %v %v", binaries, refusals, err)
			}
			err = Probe(context.Background(), binaries[0], ProbeOptions{RuntimeDir: b.runtime, Logger: testLogger()},
				func(context.Context, *Process) error { t.Error("it got ready"); return nil })
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v\nwant it to contain %s", err, test.want)
			}
			b.nothingLeft()
		})
	}
}

func TestFileThatIsNoProgram(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"text", "I am a plugin, believe me", "exec format error"},
		{"interpreter", "#!/no/such/shell\n", "its interpreter or loader is not there"},
		{"empty", "", "patchbay-dataplane-good_v1.0.0 is no program: it has 0 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			path := b.install("good", "1.0.0")
			must(t, os.WriteFile(path, []byte(test.text), 0o755))
			binaries, _, err := Find(b.plugins, "good")
			must(t, err)
			err = Probe(context.Background(), binaries[0], ProbeOptions{RuntimeDir: b.runtime}, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}

func TestSilentPluginIsGivenUp(t *testing.T) {
	b := newBench(t)
	b.install("silent", "1.0.0")
	binaries, _, err := Find(b.plugins, "silent")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	err = Probe(ctx, binaries[0], ProbeOptions{RuntimeDir: b.runtime}, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestProbe(t *testing.T) {
	b := newBench(t)
	b.install("good", "2.0.0")
	binaries, _, err := Find(b.plugins, "good")
	if err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	err = Probe(context.Background(), binaries[0], ProbeOptions{RuntimeDir: b.runtime}, func(ctx context.Context, p *Process) error {
		if p.Description().Version != "2.0.0" {
			t.Errorf("description %+v", p.Description())
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Errorf("error %v", err)
	}
	err = Probe(context.Background(), binaries[0], ProbeOptions{RuntimeDir: b.runtime, SHA256: strings.Repeat("ab", 32)}, nil)
	if err == nil || !strings.Contains(err.Error(), "and the configuration wants abab") {
		t.Errorf("error %v", err)
	}
}

func TestMissingAndRefused(t *testing.T) {
	b := newBench(t)
	r := b.run("good", nil, nil)
	if got := r.wantState(StateMissing); !strings.Contains(got.LastError, "there is none") || got.NextAttempt.IsZero() {
		t.Errorf("status %+v", got)
	}
	path := b.install("good", "1.0.0")
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	r.Restart("there is a file now")
	waitUntil(t, "the file is refused", func() error {
		got := r.Status()
		if len(got.Refusals) != 1 || got.Refusals[0].Path != path || !strings.Contains(got.LastError, "its group or others may write the file") {
			return fmt.Errorf("status %+v", got)
		}
		return nil
	})
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	r.wantReady() // by itself
}

func TestReconfigureChoosesByConstraint(t *testing.T) {
	b := newBench(t)
	b.install("good", "1.2.0")
	b.install("good", "2.0.0")
	r := b.run("good", func(o *Options) { o.Constraint = "~> 1.0" }, nil)
	if p := r.wantReady(); p.Binary().Version.String() != "1.2.0" {
		t.Errorf("version %v", p.Binary().Version)
	}
	if r.Reconfigure(Settings{Constraint: "~> 1.1"}) {
		t.Error("a restart though the same file is to run")
	}
	if !r.Reconfigure(Settings{}) {
		t.Error("no restart though a higher version may run")
	}
	if err := r.wantGone(); err != nil {
		t.Errorf("gone: %v", err)
	}
	if p := r.wantReady(); p.Binary().Version.String() != "2.0.0" {
		t.Errorf("version %v", p.Binary().Version)
	}
	if got := r.Status(); got.Crashes != 0 || got.Starts != 2 {
		t.Errorf("status %+v", got)
	}
}

func TestCrashingVersionIsHeld(t *testing.T) {
	b := newBench(t)
	b.install("crash", "1.0.0")
	r := b.run("crash", nil, nil)
	got := r.wantState(StateHeld)
	if got.Crashes < 3 || !strings.Contains(got.LastError, "I give up") || got.RolledBackFrom != "" {
		t.Errorf("status %+v", got)
	}
	// It is tried again, slowly, and at once when an operator says so.
	waitUntil(t, "it is tried again", func() error {
		if r.Status().Starts < got.Starts+2 {
			return errors.New("not yet")
		}
		return nil
	})
}

func TestRollsBackToWhatWorked(t *testing.T) {
	b := newBench(t)
	b.install("picky", "1.0.0")
	r := b.run("picky", func(o *Options) { o.Constraint = "< 2" }, configure)
	r.rulesForTest(func(rules *rules) { rules.young = 200 * time.Millisecond })
	r.wantReady().Acknowledged()
	waitUntil(t, "the version has proved itself", func() error {
		if got := r.Status(); got.LastGood != "1.0.0" {
			return fmt.Errorf("status %+v", got)
		}
		return nil
	})
	b.install("picky", "2.0.0")
	if !r.Reconfigure(Settings{Constraint: ">= 2"}) {
		t.Error("no restart")
	}
	if p := r.wantReady(); p.Binary().Version.String() != "1.0.0" {
		t.Errorf("version %v", p.Binary().Version)
	}
	got := r.wantState(StateRunning)
	if got.RolledBackFrom != "2.0.0" || got.Version != "1.0.0" || got.Crashes != 3 {
		t.Errorf("status %+v", got)
	}
	r.stop()

	// The next core knows what worked.
	again := b.run("picky", nil, configure)
	if p := again.wantReady(); p.Binary().Version.String() != "1.0.0" {
		t.Errorf("version %v after a restart of the core", p.Binary().Version)
	}
}

// rulesForTest makes a supervisor start again by other rules.
func (r *rig) rulesForTest(change func(*rules)) {
	r.t.Helper()
	r.stop()
	for range len(r.ready) {
		<-r.ready
	}
	for range len(r.gone) {
		<-r.gone
	}
	supervisor := New(r.options)
	supervisor.rules = r.rules
	change(&supervisor.rules)
	r.Supervisor = supervisor
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- supervisor.Run(ctx) }()
	r.stop = onceStop(r.t, cancel, done)
	r.t.Cleanup(r.stop)
}

func TestNotConfigurable(t *testing.T) {
	b := newBench(t)
	b.install("unconfigurable", "1.0.0")
	r := b.run("unconfigurable", nil, configure)
	if got := r.wantState(StateHeld); !strings.Contains(got.LastError, "there is no such device") {
		t.Errorf("status %+v", got)
	}
}

func TestProcessDiesWhileBeingConfigured(t *testing.T) {
	b := newBench(t)
	b.install("later", "1.0.0")
	r := b.run("later", nil, func(ctx context.Context, _ *Process) error {
		<-ctx.Done() // which must come with the end of the process
		return ctx.Err()
	})
	if got := r.wantState(StateHeld); !strings.Contains(got.LastError, "exited with status 5, while it was being configured") {
		t.Errorf("status %+v", got)
	}
}

func TestHangInApply(t *testing.T) {
	b := newBench(t)
	b.install("hangapply", "1.0.0")
	r := b.run("hangapply", nil, configure)
	p := r.wantReady()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := p.Client().Apply(ctx, fullChange(1, "a")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("apply: %v", err)
	}
	hung := errors.New("it hangs")
	p.Fail(hung)
	if err := r.wantGone(); !errors.Is(err, hung) {
		t.Errorf("gone: %v", err)
	}
	<-p.Done()
	if q := r.wantReady(); q.PID() == p.PID() {
		t.Error("the same process")
	}
	if got := r.Status(); got.Crashes != 1 {
		t.Errorf("status %+v", got)
	}
}

func TestDiesInTheMiddleOfAnUpdate(t *testing.T) {
	b := newBench(t)
	b.install("dieapply", "1.0.0")
	r := b.run("dieapply", nil, configure)
	p := r.wantReady()
	if _, err := apply(t, p, fullChange(1, "a")); err != nil {
		t.Errorf("first apply: %v", err)
	}
	if _, err := apply(t, p, fullChange(2, "b")); err == nil {
		t.Error("no error from a plugin that died")
	}
	if err := r.wantGone(); err == nil || !strings.Contains(err.Error(), "exited with status 7") {
		t.Errorf("gone: %v", err)
	}
	r.wantReady()
}

func TestOneServiceOfMany(t *testing.T) {
	b := newBench(t)
	b.install("failone", "1.0.0")
	r := b.run("failone", nil, configure)
	result, err := apply(t, r.wantReady(), fullChange(1, "a", "b", "c"))
	if diff := cmp.Diff(map[string]string{"b": "b is not to my taste"}, result.Failed); err != nil || diff != "" {
		t.Errorf("apply: %v, failed (-want +got):\n%s", err, diff)
	}
}

func TestKilledManyTimes(t *testing.T) {
	b := newBench(t)
	b.install("good", "1.0.0")
	r := b.run("good", nil, configure)
	r.rulesForTest(func(rules *rules) { rules.allowed = 1000 })
	r.wantState(StateRunning)
	before := len(descriptors(t))
	for range 20 {
		p := r.wantReady()
		if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := r.wantGone(); err == nil || !strings.Contains(err.Error(), "signal 9") {
			t.Errorf("gone: %v", err)
		}
		<-p.Done()
	}
	r.wantReady()
	r.wantState(StateRunning)
	waitUntil(t, "there are no more descriptors than before", func() error {
		if now := descriptors(t); len(now) > before {
			return fmt.Errorf("%d descriptors, before %d: %v", len(now), before, now)
		}
		return nil
	})
	if left := zombies(); len(left) > 0 {
		t.Errorf("zombies %v", left)
	}
	if got := r.Status(); got.Crashes != 20 || got.Starts != 21 {
		t.Errorf("status %+v", got)
	}
}

func TestGrandchildHoldsOutput(t *testing.T) {
	b := newBench(t)
	b.install("grandchild", "1.0.0")
	r := b.run("grandchild", nil, nil)
	p := r.wantReady()
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := r.wantGone(); err == nil {
		t.Error("gone without a reason")
	}
	r.wantReady()
	r.stop() // and the bench finds no sleep that is left
}

func TestStubbornPluginIsKilled(t *testing.T) {
	t.Parallel() // it takes the time-outs of a stop
	b := newBench(t)
	b.install("stubborn", "1.0.0")
	r := b.run("stubborn", nil, nil)
	p := r.wantReady()
	r.stop()
	select {
	case <-p.Done():
	default:
		t.Error("Run returned before its process had ended")
	}
}

func TestStoppedProcessIsKilled(t *testing.T) {
	t.Parallel() // it takes the time-outs of a stop
	b := newBench(t)
	b.install("good", "1.0.0")
	r := b.run("good", nil, nil)
	p := r.wantReady()
	if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the process has stopped", func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if err != nil || !strings.Contains(string(stat), ") T ") {
			return fmt.Errorf("%s %v", stat, err)
		}
		return nil
	})
	r.stop()
}

func TestPrintsWithoutEnd(t *testing.T) {
	b := newBench(t)
	b.install("flood", "1.0.0")
	r := b.run("flood", nil, configure)
	p := r.wantReady()
	largest := int64(0)
	waitUntil(t, "lots of lines were dropped", func() error {
		for _, file := range []string{filepath.Join(b.logs, "flood.stderr"), fmt.Sprintf("/proc/%d/fd/1", p.PID())} {
			if info, err := os.Stat(file); err == nil {
				largest = max(largest, info.Size())
			}
		}
		if got := r.Status().DroppedLines; got < 200_000 {
			return fmt.Errorf("only %d", got)
		}
		return nil
	})
	// Far below what it has printed; how far depends on the machine.
	if largest > 1<<30 {
		t.Errorf("a file grew to %d MiB", largest>>20)
	}
	if _, err := apply(t, p, fullChange(1, "a")); err != nil {
		t.Errorf("apply under the flood: %v", err)
	}
}

func TestSwappedFileDoesNotRun(t *testing.T) {
	b := newBench(t)
	path := b.install("good", "1.0.0")
	binaries, _, err := Find(b.plugins, "good")
	if err != nil {
		t.Fatal(err)
	}
	image, err := open(binaries[0], "")
	if err != nil {
		t.Fatal(err)
	}
	evil := filepath.Join(b.plugins, "evil")
	if err := os.WriteFile(evil, []byte("#!/bin/sh\necho evil\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(evil, path); err != nil {
		t.Fatal(err)
	}
	p, err := launch(context.Background(), image, launchOptions{runtimeDir: b.runtime, logger: testLogger(), dropped: func(int) {}})
	if err != nil {
		t.Fatalf("what was verified did not run: %v", err)
	}
	if err := image.Close(); err != nil {
		t.Error(err)
	}
	p.kill()
}

// installScript installs a plugin that is a script, which runs the real one.
func (b *bench) installScript(name string) {
	b.t.Helper()
	real := filepath.Join(filepath.Dir(b.plugins), filePrefix+name+"_v1.0.0")
	copyFile(b.t, built, real, "")
	text := fmt.Sprintf("#!/bin/sh\nexec %s\n", real)
	if err := os.WriteFile(filepath.Join(b.plugins, filePrefix+name+"_v1.0.0"), []byte(text), 0o755); err != nil {
		b.t.Fatal(err)
	}
}

func TestScript(t *testing.T) {
	b := newBench(t)
	b.installScript("good")
	r := b.run("good", nil, configure)
	if _, err := apply(t, r.wantReady(), fullChange(1, "a")); err != nil {
		t.Error(err)
	}
}

// TestOrphanOfKilledCore kills a core with SIGKILL; the next one finds the
// plugin, ends it, and says what it had printed meanwhile.
func TestOrphanOfKilledCore(t *testing.T) {
	for _, script := range []bool{false, true} {
		t.Run(fmt.Sprintf("script=%v", script), func(t *testing.T) {
			b := newBench(t)
			if script {
				b.installScript("good")
			} else {
				b.install("good", "1.0.0")
			}
			core := b.startCore("good")
			pid := core.wantReady()
			core.kill()
			if err := syscall.Kill(pid, 0); err != nil {
				t.Fatalf("the plugin did not outlive its core: %v", err)
			}
			r := b.run("good", nil, nil)
			if p := r.wantReady(); p.PID() == pid {
				t.Error("the same process")
			}
			waitUntil(t, "the orphan has ended", func() error {
				if _, err := startTicks(pid); err == nil {
					if data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); !strings.Contains(string(data), ") Z ") {
						return errors.New("it runs")
					}
				}
				return nil
			})
		})
	}
}

// TestStrangerIsLeftAlone has notes of processes that are not what they say.
func TestStrangerIsLeftAlone(t *testing.T) {
	stranger := exec.Command("sleep", "3600")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	}()
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	ticks, err := startTicks(stranger.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	sleep, err := os.Readlink("/proc/" + strconv.Itoa(stranger.Process.Pid) + "/exe")
	if err != nil {
		t.Fatal(err)
	}
	sum := sumOf(t, sleep)
	right := record{PID: stranger.Process.Pid, StartTicks: ticks, BootID: boot, SHA256: sum}
	tests := map[string]func(*record){
		"another boot":    func(r *record) { r.BootID = "before" },
		"another start":   func(r *record) { r.StartTicks++ },
		"another program": func(r *record) { r.SHA256 = strings.Repeat("0", 64) },
		"init":            func(r *record) { r.PID = 1 },
		"no process":      func(r *record) { r.PID = 0 },
		"negative":        func(r *record) { r.PID = -right.PID },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := right
			change(&r)
			if err := state.Write(filepath.Join(dir, processFile), processKind, processVersion, r); err != nil {
				t.Fatal(err)
			}
			pid, err := endOrphan(context.Background(), dir)
			if pid != 0 || err != nil {
				t.Errorf("ended %d, %v", pid, err)
			}
			if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
				t.Fatalf("the stranger is gone: %v", err)
			}
		})
	}
	t.Run("garbled", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, processFile), []byte("junk"), 0o600); err != nil {
			t.Fatal(err)
		}
		if pid, err := endOrphan(context.Background(), dir); pid != 0 || err == nil {
			t.Errorf("ended %d, %v", pid, err)
		}
	})
	t.Run("the right one", func(t *testing.T) {
		dir := t.TempDir()
		if err := state.Write(filepath.Join(dir, processFile), processKind, processVersion, right); err != nil {
			t.Fatal(err)
		}
		if pid, err := endOrphan(context.Background(), dir); pid != right.PID || err != nil {
			t.Errorf("ended %d, %v", pid, err)
		}
	})
}
