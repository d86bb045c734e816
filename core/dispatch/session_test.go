package dispatch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// node publishes snapshots of two dataplanes, "ours" and "other".
type node struct {
	snapshot *catalog.Snapshot
	session  *Session
}

func newNode(session *Session) *node {
	return &node{snapshot: catalog.EmptySnapshot(), session: session}
}

// service makes one with a weight that tells its versions apart.
func service(id, carrier string, weight uint32) *catalog.Service {
	return &catalog.Service{
		ID: id, Dataplane: carrier,
		Desired: &dataplane.Service{
			ID:        id,
			Frontends: []dataplane.Frontend{{Kind: dataplane.Virtual, Address: netip.MustParseAddr("10.0.0.1"), Port: 80, Protocol: dataplane.TCP}},
			Endpoints: []dataplane.Endpoint{{Address: netip.MustParseAddrPort("10.1.0.1:8080"), Weight: weight, State: dataplane.StateActive}},
		},
	}
}

// publish makes the next snapshot and publishes it.
func (n *node) publish(upserts []*catalog.Service, removed ...string) {
	n.snapshot = n.snapshot.Next(n.snapshot.Revision+1, time.Now(), upserts, removed)
	var ids []string
	for _, s := range upserts {
		ids = append(ids, s.ID)
	}
	n.session.Publish(catalog.Change{Snapshot: n.snapshot, IDs: append(ids, removed...)})
}

func (n *node) set(id string, weight uint32) {
	n.publish([]*catalog.Service{service(id, "ours", weight)})
}

// inBubble runs the test with a session that is running, under a false clock.
func inBubble(t *testing.T, options Options, test func(t *testing.T, n *node, s *Session)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		options.Dataplane = "ours"
		if options.SessionNumber == 0 {
			options.SessionNumber = 7
		}
		s := New(options)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		synctest.Wait()
		test(t, newNode(s), s)
		cancel()
		if err := <-done; err != nil && !errors.Is(err, dataplane.ErrStaleSession) {
			t.Errorf("Run: %v", err)
		}
	})
}

// shape is a call without the services' contents.
func shape(c dataplane.Change) string {
	ids := ""
	for _, u := range c.Upserts {
		ids += " +" + u.ID
	}
	for _, d := range c.Deletes {
		ids += " -" + d
	}
	if c.Full {
		return fmt.Sprintf("full %d%s", c.Revision, ids)
	}
	return fmt.Sprintf("%d>%d%s", c.Base, c.Revision, ids)
}

func wantCalls(t *testing.T, f *fake, want ...string) {
	t.Helper()
	synctest.Wait()
	var got []string
	for _, c := range f.calls() {
		got = append(got, shape(c))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestSendsWhatChangedAlone(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		n.publish([]*catalog.Service{service("a", "ours", 1), service("b", "ours", 1), service("x", "other", 1)})
		s.Release()
		s.Attach(f, 0)
		wantCalls(t, f, "full 1 +a +b")
		time.Sleep(time.Second)

		n.set("b", 2)
		wantCalls(t, f, "1>2 +b")
		time.Sleep(time.Second)

		// Another dataplane's change, and one that changes nothing, send nothing.
		n.publish([]*catalog.Service{service("x", "other", 2), service("b", "ours", 2)})
		wantCalls(t, f)
		if got := s.Status(); got.AcknowledgedRevision != 3 || got.State != StateSynced || !got.WaitingSince.IsZero() {
			t.Errorf("a snapshot without change for us: status %+v", got)
		}

		// A service that moves to another dataplane leaves this one.
		n.publish([]*catalog.Service{service("a", "other", 1)})
		wantCalls(t, f, "2>4 -a")
		time.Sleep(time.Second)
		// A rejected service leaves too, and one that nobody had is not deleted.
		n.publish([]*catalog.Service{{ID: "b", Dataplane: "ours", Rejected: "no port"}}, "never-there")
		wantCalls(t, f, "4>5 -b")
	})
}

func TestNewerSnapshotsReplaceEachOtherInFlight(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		f.change(func() { f.took = 300 * time.Millisecond })
		s.Release()
		n.set("a", 1)
		s.Attach(f, 0)
		time.Sleep(10 * time.Millisecond)
		for i := range uint32(20) {
			n.set("b", i)
			n.set("c", i)
		}
		n.publish(nil, "c")
		if got := s.Status().State; got != StateApplying {
			t.Errorf("state %q in flight", got)
		}
		time.Sleep(5 * time.Second)
		wantCalls(t, f, "full 1 +a", "1>42 +b")
	})
}

func TestChangedBackInFlight(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		s.Release()
		n.set("a", 1)
		s.Attach(f, 0)
		time.Sleep(time.Second)
		f.change(func() { f.took = time.Second })
		n.set("a", 2)
		time.Sleep(100 * time.Millisecond)
		n.set("a", 1) // must be sent after all
		time.Sleep(3 * time.Second)
		wantCalls(t, f, "full 1 +a", "1>2 +a", "2>3 +a")
		n.set("a", 3)
		time.Sleep(100 * time.Millisecond)
		n.set("a", 4)
		n.set("a", 3) // what is in flight will do
		time.Sleep(3 * time.Second)
		wantCalls(t, f, "3>4 +a")
	})
}

func TestPacing(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		s.Release()
		n.set("a", 0)
		s.Attach(f, 0)
		time.Sleep(time.Second)
		f.calls()

		start := time.Now()
		for i := range uint32(1000) { // a change each millisecond for a second
			n.set("a", i+1)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		times := f.times()
		if first := times[0].Sub(start); first != 0 {
			t.Errorf("the first change waited %v", first)
		}
		if len(times) < 80 || len(times) > 102 {
			t.Errorf("%d calls in a second of churn, want about 100", len(times))
		}
		for i := 1; i < len(times); i++ {
			if d := times[i].Sub(times[i-1]); d < 10*time.Millisecond {
				t.Errorf("calls %v apart", d)
			}
		}

		// A slow plugin rests as long as it worked, but not too long.
		f.calls()
		f.change(func() { f.took = 40 * time.Millisecond })
		for i := range uint32(1000) {
			n.set("a", i+5000)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if got := len(f.calls()); got < 11 || got > 15 {
			t.Errorf("%d calls in a second of churn of 40 ms each, want about 13", got)
		}
	})
}

func TestUnreadSources(t *testing.T) {
	t.Run("a plugin that carries traffic waits", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
			f := newFake(t)
			n.set("a", 1)
			s.Attach(f, 3)
			time.Sleep(time.Hour)
			wantCalls(t, f)
			if got := s.Status().State; got != StateWaiting {
				t.Errorf("state %q", got)
			}
			s.Release()
			wantCalls(t, f, "full 1 +a")
		})
	})
	t.Run("an empty one gets what is known after 5 s", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
			f := newFake(t)
			n.set("a", 1)
			s.Attach(f, 0)
			time.Sleep(4999 * time.Millisecond)
			wantCalls(t, f)
			time.Sleep(time.Millisecond)
			wantCalls(t, f, "full 1 +a")

			// From then on what is in place is what this session wrote.
			s.Detach(f)
			g := newFake(t)
			s.Attach(g, 1)
			wantCalls(t, g, "full 1 +a")
		})
	})
	t.Run("nothing published", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
			f := newFake(t)
			s.Release()
			s.Attach(f, 0)
			time.Sleep(time.Hour)
			wantCalls(t, f)
			n.publish(nil)
			wantCalls(t, f, "full 1")
		})
	})
}

func TestOneServiceFails(t *testing.T) {
	inBubble(t, Options{SyncInterval: 24 * time.Hour}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		var bad atomic.Bool
		bad.Store(true)
		f.poison = func(id string) string {
			if bad.Load() && id == "b" {
				return "address in use"
			}
			return ""
		}
		s.Release()
		n.publish([]*catalog.Service{service("a", "ours", 1), service("b", "ours", 1), service("c", "ours", 1)})
		s.Attach(f, 0)
		wantCalls(t, f, "full 1 +a +b +c")
		status := s.Status()
		if status.Failed["b"].Err != "address in use" || status.Acknowledged != 2 || status.State != StateSynced {
			t.Errorf("status %+v", status)
		}
		if ack := s.Acknowledged("b"); ack.Current || ack.Failure == nil || ack.Failure.Attempts != 1 {
			t.Errorf("ack of b: %+v", ack)
		}
		if ack := s.Acknowledged("a"); !ack.Current || ack.Revision != 1 {
			t.Errorf("ack of a: %+v", ack)
		}

		// It alone is retried: 1, 2, 4 .. 60 s, so about 7 in the first 2 minutes.
		time.Sleep(2 * time.Minute)
		calls := f.calls()
		if len(calls) < 5 || len(calls) > 9 {
			t.Errorf("%d retries in 2 minutes", len(calls))
		}
		for _, c := range calls {
			if got := shape(c); got != "1>1 +b" {
				t.Errorf("retry %s, want of b alone", got)
			}
		}

		// Others go on meanwhile, at once and without it.
		time.Sleep(time.Until(s.Status().Failed["b"].NextRetry) + time.Second)
		f.calls()
		n.set("c", 2)
		wantCalls(t, f, "1>2 +c")

		// A change of the failed one is tried at once, since the last try was
		// long ago, and its churn not more than once a second.
		time.Sleep(5 * time.Second)
		f.calls()
		for i := range uint32(500) {
			n.set("b", 100+i)
			time.Sleep(10 * time.Millisecond)
		}
		if got := len(f.calls()); got < 3 || got > 6 {
			t.Errorf("%d tries of a failing service in 5 s of churn", got)
		}

		bad.Store(false)
		time.Sleep(2 * time.Minute)
		f.calls()
		if got := s.Status(); len(got.Failed) != 0 || got.Acknowledged != 3 {
			t.Errorf("after recovery: %+v", got)
		}
		if ack := s.Acknowledged("b"); !ack.Current || ack.Failure != nil {
			t.Errorf("ack of b after recovery: %+v", ack)
		}
		time.Sleep(time.Hour)
		wantCalls(t, f)
	})
}

func TestDeletionFails(t *testing.T) {
	inBubble(t, Options{SyncInterval: 24 * time.Hour}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		s.Release()
		n.set("a", 1)
		s.Attach(f, 0)
		wantCalls(t, f, "full 1 +a")
		time.Sleep(time.Second)
		var bad atomic.Bool
		bad.Store(true)
		f.change(func() {
			f.poison = func(string) string {
				if bad.Load() {
					return "rule is busy"
				}
				return ""
			}
		})
		n.publish(nil, "a")
		wantCalls(t, f, "1>2 -a")
		bad.Store(false)
		time.Sleep(3 * time.Second)
		wantCalls(t, f, "2>2 -a")
		if got := s.Status(); len(got.Failed) != 0 {
			t.Errorf("status %+v", got)
		}
	})
}

func TestCheckFindsBrokenService(t *testing.T) {
	inBubble(t, Options{SyncInterval: time.Minute}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		s.Release()
		n.publish([]*catalog.Service{service("a", "ours", 1), service("b", "ours", 1)})
		checks := &checker{fake: f}
		s.Attach(checks, 0)
		wantCalls(t, f, "full 1 +a +b")
		f.change(func() { checks.report = "b" })
		time.Sleep(75 * time.Second) // 48 to 72 s, and the retry 1.5 s later at most
		wantCalls(t, f, "1>1", "1>1 +b")
	})
}

// checker reports a service in answer to an empty difference.
type checker struct {
	*fake
	report string
}

func (c *checker) Apply(ctx context.Context, change dataplane.Change) (dataplane.Result, error) {
	result, err := c.fake.Apply(ctx, change)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.report != "" && len(change.Upserts) == 0 {
		result.Failed[c.report] = "found broken"
		result.Failed["nobody-knows"] = "junk"
		c.broken[c.report] = true
		delete(c.services, c.report)
		c.report = ""
	}
	return result, err
}

func TestSyncInterval(t *testing.T) {
	inBubble(t, Options{SyncInterval: 10 * time.Second}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		s.Release()
		n.set("a", 1)
		s.Attach(f, 0)
		time.Sleep(time.Minute + time.Second)
		calls := f.calls()
		if len(calls) < 6 || len(calls) > 9 { // 8 to 12 s each
			t.Errorf("%d calls in a minute", len(calls))
		}
		for _, c := range calls[1:] {
			if got := shape(c); got != "1>1" {
				t.Errorf("check %s", got)
			}
		}
		// Churn does not keep the plugin from checking itself for ever.
		start := time.Now()
		checks := 0
		for i := uint32(0); time.Since(start) < time.Minute; i++ {
			n.set("a", i+10)
			time.Sleep(5 * time.Millisecond)
		}
		for _, c := range f.calls() {
			if len(c.Upserts) == 0 {
				checks++
			}
		}
		if checks < 2 {
			t.Errorf("%d checks in a minute of churn", checks)
		}
	})
}

func TestUnknownOutcomeSendsAll(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		s.Release()
		n.publish([]*catalog.Service{service("a", "ours", 1), service("b", "ours", 1)})
		s.Attach(f, 0)
		time.Sleep(time.Second)
		f.calls()
		var broken atomic.Bool
		broken.Store(true)
		f.change(func() {
			f.before = func(context.Context, dataplane.Change) (bool, error) {
				if broken.Load() {
					return true, errors.New("connection reset")
				}
				return false, nil
			}
		})
		n.set("b", 2)
		since := time.Now()
		synctest.Wait()
		status := s.Status()
		if status.State != StateBackoff || status.LastError != "connection reset" || !status.WaitingSince.Equal(since) {
			t.Errorf("status %+v, want retrying since %v", status, since)
		}
		n.set("c", 1) // does not cut the backoff short
		time.Sleep(time.Minute)
		calls := f.calls()
		if len(calls) < 8 || len(calls) > 14 { // 0.1, 0.2 .. 25.6 s
			t.Errorf("%d tries in a minute", len(calls))
		}
		broken.Store(false)
		time.Sleep(2 * time.Minute)
		calls = f.calls()
		if got := shape(calls[0]); got != "full 3 +a +b +c" {
			t.Errorf("first after recovery: %s", got)
		}
		if got := s.Status(); got.State != StateSynced || got.LastError != "" || !got.WaitingSince.IsZero() {
			t.Errorf("status %+v", got)
		}
	})
}

func TestBaseUnknownSendsAllAtOnce(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		s.Release()
		n.set("a", 1)
		s.Attach(f, 0)
		time.Sleep(time.Second)
		f.change(func() { f.revision = 99 }) // as if the plugin had lost its memory
		n.set("a", 2)
		time.Sleep(11 * time.Millisecond)
		wantCalls(t, f, "full 1 +a", "1>2 +a", "full 2 +a")
	})
}

func TestHang(t *testing.T) {
	var hangs chan int
	options := Options{ApplyTimeout: 3 * time.Second, OnHang: func(_ Applier, n int) { hangs <- n }}
	inBubble(t, options, func(t *testing.T, n *node, s *Session) {
		hangs = make(chan int, 10)
		f := newFake(t)
		f.before = func(ctx context.Context, _ dataplane.Change) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}
		s.Release()
		n.set("a", 1)
		s.Attach(f, 0)
		time.Sleep(7 * time.Second)
		if len(hangs) != 2 || <-hangs != 1 || <-hangs != 2 {
			t.Error("want to be told of the first and the second hang")
		}
		// A new process starts with a clean slate, though the old call hangs.
		g := newFake(t)
		s.Attach(g, 0)
		wantCalls(t, g, "full 1 +a")
		if got := s.Status(); got.State != StateSynced {
			t.Errorf("status %+v", got)
		}
	})
}

func TestNewerCoreOwnsThePlugin(t *testing.T) {
	inBubble(t, Options{SessionNumber: 3}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		f.session = 4
		s.Release()
		n.set("a", 1)
		s.Attach(f, 0)
		time.Sleep(time.Hour)
		wantCalls(t, f, "full 1 +a")
		if got := s.Status(); got.State != StateSuperseded || got.LastError == "" {
			t.Errorf("status %+v", got)
		}
	})
}

func TestHoldAndDetach(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		s.Release()
		n.set("a", 1)
		s.Attach(f, 0)
		time.Sleep(time.Second)
		f.calls()
		s.SetHold(true)
		n.set("a", 2)
		time.Sleep(time.Hour)
		wantCalls(t, f)
		if got := s.Status(); got.State != StateHeld || got.WaitingSince.IsZero() {
			t.Errorf("status %+v", got)
		}
		s.SetHold(false)
		wantCalls(t, f, "1>2 +a")

		s.Detach(newFake(t)) // another's: nothing happens
		if got := s.Status().State; got != StateSynced {
			t.Errorf("state %q after the detach of another plugin", got)
		}
		s.Detach(f)
		n.set("a", 3)
		time.Sleep(time.Hour)
		wantCalls(t, f)
		if got := s.Status(); got.State != StateDisconnected || got.WaitingSince.IsZero() {
			t.Errorf("status %+v", got)
		}
		s.Attach(f, 1)
		wantCalls(t, f, "full 3 +a")
	})
}

func TestPublishWhileDetachingInFlight(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		f.before = func(ctx context.Context, _ dataplane.Change) (bool, error) {
			<-ctx.Done()
			return true, ctx.Err() // it was done, but the answer got lost
		}
		s.Release()
		n.set("a", 1)
		s.Attach(f, 0)
		synctest.Wait()
		s.Detach(f)
		synctest.Wait()
		n.set("a", 2)
		if got := s.Status(); got.FullApplies != 0 || got.Acknowledged != 0 {
			t.Errorf("the answer of a plugin that is gone was believed: %+v", got)
		}
	})
}

// TestForgottenIDs has changes that don't name what they change: the next check
// finds it.
func TestForgottenIDs(t *testing.T) {
	inBubble(t, Options{SyncInterval: time.Minute}, func(t *testing.T, n *node, s *Session) {
		f := newFake(t)
		s.Release()
		n.publish([]*catalog.Service{service("a", "ours", 1), service("b", "ours", 1)})
		s.Attach(f, 0)
		wantCalls(t, f, "full 1 +a +b")
		n.snapshot = n.snapshot.Next(2, time.Now(), []*catalog.Service{service("a", "ours", 2), service("c", "ours", 1)}, []string{"b"})
		s.Publish(catalog.Change{Snapshot: n.snapshot})
		time.Sleep(47 * time.Second)
		wantCalls(t, f)
		time.Sleep(26 * time.Second)
		wantCalls(t, f, "1>1", "1>2 +a +c -b")
	})
}
