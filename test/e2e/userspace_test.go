package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

// web is a configuration of one service on a frontend, carried by userspace.
func web(vip string, body ...string) string {
	return fmt.Sprintf("dataplane \"userspace\" {\n  default = true\n}\nservice \"web\" {\n  vip  = [%q]\n  port = %d\n  drain = \"1h\"\n%s}\n",
		vip, frontendPort, strings.Join(body, ""))
}

func TestTrafficFollows(t *testing.T) {
	t.Parallel()
	h := newHost(t, "userspace")
	vip := frontend(t)
	address := at(vip)
	a, b, c := newBackend(t, "a"), newBackend(t, "b"), newBackend(t, "c")
	h.config("patchbay.hcl", "watch_files = true\n"+web(vip, a.hcl("")))
	h.start()
	h.awaitService("web", admin.StateOK, "")
	h.awaitOnly(address, "a")

	h.config("patchbay.hcl", "watch_files = true\n"+web(vip, a.hcl(""), b.hcl("")))
	h.awaitOnly(address, "a", "b") // by itself

	h.config("patchbay.hcl", web(vip, b.hcl(""), c.hcl("")))
	h.signal(syscall.SIGHUP)
	h.awaitOnly(address, "b", "c")

	h.config("patchbay.hcl", web(vip, c.hcl("")))
	h.reload()
	h.awaitOnly(address, "c")

	// Without any endpoint a client is refused, at once.
	h.config("patchbay.hcl", web(vip, c.hcl("weight = 0")))
	h.reload()
	h.eventually("the client is refused", func() error {
		_, err := get(t.Context(), address)
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) {
			return nil
		}
		return fmt.Errorf("got %w", err)
	})
	h.awaitService("web", admin.StateDegraded, "no endpoint takes new connections")
	h.config("patchbay.hcl", web(vip, a.hcl("")))
	h.reload()
	h.awaitOnly(address, "a")
	h.awaitService("web", admin.StateOK, "")

	// A service that is gone listens no more.
	h.config("patchbay.hcl", "dataplane \"userspace\" {\n  default = true\n}\n")
	h.reload()
	h.eventually("nobody listens", func() error {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			conn.Close()
			return errors.New("somebody does")
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		return nil
	})
}

func TestTrafficFollowsHealthCheck(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{`http = "/health"`, `tcp = true`} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "userspace")
			vip := frontend(t)
			address := at(vip)
			a, b := newBackend(t, "a"), newBackend(t, "b")
			check := "  check {\n    " + kind + "\n    interval = \"100ms\"\n    timeout = \"5s\"\n    rise = 2\n    fall = 2\n  }\n"
			h.config("patchbay.hcl", web(vip, a.hcl(""), b.hcl(""), check))
			h.start()
			h.awaitOnly(address, "a", "b")
			if strings.HasPrefix(kind, "http") {
				b.sick.Store(true)
			} else {
				b.close()
			}
			h.awaitOnly(address, "a")
			h.eventually("the failing endpoint is shown with its reason", func() error {
				list, err := h.client.Endpoints(t.Context(), "web")
				if err == nil && !slices.ContainsFunc(list.Endpoints, func(e admin.Endpoint) bool {
					return e.Health == "critical" && e.State != "active" && e.Reason != ""
				}) {
					err = fmt.Errorf("%+v", list.Endpoints)
				}
				return err
			})
			h.awaitOnly(address, "a")
			if strings.HasPrefix(kind, "http") {
				b.sick.Store(false)
			} else {
				b.done = make(chan struct{})
				b.listen(t, b.address)
			}
			h.awaitOnly(address, "a", "b")
		})
	}
}

func TestWeights(t *testing.T) {
	t.Parallel()
	h := newHost(t, "userspace")
	vip := frontend(t)
	address := at(vip)
	a, b, c := newBackend(t, "a"), newBackend(t, "b"), newBackend(t, "c")
	h.config("patchbay.hcl", web(vip, a.hcl("weight = 1"), b.hcl("weight = 3"), c.hcl("weight = 0")))
	h.start()
	h.awaitOnly(address, "a", "b")
	share := func(want float64) {
		t.Helper()
		const n = 400
		got := answers(t, address, n)
		if ratio := float64(got["b"]) / n; ratio < want-0.1 || ratio > want+0.1 || got["a"]+got["b"] != n {
			t.Errorf("b has a share of %.2f, want about %.2f: %v", ratio, want, got)
		}
	}
	share(0.75)
	h.config("patchbay.hcl", web(vip, a.hcl("weight = 9"), b.hcl("weight = 1"), c.hcl("weight = 0")))
	h.reload()
	h.eventually("the weights are acknowledged", func() error {
		list, err := h.client.Endpoints(t.Context(), "web")
		i := slices.IndexFunc(list.Endpoints, func(e admin.Endpoint) bool { return e.Weight == 9 })
		if err == nil && (i < 0 || mustState(h, "web") != admin.StateOK) {
			err = fmt.Errorf("%+v", list.Endpoints)
		}
		return err
	})
	share(0.1)
}

func mustState(h *host, id string) admin.ServiceState {
	s, err := h.service(id)
	if err != nil {
		h.t.Fatal(err)
	}
	return s.State
}

// TestDrainingKeepsConnections: an endpoint that leaves the file keeps its
// connections, also when it was the last one.
func TestDrainingKeepsConnections(t *testing.T) {
	t.Parallel()
	h := newHost(t, "userspace")
	vip := frontend(t)
	address := at(vip)
	first, second := newEcho(t, "first"), newEcho(t, "second")
	endpoint := func(a string) string { return fmt.Sprintf("  endpoint { address = %q }\n", a) }
	h.config("patchbay.hcl", web(vip, endpoint(first)))
	h.start()
	h.awaitService("web", admin.StateOK, "")
	old := talk(t, address)
	if name, err := old.say("hello"); err != nil || name != "first" {
		t.Fatalf("%s, %v", name, err)
	}

	h.config("patchbay.hcl", web(vip, endpoint(second)))
	h.reload()
	h.eventually("new connections reach the second", func() error {
		c := talk(t, address)
		defer c.conn.Close()
		name, err := c.say("who")
		if err == nil && name != "second" {
			err = errors.New("reached " + name)
		}
		return err
	})
	s := h.awaitService("web", admin.StateOK, "")
	if s.Endpoints.Draining != 1 || s.Endpoints.Active != 1 {
		t.Errorf("endpoints %+v, want one active and one draining", s.Endpoints)
	}
	if name, err := old.say("still there"); err != nil || name != "first" {
		t.Errorf("the established connection after its endpoint left: %s, %v", name, err)
	}
	// The second leaves too, and both established connections go on.
	newer := talk(t, address)
	if name, err := newer.say("hello"); err != nil || name != "second" {
		t.Fatalf("%s, %v", name, err)
	}
	third := newEcho(t, "third")
	h.config("patchbay.hcl", web(vip, endpoint(third)+endpoint(first)))
	h.reload()
	h.eventually("the third is active", func() error {
		s, err := h.service("web")
		if err == nil && (s.Endpoints.Active != 2 || s.State != admin.StateOK) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	for c, want := range map[*talker]string{old: "first", newer: "second"} {
		if name, err := c.say("to the end"); err != nil || name != want {
			t.Errorf("an established connection: %s, %v, want %s", name, err, want)
		}
	}
}

// TestNoRequestIsLost: 10,000 requests while the endpoints change 200 times.
func TestNoRequestIsLost(t *testing.T) {
	t.Parallel()
	const (
		requests = 10_000
		changes  = 200
	)
	h := newHost(t, "userspace")
	vip := frontend(t)
	var backends []*backend
	for i := range 6 {
		backends = append(backends, newBackend(t, fmt.Sprintf("b%d", i)))
	}
	random := rand.New(rand.NewPCG(1, 2))
	next := func() string {
		// At least one of them, each with a weight of its own.
		random.Shuffle(len(backends), func(i, j int) { backends[i], backends[j] = backends[j], backends[i] })
		var endpoints []string
		for _, b := range backends[:1+random.IntN(len(backends))] {
			endpoints = append(endpoints, b.hcl(fmt.Sprintf("weight = %d", 1+random.IntN(5))))
		}
		return web(vip, endpoints...)
	}
	h.config("patchbay.hcl", next())
	h.start()
	h.awaitService("web", admin.StateOK, "")
	load := newLoad(t, at(vip), 4)
	changed := 0
	for range changes {
		h.config("patchbay.hcl", next())
		if h.reload().Changed {
			changed++
		}
		// The load goes on between changes: each has its share of the requests.
		load.awaitDone(t, int64((changed+1)*requests/changes))
	}
	load.awaitDone(t, requests)
	failures := load.end()
	if len(failures) > 0 {
		t.Errorf("%d of %d requests failed, such as: %s", len(failures), load.done.Load(), failures[0])
	}
	if changed < changes*8/10 {
		t.Errorf("only %d of %d changes changed anything", changed, changes)
	}
	total := int64(0)
	for _, b := range backends {
		if b.requests.Load() == 0 {
			t.Errorf("backend %s was never asked", b.name)
		}
		total += b.requests.Load()
	}
	if total != load.done.Load() {
		t.Errorf("the backends answered %d requests of %d", total, load.done.Load())
	}
}

// TestKilledUserspaceComesBack: traffic flows again by itself.
func TestKilledUserspaceComesBack(t *testing.T) {
	t.Parallel()
	h := newHost(t, "userspace")
	vip := frontend(t)
	a := newBackend(t, "a")
	h.config("patchbay.hcl", web(vip, a.hcl("")))
	h.start()
	h.awaitOnly(at(vip), "a")
	pid := h.awaitPlugin("userspace", "running", running).PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.awaitPlugin("userspace", "running anew", func(p admin.Plugin) bool { return running(p) && p.PID != pid })
	h.awaitOnly(at(vip), "a")
	h.awaitService("web", admin.StateOK, "")
}

// TestStatistics: what the plugin counts is what a client did.
func TestStatistics(t *testing.T) {
	t.Parallel()
	h := newHost(t, "userspace")
	vip := frontend(t)
	a := newBackend(t, "a")
	h.config("patchbay.hcl", web(vip, a.hcl("")))
	h.start()
	h.awaitService("web", admin.StateOK, "")
	const n = 25
	h.awaitOnly(at(vip), "a")
	answers(t, at(vip), n)
	want := float64(a.requests.Load())
	h.eventually("the connections are counted", func() error {
		for _, series := range []string{
			`patchbay_service_connections_total{dataplane="userspace",service="web"}`,
			`patchbay_dataplane_connections_total{dataplane="userspace"}`,
		} {
			if v, ok := h.metric(series); !ok || v != want {
				return fmt.Errorf("%s is %v, want %v", series, v, want)
			}
		}
		return nil
	})
	list, err := h.client.Endpoints(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	if s := list.Endpoints[0].Statistics; s == nil || float64(s.Connections) != want || s.BytesOut == 0 {
		t.Errorf("the endpoint's statistics: %+v", s)
	}
}

// TestDescriptorLimit: at the limit new connections are refused, established
// ones go on, and there is room again when some are closed.
func TestDescriptorLimit(t *testing.T) {
	t.Parallel()
	h := newHost(t, "userspace")
	vip := frontend(t)
	address := at(vip)
	echo := newEcho(t, "echo")
	h.config("patchbay.hcl", web(vip, fmt.Sprintf("  endpoint { address = %q }\n", echo)))
	h.wrap = []string{"prlimit", "--nofile=128:128"}
	h.start()
	h.awaitService("web", admin.StateOK, "")
	established := talk(t, address)
	if _, err := established.say("hello"); err != nil {
		t.Fatal(err)
	}
	var held []*talker
	refused := 0
	for range 200 {
		conn, err := net.DialTimeout("tcp", address, 10*time.Second)
		if err != nil {
			refused++
			continue
		}
		c := &talker{conn: conn}
		c.reader = newReader(conn)
		if _, err := c.say("hello"); err != nil {
			refused++
			conn.Close()
			continue
		}
		held = append(held, c)
	}
	if refused == 0 || len(held) == 0 {
		t.Fatalf("%d connections held, %d refused: want some of both", len(held), refused)
	}
	if _, err := established.say("still there"); err != nil {
		t.Errorf("the established connection at the limit: %v", err)
	}
	for _, c := range held {
		c.conn.Close()
	}
	h.eventually("there is room again", func() error {
		conn, err := net.DialTimeout("tcp", address, 10*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		c := &talker{conn: conn, reader: newReader(conn)}
		_, err = c.say("hello")
		return err
	})
	h.eventually("the refused are counted", func() error {
		v, ok := h.metric(`patchbay_dataplane_connections_refused_total{dataplane="userspace"}`)
		if !ok || v == 0 {
			return fmt.Errorf("%v", v)
		}
		return nil
	})
	if n := strings.Count(h.agent.log(), "descriptor"); n == 0 || n > 3 {
		t.Errorf("the log speaks of descriptors %d times, want once a minute:\n%s", n, tail(h.agent.log(), 20))
	}
}
