package loop

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// crowd is one socket that speaks for many clients, each with an address of its
// own in 127.0.0.0/8.
type crowd struct {
	*net.UDPConn
	front netip.AddrPort
}

func newCrowd(front netip.AddrPort) (*crowd, error) {
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return nil, err
	}
	c.SetReadBuffer(4 << 20)
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1) })
	return &crowd{c, front}, nil
}

// ask sends client n's question, which is n.
func (c *crowd) ask(n int) error {
	oob := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte{127, 100 + byte(n>>16), byte(n >> 8), byte(n)}})
	_, _, err := c.WriteMsgUDPAddrPort([]byte(fmt.Sprint(n)), oob, c.front)
	return err
}

// answer waits for the next answer to whomever, and says who gave it.
func (c *crowd) answer(wait time.Duration) (n int, who string, err error) {
	b, oob := make([]byte, 100), make([]byte, 100)
	c.SetReadDeadline(time.Now().Add(wait))
	k, m, _, from, err := c.ReadMsgUDPAddrPort(b, oob)
	if err != nil {
		return 0, "", err
	}
	if _, err := fmt.Sscan(string(b[:k]), &who, &n); err != nil {
		return 0, "", fmt.Errorf("%q: %w", b[:k], err)
	}
	list, err := unix.ParseSocketControlMessage(oob[:m])
	if err != nil || len(list) != 1 {
		return 0, "", fmt.Errorf("%v, %w", list, err)
	}
	to := list[0].Data[8:12]
	if int(to[1]-100)<<16|int(to[2])<<8|int(to[3]) != n {
		return 0, "", fmt.Errorf("the answer for client %d went to %v", n, to)
	}
	if from != c.front {
		return 0, "", fmt.Errorf("the answer came from %s, not %s", from, c.front)
	}
	return n, who, nil
}

// needDescriptors raises the limit of open files, as far as that is allowed.
func needDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur >= n {
		return
	}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: max(n, r.Max)}) == nil {
		return
	}
	why := fmt.Sprintf("%d open files are allowed, %d needed", r.Cur, n)
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// TestUDPManySessions: ten thousand clients, each with its own endpoint for
// good, until one endpoint leaves and they alone move.
func TestUDPManySessions(t *testing.T) {
	const clients = 10_000
	needDescriptors(t, 16_000)
	before := openDescriptors(t)
	e := newEngine(t, Options{Loops: 2})
	a, b, c := newUDPPeer(t, "127.9.4.1", called("a")), newUDPPeer(t, "127.9.4.2", called("b")), newUDPPeer(t, "127.9.4.3", called("c"))
	s, front := oneUDP(t, e, "127.9.4.4", udpAt(a, b, c))
	k, err := newCrowd(front)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	// all asks for every client, some at a time, and asks again where nothing
	// came: who answered each?
	all := func() map[int]string {
		got := map[int]string{}
		for next := 0; len(got) < clients; {
			var asked int
			for ; next < clients && asked < 100; next++ {
				if _, ok := got[next]; ok {
					continue
				}
				if err := k.ask(next); err != nil {
					t.Fatal(err)
				}
				asked++
			}
			for asked > 0 {
				n, who, err := k.answer(500 * time.Millisecond)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if had, ok := got[n]; ok && had != who {
					t.Fatalf("client %d was answered by %s and %s", n, had, who)
				}
				got[n] = who
				asked--
			}
			if next == clients {
				next = 0
			}
		}
		return got
	}
	first := all()
	v := statistics(t, e, "dns")
	if v.Active != clients || v.Connections != clients || v.Dropped != 0 || e.Statistics().Sessions != clients {
		t.Errorf("%d sessions now, %d in all, %d datagrams dropped", v.Active, v.Connections, v.Dropped)
	}
	for _, p := range v.Endpoints {
		if p.Active < clients/3 || p.Active > clients/3+1 {
			t.Errorf("%s has %d sessions", p.Address, p.Active)
		}
	}
	s.Endpoints = udpAt(a, b)
	set(t, e, s)
	second := all()
	for n, who := range first {
		if now := second[n]; who != "c" && now != who || now == "c" {
			t.Fatalf("client %d went from %s to %s", n, who, now)
		}
	}
	if errs := e.Update(nil, []string{"dns"}); errs != nil {
		t.Fatal(errs)
	}
	if n := e.Statistics().Sessions; n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	// Its own loops have some descriptors, and the three peers and the crowd.
	if n := openDescriptors(t); n > before+30 {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	empty := func() (list [2]int) {
		e.onLoopsInTest(func(l *loop) {
			if r := l.relay; r != nil {
				list[l.index] = r.sessions.used + len(r.sessions.byKey) + len(r.tried) + l.wheel.size
			}
		})
		return list
	}
	if got := empty(); got != [2]int{} {
		t.Errorf("the loops still hold %v", got)
	}
}

// TestUDPSessionLimit: whoever has had no answer makes room after a second;
// whoever has, stays while it is in use, and the new one is refused.
func TestUDPSessionLimit(t *testing.T) {
	e := newEngine(t, Options{Loops: 1, MaxUDPSessions: 4})
	silent := newUDPPeer(t, "127.9.4.5", func([]byte) [][]byte { return nil })
	lost := Service{ID: "lost", ListenUDP: []netip.AddrPort{freeUDP(t, "127.9.4.6")}, Endpoints: udpAt(silent)}
	set(t, e, lost)
	s, front := oneUDP(t, e, "127.9.4.7", udpAt(newUDPPeer(t, "127.9.4.7", called("a"))))
	var others []*udpClient
	for range 10 {
		k := dialUDP(t, lost.ListenUDP[0])
		k.Write([]byte("anybody?"))
		others = append(others, k)
	}
	eventually(t, "four of ten are there", func() bool {
		v := statistics(t, e, "lost")
		return v.Active == 4 && v.Refused.Limit >= 6
	})
	var list []*udpClient
	for n := range 4 {
		list = append(list, dialUDP(t, front))
		list[n].must("a") // asks until there is room
	}
	if v := statistics(t, e, "lost"); v.Active != 0 || v.Evicted != 4 {
		t.Errorf("%+v", v)
	}
	for _, k := range others {
		k.Write([]byte("anybody?"))
	}
	for _, k := range list {
		k.must("a")
	}
	refused := statistics(t, e, "dns")
	if b, err := dialUDP(t, front).once([]byte("me too"), 100*time.Millisecond); err == nil {
		t.Errorf("a fifth one got %q", b)
	}
	if v := statistics(t, e, "dns"); v.Active != 4 || v.Evicted != 0 ||
		v.Refused.Limit != refused.Refused.Limit+1 || v.Dropped != refused.Dropped+1 {
		t.Errorf("%+v", v)
	}
	for _, k := range list {
		k.must("a")
	}
	e.SetMaxUDPSessions(5)
	fifth := dialUDP(t, front)
	fifth.must("a")
	// The service's own limits.
	e.SetMaxUDPSessions(0)
	s.MaxConnections = 6
	set(t, e, s)
	dialUDP(t, front).must("a")
	if b, err := dialUDP(t, front).once([]byte("x"), 100*time.Millisecond); err == nil {
		t.Errorf("a seventh one got %q", b)
	}
	s.MaxConnections, s.MaxPerClient = 0, 1
	set(t, e, s)
	k, err := newCrowd(front)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for n := range 3 {
		if err := k.ask(n); err != nil {
			t.Fatal(err)
		}
		if _, _, err := k.answer(patience); err != nil {
			t.Fatal(err)
		}
	}
	other, err := newCrowd(front) // the same clients with another port
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.ask(1)
	if _, who, err := other.answer(100 * time.Millisecond); err == nil {
		t.Errorf("a second session of one client is answered by %s", who)
	}
}

// TestUDPNoHeadOfLineBlocking: an endpoint that reads nothing holds up nobody.
func TestUDPNoHeadOfLineBlocking(t *testing.T) {
	e := newEngine(t, Options{Loops: 1})
	deaf, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP("127.9.4.8")})
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	s := Service{ID: "deaf", ListenUDP: []netip.AddrPort{freeUDP(t, "127.9.4.8")},
		Endpoints: []Endpoint{{Address: deaf.LocalAddr().(*net.UDPAddr).AddrPort(), Weight: 1}}}
	set(t, e, s)
	_, front := oneUDP(t, e, "127.9.4.9", udpAt(newUDPPeer(t, "127.9.4.9", called("a"))))
	flood, k := dialUDP(t, s.ListenUDP[0]), dialUDP(t, front)
	big := make([]byte, 8000)
	for range 200 {
		for range 5 {
			flood.Write(big)
		}
		k.must("a")
	}
	if v := statistics(t, e, "deaf"); v.Active != 1 {
		t.Errorf("%+v", v)
	}
}

// numbered makes a datagram that says which it is, of a size.
func numbered(n, size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint32(b, uint32(n))
	rand.NewChaCha8([32]byte{byte(n)}).Read(b[4:])
	return b
}

// TestUDPSegments: runs of QUIC's size arrive as they were, however the kernel
// and the relay have put them together on the way.
func TestUDPSegments(t *testing.T) {
	for _, ip := range []string{"127.9.4.10", "::1"} {
		for _, size := range []int{1200, 1350} {
			t.Run(fmt.Sprint(ip, size), func(t *testing.T) {
				e := newEngine(t, Options{})
				// The answer to each is as many of the same.
				var arrived atomic.Int64
				_, front := oneUDP(t, e, ip, udpAt(newUDPPeer(t, ip, func(b []byte) [][]byte {
					arrived.Add(1)
					return [][]byte{b}
				})))
				k := dialUDP(t, front)
				k.SetReadBuffer(4 << 20)
				raw, err := k.SyscallConn()
				if err != nil {
					t.Fatal(err)
				}
				next := 0
				for round := range 20 {
					segments := 1 + round%40
					var run []byte
					for n := range segments {
						run = append(run, numbered(next+n, size)...)
					}
					run = append(run, numbered(next+segments, 100)...) // and a shorter one
					raw.Control(func(fd uintptr) {
						err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size)
					})
					if err != nil {
						t.Fatal(err)
					}
					if _, err := k.Write(run); err != nil {
						t.Fatal(err)
					}
					for n := range segments + 1 {
						want := numbered(next+n, size)
						if n == segments {
							want = numbered(next+n, 100)
						}
						k.SetReadDeadline(time.Now().Add(patience))
						b := make([]byte, datagramMost)
						m, err := k.Read(b)
						if err != nil {
							t.Fatalf("round %d, datagram %d of %d (%d arrived): %v", round, n, segments, arrived.Load(), err)
						}
						if !bytes.Equal(b[:m], want) {
							t.Fatalf("round %d, datagram %d of %d: %d bytes that are not the %d expected", round, n, segments, m, len(want))
						}
					}
					next += segments + 1
				}
				if v := statistics(t, e, "dns"); v.Dropped != 0 || v.BytesIn != v.BytesOut {
					t.Errorf("%+v", v)
				}
			})
		}
	}
}

// TestUDPBursts: an endpoint sends many at a time, to several clients at once;
// each gets its own, in order, and nothing is lost.
func TestUDPBursts(t *testing.T) {
	e := newEngine(t, Options{})
	_, front := oneUDP(t, e, "127.9.4.11", udpAt(newUDPPeer(t, "127.9.4.11", func(b []byte) [][]byte {
		var list [][]byte
		for n := range 30 {
			list = append(list, append(binary.BigEndian.AppendUint32(nil, uint32(n)), b...))
		}
		return list
	})))
	var list []*udpClient
	for range 5 {
		list = append(list, dialUDP(t, front))
	}
	for round := range 20 {
		for n, k := range list {
			if _, err := fmt.Fprint(k, round, n); err != nil {
				t.Fatal(err)
			}
		}
		for n, k := range list {
			for m := range 30 {
				b := make([]byte, 100)
				k.SetReadDeadline(time.Now().Add(patience))
				got, err := k.Read(b)
				if err != nil {
					t.Fatal(err)
				}
				want := append(binary.BigEndian.AppendUint32(nil, uint32(m)), fmt.Sprint(round, n)...)
				if !bytes.Equal(b[:got], want) {
					t.Fatalf("round %d, client %d, answer %d: %q", round, n, m, b[:got])
				}
			}
		}
	}
}

// TestUDPDNS: a real server and client, with both protocols on one port, and an
// answer too great for a datagram of 512 bytes.
func TestUDPDNS(t *testing.T) {
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		for n := range 40 {
			rr, err := dns.NewRR(fmt.Sprintf("%s 60 IN A 192.0.2.%d", q.Question[0].Name, n))
			if err != nil {
				t.Error(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
			size := dns.MinMsgSize
			if o := q.IsEdns0(); o != nil {
				size = int(o.UDPSize())
			}
			m.Truncate(size)
		}
		w.WriteMsg(m)
	})
	var list []Endpoint
	for _, ip := range []string{"127.9.4.12", "127.9.4.13"} {
		p, err := net.ListenPacket("udp", ip+":0")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", p.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*dns.Server{{PacketConn: p, Handler: handler}, {Listener: l, Handler: handler}} {
			started, ended := make(chan struct{}), make(chan error, 1)
			s.NotifyStartedFunc = func() { close(started) }
			go func() { ended <- s.ActivateAndServe() }()
			<-started
			t.Cleanup(func() {
				s.Shutdown()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		}
		list = append(list, Endpoint{Address: p.LocalAddr().(*net.UDPAddr).AddrPort(), Weight: 1})
	}
	e := newEngine(t, Options{})
	front := freeUDP(t, "127.9.4.14")
	set(t, e, Service{ID: "dns", Listen: []netip.AddrPort{front}, ListenUDP: []netip.AddrPort{front}, Endpoints: list, Retries: 1})
	ask := func(network string, size uint16) *dns.Msg {
		t.Helper()
		q := new(dns.Msg)
		q.SetQuestion("web.example.", dns.TypeA)
		if size > 0 {
			q.SetEdns0(size, false)
		}
		c := dns.Client{Net: network, Timeout: patience}
		m, _, err := c.Exchange(q, front.String())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for range 50 {
		if m := ask("udp", 0); !m.Truncated || len(m.Answer) >= 40 {
			t.Fatalf("truncated: %v, %d answers", m.Truncated, len(m.Answer))
		}
		if m := ask("udp", 4096); m.Truncated || len(m.Answer) != 40 {
			t.Fatalf("truncated: %v, %d answers", m.Truncated, len(m.Answer))
		}
	}
	if m := ask("tcp", 0); m.Truncated || len(m.Answer) != 40 {
		t.Fatalf("truncated: %v, %d answers", m.Truncated, len(m.Answer))
	}
	v := statistics(t, e, "dns")
	// A client's port may come again: then it is the same session.
	if v.Connections > 101 || v.Endpoints[0].Connections < 20 || v.Endpoints[1].Connections < 20 || v.Failed != 0 || v.Dropped != 0 {
		t.Errorf("%+v", v)
	}
}

// TestUDPDescriptorsRunOut is TestDescriptorsRunOut for sessions.
func TestUDPDescriptorsRunOut(t *testing.T) {
	for _, how := range []string{"udp", "udp-stolen"} {
		t.Run(how, func(t *testing.T) {
			p := newUDPPeer(t, "127.9.4.15", called("a"))
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), descriptorChild+"="+how+" "+p.address.String())
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}

func udpDescriptorScene(how string, backend netip.AddrPort) error {
	const limit = 128
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	var reports atomic.Int64
	e, err := New(Options{Loops: 1, Pressure: func(uint64) { reports.Add(1) }})
	if err != nil {
		return err
	}
	defer e.Close(context.Background())
	free, err := net.ListenPacket("udp", "127.9.4.16:0")
	if err != nil {
		return err
	}
	front := free.LocalAddr().(*net.UDPAddr).AddrPort()
	free.Close()
	s := Service{ID: "dns", ListenUDP: []netip.AddrPort{front}, Endpoints: []Endpoint{{Address: backend, Weight: 1}}}
	if errs := e.Update([]Service{s}, nil); errs != nil {
		return fmt.Errorf("%v", errs)
	}
	k, err := newCrowd(front)
	if err != nil {
		return err
	}
	defer k.Close()
	answered := func(n int, wait time.Duration) bool {
		if err := k.ask(n); err != nil {
			return false
		}
		for {
			m, _, err := k.answer(wait)
			if err != nil || m == n {
				return err == nil
			}
		}
	}
	if !answered(0, patience) {
		return errors.New("the first client had no answer")
	}
	var waste []*os.File
	if how == "udp-stolen" {
		e.shared.room.Store(1 << 30)
		for {
			f, err := os.Open("/dev/null")
			if err != nil {
				break
			}
			waste = append(waste, f)
		}
	}
	for n := 1; n < limit && answered(n, time.Second); n++ {
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if v, _ := e.Service("dns"); v.Refused.Descriptors > 0 {
			break
		}
		if time.Now().After(end) {
			v, _ := e.Service("dns")
			return fmt.Errorf("nobody was refused: %+v", v)
		}
	}
	for range 100 {
		if !answered(0, patience) {
			return errors.New("the established client had no answer")
		}
	}
	used := cpuTime()
	time.Sleep(time.Second)
	if used = cpuTime() - used; used > 500*time.Millisecond {
		return fmt.Errorf("the loop spins: %s of processor time in a quiet second", used)
	}
	for _, f := range waste {
		f.Close()
	}
	s.UDPIdleTimeout = 500 * time.Millisecond
	if errs := e.Update([]Service{s}, nil); errs != nil {
		return fmt.Errorf("%v", errs)
	}
	for end := time.Now().Add(patience); !answered(limit, 100*time.Millisecond); {
		if time.Now().After(end) {
			return errors.New("a new client has no answer though descriptors are free again")
		}
	}
	if n := reports.Load(); n != 1 {
		return fmt.Errorf("%d reports", n)
	}
	return nil
}

// TestUDPOnlyWhatChanged: an update of one service leaves all others' sockets
// and sessions alone.
func TestUDPOnlyWhatChanged(t *testing.T) {
	e := newEngine(t, Options{Loops: 1})
	p := newUDPPeer(t, "127.9.4.17", called("a"))
	var list []Service
	front := freeUDP(t, "127.9.4.18")
	for n := range 200 {
		a := netip.AddrFrom4([4]byte{127, 9, 5, byte(n + 1)})
		list = append(list, Service{ID: fmt.Sprint("s", n), ListenUDP: []netip.AddrPort{netip.AddrPortFrom(a, front.Port())}, Endpoints: udpAt(p)})
	}
	set(t, e, list...)
	sockets := func() string {
		var text strings.Builder
		for _, s := range list {
			fmt.Fprint(&text, e.services[s.ID].udp.listen[0].fds)
		}
		return text.String()
	}
	clients := []*udpClient{}
	for _, s := range list {
		k := dialUDP(t, s.ListenUDP[0])
		k.must("a")
		clients = append(clients, k)
	}
	before := sockets()
	for range 5 {
		list[0].Endpoints = nil
		set(t, e, list[0])
		clients[0].refused()
		list[0].Endpoints = udpAt(p)
		set(t, e, list[0])
		clients[0].must("a")
		list[0].Endpoints[0].Weight = 7
		set(t, e, list[0])
	}
	if after := sockets(); after[strings.Index(after, "]"):] != before[strings.Index(before, "]"):] {
		t.Error("sockets of other services have changed")
	}
	for _, k := range clients {
		k.must("a")
	}
	if n := e.Statistics().Sessions; n != int64(len(list)) {
		t.Errorf("%d sessions of %d clients", n, len(list))
	}
}
