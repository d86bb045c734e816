package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// frontend gives an address on the loopback network that nobody else of these
// tests uses.
func frontend(t *testing.T) string {
	t.Helper()
	n := frontends.Add(1)
	// Other runs of the tests on this machine have another second byte, mostly.
	return fmt.Sprintf("127.%d.%d.%d", 100+frontendSeed%100, n/250+1, n%250+1)
}

var (
	frontends    atomic.Uint32
	frontendSeed = time.Now().UnixNano() / 1000
	// frontendPort is one that nobody listens on for all addresses, mostly, and
	// that no client gets for its own end.
	frontendPort = 11000 + frontendSeed%20000
)

// at gives the address and port of a frontend.
func at(vip string) string { return fmt.Sprintf("%s:%d", vip, frontendPort) }

// freeAddress gives a TCP address that nobody listens on just now.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// backend is an HTTP server that answers with its name.
type backend struct {
	name, address string
	requests      atomic.Int64
	sick          atomic.Bool
	server        *http.Server
	done          chan struct{}
}

func newBackend(t *testing.T, name string) *backend {
	t.Helper()
	b := &backend{name: name, done: make(chan struct{})}
	b.listen(t, "127.0.0.1:0")
	return b
}

func (b *backend) listen(t *testing.T, address string) {
	t.Helper()
	listener, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	b.address = listener.Addr().String()
	b.server = &http.Server{Handler: b}
	done := b.done
	go func() {
		defer close(done)
		_ = b.server.Serve(listener)
	}()
	t.Cleanup(b.close)
}

func (b *backend) close() {
	_ = b.server.Close()
	<-b.done
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		if b.sick.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	}
	b.requests.Add(1)
	_, _ = io.WriteString(w, b.name)
}

// hcl gives an endpoint block for the backend.
func (b *backend) hcl(more string) string {
	return fmt.Sprintf("  endpoint {\n    address = %q\n    %s\n  }\n", b.address, more)
}

// get asks through a new connection.
func get(ctx context.Context, address string) (string, error) { return getPath(ctx, address, "/") }

func getPath(ctx context.Context, address, path string) (string, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// get asks the agent's own API for something that is no JSON of a list.
func (h *host) get(path string) (string, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", h.socket)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, "http://patchbay"+path, nil)
	if err != nil {
		return "", err
	}
	answer, err := (&http.Client{Transport: transport, Timeout: patience}).Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// answers asks so many times through new connections and counts who answered.
func answers(t *testing.T, address string, times int) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for range times {
		name, err := get(t.Context(), address)
		if err != nil {
			counts["error: "+err.Error()]++
			continue
		}
		counts[name]++
	}
	return counts
}

// awaitOnly waits until the answers come from these backends, from all of them
// and from no other.
func (h *host) awaitOnly(address string, names ...string) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("%s is answered by %v", address, names), func() error {
		got := answers(h.t, address, 4*len(names)+4)
		for _, name := range names {
			if got[name] == 0 {
				return fmt.Errorf("not by %s: %v", name, got)
			}
		}
		if len(got) != len(names) {
			return fmt.Errorf("by others too: %v", got)
		}
		return nil
	})
}

// load asks without end from some clients, each through a new connection every
// time, until it is stopped.
type load struct {
	stop     context.CancelFunc
	wg       sync.WaitGroup
	done     atomic.Int64
	mu       sync.Mutex
	failures []string
}

func newLoad(t *testing.T, address string, clients int) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{stop: cancel}
	for range clients {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				// The request itself is not cut off by the end of the load.
				_, err := get(context.WithoutCancel(ctx), address)
				l.done.Add(1)
				if err != nil {
					l.mu.Lock()
					l.failures = append(l.failures, err.Error())
					l.mu.Unlock()
				}
			}
		})
	}
	t.Cleanup(func() { l.end() })
	return l
}

// end stops the load and gives what failed.
func (l *load) end() []string {
	l.stop()
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures
}

// awaitDone waits until so many requests are done.
func (l *load) awaitDone(t *testing.T, n int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d requests are done", n), func() error {
		if done := l.done.Load(); done < n {
			return fmt.Errorf("%d are", done)
		}
		return nil
	})
}

// talker is an established connection to a backend that answers each line with
// its name and the line.
type talker struct {
	conn   net.Conn
	reader *bufio.Reader
}

// newEcho is a TCP server that answers each line with its name and the line.
func newEcho(t *testing.T, name string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[conn] = true
			mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				reader := bufio.NewReader(conn)
				for {
					line, err := reader.ReadString('\n')
					if err != nil {
						return
					}
					if _, err := io.WriteString(conn, name+" "+line); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for conn := range conns {
			conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return listener.Addr().String()
}

func talk(t *testing.T, address string) *talker {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &talker{conn, newReader(conn)}
}

func newReader(conn net.Conn) *bufio.Reader { return bufio.NewReader(conn) }

// say sends a line and gives the name of who answers.
func (c *talker) say(line string) (string, error) {
	if err := c.conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c.conn, line+"\n"); err != nil {
		return "", err
	}
	answer, err := c.reader.ReadString('\n')
	if err != nil {
		return "", err
	}
	name, said, _ := strings.Cut(strings.TrimSpace(answer), " ")
	if said != line {
		return name, errors.New("answered " + answer)
	}
	return name, nil
}
