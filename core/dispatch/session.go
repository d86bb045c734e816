package dispatch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// Session keeps one dataplane plugin at the newest snapshot. All methods may
// be called from any goroutine.
type Session struct {
	options Options
	log     hclog.Logger
	// wake tells Run that something has changed; it holds one token.
	wake chan struct{}

	mu sync.Mutex
	// newest state of the node; nil before the first Publish.
	newest *catalog.Snapshot

	// plugin that is attached, nil for none. generation tells attachments
	// apart, so that what a plugin answers after its time is not taken in.
	plugin     Applier
	adopted    int
	generation uint64
	// giveUp ends the Apply in flight.
	giveUp context.CancelFunc

	// The gate of unread sources: open once sending was allowed, because what
	// is in place from then on is what this session wrote.
	released, open bool
	graceOver      time.Time
	hold           bool
	superseded     error

	knowledge
	schedule
	counts Status
}

// knowledge is what the session knows of the plugin's state.
type knowledge struct {
	// needFull is set while it knows nothing: base and pending mean nothing.
	needFull bool
	// base is the revision that the plugin holds, agreed that of the newest
	// snapshot it agreed with.
	base, agreed uint64
	// acked holds what the plugin carries as asked. A service is in acked or
	// in failed, never in both.
	acked  map[string]acknowledged
	failed map[string]*failure
	// pending are ids whose desired state differs from what the plugin holds,
	// or will hold when the Apply in flight succeeds. No id is both pending
	// and failed, except while its retry is in flight.
	pending  map[string]struct{}
	inFlight *job
	// waitingSince is when the oldest change came that is not in flight.
	waitingSince time.Time
}

type acknowledged struct {
	service  *dataplane.Service
	revision uint64
}

// New makes a session; nothing is sent before Run and Attach.
func New(options Options) *Session {
	options.fill()
	return &Session{
		options: options,
		log:     options.Logger.With("dataplane", options.Dataplane),
		wake:    make(chan struct{}, 1),
		knowledge: knowledge{
			needFull: true,
			acked:    map[string]acknowledged{},
			failed:   map[string]*failure{},
			pending:  map[string]struct{}{},
		},
	}
}

// Run sends until ctx ends, and then returns nil. It returns an error that
// wraps [dataplane.ErrStaleSession] when a newer core has taken the plugin
// over: the session is then of no more use.
func (s *Session) Run(ctx context.Context) error {
	s.mu.Lock()
	s.graceOver = time.Now().Add(s.options.GraceForSources)
	s.mu.Unlock()
	for ctx.Err() == nil {
		job, until, err := s.next(ctx, time.Now())
		if err != nil {
			return err
		}
		if job != nil {
			s.send(job)
			continue
		}
		s.sleep(ctx, until)
	}
	return nil
}

// sleep waits for a wake-up, and not beyond until unless that is zero.
func (s *Session) sleep(ctx context.Context, until time.Time) {
	var due <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-s.wake:
	case <-due:
	}
}

func (s *Session) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Publish takes in the newest state. It never blocks. Changes must come in
// the order of their snapshots; the first, and any that comes while no plugin
// is attached, need not name ids.
func (s *Session) Publish(change catalog.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = change.Snapshot
	if !s.needFull {
		for _, id := range change.IDs {
			s.note(id)
		}
	}
	s.markWaiting(time.Now())
	s.wakeUp()
}

// Attach gives the session a plugin that has just been configured and found
// that many services of ours in place. It takes the place of the one before.
func (s *Session) Attach(plugin Applier, adopted int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changePlugin(plugin)
	s.adopted = adopted
}

// Detach takes the plugin away, if it is the one attached; an Apply in flight
// is given up.
func (s *Session) Detach(plugin Applier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plugin == plugin {
		s.changePlugin(nil)
	}
}

func (s *Session) changePlugin(plugin Applier) {
	if s.giveUp != nil {
		s.giveUp()
		s.giveUp = nil
	}
	s.plugin = plugin
	s.generation++
	s.forget(time.Now())
	s.schedule = schedule{}
	s.wakeUp()
}

// Release says that every source has been read.
func (s *Session) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = true
	s.wakeUp()
}

// SetHold stops the session from sending, or lets it go on. An Apply in flight
// is not given up.
func (s *Session) SetHold(hold bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = hold
	// A check that the hold has put off doesn't go before the changes.
	s.syncAt = later(s.syncAt, time.Now())
	s.wakeUp()
}

// SetSyncInterval changes how often the plugin checks itself.
func (s *Session) SetSyncInterval(interval time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.options.SyncInterval = interval
	s.syncAt = time.Now().Add(interval)
	s.wakeUp()
}

// note takes in that the desired state of one service may have changed.
func (s *Session) note(id string) {
	desired := s.newest.Desired(s.options.Dataplane, id)
	holds, flying := s.inFlight.holds(id)
	if !flying {
		if f := s.failed[id]; f != nil {
			s.reconsider(f, desired)
			return
		}
		holds = s.acked[id].service
	}
	if holds.Equal(desired) {
		delete(s.pending, id)
	} else {
		s.pending[id] = struct{}{}
	}
}

// forget drops what is known of the plugin's state: it will be sent all.
func (s *Session) forget(now time.Time) {
	if s.inFlight != nil && !s.inFlight.since.IsZero() {
		s.waitingSince = s.inFlight.since
	}
	s.inFlight = nil
	s.needFull = true
	clear(s.pending)
	s.markWaiting(now)
}

// markWaiting keeps waitingSince true to what is pending.
func (s *Session) markWaiting(now time.Time) {
	switch {
	case s.newest == nil, !s.needFull && len(s.pending) == 0:
		s.waitingSince = time.Time{}
	case s.waitingSince.IsZero():
		s.waitingSince = now
	}
}

// supersede ends the session's life: a newer core owns the plugin.
func (s *Session) supersede(err error) {
	s.superseded = fmt.Errorf("dataplane %q obeys a newer core, this one sends it nothing any more "+
		"(is a second agent running on a copy of data_dir?): %w", s.options.Dataplane, err)
}
