package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// benchCase is one kind of load, and the figures it gives.
type benchCase struct {
	name    string
	load    load
	figures []figure
}

// figure is one row of the table.
type figure struct {
	key, title, format string
	// against is the proxy that the budget is a multiple of; empty when the
	// budget is a number of its own.
	against string
	budget  float64 // 0 for none
}

var benchCases = []benchCase{
	{"newconn", load{Kind: "newconn", Conns: 32}, []figure{
		{"cpu", "new connection, CPU us", "%.1f", "haproxy", 0.9},
		{"rate", "new connections a second", "%.0f", "", 0},
	}},
	{"request", load{Kind: "request", Conns: 64}, []figure{
		{"cpu", "keep-alive request, 64 clients, CPU us", "%.2f", "haproxy", 1.0},
		{"rate", "requests a second", "%.0f", "", 0},
		{"p99", "p99 of a request, 64 clients, ms", "%.2f", "haproxy", 1.2},
	}},
	{"latency", load{Kind: "request", Conns: 8}, []figure{
		{"p50", "p50 of a request, 8 clients, ms", "%.3f", "", 0},
		{"p99", "p99 of a request, 8 clients, ms", "%.3f", "haproxy", 1.2},
	}},
	{"bulk1", load{Kind: "bulk", Conns: 1}, []figure{
		{"cpu", "bulk, 1 stream, CPU s per GB", "%.3f", "haproxy-splice", 0.9},
		{"rate", "GB a second", "%.2f", "", 0},
	}},
	{"bulk8", load{Kind: "bulk", Conns: 8}, []figure{
		{"cpu", "bulk, 8 streams, CPU s per GB", "%.3f", "haproxy-splice", 0.9},
		{"rate", "GB a second", "%.2f", "", 0},
	}},
	{"udp", load{Kind: "udp", Conns: 64}, []figure{
		{"cpu", "UDP round trip, 64 clients, CPU us", "%.2f", "nginx", 0.75},
		{"rate", "UDP round trips a second", "%.0f", "", 0},
		{"p99", "p99 of a UDP round trip, 64 clients, ms", "%.2f", "", 0},
	}},
	{"idle", load{Kind: "idle", Conns: 5000}, []figure{
		{"bytes", "idle connection (of 5,000), process bytes", "%.0f", "", 300},
		{"fds", "idle connection, descriptors", "%.2f", "", 2},
	}},
}

// coreCase names the second table among the cases.
const coreCase = "core"

func caseNames() string {
	var out []string
	for _, c := range benchCases {
		out = append(out, c.name)
	}
	return strings.Join(append(out, coreCase), ", ")
}

// chooseCases takes names by comma; "bulk" is both of them. The second result
// tells whether the table of the core is wanted.
func chooseCases(list string) (cases []benchCase, core bool, err error) {
	if list == "" {
		return benchCases, true, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		found := name == coreCase
		core = core || found
		for _, c := range benchCases {
			if c.name == name || name == "bulk" && c.load.Kind == name {
				cases, found = append(cases, c), true
			}
		}
		if !found {
			return nil, false, fmt.Errorf("unknown case %q: choose from %s", name, caseNames())
		}
	}
	return cases, core, nil
}

// sample is what one measurement of one proxy came to, by figure.
type sample map[string]float64

// takes tells whether the proxy has a part in the case.
func (k proxyKind) takes(c benchCase) bool {
	if c.load.Kind == "udp" && k.name == "haproxy" {
		return false // it carries no UDP
	}
	return k.only == "" || k.only == c.load.Kind
}

// measureLoad puts the load on a proxy and measures what it costs it.
func (b *bench) measureLoad(c benchCase, p *proxy) (sample, error) {
	l := c.load
	l.Seconds = b.seconds
	l.Addr = p.request()
	if l.Kind == "bulk" {
		l.Addr = p.bulk()
	}
	gen, err := b.startClient(l)
	if err != nil {
		return nil, err
	}
	defer gen.stop()
	before := p.cpu()
	out, err := gen.goOn()
	if err != nil {
		return nil, err
	}
	if l.Kind == "newconn" {
		time.Sleep(200 * time.Millisecond) // closing is part of a connection
	}
	cpu := p.cpu() - before
	if out.Count == 0 {
		return nil, errors.New("nothing was carried")
	}
	if out.Errors > 0 {
		return nil, fmt.Errorf("%d of %d failed", out.Errors, out.Count)
	}
	each := 1e6 // microseconds
	count := float64(out.Count)
	if l.Kind == "bulk" {
		each, count = 1, count/1e9
	}
	return sample{
		"cpu":  cpu.Seconds() * each / count,
		"rate": count / out.Seconds,
		"p50":  out.P50,
		"p99":  out.P99,
	}, nil
}

// measureIdle starts a fresh proxy, since memory that was freed once would hide
// what connections take, and opens connections through it.
func (b *bench) measureIdle(c benchCase, k proxyKind) (sample, error) {
	p, err := b.startProxy(k)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	warm, err := b.startClient(load{Kind: "request", Conns: 10, Addr: k.request()})
	if err != nil {
		return nil, err
	}
	warm.stop()
	before := p.settled()
	l := c.load
	l.Addr = k.request()
	if k.idle > 0 {
		l.Conns = k.idle
	}
	gen, err := b.startClient(l)
	if err != nil {
		return nil, err
	}
	defer gen.stop()
	after := p.settled()
	return sample{
		"bytes": float64(after.RSS-before.RSS) / float64(l.Conns),
		"fds":   float64(after.Descriptors-before.Descriptors) / float64(l.Conns),
	}, nil
}

// generator is a client that runs.
type generator struct {
	*process
	in  io.Writer
	out *bufio.Reader
}

// startClient starts a client and waits until it has warmed up.
func (b *bench) startClient(l load) (*generator, error) {
	spec, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	cmd := b.self("client", string(spec))
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p, out, err := startTalking(b.net.client, cmd)
	if err != nil {
		return nil, err
	}
	g := &generator{p, in, out}
	if _, err := g.out.ReadString('\n'); err != nil {
		g.stop()
		return nil, fmt.Errorf("warming up: %w\n%s", err, g.log)
	}
	return g, nil
}

// goOn lets the client do its work and gives what it measured.
func (g *generator) goOn() (*outcome, error) {
	if _, err := g.in.Write([]byte("go\n")); err != nil {
		return nil, fmt.Errorf("the client has ended: %w\n%s", err, g.log)
	}
	line, err := g.out.ReadBytes('\n')
	if err != nil {
		g.stop()
		return nil, fmt.Errorf("the client has ended: %w\n%s", err, g.log)
	}
	var o outcome
	return &o, json.Unmarshal(line, &o)
}

// median of the samples' figure; the mean of the middle two for an even number.
func median(samples []sample, key string) float64 {
	var v []float64
	for _, s := range samples {
		v = append(v, s[key])
	}
	slices.Sort(v)
	n := len(v)
	if n == 0 {
		return 0
	}
	return (v[(n-1)/2] + v[n/2]) / 2
}
