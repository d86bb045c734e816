package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

// withGood is a configuration in which the dataplane null carries "good", and
// another one carries "web" and "api".
func withGood(name string) string {
	service := func(id, dataplane, vip string) string {
		return fmt.Sprintf("service %q {\n  vip = [%q]\n  port = 80\n  dataplane = %q\n  endpoint { address = \"203.0.113.1:80\" }\n}\n", id, vip, dataplane)
	}
	return fmt.Sprintf("dataplane \"null\" {}\ndataplane %q {}\n", name) +
		service("good", "null", "198.18.1.1") + service("web", name, "198.18.1.2") + service("api", name, "198.18.1.3")
}

// TestFaultyPlugins: whatever one plugin does, the agent goes on, the other
// dataplane works, and the operator sees what is wrong.
func TestFaultyPlugins(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// arrange puts the plugin in place, and gives its name.
		arrange func(h *host)
		// state of the plugin; empty for any.
		state string
		// reason that is shown for the plugin, in part.
		reason string
		web    admin.ServiceState
		// webReason that is shown for the service, in part.
		webReason string
	}{
		{"missing", func(*host) {},
			"missing", "faulty", admin.StateWaiting, "missing"},
		{"not executable", func(h *host) {
			h.chmod(h.install("faulty", "faulty", "1.0.0"), 0o644)
		}, "missing", "", admin.StateWaiting, "missing"},
		{"writable by others", func(h *host) {
			h.chmod(h.install("faulty", "faulty", "1.0.0"), 0o777)
		}, "missing", "writ", admin.StateWaiting, "missing"},
		{"of another protocol", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "protocol_2")
		}, "", "", admin.StateWaiting, "the plugin of dataplane faulty is"},
		{"no plugin at all", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "garbage")
		}, "", "", admin.StateWaiting, "the plugin of dataplane faulty is"},
		{"crashes at start", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "crash_at_start")
		}, "", "", admin.StateWaiting, "the plugin of dataplane faulty is"},
		{"says another name", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "wrong_name")
		}, "", "impostor", admin.StateWaiting, "impostor"},
		{"fails to configure", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "fail_configure")
		}, "", "configuring fails, as asked", admin.StateWaiting, "configuring fails, as asked"},
		{"fails each update", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "fail_apply")
		}, "running", "applying fails, as asked", admin.StateWaiting, "applying fails, as asked"},
		{"hangs in an update", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "hang_apply")
		}, "running", "", admin.StateWaiting, "has not acknowledged it yet"},
		{"panics in an update", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "panic_in_apply")
		}, "", "panic", admin.StateWaiting, ""},
		{"an error for one service", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "fail_service=web")
		}, "running", "", admin.StateFailed, "this service fails, as asked"},
		{"dies in the middle of an update, once", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "die_once_in_apply")
		}, "running", "", admin.StateOK, ""},
		{"dies in the middle of every update", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "die_in_apply")
		}, "", "", admin.StateWaiting, ""},
		{"prints without end", func(h *host) {
			h.faults(h.install("faulty", "faulty", "1.0.0"), "spam_stdout")
		}, "running", "", admin.StateOK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "null")
			c.arrange(h)
			h.config("patchbay.hcl", withGood("faulty"))
			h.start()
			h.awaitService("good", admin.StateOK, "")
			h.awaitService("web", c.web, c.webReason)
			h.awaitPlugin("faulty", "shown as "+c.state, func(p admin.Plugin) bool {
				return (c.state == "" || p.State == c.state) && strings.Contains(p.Reason, c.reason)
			})
			if c.web == admin.StateFailed {
				h.awaitService("api", admin.StateOK, "")
			}
			stdout, _, code := h.cli("plugins")
			if code != 0 || !strings.Contains(stdout, "faulty") || !strings.Contains(stdout, "null") {
				t.Errorf("patchbay plugins: exit %d\n%s", code, stdout)
			}
			// The rest of the agent works on: a change goes through.
			h.config("patchbay.hcl", strings.Replace(withGood("faulty"), "203.0.113.1", "203.0.113.9", 1))
			h.reload()
			h.eventually("the good service follows a change", func() error {
				list, err := h.client.Endpoints(t.Context(), "good")
				if err == nil && !slices.ContainsFunc(list.Endpoints, func(e admin.Endpoint) bool { return e.Address == "203.0.113.9" && e.State == "active" }) {
					err = fmt.Errorf("%+v", list.Endpoints)
				}
				return err
			})
			h.awaitService("good", admin.StateOK, "")
			h.stop()
			h.noProcesses()
		})
	}
}

func (h *host) chmod(path string, mode os.FileMode) {
	h.t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		h.t.Fatal(err)
	}
}

// TestPluginRecovers: once the fault is gone, so is its effect, without anybody
// touching the agent.
func TestPluginRecovers(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	path := h.install("faulty", "faulty", "1.0.0")
	h.faults(path, "fail_service=web", "fail_configure")
	h.config("patchbay.hcl", withGood("faulty"))
	h.start()
	h.awaitService("web", admin.StateWaiting, "configuring fails, as asked")
	h.faults(path, "fail_service=web")
	h.awaitService("web", admin.StateFailed, "as asked")
	h.faults(path)
	h.awaitService("web", admin.StateOK, "")

	// A killed plugin is started anew, and gets everything.
	pid := h.awaitPlugin("faulty", "running", running).PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p := h.awaitPlugin("faulty", "running anew", func(p admin.Plugin) bool { return running(p) && p.PID != pid })
	if p.Starts < 2 || p.Crashes < 1 {
		t.Errorf("starts and crashes are not counted: %+v", p)
	}
	h.awaitService("web", admin.StateOK, "")
	if v, ok := h.metric(`patchbay_plugin_crashes_total{dataplane="faulty"}`); !ok || v < 1 {
		t.Errorf("patchbay_plugin_crashes_total is %v", v)
	}
}

// TestLatePlugin: a plugin whose schema nobody knew at the start is configured
// by its block once it is there.
func TestLatePlugin(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	path := h.install("faulty", "faulty", "1.0.0")
	h.faults(path, "crash_at_start")
	h.config("patchbay.hcl", strings.Replace(withGood("faulty"), "dataplane \"faulty\" {}", "dataplane \"faulty\" {\n  faults = [\"fail_service=web\"]\n}", 1))
	h.start()
	h.awaitService("good", admin.StateOK, "")
	h.awaitService("web", admin.StateWaiting, "the plugin of dataplane faulty is")
	h.faults(path)
	h.awaitService("web", admin.StateFailed, "as asked") // so the block has reached it
	h.awaitService("api", admin.StateOK, "")
}

// TestMissingPluginComes: a plugin that is put in place later is found.
func TestMissingPluginComes(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("patchbay.hcl", withGood("faulty"))
	h.start()
	h.awaitService("web", admin.StateWaiting, "missing")
	stdout, _, _ := h.cli("services")
	if !strings.Contains(stdout, "waiting") {
		t.Errorf("patchbay services:\n%s", stdout)
	}
	health, err := h.client.Health(t.Context())
	if err != nil || health.Healthy || len(health.Reasons) == 0 || !strings.Contains(health.Reasons[0], "faulty") {
		t.Errorf("health without a plugin: %+v, %v", health, err)
	}
	h.install("faulty", "faulty", "1.0.0")
	h.reload()
	h.awaitService("web", admin.StateOK, "")
}

// TestDamagedState: whatever file of the agent's state is cut, garbled or
// empty, the next agent starts, says so where it matters, and carries the
// services under the addresses they had.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("patchbay.hcl", nullConfig(staticService("web", 2, 1)+staticService("api", 1, 1)))
	h.start()
	address := h.awaitService("web", admin.StateOK, "").Frontends[0].Address
	h.stop()
	files := stateFiles(t, h.data)
	if len(files) < 3 {
		t.Fatalf("the agent saved %v only", files)
	}
	for _, damage := range []struct {
		name string
		do   func(data []byte) []byte
	}{
		{"cut", func(data []byte) []byte { return data[:len(data)/2] }},
		{"garbled", func(data []byte) []byte {
			for i := range data {
				data[i] ^= byte(i*7 + 1)
			}
			return data
		}},
		{"empty", func([]byte) []byte { return nil }},
	} {
		for _, file := range files {
			path := filepath.Join(h.data, file)
			data, err := os.ReadFile(path)
			if err != nil {
				continue // not written this time
			}
			if err := os.WriteFile(path, damage.do(data), 0o600); err != nil {
				t.Fatal(err)
			}
			h.start()
			s := h.awaitService("web", admin.StateOK, "")
			h.awaitService("api", admin.StateOK, "")
			if s.Frontends[0].Address != address {
				t.Errorf("%s %s: the address of web changed from %s to %s", damage.name, file, address, s.Frontends[0].Address)
			}
			status, err := h.client.Status(t.Context(), admin.Watch{})
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Dir(file) == "." && !strings.HasSuffix(file, ".old") && !strings.Contains(strings.Join(status.Problems, "\n"), "/"+file+" is damaged") {
				t.Errorf("%s %s: the status does not tell, only %q", damage.name, file, status.Problems)
			}
			h.stop()
		}
	}
}

// stateFiles names the files that an agent has saved, the logs and the lock
// left out.
func stateFiles(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, _ := filepath.Rel(dir, path)
		if e.Type().IsRegular() && rest != "lock" && !strings.HasPrefix(rest, "log") && !strings.HasSuffix(rest, "journal") {
			files = append(files, rest)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestSessionNumberGrows: each start has a higher number than all before, also
// when the file that keeps it was lost.
func TestSessionNumberGrows(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("patchbay.hcl", nullConfig(""))
	last := uint64(0)
	for i := range 3 {
		h.start()
		s, err := h.client.Status(t.Context(), admin.Watch{})
		if err != nil {
			t.Fatal(err)
		}
		if s.Session <= last && i < 2 {
			t.Errorf("session %d after %d", s.Session, last)
		}
		if s.Session < last {
			t.Errorf("session %d after %d, with the file lost", s.Session, last)
		}
		last = s.Session
		h.stop()
		if i == 1 {
			if err := os.Remove(filepath.Join(h.data, "session.json")); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFullDisk: an agent that can't save its session number does not start, and
// says why; one that runs when the disk fills goes on.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		skipOrFail(t, "mounting a small disk needs root")
	}
	h := newHost(t, "null")
	disk := filepath.Join(h.dir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	h.data = filepath.Join(disk, "data")
	// The disk is mounted where the agent alone sees it, and goes with it.
	h.wrap = []string{"unshare", "--mount", "--propagation", "private", "sh", "-c",
		"mount -t tmpfs -o size=256k,mode=755 tmpfs " + disk + " && test ! -e " + h.dir + "/fill || dd if=/dev/zero of=" + disk + "/fill bs=4k 2>/dev/null; exec \"$@\"", "sh"}
	h.config("patchbay.hcl", nullConfig(staticService("web", 1, 1)))

	if err := os.WriteFile(filepath.Join(h.dir, "fill"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	agent := h.run(h.agentArgs()...)
	if !agent.wait(patience) || agent.code() != 1 || !strings.Contains(agent.log(), "no space left on device") {
		t.Fatalf("an agent on a full disk did not end with 1 and the reason:\n%s", agent.log())
	}
	if err := os.Remove(filepath.Join(h.dir, "fill")); err != nil {
		t.Fatal(err)
	}

	h.start()
	h.awaitService("web", admin.StateOK, "")
	// Fill the disk through the agent's own view of it, as far as it goes.
	inside := filepath.Join("/proc", strconv.Itoa(h.agent.cmd.Process.Pid), "root", disk)
	fill(t, filepath.Join(inside, "fill"))
	more := "service \"new\" {\n  vip = [\"198.18.7.7\"]\n  port = 80\n  endpoint { address = \"203.0.113.1:80\" }\n}\n"
	const leased = 100 // more than fit into what is left of the file's last page
	for i := range leased {
		more += staticService(fmt.Sprintf("leased-%03d", i), 1, 1)
	}
	h.config("patchbay.hcl", nullConfig(staticService("web", 3, 1)+more))
	h.reload()
	h.awaitActive("web", 3)
	h.awaitService("new", admin.StateOK, "")
	// A new lease needs a record: it waits, says so, and comes when there is room.
	h.eventually("services that need a lease say what they wait for", func() error {
		list, err := h.client.Services(t.Context(), admin.Watch{})
		if err != nil {
			return err
		}
		for _, s := range list.Services {
			if strings.HasPrefix(s.ID, "leased-") && s.State != admin.StateOK && strings.Contains(s.Reason, "no space left") {
				if s.State != admin.StateWaiting {
					t.Errorf("%s waits for a lease and is %s", s.ID, s.State)
				}
				return nil
			}
		}
		return fmt.Errorf("none of %d does, such as %+v", len(list.Services), list.Services[0])
	})
	status, err := h.client.Status(t.Context(), admin.Watch{})
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(status.Problems, "\n"); !strings.Contains(all, "leases.json can't be written") {
		t.Errorf("problems %q", all)
	}
	if all := strings.Join(status.Health.Reasons, "\n"); status.Health.Healthy || !strings.Contains(all, "leases.json can't be written") {
		t.Errorf("health %+v", status.Health)
	}
	if n := strings.Count(h.agent.log(), "service is not carried"); n > 20 {
		t.Errorf("%d lines for one cause", n)
	}
	if err := os.Remove(filepath.Join(inside, "fill")); err != nil {
		t.Fatal(err)
	}
	h.eventually("all is well again", func() error {
		s, err := h.client.Status(t.Context(), admin.Watch{})
		if err == nil && (!s.Health.Healthy || len(s.Problems) > 0) {
			err = fmt.Errorf("%+v, %q", s.Health, s.Problems)
		}
		return err
	})
	h.eventually("all have their lease", func() error {
		s, err := h.client.Status(t.Context(), admin.Watch{})
		if err == nil && s.ByState["ok"] != leased+2 {
			err = fmt.Errorf("%v", s.ByState)
		}
		return err
	})
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	block := make([]byte, 4096)
	for range 1000 {
		if _, err := file.Write(block); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("the small disk is not small")
}

func TestCleanup(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null", "faulty")
	h.config("patchbay.hcl", withGood("faulty"))
	h.start()
	h.awaitService("web", admin.StateOK, "")
	h.stop()

	// One plugin is gone: what it made can't be removed, and is named.
	faulty := filepath.Join(h.plugins, "patchbay-dataplane-faulty_v1.0.0")
	if err := os.Rename(faulty, faulty+".away"); err != nil {
		t.Fatal(err)
	}
	args := []string{"cleanup", "-config", h.configDir, "-data-dir", h.data, "-plugin-dir", h.plugins}
	stdout, stderr, code := h.cli(args...)
	if code != 1 || !strings.Contains(stderr, "faulty") || !strings.Contains(stdout, "Dataplane null: cleaned up") {
		t.Errorf("cleanup without a plugin: exit %d\n%s%s", code, stdout, stderr)
	}
	if _, err := os.Stat(filepath.Join(h.data, "plugins", "faulty")); err != nil {
		t.Errorf("the state of what could not be cleaned is gone: %v", err)
	}
	if err := os.Rename(faulty+".away", faulty); err != nil {
		t.Fatal(err)
	}
	// A plugin that can't be cleaned up is the same.
	h.faults(faulty, "fail_close")
	if _, stderr, code = h.cli(args...); code != 1 || !strings.Contains(stderr, "closing fails, as asked") {
		t.Errorf("cleanup with a plugin that fails: exit %d\n%s", code, stderr)
	}
	h.faults(faulty)
	if stdout, stderr, code = h.cli(args...); code != 0 || !strings.Contains(stdout, "Dataplane faulty: cleaned up") {
		t.Errorf("cleanup: exit %d\n%s%s", code, stdout, stderr)
	}
	if _, err := os.Stat(h.data); !errors.Is(err, os.ErrNotExist) {
		left := stateFiles(t, h.data)
		t.Errorf("the data folder is left, with %v", left)
	}
	if stdout, stderr, code = h.cli(args...); code != 0 || !strings.Contains(stdout, "Nothing to clean up") {
		t.Errorf("cleanup once more: exit %d\n%s%s", code, stdout, stderr)
	}
	h.noProcesses()
}

// TestCleanupAfterKill: the agent was killed, its plugin lives on; cleanup ends
// it and cleans up all the same.
func TestCleanupAfterKill(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("patchbay.hcl", nullConfig(staticService("web", 1, 1)))
	h.start()
	h.awaitService("web", admin.StateOK, "")
	h.agent.kill()
	stdout, stderr, code := h.cli("cleanup", "-config", h.configDir, "-data-dir", h.data, "-plugin-dir", h.plugins)
	if code != 0 {
		t.Errorf("cleanup: exit %d\n%s%s", code, stdout, stderr)
	}
	h.noProcesses()
}

// TestCleanupByWhatWasConfigured: a cleanup without the configuration removes
// what the plugin made by it. Where it can't, the plugin counts as left, its
// state stays, and the cleanup says what it needs.
func TestCleanupByWhatWasConfigured(t *testing.T) {
	t.Parallel()
	block := func(arguments string) string { return "dataplane \"faulty\" {\n" + arguments + "}\n" }
	for _, c := range []struct {
		name, arguments, made, faults string
		left                          string // why it is left without -config; empty when it isn't
		damaged                       bool
	}{
		{name: "nothing is made"},
		{name: "a file", arguments: "path = \"MADE\"\n", made: "MADE"},
		{name: "a file that a secret names", arguments: "path  = \"MADE\"\ntoken = \"hush\"\n", made: "MADEhush",
			left: "sensitive arguments, which are not saved (token)"},
		{name: "it can't be configured", arguments: "path = \"MADE\"\n", made: "MADE", faults: "fail_configure",
			left: "configuring fails, as asked"},
		{name: "the record is damaged", arguments: "path = \"MADE\"\n", made: "MADE", damaged: true,
			left: "is not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "faulty")
			made := filepath.Join(h.dir, "made")
			exists := func() bool {
				_, err := os.Stat(strings.Replace(c.made, "MADE", made, 1))
				return err == nil
			}
			h.config("patchbay.hcl", block(strings.Replace(c.arguments, "MADE", made, 1)))
			h.start()
			h.awaitPlugin("faulty", "running", running)
			if c.made != "" && !exists() {
				t.Fatal("the plugin made nothing")
			}
			h.stop()
			state := filepath.Join(h.data, "plugins", "faulty")
			saved, err := os.ReadFile(filepath.Join(state, "configured.json"))
			if err != nil || strings.Contains(string(saved), "hush") {
				t.Errorf("what was configured: %s, %v", saved, err)
			}
			if c.damaged {
				if err := os.WriteFile(filepath.Join(state, "configured.json"), saved[:len(saved)/2], 0o600); err != nil {
					t.Fatal(err)
				}
			}
			plugin := filepath.Join(h.plugins, "patchbay-dataplane-faulty_v1.0.0")
			h.faults(plugin, c.faults)

			args := []string{"cleanup", "-data-dir", h.data, "-plugin-dir", h.plugins}
			stdout, stderr, code := h.cli(args...)
			if c.left != "" {
				if code != 1 || !strings.Contains(stderr, c.left) || !strings.Contains(stderr, "-config") || strings.Contains(stdout, "cleaned up") {
					t.Errorf("cleanup: exit %d\n%s%s", code, stdout, stderr)
				}
				if _, err := os.Stat(state); err != nil {
					t.Errorf("the state of what is left: %v", err)
				}
				h.faults(plugin)
				stdout, stderr, code = h.cli(append(args, "-config", h.configDir)...)
			}
			if code != 0 || !strings.Contains(stdout, "Dataplane faulty: cleaned up") {
				t.Errorf("cleanup: exit %d\n%s%s", code, stdout, stderr)
			}
			if exists() {
				t.Error("what the plugin made is there")
			}
			if _, err := os.Stat(h.data); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the data folder is there, with %v", stateFiles(t, h.data))
			}
		})
	}
}

// TestJSONLogIsJSON: with log_format = "json" every line of the log is JSON,
// also what there is to say of the configuration.
func TestJSONLogIsJSON(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("patchbay.hcl", "agent { log_format = \"json\" }\ndataplane \"absent\" {}\n"+nullConfig(staticService("web", 1, 1)))
	h.start()
	h.awaitService("web", admin.StateOK, "")
	h.reload()
	h.stop()
	warnings := 0
	for line := range strings.Lines(h.agent.log()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if text, _ := entry["warning"].(string); strings.Contains(text, "patchbay.hcl:2") && strings.Contains(text, "no file patchbay-dataplane-absent_v*") {
			warnings++
		}
	}
	if warnings != 2 {
		t.Errorf("the missing plugin is told %d times, for a start and a reload:\n%s", warnings, h.agent.log())
	}
}
