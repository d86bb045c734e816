package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/hashicorp/consul/api"
)

// consul is a Consul server with its data in a folder of the demo's, in which
// the backends are registered.
type consul struct {
	program, dir string
	address      string
	ports        []int
	client       *api.Client
	cmd          *exec.Cmd
	ended        chan struct{}
}

// newConsul finds ports for a server; it doesn't run yet.
func newConsul(program, dir string) (*consul, error) {
	c := &consul{program: program, dir: dir}
	for range 3 {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("finding a port for Consul: %w", err)
		}
		defer listener.Close()
		c.ports = append(c.ports, listener.Addr().(*net.TCPAddr).Port)
	}
	c.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(c.ports[0]))
	config := api.DefaultNonPooledConfig()
	config.Address, config.Scheme, config.Token, config.TokenFile = c.address, "http", "", ""
	var err error
	c.client, err = api.NewClient(config)
	return c, err
}

// start starts the server. `consul agent -dev` would do but for the restart: it
// keeps nothing.
func (c *consul) start() error {
	log, err := os.OpenFile(filepath.Join(c.dir, "consul.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	c.cmd = exec.Command(c.program, "agent", "-server", "-bootstrap-expect=1", "-node=demo", "-bind=127.0.0.1", "-client=127.0.0.1",
		"-data-dir="+filepath.Join(c.dir, "consul"), "-disable-host-node-id",
		"-http-port="+strconv.Itoa(c.ports[0]), "-server-port="+strconv.Itoa(c.ports[1]), "-serf-lan-port="+strconv.Itoa(c.ports[2]),
		"-serf-wan-port=-1", "-dns-port=-1", "-grpc-port=-1",
		"-hcl=performance { raft_multiplier = 1 }", "-hcl=disable_update_check = true")
	c.cmd.Stdout, c.cmd.Stderr = log, log
	// As the agent: Ctrl-C reaches the demo alone, and it ends with the demo.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("starting Consul: %w", err)
	}
	c.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // its log says why it ended
		close(ended)
	}(c.cmd, c.ended)
	return nil
}

// kill ends the server as a crash would.
func (c *consul) kill() {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Kill()
	<-c.ended
	c.cmd = nil
}

// ready gives an error until the server has a leader.
func (c *consul) ready() error {
	select {
	case <-c.ended:
		log, _ := os.ReadFile(filepath.Join(c.dir, "consul.log"))
		return fmt.Errorf("Consul has ended; its log says:\n%s", log[max(0, len(log)-2000):])
	default:
	}
	services, _, err := c.client.Catalog().Services(nil)
	if err == nil && len(services) == 0 {
		err = errors.New("it has no leader yet")
	}
	return err
}

// register tells Consul of a backend, and how to check it.
func (c *consul) register(b *backend) error {
	host, text, err := net.SplitHostPort(b.address)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	weight := 1
	if b.name == "web-1" {
		weight = 2
	}
	return c.client.Agent().ServiceRegister(&api.AgentServiceRegistration{
		ID: b.name, Name: b.service, Address: host, Port: port, Tags: []string{"patchbay"},
		Weights: &api.AgentWeights{Passing: weight, Warning: 1},
		Check:   &api.AgentServiceCheck{HTTP: "http://" + b.address + "/health", Interval: "500ms", Timeout: "1s"},
	})
}

// writeConfig writes the configuration of the agent for Consul.
func (c *consul) writeConfig() (string, error) {
	path := filepath.Join(c.dir, "consul.hcl")
	return path, os.WriteFile(path, fmt.Appendf(nil, `# What the demo gives the agent instead of config.hcl.
source "consul" {
  address      = %q
  select       = ["tag:patchbay"]
  default_port = 8080
}

vip_pool "default" {
  cidr = ["127.97.0.0/16"]
}

dataplane "userspace" {}
`, c.address), 0o600)
}

// startConsul starts Consul and registers the backends.
func (d *demo) startConsul(dir string) error {
	var err error
	if d.consul, err = newConsul(d.options.consul, dir); err != nil {
		return err
	}
	if err := d.consul.start(); err != nil {
		return err
	}
	if err := d.wait("Consul has a leader", d.consul.ready); err != nil {
		return err
	}
	for _, b := range d.backends {
		if err := d.consul.register(b); err != nil {
			return fmt.Errorf("registering %s in Consul: %w", b.name, err)
		}
	}
	d.printf("Consul: its API at http://%s, the backends registered with the tag patchbay.\n", d.consul.address)
	d.options.config, err = d.consul.writeConfig()
	return err
}

// wait is until for the time before the agent runs.
func (d *demo) wait(what string, check func() error) error {
	limit := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%s have passed, and it is not yet so that %s: %w", patience, what, err)
		}
		if err := d.pause(100 * time.Millisecond); err != nil {
			return err
		}
	}
}

// consulRound puts a backend into maintenance and back, and kills Consul and
// starts it again.
func (d *demo) consulRound(b *backend) error {
	agent := d.consul.client.Agent()
	if err := agent.EnableServiceMaintenance(b.name, "shown in the demo"); err != nil {
		return d.stopped(fmt.Errorf("putting %s into maintenance: %w", b.name, err))
	}
	d.printf("\n%s is put into maintenance in Consul.\n", b.name)
	if err := d.until(b.name+" is out of use", func() error { return d.out(b) }); err != nil {
		return err
	}
	if err := d.traffic(b.name+" is in maintenance", 2, b.name); err != nil {
		return err
	}
	if err := agent.DisableServiceMaintenance(b.name); err != nil {
		return d.stopped(fmt.Errorf("taking %s out of maintenance: %w", b.name, err))
	}
	d.printf("\n%s is taken out of maintenance.\n", b.name)
	if err := d.until(b.name+" takes traffic", func() error { return d.active(b) }); err != nil {
		return err
	}
	if err := d.traffic("all three are up", 1); err != nil {
		return err
	}

	d.consul.kill()
	d.printf("\nConsul is killed.\n")
	if err := d.until("the agent has noticed", func() error { return d.stale(true) }); err != nil {
		return err
	}
	if err := d.services(); err != nil {
		return err
	}
	if err := d.traffic("traffic goes on without Consul", 2); err != nil {
		return err
	}
	if err := d.consul.start(); err != nil {
		return err
	}
	d.printf("\nConsul is started again.\n")
	if err := d.until("Consul is read again", func() error { return d.stale(false) }); err != nil {
		return err
	}
	for _, b := range d.backends {
		if err := d.until(b.name+" takes traffic", func() error { return d.active(b) }); err != nil {
			return err
		}
	}
	return nil
}

// stale gives an error unless the source is, or isn't.
func (d *demo) stale(wanted bool) error {
	ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
	defer cancel()
	list, err := d.client.Health(ctx)
	if err != nil {
		return err
	}
	if (len(list.Notes) > 0) != wanted {
		return fmt.Errorf("notes on its health: %q", list.Notes)
	}
	return nil
}
