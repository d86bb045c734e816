package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a test waits for something that must come.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(descriptorChild) != "" {
		os.Exit(runDescriptorChild())
	}
	goleak.VerifyTestMain(m)
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}

// newEngine starts an engine that is closed with the test.
func newEngine(t testing.TB, o Options) *Engine {
	t.Helper()
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		if err := e.Close(gone); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return e
}

// set updates services that must not fail.
func set(t testing.TB, e *Engine, services ...Service) {
	t.Helper()
	if errs := e.Update(services, nil); errs != nil {
		t.Fatal(errs)
	}
}

// freeAddress finds a port that is free on an address, below the range of
// outgoing connections where possible.
func freeAddress(t testing.TB, ip string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// peer is a server that hands its accepted connections to a function.
type peer struct {
	net.Listener
	address netip.AddrPort
	done    sync.WaitGroup
	mu      sync.Mutex
	open    map[net.Conn]bool
	served  int
}

// newPeer serves each connection with f, which needn't close it.
func newPeer(t testing.TB, ip string, f func(*net.TCPConn)) *peer {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{Listener: l, address: l.Addr().(*net.TCPAddr).AddrPort(), open: map[net.Conn]bool{}}
	p.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.open[c] = true
			p.served++
			p.mu.Unlock()
			p.done.Go(func() {
				f(c.(*net.TCPConn))
				c.Close()
				p.mu.Lock()
				delete(p.open, c)
				p.mu.Unlock()
			})
		}
	})
	t.Cleanup(p.stop)
	return p
}

func (p *peer) stop() {
	p.Close()
	p.mu.Lock()
	for c := range p.open {
		c.Close()
	}
	p.mu.Unlock()
	p.done.Wait()
}

func (p *peer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served
}

// echo answers everything with itself, to the end.
func echo(c *net.TCPConn) { io.Copy(c, c) }

// named answers each connection with a name and ends it.
func named(name string) func(*net.TCPConn) {
	return func(c *net.TCPConn) { fmt.Fprint(c, name) }
}

func dial(t testing.TB, a netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", a.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// ask connects, and reads to the end.
func ask(a netip.AddrPort) (string, error) { return askBy(&net.Dialer{Timeout: patience}, a) }

func askBy(d *net.Dialer, a netip.AddrPort) (string, error) {
	c, err := d.Dial("tcp", a.String())
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(c)
	return string(b), err
}

// say writes and must read the same back.
func say(t testing.TB, c net.Conn, text string) {
	t.Helper()
	if err := exchange(c, text); err != nil {
		t.Fatal(err)
	}
}

func exchange(c net.Conn, text string) error {
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	b := make([]byte, len(text))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if string(b) != text {
		return fmt.Errorf("said %q, got %q", text, b)
	}
	return nil
}

// endpoint is an active endpoint of weight 1.
func at(p ...*peer) []Endpoint {
	var list []Endpoint
	for _, p := range p {
		list = append(list, Endpoint{Address: p.address, Weight: 1})
	}
	return list
}

func statistics(t testing.TB, e *Engine, id string) ServiceStatistics {
	t.Helper()
	s, ok := e.Service(id)
	if !ok {
		t.Fatalf("no service %s", id)
	}
	return s
}
