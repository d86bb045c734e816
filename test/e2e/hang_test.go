package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

// TestHangingDataplaneDelaysNobody: one dataplane that does not answer, be it
// at its start or when it is configured, keeps neither the agent's start nor a
// reload waiting, nor the changes of the others.
func TestHangingDataplaneDelaysNobody(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"hang_at_start", "hang_describe", "hang_configure"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "null")
			path := h.install("faulty", "faulty", "1.0.0")
			h.faults(path, fault)
			h.config("patchbay.hcl", withGood("faulty"))
			h.start()
			h.awaitService("good", admin.StateOK, "")
			// One that waits for the plugin waits 5, 10 or 20 s, each time.
			const reloads = 10
			began := time.Now()
			for n := range reloads {
				h.config("patchbay.hcl", strings.Replace(withGood("faulty"), "203.0.113.1:80", fmt.Sprintf("203.0.113.1:%d", 81+n), 1))
				if r := h.reload(); !r.Changed {
					t.Error("the reload says that nothing changed")
				}
				h.awaitService("good", admin.StateOK, "")
			}
			if took := time.Since(began); took > reloads*4500*time.Millisecond {
				t.Errorf("%d reloads took %s", reloads, took)
			}
			if fault != "hang_configure" {
				if r := h.reload(); !strings.Contains(r.Text, "faulty") || !strings.Contains(r.Text, "has not answered") {
					t.Errorf("a block that was not checked is not told:\n%s", r.Text)
				}
			}
			if fault == "hang_configure" {
				return // that it is tried again after 20 s is no matter of this test
			}
			// Once it answers, all is as if nothing had been.
			h.faults(path)
			h.awaitAnswer("web")
			if r := h.reload(); strings.Contains(r.Text, "has not answered") {
				t.Errorf("it answers, and counts as silent:\n%s", r.Text)
			}
		})
	}
}

// TestNewDataplaneHangs: one that comes by a reload and does not answer.
func TestNewDataplaneHangs(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("patchbay.hcl", strings.Replace(withGood("null"), "dataplane \"null\" {}\n", "", 1))
	h.start()
	h.awaitService("good", admin.StateOK, "")
	path := h.install("faulty", "faulty", "1.0.0")
	h.faults(path, "hang_at_start")
	h.config("patchbay.hcl", withGood("faulty"))
	if r := h.reload(); !strings.Contains(r.Text, "has not answered") {
		t.Errorf("a block that was not checked is not told:\n%s", r.Text)
	}
	h.awaitService("good", admin.StateOK, "")
	h.faults(path)
	h.awaitAnswer("web")
}

// awaitAnswer waits until a service is carried whose plugin has hung at its
// start: reloads spare it the wait for its next start.
func (h *host) awaitAnswer(id string) {
	h.t.Helper()
	deadline := time.Now().Add(2 * patience)
	for {
		h.reload()
		s, err := h.service(id)
		if err == nil && s.State == admin.StateOK {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%s is %+v, %v", id, s, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// TestLateRefusal: a plugin that refuses its block after the reload has gone on
// without its answer keeps carrying with the block that it had.
func TestLateRefusal(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	path := h.install("faulty", "faulty", "1.0.0")
	with := func(word string, port int) {
		text := strings.Replace(withGood("faulty"), "dataplane \"faulty\" {}", "dataplane \"faulty\" {\n  faults = ["+word+"]\n}", 1)
		h.config("patchbay.hcl", strings.ReplaceAll(text, "203.0.113.1:80", fmt.Sprintf("203.0.113.1:%d", port)))
	}
	with("", 80)
	h.start()
	h.awaitService("web", admin.StateOK, "")
	before := h.awaitPlugin("faulty", "running", running)
	h.faults(path, "slow_validate=4s")
	with(`"no_such_fault"`, 81)
	if r := h.reload(); !strings.Contains(r.Text, "has not answered") {
		t.Errorf("a block that was not checked is not told:\n%s", r.Text)
	}
	h.awaitService("good", admin.StateOK, "")
	h.awaitPlugin("faulty", "going on, with the reason", func(p admin.Plugin) bool {
		return running(p) && p.PID == before.PID && strings.Contains(p.Reason, "no_such_fault")
	})
	h.awaitService("web", admin.StateOK, "")
	h.faults(path)
	with("", 82)
	h.reload()
	h.awaitPlugin("faulty", "without a reason", func(p admin.Plugin) bool { return running(p) && p.PID == before.PID && p.Reason == "" })
	h.awaitService("web", admin.StateOK, "")
}

// installOther puts a version of a plugin in place that is another file, not a
// copy under another name.
func (h *host) installOther(name, version string) string {
	h.t.Helper()
	path := h.install(name, name, version)
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	_, err = file.WriteString(version)
	if err := errors.Join(err, file.Close()); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// TestReloadWithoutReplacement: a version or sha256 that no plugin fits, or one
// that does not work, is a mistake of the configuration: what runs goes on.
func TestReloadWithoutReplacement(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null", "faulty")
	with := func(arguments string) string {
		return strings.Replace(withGood("faulty"), "dataplane \"faulty\" {}", "dataplane \"faulty\" {\n  "+arguments+"\n}", 1)
	}
	h.config("patchbay.hcl", with(`version = "1.0.0"`))
	h.start()
	h.awaitService("web", admin.StateOK, "")
	before := h.awaitPlugin("faulty", "running", running)
	h.faults(h.installOther("faulty", "2.0.0"), "crash_at_start")
	h.faults(h.installOther("faulty", "3.0.0"), "hang_at_start")
	h.faults(h.installOther("faulty", "4.0.0"), "wrong_version")
	h.installOther("faulty", "5.0.0")
	for _, arguments := range []string{
		`version = "~> 9.0"`,
		`sha256 = "` + strings.Repeat("0", 64) + `"`,
		`version = "2.0.0"`,
		`version = "3.0.0"`,
		`version = "4.0.0"`,
	} {
		h.config("patchbay.hcl", with(arguments))
		r, err := h.client.Reload(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.OK || !strings.Contains(r.Text, "patchbay.hcl:2") || !strings.Contains(r.Text, "No plugin to change to") {
			t.Errorf("%s: OK is %t\n%s", arguments, r.OK, r.Text)
		}
		if p := h.awaitPlugin("faulty", "running", running); p.PID != before.PID || p.Crashes > 0 {
			t.Errorf("%s: the plugin was %+v, and is %+v", arguments, before, p)
		}
		if s, err := h.service("web"); err != nil || s.State != admin.StateOK {
			t.Errorf("%s: web is %+v, %v", arguments, s, err)
		}
	}
	h.config("patchbay.hcl", with(`version = "~> 5.0"`))
	h.reload()
	h.awaitPlugin("faulty", "of version 5.0.0", func(p admin.Plugin) bool { return running(p) && p.Version == "5.0.0" })
	h.awaitService("web", admin.StateOK, "")

	// The file of the plugin that runs is gone: other changes go on all the same.
	if err := syscall.Unlink(filepath.Join(h.plugins, "patchbay-dataplane-faulty_v5.0.0")); err != nil {
		t.Fatal(err)
	}
	h.config("patchbay.hcl", strings.Replace(with(`version = "~> 5.0"`), "203.0.113.1:80", "203.0.113.1:81", 3))
	if r := h.reload(); !r.Changed {
		t.Error("the reload says that nothing changed")
	}
	h.awaitService("web", admin.StateOK, "")
}

// TestDataplaneBackAtOnce: a dataplane whose block goes and comes back while it
// is still leaving is listed once, carries its services, and keeps doing so.
func TestDataplaneBackAtOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null", "faulty")
	one := func(name string, port int) {
		h.config("patchbay.hcl", fmt.Sprintf("dataplane %q {\n  default = true\n}\nservice \"web\" {\n  vip = [\"198.18.1.1\"]\n  port = 80\n  endpoint { address = \"203.0.113.1:%d\" }\n}\n", name, port))
		h.reload()
	}
	h.config("patchbay.hcl", "dataplane \"null\" {}\n")
	h.start()
	for range 4 {
		one("faulty", 80)
		if names := h.pluginNames(); len(names) > 2 || names[0] == names[len(names)-1] && len(names) > 1 {
			t.Errorf("plugins: %v", names)
		}
		one("null", 80)
	}
	h.eventually("null alone is left", func() error {
		if names := h.pluginNames(); !slices.Equal(names, []string{"null"}) {
			return fmt.Errorf("plugins: %v", names)
		}
		if s, err := h.service("web"); err != nil || s.State != admin.StateOK || s.Dataplane != "null" {
			return fmt.Errorf("%+v, %w", s, err)
		}
		return nil
	})
	p := h.awaitPlugin("null", "running", running)
	if p.Crashes > 0 {
		t.Errorf("what was let go counts as crashed: %+v", p)
	}
	// It has its capabilities still.
	one("null", 81)
	h.awaitService("web", admin.StateOK, "")
	if _, ok := h.metric(`patchbay_dataplane_applies_total{dataplane="null",kind="full"}`); !ok {
		t.Error("its metrics are gone")
	}
	if left := h.processes(); len(left) != 1 {
		t.Errorf("processes: %v", left)
	}
}

// TestStoppedPlugin: a plugin that stops answering, with nothing to apply, is
// seen, and is started again when its traffic hangs with it.
func TestStoppedPlugin(t *testing.T) {
	t.Parallel()
	h := newHost(t, "userspace")
	vip := frontend(t)
	a := newBackend(t, "a")
	h.config("patchbay.hcl", web(vip, a.hcl("")))
	h.start()
	h.awaitOnly(at(vip), "a")
	pid := h.awaitPlugin("userspace", "running", running).PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h.eventually("it is told that the plugin is silent", func() error {
		health, err := h.client.Health(t.Context())
		if err == nil && (health.Healthy || !strings.Contains(strings.Join(health.Reasons, " "), "userspace: its plugin has not answered for")) {
			err = fmt.Errorf("%+v", health)
		}
		return err
	})
	// All that is asked while it is silent is answered at once, and says so.
	if s, err := h.service("web"); err != nil || s.State != admin.StateDegraded || !strings.Contains(s.Reason, "has not answered for") {
		t.Errorf("web is %+v, %v", s, err)
	}
	if stdout, _, _ := h.cli("plugins"); !strings.Contains(stdout, "has not answered for") {
		t.Errorf("patchbay plugins:\n%s", stdout)
	}
	if stdout, _, _ := h.cli("status"); !strings.Contains(stdout, "has not answered for") {
		t.Errorf("patchbay status:\n%s", stdout)
	}
	if r := h.reload(); !strings.Contains(r.Text, "has not answered") {
		t.Errorf("a block that was not checked is not told:\n%s", r.Text)
	}
	h.eventually("it is ended and started again", func() error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal 0: %w", err)
		}
		return nil
	})
	h.awaitPlugin("userspace", "another process", func(p admin.Plugin) bool { return running(p) && p.PID != pid })
	h.awaitOnly(at(vip), "a")
	h.awaitService("web", admin.StateOK, "")
}
