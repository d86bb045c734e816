package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/patchbay-proxy/patchbay/sdk/proto/patchbay/dataplane/v1"
)

// kernel is a dataplane that writes only what an update says has changed, and
// sometimes fails in the middle, having written a part.
type kernel struct {
	random *rand.Rand
	// holds is what is in force, by its number of endpoints.
	holds map[string]int
	// trouble is the chance in percent that an update, or a service, fails.
	trouble int
	failed  map[string]bool
}

func (k *kernel) Describe() Description                              { return Description{Name: "kernel", Version: "1.0.0"} }
func (k *kernel) Configure(context.Context, Config) (Adopted, error) { return Adopted{}, nil }
func (k *kernel) Close(context.Context, CloseMode) error             { return nil }
func (k *kernel) unlucky() bool                                      { return k.random.IntN(100) < k.trouble }
func (k *kernel) write(s *Service)                                   { k.holds[s.ID] = len(s.Endpoints) }
func (k *kernel) half() bool                                         { return k.random.IntN(2) == 0 }

func (k *kernel) Apply(_ context.Context, u *Update) error {
	k.failed = map[string]bool{}
	if k.unlucky() {
		for _, s := range u.Upserted() {
			if k.half() {
				k.write(s)
			}
		}
		for _, id := range u.Removed() {
			if k.half() {
				delete(k.holds, id)
			}
		}
		return errors.New("the kernel said no, half way")
	}
	for _, s := range u.Upserted() {
		if k.unlucky() {
			u.Fail(s.ID, errors.New("not this one"))
			k.failed[s.ID] = true
			if !k.half() {
				continue
			}
		}
		k.write(s)
	}
	for _, id := range u.Removed() {
		if k.unlucky() {
			u.Fail(id, errors.New("it stays"))
			k.failed[id] = true
			continue
		}
		delete(k.holds, id)
	}
	return nil
}

// host keeps to the core's part: a difference against what was acknowledged,
// what failed again with it, everything after an unknown outcome.
type host struct {
	known    bool
	revision uint64
	pending  map[string]bool
	wants    map[string]int
}

func (h *host) change(random *rand.Rand) *transaction {
	h.revision++
	for range random.IntN(4) {
		id := fmt.Sprintf("s%d", random.IntN(12))
		if random.IntN(3) == 0 {
			delete(h.wants, id)
		} else {
			h.wants[id] = random.IntN(3)
		}
		h.pending[id] = true
	}
	tx := &transaction{revision: h.revision, base: h.revision - 1, full: !h.known, upserts: map[string]*Service{}}
	send := slices.Collect(maps.Keys(h.pending))
	if tx.full {
		send = slices.Collect(maps.Keys(h.wants))
	}
	for _, id := range send {
		n, ok := h.wants[id]
		if !ok {
			tx.deletes = append(tx.deletes, id)
			continue
		}
		tx.order = append(tx.order, id)
		tx.upserts[id] = numbered(id, n)
	}
	return tx
}

func numbered(id string, endpoints int) *Service {
	s := &Service{ID: id}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, Endpoint{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)})
	}
	return s
}

// TestUpdatesAreEnough: a dataplane that writes only Upserted and Removed holds
// what the host wants after every success, whatever failed before.
func TestUpdatesAreEnough(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		k := &kernel{random: random, holds: map[string]int{}, trouble: random.IntN(40)}
		s := NewServer(k, ServerOptions{Logger: hclog.NewNullLogger()})
		if _, err := s.Configure(context.Background(), &pb.ConfigureRequest{}); err != nil {
			t.Fatal(err)
		}
		h := &host{pending: map[string]bool{}, wants: map[string]int{}}
		for range 100 {
			tx := h.change(random)
			response, err := s.commit(context.Background(), tx)
			if h.known = err == nil; err != nil {
				if status.Code(err) != codes.Unknown {
					t.Fatalf("seed %d: %v", seed, err)
				}
				continue
			}
			h.pending = map[string]bool{}
			for _, e := range response.GetErrors() {
				h.pending[e.GetId()] = true
			}
			if diff := cmp.Diff(k.failed, h.pending); diff != "" {
				t.Fatalf("seed %d: failures (-told +heard)\n%s", seed, diff)
			}
			wants, holds := maps.Clone(h.wants), maps.Clone(k.holds)
			for id := range h.pending {
				delete(wants, id)
				delete(holds, id)
			}
			if diff := cmp.Diff(wants, holds); diff != "" {
				t.Fatalf("seed %d, revision %d: (-wanted +held)\n%s", seed, h.revision, diff)
			}
		}
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGivenUpBeforeItsTurn: an Apply whose host doesn't wait any more changes
// nothing, also when its turn comes at the same moment.
func TestGivenUpBeforeItsTurn(t *testing.T) {
	k := &kernel{random: rand.New(rand.NewPCG(1, 1)), holds: map[string]int{}}
	s := NewServer(k, ServerOptions{Logger: hclog.NewNullLogger()})
	if _, err := s.Configure(context.Background(), &pb.ConfigureRequest{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 100 { // the turn is free and the context is over: either may be seen first
		tx := &transaction{full: true, order: []string{"a"}, upserts: map[string]*Service{"a": numbered("a", 1)}}
		if _, err := s.commit(ctx, tx); status.Code(err) != codes.Canceled || len(k.holds) > 0 {
			t.Fatalf("got %v, %v", err, k.holds)
		}
	}
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func address4(b ...byte) []byte { return b }

func validService() *pb.Service {
	return &pb.Service{
		Id:        "a",
		Frontends: []*pb.Frontend{{Kind: 1, Address: address4(10, 0, 0, 1), Port: 80, Protocol: 1}},
		Endpoints: []*pb.Endpoint{{Address: address4(10, 0, 0, 2), Port: 80, State: 1, Weight: 1}},
	}
}

// TestStrictness: what the contract doesn't allow is refused with its place.
func TestStrictness(t *testing.T) {
	one := func(change func(*pb.Service)) []*pb.ApplyRequest {
		s := validService()
		change(s)
		return []*pb.ApplyRequest{{Begin: &pb.Begin{Full: true}, Upserts: []*pb.Upsert{{Service: s}}, Commit: true}}
	}
	upsert := func(s *pb.Service) *pb.Upsert { return &pb.Upsert{Service: s} }
	more := func(s *pb.Service) *pb.Upsert { return &pb.Upsert{Service: s, MoreEndpoints: true} }
	begin := &pb.Begin{}
	for _, c := range []struct {
		name     string
		messages []*pb.ApplyRequest
		want     string
	}{
		{"valid", one(func(*pb.Service) {}), ""},
		{"no begin", []*pb.ApplyRequest{{Commit: true}}, "the first message has no begin"},
		{"two begins", []*pb.ApplyRequest{{Begin: begin}, {Begin: begin, Commit: true}}, "a second begin"},
		{"after commit", []*pb.ApplyRequest{{Begin: begin, Commit: true}, {}}, "a message after the commit"},
		{"no service", []*pb.ApplyRequest{{Begin: begin, Upserts: []*pb.Upsert{{}}}}, "an upsert without a service"},
		{"empty id", one(func(s *pb.Service) { s.Id = "" }), "the id of a service has 1 to 253 characters, not 0"},
		{"long id", one(func(s *pb.Service) { s.Id = string(make([]byte, 254)) }), "the id of a service has 1 to 253 characters, not 254"},
		{"slash", one(func(s *pb.Service) { s.Id = "a/b" }), `service "a/b": the id may hold A-Z, a-z, 0-9, '.', '_' and '-' only`},
		{"deleted slash", []*pb.ApplyRequest{{Begin: begin, Deletes: []string{"a/b"}}}, `service "a/b": the id may hold A-Z, a-z, 0-9, '.', '_' and '-' only`},
		{"address", one(func(s *pb.Service) { s.Frontends[0].Address = address4(1, 2, 3) }), "service a: frontend 0: an address has 4 or 16 bytes, not 3"},
		{"mapped", one(func(s *pb.Service) {
			s.Endpoints[0].Address = address4(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 1, 2, 3, 4)
		}),
			"service a: endpoint 0: the IPv4 address 1.2.3.4 must be sent with 4 bytes"},
		{"port 0", one(func(s *pb.Service) { s.Frontends[0].Port = 0 }), "service a: frontend 0: a port is 1 to 65535, not 0"},
		{"port 65536", one(func(s *pb.Service) { s.Endpoints[0].Port = 65536 }), "service a: endpoint 0: a port is 1 to 65535, not 65536"},
		{"no kind", one(func(s *pb.Service) { s.Frontends[0].Kind = 0 }), "service a: frontend 0: unknown kind 0"},
		{"protocol", one(func(s *pb.Service) { s.Frontends[0].Protocol = 99 }), "service a: frontend 0: unknown protocol 99"},
		{"state", one(func(s *pb.Service) { s.Endpoints[0].State = -1 }), "service a: endpoint 0: unknown state -1"},
		{"deadline", one(func(s *pb.Service) { s.Endpoints[0].DrainDeadline = &timestamppb.Timestamp{Nanos: -1} }),
			"service a: endpoint 0: the drain deadline is no valid time"},
		{"on empty", one(func(s *pb.Service) { s.OnEmpty = 3 }), "service a: unknown empty action 3"},
		{"masquerade", one(func(s *pb.Service) { s.Masquerade = 4 }), "service a: unknown masquerade policy 4"},
		{"drain end", one(func(s *pb.Service) { s.OnDrainEnd = -5 }), "service a: unknown drain end action -5"},
		{"affinity", one(func(s *pb.Service) { s.Affinity = &durationpb.Duration{Seconds: -1} }), "service a: affinity: -1s is below zero"},
		{"allow", one(func(s *pb.Service) { s.Allow = []string{"10.0.0.0"} }), `service a: allowed source: netip.ParsePrefix("10.0.0.0"): no '/'`},
		{"twice", []*pb.ApplyRequest{{Begin: begin, Upserts: []*pb.Upsert{upsert(validService()), upsert(validService())}}}, "service a: named twice in one Apply"},
		{"deleted twice", []*pb.ApplyRequest{{Begin: begin, Deletes: []string{"a", "a"}}}, "service a: named twice in one Apply"},
		{"both", []*pb.ApplyRequest{{Begin: begin, Upserts: []*pb.Upsert{upsert(validService())}, Deletes: []string{"a"}}}, "service a: named twice in one Apply"},
		{"full with deletes", []*pb.ApplyRequest{{Begin: &pb.Begin{Full: true}, Deletes: []string{"a"}}}, "service a: a full Apply has no deletes"},
		{"more of nothing", []*pb.ApplyRequest{{Begin: begin, Upserts: []*pb.Upsert{more(&pb.Service{Id: "a"})}}},
			"service a: more endpoints without an upsert before"},
		{"more than endpoints", []*pb.ApplyRequest{{Begin: begin, Upserts: []*pb.Upsert{upsert(validService()), more(validService())}}},
			"service a: more endpoints come with an id and endpoints alone"},
		{"more, later", []*pb.ApplyRequest{{Begin: begin, Upserts: []*pb.Upsert{upsert(validService())}},
			{Upserts: []*pb.Upsert{more(&pb.Service{Id: "a", Endpoints: []*pb.Endpoint{{Address: address4(1, 2, 3, 4), Port: 1, State: 2}}})}, Commit: true}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			collector, got := newCollector(), ""
			for _, m := range c.messages {
				if err := collector.add(m); err != nil {
					got = err.Error()
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// FuzzApply sends any bytes as the messages of Apply calls, and then an Apply
// that must be answered.
func FuzzApply(f *testing.F) {
	seed := func(messages ...*pb.ApplyRequest) {
		var data []byte
		for _, m := range messages {
			b, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			data = binary.BigEndian.AppendUint16(data, uint16(len(b)))
			data = append(data, b...)
		}
		f.Add(data)
	}
	a := validService()
	b := &pb.Service{Id: "b", OptionsJson: []byte(`{"retries":1}`), Allow: []string{"::/0"}, Affinity: durationpb.New(5)}
	seed(&pb.ApplyRequest{Begin: &pb.Begin{Full: true, Revision: 1}, Upserts: []*pb.Upsert{{Service: a}, {Service: b}}, Commit: true},
		&pb.ApplyRequest{Begin: &pb.Begin{Revision: 2, Base: 1}, Deletes: []string{"a"}, Commit: true})
	seed(&pb.ApplyRequest{Begin: &pb.Begin{Full: true}, Upserts: []*pb.Upsert{{Service: a}}},
		&pb.ApplyRequest{Upserts: []*pb.Upsert{{Service: &pb.Service{Id: "a", Endpoints: a.Endpoints}, MoreEndpoints: true}}, Commit: true})
	f.Add([]byte{0, 0, 0, 1, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		k := &kernel{random: rand.New(rand.NewPCG(1, 1)), holds: map[string]int{}}
		s := NewServer(k, ServerOptions{Logger: hclog.NewNullLogger()})
		if _, err := s.Configure(context.Background(), &pb.ConfigureRequest{}); err != nil {
			t.Fatal(err)
		}
		c := newCollector()
		for len(data) >= 2 {
			n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
			m := &pb.ApplyRequest{}
			err := proto.Unmarshal(data[2:2+n], m)
			data = data[2+n:]
			if err != nil || c.add(m) != nil {
				c = newCollector()
				continue
			}
			if c.committed {
				_, _ = s.commit(context.Background(), &c.transaction)
				c = newCollector()
			}
		}
		last := &transaction{session: 1<<64 - 1, full: true, order: []string{"z"}, upserts: map[string]*Service{"z": numbered("z", 2)}}
		if _, err := s.commit(context.Background(), last); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]int{"z": 2}, k.holds); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzHost gives a host any bytes as a plugin's answers.
func FuzzHost(f *testing.F) {
	d, err := encodeDescription(Description{Name: "kernel", Version: "1.0.0", Config: struct {
		A []string `name:"a" default:"[]"`
	}{}})
	if err != nil {
		f.Fatal(err)
	}
	data, err := proto.Marshal(d)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), []byte{18, 2, 16, 9}))
	f.Fuzz(func(t *testing.T, data []byte) {
		var description pb.DescribeResponse
		if proto.Unmarshal(data, &description) == nil {
			if d, err := decodeDescription(&description); err == nil {
				if err := d.ConfigSchema.Validate(); err != nil {
					t.Errorf("a schema that isn't valid was taken: %v", err)
				}
			}
		}
		var event pb.WatchResponse
		if proto.Unmarshal(data, &event) == nil {
			_, _ = decodeEvent(&event)
		}
		var applied pb.ApplyResponse
		if proto.Unmarshal(data, &applied) == nil {
			w := changeWriter{unsent: map[string]string{}}
			_, _ = w.result(&applied)
		}
	})
}
