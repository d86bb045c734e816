package admin

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeBackend answers with what a test sets.
type fakeBackend struct {
	services ServiceList
	health   Health
	// changed ends every Wait.
	changed  chan struct{}
	waited   chan uint64
	released []string
	reload   func() (Reload, error)
	panics   bool
}

func (f *fakeBackend) Version() Version { return Version{Version: "1.2.3", Protocol: 1} }
func (f *fakeBackend) Status() Status   { return Status{View: f.services.View} }
func (f *fakeBackend) Health() Health   { return f.health }

func (f *fakeBackend) Wait(ctx context.Context, index uint64) {
	if f.waited != nil {
		f.waited <- index
	}
	select {
	case <-ctx.Done():
	case <-f.changed:
	}
}

func (f *fakeBackend) Services() ServiceList {
	if f.panics {
		panic("a fault in the backend")
	}
	return f.services
}

func (f *fakeBackend) Service(id string) (ServiceDetail, error) {
	for _, s := range f.services.Services {
		if s.ID == id {
			return ServiceDetail{View: f.services.View, Service: s}, nil
		}
	}
	return ServiceDetail{}, &Error{Status: 404, Message: "there is no service " + id, Hint: "look again"}
}

func (f *fakeBackend) Endpoints(id string) (EndpointList, error) {
	return EndpointList{View: f.services.View, Endpoints: []Endpoint{{Service: id, Address: "127.0.0.1", Port: 80, State: "active"}}}, nil
}

func (f *fakeBackend) Plugins() PluginList { return PluginList{View: f.services.View} }

func (f *fakeBackend) Explain(_ context.Context, address netip.AddrPort) (Explanation, error) {
	return Explanation{Address: address, Verdict: "nobody's"}, nil
}

func (f *fakeBackend) Plan(context.Context) (Plan, error)     { return Plan{Valid: true}, nil }
func (f *fakeBackend) Reload(context.Context) (Reload, error) { return f.reload() }

func (f *fakeBackend) AcceptEmpty() []string { return []string{"consul"} }
func (f *fakeBackend) Leases() LeaseList     { return LeaseList{View: f.services.View} }

func (f *fakeBackend) ReleaseLease(service string) error {
	f.released = append(f.released, service)
	return nil
}

// serve runs a server with that backend on a socket, and gives a client.
func serve(t *testing.T, backend Backend) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "patchbay.sock")
	listener, err := ListenSocket(path, "", "")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(backend, NewMetrics(func() *Sample { return fullSample() }).Registry, hclog.NewNullLogger())
	server.Serve(listener)
	client := NewClient(path)
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client
}

// raw sends bytes to the socket as they are and gives what comes back.
func raw(t *testing.T, socket, text string) string {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	// A server that has had enough closes before it has read all.
	_, _ = conn.Write([]byte(text))
	buffer := make([]byte, 64<<10)
	n, _ := conn.Read(buffer)
	return string(buffer[:n])
}

// fullSample has a value for every metric.
func fullSample() *Sample {
	counters := dataplane.Counters{Connections: 7, Active: 2, BytesIn: 100, BytesOut: 200, Failed: 1}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &Sample{
		Version:  "1.2.3",
		Revision: 12,
		Healthy:  true,
		ByState:  map[ServiceState]int{StateOK: 2, StateRejected: 1},
		Endpoints: EndpointCount{
			Active: 4, Draining: 1, Unused: 2,
		},
		Sources:       []SourceStatus{{Name: "static", Read: true}},
		LeasesHeld:    map[string]int{"default": 2},
		LeasesResting: map[string]int{"default": 1},
		ConfigLoaded:  now,
		ConfigValid:   true,
		ReloadsOK:     3,
		ReloadsFailed: 1,
		Carriers: []CarrierSample{{
			DataplaneStatus: DataplaneStatus{Name: "userspace", Connected: true, Acknowledged: 12},
			Carried:         2, Full: 1, Difference: 5, Check: 3, Errors: 1, Upserted: 8, Deleted: 1, Starts: 2, Crashes: 1,
			LogLinesDropped: 4, Repaired: 1, Unrepaired: 2, Totals: counters, RefusedTotal: 3, StatisticsKnown: true,
			ServicesCounters: []dataplane.ServiceStatistics{{ID: "web", Counters: counters, Refused: 3}},
		}},
	}
}
