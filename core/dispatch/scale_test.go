package dispatch

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// manyServices makes that many services of ten endpoints each.
func manyServices(count int) []*catalog.Service {
	services := make([]*catalog.Service, count)
	for i := range services {
		services[i] = tenEndpoints(i, 1)
	}
	return services
}

func tenEndpoints(i int, weight uint32) *catalog.Service {
	id := fmt.Sprintf("service-%05d", i)
	desired := &dataplane.Service{ID: id, OnEmpty: dataplane.EmptyReject, Masquerade: dataplane.MasqueradeAuto, OnDrainEnd: dataplane.DrainEndKeep}
	vip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
	desired.Frontends = []dataplane.Frontend{{Kind: dataplane.Virtual, Address: vip, Port: 80, Protocol: dataplane.TCP}}
	for e := range 10 {
		address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(e), byte(i >> 8), byte(i)}), 8080)
		desired.Endpoints = append(desired.Endpoints, dataplane.Endpoint{Address: address, Weight: weight, State: dataplane.StateActive, Zone: "a"})
	}
	return &catalog.Service{ID: id, Dataplane: "ours", Desired: desired}
}

// TestOneOfMany counts what a change of one service sends, whatever the number
// of services.
func TestOneOfMany(t *testing.T) {
	for _, count := range []int{1, 1000, 20000} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, n *node, s *Session) {
				f := newFake(t)
				s.Release()
				n.publish(manyServices(count))
				s.Attach(f, 0)
				time.Sleep(time.Second)
				if calls := f.calls(); len(calls) != 1 || len(calls[0].Upserts) != count {
					t.Fatalf("first: %d calls", len(calls))
				}
				n.publish([]*catalog.Service{tenEndpoints(0, 2)})
				time.Sleep(time.Second)
				wantCalls(t, f, "1>2 +service-00000")
				status := s.Status()
				if status.ServicesUpserted != uint64(count)+1 || status.DifferenceApplies != 1 || status.FullApplies != 1 {
					t.Errorf("status %+v", status)
				}
			})
		})
	}
}

// instant is a plugin that does nothing.
type instant struct{}

func (instant) Apply(_ context.Context, c dataplane.Change) (dataplane.Result, error) {
	return dataplane.Result{Revision: c.Revision}, nil
}

// BenchmarkOneChange is the way of one service's change through a session: the
// snapshot, Publish, the difference and its acknowledgement. The time of one
// must not grow with the number of services.
func BenchmarkOneChange(b *testing.B) {
	for _, count := range []int{1000, 5000, 20000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			acks := make(chan Applied, 1)
			n, stop := startBenchmark(b, instant{}, acks)
			defer stop()
			n.publish(manyServices(count))
			<-acks
			b.ResetTimer()
			for i := range b.N {
				n.publish([]*catalog.Service{tenEndpoints(i%count, uint32(i)+2)})
				<-acks
			}
		})
	}
}

// startBenchmark runs a session that doesn't rest.
func startBenchmark(b *testing.B, plugin Applier, acks chan Applied) (*node, func()) {
	s := New(Options{
		Dataplane: "ours", SessionNumber: 1, SyncInterval: time.Hour, MinInterval: time.Nanosecond,
		OnApplied: func(a Applied) {
			if a.Err != nil {
				b.Error(a.Err)
			}
			acks <- a
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	s.Release()
	s.Attach(plugin, 0)
	return newNode(s), func() { cancel(); <-done }
}

// BenchmarkFull is the first Apply, of all services.
func BenchmarkFull(b *testing.B) {
	for _, count := range []int{1000, 5000, 20000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			acks := make(chan Applied, 1)
			n, stop := startBenchmark(b, instant{}, acks)
			defer stop()
			n.publish(manyServices(count))
			<-acks
			b.ResetTimer()
			for range b.N {
				n.session.Attach(instant{}, 0)
				<-acks
			}
		})
	}
}
