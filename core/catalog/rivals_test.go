package catalog

import (
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
)

// TestConflicts: two services want one frontend.
func TestConflicts(t *testing.T) {
	const head = "userspace at virtual:10.96.0.1:80/tcp"
	t.Run("the name decides between two in files, whoever came first", func(t *testing.T) {
		w := newWorld(t, blocks(block("a", at("10.96.0.1")), block("b", at("10.96.0.1"))), "consul").read()
		w.say("consul", service("b"))
		w.want("b", head)
		w.say("consul", service("a"))
		w.want("a", head)
		w.want("b", `rejected: frontend 10.96.0.1:80/tcp belongs to service "a", whose name comes first`)
		w.wantChanges("b", "a,b")
		w.unsay("consul", "a")
		w.want("b", head)
	})
	t.Run("another port or protocol is no conflict", func(t *testing.T) {
		w := newWorld(t, blocks(block("a", at("10.96.0.1")), block("b", at("10.96.0.1"), func(b *config.Service) { b.Port = 81 })), "consul").read()
		w.say("consul", service("a"), service("b"))
		w.want("a", head)
		w.want("b", "userspace at virtual:10.96.0.1:81/tcp")
	})
	t.Run("a file comes before meta", func(t *testing.T) {
		w := newWorld(t, blocks(block("z", at("10.96.0.1"))), "consul").read()
		w.say("consul", withMeta(service("a"), "patchbay-port", "80", "patchbay-vip", "10.96.0.1"))
		w.want("a", head)
		w.say("consul", service("z"))
		w.want("z", head)
		w.want("a", `rejected: frontend 10.96.0.1:80/tcp belongs to service "z", whose address is set in a file`)
	})
	t.Run("a lease comes before meta", func(t *testing.T) {
		w := newWorld(t, withPool(blocks(block("z")), "10.96.0.1/32"), "consul").read()
		w.say("consul", service("z"), withMeta(service("a"), "patchbay-port", "80", "patchbay-vip", "10.96.0.1"))
		w.want("z", head)
		w.want("a", `rejected: frontend 10.96.0.1:80/tcp belongs to service "z", which has the lease of the address`)
	})
	t.Run("an address in a file comes before a lease, which others never get", func(t *testing.T) {
		w := newWorld(t, withPool(blocks(block("a")), "10.96.0.1/32"), "consul").read()
		w.say("consul", service("a"))
		w.want("a", head)
		w.configure(func(c *config.Config) { c.Services = append(c.Services, block("z", at("10.96.0.1"))) })
		w.say("consul", service("z"))
		w.want("a", `rejected: frontend 10.96.0.1:80/tcp belongs to service "z", whose address is set in a file`)
		w.unsay("consul", "a")
		w.say("consul", service("a"))
		if got := w.cat.Snapshot().Get("a").Rejected; got != `no address: the pool has no free address: vip_pool "default", 10.96.0.1/32` {
			t.Errorf("rejected: %q", got)
		}
	})
	t.Run("the older lease wins where two meet on a node port", func(t *testing.T) {
		on := func(b *config.Service) { b.NodePort = 30000 }
		w := newWorld(t, withPool(blocks(block("a", on), block("b", on)), "10.96.0.0/24"), "consul").read()
		w.say("consul", service("b"))
		w.pass(time.Second)
		w.say("consul", service("a"))
		if b := w.cat.Snapshot().Get("b"); b.Desired == nil {
			t.Errorf("b is rejected: %s", b.Rejected)
		}
		w.want("a", `rejected: frontend 10.0.0.5:30000/tcp belongs to service "b", whose lease is older`)
	})
	t.Run("what a loser leaves is taken by the next", func(t *testing.T) {
		// a beats b at .1; so b's other address is free for c.
		w := newWorld(t, blocks(block("a", at("10.96.0.1")), block("b", at("10.96.0.1", "fd00::2")), block("c", at("fd00::2"))), "consul").read()
		w.say("consul", service("b"), service("c"))
		w.want("c", `rejected: frontend [fd00::2]:80/tcp belongs to service "b", whose name comes first`)
		w.say("consul", service("a"))
		w.want("c", "userspace at virtual:[fd00::2]:80/tcp")
		w.unsay("consul", "a")
		w.want("b", "userspace at virtual:10.96.0.1:80/tcp virtual:[fd00::2]:80/tcp")
		w.want("c", `rejected: frontend [fd00::2]:80/tcp belongs to service "b", whose name comes first`)
		w.wantChanges("b,c", "a,b,c", "a,b,c")
	})
	t.Run("all frontends of a VIP belong to one dataplane", func(t *testing.T) {
		other := func(b *config.Service) { b.Port, b.Dataplane = 81, "ipvs" }
		w := newWorld(t, blocks(block("a", at("10.96.0.1")), block("b", at("10.96.0.1"), other)), "consul").read()
		w.say("consul", service("b"))
		w.want("b", "ipvs at virtual:10.96.0.1:81/tcp")
		w.say("consul", service("a"))
		w.want("b", `rejected: VIP 10.96.0.1 belongs to dataplane "userspace", because of service "a", whose name comes first`)
		w.unsay("consul", "a")
		w.want("b", "ipvs at virtual:10.96.0.1:81/tcp")
	})
	t.Run("an external address is no VIP, unless it is one of another service", func(t *testing.T) {
		out := func(port uint16, plane string) func(*config.Service) {
			return func(b *config.Service) { b.External, b.Port, b.Dataplane = addresses("203.0.113.1"), port, plane }
		}
		w := newWorld(t, blocks(block("a", out(1, "userspace")), block("b", out(2, "ipvs")), block("c", at("203.0.113.1"), func(b *config.Service) { b.Port = 3 })), "consul").read()
		w.say("consul", service("a"), service("b"))
		w.want("a", "userspace at external:203.0.113.1:1/tcp")
		w.want("b", "ipvs at external:203.0.113.1:2/tcp")
		w.say("consul", service("c"))
		w.want("a", "userspace at external:203.0.113.1:1/tcp")
		w.want("b", "ipvs at external:203.0.113.1:2/tcp")
		w.want("c", `rejected: VIP 203.0.113.1 belongs to dataplane "ipvs", because of service "b", whose name comes first`)
		w.unsay("consul", "b")
		w.want("c", "userspace at virtual:203.0.113.1:3/tcp")
		w.say("consul", service("a"), service("b"))
		w.want("b", "ipvs at external:203.0.113.1:2/tcp")
	})
	t.Run("the node's addresses belong to all dataplanes", func(t *testing.T) {
		w := newWorld(t, blocks(block("a", func(b *config.Service) { b.NodePort = 1 }), block("b", func(b *config.Service) { b.NodePort, b.Dataplane = 2, "ipvs" })), "consul").read()
		w.say("consul", service("a"), service("b"))
		w.want("a", "userspace at node:10.0.0.5:1/tcp")
		w.want("b", "ipvs at node:10.0.0.5:2/tcp")
	})
	t.Run("a service that moves takes its frontend along in one change", func(t *testing.T) {
		w := newWorld(t, blocks(block("a", at("10.96.0.1")), block("b", at("10.96.0.2"))), "consul").read()
		w.say("consul", service("a"), service("b"))
		w.changes = nil
		w.configure(func(c *config.Config) {
			c.Services[0], c.Services[1] = block("a", at("10.96.0.2")), block("b", at("10.96.0.1"))
		})
		w.want("a", "userspace at virtual:10.96.0.2:80/tcp")
		w.want("b", "userspace at virtual:10.96.0.1:80/tcp")
		w.wantChanges("a,b")
	})
}

// TestSharedVIP: vip = service("web").
func TestSharedVIP(t *testing.T) {
	share := func(name string, port uint16) func(*config.Service) {
		return func(b *config.Service) { b.VIPService, b.Port = name, port }
	}
	t.Run("of an address in a file", func(t *testing.T) {
		w := newWorld(t, blocks(block("api", share("web", 81)), block("web", at("10.96.0.1"))), "consul").read()
		w.say("consul", service("api"))
		w.want("api", "userspace at virtual:10.96.0.1:81/tcp")
		w.configure(func(c *config.Config) { c.Services[1] = block("web", at("10.96.0.2")) })
		w.want("api", "userspace at virtual:10.96.0.2:81/tcp")
	})
	t.Run("of a lease, which stays while it is shared", func(t *testing.T) {
		w := newWorld(t, withPool(blocks(block("api", share("web", 81)), block("web")), "10.96.0.1/32"), "consul").read()
		w.say("consul", service("web"))
		w.say("consul", service("api"))
		w.want("api", "userspace at virtual:10.96.0.1:81/tcp")
		w.unsay("consul", "web")
		w.pass(time.Minute)
		w.want("api", "userspace at virtual:10.96.0.1:81/tcp")
		w.unsay("consul", "api")
		w.pass(time.Minute)
		if l := w.leases.List(); len(l) != 1 || l[0].Held() {
			t.Errorf("leases are %v, want one that rests", l)
		}
	})
	t.Run("of a name without a block", func(t *testing.T) {
		w := newWorld(t, withPool(blocks(block("api", share("web", 81))), "10.96.0.1/32"), "consul").read()
		w.say("consul", service("api"))
		w.want("api", "userspace at virtual:10.96.0.1:81/tcp")
		w.want("web", "none")
	})
	t.Run("the owner comes first at a port", func(t *testing.T) {
		w := newWorld(t, withPool(blocks(block("api", share("web", 80)), block("web")), "10.96.0.1/32"), "consul").read()
		w.say("consul", service("api"), service("web"))
		w.want("web", "userspace at virtual:10.96.0.1:80/tcp")
		w.want("api", `rejected: frontend 10.96.0.1:80/tcp belongs to service "web", which has the lease of the address`)
	})
	t.Run("of one that has none, of one that shares, of itself", func(t *testing.T) {
		w := newWorld(t, blocks(block("a", share("b", 80)), block("b"), block("c", share("a", 80)), block("d", share("d", 80))), "consul").read()
		w.say("consul", service("a"), service("b"), service("c"), service("d"))
		w.want("a", `rejected: it shares the VIP of "b", which has none`)
		w.want("c", `rejected: it shares the VIP of "a", which shares that of "b": name the latter`)
		w.want("d", `rejected: it shares the VIP of "d", which shares that of "d": name the latter`)
	})
}

// TestLeases follows a lease through the life of its service.
func TestLeases(t *testing.T) {
	held := func(w *world) (names []string) {
		for _, l := range w.leases.List() {
			if l.Held() {
				names = append(names, l.Service)
			}
		}
		return names
	}
	same := func(t *testing.T, w *world, want ...string) {
		t.Helper()
		if got := held(w); len(got) != len(want) || len(got) > 0 && got[0] != want[0] {
			t.Errorf("leases are held by %q, want %q", got, want)
		}
	}
	cfg := func() *config.Config { return withPool(blocks(block("s")), "10.96.0.0/24") }
	t.Run("taken, given back, taken again with the same address", func(t *testing.T) {
		w := newWorld(t, cfg(), "consul").read()
		same(t, w)
		w.say("consul", service("s"))
		first, _ := w.leases.Lease("s")
		same(t, w, "s")
		w.unsay("consul", "s")
		same(t, w)
		w.pass(23 * time.Hour)
		w.say("consul", service("s"))
		if again, _ := w.leases.Lease("s"); again.Addresses[0] != first.Addresses[0] {
			t.Errorf("the address is %s, before it was %s", again.Addresses[0], first.Addresses[0])
		}
	})
	t.Run("kept until every source has been read", func(t *testing.T) {
		w := newWorld(t, cfg(), "consul", "other")
		if _, err := w.leases.Claim("", "s"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.leases.Claim("", "without-a-block"); err != nil {
			t.Fatal(err)
		}
		w.want("s", "rejected: no source knows it yet: waiting for static, consul, other")
		for _, name := range []string{source.Static, "consul"} {
			w.cat.SetStatus(name, source.Status{Read: true})
		}
		w.cat.step()
		same(t, w, "s", "without-a-block")
		w.want("s", "rejected: no source knows it yet: waiting for other")
		w.cat.SetStatus("other", source.Status{Read: true})
		w.cat.step()
		same(t, w)
		// It is never unread again.
		w.cat.SetStatus("other", source.Status{Err: "no route to host"})
		w.cat.step()
		if s := w.cat.Sources()[2]; !s.Read || s.Err == "" {
			t.Errorf("source is %+v", s)
		}
	})
	t.Run("kept while the service is rejected for another reason", func(t *testing.T) {
		w := newWorld(t, cfg(), "consul").read()
		w.say("consul", service("s"))
		w.configure(func(c *config.Config) { c.Services[0] = block("s", func(b *config.Service) { b.Dataplane = "ebpf" }) })
		same(t, w, "s")
	})
	t.Run("given back when the file sets an address", func(t *testing.T) {
		w := newWorld(t, cfg(), "consul").read()
		w.say("consul", service("s"))
		w.configure(func(c *config.Config) { c.Services[0] = block("s", at("10.97.0.1")) })
		same(t, w)
	})
	t.Run("released by hand only when unused", func(t *testing.T) {
		w := newWorld(t, cfg(), "consul").read()
		w.say("consul", service("s"))
		if err := w.cat.ReleaseLease("s"); err == nil {
			t.Error("a lease in use was released")
		}
		if err := w.cat.ReleaseLease("t"); err == nil {
			t.Error("a lease that isn't there was released")
		}
		w.unsay("consul", "s")
		if err := w.cat.ReleaseLease("s"); err != nil {
			t.Error(err)
		}
		if l := w.leases.List(); len(l) > 0 {
			t.Errorf("still there: %v", l)
		}
	})
	t.Run("waited for while the pool is exhausted", func(t *testing.T) {
		w := newWorld(t, withPool(blocks(block("a"), block("b")), "10.96.0.1/32"), "consul").read()
		w.say("consul", service("a"), service("b"))
		w.want("b", `rejected: no address: the pool has no free address: vip_pool "default", 10.96.0.1/32`)
		w.unsay("consul", "a")
		w.pass(23 * time.Hour)
		w.want("b", `rejected: no address: the pool has no free address: vip_pool "default", 10.96.0.1/32`)
		w.pass(time.Hour)
		w.want("b", "userspace at virtual:10.96.0.1:80/tcp")
	})
}
