package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The environment variables that make this program one of the parts.
const (
	roleEnv = "PATCHBAY_BENCH_ROLE"
	argEnv  = "PATCHBAY_BENCH_ARG"
	// profileEnv names the file that the data path writes its profile to.
	profileEnv = "PATCHBAY_BENCH_PROFILE"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	arg := os.Getenv(argEnv)
	switch role := os.Getenv(roleEnv); role {
	case "":
		return measure()
	case "client":
		return runClient(arg)
	case "server":
		return runServer()
	case "iocopy":
		return runIOCopy(arg)
	case "datapath":
		return runDatapath(arg)
	default:
		return fmt.Errorf("unknown role %q", role)
	}
}

// bench is one run of the program.
type bench struct {
	net     *network
	dir     string // temporary files
	bin     string // where patchbay and its plugins are
	rounds  int
	seconds float64
	verbose bool
	cases   []benchCase
	// services and changes are of the second table; none for no such table.
	services []int
	changes  int
	proxies  []proxyKind
	ctx      context.Context
}

func measure() error {
	b := &bench{}
	full := os.Getenv("BENCH_FULL") != ""
	rounds, seconds := 5, 1.5
	b.changes = 20
	if full {
		rounds, seconds = 11, 4
		b.changes = 200
	}
	only := flag.String("only", "", "cases to run, by comma: "+caseNames()+"; default all")
	services := flag.String("services", "1000,5000,20000", "numbers of services of the case core")
	proxies := flag.String("proxies", "", "proxies to compare, by comma: "+proxyNames()+"; default all but datapath, the data path without core and plugin")
	flag.IntVar(&b.rounds, "rounds", rounds, "rounds of which the median is taken")
	flag.Float64Var(&b.seconds, "seconds", seconds, "length of one measurement")
	flag.StringVar(&b.bin, "bin", "bin", "folder with patchbay and plugins/")
	flag.BoolVar(&b.verbose, "v", false, "print every round")
	profile := flag.String("cpuprofile", "", "file for a CPU profile of the data path alone (proxy datapath)")
	flag.Parse()
	if *profile != "" {
		if err := os.Setenv(profileEnv, *profile); err != nil {
			return err
		}
	}
	cases, core, err := chooseCases(*only)
	if err != nil {
		return err
	}
	b.cases = cases
	if core {
		if b.services, err = numbers(*services); err != nil {
			return err
		}
	}
	if b.proxies, err = chooseProxies(*proxies); err != nil {
		return err
	}
	if b.rounds < 1 || b.seconds <= 0 {
		return fmt.Errorf("rounds and seconds must be above zero")
	}
	if b.bin, err = filepath.Abs(b.bin); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("making network namespaces needs root")
	}
	if err := raiseFileLimit(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "patchbay-bench"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	b.ctx = ctx
	return b.run()
}

// raiseFileLimit lets programs open as many files as 5,000 idle connections
// need. exec puts back the limit that Go has raised by itself, so it is set
// explicitly.
func raiseFileLimit() error {
	limit := unix.Rlimit{Cur: wantedFiles, Max: wantedFiles}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		return nil
	}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("reading the limit of open files: %w", err)
	}
	if limit.Max < neededFiles {
		return fmt.Errorf("the limit of open files is %d: idle connections need %d", limit.Max, neededFiles)
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raising the limit of open files to %d: %w", limit.Max, err)
	}
	return nil
}

// The open files that idle connections need: haproxy sizes itself for 8,000
// connections of two; io.Copy takes six for each of 5,000.
const (
	neededFiles = 18_000
	wantedFiles = 40_000
)

// self gives the command that runs this program in a role.
func (b *bench) self(role, arg string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role, argEnv+"="+arg)
	return cmd
}

func numbers(list string) ([]int, error) {
	var out []int
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 60000 {
			return nil, fmt.Errorf("%q is no number of services from 1 to 60000", text)
		}
		out = append(out, n)
	}
	return out, nil
}

func chooseProxies(list string) ([]proxyKind, error) {
	var out []proxyKind
	if list == "" {
		for _, k := range proxyKinds {
			if k.name != "datapath" {
				out = append(out, k)
			}
		}
		return out, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(proxyKinds, func(k proxyKind) bool { return k.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown proxy %q: choose from %s", name, proxyNames())
		}
		out = append(out, proxyKinds[i])
	}
	return out, nil
}

func proxyNames() string {
	var out []string
	for _, k := range proxyKinds {
		out = append(out, k.name)
	}
	return strings.Join(out, ", ")
}
