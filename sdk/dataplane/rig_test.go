package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// patience bounds the wait for a condition; a busy machine doesn't reach it.
const patience = 30 * time.Second

func contextOf(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// rig is a plugin and its host, joined by gRPC over a unix socket.
type rig struct {
	client *dataplane.Client
	server *dataplane.Server
	conn   *grpc.ClientConn
}

func newRig(t testing.TB, d dataplane.Dataplane) *rig {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(dataplane.GRPCServerOptions()...)
	s := dataplane.NewServer(d, dataplane.ServerOptions{Logger: hclog.NewNullLogger()})
	s.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	conn, err := grpc.NewClient("unix:"+socket,
		append(dataplane.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = s.Close(context.Background())
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &rig{client: dataplane.NewClient(conn), server: s, conn: conn}
}

func (r *rig) configure(t testing.TB, json, stateDir string) {
	t.Helper()
	if _, err := r.client.Configure(contextOf(t), dataplane.HostConfig{ConfigJSON: []byte(json), StateDir: stateDir}); err != nil {
		t.Fatal(err)
	}
}

// settings and options of the dataplane that the tests run.
type settings struct {
	Mode  string        `name:"mode" default:"fast" enum:"fast,slow"`
	Wait  time.Duration `name:"wait" default:"1s"`
	Bytes schema.Size   `name:"bytes" default:"1KiB"`
	Count int64         `name:"count"`
}

type options struct {
	Retries int `name:"retries" default:"2" min:"0" max:"10"`
}

// applied is what one Apply was given.
type applied struct {
	Revision          uint64
	Services          []string
	Upserted, Removed []string
}

// recorder is a dataplane that writes down what it is told.
type recorder struct {
	description dataplane.Description
	// onApply, onConfigure and onClose take the place of success.
	onApply     func(context.Context, *dataplane.Update) error
	onConfigure func(dataplane.Config) (dataplane.Adopted, error)
	onClose     func(context.Context, dataplane.CloseMode) error
	drift       chan dataplane.Drift

	mu      sync.Mutex
	applies []applied
	configs []dataplane.Config
	closes  []dataplane.CloseMode
	holds   []bool
	busy    int
	current map[string]*dataplane.Service
}

func newRecorder() *recorder {
	return &recorder{
		description: dataplane.Description{
			Name: "recorder", Version: "1.2.3", Config: &settings{}, Options: &options{},
			Capabilities: dataplane.Capabilities{
				Protocols: []dataplane.Protocol{dataplane.TCP, dataplane.UDP}, Families: []dataplane.Family{dataplane.IPv4},
				FrontendKinds: []dataplane.FrontendKind{dataplane.Virtual, dataplane.Node},
				Balance:       []string{dataplane.BalanceRandom}, Weights: true,
			},
			Privileges: dataplane.Privileges{Capabilities: []string{"CAP_NET_ADMIN"}, Root: true},
		},
		drift: make(chan dataplane.Drift, 10), current: map[string]*dataplane.Service{},
	}
}

func (r *recorder) enter() func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy++; r.busy > 1 {
		panic("calls overlap")
	}
	return func() { r.mu.Lock(); r.busy--; r.mu.Unlock() }
}

func (r *recorder) Describe() dataplane.Description { return r.description }

func (r *recorder) Configure(_ context.Context, c dataplane.Config) (dataplane.Adopted, error) {
	defer r.enter()()
	r.mu.Lock()
	r.configs = append(r.configs, c)
	r.mu.Unlock()
	if r.onConfigure != nil {
		return r.onConfigure(c)
	}
	return dataplane.Adopted{Services: 3}, nil
}

func (r *recorder) Validate(_ context.Context, c dataplane.Config) []dataplane.Diagnostic {
	if s := c.Block.(*settings); s.Count == 13 {
		return []dataplane.Diagnostic{{Warning: true, Summary: "unlucky", Detail: "take 12", Path: []string{"count"}}}
	}
	return nil
}

func (r *recorder) Apply(ctx context.Context, u *dataplane.Update) error {
	defer r.enter()()
	a := applied{Revision: u.Revision(), Services: ids(u.Services()), Upserted: ids(u.Upserted()), Removed: slices.Clone(u.Removed())}
	r.mu.Lock()
	r.applies = append(r.applies, a)
	for _, s := range u.Upserted() {
		r.current[s.ID] = s
	}
	for _, id := range u.Removed() {
		delete(r.current, id)
	}
	r.mu.Unlock()
	if r.onApply != nil {
		return r.onApply(ctx, u)
	}
	return nil
}

func (r *recorder) Close(ctx context.Context, mode dataplane.CloseMode) error {
	defer r.enter()()
	r.mu.Lock()
	r.closes = append(r.closes, mode)
	r.mu.Unlock()
	if r.onClose != nil {
		return r.onClose(ctx, mode)
	}
	return nil
}

func (r *recorder) Hold(_ context.Context, hold bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds = append(r.holds, hold)
	return nil
}

func (r *recorder) Drift() <-chan dataplane.Drift { return r.drift }

func (r *recorder) Inspect(_ context.Context, id string) (string, any, error) {
	switch id {
	case "none":
		return "", nil, fmt.Errorf("looking it up: %w", dataplane.ErrUnknownService)
	case "broken":
		return "", nil, errors.New("the kernel said no")
	}
	return "text of " + id, map[string]any{"id": id, "b": "<&>"}, nil
}

func (r *recorder) Statistics(context.Context) ([]dataplane.ServiceStatistics, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []dataplane.ServiceStatistics
	for id, s := range r.current {
		one := dataplane.ServiceStatistics{ID: id, Counters: dataplane.Counters{Connections: 1, Active: 2, BytesIn: 3, BytesOut: 4, Failed: 5}, Refused: 6}
		for _, e := range s.Endpoints {
			one.Endpoints = append(one.Endpoints, dataplane.EndpointStatistics{Address: e.Address, Counters: one.Counters})
		}
		out = append(out, one)
	}
	return out, nil
}

// last gives what the newest Apply was given.
func (r *recorder) last(t testing.TB) applied {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.applies) == 0 {
		t.Fatal("no Apply")
	}
	return r.applies[len(r.applies)-1]
}

func ids(services []*dataplane.Service) []string {
	var out []string
	for _, s := range services {
		out = append(out, s.ID)
	}
	return out
}

// service makes a service that is told apart by its number of endpoints.
func service(id string, endpoints int) *dataplane.Service {
	s := &dataplane.Service{
		ID:        id,
		Frontends: []dataplane.Frontend{{Kind: dataplane.Virtual, Address: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: dataplane.TCP}},
		OnEmpty:   dataplane.EmptyReject, OnDrainEnd: dataplane.DrainEndKeep, Masquerade: dataplane.MasqueradeAuto,
	}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, dataplane.Endpoint{
			Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080),
			Weight:  1, State: dataplane.StateActive, Zone: "eu-1a", Node: fmt.Sprintf("node-%d", i%100),
		})
	}
	return s
}
