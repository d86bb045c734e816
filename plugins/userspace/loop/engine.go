package loop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options of an engine; the zero value is usable.
type Options struct {
	// Loops is the number of event loops; 0 means one per core.
	Loops int
	// MaxConnections is the greatest number of connections of all services at
	// once; 0 means as many as descriptors allow (two for each).
	MaxConnections int
	// MaxUDPSessions is the greatest number of UDP sessions of all services at
	// once; 0 means 65,536.
	MaxUDPSessions int
	// KeepAlive is the silence after which a peer is asked whether it is still
	// there, in whole seconds; 0 means 30 s, below 0 never.
	KeepAlive time.Duration
	// FreeBind lets services listen on IPv6 addresses that no interface has:
	// those that the kernel delivers to this host by a local route alone can't
	// be bound otherwise. The caller makes sure that there is one.
	FreeBind bool
	// Pressure is told, at most once a minute, that connections are refused
	// because descriptors have run out, and how many have been since the start.
	// It is called by a goroutine of the engine, never by a loop.
	Pressure func(refused uint64)
}

// pressureEvery is the shortest time between two calls of Options.Pressure.
const pressureEvery = time.Minute

// Engine is a set of event loops that carry the connections of services. Its
// methods may be called at any time, also at once; updates come one after
// another.
type Engine struct {
	shared   *shared
	loops    []*loop
	keepIdle int32
	freeBind bool
	pipes    int // most of all loops
	occupied int // descriptors that were open when the engine started
	ports    [2]uint16

	mu        sync.Mutex
	closed    bool
	held      bool
	services  map[string]*service
	listeners map[netip.AddrPort]*listener
	datagrams map[netip.AddrPort]*listener // of UDP
	places    []int32                      // free listener indices
	nextPlace int32
	drains    drains

	stop    chan struct{}
	running sync.WaitGroup // the loops
	helpers sync.WaitGroup // the engine's own goroutines
}

// New starts the loops. The error is of a descriptor that could not be made.
func New(o Options) (*Engine, error) {
	if o.Loops <= 0 {
		o.Loops = runtime.NumCPU()
	}
	keep := int32(min(o.KeepAlive/time.Second, math.MaxInt16))
	switch {
	case o.KeepAlive == 0:
		keep = 30
	case o.KeepAlive < 0:
		keep = 0
	}
	e := &Engine{
		shared: &shared{
			start:   time.Now(),
			pressed: make(chan struct{}, 1),
			idle:    make(chan struct{}, 1),
		},
		keepIdle:  keep,
		freeBind:  o.FreeBind,
		ports:     localPorts(),
		services:  map[string]*service{},
		listeners: map[netip.AddrPort]*listener{},
		datagrams: map[netip.AddrPort]*listener{},
		stop:      make(chan struct{}),
	}
	e.drains.changed = make(chan struct{}, 1)
	e.SetMaxConnections(o.MaxConnections)
	e.SetMaxUDPSessions(o.MaxUDPSessions)
	for i := range o.Loops {
		l, err := newLoop(i, e.shared, keep)
		if err != nil {
			for _, l := range e.loops {
				l.release()
			}
			return nil, fmt.Errorf("starting event loop %d: %w", i, err)
		}
		e.loops = append(e.loops, l)
	}
	e.budgetDescriptors()
	for _, l := range e.loops {
		e.running.Go(l.run)
	}
	e.helpers.Go(func() { e.reportPressure(o.Pressure) })
	e.helpers.Go(e.watchDrains)
	return e, nil
}

// SetMaxConnections changes Options.MaxConnections. Connections above a new
// limit are left alone.
func (e *Engine) SetMaxConnections(n int) {
	if n <= 0 {
		n = math.MaxInt
	}
	e.shared.limit.Store(int64(n))
}

// SetMaxUDPSessions changes Options.MaxUDPSessions. Sessions above a new limit
// are left alone.
func (e *Engine) SetMaxUDPSessions(n int) {
	if n <= 0 {
		n = 65536
	}
	e.shared.udp.limit.Store(int64(n))
}

// Hold with true keeps the engine from ending connections of its own accord
// when a drain deadline passes; with false, what became due in between is done.
func (e *Engine) Hold(on bool) {
	e.mu.Lock()
	e.held = on
	e.mu.Unlock()
	e.drains.wake()
}

// budgetDescriptors shares out what the process may open: some are left to the
// rest of the program, some to pipes, and two for each connection.
func (e *Engine) budgetDescriptors() {
	open, err := os.ReadDir("/proc/self/fd")
	if err == nil {
		e.occupied = len(open)
	}
	limit := descriptorLimit()
	most := min(pipesMost, limit/16) / len(e.loops)
	size := spliceMost
	for size*len(e.loops) > largeMost*spliceMost {
		size /= 2
	}
	for _, l := range e.loops {
		l.pipes.most = most
		l.pipes.mostLarge = max(largeMost/len(e.loops), 1)
		l.system.largePipe = size
	}
	e.pipes = most * len(e.loops)
	e.setRoom()
}

// setRoom is called when the number of listeners has changed.
func (e *Engine) setRoom() {
	limit := descriptorLimit()
	used := e.occupied + min(64, limit/8) + (len(e.listeners)+len(e.datagrams))*len(e.loops) + 2*e.pipes
	e.shared.room.Store(int64(max((limit-used)/2, 1)))
}

func descriptorLimit() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur > 1<<30 {
		return 1 << 30
	}
	return int(r.Cur)
}

// localPorts reads the range from which outgoing connections get their ports.
func localPorts() [2]uint16 {
	r := [2]uint16{1, math.MaxUint16}
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		if _, err := fmt.Fscan(strings.NewReader(string(text)), &r[0], &r[1]); err != nil {
			return [2]uint16{1, math.MaxUint16}
		}
	}
	return r
}

// onLoops has f called on every loop, between two batches of events, and waits
// for all.
func (e *Engine) onLoops(f func(*loop)) {
	if e.closed {
		return
	}
	var done sync.WaitGroup
	done.Add(len(e.loops))
	for _, l := range e.loops {
		l.post(func(l *loop) {
			defer done.Done()
			f(l)
		})
	}
	done.Wait()
}

func (e *Engine) reportPressure(report func(uint64)) {
	var last time.Time
	for {
		select {
		case <-e.stop:
			return
		case <-e.shared.pressed:
		}
		if report == nil || !last.IsZero() && time.Since(last) < pressureEvery {
			continue
		}
		last = time.Now()
		report(e.shared.refused.Load())
	}
}

// ErrClosed is the error of every service in an update of a closed engine.
var ErrClosed = errors.New("the engine is closed")

// Close closes the listeners and with them UDP sessions, waits until the
// connections have ended or ctx is done, resets those that are left, and returns when nothing of the engine is
// left. The error is ctx's if connections were reset. A second Close does
// nothing.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	if e.shared.closing.Swap(true) {
		e.mu.Unlock()
		return nil
	}
	e.closeListeners(slices.Collect(maps.Values(e.listeners)))
	e.closeDatagrams()
	e.mu.Unlock()
	err := e.finish(ctx)
	e.mu.Lock()
	e.onLoops(func(l *loop) {
		l.slots.each(l.cut)
		l.quit = true
	})
	e.closed = true
	e.mu.Unlock()
	close(e.stop)
	e.running.Wait()
	e.helpers.Wait()
	for _, l := range e.loops {
		l.release()
	}
	return err
}

// finish waits for the last connection, as long as ctx allows.
func (e *Engine) finish(ctx context.Context) error {
	for {
		n := e.shared.active.Load()
		if n <= 0 {
			return nil
		}
		select {
		case <-e.shared.idle:
		case <-ctx.Done():
			return fmt.Errorf("%d connections were reset: %w", n, ctx.Err())
		}
	}
}

// Loops is the number of event loops.
func (e *Engine) Loops() int { return len(e.loops) }
