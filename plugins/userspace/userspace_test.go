package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if scene := os.Getenv(namespaceChild); scene != "" {
		os.Exit(runNamespaceChild(scene))
	}
	goleak.VerifyTestMain(m)
}

// plug is a configured dataplane with the state that it has been given.
type plug struct {
	t     *testing.T
	u     *userspace
	state []*dataplane.Service
	rev   uint64
}

func newPlug(t *testing.T, block string) *plug {
	t.Helper()
	p := &plug{t: t, u: newUserspace(options{log: hclog.NewNullLogger()})}
	p.configure(block)
	t.Cleanup(func() {
		if err := p.u.Close(context.Background(), dataplane.CloseDetach); err != nil {
			t.Error(err)
		}
	})
	return p
}

// configure decodes a block as the SDK does.
func (p *plug) configure(block string) dataplane.Adopted {
	p.t.Helper()
	var c Config
	if err := schema.Decode([]byte(block), &c); err != nil {
		p.t.Fatal(err)
	}
	a, err := p.u.Configure(context.Background(), dataplane.Config{Block: &c})
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

// apply gives the dataplane a new state and returns what failed.
func (p *plug) apply(desired ...*dataplane.Service) map[string]string {
	p.t.Helper()
	p.rev++
	update := dataplane.NewUpdate(p.rev, p.state, desired)
	p.state = desired
	if err := p.u.Apply(context.Background(), update); err != nil {
		p.t.Fatal(err)
	}
	failed := map[string]string{}
	for id, err := range update.Failed() {
		failed[id] = err.Error()
	}
	return failed
}

// must is apply of what can't fail.
func (p *plug) must(desired ...*dataplane.Service) {
	p.t.Helper()
	if failed := p.apply(desired...); len(failed) > 0 {
		p.t.Fatal(failed)
	}
}

func (p *plug) inspect(id string) *detail {
	p.t.Helper()
	_, d, err := p.u.Inspect(context.Background(), id)
	if err != nil {
		p.t.Fatal(err)
	}
	return d.(*detail)
}

// service is one on a single frontend.
func service(t *testing.T, id string, front netip.AddrPort, options string, backends ...*backend) *dataplane.Service {
	t.Helper()
	s := &dataplane.Service{
		ID:         id,
		Frontends:  []dataplane.Frontend{{Kind: dataplane.Virtual, Address: front.Addr(), Port: front.Port(), Protocol: dataplane.TCP}},
		OnEmpty:    dataplane.EmptyReject,
		OnDrainEnd: dataplane.DrainEndKeep,
		Masquerade: dataplane.MasqueradeAuto,
	}
	o := &ServiceOptions{}
	if options == "" {
		options = "{}"
	}
	if err := schema.Decode([]byte(options), o); err != nil {
		t.Fatal(err)
	}
	s.Options, s.OptionsJSON = o, json.RawMessage(options)
	for _, b := range backends {
		s.Endpoints = append(s.Endpoints, dataplane.Endpoint{Address: b.address, Weight: 1, State: dataplane.StateActive})
	}
	return s
}

func free(t *testing.T, ip string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// backend says its name, then echoes.
type backend struct {
	address netip.AddrPort
	l       net.Listener
	done    sync.WaitGroup
	mu      sync.Mutex
	open    map[net.Conn]bool
}

func newBackend(t *testing.T, ip, name string) *backend {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{address: l.Addr().(*net.TCPAddr).AddrPort(), l: l, open: map[net.Conn]bool{}}
	b.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.open[c] = true
			b.mu.Unlock()
			b.done.Go(func() {
				fmt.Fprintln(c, name)
				io.Copy(c, c)
				c.Close()
				b.mu.Lock()
				delete(b.open, c)
				b.mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		b.mu.Lock()
		for c := range b.open {
			c.Close()
		}
		b.mu.Unlock()
		b.done.Wait()
	})
	return b
}

// client is a connection that knows whom it talks to.
type client struct {
	net.Conn
	name string
}

func connect(t *testing.T, a netip.AddrPort) (*client, error) {
	t.Helper()
	c, err := net.DialTimeout("tcp", a.String(), patience)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	k := &client{Conn: c}
	for b := make([]byte, 1); ; {
		if _, err := c.Read(b); err != nil {
			return nil, err
		}
		if b[0] == '\n' {
			return k, nil
		}
		k.name += string(b)
	}
}

func mustConnect(t *testing.T, a netip.AddrPort) *client {
	t.Helper()
	c, err := connect(t, a)
	if err != nil {
		t.Fatalf("connecting to %s: %v", a, err)
	}
	return c
}

func (c *client) say(t *testing.T, text string) {
	t.Helper()
	b := make([]byte, len(text))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b); err != nil || string(b) != text {
		t.Fatalf("said %q, got %q, %v", text, b, err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}

func TestTraffic(t *testing.T) {
	p := newPlug(t, `{"capture": "bind"}`)
	a, b := newBackend(t, "127.8.5.1", "a"), newBackend(t, "::1", "b")
	four, six := free(t, "127.8.5.2"), free(t, "::1")
	s := service(t, "web", four, "", a, b)
	s.Frontends = append(s.Frontends, dataplane.Frontend{Kind: dataplane.Virtual, Address: six.Addr(), Port: six.Port(), Protocol: dataplane.TCP})
	p.must(s)

	got := map[string]int{}
	for range 10 {
		got[mustConnect(t, four).name]++
		got[mustConnect(t, six).name]++
	}
	if diff := cmp.Diff(map[string]int{"a": 10, "b": 10}, got); diff != "" {
		t.Error(diff)
	}
	k := mustConnect(t, four)
	k.say(t, "hello")
	list, err := p.u.Statistics(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].ID != "web" || list[0].Connections != 21 || list[0].BytesIn != 5 || list[0].BytesOut != 21*2+5 ||
		len(list[0].Endpoints) != 2 || list[0].Endpoints[0].Connections+list[0].Endpoints[1].Connections != 21 {
		t.Errorf("statistics: %+v", list)
	}
	text, _, err := p.u.Inspect(context.Background(), "web")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"listens on " + four.String(), "listens on " + six.String(), "21 in all", a.address.String(), b.address.String()} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if _, _, err := p.u.Inspect(context.Background(), "other"); !errors.Is(err, dataplane.ErrUnknownService) {
		t.Errorf("an unknown service: %v", err)
	}

	p.must() // nothing any more
	if _, err := connect(t, four); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a removed service: %v", err)
	}
	k.say(t, "but established ones go on")
}

func TestFailures(t *testing.T) {
	p := newPlug(t, "{}")
	b := newBackend(t, "127.8.5.3", "b")
	taken, err := net.Listen("tcp", "127.8.5.4:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := taken.Addr().(*net.TCPAddr).AddrPort()
	good := free(t, "127.8.5.5")

	nowhere := service(t, "nowhere", netip.MustParseAddrPort("192.0.2.77:80"), "", b)
	nowhere.Frontends[0].Kind = dataplane.Node
	sctp := service(t, "sctp", free(t, "127.8.5.5"), "", b)
	sctp.Frontends[0].Protocol = dataplane.SCTP
	odd := service(t, "odd", free(t, "127.8.5.5"), "", b)
	odd.Balance = "wrr"
	failed := p.apply(service(t, "busy", busy, "", b), nowhere, sctp, odd, service(t, "good", good, "", b))
	for id, want := range map[string]string{
		"busy":    busy.String() + " is taken by another program",
		"nowhere": "address 192.0.2.77 is not on this node; add it or a local route",
		"sctp":    "userspace carries tcp and udp",
		"odd":     `balance "wrr": userspace has round_robin, least_connections, random, source_hash, maglev`,
	} {
		if !strings.Contains(failed[id], want) {
			t.Errorf("%s: %q, want %q", id, failed[id], want)
		}
	}
	if len(failed) != 4 {
		t.Errorf("failed: %v", failed)
	}
	if c := mustConnect(t, good); c.name != "b" {
		t.Error(c.name)
	}
	// The core sends a failed service again.
	taken.Close()
	update := dataplane.NewUpdate(9, p.state[1:], p.state)
	if err := p.u.Apply(context.Background(), update); err != nil || len(update.Failed()) != 0 {
		t.Errorf("again: %v, %v", err, update.Failed())
	}
	mustConnect(t, busy)
}

// TestOptions: a service's options win over the block, which may change while
// the dataplane runs, with connections open.
func TestOptions(t *testing.T) {
	p := newPlug(t, `{"retries": 0, "connect_timeout": 200000000}`)
	dead := &backend{address: free(t, "127.8.5.6")}
	alive := newBackend(t, "127.8.5.7", "alive")
	common, own := free(t, "127.8.5.8"), free(t, "127.8.5.8")
	p.must(service(t, "common", common, "", dead, alive), service(t, "own", own, `{"retries": 1, "max_connections": 1}`, dead, alive))

	lost := 0
	for range 10 {
		if _, err := connect(t, common); err != nil {
			lost++
		}
	}
	if lost != 5 {
		t.Errorf("without retries %d of 10 were lost", lost)
	}
	c := mustConnect(t, own) // whichever endpoint comes first
	if _, err := connect(t, own); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a second connection: %v", err)
	}
	if d := p.inspect("own"); d.Refused.Limit != 1 {
		t.Errorf("refused: %+v", d.Refused)
	}

	if a := p.configure(`{"retries": 1, "loops": 7}`); a.Services != 2 {
		t.Errorf("configured again, it found %d services", a.Services)
	}
	for range 10 {
		mustConnect(t, common)
	}
	c.say(t, "still open")
	if n := p.u.engine.Loops(); n == 7 {
		t.Error("the engine was replaced")
	}
	p.configure(`{"max_connections": 1}`)
	if _, err := connect(t, common); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("above the limit of all: %v", err)
	}
	c.say(t, "still open")
}

func TestPolicies(t *testing.T) {
	p := newPlug(t, "{}")
	a, b := newBackend(t, "127.8.5.9", "a"), newBackend(t, "127.8.5.10", "b")
	front := free(t, "127.8.5.11")
	s := service(t, "web", front, "", a, b)
	s.Balance = dataplane.BalanceLeastConnections
	s.Endpoints[0].Weight, s.Endpoints[1].Weight = 0, 3
	p.must(s)
	onA := func(weight uint32) *dataplane.Service {
		n := service(t, "web", front, "", a, b)
		n.Endpoints[0].Weight = weight
		n.Endpoints[1].State = dataplane.StateDraining
		n.Endpoints[1].DrainDeadline = time.Now().Add(time.Hour)
		return n
	}
	old := mustConnect(t, front)
	if old.name != "b" {
		t.Fatalf("weight 0 was served by %s", old.name)
	}
	p.must(onA(1))
	if c := mustConnect(t, front); c.name != "a" {
		t.Errorf("a draining endpoint got a new connection")
	}
	old.say(t, "while draining")
	if d := p.inspect("web").Endpoints[1]; d.State != "draining" || d.DrainDeadline == nil || d.Active != 1 {
		t.Errorf("inspected: %+v", d)
	}

	// Held, it doesn't end connections at the deadline; released, it does.
	if err := p.u.Hold(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	n := onA(1)
	n.OnDrainEnd = dataplane.DrainEndReset
	n.Endpoints[1].DrainDeadline = time.Now().Add(10 * time.Millisecond)
	p.must(n)
	time.Sleep(100 * time.Millisecond)
	old.say(t, "while held")
	if err := p.u.Hold(context.Background(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the drain time: %v", err)
	}

	n = onA(0) // none left
	p.must(n)
	if _, err := connect(t, front); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("without an endpoint: %v", err)
	}
	n = onA(1)
	n.Allow = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	p.must(n)
	if _, err := connect(t, front); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("from outside allow: %v", err)
	}
	list, err := p.u.Statistics(context.Background())
	if err != nil || list[0].Failed != 1 || list[0].Refused != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	n = onA(0)
	n.OnEmpty = dataplane.EmptyDrop
	p.must(n)
	if c, err := net.DialTimeout("tcp", front.String(), 300*time.Millisecond); err == nil {
		c.Close()
		t.Error("on_empty = drop answered")
	} else if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
		t.Errorf("on_empty = drop: %v", err)
	}
}

func TestCloseModes(t *testing.T) {
	for _, mode := range []dataplane.CloseMode{dataplane.CloseDetach, dataplane.CloseHandover, dataplane.CloseCleanup} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			p := newPlug(t, "{}")
			f := &fakeRouter{routes: map[string]string{}}
			p.u.routes = newRoutes(f)
			b := newBackend(t, "127.8.5.12", "b")
			front := free(t, "127.8.5.13")
			p.must(service(t, "web", front, "", b))
			p.u.routes.want("vip", addrs("10.9.0.1"))
			if err := p.u.routes.ensure(addrs("10.9.0.1")[0], true); err != nil {
				t.Fatal(err)
			}
			c := mustConnect(t, front)
			closed := make(chan error, 1)
			go func() { closed <- p.u.Close(context.Background(), mode) }()
			if mode == dataplane.CloseHandover {
				eventually(t, "new connections are refused", func() bool {
					c, err := connect(t, front)
					if err == nil {
						c.Close()
					}
					return errors.Is(err, syscall.ECONNREFUSED)
				})
				c.say(t, "drains")
				c.Close()
			} else if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("an open connection: %v", err)
			}
			if err := <-closed; err != nil {
				t.Error(err)
			}
			if _, err := connect(t, front); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("after the end: %v", err)
			}
			if left := len(f.routes); (left == 0) != (mode == dataplane.CloseCleanup) {
				t.Errorf("%d routes left", left)
			}
			if err := p.u.Apply(context.Background(), dataplane.NewUpdate(1, nil, nil)); !errors.Is(err, errNotConfigured) {
				t.Errorf("an update after the end: %v", err)
			}
		})
	}
}

// TestReadme: the manual page names every argument and option with its default.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []any{&Config{}, &ServiceOptions{}} {
		s, err := schema.Of(of)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range s.Arguments {
			if !strings.Contains(string(page), "`"+a.Name+"`") {
				t.Errorf("README.md doesn't say what %s is", a.Name)
			}
		}
	}
	for _, section := range []string{"Name", "Description", "Syntax", "Examples", "Metrics", "Limits", "Cleanup"} {
		if !strings.Contains(string(page), "\n## "+section+"\n") {
			t.Errorf("README.md has no section %s", section)
		}
	}
}
