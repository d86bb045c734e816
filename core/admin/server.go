package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
)

// Backend is what the API shows and does; the agent is one. All methods may be
// called from any goroutine. An error that is an [*Error] keeps its status and
// hint; any other is answered with 500.
type Backend interface {
	Version() Version
	Status() Status
	Health() Health
	// Wait returns when the index differs from the given one, or ctx ends.
	Wait(ctx context.Context, index uint64)
	Services() ServiceList
	Service(id string) (ServiceDetail, error)
	// Endpoints of one service, of all where id is empty.
	Endpoints(id string) (EndpointList, error)
	Plugins() PluginList
	Explain(ctx context.Context, address netip.AddrPort) (Explanation, error)
	Plan(ctx context.Context) (Plan, error)
	Reload(ctx context.Context) (Reload, error)
	// AcceptEmpty makes the sources believe what they hold back because it
	// takes too much away, and names those that did.
	AcceptEmpty() []string
	Leases() LeaseList
	// ReleaseLease gives back the lease of a service that is no longer there.
	ReleaseLease(service string) error
}

// Limits of the server.
const (
	// maxWait is how long a request may wait for a change.
	maxWait = 10 * time.Minute
	// answerTimeout is how long a request may take besides its wait.
	answerTimeout = 60 * time.Second
	// maxRequests at once on one listener; further ones are told to come back.
	maxRequests = 256
	// maxIdle connections on one TCP listener ask for nothing; beyond that the
	// one that has been idle longest is closed.
	maxIdle = 256
)

// patience of a server with clients that are slow or ask for nothing.
type patience struct{ header, idle time.Duration }

var (
	// socketPatience is for the unix socket, whose clients are ours.
	socketPatience = patience{header: 10 * time.Second, idle: 2 * time.Minute}
	// tcpPatience is for TCP, where anybody may connect.
	tcpPatience = patience{header: 3 * time.Second, idle: 30 * time.Second}
)

// Server answers on any number of listeners.
type Server struct {
	backend  Backend
	log      hclog.Logger
	registry *prometheus.Registry

	// base ends when the server closes, and with it requests that wait.
	base   context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	servers []*http.Server
	wg      sync.WaitGroup
}

// NewServer makes a server; registry is what /metrics shows.
func NewServer(backend Backend, registry *prometheus.Registry, logger hclog.Logger) *Server {
	base, cancel := context.WithCancel(context.Background())
	return &Server{backend: backend, registry: registry, log: logger, base: base, cancel: cancel}
}

// Serve answers the whole API on a listener, in the background until Close.
func (s *Server) Serve(listener net.Listener) { s.serve(listener, s.Handler(), socketPatience, nil) }

// ServeHealth answers /metrics and /healthz alone, for TCP: anybody may connect
// there, so the number of connections is bounded too, in a way that those who
// connect and say nothing don't keep out who asks. Only half-sent requests and
// slow readers count against the limit of the listener.
func (s *Server) ServeHealth(listener net.Listener) {
	idle := newIdleConnections(maxIdle)
	s.serve(netutil.LimitListener(listener, 2*maxRequests+maxIdle), s.HealthHandler(), tcpPatience, idle.follow)
}

func (s *Server) serve(listener net.Listener, handler http.Handler, patience patience, connState func(net.Conn, http.ConnState)) {
	server := &http.Server{
		Handler:           limited(handler),
		ReadHeaderTimeout: patience.header,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       patience.idle,
		ConnState:         connState,
		MaxHeaderBytes:    16 << 10,
		BaseContext:       func(net.Listener) context.Context { return s.base },
		ErrorLog:          log.New(s.log.StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), "", 0),
	}
	s.mu.Lock()
	s.servers = append(s.servers, server)
	s.mu.Unlock()
	s.wg.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the admin API stopped answering", "address", listener.Addr().String(), "error", err)
		}
	})
}

// Close ends all listeners, and waits for the requests in flight up to a
// second.
func (s *Server) Close() {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.mu.Lock()
	servers := s.servers
	s.mu.Unlock()
	for _, server := range servers {
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	}
	s.wg.Wait()
}

// Handler is the whole API.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	s.health(mux)
	mux.HandleFunc("GET /v1/version", answer(func(*http.Request) (any, error) { return s.backend.Version(), nil }))
	mux.HandleFunc("GET /v1/status", s.watched(func(*http.Request) (any, error) { return s.backend.Status(), nil }))
	mux.HandleFunc("GET /v1/services", s.watched(func(*http.Request) (any, error) { return s.backend.Services(), nil }))
	mux.HandleFunc("GET /v1/services/{id}", s.watched(func(r *http.Request) (any, error) {
		return s.backend.Service(r.PathValue("id"))
	}))
	mux.HandleFunc("GET /v1/services/{id}/endpoints", s.watched(func(r *http.Request) (any, error) {
		return s.backend.Endpoints(r.PathValue("id"))
	}))
	mux.HandleFunc("GET /v1/endpoints", s.watched(func(*http.Request) (any, error) { return s.backend.Endpoints("") }))
	mux.HandleFunc("GET /v1/plugins", s.watched(func(*http.Request) (any, error) { return s.backend.Plugins(), nil }))
	mux.HandleFunc("GET /v1/explain", answer(s.explain))
	mux.HandleFunc("GET /v1/plan", answer(func(r *http.Request) (any, error) { return s.backend.Plan(r.Context()) }))
	mux.HandleFunc("POST /v1/reload", answer(s.reload))
	mux.HandleFunc("GET /v1/vip/leases", s.watched(func(*http.Request) (any, error) { return s.backend.Leases(), nil }))
	mux.HandleFunc("DELETE /v1/vip/leases/{service}", answer(func(r *http.Request) (any, error) {
		if err := s.backend.ReleaseLease(r.PathValue("service")); err != nil {
			return nil, err
		}
		return s.backend.Leases(), nil
	}))
	mux.HandleFunc("/", answer(notFound(mux)))
	return mux
}

// HealthHandler is /metrics and /healthz alone.
func (s *Server) HealthHandler() http.Handler {
	mux := http.NewServeMux()
	s.health(mux)
	mux.HandleFunc("/", answer(notFound(nil)))
	return mux
}

func (s *Server) health(mux *http.ServeMux) {
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      newMetricsLog(s.log),
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		health := s.backend.Health()
		status := http.StatusOK
		if !health.Healthy {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, status, health)
	})
}

func (s *Server) explain(r *http.Request) (any, error) {
	text := r.URL.Query().Get("address")
	address, err := netip.ParseAddrPort(text)
	if err != nil || address.Port() == 0 {
		return nil, &Error{
			Status:  http.StatusBadRequest,
			Message: fmt.Sprintf("%q is no address and port", text),
			Hint:    "give them as 10.96.0.1:80 or [fd00::1]:80",
		}
	}
	return s.backend.Explain(r.Context(), address)
}

// watched waits for a change first where the request asks for it with
// ?index=N, at most for ?wait=30s.
func (s *Server) watched(give func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		index, wait, err := waitOf(r)
		if err != nil {
			writeError(w, err)
			return
		}
		if wait > 0 {
			control := http.NewResponseController(w)
			_ = control.SetWriteDeadline(time.Now().Add(wait + answerTimeout))
			_ = control.SetReadDeadline(time.Time{})
			ctx, cancel := context.WithTimeout(r.Context(), wait)
			s.backend.Wait(ctx, index)
			cancel()
		}
		answer(give)(w, r)
	}
}

func waitOf(r *http.Request) (index uint64, wait time.Duration, err error) {
	query := r.URL.Query()
	if !query.Has("index") {
		if query.Has("wait") {
			return 0, 0, &Error{Status: http.StatusBadRequest, Message: "wait without index", Hint: "give the index of the last answer: ?index=N&wait=30s"}
		}
		return 0, 0, nil
	}
	index, err = strconv.ParseUint(query.Get("index"), 10, 64)
	if err != nil {
		return 0, 0, &Error{Status: http.StatusBadRequest, Message: fmt.Sprintf("index %q is no number", query.Get("index"))}
	}
	wait = 30 * time.Second
	if query.Has("wait") {
		wait, err = time.ParseDuration(query.Get("wait"))
		if err != nil || wait < 0 {
			return 0, 0, &Error{Status: http.StatusBadRequest, Message: fmt.Sprintf("wait %q is no duration", query.Get("wait")), Hint: `write it as "30s"`}
		}
	}
	return index, min(wait, maxWait), nil
}

// answer turns what a function gives into an answer.
func answer(give func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		body, err := give(r)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, body)
	}
}

// notFound answers what no pattern takes; with a mux it tells a wrong method
// from a wrong path.
func notFound(mux *http.ServeMux) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		if mux != nil {
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
				other := r.Clone(r.Context())
				other.Method = method
				if _, pattern := mux.Handler(other); pattern != "/" && pattern != "" {
					return nil, &Error{
						Status:  http.StatusMethodNotAllowed,
						Message: fmt.Sprintf("%s is not for %s", r.URL.Path, r.Method),
						Hint:    "use " + method,
					}
				}
			}
		}
		return nil, &Error{Status: http.StatusNotFound, Message: fmt.Sprintf("there is nothing at %s", r.URL.Path)}
	}
}

func writeError(w http.ResponseWriter, err error) {
	var told *Error
	if !errors.As(err, &told) {
		told = &Error{Status: http.StatusInternalServerError, Message: err.Error()}
	}
	if told.Status == 0 {
		told.Status = http.StatusInternalServerError
	}
	writeJSON(w, told.Status, errorBody{told})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	data, err := json.MarshalIndent(body, "", "  ")
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"error":{"message":"the answer can't be encoded"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}

// limited refuses requests beyond maxRequests at once.
func limited(handler http.Handler) http.Handler {
	slots := make(chan struct{}, maxRequests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			handler.ServeHTTP(w, r)
		default:
			_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
			w.Header().Set("Retry-After", "1")
			writeError(w, &Error{Status: http.StatusServiceUnavailable, Message: "too many requests at once"})
		}
	})
}

// reload loads the configuration anew; with accept_empty the sources are then
// told to believe their losses.
func (s *Server) reload(r *http.Request) (any, error) {
	accept := false
	switch text := r.URL.Query().Get("accept_empty"); text {
	case "", "false":
	case "true":
		accept = true
	default:
		return nil, &Error{Status: http.StatusBadRequest, Message: fmt.Sprintf("accept_empty is true or false, not %q", text)}
	}
	result, err := s.backend.Reload(r.Context())
	if err == nil && result.OK && accept {
		result.Accepted = s.backend.AcceptEmpty()
	}
	return result, err
}
