package dataplane_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// quiet is a dataplane that does nothing.
type quiet struct{ dataplane.Description }

func (q quiet) Describe() dataplane.Description { return q.Description }
func (quiet) Configure(context.Context, dataplane.Config) (dataplane.Adopted, error) {
	return dataplane.Adopted{}, nil
}
func (quiet) Apply(context.Context, *dataplane.Update) error   { return nil }
func (quiet) Close(context.Context, dataplane.CloseMode) error { return nil }
func newQuiet() quiet                                          { return quiet{dataplane.Description{Name: "quiet", Version: "1.0.0"}} }
func many(n int) (out []*dataplane.Service) {
	for i := range n {
		out = append(out, service(fmt.Sprintf("service-%d", i), 10))
	}
	return out
}

// BenchmarkApplyFull: everything to a plugin that holds nothing, and again to
// one that holds it.
func BenchmarkApplyFull(b *testing.B) {
	for _, n := range []int{2_000, 10_000} {
		b.Run(fmt.Sprintf("%dx10", n), func(b *testing.B) {
			r := newRig(b, newQuiet())
			r.configure(b, "", "")
			services, revision := many(n), uint64(0)
			defer reportCPU(b)()
			for b.Loop() {
				revision++
				if _, err := r.client.Apply(context.Background(), dataplane.Change{Revision: revision, Full: true, Upserts: services}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkApplyDifference: one service of ten endpoints changes. The time must
// not depend on the number of services that the plugin holds.
func BenchmarkApplyDifference(b *testing.B) {
	for _, n := range []int{10, 2_000, 20_000} {
		b.Run(fmt.Sprintf("of%d", n), func(b *testing.B) {
			r := newRig(b, newQuiet())
			r.configure(b, "", "")
			revision := uint64(1)
			if _, err := r.client.Apply(context.Background(), dataplane.Change{Revision: revision, Full: true, Upserts: many(n)}); err != nil {
				b.Fatal(err)
			}
			versions := []*dataplane.Service{service("service-5", 9), service("service-5", 10)}
			defer reportCPU(b)()
			for b.Loop() {
				change := dataplane.Change{Revision: revision + 1, Base: revision, Upserts: versions[revision%2 : revision%2+1]}
				if _, err := r.client.Apply(context.Background(), change); err != nil {
					b.Fatal(err)
				}
				revision++
			}
		})
	}
}

// reportCPU tells the processor time of both ends, which a busy machine changes
// less than the time on the clock.
func reportCPU(b *testing.B) func() {
	used := func() (us int64) {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return r.Utime.Nano()/1000 + r.Stime.Nano()/1000
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-us/op") }
}
