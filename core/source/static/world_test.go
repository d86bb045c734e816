package static

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// sink keeps what a source has said.
type sink struct {
	mu       sync.Mutex
	services map[string]*source.Service
	status   source.Status
	// changes that were any.
	changes int
	changed chan struct{}
}

func newSink() *sink {
	return &sink{services: map[string]*source.Service{}, changed: make(chan struct{})}
}

func (s *sink) Change(name string, changes source.Changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := maps.Clone(s.services)
	if changes.Replace {
		clear(s.services)
	}
	for _, v := range changes.Upserts {
		s.services[v.Name] = v
	}
	for _, n := range changes.Removed {
		delete(s.services, n)
	}
	if !maps.Equal(before, s.services) {
		s.changes++
	}
	s.signal()
}

func (s *sink) SetStatus(name string, status source.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
	s.signal()
}

func (s *sink) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// show writes the instances of a service down: "address health reason".
func (s *sink) show(service string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.services[service]
	if v == nil {
		return "none"
	}
	return show(v)
}

func show(v *source.Service) string {
	var lines []string
	for _, i := range v.Instances {
		health := map[source.Health]string{source.Passing: "up", source.Critical: "down"}[i.Health]
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s:%d %s %s", i.Address, i.Port, health, i.Reason)))
	}
	for _, n := range v.Notes {
		lines = append(lines, "note: "+n)
	}
	return strings.Join(lines, "\n")
}

// until waits for a condition on what was said.
func (s *sink) until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if condition() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (s *sink) want(t *testing.T, service, want string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("service %s is\n%s", service, s.show(service))
		}
	}()
	s.until(t, want, func() bool { return s.show(service) == want })
}

// running is a source that runs until stop, or the end of the test.
type running struct {
	*Source
	*sink
	stop func()
}

func run(t *testing.T, options Options, services ...*config.Service) *running {
	t.Helper()
	r := &running{Source: New(options), sink: newSink()}
	r.Set(services)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Run(ctx, r.sink) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("Run does not end")
		}
	})
	t.Cleanup(r.stop)
	return r
}

// quick is a check that comes often.
func quick(change ...func(*config.Check)) *config.Check {
	c := &config.Check{TCP: true, Interval: 20 * time.Millisecond, Timeout: 10 * time.Second, Rise: 1, Fall: 1}
	for _, f := range change {
		f(c)
	}
	return c
}

func asks(path string) func(*config.Check) {
	return func(c *config.Check) { c.TCP, c.HTTP = false, path }
}

func service(name string, check *config.Check, endpoints ...string) *config.Service {
	s := &config.Service{Name: name, Check: check}
	for _, e := range endpoints {
		host, port, err := net.SplitHostPort(e)
		if err != nil {
			panic(err)
		}
		var p uint16
		if _, err := fmt.Sscan(port, &p); err != nil {
			panic(err)
		}
		s.Endpoints = append(s.Endpoints, config.Endpoint{Host: host, Port: p, Weight: 1})
	}
	return s
}

// serve lets handle have every connection to a port of its own, until the end
// of the test.
func serve(t testing.TB, handle func(net.Conn)) (address string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().String(), serveOn(t, l, handle)
}

func serveOn(t testing.TB, l net.Listener, handle func(net.Conn)) (stop func()) {
	var mu sync.Mutex
	var closed bool
	conns := map[net.Conn]bool{}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			if closed {
				_ = c.Close()
			}
			mu.Unlock()
			all.Go(func() {
				handle(c)
				_ = c.Close()
				mu.Lock()
				delete(conns, c)
				mu.Unlock()
			})
		}
	})
	stop = sync.OnceFunc(func() {
		_ = l.Close()
		mu.Lock()
		closed = true
		for c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// names is a resolver whose answers are set by the test.
type names struct {
	mu      sync.Mutex
	answers map[string][]netip.Addr
	err     error
	hang    bool
}

func (n *names) set(name string, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.answers == nil {
		n.answers = map[string][]netip.Addr{}
	}
	n.answers[name] = nil
	for _, a := range addresses {
		n.answers[name] = append(n.answers[name], netip.MustParseAddr(a))
	}
}

func (n *names) fail(err error, hang bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err, n.hang = err, hang
}

func (n *names) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	answer, err, hang := n.answers[host], n.err, n.hang
	n.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	if answer == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return answer, nil
}

var errServers = errors.New("server misbehaving")
