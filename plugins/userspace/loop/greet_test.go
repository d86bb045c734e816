package loop

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
)

// told is an endpoint that reads a header with another implementation, says
// whom it was told, and echoes.
func told(c *net.TCPConn) {
	r := bufio.NewReader(c)
	h, err := proxyproto.Read(r)
	if err != nil {
		fmt.Fprintf(c, "%v\n", err)
		return
	}
	if h.Command != proxyproto.PROXY {
		fmt.Fprintf(c, "nobody\n")
	} else {
		fmt.Fprintf(c, "%s to %s\n", h.SourceAddr, h.DestinationAddr)
	}
	io.Copy(c, r)
}

// client is a connection to a service, read by lines.
type lines struct {
	*net.TCPConn
	r *bufio.Reader
}

func (l lines) line(t testing.TB) string {
	t.Helper()
	s, err := l.r.ReadString('\n')
	if err != nil {
		t.Fatalf("read %q, %v", s, err)
	}
	return strings.TrimSuffix(s, "\n")
}

func dialLines(t testing.TB, a netip.AddrPort) lines {
	c := dial(t, a)
	return lines{c, bufio.NewReader(c)}
}

func sendProxy(s *Service) { s.SendProxy = true }

func trust(networks ...string) func(*Service) {
	return func(s *Service) {
		for _, n := range networks {
			s.TrustProxy = append(s.TrustProxy, netip.MustParsePrefix(n))
		}
	}
}

// TestSendProxy: endpoints are told the client and what it connected to, in all
// families, whoever speaks first, also after a retry.
func TestSendProxy(t *testing.T) {
	for _, c := range []struct{ name, front, back string }{
		{"IPv4", "127.8.7.1", "127.8.7.2"},
		{"IPv6", "::1", "::1"},
		{"IPv4 to IPv6", "127.8.7.1", "::1"},
		{"IPv6 to IPv4", "::1", "127.8.7.2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t, Options{})
			dead := Endpoint{Address: freeAddress(t, c.back), Weight: 1}
			a := one(t, e, c.front, append(at(newPeer(t, c.back, told)), dead), sendProxy)
			for n := range 6 {
				k := dialLines(t, a)
				if n%2 == 0 {
					io.WriteString(k, "I speak first\n")
				}
				if got, want := k.line(t), fmt.Sprintf("%s to %s", k.LocalAddr(), a); got != want {
					t.Errorf("told %q, want %q", got, want)
				}
				if n%2 == 0 {
					if s := k.line(t); s != "I speak first" {
						t.Errorf("echo %q", s)
					}
				}
				fmt.Fprintf(k, "and %d\n", n)
				if s := k.line(t); s != fmt.Sprintf("and %d", n) {
					t.Errorf("echo %q", s)
				}
			}
			s := statistics(t, e, "web")
			if s.Retries == 0 || s.Failed != 0 {
				t.Errorf("%d retries, %d failed", s.Retries, s.Failed)
			}
		})
	}
}

// TestSendProxyBulk: the header stays in front of what is much and quick.
func TestSendProxyBulk(t *testing.T) {
	e := newEngine(t, Options{})
	a := one(t, e, "127.8.7.3", at(newPeer(t, "127.8.7.4", told)), sendProxy)
	var wait sync.WaitGroup
	for range 4 {
		k := dialLines(t, a)
		wait.Go(func() {
			const size = 8 << 20
			var writer sync.WaitGroup
			writer.Go(func() {
				io.Copy(k.TCPConn, io.LimitReader(pattern{}, size))
				k.CloseWrite()
			})
			if s, err := k.r.ReadString('\n'); err != nil || !strings.Contains(s, k.LocalAddr().String()) {
				t.Errorf("told %q, %v", s, err)
			}
			if n, err := io.Copy(io.Discard, k.r); n != size || err != nil {
				t.Errorf("%d bytes came back, %v", n, err)
			}
			writer.Wait()
		})
	}
	wait.Wait()
}

type pattern struct{}

func (pattern) Read(p []byte) (int, error) { return len(p), nil }

// TestAcceptProxy: a trusted source tells who the client is, at once or byte by
// byte; everything goes by that client.
func TestAcceptProxy(t *testing.T) {
	e := newEngine(t, Options{})
	a := one(t, e, "127.8.7.5", at(newPeer(t, "127.8.7.6", told)), sendProxy, trust("127.0.0.0/8"))
	client, front := tcpAddr("203.0.113.9:4711"), tcpAddr("198.51.100.1:443")
	six, frontSix := tcpAddr("[2001:db8::9]:4711"), tcpAddr("[2001:db8::1]:443")
	for name, c := range map[string]struct {
		header *proxyproto.Header
		want   string
	}{
		"v1":      {proxyproto.HeaderProxyFromAddrs(1, client, front), "203.0.113.9:4711 to 198.51.100.1:443"},
		"v2":      {proxyproto.HeaderProxyFromAddrs(2, client, front), "203.0.113.9:4711 to 198.51.100.1:443"},
		"v1 IPv6": {proxyproto.HeaderProxyFromAddrs(1, six, frontSix), "[2001:db8::9]:4711 to [2001:db8::1]:443"},
		"v2 IPv6": {proxyproto.HeaderProxyFromAddrs(2, six, frontSix), "[2001:db8::9]:4711 to [2001:db8::1]:443"},
		"local":   {&proxyproto.Header{Version: 2, Command: proxyproto.LOCAL, TransportProtocol: proxyproto.UNSPEC}, "itself"},
	} {
		for _, pieces := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in pieces %v", name, pieces), func(t *testing.T) {
				p, err := c.header.Format()
				if err != nil {
					t.Fatal(err)
				}
				k := dialLines(t, a)
				p = append(p, "hello\n"...)
				if pieces {
					for i := range p {
						k.Write(p[i : i+1])
						time.Sleep(time.Millisecond)
					}
				} else {
					k.Write(p)
				}
				want := c.want
				if want == "itself" {
					want = fmt.Sprintf("%s to %s", k.LocalAddr(), a)
				}
				if got := k.line(t); got != want {
					t.Errorf("told %q, want %q", got, want)
				}
				if s := k.line(t); s != "hello" {
					t.Errorf("behind the header %q", s)
				}
			})
		}
	}
	if s := statistics(t, e, "web"); s.Refused != (Refused{}) || s.Connections != 10 || s.BytesIn != 60 {
		t.Errorf("counted %+v", s)
	}
}

func tcpAddr(s string) *net.TCPAddr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

// reset says whether a connection is reset without a byte.
func reset(c net.Conn) error {
	b, err := io.ReadAll(c)
	if len(b) > 0 || !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("got %q, %v", b, err)
	}
	return nil
}

// TestBadGreeting: what a trusted source sends in place of a header, or doesn't
// send, is reset and counted, and holds nothing.
func TestBadGreeting(t *testing.T) {
	t.Parallel()
	e := newEngine(t, Options{})
	p := newPeer(t, "127.8.7.8", echo)
	a := one(t, e, "127.8.7.7", at(p), trust("127.0.0.0/8"))
	whole, err := proxyproto.HeaderProxyFromAddrs(2, tcpAddr("203.0.113.9:1"), tcpAddr("203.0.113.8:1")).Format()
	if err != nil {
		t.Fatal(err)
	}
	ends := []struct {
		name string
		send string
		then func(*net.TCPConn)
	}{
		{"no header", "GET / HTTP/1.0\r\n\r\n", nil},
		{"a broken one", "PROXY TCP4 nonsense\r\n", nil},
		{"half of one, then the end", string(whole[:20]), func(c *net.TCPConn) { c.CloseWrite() }},
		{"nothing, then the end", "", func(c *net.TCPConn) { c.CloseWrite() }},
		{"half of one, then silence", string(whole[:20]), nil},
		{"silence", "", nil},
	}
	var wait sync.WaitGroup
	for _, c := range ends {
		k := dial(t, a)
		io.WriteString(k, c.send)
		if c.then != nil {
			c.then(k)
		}
		wait.Go(func() {
			if err := reset(k); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		})
	}
	// While those wait, others are served.
	k := dial(t, a)
	k.Write(whole)
	say(t, k, "meanwhile")
	wait.Wait()
	k.Close()
	eventually(t, "all are gone", func() bool { return statistics(t, e, "web").Active == 0 })
	if s := statistics(t, e, "web"); s.Refused.Header != uint64(len(ends)) || s.Connections != 1 || p.count() != 1 {
		t.Errorf("counted %+v; %d came to the endpoint", s, p.count())
	}
	e.onLoopsInTest(func(l *loop) {
		if l.origins.inUse() != 0 || l.slots.used != 0 {
			t.Errorf("loop %d has %d origins and %d connections", l.index, l.origins.inUse(), l.slots.used)
		}
	})
}

// TestClientOfHeader: allow, the limit of one client, source_hash and affinity
// see the client that a trusted source tells; a header from elsewhere is data.
func TestClientOfHeader(t *testing.T) {
	e := newEngine(t, Options{})
	a, b := newPeer(t, "127.8.7.11", named("a")), newPeer(t, "127.8.7.12", named("b"))
	front := freeAddress(t, "127.8.7.10")
	s := Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(a, b), Balance: SourceHash}
	trust("127.8.7.13/32")(&s)
	s.Allow = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.8.7.14/32")}
	set(t, e, s)
	through := func(client string) (string, error) {
		d := net.Dialer{LocalAddr: tcpAddr("127.8.7.13:0"), Timeout: patience}
		c, err := d.Dial("tcp", front.String())
		if err != nil {
			return "", err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		if _, err := proxyproto.HeaderProxyFromAddrs(2, tcpAddr(client), tcpAddr("10.0.0.1:1")).WriteTo(c); err != nil {
			return "", err
		}
		name, err := io.ReadAll(c)
		return string(name), err
	}
	oracle := newChooser(t, Service{Balance: SourceHash, Endpoints: s.Endpoints})
	names := map[netip.AddrPort]string{a.address: "a", b.address: "b"}
	seen := map[string]int{}
	for n := range 20 {
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), uint16(1000+n))
		want := names[oracle.touch(client.Addr(), 0).address]
		if name, err := through(client.String()); name != want || err != nil {
			t.Errorf("client %s got %q, %v, want %q", client, name, err, want)
		}
		seen[want]++
	}
	if len(seen) != 2 {
		t.Errorf("all clients have one endpoint: %v", seen)
	}
	if name, err := through("192.0.2.1:1"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client outside allow got %q, %v", name, err)
	}
	if v := statistics(t, e, "web").Refused; v != (Refused{Source: 1}) {
		t.Errorf("refused %+v", v)
	}

	// An untrusted source is an ordinary client, whatever it says.
	s.Endpoints = at(newPeer(t, "127.8.7.15", echo))
	set(t, e, s)
	d := net.Dialer{LocalAddr: tcpAddr("127.8.7.14:0"), Timeout: patience}
	c, err := d.Dial("tcp", front.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	say(t, c, "PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n")
}

// TestGreetingUnderUpdates: connections that wait for their header when their
// service changes, loses its endpoints or goes.
func TestGreetingUnderUpdates(t *testing.T) {
	e := newEngine(t, Options{})
	p := newPeer(t, "127.8.7.17", echo)
	front := freeAddress(t, "127.8.7.16")
	s := Service{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: at(p), ResetOnDrainEnd: true}
	trust("127.0.0.0/8")(&s)
	set(t, e, s)
	var waiting []*net.TCPConn
	for range 4 {
		waiting = append(waiting, dial(t, front))
	}
	eventually(t, "they wait", func() bool { return statistics(t, e, "web").Active == 4 })
	header, err := proxyproto.HeaderProxyFromAddrs(1, tcpAddr("203.0.113.9:1"), tcpAddr("203.0.113.8:1")).Format()
	if err != nil {
		t.Fatal(err)
	}
	s.Endpoints[0].Draining, s.Endpoints[0].Deadline = true, time.Now()
	s.Endpoints = append(s.Endpoints, at(newPeer(t, "127.8.7.18", echo))...)
	s.IdleTimeout, s.MaxPerClient = time.Hour, 2
	set(t, e, s)
	waiting[0].Write(header)
	say(t, waiting[0], "another endpoint")
	s.Endpoints = nil
	set(t, e, s)
	waiting[1].Write(header)
	if err := reset(waiting[1]); err != nil {
		t.Error("without an endpoint:", err)
	}
	if errs := e.Update(nil, []string{"web"}); errs != nil {
		t.Fatal(errs)
	}
	waiting[2].Write(header)
	if err := reset(waiting[2]); err != nil {
		t.Error("without a service:", err)
	}
	// The last one waits when the engine is closed.
}
