package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

// nullConfig is a configuration with the dataplane that does nothing, and the
// services given.
func nullConfig(services string) string {
	return `
dataplane "null" {
  default = true
}
vip_pool "default" {
  cidr = ["198.18.0.0/16"]
}
` + services
}

// staticService is a service block with so many endpoints.
func staticService(name string, endpoints int, weight int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "service %q {\n  port = 80\n", name)
	for i := range endpoints {
		fmt.Fprintf(&b, "  endpoint {\n    address = \"203.0.113.%d:8080\"\n    weight  = %d\n  }\n", i+1, weight)
	}
	b.WriteString("}\n")
	return b.String()
}

func TestServicesOfAFile(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("patchbay.hcl", nullConfig(staticService("web", 3, 1)+`
service "nowhere" {
  port = 80
}
`))
	h.start()
	web := h.awaitService("web", admin.StateOK, "")
	if web.Endpoints.Active != 3 || len(web.Frontends) != 1 || web.Frontends[0].Port != 80 || web.Dataplane != "null" || web.Source != "static" || web.Acknowledged == 0 {
		t.Errorf("web is %+v", web)
	}
	h.awaitService("nowhere", admin.StateRejected, "")

	stdout, stderr, code := h.cli("services")
	if code != 0 || stderr != "" {
		t.Errorf("patchbay services: exit %d, %s", code, stderr)
	}
	for _, want := range []string{"SERVICE", "web ", "80/tcp", "3 active", "rejected"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("patchbay services does not show %q:\n%s", want, stdout)
		}
	}
	stdout, _, _ = h.cli("services", "--format", "json")
	body, err := h.get("/v1/services")
	if err != nil {
		t.Fatal(err)
	}
	printed, asked := decode[admin.ServiceList](t, stdout), decode[admin.ServiceList](t, body)
	if len(printed.Services) != 2 || printed.Revision != asked.Revision {
		t.Errorf("the command line prints %+v, the API gives %+v", printed, asked)
	}
}

// TestOneChangeSendsOneService: what one endpoint's change costs does not grow
// with the number of services.
func TestOneChangeSendsOneService(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	const services = 1000
	write := func(weightOfOne int) {
		var b strings.Builder
		for i := range services {
			weight := 1
			if i == 500 {
				weight = weightOfOne
			}
			b.WriteString(staticService(fmt.Sprintf("s%04d", i), 10, weight))
		}
		h.config("patchbay.hcl", nullConfig(b.String()))
	}
	write(1)
	h.start()
	h.eventually("all are acknowledged", func() error {
		s, err := h.client.Status(t.Context(), admin.Watch{})
		if err != nil {
			return err
		}
		if s.ByState["ok"] != services {
			return fmt.Errorf("%v", s.ByState)
		}
		return nil
	})
	upserts := `patchbay_dataplane_sent_services_total{dataplane="null",kind="upsert"}`
	full := `patchbay_dataplane_applies_total{dataplane="null",kind="full"}`
	sent, _ := h.metric(upserts)
	fulls, _ := h.metric(full)
	if sent != services || fulls != 1 {
		t.Errorf("the first Apply sent %v services in %v full Applies, want %d in 1", sent, fulls, services)
	}
	before := h.awaitService("s0500", admin.StateOK, "").Acknowledged
	write(7)
	if r := h.reload(); !r.Changed {
		t.Error("the reload says that nothing changed")
	}
	h.eventually("the change is acknowledged", func() error {
		s, err := h.service("s0500")
		if err == nil && (s.State != admin.StateOK || s.Acknowledged == before) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	if now, _ := h.metric(upserts); now != sent+1 {
		t.Errorf("%v services were sent for the change of one endpoint, want 1", now-sent)
	}
	if now, _ := h.metric(full); now != fulls {
		t.Errorf("%v full Applies for the change of one endpoint", now-fulls)
	}
	// The same files again change nothing and send nothing.
	if r := h.reload(); r.Changed {
		t.Error("a reload of the same files says that something changed")
	}
	if now, _ := h.metric(upserts); now != sent+1 {
		t.Errorf("%v services were sent for a reload of the same files", now-sent-1)
	}
}

// activeOf waits until a service has so many active endpoints.
func (h *host) awaitActive(id string, n int) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("service %s has %d active endpoints", id, n), func() error {
		s, err := h.service(id)
		if err == nil && (s.Endpoints.Active != n || s.State != admin.StateOK) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
}

func TestReloadBySignal(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("patchbay.hcl", nullConfig(staticService("web", 1, 1)))
	h.start()
	h.awaitActive("web", 1)
	h.config("patchbay.hcl", nullConfig(staticService("web", 4, 1)))
	h.signal(syscall.SIGHUP)
	h.awaitActive("web", 4)
}

// TestWatchFiles: a changed file takes effect by itself, whichever way it is
// changed.
func TestWatchFiles(t *testing.T) {
	t.Parallel()
	text := func(n int) string { return "watch_files = true\n" + nullConfig(staticService("web", n, 1)) }
	write := func(t *testing.T, path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		// prepare makes etc/patchbay.hcl with the first text; change brings the
		// second in.
		prepare, change func(t *testing.T, h *host, text string)
	}{
		{"in place", func(t *testing.T, h *host, text string) {
			write(t, filepath.Join(h.configDir, "patchbay.hcl"), text)
		}, func(t *testing.T, h *host, text string) {
			write(t, filepath.Join(h.configDir, "patchbay.hcl"), text)
		}},
		{"an editor that renames the old and writes the new", func(t *testing.T, h *host, text string) {
			write(t, filepath.Join(h.configDir, "patchbay.hcl"), text)
		}, func(t *testing.T, h *host, text string) {
			path := filepath.Join(h.configDir, "patchbay.hcl")
			if err := os.Rename(path, path+"~"); err != nil {
				t.Fatal(err)
			}
			write(t, path, text)
			if err := os.Remove(path + "~"); err != nil {
				t.Fatal(err)
			}
		}},
		{"a new file in the place of the old", func(t *testing.T, h *host, text string) {
			write(t, filepath.Join(h.configDir, "patchbay.hcl"), text)
		}, func(t *testing.T, h *host, text string) {
			h.put(filepath.Join(h.configDir, "patchbay.hcl"), text)
		}},
		{"a config map: links through a link to a folder", func(t *testing.T, h *host, text string) {
			mapped(t, h, "..2026_01", text)
			if err := os.Symlink(filepath.Join("..data", "patchbay.hcl"), filepath.Join(h.configDir, "patchbay.hcl")); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, h *host, text string) {
			mapped(t, h, "..2026_02", text)
			if err := os.RemoveAll(filepath.Join(h.configDir, "..2026_01")); err != nil {
				t.Fatal(err)
			}
		}},
		{"a link to a file elsewhere", func(t *testing.T, h *host, text string) {
			elsewhere := filepath.Join(h.dir, "elsewhere.hcl")
			write(t, elsewhere, text)
			if err := os.Symlink(elsewhere, filepath.Join(h.configDir, "patchbay.hcl")); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, h *host, text string) {
			h.put(filepath.Join(h.dir, "elsewhere.hcl"), text)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "null")
			c.prepare(t, h, text(1))
			h.start()
			h.awaitActive("web", 1)
			c.change(t, h, text(3))
			h.awaitActive("web", 3)
			// And once more, for a watch that was lost with the first change.
			c.change(t, h, text(2))
			h.awaitActive("web", 2)
		})
	}
}

// mapped puts a file into a folder of its own and points ..data at it, as
// Kubernetes does for a config map.
func mapped(t *testing.T, h *host, version, text string) {
	t.Helper()
	dir := filepath.Join(h.configDir, version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "patchbay.hcl"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(h.configDir, "..data")
	if err := os.Symlink(version, link+"_tmp"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+"_tmp", link); err != nil {
		t.Fatal(err)
	}
}

// TestNewFileInFolder: a folder is watched as a whole.
func TestNewFileInFolder(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("10-base.hcl", "watch_files = true\n"+nullConfig(staticService("web", 1, 1)))
	h.start()
	h.awaitActive("web", 1)
	path := h.config("20-more.hcl", staticService("api", 2, 1))
	h.awaitActive("api", 2)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	h.eventually("api is gone", func() error {
		_, err := h.service("api")
		var told *admin.Error
		if errors.As(err, &told) && told.Status == 404 {
			return nil
		}
		return fmt.Errorf("still there: %v", err)
	})
}

// TestInvalidReload: files with mistakes leave everything as it is, and say so.
func TestInvalidReload(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("patchbay.hcl", "watch_files = true\n"+nullConfig(staticService("web", 2, 1)))
	h.start()
	h.awaitActive("web", 2)
	h.config("patchbay.hcl", "watch_files = true\n"+nullConfig(staticService("web", 3, 1)+"\nservise \"typo\" {}\n"))
	h.eventually("the mistake is in the status", func() error {
		s, err := h.client.Status(t.Context(), admin.Watch{})
		if err != nil {
			return err
		}
		if s.LastReload == nil || s.LastReload.OK || !strings.Contains(s.LastReload.Text, `"service"`) {
			return fmt.Errorf("last reload: %+v", s.LastReload)
		}
		return nil
	})
	if s, _ := h.service("web"); s.Endpoints.Active != 2 {
		t.Errorf("the invalid file changed web: %+v", s)
	}
	if v, _ := h.metric("patchbay_config_valid"); v != 0 {
		t.Errorf("patchbay_config_valid is %v", v)
	}
	_, stderr, code := h.cli("reload")
	if code != 1 || !strings.Contains(stderr, "servise") || !strings.Contains(stderr, "stays in force") {
		t.Errorf("patchbay reload: exit %d\n%s", code, stderr)
	}
	_, stderr, code = h.cli("plan")
	if code != 1 || !strings.Contains(stderr, "servise") {
		t.Errorf("patchbay plan: exit %d\n%s", code, stderr)
	}
	// A plugin's own argument is no different.
	h.config("patchbay.hcl", strings.Replace(nullConfig(staticService("web", 3, 1)), "default = true", "default = true\n  log_update = true", 1))
	_, stderr, code = h.cli("reload")
	if code != 1 || !strings.Contains(stderr, "log_updates") {
		t.Errorf("a plugin's misspelt argument: exit %d\n%s", code, stderr)
	}
	h.config("patchbay.hcl", "watch_files = true\n"+nullConfig(staticService("web", 5, 1)))
	h.reload()
	h.awaitActive("web", 5)
	if v, _ := h.metric("patchbay_config_valid"); v != 1 {
		t.Errorf("patchbay_config_valid is %v after the mistake is gone", v)
	}
}

// TestInvalidStart: mistakes are all told at once, and nothing is started.
func TestInvalidStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, config string
		want         []string
	}{
		{"two mistakes", nullConfig("service \"web\" {\n  prot = 80\n}\nservice \"api\" {\n  port = 70000\n}\n"), []string{"prot", "port", "70000"}},
		{"a plugin's argument", strings.Replace(nullConfig(""), "default = true", "default = true\n  log_update = true", 1), []string{"log_update", "log_updates", "patchbay.hcl:4"}},
		{"a plugin's option", nullConfig("service \"web\" {\n  port = 80\n  options = { coment = \"x\" }\n  endpoint { address = \"203.0.113.1:80\" }\n}\n"), []string{"coment", "comment"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "null")
			h.config("patchbay.hcl", c.config)
			agent := h.run(h.agentArgs()...)
			if !agent.wait(patience) {
				t.Fatalf("the agent runs with an invalid configuration:\n%s", agent.log())
			}
			if agent.code() != 1 {
				t.Errorf("exit code %d, want 1", agent.code())
			}
			for _, want := range c.want {
				if !strings.Contains(agent.log(), want) {
					t.Errorf("%q is not told:\n%s", want, agent.log())
				}
			}
			if _, err := os.Lstat(h.socket); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket is there: %v", err)
			}
			h.noProcesses()
		})
	}
}

// TestPluginsOwnCheck: what only the plugin can tell is told with its place.
func TestPluginsOwnCheck(t *testing.T) {
	t.Parallel()
	h := newHost(t, "faulty")
	h.config("patchbay.hcl", "dataplane \"faulty\" {\n  default = true\n  faults = [\"no_such_fault\"]\n}\n")
	agent := h.run(h.agentArgs()...)
	if !agent.wait(patience) || agent.code() != 1 {
		t.Fatalf("the agent did not end with 1:\n%s", agent.log())
	}
	if !strings.Contains(agent.log(), "patchbay.hcl:3") || !strings.Contains(agent.log(), "no_such_fault") {
		t.Errorf("place and reason are not told:\n%s", agent.log())
	}
}

func TestSecondAgent(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("patchbay.hcl", nullConfig(staticService("web", 1, 1)))
	h.start()
	pid := fmt.Sprint(h.agent.cmd.Process.Pid)

	same := h.run(h.agentArgs()...)
	if !same.wait(patience) || same.code() != 1 {
		t.Fatalf("a second agent on one data folder did not end with 1:\n%s", same.log())
	}
	if !strings.Contains(same.log(), h.data) || !strings.Contains(same.log(), "process "+pid) {
		t.Errorf("it does not say which folder is held, and by whom:\n%s", same.log())
	}
	other := h.run("agent", "-config", h.configDir, "-data-dir", h.data+"2", "-plugin-dir", h.plugins, "-socket", h.socket)
	if !other.wait(patience) || other.code() != 1 || !strings.Contains(other.log(), "another agent answers on "+h.socket) {
		t.Errorf("a second agent on one socket:\n%s", other.log())
	}
	_, stderr, code := h.cli("cleanup", "-data-dir", h.data, "-plugin-dir", h.plugins)
	if code != 1 || !strings.Contains(stderr, "stop it first") {
		t.Errorf("cleanup while an agent runs: exit %d\n%s", code, stderr)
	}
	if s := h.awaitService("web", admin.StateOK, ""); s.Acknowledged == 0 {
		t.Errorf("the first agent has suffered: %+v", s)
	}
	// Once it is gone, however it went, the folder is free.
	h.agent.kill()
	h.start()
	h.awaitService("web", admin.StateOK, "")
}

// processes gives the ids of the processes whose command names this host's
// folder, which is that of every plugin, less those of the agent.
func (h *host) processes() []string {
	h.t.Helper()
	var found []string
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, dir := range dirs {
		// The process may be gone by now; a zombie has no link.
		target, err := os.Readlink(filepath.Join(dir, "exe"))
		if err == nil && strings.HasPrefix(target, h.plugins) {
			found = append(found, filepath.Base(dir)+" "+target)
		}
	}
	return found
}

func (h *host) noProcesses() {
	h.t.Helper()
	h.eventually("no process is left", func() error {
		if left := h.processes(); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

func TestEndLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		signal syscall.Signal
	}{{"SIGINT", syscall.SIGINT}, {"SIGTERM", syscall.SIGTERM}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "null")
			h.config("patchbay.hcl", nullConfig(staticService("web", 1, 1)))
			h.start()
			h.awaitService("web", admin.StateOK, "")
			if len(h.processes()) != 1 {
				t.Fatalf("while it runs there is %v, want one plugin", h.processes())
			}
			h.signal(c.signal)
			if !h.agent.wait(patience) {
				t.Fatal("the agent goes on")
			}
			if h.agent.code() != 0 {
				t.Errorf("exit code %d, want 0", h.agent.code())
			}
			if left := h.processes(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if _, err := os.Lstat(h.socket); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket is left: %v", err)
			}
		})
	}
}

// TestSecondInterruptForces: a plugin that won't end can't hold the operator.
func TestSecondInterruptForces(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	path := h.install("faulty", "faulty", "1.0.0")
	h.faults(path, "hang_close", "ignore_term")
	h.config("patchbay.hcl", `dataplane "faulty" { default = true }`)
	h.start()
	h.awaitPlugin("faulty", "running", running)
	h.signal(syscall.SIGINT)
	h.eventually("the agent is stopping", func() error {
		if !strings.Contains(h.agent.log(), "stopping") {
			return errors.New("not yet")
		}
		return nil
	})
	// On a very busy machine the agent may have given the plugin up by now.
	if err := h.agent.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	if !h.agent.wait(patience) {
		t.Fatal("a second interrupt did not end the agent")
	}
	// The next agent ends what was left.
	h.faults(path)
	h.start()
	h.awaitPlugin("faulty", "running", running)
	if n := len(h.processes()); n != 1 {
		t.Errorf("%d processes of the plugin run, want 1: %v", n, h.processes())
	}
}

func TestDataplanesComeAndGo(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null", "faulty")
	service := func(dataplane string) string {
		return fmt.Sprintf("service \"web\" {\n  vip = [\"198.18.1.1\"]\n  port = 80\n  dataplane = %q\n  endpoint { address = \"203.0.113.1:80\" }\n}\n", dataplane)
	}
	h.config("patchbay.hcl", "dataplane \"null\" {}\n"+service("null"))
	h.start()
	h.awaitService("web", admin.StateOK, "")
	if names := h.pluginNames(); !slices.Equal(names, []string{"null"}) {
		t.Fatalf("plugins: %v", names)
	}
	// The service moves to a dataplane that comes with it, and back to one that
	// is gone from the file the next time.
	h.config("patchbay.hcl", "dataplane \"null\" {}\ndataplane \"faulty\" {}\n"+service("faulty"))
	h.reload()
	h.eventually("web is carried by faulty", func() error {
		s, err := h.service("web")
		if err == nil && (s.State != admin.StateOK || s.Dataplane != "faulty") {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	h.config("patchbay.hcl", "dataplane \"faulty\" {}\n"+service("faulty"))
	h.reload()
	h.eventually("null has left", func() error {
		if names := h.pluginNames(); !slices.Equal(names, []string{"faulty"}) {
			return fmt.Errorf("plugins: %v", names)
		}
		return nil
	})
	if left := h.processes(); len(left) != 1 || !strings.Contains(left[0], "faulty") {
		t.Errorf("processes: %v, want faulty's alone", left)
	}
	// Changed arguments reach the plugin that runs.
	before := h.awaitPlugin("faulty", "running", running).PID
	h.config("patchbay.hcl", "dataplane \"faulty\" {\n  faults = [\"fail_service=web\"]\n}\n"+strings.Replace(service("faulty"), "203.0.113.1", "203.0.113.2", 1))
	h.reload()
	h.awaitService("web", admin.StateFailed, "this service fails, as asked")
	if after := h.awaitPlugin("faulty", "running", running).PID; after != before {
		t.Error("the plugin was started anew for a changed argument")
	}
	// A dataplane that a service names must be there.
	h.config("patchbay.hcl", "dataplane \"faulty\" {}\n"+service("null"))
	if _, stderr, code := h.cli("reload"); code != 1 || !strings.Contains(stderr, "null") {
		t.Errorf("a service of an unknown dataplane: exit %d\n%s", code, stderr)
	}
}

func (h *host) pluginNames() []string {
	h.t.Helper()
	list, err := h.client.Plugins(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	names := []string{}
	for _, p := range list.Plugins {
		names = append(names, p.Name)
	}
	return names
}

// TestLeftDataplaneIsEmptied: a dataplane that leaves is told first that its
// services are gone.
func TestLeftDataplaneIsEmptied(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null", "faulty")
	h.config("patchbay.hcl", "dataplane \"null\" {\n  default = true\n}\ndataplane \"faulty\" {}\n"+
		"service \"web\" {\n  vip = [\"198.18.1.1\"]\n  port = 80\n  dataplane = \"faulty\"\n  endpoint { address = \"203.0.113.1:80\" }\n}\n")
	h.start()
	h.awaitService("web", admin.StateOK, "")
	h.config("patchbay.hcl", "dataplane \"null\" {\n  default = true\n}\n"+
		"service \"web\" {\n  vip = [\"198.18.1.1\"]\n  port = 80\n  endpoint { address = \"203.0.113.1:80\" }\n}\n")
	h.reload()
	h.eventually("faulty has left", func() error {
		if names := h.pluginNames(); len(names) != 1 {
			return fmt.Errorf("plugins: %v", names)
		}
		return nil
	})
	h.awaitService("web", admin.StateOK, "")
	journal, err := os.ReadFile(filepath.Join(h.data, "plugins", "faulty", "state", "journal"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(journal)), "\n")
	if len(lines) < 2 || !strings.HasPrefix(lines[len(lines)-1], "close") || !strings.Contains(lines[len(lines)-2], "services=0") {
		t.Errorf("the last that it was told is not that its services are gone, then to close:\n%s", journal)
	}
}

func TestHealthAndMetricsOnTCP(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	address := freeAddress(t)
	h.config("patchbay.hcl", "agent {\n  http = \""+address+"\"\n}\n"+nullConfig(staticService("web", 1, 1)))
	h.start()
	h.awaitService("web", admin.StateOK, "")
	h.eventually("the agent is healthy", func() error {
		text, err := getPath(t.Context(), address, "/healthz")
		if err == nil && !strings.Contains(text, `"healthy": true`) {
			err = errors.New(text)
		}
		return err
	})
	text, err := getPath(t.Context(), address, "/metrics")
	if err != nil || !strings.Contains(text, `patchbay_services{state="ok"} 1`) {
		t.Errorf("metrics: %v\n%s", err, text)
	}
	if text, _ := getPath(t.Context(), address, "/v1/services"); strings.Contains(text, "web") {
		t.Errorf("the API answers on TCP: %s", text)
	}
}

// TestWatchServices: without a terminal, -watch prints what is new or different.
func TestWatchServices(t *testing.T) {
	t.Parallel()
	h := newHost(t, "null")
	h.config("patchbay.hcl", nullConfig(staticService("web", 1, 1)+staticService("api", 1, 1)))
	h.start()
	h.awaitActive("web", 1)
	h.awaitActive("api", 1)
	watch := h.run("services", "-watch", "-socket", h.socket)
	printed := func(n int, text string) {
		t.Helper()
		h.eventually(fmt.Sprintf("%q is printed %d times", text, n), func() error {
			if got := strings.Count(watch.log(), text); got < n {
				return fmt.Errorf("%d times in:\n%s", got, watch.log())
			}
			return nil
		})
	}
	printed(1, "web ")
	printed(1, "api ")
	h.config("patchbay.hcl", nullConfig(staticService("web", 3, 1)))
	h.reload()
	printed(1, "3 active")
	printed(1, "api: gone")
	if n := strings.Count(watch.log(), "api "); n != 1 {
		t.Errorf("the service that did not change is printed %d times:\n%s", n, watch.log())
	}
	if err := watch.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if !watch.wait(patience) || watch.code() != 0 {
		t.Errorf("after Ctrl-C: exit %d\n%s", watch.code(), watch.log())
	}
}

// TestOneChangeOneReload: a file that an argument of a plugin includes is
// watched too, and a change of it is loaded once, not for ever.
func TestOneChangeOneReload(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("plugin late: %v", late), func(t *testing.T) {
			t.Parallel()
			var h *host
			if late {
				h = newHost(t)
			} else {
				h = newHost(t, "null")
			}
			included := filepath.Join(h.dir, "comment.txt")
			h.put(included, "one")
			h.config("patchbay.hcl", "watch_files = true\n"+nullConfig(
				"service \"web\" {\n  vip = [\"198.18.7.1\"]\n  port = 80\n  endpoint { address = \"203.0.113.1:80\" }\n  options = { comment = file(\""+included+"\") }\n}\n"))
			h.start()
			if late {
				h.awaitService("web", admin.StateWaiting, "missing")
				h.install("null", "null", "1.0.0")
			}
			h.awaitService("web", admin.StateOK, "")
			for n := 1; n <= 2; n++ {
				h.put(included, fmt.Sprint("change ", n))
				h.eventually("the change is in force", func() error {
					d, err := h.client.Service(t.Context(), "web")
					if err == nil && !strings.Contains(string(d.Policy.Options), fmt.Sprint("change ", n)) {
						err = fmt.Errorf("%s", d.Policy.Options)
					}
					return err
				})
				// One that comes of nothing would come within a moment.
				time.Sleep(1500 * time.Millisecond)
				if got, _ := h.metric(`patchbay_config_reloads_total{result="loaded"}`); got != float64(n) {
					t.Errorf("%v reloads after %d changes:\n%s", got, n, tail(h.agent.log(), 20))
				}
			}
		})
	}
}
