package consul

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// rampSize is how many questions that don't wait run at once.
	rampSize = 32
	// sweepers read the services that have no blocking query, maxSweep of them
	// a second.
	sweepers = 16
	maxSweep = 200
)

// round is the time in which settings, token and certificates stay as they are.
type round struct {
	s      *Source
	ctx    context.Context
	client *client
	// parts are the goroutines of the round.
	parts sync.WaitGroup
	ramp  chan struct{}

	// The source's lock covers what follows.

	// blocking is how many services have a blocking query.
	blocking int
	// turn are the services that are read in turn, next the one that is.
	turn  []*service
	next  int
	http2 bool
	wake  chan struct{}
}

func newRound(ctx context.Context, s *Source, client *client) *round {
	return &round{s: s, ctx: ctx, client: client, ramp: make(chan struct{}, rampSize), wake: make(chan struct{}, 1)}
}

// start sees to it that somebody asks for a service.
func (r *round) start(v *service) {
	if v.running || v.invalid || v.gone {
		return
	}
	v.running = true
	v.pace = pace{interval: r.s.timing.Pace}
	v.retry = backoff{first: r.s.timing.Retry / 8, most: 6 * r.s.timing.Retry}
	if r.hasSlot() {
		r.startFollowing(v)
		return
	}
	r.turn = append(r.turn, v)
	if !r.s.saidSweep {
		r.s.saidSweep = true
		r.s.log.Info("more services than blocking queries over plain HTTP: the rest is read in turn, which follows within seconds. "+
			"With HTTPS (ports { https = 8501 } in Consul's agent) all are followed at once; else raise max_blocking here and limits { http_max_conns_per_client } there",
			"max_blocking", r.s.settings.MaxBlocking)
	}
	r.nudge()
}

// nudge makes the sweep look for what to read anew.
func (r *round) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// hasSlot tells whether there may be one more blocking query, beside that of
// the list.
func (r *round) hasSlot() bool { return r.http2 || r.blocking < r.s.settings.MaxBlocking-1 }

func (r *round) startFollowing(v *service) {
	ctx, quit := context.WithCancel(r.ctx)
	v.quit = quit
	r.blocking++
	r.parts.Go(func() {
		defer quit()
		r.follow(ctx, v)
		r.s.mu.Lock()
		r.blocking--
		r.promote()
		r.s.mu.Unlock()
	})
}

// promote gives blocking queries that are free to services that are read in
// turn, and takes those that are gone out of it.
func (r *round) promote() {
	r.turn = slices.DeleteFunc(r.turn, func(v *service) bool { return v.gone })
	for len(r.turn) > 0 && r.hasSlot() && r.ctx.Err() == nil {
		v := r.turn[0]
		if v.busy {
			// Who reads it now comes back to this.
			return
		}
		r.turn = r.turn[1:]
		r.startFollowing(v)
	}
}

// sweep reads the services that have no blocking query, one after the other.
func (r *round) sweep(ctx context.Context) {
	work := make(chan *service)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer close(work)
	for range sweepers {
		readers.Go(func() {
			for v := range work {
				wait := r.read(ctx, v, false)
				r.s.mu.Lock()
				v.busy, v.after = false, time.Now().Add(wait)
				r.promote()
				r.s.mu.Unlock()
			}
		})
	}
	due := time.Now()
	for {
		v, wait := r.nextInTurn(time.Now())
		if v == nil {
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-r.wake:
			case <-timer.C:
			}
			timer.Stop()
			continue
		}
		select {
		case <-ctx.Done():
			return
		case work <- v:
		}
		// A few late ones may be made up for.
		now := time.Now()
		due = due.Add(time.Second / maxSweep)
		if late := now.Add(-sweepers * time.Second / maxSweep); due.Before(late) {
			due = late
		}
		if !sleep(ctx, due.Sub(now)) {
			return
		}
	}
}

// nextInTurn gives the service to read now, or the time until there is one.
// First come those that are to be read without cache, then each in its turn.
func (r *round) nextInTurn(now time.Time) (*service, time.Duration) {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := time.Minute
	for _, v := range r.turn {
		if !v.busy && v.urgent(now) && !now.Before(v.after) {
			v.busy = true
			return v, 0
		}
		if !v.until.IsZero() {
			wait = min(wait, v.until.Sub(now))
		}
	}
	for range r.turn {
		r.next++
		if r.next >= len(r.turn) {
			r.next = 0
		}
		v := r.turn[r.next]
		// One that was read less than a pace ago is left for the next turn.
		rest := max(v.after.Sub(now), v.asked.Add(s.timing.Pace).Sub(now))
		if v.busy {
			rest = s.timing.Pace
		}
		if rest > 0 {
			wait = min(wait, rest)
			continue
		}
		v.busy = true
		return v, 0
	}
	return nil, max(wait, time.Millisecond)
}

// urgent tells whether one that is read in turn is to be read without cache,
// before others.
func (v *service) urgent(now time.Time) bool {
	return v.index == 0 || v.hurry || !v.until.IsZero() && !now.Before(v.until)
}

// learnNode asks the agent for the name of its node, if the agent is on this
// host, so that instances on it are known as local. Without the right to ask it
// is done without.
func (r *round) learnNode(ctx context.Context) {
	if !r.client.local {
		return
	}
	retry := backoff{first: r.s.timing.Retry, most: 60 * r.s.timing.Retry}
	for {
		ask, cancel := context.WithTimeout(ctx, r.s.timing.Timeout)
		name, err := r.client.nodeName(ask)
		cancel()
		if err == nil {
			r.s.setNode(name)
			return
		}
		if !concernsAll(err) {
			r.s.log.Debug("the agent does not say which node it is on", "error", err)
		}
		if !sleep(ctx, retry.next()) {
			return
		}
	}
}

func (s *Source) setNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodeName == name {
		return
	}
	s.nodeName = name
	for _, v := range s.services {
		s.tell(v)
	}
}

// followFiles reads the token and the certificates again when they have
// changed, and begins a new round with them.
func (r *round) followFiles(ctx context.Context) {
	if len(r.client.transport.files()) == 0 {
		return
	}
	for sleep(ctx, r.s.timing.Follow) {
		if !r.client.transport.changed() {
			r.s.setBadFile("")
			continue
		}
		err := r.client.transport.refresh()
		if err == nil {
			r.s.log.Info("read the token and the certificates for Consul again")
			r.s.restart()
			return
		}
		if ctx.Err() == nil && r.s.setBadFile("a file for Consul has changed and can't be used; what was read before stays in force: "+err.Error()) {
			r.s.log.Warn("a file for Consul has changed and can't be used; what was read before stays in force", "error", err)
		}
	}
}

// setBadFile notes what is wrong with a file, and tells whether that is new.
func (s *Source) setBadFile(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.badFile == text {
		return false
	}
	s.badFile = text
	s.tellStatus()
	return true
}
