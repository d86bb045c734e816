package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	proxyproto "github.com/pires/go-proxyproto"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// TestBalances: every method of the contract that is claimed is carried, and
// affinity with it.
func TestBalances(t *testing.T) {
	p := newPlug(t, "{}")
	a, b := newBackend(t, "127.8.6.1", "a"), newBackend(t, "127.8.6.2", "b")
	claimed := p.u.Describe().Capabilities
	if len(claimed.Balance) != 5 || !claimed.Affinity {
		t.Errorf("claimed: %+v", claimed)
	}
	for _, balance := range claimed.Balance {
		s := service(t, balance, free(t, "127.8.6.3"), "", a, b)
		s.Balance, s.Affinity = balance, time.Minute
		p.must(s)
		front := netip.AddrPortFrom(s.Frontends[0].Address, s.Frontends[0].Port)
		first := mustConnect(t, front).name
		for range 6 {
			if c := mustConnect(t, front); c.name != first {
				t.Errorf("%s: a client of %s got %s", balance, first, c.name)
			}
		}
	}
}

// TestProxyOptions: the PROXY protocol in and out, the block's networks and a
// service's own, and the limit of one client.
func TestProxyOptions(t *testing.T) {
	p := newPlug(t, `{"accept_proxy_protocol": ["127.8.6.10", "2001:db8::/32"]}`)
	header := make(chan string, 1)
	l, err := net.Listen("tcp", "127.8.6.11:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan bool)
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			h, err := proxyproto.Read(bufio.NewReader(c))
			if err != nil {
				header <- err.Error()
			} else {
				header <- h.SourceAddr.String() + " to " + h.DestinationAddr.String()
			}
			c.Close()
		}
	}()
	defer func() { l.Close(); <-done }()
	end := &backend{address: l.Addr().(*net.TCPAddr).AddrPort()}
	front, own := free(t, "127.8.6.12"), free(t, "127.8.6.12")
	p.must(service(t, "common", front, `{"proxy_protocol": "v2", "max_connections_per_client": 1}`, end),
		service(t, "own", own, `{"proxy_protocol": "v2", "accept_proxy_protocol": []}`, end))
	from := func(ip string, to netip.AddrPort, first string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: patience}
		c, err := d.Dial("tcp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, first)
		return c
	}
	const line = "PROXY TCP4 203.0.113.1 203.0.113.2 1000 2000\r\n"
	from("127.8.6.10", front, line)
	if got := <-header; got != "203.0.113.1:1000 to 203.0.113.2:2000" {
		t.Errorf("from a trusted source: %s", got)
	}
	c := from("127.8.6.10", own, line) // this service trusts nobody
	if got, want := <-header, c.LocalAddr().String()+" to "+own.String(); got != want {
		t.Errorf("a service that trusts nobody: %s, want %s", got, want)
	}
	if _, err := io.ReadAll(from("127.8.6.10", front, "no header\r\n")); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("without a header: %v", err)
	}
	if d := p.inspect("common"); d.Refused.Header != 1 {
		t.Errorf("refused: %+v", d.Refused)
	}
}

// TestEjectionShown: why an endpoint is ejected, and until when, is in what
// explain prints.
func TestEjectionShown(t *testing.T) {
	p := newPlug(t, `{"eject_after": 5}`)
	alive, dead := newBackend(t, "127.8.6.20", "alive"), &backend{address: free(t, "127.8.6.21")}
	front := free(t, "127.8.6.22")
	p.must(service(t, "web", front, `{"eject_after": 2, "eject_for": 3600000000000}`, alive, dead))
	for range 8 {
		mustConnect(t, front)
	}
	text, d, err := p.u.Inspect(context.Background(), "web")
	if err != nil {
		t.Fatal(err)
	}
	e := d.(*detail).Endpoints[1]
	if e.State != "ejected" || e.Failures != 2 || e.LastFailure != "connection refused" || e.EjectedUntil == nil || e.FailedAt == nil {
		t.Errorf("inspected: %+v", e)
	}
	if want := dead.address.String() + " takes no new connections until "; !strings.Contains(text, want) || !strings.Contains(text, "connection refused") {
		t.Errorf("%q is not in\n%s", want, text)
	}
}

// TestNetworks of options and block are told apart from what is none.
func TestNetworks(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.0/8": "10.0.0.0/8", "10.1.2.3": "10.1.2.3/32", "2001:db8::/32": "2001:db8::/32", "::1": "::1/128",
		"": "", "10.0.0.0/33": "", "10.0.0": "", "fe80::1%lo": "", "localhost": "",
	} {
		var c Config
		err := schema.Decode([]byte(`{"accept_proxy_protocol": ["`+in+`"]}`), &c)
		if (err == nil) != (want != "") || err == nil && c.AcceptProxyProtocol[0].String() != want {
			t.Errorf("%q: %v, %v", in, c.AcceptProxyProtocol, err)
		}
		if err != nil && !strings.Contains(err.Error(), `is not a network such as "10.0.0.0/8"`) {
			t.Errorf("%q: %v", in, err)
		}
	}
	if dataplane.BalanceMaglev != balances[4] {
		t.Error(balances)
	}
}
