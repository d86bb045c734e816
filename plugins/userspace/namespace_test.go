package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// namespaceChild makes the test binary play a scene in a network namespace.
const namespaceChild = "PATCHBAY_TEST_NAMESPACE"

// TestVIPRoute plays scenes in a network namespace of their own: the test
// binary runs itself there, and the namespace goes with the process.
func TestVIPRoute(t *testing.T) {
	needRoot(t)
	for name := range scenes {
		t.Run(name, func(t *testing.T) {
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), namespaceChild+"="+name)
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}

// needRoot skips, or fails in CI, where a namespace can't be made.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("needs root: a network namespace")
	}
	t.Skip("needs root: a network namespace")
}

var (
	node4 = netip.MustParseAddr("10.77.0.5")
	node6 = netip.MustParseAddr("fd77::5")
	vip4  = netip.MustParseAddrPort("10.96.1.1:80")
	vip6  = netip.MustParseAddrPort("[fd00:96::1]:80")
)

// scenes are played by runNamespaceChild; an error fails the test.
var scenes = map[string]func() error{
	"life":         sceneLife,
	"unprivileged": sceneUnprivileged,
}

func runNamespaceChild(name string) int {
	err := prepareNamespace()
	if err == nil {
		err = scenes[name]()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// prepareNamespace gives the node an address of each family on an interface.
func prepareNamespace() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "node0"
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer0"}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("making a veth pair: %w", err)
	}
	for _, a := range []string{node4.String() + "/24", node6.String() + "/64"} {
		address, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		address.Flags = syscall.IFA_F_NODAD
		if err := netlink.AddrAdd(pair, address); err != nil {
			return fmt.Errorf("adding %s: %w", a, err)
		}
	}
	peer, err := netlink.LinkByName("peer0")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(peer); err != nil {
		return err
	}
	return netlink.LinkSetUp(pair)
}

// actor is a dataplane without a testing.T.
type actor struct {
	*userspace
	state []*dataplane.Service
}

func newActor() (*actor, error) {
	u := newUserspace(options{log: hclog.NewNullLogger()})
	_, err := u.Configure(context.Background(), dataplane.Config{
		Block:         &Config{Retries: 1},
		NodeAddresses: []netip.Addr{node4, node6},
	})
	return &actor{userspace: u}, err
}

func (a *actor) apply(desired ...*dataplane.Service) (map[string]error, error) {
	update := dataplane.NewUpdate(1, a.state, desired)
	a.state = desired
	err := a.Apply(context.Background(), update)
	return update.Failed(), err
}

// onVIPs is a service on the addresses given, with one backend.
func onVIPs(id string, backend net.Addr, fronts ...netip.AddrPort) *dataplane.Service {
	s := &dataplane.Service{
		ID:        id,
		Options:   &ServiceOptions{},
		Endpoints: []dataplane.Endpoint{{Address: backend.(*net.TCPAddr).AddrPort(), Weight: 1, State: dataplane.StateActive}},
	}
	for _, a := range fronts {
		s.Frontends = append(s.Frontends, dataplane.Frontend{Kind: dataplane.Virtual, Address: a.Addr(), Port: a.Port(), Protocol: dataplane.TCP})
	}
	return s
}

// routesAre compares the routes of ours that the kernel has.
func routesAre(want ...netip.AddrPort) error {
	found, err := hostRouter{}.ours()
	if err != nil {
		return err
	}
	text, wanted := "", ""
	for _, a := range found {
		text += a.String() + " "
	}
	for _, a := range want {
		wanted += a.Addr().String() + " "
	}
	if text != wanted {
		return fmt.Errorf("local routes of ours: %q, want %q", text, wanted)
	}
	return nil
}

// reached checks that a VIP answers, and that the client's own address is the
// node's, not the VIP.
func reached(front netip.AddrPort, source netip.Addr) error {
	c, err := net.DialTimeout("tcp", front.String(), patience)
	if err != nil {
		return err
	}
	defer c.Close()
	if got := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr(); got != source {
		return fmt.Errorf("connecting to %s from this node has the source %s, want %s", front, got, source)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("%s: %w", front, err)
	}
	return nil
}

// banner serves a byte on an address of the node.
func banner() (net.Listener, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(node4, 0).String())
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "x")
			c.Close()
		}
	}()
	return l, nil
}

// sceneLife: routes come and go with the services, survive the process, are
// adopted, put back and cleaned up.
func sceneLife() error {
	l, err := banner()
	if err != nil {
		return err
	}
	defer l.Close()
	// A local route of somebody else is left alone.
	foreign := localRoute(netip.MustParseAddr("10.96.9.9"))
	foreign.Protocol = 3
	if err := netlink.RouteAdd(foreign); err != nil {
		return err
	}
	first, err := newActor()
	if err != nil {
		return err
	}
	other := netip.MustParseAddrPort("10.96.1.2:80")
	elsewhere := netip.MustParseAddrPort("10.96.9.9:80")
	if failed, err := first.apply(onVIPs("web", l.Addr(), vip4, vip6), onVIPs("other", l.Addr(), other, elsewhere)); err != nil || len(failed) > 0 {
		return fmt.Errorf("%v, %v", failed, err)
	}
	if err := routesAre(vip4, other, vip6); err != nil {
		return err
	}
	for front, source := range map[netip.AddrPort]netip.Addr{vip4: node4, vip6: node6, other: node4} {
		if err := reached(front, source); err != nil {
			return err
		}
	}
	if c, err := net.Dial("tcp", netip.AddrPortFrom(vip4.Addr(), 81).String()); err == nil {
		c.Close()
		return fmt.Errorf("a port that no frontend has answers")
	}
	// Somebody takes a route away: the check of an empty update puts it back.
	if err := (hostRouter{}).remove(vip4.Addr()); err != nil {
		return err
	}
	if failed, err := first.apply(first.state...); err != nil || len(failed) > 0 {
		return fmt.Errorf("%v, %v", failed, err)
	}
	select {
	case d := <-first.Drift():
		if !d.Repaired || !strings.Contains(d.Message, vip4.Addr().String()) {
			return fmt.Errorf("drift: %+v", d)
		}
	default:
		return fmt.Errorf("a route that had gone was not reported")
	}
	if err := reached(vip4, node4); err != nil {
		return err
	}
	// The process ends; the next one adopts what is there, and lets go of what
	// the first whole state doesn't name.
	if err := first.Close(context.Background(), dataplane.CloseDetach); err != nil {
		return err
	}
	if err := routesAre(vip4, other, vip6); err != nil {
		return fmt.Errorf("after the process: %w", err)
	}
	second, err := newActor()
	if err != nil {
		return err
	}
	if failed, err := second.apply(onVIPs("web", l.Addr(), vip4)); err != nil || len(failed) > 0 {
		return fmt.Errorf("%v, %v", failed, err)
	}
	if err := routesAre(vip4); err != nil {
		return fmt.Errorf("after adoption: %w", err)
	}
	// A VIP that passes from one service to another keeps its route.
	if failed, err := second.apply(onVIPs("web", l.Addr(), vip6), onVIPs("new", l.Addr(), vip4)); err != nil || len(failed) > 0 {
		return fmt.Errorf("%v, %v", failed, err)
	}
	if err := routesAre(vip4, vip6); err != nil {
		return err
	}
	for front, source := range map[netip.AddrPort]netip.Addr{vip4: node4, vip6: node6} {
		if err := reached(front, source); err != nil {
			return err
		}
	}
	if err := second.Close(context.Background(), dataplane.CloseCleanup); err != nil {
		return err
	}
	if err := routesAre(); err != nil {
		return fmt.Errorf("after cleanup: %w", err)
	}
	if local, err := (hostRouter{}).local(elsewhere.Addr()); err != nil || !local {
		return fmt.Errorf("the route of somebody else is gone: %v, %v", local, err)
	}
	return nil
}

// sceneUnprivileged: without CAP_NET_ADMIN a VIP that is not on this node fails
// its service alone, with what to do; one that is there works.
func sceneUnprivileged() error {
	l, err := banner()
	if err != nil {
		return err
	}
	defer l.Close()
	if err := syscall.Setresuid(65534, 65534, 65534); err != nil {
		return err
	}
	a, err := newActor()
	if err != nil {
		return err
	}
	defer a.Close(context.Background(), dataplane.CloseDetach)
	there := netip.AddrPortFrom(node4, 8080)
	failed, err := a.apply(onVIPs("web", l.Addr(), netip.AddrPortFrom(vip4.Addr(), 8080), vip6), onVIPs("there", l.Addr(), there), onVIPs("low", l.Addr(), netip.AddrPortFrom(node4, 80)))
	if err != nil {
		return err
	}
	for id, want := range map[string]string{
		"web": "address 10.96.1.1 is not on this node; add it or a local route (with CAP_NET_ADMIN",
		"low": "needs CAP_NET_BIND_SERVICE",
	} {
		if failed[id] == nil || !strings.Contains(failed[id].Error(), want) {
			return fmt.Errorf("%s: %v, want %q", id, failed[id], want)
		}
	}
	if len(failed) != 2 {
		return fmt.Errorf("failed: %v", failed)
	}
	return reached(there, node4)
}
