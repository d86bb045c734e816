package dispatch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/core/pluginhost"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// withNullPlugin builds the example plugin that carries nothing, and runs it as
// the agent does.
func withNullPlugin(tb testing.TB, use func(client *dataplane.Client)) {
	tb.Helper()
	dir := tb.TempDir()
	const name = "patchbay-dataplane-null_v1.0.0"
	build := exec.Command("go", "build", "-o", filepath.Join(dir, name), ".")
	build.Dir = filepath.Join("..", "..", "examples", "null")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("building the null plugin: %v\n%s", err, out)
	}
	if err := os.Chmod(filepath.Join(dir, name), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	binaries, refusals, err := pluginhost.Find(dir, "null")
	if err != nil || len(binaries) != 1 {
		tb.Fatalf("finding the null plugin: %v %v", refusals, err)
	}
	err = pluginhost.Probe(context.Background(), binaries[0], pluginhost.ProbeOptions{}, func(ctx context.Context, p *pluginhost.Process) error {
		config, err := p.Description().ConfigSchema.FromUser([]byte("{}"))
		if err != nil {
			return err
		}
		if _, err := p.Client().Configure(ctx, dataplane.HostConfig{ConfigJSON: config}); err != nil {
			return err
		}
		use(p.Client())
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// TestRealPlugin sends a thousand services to a process, and then one.
func TestRealPlugin(t *testing.T) {
	withNullPlugin(t, func(client *dataplane.Client) {
		acks := make(chan Applied, 1)
		s := New(Options{Dataplane: "ours", SessionNumber: 1, SyncInterval: time.Hour, OnApplied: func(a Applied) { acks <- a }})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		n := newNode(s)
		n.publish(manyServices(1000))
		s.Release()
		s.Attach(client, 0)
		if a := wantApplied(t, acks); !a.Full || a.Upserts != 1000 || a.Failed != 0 || a.Err != nil {
			t.Errorf("first apply %+v", a)
		}
		n.publish([]*catalog.Service{tenEndpoints(7, 2)})
		if a := wantApplied(t, acks); a.Full || a.Upserts != 1 || a.Failed != 0 || a.Err != nil {
			t.Errorf("second apply %+v", a)
		}
		n.publish(nil, "service-00007")
		if a := wantApplied(t, acks); a.Full || a.Deletes != 1 || a.Upserts != 0 || a.Err != nil {
			t.Errorf("third apply %+v", a)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func wantApplied(t *testing.T, acks <-chan Applied) Applied {
	t.Helper()
	select {
	case a := <-acks:
		return a
	case <-time.After(30 * time.Second):
		t.Fatal("no answer from the plugin")
		return Applied{}
	}
}

// BenchmarkRealPlugin has the first Apply and one service's change go to a
// process that carries nothing.
func BenchmarkRealPlugin(b *testing.B) {
	for _, count := range []int{1000, 5000, 20000} {
		b.Run(fmt.Sprintf("full/%d", count), func(b *testing.B) {
			withNullPlugin(b, func(client *dataplane.Client) {
				acks := make(chan Applied, 1)
				n, stop := startBenchmark(b, client, acks)
				defer stop()
				n.publish(manyServices(count))
				<-acks
				b.ResetTimer()
				for range b.N {
					n.session.Attach(client, 0)
					<-acks
				}
				b.StopTimer()
			})
		})
		b.Run(fmt.Sprintf("one/%d", count), func(b *testing.B) {
			withNullPlugin(b, func(client *dataplane.Client) {
				acks := make(chan Applied, 1)
				n, stop := startBenchmark(b, client, acks)
				defer stop()
				n.publish(manyServices(count))
				<-acks
				b.ResetTimer()
				for i := range b.N {
					n.publish([]*catalog.Service{tenEndpoints(i%count, uint32(i)+2)})
					<-acks
				}
				b.StopTimer()
			})
		})
	}
}
