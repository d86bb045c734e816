package agent

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/core/dispatch"
	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// view is what the API shows at one moment: the snapshot, and how each
// dataplane stands.
type view struct {
	index    uint64
	snapshot *catalog.Snapshot
	carriers map[string]carrierView
}

func (a *Agent) view() *view {
	v := &view{index: a.notice.now(), snapshot: a.catalog.Snapshot(), carriers: map[string]carrierView{}}
	for _, c := range a.allCarriers() {
		v.carriers[c.name] = c.view()
	}
	return v
}

func (v *view) head() admin.View { return admin.View{Index: v.index, Revision: v.snapshot.Revision} }

// service judges one service.
func (v *view) service(s *catalog.Service) admin.Service {
	out := admin.Service{ID: s.ID, Source: s.Source, Dataplane: s.Dataplane, Notes: s.Notes, Frontends: []admin.Frontend{}}
	if s.Desired != nil {
		for _, f := range s.Desired.Frontends {
			out.Frontends = append(out.Frontends, admin.Frontend(f))
		}
	}
	out.Endpoints = countEndpoints(s)
	out.State, out.Reason, out.Acknowledged = v.judge(s)
	return out
}

// judge gives the state of a service, why, and the revision at which its
// dataplane took it as it is now.
func (v *view) judge(s *catalog.Service) (admin.ServiceState, string, uint64) {
	if s.Desired == nil {
		reason := s.Rejected
		if reason == "" {
			reason = "nothing to carry"
		}
		if s.Waiting {
			return admin.StateWaiting, reason, 0
		}
		return admin.StateRejected, reason, 0
	}
	c, ok := v.carriers[s.Dataplane]
	if !ok {
		return admin.StateWaiting, fmt.Sprintf("dataplane %s is not running yet", s.Dataplane), 0
	}
	ack := c.acknowledged(s.ID)
	revision := uint64(0)
	if ack.Current {
		revision = ack.Revision
	}
	switch {
	case ack.Failure != nil:
		reason := ack.Failure.Err
		if ack.Failure.Attempts > 1 {
			reason += fmt.Sprintf(" (tried %d times)", ack.Failure.Attempts)
		}
		return admin.StateFailed, reason, 0
	case !ack.Current:
		return admin.StateWaiting, c.waitingFor(v.snapshot.Unread), 0
	case !c.connected:
		return admin.StateDegraded, c.notRunning(), revision
	case !c.silentSince.IsZero():
		return admin.StateDegraded, fmt.Sprintf("dataplane %s: %s", c.name, c.silence()), revision
	case len(s.Desired.Endpoints) == 0:
		return admin.StateDegraded, withNotes("no endpoint", s), revision
	case !slices.ContainsFunc(s.Desired.Endpoints, dataplane.Endpoint.Usable):
		return admin.StateDegraded, withNotes("no endpoint takes new connections", s), revision
	}
	return admin.StateOK, "", revision
}

// withNotes adds to a reason what the catalog noted, or what the source says
// of the instances.
func withNotes(reason string, s *catalog.Service) string {
	details := slices.Clone(s.Notes)
	if len(details) == 0 {
		for _, i := range s.Instances {
			if i.Health != source.Passing && i.Reason != "" {
				details = append(details, i.Reason)
				break
			}
		}
	}
	if len(details) == 0 {
		return reason
	}
	return reason + ": " + strings.Join(details, "; ")
}

// waitingFor says what a service waits for that is not acknowledged.
func (c *carrierView) waitingFor(unread []string) string {
	if silence := c.silence(); silence != "" {
		return fmt.Sprintf("dataplane %s: %s", c.name, silence)
	}
	switch s := c.session; s.State {
	case dispatch.StateDisconnected:
		return c.notRunning()
	case dispatch.StateWaiting:
		return "waiting for the first read of source " + strings.Join(unread, ", ")
	case dispatch.StateHeld:
		return fmt.Sprintf("dataplane %s is on hold", c.name)
	case dispatch.StateBackoff:
		return fmt.Sprintf("dataplane %s did not take the last update: %s", c.name, s.LastError)
	case dispatch.StateSuperseded:
		return fmt.Sprintf("a newer agent writes to dataplane %s", c.name)
	case dispatch.StateApplying:
		return fmt.Sprintf("sent to dataplane %s, which has not acknowledged it yet", c.name)
	}
	return fmt.Sprintf("about to be sent to dataplane %s", c.name)
}

// notRunning says why the plugin is not there.
func (c *carrierView) notRunning() string {
	state, reason := c.pluginState()
	text := fmt.Sprintf("the plugin of dataplane %s is %s", c.name, state)
	if reason != "" {
		text += ": " + reason
	}
	return text
}

func countEndpoints(s *catalog.Service) admin.EndpointCount {
	var n admin.EndpointCount
	if s.Desired == nil {
		n.Unused = len(s.Instances)
		return n
	}
	for _, e := range s.Desired.Endpoints {
		if e.State == dataplane.StateDraining {
			n.Draining++
		} else {
			n.Active++
		}
	}
	n.Unused = len(unused(s))
	return n
}

// unused gives the instances that the source knows and the dataplane was not
// given.
func unused(s *catalog.Service) []source.Instance {
	given := map[netip.AddrPort]bool{}
	if s.Desired != nil {
		for _, e := range s.Desired.Endpoints {
			given[e.Address] = true
		}
	}
	var out []source.Instance
	for _, i := range s.Instances {
		if address, err := netip.ParseAddr(i.Address); err != nil || !given[netip.AddrPortFrom(address.Unmap(), i.Port)] {
			out = append(out, i)
		}
	}
	return out
}

// endpoints lists the endpoints of a service, those that its dataplane was
// given first.
func (v *view) endpoints(s *catalog.Service) []admin.Endpoint {
	instances := map[netip.AddrPort]*source.Instance{}
	for i := range s.Instances {
		if address, err := netip.ParseAddr(s.Instances[i].Address); err == nil {
			instances[netip.AddrPortFrom(address.Unmap(), s.Instances[i].Port)] = &s.Instances[i]
		}
	}
	var counters map[netip.AddrPort]dataplane.Counters
	if c, ok := v.carriers[s.Dataplane]; ok {
		counters = c.endpointCounters(s.ID)
	}
	out := []admin.Endpoint{}
	if s.Desired != nil {
		for _, e := range s.Desired.Endpoints {
			shown := admin.Endpoint{Service: s.ID, Address: e.Address.Addr().String(), Port: e.Address.Port(), Weight: e.Weight,
				State: e.State.String(), Zone: e.Zone, Node: e.Node, Local: e.Local}
			if !e.DrainDeadline.IsZero() {
				shown.DrainDeadline = instant(e.DrainDeadline)
			}
			if i := instances[e.Address]; i != nil {
				shown.Health, shown.Reason = healthName(i.Health), i.Reason
			}
			if n, ok := counters[e.Address]; ok {
				shown.Statistics = &admin.Counters{Connections: n.Connections, Active: n.Active, BytesIn: n.BytesIn, BytesOut: n.BytesOut, Failed: n.Failed}
			}
			out = append(out, shown)
		}
	}
	for _, i := range unused(s) {
		out = append(out, admin.Endpoint{Service: s.ID, Address: i.Address, Port: i.Port, Weight: i.Weight, State: "unused",
			Health: healthName(i.Health), Reason: i.Reason, Zone: i.Zone, Node: i.Node, Local: i.Local})
	}
	return out
}

var healthNames = map[source.Health]string{
	source.Passing: "passing", source.Warning: "warning", source.Critical: "critical", source.Maintenance: "maintenance",
}

func healthName(h source.Health) string { return healthNames[h] }

// instant gives a moment as the API shows it, nil for none.
func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// Services implements admin.Backend.
func (a *Agent) Services() admin.ServiceList {
	v := a.view()
	list := admin.ServiceList{View: v.head(), Services: make([]admin.Service, 0, v.snapshot.Len()), Sources: a.sources()}
	for s := range v.snapshot.All {
		list.Services = append(list.Services, v.service(s))
	}
	return list
}

// Service implements admin.Backend.
func (a *Agent) Service(id string) (admin.ServiceDetail, error) {
	v := a.view()
	s := v.snapshot.Get(id)
	if s == nil {
		return admin.ServiceDetail{}, noService(id)
	}
	d := admin.ServiceDetail{View: v.head(), Service: v.service(s), Endpoints: v.endpoints(s)}
	if s.Desired != nil {
		d.Policy = admin.ServicePolicy{
			Balance:    s.Desired.Balance,
			Affinity:   admin.Seconds(s.Desired.Affinity),
			Drain:      admin.Seconds(s.Drain),
			OnEmpty:    s.Desired.OnEmpty.String(),
			OnDrainEnd: s.Desired.OnDrainEnd.String(),
			Masquerade: s.Desired.Masquerade.String(),
			Allow:      s.Desired.Allow,
			Options:    v.maskedOptions(s),
		}
	}
	return d, nil
}

func noService(id string) error {
	return &admin.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("there is no service %q", id), Hint: "`patchbay services` lists them"}
}

// Endpoints implements admin.Backend.
func (a *Agent) Endpoints(id string) (admin.EndpointList, error) {
	v := a.view()
	list := admin.EndpointList{View: v.head(), Endpoints: []admin.Endpoint{}}
	if id != "" {
		s := v.snapshot.Get(id)
		if s == nil {
			return list, noService(id)
		}
		list.Endpoints = v.endpoints(s)
		return list, nil
	}
	for s := range v.snapshot.All {
		list.Endpoints = append(list.Endpoints, v.endpoints(s)...)
	}
	return list, nil
}
