package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

const (
	// endpointsEach is the number of endpoints of every service.
	endpointsEach = 10
	// changing names the service one of whose endpoints comes and goes. Its
	// endpoints are listeners of this program's, and the core's own check sees
	// them end; no other service is checked.
	changing  = "changing"
	firstPort = 20000
	// nullVersion is the version that examples/null says it has.
	nullVersion = "1.0.0"
)

// coreResult is what one number of services came to.
type coreResult struct {
	services    int
	validate    time.Duration // reading and checking the files
	validateCPU time.Duration
	start       time.Duration // from the agent's start to all acknowledged
	startCPU    time.Duration // of core and plugin, until then
	first       time.Duration // the first Apply as the core sees it
	firstBytes  float64       // that the plugin read until then
	p50, max    time.Duration // of a change, from snapshot to acknowledgement
	sent        float64       // services sent for one change
	bytes       float64       // read by the plugin for one change
	core, plugd int64         // resident bytes
}

// coreTable measures the way from the files to a plugin that does nothing.
func (b *bench) coreTable() error {
	plugins, err := b.nullPlugin()
	if err != nil {
		return err
	}
	var results []*coreResult
	for _, n := range b.services {
		r, err := b.measureCore(n, plugins)
		if err != nil {
			return fmt.Errorf("%d services: %w", n, err)
		}
		results = append(results, r)
	}
	fmt.Printf("\n## From the files to the plugin\n\nServices of %d endpoints each, from one file, and a plugin that does nothing; %d changes of one endpoint, one after another.\n\n", endpointsEach, b.changes)
	fmt.Println("| services | read and check the files (CPU) | start to all acknowledged (CPU of both) | first Apply | its bytes | one change, p50 | max | services sent for it | its bytes | core RSS | plugin RSS |")
	fmt.Println("|" + strings.Repeat(" --- |", 11))
	for _, r := range results {
		fmt.Printf("| %d | %.2f s (%.2f s) | %.2f s (%.2f s) | %.0f ms | %.2f MB | %.2f ms | %.2f ms | %.2f | %.0f | %.0f MB | %.0f MB |\n",
			r.services, r.validate.Seconds(), r.validateCPU.Seconds(), r.start.Seconds(), r.startCPU.Seconds(), ms(r.first), r.firstBytes/1e6, ms(r.p50), ms(r.max),
			r.sent, r.bytes, float64(r.core)/1e6, float64(r.plugd)/1e6)
	}
	fmt.Println("\nBudgets: first Apply of 2,000 services 15 ms, of 10,000 84 ms; one change p50 0.27 ms, at any number of services; core and plugin together 60 MB at 2,000. A change goes from the making of the snapshot to the acknowledgement; bytes are all that the plugin's process read.")
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// nullPlugin builds examples/null into a folder of its own.
func (b *bench) nullPlugin() (string, error) {
	dir := filepath.Join(b.dir, "plugins")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "patchbay-dataplane-null_v"+nullVersion), ".")
	cmd.Dir = filepath.Join("examples", "null")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building examples/null (run this from the top of the tree): %w\n%s", err, out)
	}
	return dir, nil
}

func (b *bench) measureCore(n int, plugins string) (*coreResult, error) {
	dir, err := os.MkdirTemp(b.dir, "core")
	if err != nil {
		return nil, err
	}
	config, err := writeFile(dir, "services.hcl", manyServices(n))
	if err != nil {
		return nil, err
	}
	backends := &listeners{host: b.net.proxy}
	defer backends.close()
	if err := backends.open(); err != nil {
		return nil, err
	}
	r := &coreResult{services: n}
	begun := time.Now()
	validate := exec.CommandContext(b.ctx, filepath.Join(b.bin, "patchbay"), "validate", "-plugin-dir", plugins, config)
	if out, err := validate.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("patchbay validate: %w\n%s", err, out)
	}
	r.validate = time.Since(begun)
	r.validateCPU = validate.ProcessState.UserTime() + validate.ProcessState.SystemTime()
	begun = time.Now()
	p, err := startProcess(b.net.proxy, b.agent(config, dir, plugins))
	if err != nil {
		return nil, err
	}
	defer p.stop()
	a := &watched{process: p, client: admin.NewClient(filepath.Join(dir, "sock")), socket: filepath.Join(dir, "sock")}
	defer a.client.Close()
	if err := p.until("acknowledging all services", func() bool { return a.acknowledged(n) }); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, p.log)
	}
	r.start, r.startCPU = time.Since(begun), p.cpu()
	return r, a.measure(b, r, backends)
}

// manyServices writes the file: n services, the last of which changes.
func manyServices(n int) string {
	var f strings.Builder
	f.WriteString("dataplane \"null\" {\n  default = true\n}\nvip_pool \"default\" {\n  cidr = [\"10.64.0.0/12\"]\n}\n")
	for i := range n - 1 {
		fmt.Fprintf(&f, "service \"service-%05d\" {\n  port = 80\n", i)
		for e := range endpointsEach {
			fmt.Fprintf(&f, "  endpoint { address = \"10.%d.%d.%d:8080\" }\n", 128+e, i>>8, i&255)
		}
		f.WriteString("}\n")
	}
	fmt.Fprintf(&f, "service %q {\n  port  = 80\n  drain = \"1h\"\n", changing)
	for e := range endpointsEach {
		fmt.Fprintf(&f, "  endpoint { address = \"%s:%d\" }\n", proxyInner, firstPort+e)
	}
	f.WriteString("  check {\n    tcp      = true\n    interval = \"200ms\"\n    timeout  = \"5s\"\n    rise     = 1\n    fall     = 1\n  }\n}\n")
	return f.String()
}

// listeners are the endpoints of the changing service.
type listeners struct {
	host *host
	all  []net.Listener
}

func (l *listeners) open() error {
	for e := range endpointsEach {
		one, err := l.listen(e)
		if err != nil {
			return err
		}
		l.all = append(l.all, one)
	}
	return nil
}

func (l *listeners) listen(e int) (net.Listener, error) {
	var out net.Listener
	err := l.host.do(func() (err error) {
		out, err = net.Listen("tcp4", fmt.Sprintf("%s:%d", proxyInner, firstPort+e))
		return err
	})
	if err == nil {
		go func() {
			for {
				c, err := out.Accept()
				if err != nil {
					return // closed
				}
				c.Close()
			}
		}()
	}
	return out, err
}

// toggle takes the first endpoint away, or puts it back.
func (l *listeners) toggle() (err error) {
	if l.all[0] != nil {
		err = l.all[0].Close()
		l.all[0] = nil
		return err
	}
	l.all[0], err = l.listen(0)
	return err
}

func (l *listeners) close() {
	for _, one := range l.all {
		if one != nil {
			one.Close()
		}
	}
}

// watched is an agent and what it tells of itself.
type watched struct {
	*process
	client *admin.Client
	socket string
}

func (a *watched) acknowledged(n int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := a.client.Status(ctx, admin.Watch{})
	return err == nil && s.Services == n && s.ByState[string(admin.StateOK)] == n
}

func (a *watched) measure(b *bench, r *coreResult, backends *listeners) error {
	m, err := a.metrics()
	if err != nil {
		return err
	}
	r.first = seconds(m["patchbay_dataplane_apply_seconds_sum"])
	r.firstBytes = a.pluginRead()
	time.Sleep(time.Second) // whatever the start has left to do
	before, err := a.metrics()
	if err != nil {
		return err
	}
	read := a.pluginRead()
	var took []time.Duration
	for last := before; len(took) < b.changes; {
		if b.ctx.Err() != nil {
			return errors.New("stopped")
		}
		if err := backends.toggle(); err != nil {
			return err
		}
		// Asking while the change is under way would slow it down.
		time.Sleep(600 * time.Millisecond)
		var now map[string]float64
		err := a.until("acknowledging a change", func() bool {
			now, err = a.metrics()
			return err == nil && now["patchbay_dataplane_latency_seconds_count"] > last["patchbay_dataplane_latency_seconds_count"]
		})
		if err != nil {
			return err
		}
		n := now["patchbay_dataplane_latency_seconds_count"] - last["patchbay_dataplane_latency_seconds_count"]
		if n != 1 {
			return fmt.Errorf("one endpoint's change made %v revisions", n)
		}
		took = append(took, seconds(now["patchbay_dataplane_latency_seconds_sum"]-last["patchbay_dataplane_latency_seconds_sum"]))
		last = now
	}
	after, err := a.metrics()
	if err != nil {
		return err
	}
	slices.Sort(took)
	r.p50, r.max = took[len(took)/2], took[len(took)-1]
	changes := float64(len(took))
	r.sent = (after["patchbay_dataplane_sent_services_total"] - before["patchbay_dataplane_sent_services_total"]) / changes
	r.bytes = (a.pluginRead() - read) / changes
	r.core = rss(a.cmd.Process.Pid)
	for _, pid := range a.tree()[1:] {
		r.plugd += rss(pid)
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// pluginRead gives how many bytes the plugin's process has read since it
// started.
func (a *watched) pluginRead() float64 {
	var sum float64
	for _, pid := range a.tree()[1:] {
		io, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(io)) {
			if rest, ok := strings.CutPrefix(line, "rchar:"); ok {
				n, _ := strconv.ParseFloat(strings.TrimSpace(rest), 64)
				sum += n
			}
		}
	}
	return sum
}

// metrics gives the agent's metrics by name, labels summed up: there is one
// dataplane.
func (a *watched) metrics() (map[string]float64, error) {
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", a.socket)
		},
	}}
	answer, err := client.Get("http://patchbay/metrics")
	if err != nil {
		return nil, fmt.Errorf("asking the agent for its metrics: %w", err)
	}
	defer answer.Body.Close()
	out := map[string]float64{}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		name, _, _ = strings.Cut(name, "{")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			out[name] += v
		}
	}
	return out, lines.Err()
}
