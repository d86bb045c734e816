package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

func TestClientGetsWhatTheBackendGives(t *testing.T) {
	want := ServiceList{
		View: View{Index: 4, Revision: 12},
		Services: []Service{{
			ID: "web", State: StateOK, Source: "static", Dataplane: "userspace",
			Frontends: []Frontend{{Kind: dataplane.Virtual, Address: netip.MustParseAddr("127.0.0.10"), Port: 80, Protocol: dataplane.TCP}},
			Endpoints: EndpointCount{Active: 2, Draining: 1}, Acknowledged: 12,
		}, {
			ID: "lost", State: StateRejected, Reason: "no address: set vip or add a vip_pool", Frontends: []Frontend{},
		}},
	}
	client := serve(t, &fakeBackend{services: want})
	got, err := client.Services(t.Context(), Watch{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("what the client got differs (-want +got):\n%s", diff)
	}
	if detail, err := client.Service(t.Context(), "web"); err != nil || detail.Service.ID != "web" {
		t.Errorf("one service: %+v, %v", detail, err)
	}
	if e, err := client.Explain(t.Context(), netip.MustParseAddrPort("[fd00::1]:80")); err != nil || e.Address.String() != "[fd00::1]:80" {
		t.Errorf("explain: %+v, %v", e, err)
	}
}

// TestBodies holds the form of the bodies, which scripts rely on.
func TestBodies(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name string
		body any
		want string
	}{
		{"service", Service{ID: "web", State: StateWaiting, Reason: "why", Frontends: []Frontend{{Kind: dataplane.Virtual, Address: netip.MustParseAddr("127.0.0.10"), Port: 80, Protocol: dataplane.TCP}}},
			`{"id":"web","state":"waiting","reason":"why","frontends":[{"kind":"virtual","address":"127.0.0.10","port":80,"protocol":"tcp"}],"endpoints":{"active":0,"draining":0,"unused":0},"acknowledged_revision":0}`},
		{"seconds", ServicePolicy{Affinity: Seconds(1500 * time.Millisecond)}, `{"affinity_seconds":1.5}`},
		{"time", Endpoint{Service: "web", Address: "127.0.0.1", Port: 1, State: "draining", DrainDeadline: &at},
			`{"service":"web","address":"127.0.0.1","port":1,"weight":0,"state":"draining","drain_deadline":"2026-01-02T03:04:05Z"}`},
		{"error", errorBody{&Error{Status: 404, Message: "what", Hint: "do"}}, `{"error":{"message":"what","hint":"do"}}`},
	} {
		got, err := json.Marshal(c.body)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestErrors(t *testing.T) {
	backend := &fakeBackend{reload: func() (Reload, error) { return Reload{}, fmt.Errorf("loading: %w", errors.New("no room")) }}
	handler := NewServer(backend, NewMetrics(fullSample).Registry, hclog.NewNullLogger()).Handler()
	for _, c := range []struct {
		method, target string
		status         int
		message, hint  string
	}{
		{"GET", "/v1/nothing", 404, "there is nothing at /v1/nothing", ""},
		{"GET", "/", 404, "there is nothing at /", ""},
		{"DELETE", "/v1/services", 405, "/v1/services is not for DELETE", "use GET"},
		{"GET", "/v1/reload", 405, "/v1/reload is not for GET", "use POST"},
		{"POST", "/v1/reload", 500, "loading: no room", ""},
		{"POST", "/v1/reload?accept_empty=1", 400, `accept_empty is true or false, not "1"`, ""},
		{"GET", "/v1/services/none", 404, "there is no service none", "look again"},
		{"GET", "/v1/explain", 400, `"" is no address and port`, "give them as 10.96.0.1:80 or [fd00::1]:80"},
		{"GET", "/v1/explain?address=10.0.0.1:0", 400, `"10.0.0.1:0" is no address and port`, "give them as 10.96.0.1:80 or [fd00::1]:80"},
		{"GET", "/v1/services?index=x", 400, `index "x" is no number`, ""},
		{"GET", "/v1/services?wait=1s", 400, "wait without index", "give the index of the last answer: ?index=N&wait=30s"},
		{"GET", "/v1/services?index=1&wait=soon", 400, `wait "soon" is no duration`, `write it as "30s"`},
		{"GET", "/v1/services?index=1&wait=-1s", 400, `wait "-1s" is no duration`, `write it as "30s"`},
	} {
		t.Run(c.method+" "+c.target, func(t *testing.T) {
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), c.method, c.target, nil))
			var body errorBody
			if err := json.Unmarshal(recorder.Body.Bytes(), &body); err != nil || body.Error == nil {
				t.Fatalf("the answer is no error's body: %q", recorder.Body)
			}
			got := *body.Error
			got.Status = recorder.Code
			if diff := cmp.Diff(Error{Status: c.status, Message: c.message, Hint: c.hint}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if kind := recorder.Header().Get("Content-Type"); kind != "application/json" {
				t.Errorf("content type %q", kind)
			}
		})
	}
}

func TestClientTellsErrors(t *testing.T) {
	client := serve(t, &fakeBackend{})
	_, err := client.Service(t.Context(), "none")
	var told *Error
	if !errors.As(err, &told) || told.Status != 404 || told.Hint != "look again" {
		t.Errorf("got %#v", err)
	}
	none := NewClient(t.TempDir() + "/none.sock")
	_, err = none.Version(t.Context())
	if !errors.As(err, &told) || !strings.Contains(told.Message, "none.sock") || !strings.Contains(told.Hint, "-socket") {
		t.Errorf("an agent that isn't there: %v", err)
	}
}

func TestWaitEndsWithAChange(t *testing.T) {
	backend := &fakeBackend{changed: make(chan struct{}), waited: make(chan uint64, 1)}
	client := serve(t, backend)
	done := make(chan error, 1)
	go func() {
		_, err := client.Services(t.Context(), Watch{Index: 7, Wait: 10 * time.Minute})
		done <- err
	}()
	if index := <-backend.waited; index != 7 {
		t.Errorf("waits for the index after %d, want 7", index)
	}
	select {
	case err := <-done:
		t.Fatalf("answered before the change: %v", err)
	default:
	}
	close(backend.changed)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWaitEndsByItself(t *testing.T) {
	client := serve(t, &fakeBackend{changed: make(chan struct{})})
	if _, err := client.Status(t.Context(), Watch{Index: 1, Wait: time.Millisecond}); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsWaits(t *testing.T) {
	backend := &fakeBackend{changed: make(chan struct{}), waited: make(chan uint64, 1)}
	path := t.TempDir() + "/s"
	listener, err := ListenSocket(path, "", "")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(backend, NewMetrics(fullSample).Registry, hclog.NewNullLogger())
	server.Serve(listener)
	client := NewClient(path)
	defer client.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = client.Services(context.Background(), Watch{Index: 1, Wait: 10 * time.Minute})
	}()
	<-backend.waited
	server.Close()
	<-done
}

func TestHealthz(t *testing.T) {
	backend := &fakeBackend{health: Health{Healthy: false, Reasons: []string{"source static has not been read"}}}
	server := NewServer(backend, NewMetrics(fullSample).Registry, hclog.NewNullLogger())
	for _, healthy := range []bool{false, true} {
		if healthy {
			backend.health = Health{Healthy: true, Reasons: []string{}}
		}
		for name, handler := range map[string]http.Handler{"socket": server.Handler(), "tcp": server.HealthHandler()} {
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "GET", "/healthz", nil))
			want := map[bool]int{true: 200, false: 503}[healthy]
			var got Health
			if err := json.Unmarshal(recorder.Body.Bytes(), &got); err != nil || recorder.Code != want {
				t.Errorf("%s: status %d, want %d; %v", name, recorder.Code, want, err)
			}
			if diff := cmp.Diff(backend.health, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}

func TestTCPServesNothingElse(t *testing.T) {
	handler := NewServer(&fakeBackend{}, NewMetrics(fullSample).Registry, hclog.NewNullLogger()).HealthHandler()
	for _, target := range []string{"/v1/services", "/v1/reload", "/v1/status"} {
		for _, method := range []string{"GET", "POST"} {
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), method, target, nil))
			if recorder.Code != 404 {
				t.Errorf("%s %s: status %d, want 404", method, target, recorder.Code)
			}
		}
	}
}

func TestServerSurvives(t *testing.T) {
	backend := &fakeBackend{panics: true}
	client := serve(t, backend)
	if _, err := client.Services(t.Context(), Watch{}); err == nil {
		t.Error("a backend that panics gave an answer")
	}
	long := strings.Repeat("x", 1<<20)
	for _, request := range []string{
		"\x00\x01\x02\r\n\r\n",
		"GET / HTTP/9.9\r\n\r\n",
		"GET /" + long + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/services/%ff%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
	} {
		if answer := raw(t, client.socket, request); strings.Contains(answer, " 200 ") {
			t.Errorf("%.40q is answered with %.80q", request, answer)
		}
	}
	if _, err := client.Version(t.Context()); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

func TestJudge(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	since := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	read := []SourceStatus{{Name: "static", Read: true}}
	for _, c := range []struct {
		name       string
		sources    []SourceStatus
		dataplanes []DataplaneStatus
		want       []string
	}{
		{"all well", read, []DataplaneStatus{{Name: "userspace", Connected: true}}, []string{}},
		{"nothing at all", nil, nil, []string{}},
		{"a source unread", []SourceStatus{{Name: "consul", Error: "refused"}}, nil, []string{"source consul has not been read: refused"}},
		{"a source stale but read", []SourceStatus{{Name: "consul", Read: true, StaleSince: since(time.Hour), Error: "refused"}}, nil, []string{}},
		{"no plugin", read, []DataplaneStatus{{Name: "ipvs", Error: "no file"}}, []string{"dataplane ipvs is not connected: no file"}},
		{"silent", read, []DataplaneStatus{{Name: "ipvs", Connected: true, SilentSince: since(7 * time.Second), WaitingSince: since(61 * time.Second)}},
			[]string{"dataplane ipvs: its plugin has not answered for 7s"}},
		{"waiting for as long as allowed", read, []DataplaneStatus{{Name: "ipvs", Connected: true, WaitingSince: since(60 * time.Second)}}, []string{}},
		{"waiting for too long", read, []DataplaneStatus{{Name: "ipvs", Connected: true, WaitingSince: since(61 * time.Second), Error: "timeout"}},
			[]string{"dataplane ipvs has not acknowledged a change for 1m1s, the limit is 1m0s: timeout"}},
		{"held", read, []DataplaneStatus{{Name: "ipvs", Connected: true, WaitingSince: since(2 * time.Minute), Holding: "on hold", Error: "timeout"}},
			[]string{"dataplane ipvs has not acknowledged a change for 2m0s, the limit is 1m0s: on hold"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Judge(nil, c.sources, c.dataplanes, 30*time.Second, now)
			notes := got.Notes
			got.Notes = nil
			if diff := cmp.Diff(Health{Healthy: len(c.want) == 0, Reasons: c.want}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			var want []string
			if c.name == "a source stale but read" {
				want = []string{"source consul is stale since 2026-01-02T02:04:05Z: refused"}
			}
			if diff := cmp.Diff(want, notes); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReloadAccepting: losses are accepted only where that is asked for, and
// only with a configuration that is in force.
func TestReloadAccepting(t *testing.T) {
	backend := &fakeBackend{reload: func() (Reload, error) { return Reload{OK: true}, nil }}
	client := serve(t, backend)
	if r, err := client.Reload(t.Context()); err != nil || r.Accepted != nil {
		t.Errorf("reload: %v, accepted %q", err, r.Accepted)
	}
	if r, err := client.ReloadAccepting(t.Context()); err != nil || len(r.Accepted) != 1 {
		t.Errorf("accepting reload: %v, accepted %q", err, r.Accepted)
	}
	backend = &fakeBackend{reload: func() (Reload, error) { return Reload{}, nil }}
	client = serve(t, backend)
	if r, err := client.ReloadAccepting(t.Context()); err != nil || r.Accepted != nil {
		t.Errorf("accepting reload with mistakes: %v, accepted %q", err, r.Accepted)
	}
}
