package consul

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/patchbay-proxy/patchbay/core/config/selector"
	"github.com/patchbay-proxy/patchbay/core/source"
)

// plain is the instance that item makes, for the cases to differ from.
func plain(change func(i *instance)) instance {
	i := instance{Datacenter: "dc1", Node: "node-a", ID: "a", Address: "10.0.0.1", Port: 80, Weight: 1, WarningWeight: 1, Health: source.Passing}
	if change != nil {
		change(&i)
	}
	return i
}

// TestReadService goes through what an instance may look like in Consul.
func TestReadService(t *testing.T) {
	one := func(options ...func(node, service, all map[string]any)) []map[string]any {
		return []map[string]any{item("web", "a", "10.0.0.1", 80, options...)}
	}
	healthy := func(h source.Health, reason string) *reading {
		return &reading{instances: []instance{plain(func(i *instance) { i.Health, i.Reason = h, reason })}}
	}
	for _, c := range []struct {
		name  string
		items []map[string]any
		want  *reading
	}{
		{"plain", one(), &reading{instances: []instance{plain(nil)}}},
		{"the service has no address: the node's", one(inService("Address", "")), &reading{instances: []instance{plain(func(i *instance) { i.Address = "10.9.9.9" })}}},
		{"no address at all", one(inService("Address", ""), inNode("Address", "")), &reading{notes: []string{"instances without an address are left out: dc1/node-a/a"}}},
		{"a host name", one(inService("Address", "db.internal")), &reading{instances: []instance{plain(func(i *instance) { i.Address = "db.internal" })}}},
		{"IPv6", one(inService("Address", "2001:db8::1")), &reading{instances: []instance{plain(func(i *instance) { i.Address = "2001:db8::1" })}}},
		{"IPv6 in brackets", one(inService("Address", "[2001:db8::1]")), &reading{instances: []instance{plain(func(i *instance) { i.Address = "2001:db8::1" })}}},
		{"port 0", one(inService("Port", 0)), &reading{notes: []string{"instances without a port are left out: dc1/node-a/a"}}},
		{"port 70000", one(inService("Port", 70000)), &reading{notes: []string{"instances whose port is not one are left out: dc1/node-a/a (port 70000)"}}},
		{"port below 0", one(inService("Port", -1)), &reading{notes: []string{"instances whose port is not one are left out: dc1/node-a/a (port -1)"}}},
		{"weights", one(inService("Weights", map[string]any{"Passing": 10, "Warning": 3})), &reading{instances: []instance{plain(func(i *instance) { i.Weight, i.WarningWeight = 10, 3 })}}},
		{"weight 0", one(inService("Weights", map[string]any{"Passing": 0, "Warning": 0})), &reading{instances: []instance{plain(func(i *instance) { i.Weight, i.WarningWeight = 0, 0 })}}},
		{"weight below 0", one(inService("Weights", map[string]any{"Passing": -4, "Warning": 1})), &reading{
			instances: []instance{plain(func(i *instance) { i.Weight, i.WarningWeight = 0, 1 })},
			notes:     []string{"instances with a weight below 0 count as of weight 0: dc1/node-a/a"},
		}},
		{"no weights", one(inService("Weights", nil)), &reading{instances: []instance{plain(nil)}}},
		{"a weight beyond 32 bits", one(inService("Weights", map[string]any{"Passing": 1 << 40, "Warning": 1})), &reading{instances: []instance{plain(func(i *instance) { i.Weight = 1<<32 - 1 })}}},

		{"no checks", one(checks()), healthy(source.Passing, "")},
		{"null checks", one(func(_, _, all map[string]any) { all["Checks"] = nil }), healthy(source.Passing, "")},
		{"warning", one(checks(check("b", "passing"), check("a", "warning"))), healthy(source.Warning, `check "a" is in warning`)},
		{"critical before warning", one(checks(check("a", "warning"), check("b", "critical"), check("c", "passing"))), healthy(source.Critical, `check "b" is critical`)},
		{"of two the first by name, in any order", one(checks(check("c", "critical"), check("b", "critical"))), healthy(source.Critical, `check "b" is critical`)},
		{"the node is critical", one(checks(check("serfHealth", "critical"), check("b", "passing"))), healthy(source.Critical, `check "serfHealth" is critical`)},
		{"maintenance before critical", one(checks(check("b", "critical"), check("_service_maintenance:a", "critical"))), healthy(source.Maintenance, "it is in maintenance")},
		{"maintenance with its reason", one(checks(map[string]any{"CheckID": "_service_maintenance:a", "Status": "critical", "Notes": "disk\nfull"})), healthy(source.Maintenance, "it is in maintenance: disk full")},
		{"node in maintenance", one(checks(check("_node_maintenance", "critical"))), healthy(source.Maintenance, "its node is in maintenance")},
		{"an unknown status", one(checks(check("b", "sleepy"))), healthy(source.Warning, `check "b" has the unknown status "sleepy"`)},
		{"an empty status", one(checks(check("b", ""))), healthy(source.Warning, `check "b" has the unknown status ""`)},

		{"zone of the service", one(meta("zone", "z1"), inNode("Meta", map[string]string{"zone": "z2"})), &reading{instances: []instance{plain(func(i *instance) { i.Zone = "z1" })}}},
		{"zone of the node", one(inNode("Meta", map[string]string{"zone": "z2"}), inService("Locality", map[string]any{"Zone": "z3"})), &reading{instances: []instance{plain(func(i *instance) { i.Zone = "z2" })}}},
		{"zone of the service's locality", one(inService("Locality", map[string]any{"Region": "r", "Zone": "z3"}), inNode("Locality", map[string]any{"Zone": "z4"})), &reading{instances: []instance{plain(func(i *instance) { i.Zone = "z3" })}}},
		{"zone of the node's locality", one(inNode("Locality", map[string]any{"Zone": "z4"})), &reading{instances: []instance{plain(func(i *instance) { i.Zone = "z4" })}}},

		{"the same id on two nodes", append(one(), item("web", "a", "10.0.0.2", 80, inNode("Node", "other"))), &reading{instances: []instance{
			plain(nil), plain(func(i *instance) { i.Node, i.Address = "other", "10.0.0.2" }),
		}}},
		{"the same key twice", append(one(), one(inService("Port", 81))...), &reading{instances: []instance{plain(nil)}}},
		{"sorted", []map[string]any{item("web", "b", "10.0.0.1", 80, inNode("Node", "node-a")), item("web", "a", "10.0.0.1", 80)}, &reading{instances: []instance{
			plain(nil), plain(func(i *instance) { i.ID = "b" }),
		}}},
		{"a connect proxy beside an instance", append(one(), item("web", "a-proxy", "10.0.0.1", 20000, inService("Kind", "connect-proxy"))), &reading{instances: []instance{plain(nil)}}},
		{"connect proxies alone", one(inService("Kind", "connect-proxy")), &reading{proxies: true}},
		{"gateways of the mesh are no instances", append(one(),
			item("web", "b", "10.0.0.2", 8443, inService("Kind", "mesh-gateway")), item("web", "c", "10.0.0.3", 8443, inService("Kind", "ingress-gateway")),
			item("web", "d", "10.0.0.4", 8443, inService("Kind", "terminating-gateway")), item("web", "e", "10.0.0.5", 8443, inService("Kind", "api-gateway")),
		), &reading{instances: []instance{plain(nil)}}},
		{"a gateway alone", one(inService("Kind", "mesh-gateway")), &reading{proxies: true}},
		{"the name in other case", one(inService("Service", "Web")), &reading{instances: []instance{plain(nil)}}},
		{"nothing", []map[string]any{}, &reading{}},

		{"meta is handed on", one(meta("patchbay-port", "80", "patchbay-vip", "10.96.0.7", "team", "x")), &reading{
			instances: []instance{plain(nil)}, meta: map[string]string{"patchbay-port": "80", "patchbay-vip": "10.96.0.7"},
		}},
		{"meta differs: the one registered last", append(one(meta("patchbay-port", "80"), inService("ModifyIndex", 9)), item("web", "b", "10.0.0.2", 80, meta("patchbay-port", "81"), inService("ModifyIndex", 12))), &reading{
			instances: []instance{plain(nil), plain(func(i *instance) { i.Node, i.ID, i.Address = "node-b", "b", "10.0.0.2" })},
			meta:      map[string]string{"patchbay-port": "81"},
			notes:     []string{`instances differ in meta patchbay-port: "81" counts, of the one that was registered last: dc1/node-b/b`},
		}},
		{"chosen by meta", one(meta("team", "shop")), &reading{instances: []instance{plain(nil)}, chosen: true}},
		{"excluded by meta", one(meta("private", "x")), &reading{instances: []instance{plain(nil)}, excluded: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			body, err := json.Marshal(c.items)
			if err != nil {
				t.Fatal(err)
			}
			choose := selection{
				selected: []selector.Selector{{Kind: selector.Meta, Key: "team", Value: "shop"}},
				excluded: []selector.Selector{{Kind: selector.Meta, Key: "private", AnyValue: true}},
			}
			got, err := readService("web", body, choose)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(reading{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadServiceMistakes(t *testing.T) {
	// What each of them differs from can be read.
	if _, err := readService("web", []byte(` [{"Node":{"Node":"n"},"Service":{"ID":"x","Service":"web"}}] `), selection{}); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{
		``, `null`, `{}`, `[null]`, `[{}]`, `"x"`, `[{"Node":{"Node":"n"},"Service":{"ID":""}}]`, `[{"Node":{"Node":""},"Service":{"ID":"x","Service":"web"}}]`,
		`[{"Node":{"Node":"n"},"Service":{"ID":"x","Service":"web","Port":"80"}}]`, `[{"Node":{"Node":"n"},"Service":{"ID":"x","Service":"web","Port":1e99}}]`,
		`[{"Node":{"Node":"n"},"Service":{"ID":"x","Service":"web","Weights":3}}]`, `[{"Node":{"Node":"n"},"Service":{"ID":"x","Service":"web"},"Checks":{}}]`,
		`[{"Node":{"Node":"n"},"Service":{"ID":"x","Service":"web","Meta":{"a":1}}}]`, `[{"Node":{"Node":"n"},"Service":{"ID":"x","Service":"web"}}] and more`,
		`[{"Node":{"Node":"n"},"Service":{"ID":"x","Service":"db"}}]`, `[{"Node":{"Node":"n"},"Service":{"ID":"x"}}]`,
		`[{"Node":{"Node":"n"},"Service":{"ID":"x","Service":"web"}},{"Node":{"Node":"n"},"Service":{"ID":"y","Service":"db"}}]`,
	} {
		if r, err := readService("web", []byte(body), selection{}); err == nil {
			t.Errorf("%s: read as %+v, want an error", body, r)
		}
	}
}

// FuzzRead holds that no answer of Consul makes the reader panic, or gives what
// the rest can't work with.
func FuzzRead(f *testing.F) {
	seed, err := json.Marshal([]map[string]any{
		item("web", "a", "10.0.0.1", 80, meta("patchbay-port", "80", "zone", "z"), checks(check("_node_maintenance", "x"))),
		item("web", "b", "[::1]", 70000, inService("Weights", map[string]any{"Passing": -1}), inService("Kind", "connect-proxy")),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"web":["patchbay"],"consul":null,"":[""]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if names, err := readListing(body); err == nil {
			if _, itself := names["consul"]; itself || names == nil {
				t.Errorf("the listing is %q", names)
			}
		}
		r, err := readService("web", body, selection{selected: []selector.Selector{{Kind: selector.Meta, Key: "a", AnyValue: true}}})
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for n, i := range r.instances {
			if seen[i.key()] || i.Address == "" || i.Port == 0 || i.Health < source.Passing || i.Health > source.Maintenance || i.Node == "" || i.ID == "" {
				t.Errorf("instance %d of %q: %+v", n, body, i)
			}
			seen[i.key()] = true
		}
		for key := range r.meta {
			if !strings.HasPrefix(key, metaPrefix) {
				t.Errorf("meta %q is handed on", key)
			}
		}
		// Whatever was read, the guard can work with it.
		var b belief
		for _, next := range []*reading{r, {}, r} {
			if err := b.take(next, reply{direct: true}, weighing{}); err != nil {
				t.Errorf("taking %q: %v", body, err)
			}
			b.view()
		}
	})
}
