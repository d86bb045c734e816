package catalog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// TestService is what one service comes to: the policy of its block, its meta,
// its instances.
func TestService(t *testing.T) {
	one := "10.1.0.1:8080"
	set := func(f func(*config.Service)) func(*config.Service) { return f }
	for _, test := range []struct {
		name  string
		block *config.Service
		says  *source.Service
		want  []string
	}{{
		name: "vip and port of the block", block: block("s", at("10.96.0.1")), says: service("s", one),
		want: []string{"userspace at virtual:10.96.0.1:80/tcp", "  10.1.0.1:8080 1 active"},
	}, {
		name: "no port", block: block("s", at("10.96.0.1"), set(func(b *config.Service) { b.Port = 0 })), says: service("s", one),
		want: []string{"rejected: no port: set port in its block"},
	}, {
		name: "port of the source", block: block("s", at("10.96.0.1"), set(func(b *config.Service) { b.Port = 0 })), says: &source.Service{Name: "s", Port: 8000},
		want: []string{"userspace at virtual:10.96.0.1:8000/tcp"},
	}, {
		name: "no vip and no pool", block: block("s"), says: service("s", one),
		want: []string{"rejected: no address: set vip or add a vip_pool"},
	}, {
		name: "a pool that isn't there", block: block("s", set(func(b *config.Service) { b.Pool = "blue" })), says: service("s", one),
		want: []string{`rejected: no vip_pool "blue"`},
	}, {
		name: "a dataplane that isn't there", block: block("s", at("10.96.0.1"), set(func(b *config.Service) { b.Dataplane = "ebpf" })), says: service("s", one),
		want: []string{`rejected: no dataplane "ebpf": add a dataplane block of that name`},
	}, {
		name: "a block that no source knows", block: block("s", at("10.96.0.1")),
		want: []string{"rejected: the block has no endpoint, and no source knows a service of this name"},
	}, {
		name: "a name that isn't one", says: &source.Service{Name: "s", Port: 80},
		want: []string{"rejected: no address: set vip or add a vip_pool"},
	}, {
		name: "no instance", block: block("s", at("10.96.0.1")), says: service("s"),
		want: []string{"userspace at virtual:10.96.0.1:80/tcp"},
	}, {
		name: "both families and protocols", block: block("s", at("fd00::1", "10.96.0.1"), set(func(b *config.Service) {
			b.Protocols = []dataplane.Protocol{dataplane.TCP, dataplane.UDP}
		})), says: service("s", "[fd00:1::1]:8080", one),
		want: []string{
			"userspace at virtual:10.96.0.1:80/tcp virtual:10.96.0.1:80/udp virtual:[fd00::1]:80/tcp virtual:[fd00::1]:80/udp",
			"  10.1.0.1:8080 1 active", "  [fd00:1::1]:8080 1 active",
		},
	}, {
		name: "node port and external address alone", block: block("s", set(func(b *config.Service) {
			b.NodePort, b.External = 30080, addresses("203.0.113.1")
		})), says: service("s", one),
		want: []string{"userspace at node:10.0.0.5:30080/tcp external:203.0.113.1:80/tcp", "  10.1.0.1:8080 1 active"},
	}, {
		name: "endpoints of a family without frontend", block: block("s", at("10.96.0.1")), says: service("s", one, "[fd00:1::1]:8080", "[fd00:1::2]:8080"),
		want: []string{"userspace at virtual:10.96.0.1:80/tcp", "  10.1.0.1:8080 1 active",
			"note: the service has no ipv6 frontend for endpoints of that family: [fd00:1::1]:8080, [fd00:1::2]:8080"},
	}, {
		name: "a host name with both families needs one only", block: block("s", at("10.96.0.1")), says: service("s", one+" host=db", "[fd00:1::1]:8080 host=db"),
		want: []string{"userspace at virtual:10.96.0.1:80/tcp", "  10.1.0.1:8080 1 active"},
	}, {
		name: "endpoints on loopback", block: block("s", at("10.96.0.1")), says: service("s", "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"),
		want: []string{"userspace at virtual:10.96.0.1:80/tcp", "  127.0.0.1:1 1 active", "  127.0.0.1:2 1 active", "  127.0.0.1:3 1 active", "  127.0.0.1:4 1 active",
			"note: endpoints on loopback serve clients on this node only: 127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3 and 1 more"},
	}, {
		name: "loopback behind loopback is as it should be", block: block("s", at("127.0.0.9")), says: service("s", "127.0.0.1:1"),
		want: []string{"userspace at virtual:127.0.0.9:80/tcp", "  127.0.0.1:1 1 active"},
	}, {
		name: "a host name that doesn't resolve", block: block("s", at("10.96.0.1")), says: service("s", one, "db.internal:5432 critical"),
		want: []string{"userspace at virtual:10.96.0.1:80/tcp", "  10.1.0.1:8080 1 active", "note: host names without an address: db.internal"},
	}, {
		name: "instances that can't be endpoints", block: block("s", at("10.96.0.1")), says: service("s", "10.96.0.1:80", "10.1.0.1:0", "0.0.0.0:80"),
		want: []string{"userspace at virtual:10.96.0.1:80/tcp",
			"note: instances that are the service's own frontend are left out: 10.96.0.1:80",
			"note: instances whose address can't be an endpoint are left out: 0.0.0.0:80, 10.1.0.1:0"},
	}, {
		name: "two instances with one address: the healthy one counts", block: block("s", at("10.96.0.1")), says: service("s", one+" id=a critical", one+" id=b w=7"),
		want: []string{"userspace at virtual:10.96.0.1:80/tcp", "  10.1.0.1:8080 7 active", "note: instances with the address of another one are left out: a"},
	}, {
		name: "meta of a service without block", says: withMeta(service("s", one), "patchbay-port", "8081", "patchbay-vip", "10.96.0.7, fd00::7", "patchbay-dataplane", "ipvs", "version", "3"),
		want: []string{"ipvs at virtual:10.96.0.7:8081/tcp virtual:[fd00::7]:8081/tcp", "  10.1.0.1:8080 1 active"},
	}, {
		name: "the file wins over meta", block: block("s", at("10.96.0.1")), says: withMeta(service("s", one), "patchbay-port", "8081", "patchbay-vip", "10.96.0.7"),
		want: []string{"userspace at virtual:10.96.0.1:80/tcp", "  10.1.0.1:8080 1 active"},
	}, {
		name: "a bad meta value is left out, and said", block: block("s", at("10.96.0.1")), says: withMeta(service("s", one), "patchbay-drain", "soon", "patchbay-colour", "red"),
		want: []string{"userspace at virtual:10.96.0.1:80/tcp", "  10.1.0.1:8080 1 active",
			"note: meta patchbay-colour is not known and has no effect",
			`note: meta patchbay-drain = "soon" can't be used: a duration is written as in 30s or 5m`},
	}, {
		name: "but not one that keeps clients out", block: block("s", at("10.96.0.1")), says: withMeta(service("s", one), "patchbay-allow", "10.0.0.0"),
		want: []string{`rejected: meta patchbay-allow = "10.0.0.0" can't be used: netip.ParsePrefix("10.0.0.0"): no '/'`},
	}} {
		t.Run(test.name, func(t *testing.T) {
			cfg := blocks()
			if test.block != nil {
				cfg = blocks(test.block)
			}
			w := newWorld(t, cfg, "consul").read()
			if test.says != nil {
				w.say("consul", test.says)
			}
			w.want("s", test.want...)
		})
	}
}

func TestName(t *testing.T) {
	w := newWorld(t, withPool(blocks(), "10.96.0.0/24"), "consul").read()
	for _, name := range []string{"", "a b", "a/b", strings.Repeat("x", 254)} {
		w.say("consul", &source.Service{Name: name, Port: 80})
		w.want(name, "rejected: the name is not one: use letters, digits, dot, hyphen and underscore, at most 253")
	}
	if l := w.leases.List(); len(l) > 0 {
		t.Errorf("a rejected service took a lease: %v", l)
	}
}

// TestMeta: each argument that a discovered service can set itself.
func TestMeta(t *testing.T) {
	w := newWorld(t, withPool(blocks(), "10.96.0.0/24"), "consul").read()
	w.say("consul", withMeta(service("s", "10.1.0.1:80", "10.1.0.2:80 warning zone=z1", "10.1.0.3:80 zone=z1"),
		"patchbay-port", "81", "patchbay-vip", "10.97.0.1", "patchbay-protocols", "tcp, udp", "patchbay-node-port", "30080",
		"patchbay-external", "203.0.113.1", "patchbay-dataplane", "ipvs", "patchbay-balance", "maglev", "patchbay-affinity", "10m",
		"patchbay-warning", "drop", "patchbay-prefer", "zone", "patchbay-allow", "10.0.0.0/8, fd00::/8", "patchbay-masquerade", "never",
		"patchbay-on-empty", "drop", "patchbay-on-drain-end", "reset", "patchbay-drain", "1m", "patchbay-pool", "default"))
	w.want("s",
		"ipvs at node:10.0.0.5:30080/tcp node:10.0.0.5:30080/udp virtual:10.97.0.1:81/tcp virtual:10.97.0.1:81/udp external:203.0.113.1:81/tcp external:203.0.113.1:81/udp",
		"  10.1.0.3:80 1 active")
	d := *w.cat.Snapshot().Get("s").Desired
	d.Frontends, d.Endpoints = nil, nil
	want := dataplane.Service{
		ID: "s", Balance: "maglev", Affinity: 10 * time.Minute, Allow: prefixes("10.0.0.0/8", "fd00::/8"),
		Masquerade: dataplane.MasqueradeNever, OnEmpty: dataplane.EmptyDrop, OnDrainEnd: dataplane.DrainEndReset,
	}
	if !d.Equal(&want) {
		t.Errorf("service is %+v, want %+v", d, want)
	}
	for key, value := range map[string]string{
		"affinity": "-1s", "warning": "ignore",
		"prefer": "rack", "masquerade": "Never", "on-empty": "", "on-drain-end": "cut", "drain": "30",
	} {
		w.say("consul", withMeta(&source.Service{Name: "s", Port: 80}, "patchbay-"+key, value))
		s := w.cat.Snapshot().Get("s")
		if s.Desired == nil || len(s.Notes) != 1 || !strings.HasPrefix(s.Notes[0], "meta patchbay-"+key+" = ") {
			t.Errorf("with %s = %q the service is\n%s", key, value, show(s))
		}
	}
	// Without these it would be somewhere else than it says, or open to others.
	for key, value := range map[string]string{
		"port": "eighty", "vip": "web", "protocols": "http", "node-port": "70000", "external": "10.0.0.0/8", "allow": "all",
	} {
		w.say("consul", withMeta(&source.Service{Name: "s", Port: 80}, "patchbay-"+key, value))
		s := w.cat.Snapshot().Get("s")
		if s.Desired != nil || !strings.HasPrefix(s.Rejected, "meta patchbay-"+key+" = ") {
			t.Errorf("with %s = %q the service is\n%s", key, value, show(s))
		}
	}
	w.say("consul", withMeta(&source.Service{Name: "s", Port: 80}, "patchbay-dataplane", "nosuch"))
	w.want("s", `rejected: no dataplane "nosuch": add a dataplane block of that name`)
}

// TestMetaAddresses: meta opens no address that a file may not. The service is
// rejected with the reason, and takes no lease instead.
func TestMetaAddresses(t *testing.T) {
	for _, test := range []struct{ key, value, why string }{
		{"vip", "0.0.0.0", "0.0.0.0 is the unspecified address"},
		{"vip", "::", ":: is the unspecified address"},
		{"vip", "::ffff:0.0.0.0", "0.0.0.0 is the unspecified address"},
		{"vip", "255.255.255.255", "255.255.255.255 is the broadcast address"},
		{"vip", "224.0.0.1", "224.0.0.1 is a multicast address"},
		{"vip", "240.0.0.1", "240.0.0.1 is in the reserved range 240.0.0.0/4"},
		{"vip", "0.0.0.7", "0.0.0.7 is in the reserved range 0.0.0.0/8"},
		{"vip", "fe80::1%lo", "fe80::1%lo has a zone"},
		{"vip", "fe80::1", "fe80::1 is a link-local address"},
		{"vip", "10.96.0.7, fd00::7, 10.96.0.8", "a service has one VIP per family; 10.96.0.8 comes after 10.96.0.7"},
		{"vip", "fd00::7,fd00::8", "a service has one VIP per family; fd00::8 comes after fd00::7"},
		{"vip", "10.96.0.7,::ffff:10.96.0.8", "a service has one VIP per family; 10.96.0.8 comes after 10.96.0.7"},
		{"vip", "10.96.0.7,", `"" is not an IP address`},
		{"external", "0.0.0.0", "0.0.0.0 is the unspecified address"},
		{"external", "203.0.113.1, 224.0.0.1", "224.0.0.1 is a multicast address"},
		{"external", "fe80::1%lo", "fe80::1%lo has a zone"},
	} {
		w := newWorld(t, withPool(blocks(), "10.96.0.0/24"), "consul").read()
		w.say("consul", withMeta(service("s", "10.1.0.1:80"), "patchbay-port", "80", "patchbay-"+test.key, test.value))
		w.want("s", fmt.Sprintf("rejected: meta patchbay-%s = %q can't be used: %s", test.key, test.value, test.why))
		if l := w.leases.List(); len(l) > 0 {
			t.Errorf("with %s = %q it took a lease: %v", test.key, test.value, l)
		}
	}
	// Several external addresses of one family are fine, and so is a mapped one.
	w := newWorld(t, blocks(), "consul").read()
	w.say("consul", withMeta(service("s", "10.1.0.1:8080"), "patchbay-port", "80", "patchbay-vip", "::ffff:10.96.0.7", "patchbay-external", "203.0.113.1,203.0.113.2"))
	w.want("s", "userspace at virtual:10.96.0.7:80/tcp external:203.0.113.1:80/tcp external:203.0.113.2:80/tcp", "  10.1.0.1:8080 1 active")
}

// TestHealth is the table of health against policy, for an endpoint that is
// new and for one that has been in use.
func TestHealth(t *testing.T) {
	active, draining := "active", "draining"
	for _, test := range []struct {
		health, warning string
		fresh, used     string
		weight          uint32
	}{
		{"", "use", active, active, 10},
		{"warning", "use", active, active, 10},
		{"warning", "weigh", active, active, 2},
		{"warning", "drop", "", draining, 10},
		{"critical", "use", "", draining, 10},
		{"critical", "weigh", "", draining, 10},
		{"maintenance", "use", "", draining, 10},
	} {
		t.Run(test.health+" "+test.warning, func(t *testing.T) {
			text := "10.1.0.1:80 w=10 ww=2 "
			for _, used := range []bool{false, true} {
				w := newWorld(t, blocks(block("s", at("10.96.0.1"), func(b *config.Service) { b.Warning = test.warning })), "consul").read()
				want := test.fresh
				if used {
					w.say("consul", service("s", text))
					want = test.used
				}
				w.say("consul", service("s", text+test.health))
				endpoints := w.cat.Snapshot().Get("s").Desired.Endpoints
				if want == "" {
					if len(endpoints) > 0 {
						t.Errorf("used %v: endpoints %v, want none", used, endpoints)
					}
					continue
				}
				if len(endpoints) != 1 || endpoints[0].State.String() != want || endpoints[0].Weight != test.weight {
					t.Errorf("used %v: endpoints %v, want %s with weight %d", used, endpoints, want, test.weight)
				}
			}
		})
	}
}

// TestPrefer is locality: the nearest level with a usable endpoint, for each
// family of its own.
func TestPrefer(t *testing.T) {
	here, zone, far := "10.1.0.1:80 node=n1 zone=z1 local", "10.1.0.2:80 zone=z1", "10.1.0.3:80 zone=z2"
	for _, test := range []struct {
		name, prefer string
		instances    []string
		want         []string
	}{
		{"none", "none", []string{here, zone, far}, []string{"10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80"}},
		{"node", "node", []string{here, zone, far}, []string{"10.1.0.1:80"}},
		{"node falls back to its zone", "node", []string{here + " critical", zone, far}, []string{"10.1.0.2:80"}},
		{"node falls back to all", "node", []string{here + " critical", zone + " maintenance", far}, []string{"10.1.0.3:80"}},
		{"weight 0 is not usable", "node", []string{here + " w=0", far}, []string{"10.1.0.1:80", "10.1.0.3:80"}},
		{"zone", "zone", []string{here, zone, far}, []string{"10.1.0.1:80", "10.1.0.2:80"}},
		{"zone falls back to all", "zone", []string{here + " critical", zone + " critical", far}, []string{"10.1.0.3:80"}},
		{"all in warning are as good as any", "zone", []string{zone + " warning", far}, []string{"10.1.0.2:80"}},
		{"a family for itself", "node", []string{here, far, "[fd00:1::3]:80 zone=z2"}, []string{"10.1.0.1:80", "[fd00:1::3]:80"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, blocks(block("s", at("10.96.0.1", "fd00::1"), func(b *config.Service) { b.Prefer = test.prefer })), "consul").read()
			w.say("consul", service("s", test.instances...))
			var got []string
			for _, e := range w.cat.Snapshot().Get("s").Desired.Endpoints {
				got = append(got, e.Address.String())
			}
			if strings.Join(got, " ") != strings.Join(test.want, " ") {
				t.Errorf("endpoints are %v, want %v", got, test.want)
			}
		})
	}
}

// TestDraining follows endpoints over time.
func TestDraining(t *testing.T) {
	const head = "userspace at virtual:10.96.0.1:80/tcp"
	w := newWorld(t, blocks(block("s", at("10.96.0.1"))), "consul").read()
	w.say("consul", service("s", "10.1.0.1:80", "10.1.0.2:80"))
	w.want("s", head, "  10.1.0.1:80 1 active", "  10.1.0.2:80 1 active")
	w.changes = nil

	w.say("consul", service("s", "10.1.0.1:80 critical", "10.1.0.2:80"))
	w.want("s", head, "  10.1.0.1:80 1 draining until 12:00:30", "  10.1.0.2:80 1 active")

	w.pass(10 * time.Second)
	w.say("consul", service("s", "10.1.0.1:80 critical"))
	w.want("s", head, "  10.1.0.1:80 1 draining until 12:00:30", "  10.1.0.2:80 1 draining until 12:00:40")
	w.wantChanges("s", "s")

	// Nothing is known to be different: no revision.
	w.pass(10 * time.Second)
	w.say("consul", service("s", "10.1.0.1:80 critical"))
	w.wantChanges()

	w.pass(10 * time.Second)
	w.want("s", head, "  10.1.0.2:80 1 draining until 12:00:40")

	// One that comes back is active again, one that has left stays away.
	w.say("consul", service("s", "10.1.0.1:80 critical", "10.1.0.2:80"))
	w.want("s", head, "  10.1.0.2:80 1 active")
	w.pass(time.Hour)
	w.want("s", head, "  10.1.0.2:80 1 active")
	w.wantChanges("s", "s")
}

func TestDrainingWithoutTime(t *testing.T) {
	w := newWorld(t, blocks(block("s", at("10.96.0.1"), func(b *config.Service) { b.Drain = 0 })), "consul").read()
	w.say("consul", service("s", "10.1.0.1:80"))
	w.say("consul", service("s"))
	w.want("s", "userspace at virtual:10.96.0.1:80/tcp")
}

// TestLocalityDrains: an endpoint that is no longer preferred keeps its
// connections.
func TestLocalityDrains(t *testing.T) {
	w := newWorld(t, blocks(block("s", at("10.96.0.1"), func(b *config.Service) { b.Prefer = "zone" })), "consul").read()
	w.say("consul", service("s", "10.1.0.1:80 zone=z1 critical", "10.1.0.2:80 zone=z2"))
	w.say("consul", service("s", "10.1.0.1:80 zone=z1", "10.1.0.2:80 zone=z2"))
	w.want("s", "userspace at virtual:10.96.0.1:80/tcp", "  10.1.0.1:80 1 active", "  10.1.0.2:80 1 draining until 12:00:30")
}

// TestLeaving: a discovered service whose last instance went drains, one
// deleted from a file is gone at once; both give way to whoever wants the
// frontend.
func TestLeaving(t *testing.T) {
	const head = "userspace at virtual:10.96.0.1:80/tcp"
	discovered := func(t *testing.T, services ...*config.Service) *world {
		w := newWorld(t, blocks(append(services, block("s", at("10.96.0.1")))...), "consul").read()
		w.say("consul", service("s", "10.1.0.1:80"))
		w.unsay("consul", "s")
		w.want("s", head, "  10.1.0.1:80 1 draining until 12:00:30", "note: its source knows it no longer; it is kept while its endpoints drain")
		return w
	}
	const unknown = "rejected: the block has no endpoint, and no source knows a service of this name"
	t.Run("drains", func(t *testing.T) {
		w := discovered(t)
		w.pass(30 * time.Second)
		w.want("s", unknown)
	})
	t.Run("comes back", func(t *testing.T) {
		w := discovered(t)
		w.say("consul", service("s", "10.1.0.1:80"))
		w.pass(time.Hour)
		w.want("s", head, "  10.1.0.1:80 1 active")
	})
	t.Run("gives way", func(t *testing.T) {
		w := discovered(t, block("z", at("10.96.0.1")))
		w.say("consul", service("z", "10.1.0.9:80"))
		w.want("z", head, "  10.1.0.9:80 1 active")
		w.want("s", unknown)
	})
	t.Run("gives way to its own source's end", func(t *testing.T) {
		w := discovered(t)
		w.policy.Sources = nil
		w.cat.Configure(w.policy)
		w.want("s", unknown)
	})
	t.Run("deleted from the file", func(t *testing.T) {
		w := newWorld(t, blocks(block("s", at("10.96.0.1"), static))).read()
		w.say(source.Static, service("s", "10.1.0.1:80"))
		w.want("s", head, "  10.1.0.1:80 1 active")
		w.policy.Static = []*source.Service{}
		w.configure(func(c *config.Config) { c.Services = nil })
		w.want("s", "none")
	})
	t.Run("deleted before the source says so", func(t *testing.T) {
		w := newWorld(t, withPool(blocks(block("s", at("10.96.0.1"), static)), "10.97.0.0/24")).read()
		w.say(source.Static, service("s", "10.1.0.1:80"))
		w.configure(func(c *config.Config) { c.Services = nil })
		w.want("s", "none")
		if l := w.leases.List(); len(l) > 0 {
			t.Errorf("it took a lease on its way out: %v", l)
		}
	})
}

// TestSources: the same name in two sources.
func TestSources(t *testing.T) {
	const head = "userspace at virtual:10.96.0.1:80/tcp"
	w := newWorld(t, blocks(block("s", at("10.96.0.1"))), "consul", "other").read()
	w.say("other", service("s", "10.1.0.3:80"))
	w.want("s", head, "  10.1.0.3:80 1 active")
	w.say("consul", service("s", "10.1.0.2:80"))
	w.pass(time.Minute)
	w.want("s", head, "  10.1.0.2:80 1 active", `note: source "other" knows a service of this name too; that of source "consul" counts`)

	// Endpoints in a file win over all.
	w.policy.Static = []*source.Service{service("s", "10.1.0.1:80")}
	w.configure(func(c *config.Config) { c.Services[0] = block("s", at("10.96.0.1"), static) })
	w.policy.Static = nil
	w.pass(time.Minute)
	w.want("s", head, "  10.1.0.1:80 1 active",
		`note: source "consul" knows a service of this name too; that of source "static" counts`,
		`note: source "other" knows a service of this name too; that of source "static" counts`)

	// A source that is no longer declared is forgotten, one that is declared
	// in another order counts by it.
	w.policy.Sources = []string{"other", "consul"}
	w.configure(func(c *config.Config) { c.Services[0] = block("s", at("10.96.0.1")) })
	w.pass(time.Minute)
	w.want("s", head, "  10.1.0.3:80 1 active",
		`note: source "static" knows a service of this name too; that of source "other" counts`,
		`note: source "consul" knows a service of this name too; that of source "other" counts`)
	w.policy.Sources = []string{"consul"}
	w.configure(func(*config.Config) {})
	w.say("other", service("s", "10.1.0.4:80"))
	w.unsay(source.Static, "s")
	w.pass(time.Minute)
	w.want("s", head, "  10.1.0.2:80 1 active")
}

// TestCapabilities: what a dataplane can't carry is refused with the reason.
func TestCapabilities(t *testing.T) {
	all := dataplane.Capabilities{
		Protocols: []dataplane.Protocol{dataplane.TCP, dataplane.UDP}, Families: []dataplane.Family{dataplane.IPv4, dataplane.IPv6},
		FrontendKinds: []dataplane.FrontendKind{dataplane.Virtual, dataplane.Node, dataplane.External},
		Balance:       []string{"round_robin", "random"}, Affinity: true, Weights: true, Draining: true, KeepsClientAddress: true, SourceFilter: true,
	}
	const carried = "userspace at virtual:10.96.0.1:80/tcp"
	for _, test := range []struct {
		name   string
		lack   func(*dataplane.Capabilities)
		policy func(*config.Service)
		want   string
	}{
		{"all there", nil, func(b *config.Service) {
			b.Balance, b.Affinity, b.Allow, b.Masquerade = "random", time.Minute, prefixes("10.0.0.0/8"), dataplane.MasqueradeNever
		}, carried},
		{"nothing needed", func(c *dataplane.Capabilities) {
			*c = dataplane.Capabilities{Protocols: c.Protocols[:1], Families: c.Families[:1], FrontendKinds: c.FrontendKinds[:1]}
		}, nil, carried},
		{"protocol", nil, func(b *config.Service) { b.Protocols = append(b.Protocols, dataplane.SCTP) }, `rejected: dataplane "userspace" doesn't carry sctp`},
		{"family", func(c *dataplane.Capabilities) { c.Families = c.Families[1:] }, nil, `rejected: dataplane "userspace" doesn't carry ipv4`},
		{"virtual", func(c *dataplane.Capabilities) { c.FrontendKinds = c.FrontendKinds[1:] }, nil, `rejected: dataplane "userspace" has no VIPs`},
		{"node", func(c *dataplane.Capabilities) { c.FrontendKinds = c.FrontendKinds[:1] }, func(b *config.Service) { b.NodePort = 1 }, `rejected: dataplane "userspace" has no node_port`},
		{"external", func(c *dataplane.Capabilities) { c.FrontendKinds = c.FrontendKinds[:1] }, func(b *config.Service) { b.External = addresses("203.0.113.1") }, `rejected: dataplane "userspace" has no external addresses`},
		{"balance", nil, func(b *config.Service) { b.Balance = "maglev" }, `rejected: dataplane "userspace" has no balance "maglev": it has round_robin, random`},
		{"affinity", func(c *dataplane.Capabilities) { c.Affinity = false }, func(b *config.Service) { b.Affinity = 1 }, `rejected: dataplane "userspace" has no affinity`},
		{"allow", func(c *dataplane.Capabilities) { c.SourceFilter = false }, func(b *config.Service) { b.Allow = prefixes("::/0") }, `rejected: dataplane "userspace" can't filter sources, so allow would have no effect`},
		{"masquerade", func(c *dataplane.Capabilities) { c.KeepsClientAddress = false }, func(b *config.Service) { b.Masquerade = dataplane.MasqueradeNever }, `rejected: dataplane "userspace" can't keep the client's address, so masquerade = "never" would have no effect`},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := block("s", at("10.96.0.1"))
			if test.policy != nil {
				test.policy(b)
			}
			w := newWorld(t, blocks(b), "consul").read()
			w.say("consul", service("s"))
			if s := w.cat.Snapshot().Get("s"); s.Desired == nil {
				t.Fatalf("refused before the dataplane has said what it can: %s", s.Rejected)
			}
			caps := all
			if test.lack != nil {
				test.lack(&caps)
			}
			w.cat.SetCapabilities("userspace", &caps)
			w.want("s", test.want)
			w.cat.SetCapabilities("userspace", nil)
			if s := w.cat.Snapshot().Get("s"); s.Desired == nil {
				t.Errorf("still refused: %s", s.Rejected)
			}
		})
	}
}

// TestCapabilitiesOfEndpoints: what a dataplane can do without.
func TestCapabilitiesOfEndpoints(t *testing.T) {
	cfg := withPool(blocks(block("s")), "10.96.0.0/30", "fd00::/126")
	w := newWorld(t, cfg, "consul").read()
	w.say("consul", service("s", "10.1.0.1:80", "10.1.0.2:80 w=2", "10.1.0.3:80 w=0"))
	w.say("consul", service("s", "10.1.0.2:80 w=2", "10.1.0.3:80 w=0", "10.1.0.4:80"))
	w.cat.SetCapabilities("userspace", &dataplane.Capabilities{
		Protocols: []dataplane.Protocol{dataplane.TCP}, Families: []dataplane.Family{dataplane.IPv4}, FrontendKinds: []dataplane.FrontendKind{dataplane.Virtual},
	})
	got := show(w.cat.Snapshot().Get("s"))
	for _, want := range []string{
		":80/tcp\n  10.1.0.2:80 2 active\n  10.1.0.4:80 1 active\n",
		`: dataplane "userspace" doesn't carry ipv6`,
		"note: the dataplane knows no weights: its endpoints get equal shares",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("service is\n%s\nwhich lacks %q", got, want)
		}
	}
}
