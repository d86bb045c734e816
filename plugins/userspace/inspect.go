package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/patchbay-proxy/patchbay/plugins/userspace/loop"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// Statistics implements dataplane.Statistician.
func (u *userspace) Statistics(context.Context) ([]dataplane.ServiceStatistics, error) {
	engine, err := u.running()
	if err != nil {
		return nil, err
	}
	var list []dataplane.ServiceStatistics
	for _, s := range engine.Statistics().Services {
		t := dataplane.ServiceStatistics{
			ID: s.ID,
			Counters: dataplane.Counters{
				Connections: s.Connections,
				Active:      uint64(max(s.Active, 0)),
				BytesIn:     s.BytesIn,
				BytesOut:    s.BytesOut,
				Failed:      s.Failed + s.Refused.Empty,
			},
			Refused: s.Refused.Source + s.Refused.Limit + s.Refused.Descriptors + s.Refused.Client + s.Refused.Header,
		}
		for _, e := range s.Endpoints {
			t.Endpoints = append(t.Endpoints, dataplane.EndpointStatistics{
				Address: e.Address,
				Counters: dataplane.Counters{
					Connections: e.Connections,
					Active:      uint64(max(e.Active, 0)),
					BytesIn:     e.BytesIn,
					BytesOut:    e.BytesOut,
					Failed:      e.Failures,
				},
			})
		}
		list = append(list, t)
	}
	return list, nil
}

func (u *userspace) running() (*loop.Engine, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.engine == nil {
		return nil, errNotConfigured
	}
	return u.engine, nil
}

// detail is what Inspect tells of a service as structure.
type detail struct {
	Listen      []string         `json:"listen"`
	ListenUDP   []string         `json:"listen_udp"`
	Routes      []string         `json:"routes"`
	Active      int64            `json:"active"`
	Connections uint64           `json:"connections"`
	Retries     uint64           `json:"retries"`
	Failed      uint64           `json:"failed"`
	Refused     detailRefused    `json:"refused"`
	BytesIn     uint64           `json:"bytes_in"`
	BytesOut    uint64           `json:"bytes_out"`
	Dropped     uint64           `json:"datagrams_dropped"`
	Evicted     uint64           `json:"udp_sessions_evicted"`
	Endpoints   []detailEndpoint `json:"endpoints"`
}

type detailRefused struct {
	Empty       uint64 `json:"empty"`
	Source      uint64 `json:"source"`
	Limit       uint64 `json:"limit"`
	Descriptors uint64 `json:"descriptors"`
	Client      uint64 `json:"client"`
	Header      uint64 `json:"header"`
}

type detailEndpoint struct {
	Address       string     `json:"address"`
	Weight        int        `json:"weight"`
	State         string     `json:"state"`
	DrainDeadline *time.Time `json:"drain_deadline,omitempty"`
	Active        int64      `json:"active"`
	Connections   uint64     `json:"connections"`
	Failures      uint64     `json:"failures"`
	BytesIn       uint64     `json:"bytes_in"`
	BytesOut      uint64     `json:"bytes_out"`
	LastFailure   string     `json:"last_failure,omitempty"`
	FailedAt      *time.Time `json:"failed_at,omitempty"`
	EjectedUntil  *time.Time `json:"ejected_until,omitempty"`
}

// Inspect implements dataplane.Inspector.
func (u *userspace) Inspect(_ context.Context, id string) (string, any, error) {
	engine, err := u.running()
	if err != nil {
		return "", nil, err
	}
	s, ok := engine.Service(id)
	if !ok {
		return "", nil, fmt.Errorf("%w: %s", dataplane.ErrUnknownService, id)
	}
	u.mu.Lock()
	routes := u.routes.of(id)
	u.mu.Unlock()
	d := newDetail(&s, routes)
	return d.text(), d, nil
}

func newDetail(s *loop.ServiceStatistics, routes []string) *detail {
	d := &detail{
		Listen:      []string{},
		ListenUDP:   []string{},
		Routes:      routes,
		Active:      s.Active,
		Connections: s.Connections,
		Retries:     s.Retries,
		Failed:      s.Failed,
		Refused:     detailRefused(s.Refused),
		BytesIn:     s.BytesIn,
		BytesOut:    s.BytesOut,
		Dropped:     s.Dropped,
		Evicted:     s.Evicted,
		Endpoints:   []detailEndpoint{},
	}
	for _, a := range s.Listen {
		d.Listen = append(d.Listen, a.String())
	}
	for _, a := range s.ListenUDP {
		d.ListenUDP = append(d.ListenUDP, a.String())
	}
	for _, e := range s.Endpoints {
		p := detailEndpoint{
			Address:     e.Address.String(),
			Weight:      e.Weight,
			State:       dataplane.StateActive.String(),
			Active:      e.Active,
			Connections: e.Connections,
			Failures:    e.Failures,
			BytesIn:     e.BytesIn,
			BytesOut:    e.BytesOut,
			LastFailure: e.LastFailure,
		}
		if e.LastFailure != "" {
			t := e.FailedAt.UTC()
			p.FailedAt = &t
		}
		if !e.EjectedUntil.IsZero() {
			t := e.EjectedUntil.UTC()
			p.EjectedUntil = &t
			p.State = stateEjected
		}
		if e.Draining {
			p.State = dataplane.StateDraining.String()
			if !e.Deadline.IsZero() {
				t := e.Deadline.UTC()
				p.DrainDeadline = &t
			}
		}
		d.Endpoints = append(d.Endpoints, p)
	}
	return d
}

// text is what an operator reads.
func (d *detail) text() string {
	var b strings.Builder
	if len(d.Listen)+len(d.ListenUDP) == 0 {
		b.WriteString("listens nowhere\n")
	}
	for _, a := range d.Listen {
		fmt.Fprintf(&b, "listens on %s\n", a)
	}
	for _, a := range d.ListenUDP {
		fmt.Fprintf(&b, "listens on %s for udp\n", a)
	}
	for _, r := range d.Routes {
		fmt.Fprintf(&b, "local route of ours: %s\n", r)
	}
	fmt.Fprintf(&b, "%d connections now, %d in all; %d retries, %d failed\n", d.Active, d.Connections, d.Retries, d.Failed)
	if r := d.Refused; r != (detailRefused{}) {
		fmt.Fprintf(&b, "refused: %d no endpoint, %d source, %d limit, %d limit of one client, %d no PROXY header, %d no descriptor\n",
			r.Empty, r.Source, r.Limit, r.Client, r.Header, r.Descriptors)
	}
	if d.Dropped+d.Evicted > 0 {
		fmt.Fprintf(&b, "%d datagrams dropped, %d UDP sessions made room for others\n", d.Dropped, d.Evicted)
	}
	if len(d.Endpoints) == 0 {
		b.WriteString("no endpoints\n")
		return b.String()
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENDPOINT\tWEIGHT\tSTATE\tNOW\tIN ALL\tFAILED\tBYTES IN\tBYTES OUT")
	for _, e := range d.Endpoints {
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\n", e.Address, e.Weight, e.State, e.Active, e.Connections, e.Failures, e.BytesIn, e.BytesOut)
	}
	_ = w.Flush() // to a strings.Builder: never fails
	for _, e := range d.Endpoints {
		switch {
		case e.EjectedUntil != nil:
			fmt.Fprintf(&b, "%s takes no new connections until %s: connecting to it failed too often, last with: %s\n",
				e.Address, e.EjectedUntil.Format(time.RFC3339), e.LastFailure)
		case e.LastFailure != "":
			fmt.Fprintf(&b, "%s: connecting failed last at %s: %s\n", e.Address, e.FailedAt.Format(time.RFC3339), e.LastFailure)
		}
	}
	return b.String()
}

// stateEjected is the state of an endpoint that is active and takes no new
// connections because too many attempts have failed.
const stateEjected = "ejected"
