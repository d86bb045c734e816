package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

type options struct {
	config, bin string
	// consul is the program of Consul; empty for the services of config.
	consul string
	once   bool
}

const (
	// patience is how long anything that should come about soon may take.
	patience = 60 * time.Second
	// batch is the number of requests of one line.
	batch = 30

	activeState = "active" // of an endpoint, in the API
)

// demo is one run.
type demo struct {
	*screen
	options
	ctx      context.Context
	backends []*backend
	consul   *consul // nil without
	agent    *agent
	client   *admin.Client
	http     *http.Client
	vip      map[string]string // address and port of each service
}

// show runs the demo until ctx ends, or once around.
func show(ctx context.Context, o options, s *screen) (err error) {
	dir, err := os.MkdirTemp("", "patchbay-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.config, err = filepath.Abs(o.config); err != nil {
		return err
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	d := &demo{screen: s, options: o, ctx: ctx, backends: newBackends(), vip: map[string]string{}}
	// A connection for each request, so that each is balanced.
	d.http = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	defer func() {
		for _, b := range d.backends {
			b.down()
		}
	}()
	for _, b := range d.backends {
		if err := b.up(); err != nil {
			return err
		}
	}
	d.printf("Backends: web on 127.0.0.1:18081 to 18083, api on 127.0.0.1:18091 and 18092.\n")
	if o.consul != "" {
		defer func() {
			if d.consul != nil {
				d.consul.kill()
			}
		}()
		if err := d.startConsul(dir); err != nil {
			return err
		}
	}
	if d.agent, err = startAgent(d.options, dir); err != nil {
		return err
	}
	d.client = admin.NewClient(d.agent.socket)
	defer func() {
		d.client.Close()
		if stopErr := d.agent.stop(); err == nil || errors.Is(err, errStopped) && stopErr != nil {
			err = stopErr
		}
	}()
	d.printf("Agent: patchbay agent -config %s, its state in %s.\n", filepath.Base(d.config), dir)
	return d.run()
}

func (d *demo) run() error {
	if err := d.ready(); err != nil {
		return err
	}
	if err := d.services(); err != nil {
		return err
	}
	d.printf("\nTry it in another terminal:\n\n    curl http://%s/\n\n", d.vip["web"])
	for round := 0; ; round++ {
		if err := d.round(d.backends[round%3]); err != nil {
			return err
		}
		if d.consul != nil {
			if err := d.consulRound(d.backends[round%3]); err != nil {
				return err
			}
		}
		if d.once {
			d.printf("\nDone: every request was answered.\n")
			return nil
		}
		if round == 0 {
			d.printf("\nAnd so on, until Ctrl-C.\n")
		}
	}
}

// ready waits until every backend takes traffic and its service answers at its
// VIP.
func (d *demo) ready() error {
	for _, service := range []string{"web", "api"} {
		if err := d.until(service+" answers at its address", func() error { return d.answers(service) }); err != nil {
			return err
		}
	}
	for _, b := range d.backends {
		if err := d.until(b.name+" takes traffic", func() error { return d.active(b) }); err != nil {
			return err
		}
	}
	plugins, err := d.client.Plugins(d.ctx)
	if err != nil {
		return d.stopped(err)
	}
	for _, p := range plugins.Plugins {
		if p.PID > 0 {
			d.agent.plugins = append(d.agent.plugins, p.PID)
		}
	}
	return nil
}

func (d *demo) answers(service string) error {
	s, err := d.client.Service(d.ctx, service)
	if err != nil {
		return err
	}
	if len(s.Service.Frontends) == 0 || s.Service.State != admin.StateOK {
		return fmt.Errorf("it is %s: %s", s.Service.State, s.Service.Reason)
	}
	f := s.Service.Frontends[0]
	d.vip[service] = netip.AddrPortFrom(f.Address, f.Port).String()
	_, err = d.ask(service)
	return err
}

// state of a backend's endpoint, once the dataplane has acknowledged it.
func (d *demo) state(b *backend) (string, error) {
	detail, err := d.client.Service(d.ctx, b.service)
	if err != nil {
		return "", err
	}
	if detail.Service.Acknowledged == 0 {
		return "", errors.New("the dataplane has not acknowledged it yet")
	}
	for _, e := range detail.Endpoints {
		if net.JoinHostPort(e.Address, fmt.Sprint(e.Port)) == b.address {
			return e.State, nil
		}
	}
	return "", fmt.Errorf("%s has no endpoint %s: is this another config.hcl?", b.service, b.address)
}

// active gives an error unless the backend takes traffic.
func (d *demo) active(b *backend) error {
	state, err := d.state(b)
	if err == nil && state != activeState {
		err = fmt.Errorf("it is %s", state)
	}
	return err
}

// out gives an error unless the backend is out of use.
func (d *demo) out(b *backend) error {
	state, err := d.state(b)
	if err == nil && state == activeState {
		err = errors.New("it is still active")
	}
	return err
}

// services shows what the command line shows.
func (d *demo) services() error {
	out, err := exec.CommandContext(d.ctx, d.agent.binary, "services", "-socket", d.agent.socket).CombinedOutput()
	if err != nil {
		return d.stopped(fmt.Errorf("patchbay services: %w\n%s", err, out))
	}
	d.printf("\n$ patchbay services -socket %s\n%s", d.agent.socket, out)
	return nil
}

// round takes one backend away and puts it back.
func (d *demo) round(b *backend) error {
	if err := d.traffic("all three are up, "+d.weights(), 2); err != nil {
		return err
	}
	b.down()
	d.printf("\n%s goes away.\n", b.name)
	if err := d.traffic("connections to "+b.name+" fail, and another takes them", 1); err != nil {
		return err
	}
	if err := d.until(b.name+" is out of use", func() error { return d.out(b) }); err != nil {
		return err
	}
	if err := d.traffic("the health check has seen it", 2, b.name); err != nil {
		return err
	}
	if err := b.up(); err != nil {
		return err
	}
	d.printf("\n%s comes back.\n", b.name)
	if err := d.until(b.name+" takes traffic", func() error { return d.active(b) }); err != nil {
		return err
	}
	return d.until(b.name+" gets requests", func() error {
		by, err := d.spread()
		if err != nil {
			return err
		}
		d.line("the health check has seen it", by)
		if by[b.name] == 0 {
			return errors.New("it gets none")
		}
		return nil
	})
}

// weights says which shares web's backends have.
func (d *demo) weights() string {
	list, err := d.client.Endpoints(d.ctx, "web")
	if err != nil {
		return "weights unknown"
	}
	var each []string
	for _, e := range list.Endpoints {
		each = append(each, fmt.Sprint(e.Weight))
	}
	return "weights " + strings.Join(each, ", ")
}

// traffic sends some batches of requests to web, a line for each; none may
// fail, and none may reach a name that is absent.
func (d *demo) traffic(why string, lines int, absent ...string) error {
	for range lines {
		by, err := d.spread()
		if err != nil {
			return err
		}
		d.line(why, by)
		for _, name := range absent {
			if by[name] > 0 {
				return fmt.Errorf("%d requests went to %s, which is out of use", by[name], name)
			}
		}
		if err := d.pause(time.Second); err != nil {
			return err
		}
	}
	return nil
}

// spread sends a batch of requests to web and counts who answered.
func (d *demo) spread() (map[string]int, error) {
	by := map[string]int{}
	for i := range batch {
		name, err := d.ask("web")
		if err != nil {
			return nil, d.stopped(fmt.Errorf("request %d of %d to %s failed: %w", i+1, batch, d.vip["web"], err))
		}
		by[name]++
	}
	return by, nil
}

// line shows who answered a batch.
func (d *demo) line(why string, by map[string]int) {
	var names []string
	for _, b := range d.backends {
		if b.service == "web" {
			names = append(names, b.name)
		}
	}
	for name := range by {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "%s %-*s %2d   ", name, batch/2, strings.Repeat("#", (by[name]+1)/2), by[name])
	}
	d.printf("  %s %s\n", b.String(), why)
}

// ask sends one request to a service's VIP and gives the name that answers.
func (d *demo) ask(service string) (string, error) {
	request, err := http.NewRequestWithContext(d.ctx, http.MethodGet, "http://"+d.vip[service]+"/", nil)
	if err != nil {
		return "", err
	}
	answer, err := d.http.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if err != nil {
		return "", err
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("it answers %s", answer.Status)
	}
	return strings.TrimSpace(string(body)), nil
}

// until waits for something to come about, at the pace of a reader.
func (d *demo) until(what string, check func() error) error {
	limit := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return nil
		}
		if stopped := d.stopped(nil); stopped != nil {
			return stopped
		}
		if !d.agent.alive() {
			return fmt.Errorf("the agent ended before %s; its log says:\n%s", what, d.agent.logTail())
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%s have passed, and it is not yet so that %s: %w\nThe agent's log says:\n%s", patience, what, err, d.agent.logTail())
		}
		if err := d.pause(200 * time.Millisecond); err != nil {
			return err
		}
	}
}

// stopped gives errStopped when the user wants to end, otherwise err.
func (d *demo) stopped(err error) error {
	if d.ctx.Err() != nil {
		return errStopped
	}
	return err
}

// pause lets a reader read.
func (d *demo) pause(t time.Duration) error {
	if d.once {
		t = min(t, 100*time.Millisecond)
	}
	select {
	case <-d.ctx.Done():
		return errStopped
	case <-time.After(t):
		return nil
	}
}
