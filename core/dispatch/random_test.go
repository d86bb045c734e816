package dispatch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

var (
	randomRuns  = flag.Int("random.runs", 60, "how many random histories are played")
	randomSteps = flag.Int("random.steps", 400, "how many steps each of them has")
)

// TestRandomHistories plays random changes, failures, hangs and new processes.
// Whatever comes, once the trouble has ended the plugin carries exactly the
// snapshot; and the fake reports every change that is sent twice, out of
// order, or to a base that isn't there.
func TestRandomHistories(t *testing.T) {
	for range *randomRuns {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			inBubble(t, Options{ApplyTimeout: 2 * time.Second}, func(t *testing.T, n *node, s *Session) {
				playHistory(t, rand.New(rand.NewPCG(seed, 1)), n, s)
			})
		})
	}
}

// trouble is what a plugin does wrong, with the chance of each.
type trouble struct {
	random *rand.Rand // used in calls of Apply alone, which never overlap
	on     atomic.Bool
}

// before makes one call in eight fail in some way.
func (tr *trouble) before(ctx context.Context, change dataplane.Change) (bool, error) {
	if !tr.on.Load() {
		return false, nil
	}
	time.Sleep(time.Duration(tr.random.IntN(40)) * time.Millisecond)
	switch tr.random.IntN(24) {
	case 0:
		return false, errors.New("failed before")
	case 1:
		return true, errors.New("failed after")
	case 2:
		<-ctx.Done()
		return tr.random.IntN(2) == 0, ctx.Err()
	}
	return false, nil
}

// poison refuses one service in ten.
func (tr *trouble) poison(id string) string {
	if tr.on.Load() && tr.random.IntN(10) == 0 {
		return "can't carry " + id
	}
	return ""
}

func playHistory(t *testing.T, random *rand.Rand, n *node, s *Session) {
	tr := &trouble{random: rand.New(rand.NewPCG(random.Uint64(), 2))}
	tr.on.Store(true)
	plug := func(from *fake) *fake {
		f := newFake(t)
		if from != nil { // what is in the kernel outlives the process
			f.services = from.state()
		}
		f.before, f.poison = tr.before, tr.poison
		return f
	}
	plugin := plug(nil)
	s.Attach(plugin, 0)
	for range *randomSteps {
		switch random.IntN(40) {
		case 0:
			s.Detach(plugin)
			plugin = plug(plugin)
		case 1:
			s.Attach(plugin, len(plugin.state()))
		case 2:
			plugin = plug(plugin)
			s.Attach(plugin, len(plugin.state()))
		case 3:
			s.SetHold(true)
		case 4, 5:
			s.SetHold(false)
		case 6:
			s.Release()
		default:
			publishRandom(random, n)
		}
		if random.IntN(3) > 0 {
			time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
		}
		if random.IntN(60) == 0 {
			time.Sleep(time.Duration(random.IntN(90)) * time.Second)
		}
	}
	tr.on.Store(false)
	s.SetHold(false)
	s.Release()
	s.Attach(plugin, 0)
	settleDown(t, n, s, plugin)
}

func publishRandom(random *rand.Rand, n *node) {
	var upserts []*catalog.Service
	var removed []string
	named := map[string]bool{}
	for range 1 + random.IntN(4) {
		id := fmt.Sprint("s", random.IntN(30))
		if named[id] {
			continue
		}
		named[id] = true
		switch {
		case random.IntN(4) == 0:
			removed = append(removed, id)
		case random.IntN(6) == 0:
			upserts = append(upserts, service(id, "other", 1))
		default:
			// Few versions, so that services change back and forth.
			upserts = append(upserts, service(id, "ours", uint32(random.IntN(3))))
		}
	}
	n.publish(upserts, removed...)
}

// settleDown waits out every backoff and compares the plugin with the snapshot.
func settleDown(t *testing.T, n *node, s *Session, plugin *fake) {
	t.Helper()
	n.publish(nil)
	time.Sleep(3 * time.Minute)
	synctest.Wait()
	want := map[string]*dataplane.Service{}
	n.snapshot.All(func(v *catalog.Service) bool {
		if d := n.snapshot.Desired("ours", v.ID); d != nil {
			want[v.ID] = d
		}
		return true
	})
	if diff := cmp.Diff(want, plugin.state(), cmp.Comparer((*dataplane.Service).Equal)); diff != "" {
		t.Errorf("the plugin differs from the snapshot (-want +got):\n%s", diff)
	}
	status := s.Status()
	if status.State != StateSynced || len(status.Failed) > 0 || status.Acknowledged != len(want) ||
		!status.WaitingSince.IsZero() || status.AcknowledgedRevision != n.snapshot.Revision {
		t.Errorf("status %+v, want %d services synced at %d", status, len(want), n.snapshot.Revision)
	}
	for id := range want {
		if ack := s.Acknowledged(id); !ack.Current {
			t.Errorf("%s is not acknowledged: %+v", id, ack)
		}
	}
}
