package pluginhost

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestBadFileGivesWay has a version that will not do beside one that does, on
// a machine that has never run either.
func TestBadFileGivesWay(t *testing.T) {
	tests := []struct {
		name, plugin string
		spoil        func(path string) error
		instead      string
	}{
		{"an empty file", "good", func(path string) error { return os.Truncate(path, 0) }, ""},
		{"a file that others may write", "good", func(path string) error { return os.Chmod(path, 0o777) }, ""},
		{"a text", "good", func(path string) error { return os.WriteFile(path, []byte("no program"), 0o755) }, "2.0.0"},
		{"a version that exits", "mixed", func(string) error { return nil }, "2.0.0"},
		{"a version that can't be configured", "picky", func(string) error { return nil }, "2.0.0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			b.install(test.plugin, "1.0.0")
			must(t, test.spoil(b.install(test.plugin, "2.0.0")))
			r := b.run(test.plugin, nil, configure)
			if p := r.wantReady(); p.Binary().Version.String() != "1.0.0" {
				t.Errorf("version %v", p.Binary().Version)
			}
			got := r.wantState(StateRunning)
			if got.RolledBackFrom != test.instead || len(got.Refusals) != 1 && test.instead == "" {
				t.Errorf("status %+v", got)
			}
		})
	}
}

func TestSumChoosesAnOlderVersion(t *testing.T) {
	b := newBench(t)
	sum := sumOf(t, b.install("good", "1.0.0"))
	b.install("good", "2.0.0")
	r := b.run("good", func(o *Options) { o.SHA256 = sum }, nil)
	if p := r.wantReady(); p.Binary().Version.String() != "1.0.0" {
		t.Errorf("version %v", p.Binary().Version)
	}
	if got := r.Status(); len(got.Refusals) > 0 {
		t.Errorf("refused %v", got.Refusals)
	}
}

// TestNothingIsEndedForWantOfAnother asks a plugin that runs for what isn't
// there or doesn't start.
func TestNothingIsEndedForWantOfAnother(t *testing.T) {
	b := newBench(t)
	path := b.install("mixed", "1.0.0")
	kept := make(chan error, 10)
	r := b.run("mixed", func(o *Options) { o.OnKept = func(_ *Process, err error) { kept <- err } }, configure)
	p := r.wantReady() // seconds old, and not proved
	stays := func(what string) {
		t.Helper()
		if got := r.Status(); got.State != StateRunning || got.PID != p.PID() || got.Starts != 1 || got.Crashes != 0 {
			t.Fatalf("%s: status %+v", what, got)
		}
		if err := syscall.Kill(p.PID(), 0); err != nil {
			t.Fatalf("%s: the process is gone: %v", what, err)
		}
	}
	for _, settings := range []Settings{{Constraint: "~> 9.0"}, {SHA256: strings.Repeat("0", 64)}} {
		if r.Reconfigure(settings) {
			t.Errorf("%+v: something else is to run", settings)
		}
		waitUntil(t, "it says why it stays", func() error {
			if got := r.Status(); !strings.Contains(got.LastError, settings.Constraint+settings.SHA256) {
				return fmt.Errorf("status %+v", got)
			}
			return nil
		})
		stays(fmt.Sprint(settings))
		<-kept
	}

	b.install("mixed", "2.0.0") // which exits at once
	if !r.Reconfigure(Settings{Constraint: ">= 1"}) {
		t.Error("nothing else is to run")
	}
	select {
	case err := <-kept:
		if !strings.Contains(err.Error(), "version 2.0.0 does not start") {
			t.Errorf("kept: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("nobody was told: %+v", r.Status())
	}
	stays("a bad version")
	if got := r.Status(); got.RolledBackFrom != "2.0.0" {
		t.Errorf("status %+v", got)
	}

	must(t, os.Rename(path, path+"-away"))
	r.Restart("to see")
	waitUntil(t, "the restart is given up", func() error {
		if len(kept) == 0 {
			return fmt.Errorf("status %+v", r.Status())
		}
		return nil
	})
	stays("no file")
	must(t, os.Rename(path+"-away", path))
	r.Restart("to see")
	if err := r.wantGone(); err != nil {
		t.Errorf("gone: %v", err)
	}
	if q := r.wantReady(); q.PID() == p.PID() {
		t.Error("the same process")
	}
}

// TestWhatHasWorkedIsTriedSoon kills a plugin that works again and again.
func TestWhatHasWorkedIsTriedSoon(t *testing.T) {
	b := newBench(t)
	b.install("good", "1.0.0")
	r := b.run("good", nil, configure)
	r.rulesForTest(func(rules *rules) { rules.backoffMax, rules.heldMin = time.Hour, 10*time.Millisecond })
	for range 12 { // the doubled wait would be hours by now
		p := r.wantReady()
		p.Acknowledged()
		waitUntil(t, "that is known", func() error {
			if r.Status().State != StateRunning {
				return fmt.Errorf("status %+v", r.Status())
			}
			return nil
		})
		must(t, syscall.Kill(p.PID(), syscall.SIGKILL))
		if err := r.wantGone(); err == nil {
			t.Error("gone without a reason")
		}
	}
	r.wantReady()
}

func TestBackoffWhileHeld(t *testing.T) {
	r := defaultRules
	trial := newTrial()
	for range 10 {
		if d := trial.backoffHeld(r, true); d < 4*time.Second || d > 10*time.Second {
			t.Errorf("a version that has worked waits for %v", d)
		}
	}
	trial = newTrial()
	last := time.Duration(0)
	for range 10 {
		last = trial.backoffHeld(r, false)
	}
	if last < r.backoffMax*8/10 || last > r.backoffMax*12/10 {
		t.Errorf("a version that never worked waits for %v at last", last)
	}
}
