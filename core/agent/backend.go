package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/dispatch"
	"github.com/patchbay-proxy/patchbay/core/vip"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

var _ admin.Backend = (*Agent)(nil)

// Version implements admin.Backend.
func (a *Agent) Version() admin.Version { return a.options.Version }

// Wait implements admin.Backend.
func (a *Agent) Wait(ctx context.Context, index uint64) { a.notice.wait(ctx, index) }

// Status implements admin.Backend.
func (a *Agent) Status() admin.Status {
	v := a.view()
	cfg := a.inForce()
	s := admin.Status{
		View:          v.head(),
		Version:       a.options.Version.Version,
		PID:           os.Getpid(),
		StartedAt:     a.started.UTC(),
		Session:       a.session,
		DataDir:       a.dataDir,
		PluginDir:     cfg.PluginDir,
		NodeAddresses: []netip.Addr{},
		ConfigFiles:   cfg.Files,
		WatchFiles:    cfg.WatchFiles,
		SyncInterval:  admin.Seconds(cfg.SyncInterval),
		Services:      v.snapshot.Len(),
		ByState:       map[string]int{},
		Sources:       a.sources(),
		Dataplanes:    a.dataplanes(v),
	}
	for service := range v.snapshot.All {
		state, _, _ := v.judge(service)
		s.ByState[string(state)]++
	}
	a.mu.Lock()
	s.NodeAddresses = append(s.NodeAddresses, a.node.Addresses...)
	s.LastReload = a.lastReload
	s.Problems = slices.Clone(a.problems)
	a.mu.Unlock()
	damaged, unsaved := a.troubles.List()
	s.Problems = slices.Concat(damaged, unsaved, s.Problems)
	s.Health = admin.Judge(unsaved, s.Sources, s.Dataplanes, cfg.SyncInterval, time.Now())
	return s
}

// Health implements admin.Backend.
func (a *Agent) Health() admin.Health {
	_, unsaved := a.troubles.List()
	return admin.Judge(unsaved, a.sources(), a.dataplanes(a.view()), a.inForce().SyncInterval, time.Now())
}

func (a *Agent) sources() []admin.SourceStatus {
	out := []admin.SourceStatus{}
	for _, s := range a.catalog.Sources() {
		out = append(out, admin.SourceStatus{Name: s.Name, Read: s.Read, StaleSince: instant(s.StaleSince), Error: s.Err})
	}
	return out
}

// dataplanes gives the status of each dataplane that has a block.
func (a *Agent) dataplanes(v *view) []admin.DataplaneStatus {
	out := []admin.DataplaneStatus{}
	cfg := a.inForce()
	for _, name := range slices.Sorted(maps.Keys(v.carriers)) {
		if cv := v.carriers[name]; cfg.Dataplane(name) != nil {
			out = append(out, cv.status(v.snapshot.Unread))
		}
	}
	return out
}

func (c *carrierView) status(unread []string) admin.DataplaneStatus {
	s := admin.DataplaneStatus{
		Name:         c.name,
		Connected:    c.connected,
		Acknowledged: c.session.AcknowledgedRevision,
		WaitingSince: instant(c.session.WaitingSince),
		SilentSince:  instant(c.silentSince),
		Error:        c.session.LastError,
	}
	state, reason := c.pluginState()
	s.State = state
	if !c.connected {
		s.Error = reason
		return s
	}
	s.State = string(c.session.State)
	if silence := s.Silence(time.Now()); silence != "" {
		s.Error = silence
	}
	switch c.session.State {
	case dispatch.StateWaiting, dispatch.StateHeld, dispatch.StateSuperseded:
		s.Holding = c.waitingFor(unread)
	}
	return s
}

// Plugins implements admin.Backend.
func (a *Agent) Plugins() admin.PluginList {
	v := a.view()
	cfg := a.inForce()
	list := admin.PluginList{View: v.head(), Plugins: []admin.Plugin{}}
	services := map[string]int{}
	for s := range v.snapshot.All {
		if s.Desired != nil {
			services[s.Dataplane]++
		}
	}
	for _, c := range a.allCarriers() {
		cv := v.carriers[c.name]
		p := admin.Plugin{
			Name:         c.name,
			Version:      cv.plugin.Version,
			Path:         cv.plugin.Path,
			PID:          cv.plugin.PID,
			StartedAt:    instant(cv.plugin.Started),
			Starts:       int(cv.plugin.Starts),
			Crashes:      int(cv.plugin.Crashes),
			NextStart:    instant(cv.plugin.NextAttempt),
			Services:     services[c.name],
			Acknowledged: cv.session.AcknowledgedRevision,
			Log:          logDir(a.dataDir),
		}
		p.State, p.Reason = cv.pluginState()
		if cv.connected && cv.description != nil {
			p.Protocol = cv.description.Protocol
		}
		if p.Reason == "" {
			p.Reason = cv.silence()
		}
		if p.Reason == "" {
			p.Reason = cv.session.LastError
		}
		if block := cfg.Dataplane(c.name); block != nil {
			p.Default = block.Default
		} else {
			p.State, p.Reason = "leaving", "its block is gone from the configuration"
		}
		list.Plugins = append(list.Plugins, p)
	}
	return list
}

// Explain implements admin.Backend.
func (a *Agent) Explain(ctx context.Context, address netip.AddrPort) (admin.Explanation, error) {
	v := a.view()
	e := admin.Explanation{View: v.head(), Address: address}
	cfg := a.inForce()
	ip := address.Addr().Unmap()
	for _, p := range cfg.Pools {
		if slices.ContainsFunc(p.CIDR, func(r netip.Prefix) bool { return r.Contains(ip) }) {
			e.Pool = p.Name
		}
	}
	for _, l := range a.leases.List() {
		if l.Held() && slices.Contains(l.Addresses, ip) {
			e.LeaseOwner = l.Service
		}
	}
	var owner *catalog.Service
	for s := range v.snapshot.All {
		switch match(s, ip, address.Port(), cfg) {
		case sameFrontend:
			owner = s
		case sameAddress, wantsFrontend:
			e.Related = append(e.Related, v.service(s))
		}
	}
	if owner == nil {
		e.Verdict = noOwner(e)
		return e, nil
	}
	shown := v.service(owner)
	e.Service, e.Endpoints = &shown, v.endpoints(owner)
	e.InForce = a.inspect(ctx, owner)
	e.Verdict = verdict(shown)
	return e, nil
}

// nearness of a service to an address and port.
type nearness int

const (
	unrelated nearness = iota
	sameAddress
	// wantsFrontend is a refused service whose block names the frontend.
	wantsFrontend
	sameFrontend
)

func match(s *catalog.Service, ip netip.Addr, port uint16, cfg *config.Config) nearness {
	near := unrelated
	if s.Desired != nil {
		for _, f := range s.Desired.Frontends {
			if f.Address.Unmap() == ip {
				near = sameAddress
				if f.Port == port {
					return sameFrontend
				}
			}
		}
		return near
	}
	for _, block := range cfg.Services {
		if block.Name == s.ID && (slices.Contains(block.VIP, ip) || slices.Contains(block.External, ip)) {
			return wantsFrontend
		}
	}
	return unrelated
}

func noOwner(e admin.Explanation) string {
	switch {
	case e.LeaseOwner != "":
		return fmt.Sprintf("no service has this frontend; the address is leased to %s", e.LeaseOwner)
	case len(e.Related) > 0:
		return "no service has this frontend; see what comes near"
	case e.Pool != "":
		return fmt.Sprintf("no service has this frontend; the address is free in vip_pool %s", e.Pool)
	}
	return "no service has this frontend: Patchbay has nothing to do with it"
}

func verdict(s admin.Service) string {
	text := fmt.Sprintf("frontend of service %s", s.ID)
	switch s.State {
	case admin.StateOK:
		endpoints := fmt.Sprintf("%d endpoints", s.Endpoints.Active)
		if s.Endpoints.Active == 1 {
			endpoints = "1 endpoint"
		}
		return fmt.Sprintf("%s: dataplane %s carries it to %s", text, s.Dataplane, endpoints)
	case admin.StateDegraded:
		return fmt.Sprintf("%s: dataplane %s carries it, but %s", text, s.Dataplane, s.Reason)
	}
	return fmt.Sprintf("%s, which is %s: %s", text, s.State, s.Reason)
}

// inspect asks the plugin what is in force.
func (a *Agent) inspect(ctx context.Context, s *catalog.Service) *admin.InForce {
	out := &admin.InForce{Dataplane: s.Dataplane}
	a.mu.Lock()
	c := a.carriers[s.Dataplane]
	a.mu.Unlock()
	if c == nil {
		out.Error = "there is no such dataplane"
		return out
	}
	client := c.running().client
	if client == nil {
		out.Error = "its plugin does not run"
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	text, detail, err := client.Inspect(ctx, s.ID)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		out.Error = "the plugin does not tell"
	case errors.Is(err, dataplane.ErrUnknownService):
		out.Error = "the plugin does not have the service"
	case err != nil:
		out.Error = err.Error()
	default:
		out.Text, out.Detail = text, detail
	}
	return out
}

// Leases implements admin.Backend.
func (a *Agent) Leases() admin.LeaseList {
	v := a.view()
	list := admin.LeaseList{View: v.head(), Leases: []admin.Lease{}}
	for _, l := range a.leases.List() {
		shown := admin.Lease{Pool: l.Pool, Service: l.Service, Addresses: l.Addresses, Since: l.Since.UTC(), InUse: inUse(v.snapshot, l)}
		if !l.Held() {
			shown.RestsUntil = instant(l.Released.Add(vip.Rest))
		}
		list.Leases = append(list.Leases, shown)
	}
	return list
}

func inUse(snapshot *catalog.Snapshot, l vip.Lease) bool {
	s := snapshot.Get(l.Service)
	return s != nil && s.Desired != nil && slices.ContainsFunc(s.Desired.Frontends, func(f dataplane.Frontend) bool {
		return slices.Contains(l.Addresses, f.Address)
	})
}

// ReleaseLease implements admin.Backend.
func (a *Agent) ReleaseLease(service string) error {
	l, ok := a.leases.Lease(service)
	if !ok {
		found := false
		for _, resting := range a.leases.List() {
			found = found || resting.Service == service
		}
		if !found {
			return &admin.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("service %s holds no lease", service), Hint: "`patchbay vip list` shows who does"}
		}
	}
	if ok && inUse(a.catalog.Snapshot(), l) {
		return &admin.Error{Status: http.StatusConflict, Message: fmt.Sprintf("service %s uses its lease", service),
			Hint: "take the service out of the configuration first, or give it a vip of its own"}
	}
	if err := a.catalog.ReleaseLease(service); err != nil {
		return err
	}
	a.notice.bump()
	return nil
}

// sample gives what the metrics show now.
func (a *Agent) sample() *admin.Sample {
	v := a.view()
	s := &admin.Sample{
		Version:       a.options.Version.Version,
		Revision:      v.snapshot.Revision,
		ByState:       map[admin.ServiceState]int{},
		Sources:       a.sources(),
		LeasesHeld:    map[string]int{},
		LeasesResting: map[string]int{},
	}
	for service := range v.snapshot.All {
		state, _, _ := v.judge(service)
		s.ByState[state]++
		n := countEndpoints(service)
		s.Endpoints.Active += n.Active
		s.Endpoints.Draining += n.Draining
		s.Endpoints.Unused += n.Unused
	}
	cfg := a.inForce()
	for _, p := range cfg.Pools {
		s.LeasesHeld[p.Name], s.LeasesResting[p.Name] = 0, 0
	}
	for _, l := range a.leases.List() {
		// Leases of pools that are gone would be series without end.
		if _, known := s.LeasesHeld[l.Pool]; !known {
			continue
		}
		if l.Held() {
			s.LeasesHeld[l.Pool]++
		} else {
			s.LeasesResting[l.Pool]++
		}
	}
	for _, c := range a.allCarriers() {
		if cv, ok := v.carriers[c.name]; ok {
			s.Carriers = append(s.Carriers, c.sample(cv, v.snapshot.Unread))
		}
	}
	_, unsaved := a.troubles.List()
	s.Healthy = admin.Judge(unsaved, s.Sources, a.dataplanes(v), cfg.SyncInterval, time.Now()).Healthy
	a.mu.Lock()
	defer a.mu.Unlock()
	s.ConfigLoaded = a.loadedAt
	s.ConfigValid = a.lastReload != nil && a.lastReload.OK
	s.ReloadsOK, s.ReloadsFailed = a.reloads.ok, a.reloads.failed
	return s
}

func (c *carrier) sample(v carrierView, unread []string) admin.CarrierSample {
	c.mu.Lock()
	defer c.mu.Unlock()
	return admin.CarrierSample{
		DataplaneStatus:  v.status(unread),
		Carried:          v.session.Acknowledged,
		Failed:           len(v.session.Failed),
		Full:             v.session.FullApplies,
		Difference:       v.session.DifferenceApplies,
		Check:            v.session.CheckApplies,
		Errors:           v.session.FailedApplies,
		Upserted:         v.session.ServicesUpserted,
		Deleted:          v.session.ServicesDeleted,
		Starts:           v.plugin.Starts,
		Crashes:          v.plugin.Crashes,
		LogLinesDropped:  v.plugin.DroppedLines,
		Repaired:         c.statistics.repaired,
		Unrepaired:       c.statistics.unrepaired,
		Totals:           c.statistics.totals,
		RefusedTotal:     c.statistics.refused,
		StatisticsKnown:  c.statistics.known,
		ServicesCounters: c.statistics.sorted(),
	}
}

// jsonOf gives a schema as text, to compare.
func jsonOf(s *schema.Schema) string {
	data, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	return string(data)
}
