package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// routeProtocol marks the routes that are ours, in any process of ours:
// `ip route show table local proto 112`. The number is in none of the lists
// that iproute2 ships.
const routeProtocol = 112

// router is what routes ask of the host.
type router interface {
	// local says whether the host takes packets for an address as its own.
	local(netip.Addr) (bool, error)
	// ours lists the addresses with a route of ours.
	ours() ([]netip.Addr, error)
	// add makes an address local; src is the source address of connections
	// from this host to it, the zero Addr is none.
	add(a, src netip.Addr) error
	// remove takes a route of ours away; one that is gone already is no error.
	remove(netip.Addr) error
}

// routes keeps one local route for each address that services listen on and
// that this node doesn't have otherwise: `ip route add local VIP dev lo src
// NODE`. It is not safe for concurrent use.
type routes struct {
	host router
	node []netip.Addr
	// mine are the routes that are in place; adopted those of them that an
	// earlier process of ours left and nobody has asked for yet.
	mine    map[netip.Addr]bool
	adopted map[netip.Addr]bool
	// wanted are the addresses of each service, users the services of each
	// address.
	wanted map[string][]netip.Addr
	users  map[netip.Addr]map[string]bool
	unused map[netip.Addr]bool
}

func newRoutes(host router) *routes {
	return &routes{
		host:    host,
		mine:    map[netip.Addr]bool{},
		adopted: map[netip.Addr]bool{},
		wanted:  map[string][]netip.Addr{},
		users:   map[netip.Addr]map[string]bool{},
		unused:  map[netip.Addr]bool{},
	}
}

// configure sets the node's addresses, and finds the routes of an earlier
// process.
func (r *routes) configure(node []netip.Addr) error {
	r.node = node
	found, err := r.host.ours()
	if err != nil {
		return fmt.Errorf("looking for local routes of ours: %w", err)
	}
	for _, a := range found {
		if !r.mine[a] {
			r.mine[a], r.adopted[a] = true, true
		}
	}
	return nil
}

// want says which addresses a service uses, in place of those it used before.
// What nobody uses any more goes with the next sweep: in between, another
// service may have taken it.
func (r *routes) want(id string, addresses []netip.Addr) {
	before := r.wanted[id]
	delete(r.wanted, id)
	if len(addresses) > 0 {
		r.wanted[id] = addresses
	}
	for _, a := range addresses {
		if r.users[a] == nil {
			r.users[a] = map[string]bool{}
		}
		r.users[a][id] = true
		delete(r.adopted, a)
	}
	for _, a := range before {
		if slices.Contains(addresses, a) {
			continue
		}
		if delete(r.users[a], id); len(r.users[a]) == 0 {
			delete(r.users, a)
			r.unused[a] = true
		}
	}
}

// sweep removes the routes that nobody uses. One that can't be removed is tried
// again the next time.
func (r *routes) sweep() error {
	var errs []error
	for _, a := range slices.Collect(maps.Keys(r.unused)) {
		if r.users[a] == nil {
			if err := r.drop(a); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		delete(r.unused, a)
	}
	return errors.Join(errs...)
}

func (r *routes) drop(a netip.Addr) error {
	if !r.mine[a] {
		return nil
	}
	if err := r.host.remove(a); err != nil {
		return fmt.Errorf("removing the local route of %s: %w", a, err)
	}
	delete(r.mine, a)
	delete(r.adopted, a)
	return nil
}

// ensure makes an address local if it isn't, and may be.
func (r *routes) ensure(a netip.Addr, routable bool) error {
	if r.mine[a] || a.IsUnspecified() || a.Is4() && a.IsLoopback() {
		return nil
	}
	local, err := r.host.local(a)
	if err != nil {
		return fmt.Errorf("asking whether %s is on this node: %w", a, err)
	}
	switch {
	case local:
		return nil
	case !routable:
		return notLocal(a)
	}
	switch err := r.host.add(a, r.source(a)); {
	case errors.Is(err, unix.EEXIST):
		return nil // somebody else was faster: not ours
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (with CAP_NET_ADMIN this dataplane does it itself: ip route add local %s dev lo src ADDRESS-OF-THIS-NODE)",
			notLocal(a), netip.PrefixFrom(a, a.BitLen()))
	case err != nil:
		return fmt.Errorf("%w: adding the local route failed: %w", notLocal(a), err)
	}
	r.mine[a] = true
	return nil
}

// source is the first address of the node of the same family.
func (r *routes) source(a netip.Addr) netip.Addr {
	for _, n := range r.node {
		if n = n.Unmap(); n.Is4() == a.Is4() {
			return n
		}
	}
	return netip.Addr{}
}

// forgetAdopted lets go of the routes of an earlier process that nobody has
// asked for.
func (r *routes) forgetAdopted() {
	maps.Copy(r.unused, r.adopted)
}

// repair puts back what somebody else has taken away.
func (r *routes) repair() []dataplane.Drift {
	if len(r.mine) == 0 {
		return nil
	}
	found, err := r.host.ours()
	if err != nil {
		return []dataplane.Drift{{Message: fmt.Sprintf("looking for local routes: %v", err)}}
	}
	var drifts []dataplane.Drift
	for _, a := range slices.SortedFunc(maps.Keys(r.mine), netip.Addr.Compare) {
		if slices.Contains(found, a) {
			continue
		}
		d := dataplane.Drift{Message: fmt.Sprintf("the local route of %s was gone", a), Repaired: true}
		if err := r.host.add(a, r.source(a)); err != nil && !errors.Is(err, unix.EEXIST) {
			d.Repaired = false
			d.Message += fmt.Sprintf(", and adding it failed: %v", err)
		}
		drifts = append(drifts, d)
	}
	return drifts
}

// removeAll takes every route of ours away, also those of earlier processes.
func (r *routes) removeAll() error {
	found, err := r.host.ours()
	if err != nil {
		return fmt.Errorf("looking for local routes of ours: %w", err)
	}
	errs := make([]error, 0, len(found))
	for _, a := range found {
		r.mine[a] = true
		errs = append(errs, r.drop(a))
	}
	return errors.Join(errs...)
}

// of lists the routes of one service, as text.
func (r *routes) of(id string) []string {
	list := []string{}
	for _, a := range r.wanted[id] {
		if text := fmt.Sprintf("local %s dev lo proto %d", a, routeProtocol); r.mine[a] && !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	slices.SortFunc(list, cmp.Compare[string])
	return list
}
