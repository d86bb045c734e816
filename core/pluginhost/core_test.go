package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// killedCore is a core in a process of its own, to be killed.
type killedCore struct {
	t   *testing.T
	cmd *exec.Cmd
	out io.Reader
}

func (b *bench) startCore(name string) *killedCore {
	b.t.Helper()
	c := &killedCore{t: b.t, cmd: exec.Command(os.Args[0])}
	folders := []string{b.plugins, b.state, b.logs, b.runtime, name}
	c.cmd.Env = append(os.Environ(), "PLUGINHOST_TEST_CORE="+strings.Join(folders, ":"))
	var err error
	if c.out, err = c.cmd.StdoutPipe(); err != nil {
		b.t.Fatal(err)
	}
	must(b.t, c.cmd.Start())
	return c
}

// wantReady gives the number of the plugin's process.
func (c *killedCore) wantReady() (pid int) {
	c.t.Helper()
	if _, err := fmt.Fscanf(c.out, "ready %d\n", &pid); err != nil {
		c.t.Fatal(err)
	}
	return pid
}

func (c *killedCore) kill() {
	c.t.Helper()
	must(c.t, c.cmd.Process.Kill())
	if err := c.cmd.Wait(); err == nil {
		c.t.Error("the core ended well")
	}
}

// runCore is what runs in that process.
func runCore() {
	args := strings.Split(os.Getenv("PLUGINHOST_TEST_CORE"), ":")
	s := New(Options{
		Name: args[4], Dir: args[0], StateDir: args[1], LogDir: args[2], RuntimeDir: args[3],
		OnReady: func(_ context.Context, p *Process) error {
			fmt.Println("ready", p.PID())
			return nil
		},
		OnGone: func(*Process, error) {},
	})
	if err := s.Run(context.Background()); err != nil {
		panic(err)
	}
}

// TestCoreKilledAtAnyMoment kills cores while they start their plugin. That the
// last one leaves nothing is seen to by the bench.
func TestCoreKilledAtAnyMoment(t *testing.T) {
	b := newBench(t)
	b.install("family", "1.0.0")
	for range 15 {
		core := b.startCore("family")
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
		core.kill()
	}
	r := b.run("family", nil, nil)
	r.wantReady()
	r.stop()
}

// TestProcessWithoutANote has a core that could not note its process, because
// it was killed before that or its disk is full.
func TestProcessWithoutANote(t *testing.T) {
	b := newBench(t)
	b.install("good", "1.0.0")
	inTheWay := filepath.Join(b.state, processFile)
	must(t, os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700))
	core := b.startCore("good")
	pid := core.wantReady()
	core.kill()
	must(t, os.RemoveAll(inTheWay))

	other := *b // with other state, it is not the heir
	other.state += "-other"
	r := other.run("good", nil, nil)
	r.wantReady()
	r.stop()
	if s, err := readStat(pid); err != nil || s.state == "Z" {
		t.Fatalf("a core with another data folder has ended it: %+v %v", s, err)
	}

	r = b.run("good", nil, nil)
	r.wantReady()
	if s, err := readStat(pid); err == nil && s.state != "Z" {
		t.Errorf("it runs beside its successor: %+v", s)
	}
}

// TestStrayFolders has what cores leave that were killed when they had hardly
// begun, and what is nobody's business.
func TestStrayFolders(t *testing.T) {
	b := newBench(t)
	must(t, os.Mkdir(b.state, 0o700))
	mine, err := thisOwner(b.state)
	must(t, err)
	dead := mine
	dead.ticks++
	old := time.Now().Add(-time.Hour)
	nobodys := dead
	nobodys.device, nobodys.inode = 0, 0
	others := dead
	others.inode++
	earlier := mine
	earlier.boot = "before"
	tests := []struct {
		pid  int
		of   *owner // nil for one without a mark
		at   time.Time
		left bool
	}{
		{pid: os.Getpid(), at: time.Now(), left: true}, // somebody is about to mark it
		{pid: os.Getpid(), at: old},
		{pid: 9999999, at: time.Now()}, // no process can have that number
		{pid: 1, of: &mine, at: old, left: true},
		{pid: 1, of: &dead, at: time.Now()},
		{pid: 1, of: &others, at: old, left: true},
		{pid: 1, of: &nobodys, at: old},
		{pid: 1, of: &nobodys, at: time.Now(), left: true},
		{pid: 1, of: &earlier, at: time.Now()},
	}
	name := func(i int) string { return fmt.Sprintf("%s/%s%07d%03d", b.runtime, runtimePrefix, tests[i].pid, i) }
	for i, test := range tests {
		must(t, os.Mkdir(name(i), 0o700))
		if test.of != nil {
			must(t, os.Symlink(test.of.String(), filepath.Join(name(i), ownerName)))
		}
		must(t, os.Chtimes(name(i), test.at, test.at))
	}
	foreign := filepath.Join(b.runtime, "patchbay-demo")
	must(t, os.Mkdir(foreign, 0o700))
	must(t, os.Chtimes(foreign, old, old))
	if pids, err := sweep(context.Background(), b.runtime, b.state); err != nil || len(pids) > 0 {
		t.Errorf("ended %v, %v", pids, err)
	}
	for i, test := range tests {
		if _, err := os.Stat(name(i)); (err == nil) != test.left {
			t.Errorf("%d: %v", i, err)
		}
		must(t, os.RemoveAll(name(i)))
	}
	must(t, os.Remove(foreign))
}

// TestFamilyEndsWithThePlugin has children that are not in the plugin's process
// group. The bench looks for them.
func TestFamilyEndsWithThePlugin(t *testing.T) {
	t.Run("probe", func(t *testing.T) {
		b := newBench(t)
		b.install("family", "1.0.0")
		b.install("familycrash", "1.0.0")
		for _, name := range []string{"family", "familycrash"} {
			binary, err := Choose(b.plugins, name, "", "")
			must(t, err)
			err = Probe(context.Background(), binary, ProbeOptions{RuntimeDir: b.runtime}, func(context.Context, *Process) error { return nil })
			if (err != nil) != (name == "familycrash") {
				t.Errorf("%s: %v", name, err)
			}
			b.nothingLeft()
		}
	})
	t.Run("crash", func(t *testing.T) {
		b := newBench(t)
		b.install("family", "1.0.0")
		r := b.run("family", nil, nil)
		p := r.wantReady()
		must(t, syscall.Kill(p.PID(), syscall.SIGKILL))
		<-p.Done()
		for _, left := range processesUsing(b.runtime) {
			if strings.Contains(left, filepath.Base(p.runtimeDir)) {
				t.Errorf("left %s", left)
			}
		}
		r.wantReady()
		r.stop()
	})
	t.Run("killed core", func(t *testing.T) {
		b := newBench(t)
		b.install("family", "1.0.0")
		core := b.startCore("family")
		pid := core.wantReady()
		core.kill()
		must(t, syscall.Kill(pid, syscall.SIGKILL)) // its children alone are left
		r := b.run("family", nil, nil)
		r.wantReady()
		r.stop()
	})
}

// TestIdleCoreSleeps has a core whose plugin says nothing. It must not go on
// waking up to look: some quiet seconds come, even on a busy machine.
func TestIdleCoreSleeps(t *testing.T) {
	b := newBench(t)
	b.install("good", "1.0.0")
	core := b.startCore("good")
	core.wantReady()
	before, at := wakeUps(t, core.cmd.Process.Pid), time.Now()
	waitUntil(t, "it sleeps", func() error {
		if time.Since(at) < 3*time.Second {
			return errors.New("the time is not over")
		}
		now := wakeUps(t, core.cmd.Process.Pid)
		woken := now - before
		before, at = now, time.Now()
		if woken > 15 {
			return fmt.Errorf("it woke up %d times in about 3 s", woken)
		}
		return nil
	})
	core.kill()
	b.run("good", nil, nil).wantReady() // which ends what is left
}

// wakeUps counts how often the threads of a process have gone to sleep.
func wakeUps(t *testing.T, pid int) (n int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	must(t, err)
	for _, file := range files {
		data, _ := os.ReadFile(file) // a thread may have ended
		if _, rest, ok := strings.Cut(string(data), "\nvoluntary_ctxt_switches:\t"); ok {
			var switches int
			_, err := fmt.Sscan(rest, &switches)
			must(t, err)
			n += switches
		}
	}
	return n
}

// TestFullDisk runs a plugin whose state and log are on a disk without room.
func TestFullDisk(t *testing.T) {
	b := newBench(t)
	b.install("good", "1.0.0")
	disk := filepath.Join(filepath.Dir(b.plugins), "disk")
	must(t, os.Mkdir(disk, 0o755))
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"); err != nil {
		skip(t, "mounting a small file system needs root: "+err.Error())
	}
	t.Cleanup(func() { must(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })
	b.state, b.logs = filepath.Join(disk, "state"), filepath.Join(disk, "log")
	junk, err := os.Create(filepath.Join(disk, "junk"))
	must(t, err)
	for err == nil {
		_, err = junk.Write(make([]byte, 4096))
	}
	must(t, junk.Close())
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	var log logged
	r := b.run("good", func(o *Options) { o.Logger = log.logger() }, configure)
	p := r.wantReady()
	if _, err := apply(t, p, fullChange(1, "a")); err != nil {
		t.Errorf("apply: %v", err)
	}
	p.Acknowledged()
	waitUntil(t, "the plugin's words are in the log", func() error {
		text := strings.Join(log.lines(), "\n")
		if !strings.Contains(text, "configured: answer=42") || !strings.Contains(text, "no space left on device") {
			return errors.New(text)
		}
		return nil
	})
	if got := r.Status(); got.Crashes != 0 || got.State != StateRunning {
		t.Errorf("status %+v", got)
	}
}

// skip skips a test that the machine can't run, which is a failure where tests
// are to be complete.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}
