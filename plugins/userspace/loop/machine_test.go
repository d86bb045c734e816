package loop

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/plugins/userspace/loop/proxyheader"
)

// machine plays a script against a loop with a simulated kernel and compares
// what the peers get with what a connection without a proxy would have given
// them. A script is bytes: an action, then its argument.
type machine struct {
	t       testing.TB
	kernel  *simulated
	loop    *loop
	service *service
	engine  *Engine
	pairs   []*pair
	idle    bool // time-outs may end a connection
	greets  bool // clients begin with a PROXY protocol header
	sends   bool // and endpoints get one
	log     []string
}

// pair is one connection as the model sees it.
type pair struct {
	front *simSocket
	parties
	told proxyheader.Header // by the client's header
	back *simSocket         // once connected
	cut  bool               // by an idle time-out or the end of draining
	// reset are the sides whose peer sent a reset while the connection was
	// carried.
	reset [2]bool
	// during says that the client's reset came while connecting.
	during bool
}

func newMachine(t testing.TB, flags byte) *machine {
	m := &machine{t: t, kernel: newSimulated(), log: []string{fmt.Sprint(flags, ":")}}
	m.loop = &loop{
		shared:  &shared{start: time.Now()},
		kernel:  m.kernel,
		scratch: make([]byte, scratchSize),

		reserve: -1,
	}
	m.loop.pipes.most, m.loop.pipes.mostLarge = 3, 1
	m.engine = &Engine{shared: m.loop.shared, services: map[string]*service{}}
	s := Service{ID: "web", Retries: int(flags & 3), ConnectTimeout: time.Second}
	if flags&4 != 0 {
		s.IdleTimeout = 3 * time.Second
		m.idle = true
	}
	if flags&8 != 0 {
		s.SendProxy, m.sends = true, true
	}
	m.greets = flags&16 != 0
	if flags&32 != 0 {
		s.MaxLifetime = 5 * time.Second
		m.idle = true
	}
	if flags&64 != 0 {
		s.EjectAfter, s.EjectFor = 2, time.Second
	}
	if flags&128 != 0 {
		s.MaxPerClient, s.Affinity, s.Balance = 3, 2*time.Second, SourceHash
	}
	for i := range 3 {
		s.Endpoints = append(s.Endpoints, Endpoint{Address: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(i+1)), Weight: 1})
	}
	u := &update{engine: m.engine, errs: map[string][]error{}}
	u.set = []*Service{&s}
	m.service = newService("web")
	u.configure(m.service, &s)
	return m
}

var sizes = []int{1, 100, 5_000, 20_000, 70_000, 300_000}

// step plays one action.
func (m *machine) step(action, argument byte) {
	k := m.kernel
	p := m.pick(argument >> 4)
	size := sizes[int(argument)%len(sizes)]
	m.log = append(m.log, fmt.Sprintf("%d/%d", action%20, argument))
	switch action % 20 {
	case 0, 1:
		if len(m.pairs) < 12 {
			m.connect(2000+size, argument)
		}
	case 2, 3:
		m.answer(argument&7 != 0)
	case 4, 5:
		if p != nil {
			k.write(p.front, size)
		}
	case 6, 7:
		if p != nil && p.back != nil {
			k.write(p.back, size)
		}
	case 8:
		if p != nil {
			k.end(p.front)
		}
	case 9:
		if p != nil && p.back != nil {
			k.end(p.back)
		}
	case 10:
		if p != nil {
			m.abort(p, client)
		}
	case 11:
		if p != nil {
			m.abort(p, server)
		}
	case 12:
		if p != nil {
			k.read(p.front, size)
		}
	case 13:
		if p != nil && p.back != nil {
			k.read(p.back, size)
		}
	case 14:
		if p != nil {
			k.urge(p.front)
		}
	case 15:
		m.pass(uint32(argument) % 16)
	case 16:
		k.noPipes = argument&1 != 0
		k.short = []int{0, 1000, 30_000, 0}[argument>>1&3]
		if argument&8 != 0 {
			k.refuse++
		}
		if argument&48 == 48 {
			k.failing++
		}
	default:
		m.turn(nil)
	}
}

func (m *machine) pick(n byte) *pair {
	if len(m.pairs) == 0 {
		return nil
	}
	return m.pairs[int(n)%len(m.pairs)]
}

// connect is a client that comes. The higher bits of how say which header it
// begins with, if the service wants one.
func (m *machine) connect(room int, how byte) {
	s := m.kernel.newSocket(room)
	s.connected = true
	s.stream = byte(2 * len(m.pairs))
	n := len(m.pairs)
	p := &pair{front: s, parties: parties{address(1, n%3, 5000+n), address(2, 0, 80)}}
	m.pairs = append(m.pairs, p)
	if !m.greets {
		m.loop.open(s.fd, m.service, p.parties)
		return
	}
	told := proxyheader.Header{From: address(3, n%4, 6000+n), To: address(4, 0, 81)}
	switch how >> 4 % 8 {
	case 0:
		s.greeting = []byte("GET / HTTP/1.1\r\n")
	case 1:
		s.greeting = proxyheader.Header{}.Append(nil) // of the proxy's own
	case 2:
		s.greeting = fmt.Appendf(nil, "PROXY TCP4 %s %s %d %d\r\n", told.From.Addr(), told.To.Addr(), told.From.Port(), told.To.Port())
		p.told = told
	default:
		s.greeting = told.Append(nil)
		p.told = told
	}
	m.loop.greet(s.fd, m.service, p.parties)
}

func address(net, host, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(net), byte(host)}), uint16(port))
}

// preface is what the endpoint has to get first.
func (m *machine) preface(p *pair) []byte {
	if !m.sends {
		return nil
	}
	h := proxyheader.Header{From: p.from, To: p.to}
	if p.told.From.IsValid() {
		h = p.told
	}
	return h.Append(nil)
}

// answer settles the oldest connect that is still under way.
func (m *machine) answer(ok bool) {
	k := m.kernel
	for len(k.connects) > 0 {
		s := k.connects[0]
		k.connects = k.connects[1:]
		if s.closed {
			continue
		}
		s.room = 2000 + sizes[int(s.fd)%len(sizes)]
		if m.sends && s.fd%4 == 0 {
			s.room, s.grown = 10, s.room // the header doesn't fit
		}
		k.answer(s, ok)
		if ok {
			for i, p := range m.pairs {
				if p.front.watched && p.front.slot == s.slot && !p.front.closed {
					p.back = s
					s.preface = m.preface(p)
					s.stream = byte(2*i + 1)
				}
			}
		}
		return
	}
}

func (m *machine) abort(p *pair, side int) {
	s := p.front
	if side == server {
		s = p.back
	}
	if s == nil || s.closed || s.reset {
		return
	}
	m.kernel.abort(s)
	p.reset[side] = true
	if side == client && (p.back == nil || m.connecting(p)) {
		p.during = true
	}
}

func (m *machine) connecting(p *pair) bool {
	return m.loop.slots.at(p.front.slot).state == stateConnecting
}

// turn is one round of the loop; between, if given, happens when the events
// have been taken and not been handled.
func (m *machine) turn(between func()) {
	events := m.kernel.wait()
	if between != nil {
		between()
	}
	for _, e := range events {
		m.loop.ready(e.slot, e.side, e.mask)
	}
	m.loop.goOn()
	m.loop.slots.recycle()
	m.check()
}

// pass lets time go by.
func (m *machine) pass(ticks uint32) {
	l := m.loop
	if l.wheel.size == 0 {
		l.wheel.now = l.now
	}
	l.now += ticks
	before := map[*pair]uint8{}
	for _, p := range m.pairs {
		if !p.front.closed {
			before[p] = l.slots.at(p.front.slot).state
		}
	}
	l.advance()
	l.slots.recycle()
	for _, p := range m.pairs {
		switch {
		case before[p] == stateOpen && p.front.closed && m.idle:
			p.cut = true
		case before[p] == stateConnecting && p.back != nil && p.back.closed:
			// The answer came too late: it was never looked at.
			p.back, p.reset[server] = nil, false
		}
	}
	m.check()
}

// check looks at what must hold at every moment.
func (m *machine) check() {
	for _, f := range m.kernel.faults {
		m.t.Error(f)
	}
	if j, all := m.service.ejection.out, len(m.service.members); 2*j > all || len(m.service.usable) != all-j {
		m.t.Errorf("of %d endpoints %d are ejected and %d usable", all, j, len(m.service.usable))
	}
	for i, p := range m.pairs {
		if p.back == nil {
			continue
		}
		// Where a send fails, the client is reset meanwhile or a mark hides what
		// was announced, a timer of the kernel (0.2 s) ends the wait.
		if p.back.more && !p.back.closed && !p.back.reset && !p.back.failed && !p.front.urged && !p.reset[client] {
			m.t.Errorf("connection %d: the header is held back and nothing follows", i)
		}
		m.prefix(i, "client", p.back, p.front)
		m.prefix(i, "server", p.front, p.back)
		if held := p.front.written - len(p.front.waiting) - p.back.carried() - len(p.back.unsent); !p.front.closed && !p.back.reset && p.front.mark < 0 && held > 256<<10+1 {
			m.t.Errorf("connection %d holds %d bytes", i, held)
		}
	}
	for i := range m.loop.pipes.places {
		q := &m.loop.pipes.places[i]
		if q.in >= 0 && len(m.kernel.pipes[q.in].data) != q.held {
			m.t.Errorf("pipe %d holds %d bytes and is said to hold %d", i, len(m.kernel.pipes[q.in].data), q.held)
		}
	}
	for _, i := range m.loop.pipes.spare {
		if m.loop.pipes.places[i-1].held != 0 {
			m.t.Errorf("pipe %d is in the pool with bytes in it", i)
		}
	}
	if m.t.Failed() {
		m.t.Fatalf("script: %v", m.log)
	}
}

// prefix checks that to has got the beginning of what from has written.
func (m *machine) prefix(i int, who string, to, from *simSocket) {
	if to.carried() > from.written {
		m.t.Errorf("connection %d: of %d bytes that the %s wrote, %d came", i, from.written, who, to.carried())
		return
	}
	first := len(to.preface)
	for n := to.checked; n < len(to.got); n++ {
		if n < first && to.got[n] != to.preface[n] {
			m.t.Errorf("connection %d: byte %d of the header is wrong", i, n)
			return
		}
		if n >= first && to.got[n] != content(from.stream, n-first) {
			m.t.Errorf("connection %d: byte %d that the %s wrote came changed", i, n, who)
			return
		}
	}
	to.checked = len(to.got)
}

// carried is how much of the other side's stream the peer has.
func (s *simSocket) carried() int { return len(s.got) - len(s.preface) }

// finish lets everything that can still happen happen, and compares the end.
func (m *machine) finish() {
	k := m.kernel
	k.noPipes, k.short, k.refuse, k.failing = false, 0, 0, 0
	for round := 0; ; round++ {
		if round > 100_000 {
			m.t.Fatalf("it never comes to rest; script: %v", m.log)
		}
		for len(k.connects) > 0 {
			m.answer(true)
		}
		moved := false
		for _, p := range m.pairs {
			for _, s := range []*simSocket{p.front, p.back} {
				if s != nil && len(s.unsent) > 0 {
					k.read(s, len(s.unsent))
					moved = true
				}
			}
		}
		busy := len(k.ready) > 0 || len(m.loop.again) > 0
		m.turn(nil)
		if !moved && !busy && len(k.connects) == 0 {
			if m.waiting() == 0 {
				break
			}
			m.pass(1)
		}
	}
	for i, p := range m.pairs {
		m.compare(i, p)
	}
	m.countResources()
	if m.t.Failed() {
		m.t.Fatalf("script: %v", m.log)
	}
}

// waiting counts the connections that time alone will end.
func (m *machine) waiting() (n int) {
	m.loop.slots.each(func(_ int32, c *conn) {
		if c.state == stateLingering || c.state == stateGreeting {
			n++
		}
	})
	return n
}

// compare holds one connection against the model.
func (m *machine) compare(i int, p *pair) {
	f, b := p.front, p.back
	fail := func(format string, a ...any) {
		m.t.Errorf("connection %d: %s\nclient %+v\nserver %+v", i, fmt.Sprintf(format, a...), f.brief(), b.brief())
	}
	switch {
	case b == nil || p.during:
		// Nobody answered, or the client was gone before somebody did.
		if !f.closed || b != nil && !b.closed {
			fail("still open")
		}
		if b == nil && !f.sawReset && !p.reset[client] {
			fail("the client without an endpoint was not reset")
		}
	case p.cut || f.failed || b.failed:
		if !f.closed || !b.closed {
			fail("an idle or broken connection is still open")
		}
	case p.reset[client] || p.reset[server]:
		if !f.closed || !b.closed {
			fail("still open after a reset")
		}
		if !p.reset[server] && b.carried() != f.written {
			fail("the server got %d bytes of %d written before the client's reset", b.carried(), f.written)
		}
		if !p.reset[client] && len(f.got) != b.written {
			fail("the client got %d bytes of %d written before the server's reset", len(f.got), b.written)
		}
		// Who has both ended and seen the end has nothing left to be told.
		told := func(s *simSocket) bool { return s.sawReset || s.ended && s.sawEnd }
		if !p.reset[server] && !told(b) || !p.reset[client] && !told(f) {
			fail("the reset was not passed on")
		}
	default:
		if b.carried() != f.written || len(f.got) != b.written {
			fail("the server got %d bytes of %d, the client %d of %d", b.carried(), f.written, len(f.got), b.written)
		}
		if f.sawReset || b.sawReset {
			fail("a reset out of nothing")
		}
		if f.ended != b.sawEnd && !(f.ended && b.ended) || b.ended != f.sawEnd && !(f.ended && b.ended) {
			fail("an end was not passed on, or made up")
		}
		if both := f.ended && b.ended; f.closed != both || b.closed != both {
			fail("open and closed don't fit the ends")
		}
	}
}

func (s *simSocket) brief() map[string]any {
	if s == nil {
		return nil
	}
	return map[string]any{
		"written": s.written, "waiting": len(s.waiting), "mark": s.mark, "ended": s.ended, "reset": s.reset,
		"got": len(s.got), "unsent": len(s.unsent), "shut": s.shut, "sawEnd": s.sawEnd, "sawReset": s.sawReset, "closed": s.closed,
	}
}

// countResources compares what is in use with the connections that are open.
func (m *machine) countResources() {
	open := 0
	for _, p := range m.pairs {
		if !p.front.closed {
			open++
		}
	}
	l := m.loop
	if l.slots.used != open || int(l.shared.active.Load()) != open || int(m.service.active.Load()) != open {
		m.t.Errorf("%d open, %d slots used, %d counted as active, %d by the service", open, l.slots.used, l.shared.active.Load(), m.service.active.Load())
	}
	active := 0
	for _, e := range m.service.endpoints {
		active += int(e.active.Load())
	}
	if active != open {
		m.t.Errorf("%d open, %d counted by endpoints", open, active)
	}
	kept := 0 // an origin for each open connection where clients are counted
	if m.service.settings.Load().guest > 0 {
		kept = open
	}
	counted := 0
	for _, n := range m.service.guests.counts {
		counted += n
	}
	if counted != kept {
		m.t.Errorf("%d connections are counted by client, want %d", counted, kept)
	}
	if n := l.pipes.open - len(l.pipes.spare); n != 0 || l.buffers.inUse() != 0 || l.origins.inUse() != kept {
		m.t.Errorf("at rest %d pipes, %d buffers and %d origins are in use", n, l.buffers.inUse(), l.origins.inUse())
	}
	sockets := 0
	for _, s := range m.kernel.sockets {
		if !s.closed {
			sockets++
		}
	}
	if sockets != 2*open || len(m.kernel.pipes) != 2*l.pipes.open {
		m.t.Errorf("%d sockets for %d connections, %d pipe ends for %d pipes", sockets, open, len(m.kernel.pipes), l.pipes.open)
	}
}

// play runs a script.
func play(t testing.TB, script []byte) {
	if len(script) == 0 {
		return
	}
	m := newMachine(t, script[0])
	script = script[1:]
	for len(script) >= 2 {
		action, argument := script[0], script[1]
		script = script[2:]
		if action == 255 && len(script) >= 2 {
			// The next action happens after the events have been taken.
			next := script
			script = script[2:]
			m.log = append(m.log, "late")
			m.turn(func() { m.peerStep(next[0], next[1]) })
			continue
		}
		m.step(action, argument)
	}
	m.finish()
}

// peerStep plays an action if it is one of a peer's.
func (m *machine) peerStep(action, argument byte) {
	if a := action % 20; a >= 2 && a <= 14 {
		m.step(action, argument)
	}
}

func FuzzMachine(f *testing.F) {
	f.Add([]byte{1, 0, 5, 3, 1, 17, 0, 4, 4, 17, 0, 8, 0, 17, 0, 6, 5, 9, 0})
	f.Add([]byte{2, 0, 0, 3, 0, 17, 0, 3, 1, 4, 3, 17, 0, 10, 0})
	f.Add([]byte{1, 0, 2, 3, 1, 17, 0, 4, 5, 4, 5, 4, 5, 17, 0, 14, 0, 4, 5, 8, 0, 17, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 600 {
			return
		}
		play(t, script)
	})
}

// TestMachine plays random scripts in which all actions have their part.
func TestMachine(t *testing.T) {
	n := 1000
	if testing.Short() || raceEnabled {
		n = 150
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("PATCHBAY_TEST_SEED"); s != "" {
		fmt.Sscan(s, &seed)
	}
	t.Logf("seed %d (PATCHBAY_TEST_SEED)", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range n {
		script := make([]byte, 1+2*(5+random.IntN(120)))
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		// A connection to begin with.
		copy(script[1:], []byte{0, script[1], 3, 1, 17, 0})
		play(t, script)
	}
}

// TestStaleEvents: both sockets of a connection have events in one batch, the
// first of which ends it, and a new connection comes before the second is
// handled: it must get another slot, and the second event must not reach it.
func TestStaleEvents(t *testing.T) {
	m := newMachine(t, 1)
	m.connect(1000, 0)
	m.answer(true)
	m.turn(nil)
	old := m.pairs[0]
	m.kernel.end(old.front)
	m.turn(nil) // the client's end is passed on
	m.kernel.write(old.back, 10)
	m.kernel.end(old.back)
	m.kernel.abort(old.front)
	m.pairs[0].reset[client] = true
	events := m.kernel.wait()
	if len(events) != 2 {
		t.Fatalf("%d events", len(events))
	}
	for n, e := range events {
		m.loop.ready(e.slot, e.side, e.mask)
		if n == 0 {
			if !old.front.closed || !old.back.closed {
				t.Fatal("the first event didn't end the connection")
			}
			m.connect(1000, 0)
		}
	}
	if got := m.pairs[1].front.slot; got == old.front.slot {
		t.Errorf("slot %d was used again in the batch in which it was freed", got)
	}
	if m.pairs[1].front.closed || m.loop.slots.at(m.pairs[1].front.slot).state != stateConnecting {
		t.Error("an event of the old connection reached the new one")
	}
	m.loop.slots.recycle()
	m.connect(1000, 0)
	if got := m.pairs[2].front.slot; got != old.front.slot {
		t.Errorf("after the batch slot %d was taken, not the free one", got)
	}
	m.finish()
}
