package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// proxyKind is one of the programs that are compared.
type proxyKind struct {
	name  string // in flags
	title string // in tables
	port  int    // of its request frontend; bulk is two above
	only  string // the one case it takes part in; empty for all
	idle  int    // idle connections, where it can't hold as many as others
	start func(b *bench, k proxyKind, dir string) (*exec.Cmd, error)
}

// proxyKinds in the order of the columns; haproxy is what others are compared
// with.
var proxyKinds = []proxyKind{
	{"haproxy", "haproxy", 9100, "", 0, startHAProxy},
	{"haproxy-splice", "haproxy, forced splice", 9200, "bulk", 0, startHAProxySplice},
	{"nginx", "nginx stream", 9300, "", 0, startNginx},
	{"iocopy", "Go, io.Copy", 9400, "", 3000, startIOCopy},
	{"datapath", "Patchbay's data path", 9500, "", 0, startDatapath},
	{"userspace", "Patchbay userspace", 9600, "", 0, startUserspace},
	{"userspace-all", "the same, all in force", 9700, "", 0, startUserspaceAll},
}

// proxy is one that runs.
type proxy struct {
	proxyKind
	*process
}

func (k proxyKind) request() string { return fmt.Sprintf("%s:%d", proxyAddr, k.port) }
func (k proxyKind) bulk() string    { return fmt.Sprintf("%s:%d", proxyAddr, k.port+2) }

// startProxy starts a proxy and waits until it takes connections.
func (b *bench) startProxy(k proxyKind) (*proxy, error) {
	dir, err := os.MkdirTemp(b.dir, k.name)
	if err != nil {
		return nil, err
	}
	cmd, err := k.start(b, k, dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.name, err)
	}
	p, err := startProcess(b.net.proxy, cmd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.name, err)
	}
	err = p.until("taking connections", func() bool {
		return b.net.client.reachable(k.request()) && b.net.client.reachable(k.bulk())
	})
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("%s: %w\n%s", k.name, err, p.log)
	}
	return &proxy{k, p}, nil
}

func writeFile(dir, name, text string) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

func startHAProxy(_ *bench, k proxyKind, dir string) (*exec.Cmd, error) {
	return haproxy(k, dir, "")
}

func startHAProxySplice(_ *bench, k proxyKind, dir string) (*exec.Cmd, error) {
	return haproxy(k, dir, "  option splice-request\n  option splice-response\n")
}

func haproxy(k proxyKind, dir, options string) (*exec.Cmd, error) {
	var b strings.Builder
	fmt.Fprintf(&b, `global
  nbthread 2
  maxconn 8000
  maxpipes 200
defaults
  mode tcp
  timeout connect 2s
  timeout client 1h
  timeout server 1h
  balance roundrobin
%s`, options)
	for _, l := range []struct {
		name         string
		port, server int
	}{{"request", k.port, serverRequest}, {"bulk", k.port + 2, serverBulk}} {
		fmt.Fprintf(&b, "listen %s\n  bind %s:%d\n", l.name, proxyAddr, l.port)
		for i, a := range serverAddrs() {
			fmt.Fprintf(&b, "  server s%d %s:%d\n", i, a, l.server)
		}
	}
	path, err := writeFile(dir, "haproxy.cfg", b.String())
	return exec.Command("haproxy", "-db", "-f", path), err
}

func startNginx(_ *bench, k proxyKind, dir string) (*exec.Cmd, error) {
	var b strings.Builder
	// Debian has the module apart; elsewhere it may be built in.
	const module = "/usr/lib/nginx/modules/ngx_stream_module.so"
	if _, err := os.Stat(module); err == nil {
		fmt.Fprintf(&b, "load_module %s;\n", module)
	}
	fmt.Fprintf(&b, `daemon off;
user root;
worker_processes 2;
pid %[1]s/pid;
error_log stderr warn;
events { worker_connections 16000; }
stream {
  access_log off;
  proxy_timeout 1h;
  proxy_connect_timeout 2s;
  tcp_nodelay on;
`, dir)
	for _, l := range []struct {
		name         string
		port, server int
	}{{"request", k.port, serverRequest}, {"bulk", k.port + 2, serverBulk}} {
		fmt.Fprintf(&b, "  upstream %s {\n", l.name)
		for _, a := range serverAddrs() {
			fmt.Fprintf(&b, "    server %s:%d;\n", a, l.server)
		}
		fmt.Fprintf(&b, "  }\n  server { listen %s:%d reuseport backlog=4096; proxy_pass %s; }\n", proxyAddr, l.port, l.name)
	}
	fmt.Fprintf(&b, "  server { listen %s:%d udp reuseport; proxy_pass request; }\n", proxyAddr, k.port)
	b.WriteString("}\n")
	path, err := writeFile(dir, "nginx.conf", b.String())
	cmd := exec.Command("nginx", "-e", "stderr", "-p", dir, "-c", path)
	// Its workers would outlive a killed master; in a namespace of process ids
	// whose first it is, they don't.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	return cmd, err
}

func startIOCopy(b *bench, k proxyKind, _ string) (*exec.Cmd, error) {
	return b.self("iocopy", fmt.Sprint(k.port)), nil
}

// startUserspace runs the agent and its plugin as a user would, from a file.
func startUserspace(b *bench, k proxyKind, dir string) (*exec.Cmd, error) {
	return b.userspace(k, dir, func(string) string { return "" }, 1)
}

// startUserspaceAll has in force what costs something for each connection:
// weights, a table, affinity, ejection, every limit, and a PROXY protocol header
// to the endpoints (not for bulk, whose server would take it for a request).
func startUserspaceAll(b *bench, k proxyKind, dir string) (*exec.Cmd, error) {
	return b.userspace(k, dir, func(service string) string {
		header := ""
		if service == "request" {
			header = "proxy_protocol = \"v2\"\n    "
		}
		return `  balance  = "maglev"
  affinity = "10m"
  allow    = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15"]
  options = {
    ` + header + `eject_after = 3
    idle_timeout = "1h"
    max_lifetime = "24h"
    max_connections = 100000
    max_connections_per_client = 50000
    accept_proxy_protocol = ["192.0.2.0/24"]
  }
`
	}, 3)
}

// userspace writes the file with more for each service, and weights from 1 to
// heaviest.
func (b *bench) userspace(k proxyKind, dir string, more func(service string) string, heaviest int) (*exec.Cmd, error) {
	var f strings.Builder
	fmt.Fprintf(&f, `dataplane "userspace" {
  default = true
}
`)
	for _, l := range []struct {
		name         string
		port, server int
	}{{"request", k.port, serverRequest}, {"bulk", k.port + 2, serverBulk}} {
		fmt.Fprintf(&f, "service %q {\n  vip = [%q]\n  port = %d\n%s", l.name, proxyAddr, l.port, more(l.name))
		if l.port == k.port {
			f.WriteString("  protocols = [\"tcp\", \"udp\"]\n")
		}
		for i, a := range serverAddrs() {
			fmt.Fprintf(&f, "  endpoint {\n    address = \"%s:%d\"\n    weight = %d\n  }\n", a, l.server, i%heaviest+1)
		}
		f.WriteString("}\n")
	}
	path, err := writeFile(dir, "patchbay.hcl", f.String())
	return b.agent(path, dir, filepath.Join(b.bin, "plugins")), err
}

// agent gives the command that runs the core on a file, with its state in dir.
func (b *bench) agent(config, dir, plugins string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(b.bin, "patchbay"), "agent", "-config", config,
		"-data-dir", filepath.Join(dir, "data"), "-socket", filepath.Join(dir, "sock"),
		"-plugin-dir", plugins)
	// It ends its plugins when it is told to, not when it is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}
