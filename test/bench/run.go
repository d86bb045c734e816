package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// twoCPUs gives the first two processors that this program may use: everything
// shares them, as on the machine that the budgets come from.
func twoCPUs() (*unix.CPUSet, error) {
	var all, two unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, err
	}
	for i := 0; i < 1024 && two.Count() < 2; i++ {
		if all.IsSet(i) {
			two.Set(i)
		}
	}
	return &two, nil
}

func (b *bench) run() error {
	cpus, err := twoCPUs()
	if err != nil {
		return err
	}
	if b.net, err = newNetwork(cpus); err != nil {
		return err
	}
	if len(b.cases) > 0 {
		if err := b.userspaceTable(); err != nil {
			return err
		}
	}
	if len(b.services) > 0 {
		return b.coreTable()
	}
	return nil
}

// startServer starts the server and waits until it listens.
func (b *bench) startServer() (*process, error) {
	s, out, err := startTalking(b.net.server, b.self("server", ""))
	if err != nil {
		return nil, err
	}
	if _, err := out.ReadString('\n'); err != nil {
		s.stop()
		return nil, fmt.Errorf("the server did not start: %w\n%s", err, s.log)
	}
	return s, nil
}

// userspaceTable measures every case, the proxies taking turns.
func (b *bench) userspaceTable() error {
	server, err := b.startServer()
	if err != nil {
		return err
	}
	defer server.stop()
	begun, idleBefore := time.Now(), cpuBusy()
	var running []*proxy
	defer func() {
		for _, p := range running {
			p.stop()
		}
	}()
	for _, k := range b.proxies {
		p, err := b.startProxy(k)
		if err != nil {
			return err
		}
		running = append(running, p)
	}
	results := map[string]map[string][]sample{} // case, proxy
	for _, c := range b.cases {
		results[c.name] = map[string][]sample{}
		for round := range b.rounds {
			for _, p := range running {
				if err := b.ctx.Err(); err != nil {
					return fmt.Errorf("stopped")
				}
				if !p.takes(c) {
					continue
				}
				s, err := b.one(c, p)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", c.name, p.name, err)
				}
				results[c.name][p.name] = append(results[c.name][p.name], s)
				if b.verbose {
					fmt.Printf("%s round %d %s: %v\n", c.name, round+1, p.name, s)
				}
			}
		}
	}
	b.print(results)
	busy := cpuBusy() - idleBefore
	fmt.Printf("\n%s; processors busy %.0f %% of %.0f s (all programs of the machine).\n",
		b.conditions(), 100*busy.Seconds()/time.Since(begun).Seconds()/float64(runtime.NumCPU()), time.Since(begun).Seconds())
	return nil
}

func (b *bench) one(c benchCase, p *proxy) (sample, error) {
	if c.load.Kind == "idle" {
		// The one that runs holds the port.
		p.process.stop()
		s, err := b.measureIdle(c, p.proxyKind)
		if err != nil {
			return nil, err
		}
		again, err := b.startProxy(p.proxyKind)
		if err != nil {
			return nil, err
		}
		p.process = again.process
		return s, nil
	}
	return b.measureLoad(c, p)
}

// print writes the table: a row for each figure, a column for each proxy.
func (b *bench) print(results map[string]map[string][]sample) {
	fmt.Printf("\n## Userspace proxy\n\nMedians of %d rounds of %g s in which the proxies took turns; in brackets, the ratio to haproxy.\n\n|", b.rounds, b.seconds)
	for _, k := range b.proxies {
		fmt.Printf(" | %s", k.title)
	}
	fmt.Printf(" | budget |\n|%s\n", strings.Repeat(" --- |", len(b.proxies)+2))
	for _, c := range b.cases {
		for _, f := range c.figures {
			b.printRow(f, results[c.name])
		}
	}
}

func (b *bench) printRow(f figure, by map[string][]sample) {
	fmt.Printf("| %s", f.title)
	base := median(by["haproxy"], f.key)
	for _, k := range b.proxies {
		fmt.Print(" | ")
		if len(by[k.name]) == 0 {
			continue
		}
		v := median(by[k.name], f.key)
		fmt.Printf(f.format, v)
		if base > 0 && k.name != "haproxy" {
			fmt.Printf(" (%.2f x)", v/base)
		}
	}
	fmt.Printf(" | %s |\n", f.verdict(by))
}

// verdict says what the budget is and whether userspace keeps it.
func (f figure) verdict(by map[string][]sample) string {
	if f.budget == 0 {
		return ""
	}
	limit, text := f.budget, fmt.Sprintf("%g", f.budget)
	if f.against != "" {
		limit *= median(by[f.against], f.key)
		text = fmt.Sprintf("%g x %s", f.budget, f.against)
		if limit == 0 {
			return text
		}
		text += fmt.Sprintf(" = "+f.format, limit)
	}
	own := by["userspace"]
	if len(own) == 0 {
		own = by["datapath"]
	}
	if len(own) == 0 {
		return text
	}
	v := median(own, f.key)
	// Two decimals of the descriptors are noise of the runtime's own.
	if v <= limit*1.002 {
		return text + ": met"
	}
	return fmt.Sprintf("%s: MISSED by %.0f %%", text, 100*(v/limit-1))
}

// conditions says on what the figures were taken.
func (b *bench) conditions() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // can't fail with a valid pointer
	said := []string{
		"Linux " + unix.ByteSliceToString(u.Release[:]),
		"2 of " + fmt.Sprint(runtime.NumCPU()) + " processors" + cpuModel(),
		runtime.Version(),
	}
	for _, k := range b.proxies {
		switch k.name {
		case "haproxy":
			said = append(said, version("haproxy", "-v"))
		case "nginx":
			said = append(said, version("nginx", "-v"))
		}
	}
	return strings.Join(said, ", ")
}

func version(name, flag string) string {
	out, err := exec.Command(name, flag).CombinedOutput()
	if err != nil {
		return name + " of unknown version"
	}
	first, _, _ := strings.Cut(string(out), "\n")
	if at := strings.Index(first, " 20"); at > 0 && name == "haproxy" {
		first = first[:at]
	}
	return strings.TrimPrefix(strings.TrimSpace(first), "nginx version: ")
}

func cpuModel() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return " (" + strings.TrimSpace(value) + ")"
		}
	}
	return ""
}

// cpuBusy gives how long the machine's processors have been busy, together.
func cpuBusy() time.Duration {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	var user, nice, system, idle, iowait, irq, softirq int64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq); err != nil {
		return 0
	}
	return time.Duration(user+nice+system+irq+softirq) * 10 * time.Millisecond
}
