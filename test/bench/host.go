package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// host is a network namespace with a thread of its own, which lives as long as
// the program: sockets made and programs started by do belong to the
// namespace. It has no name, so it is gone when its last user is.
type host struct {
	name string
	ns   int // descriptor of the namespace
	work chan func()
}

func newHost(name string, cpus *unix.CPUSet) (*host, error) {
	h := &host{name: name, work: make(chan func())}
	ready := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and a program
		// started from it with Pdeathsig lives no longer than the thread.
		runtime.LockOSThread()
		ready <- h.enter(cpus)
		for f := range h.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("making the network namespace of the %s: %w", name, err)
	}
	return h, nil
}

func (h *host) enter(cpus *unix.CPUSet) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := unix.SchedSetaffinity(0, cpus); err != nil {
		return fmt.Errorf("pinning to processors: %w", err)
	}
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	h.ns = fd
	return err
}

// do runs f on the host's thread, and waits for it.
func (h *host) do(f func() error) error {
	done := make(chan error)
	h.work <- func() { done <- f() }
	return <-done
}

// start starts a program on the host; it is killed when this program ends,
// unless it asks for another signal. Each has a session of its own: the kernel's
// scheduler shares the processors out by sessions (sched_autogroup), so one that
// begins its own, as a plugin does, would be served otherwise than the rest.
func (h *host) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if cmd.SysProcAttr.Pdeathsig == 0 {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	cmd.SysProcAttr.Setsid = true
	return h.do(cmd.Start)
}

// The network: 198.18.0.0/15 is set aside for benchmarks (RFC 2544).
const (
	clientAddr    = "198.18.1.2"
	proxyAddr     = "198.18.1.1" // as clients see it
	proxyInner    = "198.18.2.1" // as servers see it
	serverNetwork = "198.18.2.%d"
	firstServer   = 10
	servers       = 4
	serverRequest = 9000 // port of the request server
	serverBulk    = 9002 // port of the bulk server
	requestSize   = 128
	responseSize  = 256
)

// serverAddrs gives the servers' addresses: several, so that connections from
// the proxy don't run out of ports.
func serverAddrs() []string {
	var out []string
	for i := range servers {
		out = append(out, fmt.Sprintf(serverNetwork, firstServer+i))
	}
	return out
}

type network struct{ client, proxy, server *host }

func newNetwork(cpus *unix.CPUSet) (*network, error) {
	n := &network{}
	for _, h := range []struct {
		name string
		to   **host
	}{{"client", &n.client}, {"proxy", &n.proxy}, {"server", &n.server}} {
		var err error
		if *h.to, err = newHost(h.name, cpus); err != nil {
			return nil, err
		}
	}
	if err := n.proxy.do(func() error {
		if err := link("client", n.client.ns); err != nil {
			return err
		}
		return link("server", n.server.ns)
	}); err != nil {
		return nil, fmt.Errorf("joining the namespaces: %w", err)
	}
	for _, a := range []struct {
		h     *host
		link  string
		addrs []string
	}{
		{n.client, "eth0", []string{clientAddr}},
		{n.proxy, "client", []string{proxyAddr}},
		{n.proxy, "server", []string{proxyInner}},
		{n.server, "eth0", serverAddrs()},
	} {
		if err := a.h.do(func() error { return address(a.link, a.addrs) }); err != nil {
			return nil, fmt.Errorf("giving the %s its address: %w", a.h.name, err)
		}
	}
	return n, nil
}

func link(name string, peer int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(peer)})
}

func address(name string, addrs []string) error {
	for _, up := range []string{"lo", name} {
		l, err := netlink.LinkByName(up)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		if up == "lo" {
			continue
		}
		for _, a := range addrs {
			ip := &net.IPNet{IP: net.ParseIP(a), Mask: net.CIDRMask(24, 32)}
			if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ip}); err != nil {
				return err
			}
		}
	}
	// Ports for a great many connections in a short time.
	for name, value := range map[string]string{
		"net/ipv4/ip_local_port_range": "10000 65000",
		"net/ipv4/tcp_tw_reuse":        "1",
	} {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// reachable tells whether the host can connect to the address.
func (h *host) reachable(addr string) bool {
	return h.do(func() error {
		fd, err := connect(addr, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}) == nil
}

// connect makes a socket that connects to the address, with
// unix.SOCK_NONBLOCK in flags without waiting for it.
func connect(addr string, flags int) (int, error) {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return -1, err
	}
	return connectTo(&unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(a.IP.To4())}, flags)
}

func connectTo(to unix.Sockaddr, flags int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if err := unix.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
