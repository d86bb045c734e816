package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	pb "github.com/patchbay-proxy/patchbay/sdk/proto/patchbay/dataplane/v1"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

var addressesCompare = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})

func TestDescribe(t *testing.T) {
	d := newRecorder()
	got, err := newRig(t, d).client.Describe(contextOf(t))
	if err != nil {
		t.Fatal(err)
	}
	configSchema, _ := schema.Of(settings{})
	optionsSchema, _ := schema.Of(options{})
	want := &dataplane.HostDescription{Description: d.description, ConfigSchema: configSchema, OptionsSchema: optionsSchema, Protocol: 1}
	want.Config, want.Options = nil, nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDescribeRefuses(t *testing.T) {
	for name, change := range map[string]func(*dataplane.Description){
		"name":    func(d *dataplane.Description) { d.Name = "No Name" },
		"version": func(d *dataplane.Description) { d.Version = "v1" },
		"schema":  func(d *dataplane.Description) { d.Config = 5 },
		"options": func(d *dataplane.Description) { d.Options = struct{ A int }{} },
		"reserved": func(d *dataplane.Description) {
			d.Config = struct {
				A string `name:"sha256"`
			}{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newRecorder()
			change(&d.description)
			if got, err := newRig(t, d).client.Describe(contextOf(t)); err == nil {
				t.Errorf("accepted: %+v", got)
			}
		})
	}
}

func TestConfigure(t *testing.T) {
	d, dir := newRecorder(), t.TempDir()
	r := newRig(t, d)
	got, err := r.client.Configure(contextOf(t), dataplane.HostConfig{
		ConfigJSON: []byte(`{"mode":"slow","count":9223372036854775807}`), StateDir: dir,
		NodeAddresses: []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("2001:db8::5")},
		Pools:         []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		LocalNetworks: []netip.Prefix{netip.MustParsePrefix("172.17.0.1/16")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Services != 3 {
		t.Errorf("adopted %d", got.Services)
	}
	want := dataplane.Config{
		Block:    &settings{Mode: "slow", Wait: time.Second, Bytes: 1024, Count: 1<<63 - 1},
		StateDir: dir, NodeAddresses: []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("2001:db8::5")},
		Pools: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, LocalNetworks: []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16")},
	}
	if diff := cmp.Diff(want, d.configs[0], addressesCompare); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for name, c := range map[string]struct {
		config dataplane.HostConfig
		want   string
	}{
		"unknown":  {dataplane.HostConfig{ConfigJSON: []byte(`{"mod":1}`)}, "mod: unknown argument"},
		"garbage":  {dataplane.HostConfig{ConfigJSON: []byte("\xff")}, "no valid UTF-8"},
		"relative": {dataplane.HostConfig{StateDir: "state"}, "absolute"},
	} {
		_, err := r.client.Configure(contextOf(t), c.config)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(d.configs) != 1 {
		t.Errorf("a wrong configuration reached the dataplane")
	}
}

func TestValidateConfig(t *testing.T) {
	r := newRig(t, newRecorder())
	for _, c := range []struct {
		json string
		want []dataplane.Diagnostic
	}{
		{`{}`, nil},
		{`{"count":13}`, []dataplane.Diagnostic{{Warning: true, Summary: "unlucky", Detail: "take 12", Path: []string{"count"}}}},
		{`{"mode":"x","y":1}`, []dataplane.Diagnostic{
			{Summary: "unknown argument", Path: []string{"y"}},
			{Summary: `must be one of "fast", "slow", not "x"`, Path: []string{"mode"}},
		}},
		{`[]`, []dataplane.Diagnostic{{Summary: "must be an object, not a list"}}},
	} {
		got, err := r.client.ValidateConfig(contextOf(t), []byte(c.json))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.json, diff)
		}
	}
}

// step is one Apply and what the author's code was given for it.
type step struct {
	name   string
	change dataplane.Change
	// err and fail are what the dataplane answers.
	err  error
	fail []string

	want    applied
	wantErr error // nil with a failing dataplane: any error
	result  dataplane.Result
}

func TestApplySteps(t *testing.T) {
	a1, a2, b1, c1 := service("a", 1), service("a", 2), service("b", 1), service("c", 1)
	upserts := func(s ...*dataplane.Service) []*dataplane.Service { return s }
	broken := errors.New("broken")
	full := func(revision uint64, s ...*dataplane.Service) dataplane.Change {
		return dataplane.Change{Revision: revision, Full: true, Upserts: s}
	}
	for name, steps := range map[string][]step{
		"differences": {
			{name: "no base yet", change: dataplane.Change{Revision: 1, Upserts: upserts(a1)}, wantErr: dataplane.ErrBaseUnknown},
			{name: "all", change: full(1, b1, a1), want: applied{1, []string{"a", "b"}, []string{"a", "b"}, nil},
				result: dataplane.Result{Upserted: 2}},
			{name: "another base", change: dataplane.Change{Revision: 3, Base: 2, Upserts: upserts(a2)}, wantErr: dataplane.ErrBaseUnknown},
			{name: "one", change: dataplane.Change{Revision: 2, Base: 1, Upserts: upserts(a2)},
				want: applied{2, []string{"a", "b"}, []string{"a"}, nil}, result: dataplane.Result{Upserted: 1}},
			{name: "the same again", change: dataplane.Change{Revision: 3, Base: 2, Upserts: upserts(service("a", 2))},
				want: applied{3, []string{"a", "b"}, nil, nil}},
			{name: "nothing", change: dataplane.Change{Revision: 3, Base: 3}, want: applied{3, []string{"a", "b"}, nil, nil}},
			{name: "both", change: dataplane.Change{Revision: 4, Base: 3, Upserts: upserts(c1), Deletes: []string{"a", "never"}},
				want: applied{4, []string{"b", "c"}, []string{"c"}, []string{"a"}}, result: dataplane.Result{Upserted: 1, Removed: 1}},
			{name: "all again", change: full(5, service("b", 1), a1), want: applied{5, []string{"a", "b"}, []string{"a"}, []string{"c"}},
				result: dataplane.Result{Upserted: 1, Removed: 1}},
		},
		"a service that fails": {
			{name: "first", change: full(1, a1, b1), fail: []string{"a"}, want: applied{1, []string{"a", "b"}, []string{"a", "b"}, nil},
				result: dataplane.Result{Upserted: 1, Failed: map[string]string{"a": "no a"}}},
			{name: "not sent again", change: dataplane.Change{Revision: 2, Base: 1, Upserts: upserts(c1)},
				want: applied{2, []string{"a", "b", "c"}, []string{"c"}, nil}, result: dataplane.Result{Upserted: 1}},
			{name: "sent again, unchanged", change: dataplane.Change{Revision: 3, Base: 2, Upserts: upserts(service("a", 1), b1)},
				want: applied{3, []string{"a", "b", "c"}, []string{"a"}, nil}, result: dataplane.Result{Upserted: 1}},
			{name: "and again", change: dataplane.Change{Revision: 4, Base: 3, Upserts: upserts(a1)}, want: applied{4, []string{"a", "b", "c"}, nil, nil}},
			{name: "removal fails", change: dataplane.Change{Revision: 5, Base: 4, Deletes: []string{"a"}}, fail: []string{"a"},
				want: applied{5, []string{"b", "c"}, nil, []string{"a"}}, result: dataplane.Result{Failed: map[string]string{"a": "no a"}}},
			{name: "removed again", change: dataplane.Change{Revision: 6, Base: 5, Deletes: []string{"a"}},
				want: applied{6, []string{"b", "c"}, nil, []string{"a"}}, result: dataplane.Result{Removed: 1}},
			{name: "in a full one, found while checking", change: full(7, b1, c1), fail: []string{"b", "stranger"},
				want: applied{7, []string{"b", "c"}, nil, nil}, result: dataplane.Result{Failed: map[string]string{"b": "no b"}}},
			{name: "full again", change: full(8, b1, c1), want: applied{8, []string{"b", "c"}, []string{"b"}, nil}, result: dataplane.Result{Upserted: 1}},
		},
		"an update that fails": {
			{name: "first", change: full(1, a1, b1), want: applied{1, []string{"a", "b"}, []string{"a", "b"}, nil}, result: dataplane.Result{Upserted: 2}},
			{name: "fails", change: dataplane.Change{Revision: 2, Base: 1, Upserts: upserts(a2, c1), Deletes: []string{"b"}}, err: broken,
				want: applied{2, []string{"a", "c"}, []string{"a", "c"}, []string{"b"}}},
			{name: "its base is gone", change: dataplane.Change{Revision: 3, Base: 1, Upserts: upserts(a2)}, wantErr: dataplane.ErrBaseUnknown},
			{name: "so is it", change: dataplane.Change{Revision: 3, Base: 2}, wantErr: dataplane.ErrBaseUnknown},
			{name: "fails again, with what came before", change: full(3, a1, b1), err: broken,
				want: applied{3, []string{"a", "b"}, []string{"a", "b"}, []string{"c"}}},
			{name: "all that is in doubt", change: full(4, a1), want: applied{4, []string{"a"}, []string{"a"}, []string{"b", "c"}},
				result: dataplane.Result{Upserted: 1, Removed: 2}},
			{name: "no doubt left", change: full(5, a1), want: applied{5, []string{"a"}, nil, nil}},
		},
		"a service that can't be": {
			{name: "options of its own", change: full(1, withOptions("a", `{"retries":11}`), b1), want: applied{1, []string{"b"}, []string{"b"}, nil},
				result: dataplane.Result{Upserted: 1, Failed: map[string]string{"a": "options: retries: must be at most 10, not 11"}}},
			{name: "right", change: dataplane.Change{Revision: 2, Base: 1, Upserts: upserts(withOptions("a", `{"retries":10}`))},
				want: applied{2, []string{"a", "b"}, []string{"a"}, nil}, result: dataplane.Result{Upserted: 1}},
			{name: "wrong: what was stays", change: full(3, withOptions("a", `{"retrys":10}`), b1), want: applied{3, []string{"a", "b"}, nil, nil},
				result: dataplane.Result{Failed: map[string]string{"a": "options: retrys: unknown argument"}}},
			{name: "endpoint twice", change: dataplane.Change{Revision: 4, Base: 3, Upserts: upserts(twice("b", 2), twice("c", 20))},
				want: applied{4, []string{"a", "b"}, nil, nil}, result: dataplane.Result{Failed: map[string]string{
					"b": "endpoint 10.0.0.0:8080 is there twice", "c": "endpoint 10.0.0.0:8080 is there twice"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newRecorder()
			r := newRig(t, d)
			r.configure(t, "", "")
			for _, s := range steps {
				runStep(t, r, d, s)
			}
		})
	}
}

func runStep(t *testing.T, r *rig, d *recorder, s step) {
	t.Helper()
	before := len(d.applies)
	d.onApply = func(_ context.Context, u *dataplane.Update) error {
		for _, id := range s.fail {
			u.Fail(id, fmt.Errorf("no %s", id))
		}
		return s.err
	}
	got, err := r.client.Apply(contextOf(t), s.change)
	if s.wantErr != nil || s.err != nil {
		if err == nil || s.wantErr != nil && !errors.Is(err, s.wantErr) {
			t.Fatalf("%s: the error is %v, want %v", s.name, err, s.wantErr)
		}
	} else if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	} else {
		s.result.Revision = s.change.Revision
		if diff := cmp.Diff(s.result, got, cmpopts.IgnoreFields(got, "Duration"), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: result (-want +got)\n%s", s.name, diff)
		}
	}
	if s.wantErr != nil {
		if len(d.applies) != before {
			t.Errorf("%s: what was refused reached the dataplane", s.name)
		}
		return
	}
	if diff := cmp.Diff(s.want, d.last(t), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: update (-want +got)\n%s", s.name, diff)
	}
}

func withOptions(id, json string) *dataplane.Service {
	s := service(id, 1)
	s.OptionsJSON = []byte(json)
	return s
}

// twice makes a service whose last endpoint is its first.
func twice(id string, endpoints int) *dataplane.Service {
	s := service(id, endpoints)
	s.Endpoints[endpoints-1] = s.Endpoints[0]
	return s
}

// TestServiceArrivesWhole sends every field and compares what arrives.
func TestServiceArrivesWhole(t *testing.T) {
	deadline := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	s := &dataplane.Service{
		ID: "A.b_c-9",
		Frontends: []dataplane.Frontend{
			{Kind: dataplane.Virtual, Address: netip.MustParseAddr("10.96.0.1"), Port: 1, Protocol: dataplane.TCP},
			{Kind: dataplane.Node, Address: netip.MustParseAddr("2001:db8::1"), Port: 65535, Protocol: dataplane.UDP},
			{Kind: dataplane.External, Address: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: dataplane.SCTP},
		},
		Endpoints: []dataplane.Endpoint{
			{Address: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1<<32 - 1, State: dataplane.StateActive, Zone: "z", Node: "n", Local: true},
			{Address: netip.MustParseAddrPort("[2001:db8::2]:81"), State: dataplane.StateDraining, DrainDeadline: deadline},
		},
		Balance: dataplane.BalanceMaglev, Affinity: 10 * time.Minute,
		OnEmpty: dataplane.EmptyDrop, OnDrainEnd: dataplane.DrainEndReset, Masquerade: dataplane.MasqueradeNever,
		Allow:       []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")},
		OptionsJSON: []byte(`{"retries":5}`),
	}
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	if _, err := r.client.Apply(contextOf(t), dataplane.Change{Full: true, Upserts: []*dataplane.Service{s}}); err != nil {
		t.Fatal(err)
	}
	got := d.current[s.ID]
	if diff := cmp.Diff(&options{Retries: 5}, got.Options); diff != "" {
		t.Errorf("options (-want +got)\n%s", diff)
	}
	if !s.Equal(got) {
		t.Errorf("(-want +got)\n%s", cmp.Diff(s, got, addressesCompare, cmpopts.IgnoreFields(*s, "Options")))
	}
}

func TestDefaultsOfAService(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	mapped := service("a", 1)
	mapped.Endpoints[0].Address = netip.MustParseAddrPort("[::ffff:10.0.0.1]:80")
	mapped.OnEmpty, mapped.Masquerade, mapped.OnDrainEnd = 0, 0, 0
	if _, err := r.client.Apply(contextOf(t), dataplane.Change{Full: true, Upserts: []*dataplane.Service{mapped}}); err != nil {
		t.Fatal(err)
	}
	want := service("a", 1)
	want.Endpoints[0].Address = netip.MustParseAddrPort("10.0.0.1:80")
	if got := d.current["a"]; !want.Equal(got) {
		t.Errorf("got %+v", got)
	} else if diff := cmp.Diff(&options{Retries: 2}, got.Options); diff != "" {
		t.Errorf("options (-want +got)\n%s", diff)
	}
}

// TestLarge sends a service that fits no message, others around it, and some
// that can't be sent at all.
func TestLarge(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	large, huge, zoned := service("large", 60_000), service("huge", 1), service("zoned", 1)
	huge.OptionsJSON = []byte(`{"retries":5}` + strings.Repeat(" ", 1<<20))
	zoned.Endpoints[0].Address = netip.MustParseAddrPort("[fe80::1%eth0]:80")
	change := dataplane.Change{Revision: 1, Full: true, Upserts: append(many(3000), large, huge, zoned)}
	got, err := r.client.Apply(contextOf(t), change)
	if err != nil {
		t.Fatal(err)
	}
	if got.Upserted != 3001 || len(got.Failed) != 2 || got.Failed["huge"] == "" || got.Failed["zoned"] == "" {
		t.Errorf("%d upserted, failed %v", got.Upserted, got.Failed)
	}
	if !large.Equal(d.current["large"]) {
		t.Error("the large service did not arrive as it was sent")
	}
	change = dataplane.Change{Revision: 2, Base: 1}
	for _, s := range many(3000) {
		change.Deletes = append(change.Deletes, s.ID)
	}
	if got, err = r.client.Apply(contextOf(t), change); err != nil || got.Removed != 3000 {
		t.Errorf("%d removed, %v", got.Removed, err)
	}
}

func TestApplyBeforeConfigure(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	_, err := r.client.Apply(contextOf(t), dataplane.Change{Full: true})
	if err == nil || errors.Is(err, dataplane.ErrBaseUnknown) || len(d.applies) > 0 {
		t.Errorf("got %v", err)
	}
}

func TestReconfigure(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, `{"count":1}`, "")
	apply := func(change dataplane.Change) error {
		_, err := r.client.Apply(contextOf(t), change)
		return err
	}
	if err := apply(dataplane.Change{Revision: 1, Full: true, Upserts: many(2)}); err != nil {
		t.Fatal(err)
	}
	r.configure(t, `{"count":1}`, "")
	if err := apply(dataplane.Change{Revision: 1, Base: 1}); err != nil {
		t.Errorf("the same configuration again: %v", err)
	}
	r.configure(t, `{"count":2}`, "")
	if err := apply(dataplane.Change{Revision: 1, Base: 1}); !errors.Is(err, dataplane.ErrBaseUnknown) {
		t.Errorf("another configuration: %v", err)
	}
	if err := apply(dataplane.Change{Revision: 1, Full: true, Upserts: many(2)}); err != nil {
		t.Fatal(err)
	}
	if got := d.last(t); len(got.Upserted) != 2 {
		t.Errorf("after another configuration, %v was upserted", got.Upserted)
	}
	d.onConfigure = func(dataplane.Config) (dataplane.Adopted, error) { return dataplane.Adopted{}, errors.New("no") }
	if _, err := r.client.Configure(contextOf(t), dataplane.HostConfig{}); err == nil {
		t.Error("a failing Configure succeeded")
	}
	if err := apply(dataplane.Change{Revision: 1, Base: 1}); !errors.Is(err, dataplane.ErrBaseUnknown) {
		t.Errorf("after a Configure that failed: %v", err)
	}
}

func TestFence(t *testing.T) {
	dir := t.TempDir()
	start := func(d *recorder) *rig {
		r := newRig(t, d)
		r.configure(t, "", dir)
		return r
	}
	apply := func(r *rig, session uint64) error {
		_, err := r.client.Apply(contextOf(t), dataplane.Change{Session: session, Full: true})
		return err
	}
	d := newRecorder()
	r := start(d)
	for _, session := range []uint64{0, 5, 5, 7} {
		if err := apply(r, session); err != nil {
			t.Errorf("session %d: %v", session, err)
		}
	}
	if err := apply(r, 6); !errors.Is(err, dataplane.ErrStaleSession) || len(d.applies) != 4 {
		t.Errorf("an older session: %v", err)
	}
	d2 := newRecorder()
	again := start(d2)
	if err := apply(again, 6); !errors.Is(err, dataplane.ErrStaleSession) || len(d2.applies) != 0 {
		t.Errorf("an older session after a restart: %v", err)
	}
	if err := apply(again, 7); err != nil {
		t.Errorf("the same session after a restart: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "session"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := apply(start(newRecorder()), 1); err != nil {
		t.Errorf("a garbled file: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := apply(again, 9); err != nil {
		t.Errorf("a state folder that is gone: %v", err)
	}
	if err := apply(again, 8); !errors.Is(err, dataplane.ErrStaleSession) {
		t.Errorf("the fence without its folder: %v", err)
	}
}

func TestPanic(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	d.onApply = func(context.Context, *dataplane.Update) error { panic("at the disco") }
	_, err := r.client.Apply(contextOf(t), dataplane.Change{Revision: 1, Full: true})
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "at the disco") {
		t.Errorf("got %v", err)
	}
	d.onApply = nil
	if _, err := r.client.Apply(contextOf(t), dataplane.Change{Revision: 2, Base: 1}); !errors.Is(err, dataplane.ErrBaseUnknown) {
		t.Errorf("after a panic: %v", err)
	}
	if _, err := r.client.Apply(contextOf(t), dataplane.Change{Revision: 2, Full: true}); err != nil {
		t.Errorf("after a panic: %v", err)
	}
}

// TestCommittedApplyOutlivesItsHost: the core goes away in the middle.
func TestCommittedApplyOutlivesItsHost(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	d.onApply = func(ctx context.Context, _ *dataplane.Update) error {
		close(begun)
		<-goOn
		ended <- ctx.Err()
		return nil
	}
	ctx, cancel := context.WithCancel(contextOf(t))
	failed := make(chan error, 1)
	go func() {
		_, err := r.client.Apply(ctx, dataplane.Change{Revision: 1, Full: true})
		failed <- err
	}()
	<-begun
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("the host sees %v", err)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("the Apply was told: %v", err)
	}
	d.onApply = nil
	if _, err := r.client.Apply(contextOf(t), dataplane.Change{Revision: 2, Base: 1}); err != nil {
		t.Errorf("the state it reached is not known: %v", err)
	}
}

func TestDeadline(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	d.onApply = func(ctx context.Context, _ *dataplane.Update) error { <-ctx.Done(); return ctx.Err() }
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.client.Apply(ctx, dataplane.Change{Revision: 1, Full: true}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// TestTurns: Configure, Apply and Close never overlap; the recorder panics if
// they do.
func TestTurns(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	d.onApply = func(context.Context, *dataplane.Update) error { time.Sleep(time.Millisecond); return nil }
	var failures atomic.Int32
	done := make(chan struct{})
	for i := range 20 {
		go func() {
			defer func() { done <- struct{}{} }()
			var err error
			if i%2 == 0 {
				_, err = r.client.Configure(contextOf(t), dataplane.HostConfig{})
			} else {
				_, err = r.client.Apply(contextOf(t), dataplane.Change{Full: true, Upserts: many(i)})
			}
			if err != nil {
				t.Error(err)
				failures.Add(1)
			}
		}()
	}
	for range 20 {
		<-done
	}
	if err := r.client.Shutdown(contextOf(t), dataplane.CloseDetach); err != nil {
		t.Error(err)
	}
}

func TestShutdown(t *testing.T) {
	for mode, name := range map[dataplane.CloseMode]string{
		dataplane.CloseDetach: "detach", dataplane.CloseCleanup: "cleanup", dataplane.CloseHandover: "handover",
	} {
		t.Run(name, func(t *testing.T) {
			d := newRecorder()
			r := newRig(t, d)
			r.configure(t, "", "")
			drained := make(chan struct{})
			d.onClose = func(context.Context, dataplane.CloseMode) error {
				if mode == dataplane.CloseHandover {
					<-drained
				}
				return errors.New("something is left")
			}
			err := r.client.Shutdown(contextOf(t), mode)
			if mode == dataplane.CloseHandover {
				if err != nil {
					t.Errorf("got %v", err)
				}
				select {
				case <-r.server.Ended():
					t.Error("ended before it had drained")
				default:
				}
			} else if err == nil || !strings.Contains(err.Error(), "something is left") {
				t.Errorf("got %v", err)
			}
			if err := r.client.Shutdown(contextOf(t), dataplane.CloseDetach); status.Code(err) != codes.Unavailable {
				t.Errorf("a second Shutdown: %v", err)
			}
			close(drained)
			<-r.server.Ended()
			if _, err := r.client.Apply(contextOf(t), dataplane.Change{Full: true}); status.Code(err) != codes.Unavailable {
				t.Errorf("an Apply after the end: %v", err)
			}
			if err := r.server.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]dataplane.CloseMode{mode}, d.closes); diff != "" {
				t.Errorf("closes (-want +got)\n%s", diff)
			}
		})
	}
	if err := newRig(t, newRecorder()).client.Shutdown(contextOf(t), 0); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no mode: %v", err)
	}
}

func TestInspectAndHold(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	text, detail, err := r.client.Inspect(contextOf(t), "a")
	if err != nil || text != "text of a" || string(detail) != `{"b":"<&>","id":"a"}` {
		t.Errorf("got %q, %s, %v", text, detail, err)
	}
	if _, _, err = r.client.Inspect(contextOf(t), "none"); !errors.Is(err, dataplane.ErrUnknownService) {
		t.Errorf("got %v", err)
	}
	if _, _, err = r.client.Inspect(contextOf(t), "broken"); err == nil || !strings.Contains(err.Error(), "the kernel said no") {
		t.Errorf("got %v", err)
	}
	if _, _, err = r.client.Inspect(contextOf(t), "no/id"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
	for _, hold := range []bool{true, false} {
		if err := r.client.Hold(contextOf(t), hold); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]bool{true, false}, d.holds); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestWithoutOptionalInterfaces: a dataplane that has none of them.
func TestWithoutOptionalInterfaces(t *testing.T) {
	r := newRig(t, newQuiet())
	if _, _, err := r.client.Inspect(contextOf(t), "a"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Inspect: %v", err)
	}
	if err := r.client.Hold(contextOf(t), true); err != nil {
		t.Errorf("Hold: %v", err)
	}
	if got, err := r.client.ValidateConfig(contextOf(t), []byte(`{"a":1}`)); err != nil || len(got) != 1 {
		t.Errorf("ValidateConfig: %v, %v", got, err)
	}
	r.configure(t, "", "")
	got, err := r.client.Apply(contextOf(t), dataplane.Change{Full: true, Upserts: []*dataplane.Service{withOptions("a", `{"x":1}`), withOptions("b", "{}")}})
	if err != nil || got.Failed["a"] != "options: this dataplane has none" || got.Upserted != 1 {
		t.Errorf("Apply: %+v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(contextOf(t))
	cancel()
	if err := r.client.Watch(ctx, time.Second, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Watch: %v", err)
	}
}

func TestWatch(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	// Drift that is found while nobody watches waits.
	d.drift <- dataplane.Drift{Service: "early", Message: "m", Repaired: true}
	if _, err := r.client.Apply(contextOf(t), dataplane.Change{Full: true, Upserts: many(8000)}); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	seen, drifts := map[string]dataplane.ServiceStatistics{}, []dataplane.Drift{}
	err := r.client.Watch(contextOf(t), time.Hour, func(e dataplane.WatchEvent) error {
		for _, s := range e.Statistics {
			seen[s.ID] = s
		}
		if e.Drift != nil {
			if drifts = append(drifts, *e.Drift); len(drifts) == 1 {
				d.drift <- dataplane.Drift{Message: "late"}
			}
		}
		if len(drifts) == 2 && len(seen) == 8000 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatalf("got %v with %d services and %d drifts", err, len(seen), len(drifts))
	}
	if diff := cmp.Diff([]dataplane.Drift{{Service: "early", Message: "m", Repaired: true}, {Message: "late"}}, drifts); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	counters := dataplane.Counters{Connections: 1, Active: 2, BytesIn: 3, BytesOut: 4, Failed: 5}
	got := seen["service-7"]
	if len(got.Endpoints) != 10 || got.Counters != counters || got.Refused != 6 ||
		got.Endpoints[0] != (dataplane.EndpointStatistics{Address: netip.MustParseAddrPort("10.0.0.0:8080"), Counters: counters}) {
		t.Errorf("got %+v", got)
	}
}

// TestWatchInterval: statistics come again and again, until the plugin ends.
func TestWatchInterval(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	if _, err := r.client.Apply(contextOf(t), dataplane.Change{Full: true, Upserts: many(1)}); err != nil {
		t.Fatal(err)
	}
	events := 0
	err := r.client.Watch(contextOf(t), time.Nanosecond, func(dataplane.WatchEvent) error {
		if events++; events == 3 {
			return r.client.Shutdown(contextOf(t), dataplane.CloseDetach)
		}
		return nil
	})
	if status.Code(err) != codes.Unavailable || events < 3 {
		t.Errorf("%d events, then %v", events, err)
	}
}

// TestCutStream: what isn't committed has changed nothing, in whatever way the
// stream ends.
func TestCutStream(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	if _, err := r.client.Apply(contextOf(t), dataplane.Change{Revision: 1, Full: true, Upserts: many(1)}); err != nil {
		t.Fatal(err)
	}
	rpc := pb.NewDataplaneServiceClient(r.conn)
	first := &pb.ApplyRequest{Begin: &pb.Begin{Session: 9, Revision: 2, Base: 1}, Deletes: []string{"service-0"}}
	for name, c := range map[string]struct {
		end  func(context.CancelFunc, pb.DataplaneService_ApplyClient) error
		want codes.Code
	}{
		"closed":    {func(context.CancelFunc, pb.DataplaneService_ApplyClient) error { return nil }, codes.InvalidArgument},
		"cancelled": {func(cancel context.CancelFunc, _ pb.DataplaneService_ApplyClient) error { cancel(); return nil }, codes.Canceled},
		"garbled": {func(_ context.CancelFunc, s pb.DataplaneService_ApplyClient) error {
			return s.Send(&pb.ApplyRequest{Deletes: []string{"no/id"}, Commit: true})
		}, codes.InvalidArgument},
		"too large": {func(_ context.CancelFunc, s pb.DataplaneService_ApplyClient) error {
			return s.Send(&pb.ApplyRequest{Deletes: []string{strings.Repeat("x", 1<<20)}, Commit: true})
		}, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(contextOf(t))
			defer cancel()
			stream, err := rpc.Apply(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(first); err != nil {
				t.Fatal(err)
			}
			if err := c.end(cancel, stream); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.CloseAndRecv(); status.Code(err) != c.want {
				t.Errorf("got %v", err)
			}
		})
	}
	// Neither the state nor the fence has moved.
	if _, err := r.client.Apply(contextOf(t), dataplane.Change{Session: 1, Revision: 2, Base: 1}); err != nil {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(applied{2, []string{"service-0"}, nil, nil}, d.last(t), cmpopts.EquateEmpty()); diff != "" || len(d.applies) != 2 {
		t.Errorf("%d updates; the last (-want +got)\n%s", len(d.applies), diff)
	}
}

// TestMessages counts what travels: one message for a difference, messages of
// about 256 KiB and never above 1 MiB for everything.
func TestMessages(t *testing.T) {
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	counter := &countingConn{ClientConnInterface: r.conn}
	client := dataplane.NewClient(counter)
	if _, err := client.Apply(contextOf(t), dataplane.Change{Revision: 1, Full: true, Upserts: append(many(5000), service("large", 20_000))}); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, size := range counter.sizes {
		if total += size; size > 1<<20 {
			t.Errorf("a message of %d bytes", size)
		}
	}
	if n, least := len(counter.sizes), total/(1<<19); n < least || n > total/(1<<17) {
		t.Errorf("%d messages for %d bytes", n, total)
	}
	counter.sizes = nil
	change := dataplane.Change{Revision: 2, Base: 1, Upserts: []*dataplane.Service{service("service-3", 9)}, Deletes: []string{"service-4"}}
	if _, err := client.Apply(contextOf(t), change); err != nil {
		t.Fatal(err)
	}
	if len(counter.sizes) != 1 || counter.sizes[0] > 1000 {
		t.Errorf("a difference of one service took %v", counter.sizes)
	}
}

// countingConn notes the size of each message of a stream.
type countingConn struct {
	grpc.ClientConnInterface
	sizes []int
}

func (c *countingConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	return &countingStream{s, c}, err
}

type countingStream struct {
	grpc.ClientStream
	conn *countingConn
}

func (s *countingStream) SendMsg(m any) error {
	s.conn.sizes = append(s.conn.sizes, proto.Size(m.(proto.Message)))
	return s.ClientStream.SendMsg(m)
}

// TestOneWrongServiceSpoilsNoOther: what a plugin would refuse isn't sent.
func TestOneWrongServiceSpoilsNoOther(t *testing.T) {
	wrong := func(id string, change func(*dataplane.Service)) *dataplane.Service {
		s := service(id, 1)
		change(s)
		return s
	}
	services := []*dataplane.Service{
		service("good", 1),
		wrong("frontend-port", func(s *dataplane.Service) { s.Frontends[0].Port = 0 }),
		wrong("frontend-kind", func(s *dataplane.Service) { s.Frontends[0].Kind = 9 }),
		wrong("frontend-protocol", func(s *dataplane.Service) { s.Frontends[0].Protocol = 0 }),
		wrong("frontend-address", func(s *dataplane.Service) { s.Frontends[0].Address = netip.Addr{} }),
		wrong("endpoint-port", func(s *dataplane.Service) { s.Endpoints[0].Address = netip.MustParseAddrPort("10.0.0.1:0") }),
		wrong("endpoint-state", func(s *dataplane.Service) { s.Endpoints[0].State = 0 }),
		wrong("endpoint-zone", func(s *dataplane.Service) { s.Endpoints[0].Zone = "\xff" }),
		wrong("endpoint-node", func(s *dataplane.Service) { s.Endpoints[0].Node = strings.Repeat("n", 2000) }),
		wrong("balance", func(s *dataplane.Service) { s.Balance = "\xff" }),
		wrong("on-empty", func(s *dataplane.Service) { s.OnEmpty = 9 }),
		wrong("masquerade", func(s *dataplane.Service) { s.Masquerade = 9 }),
		wrong("on-drain-end", func(s *dataplane.Service) { s.OnDrainEnd = 9 }),
		wrong("allow", func(s *dataplane.Service) { s.Allow = []netip.Prefix{{}} }),
		service("the/id", 1),
	}
	d := newRecorder()
	r := newRig(t, d)
	r.configure(t, "", "")
	got, err := r.client.Apply(contextOf(t), dataplane.Change{Revision: 1, Full: true, Upserts: services})
	if err != nil || got.Upserted != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, s := range services[1:] {
		if got.Failed[s.ID] == "" {
			t.Errorf("service %s has not failed", s.ID)
		}
	}
	got, err = r.client.Apply(contextOf(t), dataplane.Change{Revision: 2, Base: 1, Deletes: []string{"the/id", "good"}})
	if err != nil || got.Removed != 1 || got.Failed["the/id"] == "" {
		t.Errorf("%+v, %v", got, err)
	}
}
