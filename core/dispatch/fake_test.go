package dispatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// fake is a plugin as strict as a real one: it refuses a base that it does not
// hold and a session older than it has seen, and it reports to the test what a
// correct session never does, such as sending what is already in force.
type fake struct {
	t testing.TB

	mu       sync.Mutex
	session  uint64
	revision uint64 // 0: nothing held
	services map[string]*dataplane.Service
	broken   map[string]bool // sent but not carried
	inCall   bool
	sent     []dataplane.Change
	at       []time.Time

	// poison gives the reason why a service can't be carried, "" for none.
	poison func(id string) string
	// before is called ahead of each Apply, without the lock; its error, if
	// any, is answered, and lost means after the change has been made.
	before func(ctx context.Context, change dataplane.Change) (lost bool, err error)
	took   time.Duration // of each call; set it with change
}

func newFake(t testing.TB) *fake {
	return &fake{t: t, services: map[string]*dataplane.Service{}, broken: map[string]bool{}}
}

func (f *fake) Apply(ctx context.Context, change dataplane.Change) (dataplane.Result, error) {
	f.begin(change)
	defer f.end()
	f.mu.Lock()
	before, took := f.before, f.took
	f.mu.Unlock()
	var err error
	var lost bool
	if before != nil {
		lost, err = before(ctx, change)
	}
	if err != nil && !lost {
		return dataplane.Result{}, err
	}
	time.Sleep(took)
	result, applyErr := f.apply(change)
	return result, errors.Join(err, applyErr)
}

func (f *fake) begin(change dataplane.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inCall {
		f.t.Error("two calls of Apply at once")
	}
	f.inCall = true
	f.sent = append(f.sent, change)
	f.at = append(f.at, time.Now())
}

func (f *fake) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inCall = false
}

func (f *fake) apply(change dataplane.Change) (dataplane.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if change.Session < f.session {
		return dataplane.Result{}, fmt.Errorf("apply: %w", dataplane.ErrStaleSession)
	}
	f.session = change.Session
	if !change.Full && (f.revision == 0 || change.Base != f.revision) {
		return dataplane.Result{}, fmt.Errorf("apply: %w", dataplane.ErrBaseUnknown)
	}
	f.check(change)
	if change.Full {
		clear(f.services)
		clear(f.broken)
	}
	result := dataplane.Result{Revision: change.Revision, Failed: map[string]string{}}
	for _, service := range change.Upserts {
		delete(f.broken, service.ID)
		f.services[service.ID] = service
		f.refuse(service.ID, result)
	}
	for _, id := range change.Deletes {
		delete(f.broken, id)
		delete(f.services, id)
		f.refuse(id, result)
	}
	f.revision = change.Revision
	return result, nil
}

func (f *fake) refuse(id string, result dataplane.Result) {
	if f.poison == nil {
		return
	}
	if reason := f.poison(id); reason != "" {
		result.Failed[id] = reason
		f.broken[id] = true
		delete(f.services, id)
	}
}

// check complains about what a correct session never sends.
func (f *fake) check(change dataplane.Change) {
	f.t.Helper()
	seen := map[string]bool{}
	last := ""
	for _, service := range change.Upserts {
		if seen[service.ID] || service.ID < last {
			f.t.Errorf("revision %d: upsert of %s twice or out of order", change.Revision, service.ID)
		}
		seen[service.ID], last = true, service.ID
		if !change.Full && service.Equal(f.services[service.ID]) {
			f.t.Errorf("revision %d: upsert of %s, which is in force as it is", change.Revision, service.ID)
		}
	}
	if change.Full && len(change.Deletes) > 0 {
		f.t.Errorf("revision %d: deletes in a full update", change.Revision)
	}
	for _, id := range change.Deletes {
		if seen[id] {
			f.t.Errorf("revision %d: %s upserted and deleted", change.Revision, id)
		}
		seen[id] = true
		if f.services[id] == nil && !f.broken[id] {
			f.t.Errorf("revision %d: delete of %s, which is not there", change.Revision, id)
		}
	}
}

// change makes the plugin behave otherwise from now on.
func (f *fake) change(how func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how()
}

// state gives what is in force.
func (f *fake) state() map[string]*dataplane.Service {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.services)
}

// calls gives what was sent since the last time it was asked.
func (f *fake) calls() []dataplane.Change {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent := f.sent
	f.sent, f.at = nil, nil
	return sent
}

// times gives when the calls came that calls would give.
func (f *fake) times() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time(nil), f.at...)
}
