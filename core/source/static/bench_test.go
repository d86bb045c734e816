package static

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
)

// BenchmarkCheck is what one check of an endpoint costs, both ends on this
// machine: 10,000 endpoints every 5 s are 2,000 of them a second.
func BenchmarkCheck(b *testing.B) {
	for _, test := range []struct {
		name   string
		check  *config.Check
		handle func(net.Conn)
	}{
		{"tcp", &config.Check{TCP: true, Timeout: 10 * time.Second}, func(net.Conn) {}},
		{"http", &config.Check{HTTP: "/health", Timeout: 10 * time.Second}, answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")},
	} {
		b.Run(test.name, func(b *testing.B) {
			address, stop := serve(b, test.handle)
			defer stop()
			at := netip.MustParseAddrPort(address)
			s := New(Options{})
			b.ReportAllocs()
			for b.Loop() {
				if err := s.probe(b.Context(), test.check, "127.0.0.1", at); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkScheduler is what it costs to find the next of 10,000 endpoints.
func BenchmarkScheduler(b *testing.B) {
	s := newScheduler(1)
	for i := range 10_000 {
		s.add(&task{index: -1}, time.Duration(i)*time.Nanosecond)
	}
	time.Sleep(time.Millisecond)
	for b.Loop() {
		due, _ := s.take()
		s.done(due[0], 0)
	}
}
