package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}} {
		var samples []sample
		for _, v := range c.of {
			samples = append(samples, sample{"cpu": v})
		}
		if got := median(samples, "cpu"); got != c.want {
			t.Errorf("the median of %v is %v, want %v", c.of, got, c.want)
		}
	}
}

func TestVerdict(t *testing.T) {
	ratio := figure{key: "cpu", format: "%.0f", against: "haproxy", budget: 0.9}
	number := figure{key: "cpu", format: "%.0f", budget: 300}
	by := func(haproxy, own float64) map[string][]sample {
		m := map[string][]sample{}
		if haproxy > 0 {
			m["haproxy"] = []sample{{"cpu": haproxy}}
		}
		if own > 0 {
			m["userspace"] = []sample{{"cpu": own}}
		}
		return m
	}
	for _, c := range []struct {
		name string
		f    figure
		by   map[string][]sample
		want string
	}{
		{"met", ratio, by(100, 85), "0.9 x haproxy = 90: met"},
		{"just met", ratio, by(100, 90), "0.9 x haproxy = 90: met"},
		{"missed", ratio, by(100, 99), "0.9 x haproxy = 90: MISSED by 10 %"},
		{"nothing to compare with", ratio, by(0, 99), "0.9 x haproxy"},
		{"nothing of ours", ratio, by(100, 0), "0.9 x haproxy = 90"},
		{"number met", number, by(0, 120), "300: met"},
		{"number missed", number, by(0, 600), "300: MISSED by 100 %"},
		{"no budget", figure{key: "cpu"}, by(100, 10), ""},
	} {
		if diff := cmp.Diff(c.want, c.f.verdict(c.by)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		list string
		want string
		core bool
		bad  bool
	}{
		{list: "", want: "newconn request latency bulk1 bulk8 udp idle", core: true},
		{list: "bulk,newconn", want: "bulk1 bulk8 newconn"},
		{list: "core", core: true},
		{list: "nonsense", bad: true},
	} {
		cases, core, err := chooseCases(c.list)
		var names []string
		for _, one := range cases {
			names = append(names, one.name)
		}
		if got := strings.Join(names, " "); got != c.want || core != c.core || (err != nil) != c.bad {
			t.Errorf("chooseCases(%q) gives %q, %v, %v", c.list, got, core, err)
		}
	}
	if _, err := numbers("1000,x"); err == nil {
		t.Error("x is taken for a number of services")
	}
}

// needRoot skips a test that makes network namespaces; with CI=true there must
// be root.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	const why = "network namespaces need root"
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// TestProxies runs every case once, for a moment, with the proxies that need
// no other program.
func TestProxies(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	bench := filepath.Join(dir, "bench")
	if out, err := exec.Command("go", "build", "-o", bench, ".").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	cmd := exec.Command(bench, "-proxies=iocopy,datapath", "-only=newconn,request,latency,bulk,udp,idle", "-rounds=1", "-seconds=0.2")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range benchCases {
		for _, f := range c.figures {
			row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(f.title) + ` \| [0-9.]*[1-9][0-9.]* \| [0-9.]+ \| `)
			if !row.Match(out) {
				t.Errorf("there is no row with two figures for %q:\n%s", f.title, out)
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "patchbay-bench*"))
	if err != nil || len(left) > 0 {
		t.Errorf("it left %v (%v)", left, err)
	}
}
