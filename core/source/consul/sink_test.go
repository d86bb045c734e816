package consul

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// consulVariables are those of Consul's that tests must not have from outside.
var consulVariables = []string{"CONSUL_HTTP_ADDR", "CONSUL_HTTP_TOKEN", "CONSUL_HTTP_TOKEN_FILE", "CONSUL_HTTP_SSL", "CONSUL_HTTP_AUTH", "CONSUL_CACERT", "CONSUL_NAMESPACE"}

func TestMain(m *testing.M) {
	for _, name := range consulVariables {
		os.Unsetenv(name)
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a condition is waited for.
const patience = 30 * time.Second

// sink takes what a source says, as the catalog would.
type sink struct {
	mu       sync.Mutex
	services map[string]*source.Service
	status   source.Status
	// changes counts those it was told, by service.
	changes map[string]int
	moved   chan struct{}
	// lost is set when a service that is watched ever had no usable instance.
	watched map[string]bool
	lost    []string
}

func newSink() *sink {
	return &sink{services: map[string]*source.Service{}, changes: map[string]int{}, moved: make(chan struct{}), watched: map[string]bool{}}
}

func (k *sink) Change(_ string, changes source.Changes) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if changes.Replace {
		clear(k.services)
	}
	for _, s := range changes.Upserts {
		k.services[s.Name] = s
		k.changes[s.Name]++
	}
	for _, name := range changes.Removed {
		delete(k.services, name)
		k.changes[name]++
	}
	for name := range k.watched {
		s := k.services[name]
		if s == nil || !slices.ContainsFunc(s.Instances, usable) {
			k.lost = append(k.lost, name)
		}
	}
	k.wake()
}

func usable(i source.Instance) bool {
	return i.Health == source.Passing || i.Health == source.Warning
}

func (k *sink) SetStatus(_ string, status source.Status) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status = status
	k.wake()
}

func (k *sink) wake() {
	close(k.moved)
	k.moved = make(chan struct{})
}

// watch makes it an error that these services are ever without an instance that
// can be used, until the function it gives is called.
func (k *sink) watch(t *testing.T, names ...string) (end func()) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		k.watched[name] = true
	}
	return func() {
		t.Helper()
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.lost) > 0 {
			t.Errorf("services were without a usable instance for a time: %q", k.lost)
		}
		clear(k.watched)
		k.lost = nil
	}
}

// await waits until a condition holds.
func (k *sink) await(t *testing.T, what string, holds func(services map[string]*source.Service, status source.Status) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		k.mu.Lock()
		ok, moved := holds(k.services, k.status), k.moved
		k.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-moved:
		case <-deadline:
			k.mu.Lock()
			defer k.mu.Unlock()
			t.Fatalf("%s: not within %v; now:\n%s", what, patience, k.describe())
		}
	}
}

func (k *sink) describe() string {
	var b strings.Builder
	for _, name := range sortedKeys(k.services) {
		s := k.services[name]
		fmt.Fprintf(&b, "%s port %d meta %v notes %q\n", name, s.Port, s.Meta, s.Notes)
		for _, i := range s.Instances {
			fmt.Fprintf(&b, "  %+v\n", i)
		}
	}
	return fmt.Sprintf("status %+v\n%.3000s", k.status, b.String())
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// short gives an instance as "address:port" with its weight and health where
// they are not the usual ones.
func short(i source.Instance) string {
	out := fmt.Sprintf("%s:%d", i.Address, i.Port)
	if i.Weight != 1 {
		out += fmt.Sprintf(" weight %d", i.Weight)
	}
	if i.Health != source.Passing {
		out += " " + [...]string{"?", "passing", "warning", "critical", "maintenance"}[i.Health]
	}
	return out
}

// has is a condition: the service has exactly these instances, as short gives
// them.
func has(name string, instances ...string) func(map[string]*source.Service, source.Status) bool {
	slices.Sort(instances)
	return func(services map[string]*source.Service, _ source.Status) bool {
		s := services[name]
		if s == nil {
			return false
		}
		var now []string
		for _, i := range s.Instances {
			now = append(now, short(i))
		}
		slices.Sort(now)
		return slices.Equal(now, instances)
	}
}

func gone(name string) func(map[string]*source.Service, source.Status) bool {
	return func(services map[string]*source.Service, _ source.Status) bool { return services[name] == nil }
}

func fresh(_ map[string]*source.Service, status source.Status) bool {
	return status.Read && status.StaleSince.IsZero() && status.Err == ""
}

// stale is a condition: the source is stale for a reason that contains a text.
func stale(text string) func(map[string]*source.Service, source.Status) bool {
	return func(_ map[string]*source.Service, status source.Status) bool {
		return !status.StaleSince.IsZero() && strings.Contains(status.Err, text)
	}
}

// state is a copy of what was told.
func (k *sink) state() map[string]*source.Service {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string]*source.Service{}
	for name, s := range k.services {
		out[name] = s
	}
	return out
}

// quick is the timing of tests. A question that waits where it should not waits
// for longer than any test.
var quick = Timing{
	Wait: time.Hour, Timeout: 2 * time.Second, Pace: 5 * time.Millisecond, Settle: 300 * time.Millisecond,
	Retry: 40 * time.Millisecond, Follow: 10 * time.Millisecond, Save: 10 * time.Millisecond, Resolve: 20 * time.Millisecond,
}

// running is a source that runs against a sink.
type running struct {
	*Source
	*sink
	log  *logBuffer
	stop func()
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// run starts a source; it ends with the test, or by stop.
func run(t *testing.T, settings Settings, options Options) *running {
	t.Helper()
	r := &running{sink: newSink(), log: &logBuffer{}}
	if options.Timing == (Timing{}) {
		options.Timing = quick
	}
	options.Logger = hclog.New(&hclog.LoggerOptions{Output: r.log, Level: hclog.Trace})
	var err error
	if r.Source, err = New(settings, options); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, r.sink) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Errorf("Run did not end within %v", patience)
		}
		if t.Failed() {
			t.Logf("the source's log:\n%s", r.log)
		}
	})
	t.Cleanup(r.stop)
	return r
}
