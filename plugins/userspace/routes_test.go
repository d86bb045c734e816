package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// fakeRouter is a host's routing table; it keeps a log of what is written.
type fakeRouter struct {
	addresses []string
	routes    map[string]string // of ours, with their sources
	denied    bool
	log       []string
}

func (f *fakeRouter) local(a netip.Addr) (bool, error) {
	_, routed := f.routes[a.String()]
	return routed || slices.Contains(f.addresses, a.String()), nil
}

func (f *fakeRouter) ours() ([]netip.Addr, error) {
	var list []netip.Addr
	for a := range f.routes {
		list = append(list, netip.MustParseAddr(a))
	}
	return list, nil
}

func (f *fakeRouter) add(a, src netip.Addr) error {
	if f.denied {
		return unix.EPERM
	}
	if _, ok := f.routes[a.String()]; ok {
		return unix.EEXIST
	}
	f.routes[a.String()] = fmt.Sprint(src)
	f.log = append(f.log, "+"+a.String())
	return nil
}

func (f *fakeRouter) remove(a netip.Addr) error {
	if f.denied {
		return unix.EPERM
	}
	delete(f.routes, a.String())
	f.log = append(f.log, "-"+a.String())
	return nil
}

func (f *fakeRouter) written() string {
	slices.Sort(f.log)
	s := strings.Join(f.log, " ")
	f.log = nil
	return s
}

func addrs(list ...string) []netip.Addr {
	var a []netip.Addr
	for _, s := range list {
		a = append(a, netip.MustParseAddr(s))
	}
	return a
}

// wantAll does what an update of several services does.
func wantAll(t *testing.T, r *routes, services map[string][]netip.Addr) {
	t.Helper()
	for id, list := range services {
		r.want(id, list)
		for _, a := range list {
			if err := r.ensure(a, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.sweep(); err != nil {
		t.Fatal(err)
	}
}

func TestRoutes(t *testing.T) {
	f := &fakeRouter{addresses: []string{"10.0.0.5", "fd00::5"}, routes: map[string]string{"10.9.0.1": "", "10.9.0.2": ""}}
	r := newRoutes(f)
	if err := r.configure(addrs("fd00::5", "10.0.0.5")); err != nil {
		t.Fatal(err)
	}
	step := func(what, want string, services map[string][]netip.Addr) {
		t.Helper()
		wantAll(t, r, services)
		if got := f.written(); got != want {
			t.Errorf("%s: wrote %q, want %q", what, got, want)
		}
	}
	step("one adopted, one new, those that need none", "+10.9.0.3 +fd00:9::1", map[string][]netip.Addr{
		"a": addrs("10.9.0.1", "10.9.0.3"), "b": addrs("127.3.4.5", "10.0.0.5", "fd00:9::1"), "c": addrs("10.9.0.3"),
	})
	if diff := cmp.Diff(map[string]string{"10.9.0.1": "", "10.9.0.2": "", "10.9.0.3": "10.0.0.5", "fd00:9::1": "fd00::5"}, f.routes); diff != "" {
		t.Error(diff)
	}
	r.forgetAdopted()
	step("the adopted one that nobody wants", "-10.9.0.2", nil)
	step("the same again", "", map[string][]netip.Addr{"a": addrs("10.9.0.1", "10.9.0.3")})
	step("one of two users leaves", "", map[string][]netip.Addr{"a": addrs("10.9.0.1")})
	step("the last user leaves, an address passes to another", "-10.9.0.3", map[string][]netip.Addr{"a": nil, "c": addrs("10.9.0.1")})

	delete(f.routes, "10.9.0.1")
	if d := r.repair(); len(d) != 1 || !d[0].Repaired || !strings.Contains(d[0].Message, "10.9.0.1") {
		t.Errorf("drift: %+v", d)
	}
	if got := f.written(); got != "+10.9.0.1" {
		t.Errorf("repair wrote %q", got)
	}
	if d := r.repair(); d != nil {
		t.Errorf("drift of nothing: %+v", d)
	}
	f.routes["10.9.7.7"] = "" // of yet another process of ours
	if err := r.removeAll(); err != nil {
		t.Fatal(err)
	}
	if len(f.routes) != 0 {
		t.Errorf("left after cleanup: %v", f.routes)
	}
}

func TestRoutesWithoutPrivilege(t *testing.T) {
	f := &fakeRouter{denied: true, routes: map[string]string{}}
	r := newRoutes(f)
	if err := r.configure(nil); err != nil {
		t.Fatal(err)
	}
	r.want("a", addrs("10.9.0.1"))
	err := r.ensure(netip.MustParseAddr("10.9.0.1"), true)
	const want = "address 10.9.0.1 is not on this node; add it or a local route (with CAP_NET_ADMIN this dataplane does it itself: " +
		"ip route add local 10.9.0.1/32 dev lo src ADDRESS-OF-THIS-NODE)"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	// A route that can't be removed is tried again, not forgotten.
	f.denied = false
	wantAll(t, r, map[string][]netip.Addr{"a": addrs("10.9.0.1")})
	f.denied = true
	r.want("a", nil)
	if err := r.sweep(); err == nil {
		t.Error("no error of a route that was not removed")
	}
	f.denied = false
	if err := r.sweep(); err != nil || len(f.routes) != 0 {
		t.Errorf("%v, left: %v", err, f.routes)
	}
}

// TestNodeFrontendGetsNoRoute: a node's own address is there or it is a mistake.
func TestNodeFrontendGetsNoRoute(t *testing.T) {
	f := &fakeRouter{routes: map[string]string{}}
	r := newRoutes(f)
	if err := r.ensure(netip.MustParseAddr("10.9.0.1"), false); err == nil || len(f.routes) != 0 {
		t.Errorf("%v, routes %v", err, f.routes)
	}
}
