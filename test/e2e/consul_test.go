package e2e

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/test/consultest"
)

// consulWorld is an agent that follows a real Consul.
type consulWorld struct {
	*host
	server *consultest.Server
	// times are how long after Consul's acknowledgement traffic followed.
	times []string
}

func newConsulWorld(t *testing.T, more string) *consulWorld {
	t.Helper()
	w := &consulWorld{host: newHost(t, "userspace"), server: consultest.Start(t, nil)}
	w.config("patchbay.hcl", fmt.Sprintf(`
source "consul" {
  address = %q
}
dataplane "userspace" {}
%s`, w.server.Address, more))
	w.start()
	return w
}

// instance is a registration of a backend.
func instance(service, id string, b *backend, meta map[string]string) *api.AgentServiceRegistration {
	host, port, _ := net.SplitHostPort(b.address)
	n, _ := strconv.Atoi(port)
	return &api.AgentServiceRegistration{
		Name: service, ID: id, Address: host, Port: n, Tags: []string{"patchbay"}, Meta: maps.Clone(meta),
		Weights: &api.AgentWeights{Passing: 1, Warning: 1},
	}
}

func (w *consulWorld) register(r *api.AgentServiceRegistration) {
	w.t.Helper()
	if err := w.server.Client().Agent().ServiceRegister(r); err != nil {
		w.t.Fatalf("registering %s: %v", r.ID, err)
	}
}

// follows makes a change in Consul and waits until what clients meet is as it
// should be; it notes how long after Consul's acknowledgement that began.
func (w *consulWorld) follows(what string, change func() error, is func() error) {
	w.t.Helper()
	if err := change(); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	acknowledged := time.Now()
	var began time.Time
	w.eventually(what, func() error {
		now := time.Now()
		err := is()
		if err == nil {
			began = now
		}
		return err
	})
	w.times = append(w.times, fmt.Sprintf("%-45s %v", what, began.Sub(acknowledged).Round(time.Millisecond)))
}

// answeredBy is a condition: new connections reach these backends, all of them
// and no other.
func (w *consulWorld) answeredBy(address string, names ...string) func() error {
	return func() error {
		got := answers(w.t, address, 5*len(names)+3)
		seen := slices.Sorted(maps.Keys(got))
		slices.Sort(names)
		if !slices.Equal(seen, names) {
			return fmt.Errorf("answers came from %v, want from %q", got, names)
		}
		return nil
	}
}

// TestConsul follows a service through all that may happen to its instances,
// under load: no connection fails while there is an instance that lives.
func TestConsul(t *testing.T) {
	t.Parallel()
	w := newConsulWorld(t, "")
	consul := w.server.Client().Agent()
	address := at(frontend(t))
	vip, port, _ := net.SplitHostPort(address)
	meta := map[string]string{"patchbay-vip": vip, "patchbay-port": port}
	a, b, c, d := newBackend(t, "a"), newBackend(t, "b"), newBackend(t, "c"), newBackend(t, "d")

	first := instance("web", "web-a", a, meta)
	first.Check = &api.AgentServiceCheck{CheckID: "web-a-http", HTTP: "http://" + a.address + "/health", Interval: "200ms", Timeout: "5s", Status: "passing"}
	second := instance("web", "web-b", b, meta)
	second.Check = &api.AgentServiceCheck{CheckID: "web-b-ttl", TTL: "20m", Status: "passing"}
	w.follows("two instances are registered", func() error {
		w.register(first)
		w.register(second)
		// What is told of a check is kept over a restart of Consul.
		return consul.UpdateTTL("web-b-ttl", "", "passing")
	}, w.answeredBy(address, "a", "b"))
	w.awaitService("web", admin.StateOK, "")

	l := newLoad(t, address, 3)
	w.follows("a is put into maintenance", func() error { return consul.EnableServiceMaintenance("web-a", "a new disk") }, w.answeredBy(address, "b"))
	w.follows("a is back", func() error { return consul.DisableServiceMaintenance("web-a") }, w.answeredBy(address, "a", "b"))
	w.follows("b's TTL check is critical", func() error { return consul.UpdateTTL("web-b-ttl", "", "critical") }, w.answeredBy(address, "a"))
	w.follows("b's TTL check is passing", func() error { return consul.UpdateTTL("web-b-ttl", "", "passing") }, w.answeredBy(address, "a", "b"))
	w.follows("a's HTTP check fails (Consul's interval incl.)", func() error { a.sick.Store(true); return nil }, w.answeredBy(address, "b"))
	w.follows("a's HTTP check is well (Consul's interval incl.)", func() error { a.sick.Store(false); return nil }, w.answeredBy(address, "a", "b"))
	w.follows("b is deregistered", func() error { return consul.ServiceDeregister("web-b") }, w.answeredBy(address, "a"))
	w.follows("b is registered again, at another port", func() error {
		second = instance("web", "web-b", c, meta)
		second.Check = &api.AgentServiceCheck{CheckID: "web-b-ttl", TTL: "20m", Status: "passing"}
		w.register(second)
		return consul.UpdateTTL("web-b-ttl", "", "passing")
	}, w.answeredBy(address, "a", "c"))
	w.follows("a moves to another port", func() error {
		host, port, _ := net.SplitHostPort(d.address)
		first.Address, first.Port = host, atoi(port)
		first.Check.HTTP = "http://" + d.address + "/health"
		w.register(first)
		return nil
	}, w.answeredBy(address, "c", "d"))
	w.follows("weights change", func() error {
		first.Weights = &api.AgentWeights{Passing: 9, Warning: 1}
		w.register(first)
		return nil
	}, func() error {
		list, err := w.client.Endpoints(t.Context(), "web")
		if err != nil || !slices.ContainsFunc(list.Endpoints, func(e admin.Endpoint) bool { return e.Weight == 9 && e.State == "active" }) {
			return fmt.Errorf("endpoints are %+v, error %v", list.Endpoints, err)
		}
		return nil
	})
	w.follows("meta changes the balance", func() error {
		first.Meta["patchbay-balance"] = "least_connections"
		w.register(first)
		return nil
	}, func() error {
		s, err := w.client.Service(t.Context(), "web")
		if err != nil || s.Policy.Balance != "least_connections" {
			return fmt.Errorf("the policy is %+v, error %v", s.Policy, err)
		}
		return nil
	})
	w.follows("weights and meta change back", func() error {
		first.Weights = &api.AgentWeights{Passing: 1, Warning: 1}
		delete(first.Meta, "patchbay-balance")
		w.register(first)
		return nil
	}, w.answeredBy(address, "c", "d"))
	w.follows("tags: one instance without ours is still of the service", func() error {
		second.Tags = []string{"v2"}
		w.register(second)
		return nil
	}, w.answeredBy(address, "c", "d"))

	w.server.Kill()
	w.eventually("the source is stale", func() error {
		out, _, _ := w.cli("services")
		if !strings.Contains(out, "Source consul: stale since ") {
			return fmt.Errorf("patchbay services says:\n%s", out)
		}
		return nil
	})
	done := l.done.Load()
	w.eventually("traffic goes on without Consul", func() error {
		if more := l.done.Load() - done; more < 500 {
			return fmt.Errorf("%d connections so far", more)
		}
		return nil
	})
	if text, err := w.get("/healthz"); err != nil || !strings.Contains(text, "source consul is stale since") || !strings.Contains(text, `"healthy": true`) {
		t.Errorf("/healthz: %v, %s", err, text)
	}
	w.server.Restart()
	w.eventually("the source is read again", func() error {
		if out, _, _ := w.cli("services"); strings.Contains(out, "Source consul") {
			return fmt.Errorf("patchbay services says:\n%s", out)
		}
		return nil
	})
	w.eventually("both are there again", w.answeredBy(address, "c", "d"))
	w.follows("after Consul's restart: a is put into maintenance", func() error { return consul.EnableServiceMaintenance("web-a", "") }, w.answeredBy(address, "c"))
	w.follows("after Consul's restart: a is back", func() error { return consul.DisableServiceMaintenance("web-a") }, w.answeredBy(address, "c", "d"))
	if failed := l.end(); len(failed) > 0 {
		t.Errorf("%d of %d connections failed, the first: %s", len(failed), l.done.Load(), failed[0])
	}
	w.follows("no instance has the tag any more", func() error {
		first.Tags = nil
		w.register(first)
		return nil
	}, func() error {
		if got, err := get(t.Context(), address); err == nil {
			return fmt.Errorf("%s answers", got)
		}
		if s, err := w.service("web"); err == nil && s.Endpoints.Active > 0 {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
	t.Logf("from Consul's acknowledgement to the first of the connections that follow it, under the load of %d connections:\n%s",
		l.done.Load(), strings.Join(w.times, "\n"))
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// TestConsulBadMeta: meta that can't be used rejects its service alone, and
// says why.
func TestConsulBadMeta(t *testing.T) {
	t.Parallel()
	w := newConsulWorld(t, "")
	b := newBackend(t, "b")
	address := at(frontend(t))
	vip, port, _ := net.SplitHostPort(address)
	good := map[string]string{"patchbay-vip": vip, "patchbay-port": port}
	w.register(instance("web", "web-1", b, good))
	w.eventually("web is answered", w.answeredBy(address, "b"))
	for _, c := range []struct{ name, key, value, reason string }{
		{"bad-port", "patchbay-port", "eighty", `meta patchbay-port = "eighty" can't be used`},
		{"bad-vip", "patchbay-vip", "ten", `meta patchbay-vip = "ten" can't be used`},
		{"bad-dataplane", "patchbay-dataplane", "nosuch", `no dataplane "nosuch"`},
		// Of two that say the same address in meta, the name that comes first
		// has it.
		{"x-taken-vip", "", "", "belongs to service \"web\""},
		{"no-port", "patchbay-port", "", "can't be used"},
	} {
		meta := maps.Clone(good)
		if c.key != "" {
			meta["patchbay-vip"] = frontend(t)
			meta[c.key] = c.value
		}
		w.register(instance(c.name, c.name, b, meta))
		w.awaitService(c.name, admin.StateRejected, c.reason)
		if out, _, _ := w.cli("services"); !strings.Contains(out, c.name) || !strings.Contains(out, "rejected") {
			t.Errorf("patchbay services says:\n%s", out)
		}
	}
	w.awaitService("web", admin.StateOK, "")
	w.awaitOnly(address, "b")
}

// TestConsulLosesItsData: an agent started without Consul has what was known,
// a Consul that has forgotten everything takes nothing away, and the operator
// has the last word.
func TestConsulLosesItsData(t *testing.T) {
	t.Parallel()
	w := newConsulWorld(t, "")
	b := newBackend(t, "b")
	address := at(frontend(t))
	vip, port, _ := net.SplitHostPort(address)
	w.register(instance("web", "web-1", b, map[string]string{"patchbay-vip": vip, "patchbay-port": port}))
	w.eventually("web is answered", w.answeredBy(address, "b"))

	w.server.Kill()
	w.stop()
	w.start()
	w.eventually("web is answered without Consul, after a restart", w.answeredBy(address, "b"))

	w.server.Wipe()
	w.server.Restart()
	w.eventually("the loss is shown", func() error {
		if out, _, _ := w.cli("services"); !strings.Contains(out, "reload -accept-empty") {
			return fmt.Errorf("patchbay services says:\n%s", out)
		}
		return nil
	})
	w.awaitOnly(address, "b")
	out, errs, code := w.cli("reload", "-accept-empty")
	if code != 0 || !strings.Contains(out, "What source consul has lost is accepted.") {
		t.Errorf("reload -accept-empty: code %d\n%s%s", code, out, errs)
	}
	w.eventually("web is gone", func() error {
		if got, err := get(t.Context(), address); err == nil {
			return fmt.Errorf("%s answers", got)
		}
		return nil
	})

	// The block goes, and comes back.
	w.register(instance("web", "web-1", b, map[string]string{"patchbay-vip": vip, "patchbay-port": port}))
	w.eventually("web is answered again", w.answeredBy(address, "b"))
	w.config("patchbay.hcl", `dataplane "userspace" {}`)
	w.reload()
	w.eventually("web is gone", func() error {
		if got, err := get(t.Context(), address); err == nil {
			return fmt.Errorf("%s answers", got)
		}
		return nil
	})
}
