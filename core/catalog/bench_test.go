package catalog

import (
	"fmt"
	"testing"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
)

var benchSizes = []int{1_000, 5_000, 20_000}

// big makes a configuration with n services whose VIPs come from a pool, and
// what a source says of them, 10 instances each.
func big(n int) (*config.Config, []*source.Service) {
	cfg := withPool(blocks(), "10.96.0.0/16")
	services := make([]*source.Service, n)
	for i := range n {
		name := fmt.Sprintf("service-%05d", i)
		cfg.Services = append(cfg.Services, block(name))
		services[i] = bigService(name, i, "")
	}
	return cfg, services
}

func bigService(name string, i int, last string) *source.Service {
	s := service(name)
	for k := range 10 {
		text := fmt.Sprintf("10.%d.%d.%d:8080", 100+k, i/250, 1+i%250)
		if k == 9 {
			text += " " + last
		}
		s.Instances = append(s.Instances, instance(text))
	}
	return s
}

// BenchmarkOneChange: one endpoint of one service changes its health. The cost
// must not grow with the number of services.
func BenchmarkOneChange(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg, services := big(n)
			w := newWorld(b, cfg, "consul").read()
			w.say("consul", services...)
			says := [2]source.Changes{
				{Upserts: []*source.Service{bigService(services[n/2].Name, n/2, "critical")}},
				{Upserts: []*source.Service{services[n/2]}},
			}
			w.cat.subscribers = nil
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				w.cat.Change("consul", says[i%2])
				w.cat.step()
				i++
			}
		})
	}
}

// BenchmarkStart: all services come at once, and each gets a lease.
func BenchmarkStart(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg, services := big(n)
			for b.Loop() {
				w := newWorld(b, cfg, "consul").read()
				w.say("consul", services...)
				if got := w.cat.Snapshot().Len(); got != n {
					b.Fatalf("%d services", got)
				}
			}
		})
	}
}

// BenchmarkNewService: one more service comes, with a lease that goes to disk,
// and leaves again.
func BenchmarkNewService(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg, services := big(n)
			w := newWorld(b, cfg, "consul").read()
			w.say("consul", services[1:]...)
			w.cat.subscribers = nil
			for b.Loop() {
				w.say("consul", services[0])
				w.unsay("consul", services[0].Name)
			}
		})
	}
}

// BenchmarkReload: the same configuration again.
func BenchmarkReload(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg, services := big(n)
			w := newWorld(b, cfg, "consul").read()
			w.say("consul", services...)
			revision := w.cat.Snapshot().Revision
			for b.Loop() {
				w.cat.Configure(w.policy)
			}
			if w.cat.Snapshot().Revision != revision {
				b.Fatal("a reload of the same made a revision")
			}
		})
	}
}

// BenchmarkSharedVIP: all services are ports of one VIP, the worst case of the
// search for rivals.
func BenchmarkSharedVIP(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg, services := big(n)
			for i, s := range cfg.Services {
				s.VIP, s.Port = addresses("10.96.0.1"), uint16(i+1)
				if i == 0 {
					s.VIP, s.Dataplane = addresses("10.96.0.1"), "ipvs"
				}
			}
			for b.Loop() {
				w := newWorld(b, cfg, "consul").read()
				w.say("consul", services...)
			}
		})
	}
}
