package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-proxy/patchbay/plugins/userspace/loop"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// balances are the names of package loop's methods, by their numbers.
var balances = []string{
	loop.RoundRobin:       dataplane.BalanceRoundRobin,
	loop.LeastConnections: dataplane.BalanceLeastConnections,
	loop.Random:           dataplane.BalanceRandom,
	loop.SourceHash:       dataplane.BalanceSourceHash,
	loop.Maglev:           dataplane.BalanceMaglev,
}

// translate makes a service of package loop from one of the contract. What it
// can't carry is in the error; the rest is carried.
func translate(s *dataplane.Service, c *Config) (loop.Service, error) {
	o, ok := s.Options.(*ServiceOptions)
	if !ok {
		o = &ServiceOptions{}
	}
	v := loop.Service{
		ID:              s.ID,
		Retries:         or(o.Retries, c.Retries),
		ConnectTimeout:  or(o.ConnectTimeout, c.ConnectTimeout),
		IdleTimeout:     or(o.IdleTimeout, c.IdleTimeout),
		UDPIdleTimeout:  or(o.UDPIdleTimeout, c.UDPIdleTimeout),
		MaxLifetime:     or(o.MaxLifetime, c.MaxLifetime),
		MaxConnections:  o.MaxConnections,
		MaxPerClient:    o.MaxPerClient,
		Affinity:        s.Affinity,
		EjectAfter:      or(o.EjectAfter, c.EjectAfter),
		EjectFor:        or(o.EjectFor, c.EjectFor),
		SendProxy:       o.ProxyProtocol == "v2",
		Allow:           s.Allow,
		ResetOnDrainEnd: s.OnDrainEnd == dataplane.DrainEndReset,
	}
	if s.OnEmpty == dataplane.EmptyDrop {
		v.OnEmpty = loop.Drop
	}
	var errs []error
	for _, n := range or(o.AcceptProxyProtocol, c.AcceptProxyProtocol) {
		v.TrustProxy = append(v.TrustProxy, n.Prefix)
	}
	if s.Balance != "" {
		i := slices.Index(balances, s.Balance)
		if i < 0 {
			errs = append(errs, fmt.Errorf("balance %q: userspace has %s", s.Balance, strings.Join(balances, ", ")))
		} else {
			v.Balance = loop.Balance(i)
		}
	}
	for _, f := range s.Frontends {
		a := netip.AddrPortFrom(f.Address.Unmap(), f.Port)
		switch f.Protocol {
		case dataplane.TCP:
			v.Listen = append(v.Listen, a)
		case dataplane.UDP:
			v.ListenUDP = append(v.ListenUDP, a)
		default:
			errs = append(errs, fmt.Errorf("%s on %s: userspace carries tcp and udp", f.Protocol, a))
		}
	}
	for _, e := range s.Endpoints {
		p := loop.Endpoint{Address: e.Address, Weight: int(e.Weight)}
		if e.State == dataplane.StateDraining {
			p.Draining, p.Deadline = true, e.DrainDeadline
		}
		v.Endpoints = append(v.Endpoints, p)
	}
	return v, errors.Join(errs...)
}

// explain says what an operator can do about an error of the engine.
func explain(err error) error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range many.Unwrap() {
			errs = append(errs, explain(e))
		}
		return errors.Join(errs...)
	}
	var l *loop.ListenError
	if !errors.As(err, &l) {
		return err
	}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%s is taken by another program, perhaps one that listens on all addresses with this port; `ss -ltunp 'sport = :%d'` names it: %w",
			l.Address, l.Address.Port(), l.Err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return notLocal(l.Address.Addr())
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s: a port below net.ipv4.ip_unprivileged_port_start needs CAP_NET_BIND_SERVICE: %w", l.Address, l.Err)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%s: no descriptors are left; raise the limit (LimitNOFILE of the agent's unit): %w", l.Address, l.Err)
	}
	return err
}

// notLocal is the error of an address that can't be listened on.
func notLocal(a netip.Addr) error {
	return fmt.Errorf("address %s is not on this node; add it or a local route", a)
}
