package dataplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/patchbay-proxy/patchbay/sdk/proto/patchbay/dataplane/v1"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// Server answers a host's calls for a [Dataplane]. [Serve] makes one for the
// process of a plugin; tests of hosts register one with a gRPC server of their
// own.
type Server struct {
	pb.UnimplementedDataplaneServiceServer

	dataplane Dataplane
	log       hclog.Logger
	fence     fence
	drifts    *driftHub

	// turn is held while Configure, Apply or Close of the dataplane runs; what
	// follows belongs to its holder.
	turn       chan struct{}
	configured *pb.ConfigureRequest
	options    *optionsDecoder
	state      *state

	// ending is closed when Shutdown or Close has been called, ended when Close
	// of the dataplane has returned.
	ending, ended chan struct{}
	endOnce       sync.Once
	workers       sync.WaitGroup
}

// ServerOptions of NewServer; the zero value is fit for use.
type ServerOptions struct {
	// Logger gets what the server does; nil for [Logger].
	Logger hclog.Logger
}

// NewServer makes a server for one dataplane. Who makes it calls
// [Server.Close] in the end.
func NewServer(d Dataplane, options ServerOptions) *Server {
	log := options.Logger
	if log == nil {
		log = Logger()
	}
	s := &Server{
		dataplane: d, log: log, fence: fence{log: log}, drifts: newDriftHub(log),
		turn: make(chan struct{}, 1), options: &optionsDecoder{}, state: newState(),
		ending: make(chan struct{}), ended: make(chan struct{}),
	}
	if n, ok := d.(Notifier); ok {
		s.workers.Go(func() { s.drifts.run(n.Drift(), s.ended) })
	}
	return s
}

// Register makes a gRPC server answer for the dataplane.
func (s *Server) Register(r grpc.ServiceRegistrar) { pb.RegisterDataplaneServiceServer(r, s) }

// Ended is closed when the dataplane has been closed, by Shutdown or by
// [Server.Close].
func (s *Server) Ended() <-chan struct{} { return s.ended }

// Close closes the dataplane with [CloseDetach], unless that has been done, and
// returns when it is closed. It waits for an Apply that runs, and, after a
// Shutdown, for the draining; ctx bounds only the former.
func (s *Server) Close(ctx context.Context) error {
	var err error
	if s.startEnd() {
		err = s.end(ctx, CloseDetach)
	}
	<-s.ended
	s.workers.Wait()
	return err
}

// startEnd is true for the first who asks: that one calls end.
func (s *Server) startEnd() (first bool) {
	s.endOnce.Do(func() { first = true; close(s.ending) })
	return first
}

func (s *Server) end(ctx context.Context, mode CloseMode) error {
	defer close(s.ended)
	release, err := s.take(ctx)
	if err != nil {
		return fmt.Errorf("closing the dataplane: an Apply or Configure still runs: %w", err)
	}
	defer release()
	return s.guard("Close", func() error { return s.dataplane.Close(ctx, mode) })
}

// take waits for the turn.
func (s *Server) take(ctx context.Context) (release func(), err error) {
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serveTurn takes the turn for a call of the host, unless the plugin ends or
// the host has given the call up: then a newer one may have overtaken it.
func (s *Server) serveTurn(ctx context.Context) (release func(), err error) {
	release, err = s.take(ctx)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	select {
	case <-s.ending:
		err = status.Error(codes.Unavailable, "the plugin is ending")
	case <-ctx.Done():
		err = status.FromContextError(ctx.Err()).Err()
	default:
		return release, nil
	}
	release()
	return nil, err
}

// guard turns a panic of the author's code into an error: one bad update must
// not take down what carries the traffic. The stack goes to the log.
func (s *Server) guard(call string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("the dataplane panicked", "call", call, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = status.Errorf(codes.Internal, "%s panicked: %v", call, p)
		}
	}()
	return f()
}

func (s *Server) describe() (d Description, err error) {
	err = s.guard("Describe", func() error { d = s.dataplane.Describe(); return nil })
	return d, err
}

// Describe answers the call of the same name.
func (s *Server) Describe(context.Context, *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	d, err := s.describe()
	if err != nil {
		return nil, err
	}
	out, err := encodeDescription(d)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the plugin describes itself wrongly: %v", err)
	}
	return out, nil
}

// decodeBlock makes the author's struct from the JSON of a dataplane block.
func (s *Server) decodeBlock(data []byte) (Description, any, error) {
	d, err := s.describe()
	if err != nil {
		return d, nil, err
	}
	if d.Config == nil {
		return d, nil, schema.Decode(data, new(struct{}))
	}
	t := reflect.TypeOf(d.Config)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	block := reflect.New(t).Interface()
	return d, block, schema.Decode(data, block)
}

// ValidateConfig answers the call of the same name.
func (s *Server) ValidateConfig(ctx context.Context, m *pb.ValidateConfigRequest) (*pb.ValidateConfigResponse, error) {
	_, block, err := s.decodeBlock(m.GetConfigJson())
	out := &pb.ValidateConfigResponse{}
	var problems schema.Problems
	switch v, ok := s.dataplane.(Validator); {
	case errors.As(err, &problems):
		err = nil
		for _, p := range problems {
			out.Diagnostics = append(out.Diagnostics, encodeDiagnostic(Diagnostic{Summary: p.Message, Path: p.Path}))
		}
	case err != nil:
		return nil, asStatus(codes.Internal, err)
	case ok:
		err = s.guard("Validate", func() error {
			for _, d := range v.Validate(ctx, Config{Block: block}) {
				out.Diagnostics = append(out.Diagnostics, encodeDiagnostic(d))
			}
			return nil
		})
	}
	return out, err
}

// Configure answers the call of the same name.
func (s *Server) Configure(ctx context.Context, m *pb.ConfigureRequest) (*pb.ConfigureResponse, error) {
	d, config, err := s.decodeConfig(m)
	if err != nil {
		return nil, err
	}
	release, err := s.serveTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if m.GetStateDir() != "" {
		if err := s.fence.open(m.GetStateDir()); err != nil {
			return nil, status.Errorf(codes.Internal, "%v", err)
		}
	}
	if s.configured == nil || !proto.Equal(s.configured, m) {
		// What was applied under another configuration is applied anew.
		s.state.doubt()
	}
	var adopted Adopted
	err = s.guard("Configure", func() (err error) { adopted, err = s.dataplane.Configure(ctx, config); return err })
	if err != nil {
		s.state.doubt()
		return nil, asStatus(codes.Unknown, err)
	}
	s.configured, s.options = m, newOptionsDecoder(d.Options)
	return &pb.ConfigureResponse{AdoptedServices: uint32(max(0, adopted.Services))}, nil
}

func (s *Server) decodeConfig(m *pb.ConfigureRequest) (Description, Config, error) {
	d, block, err := s.decodeBlock(m.GetConfigJson())
	if err != nil {
		return d, Config{}, asStatus(codes.InvalidArgument, err)
	}
	config := Config{Block: block, StateDir: m.GetStateDir()}
	if config.StateDir != "" && !filepath.IsAbs(config.StateDir) {
		return d, config, status.Errorf(codes.InvalidArgument, "the state folder %q must be an absolute path", config.StateDir)
	}
	var errs [3]error
	config.NodeAddresses, errs[0] = decodeAddresses("node address", m.GetNodeAddresses())
	config.Pools, errs[1] = decodePrefixes("pool", m.GetPools())
	config.LocalNetworks, errs[2] = decodePrefixes("local network", m.GetLocalNetworks())
	if err := errors.Join(errs[:]...); err != nil {
		return d, config, asStatus(codes.InvalidArgument, err)
	}
	return d, config, nil
}

// Apply answers the call of the same name.
func (s *Server) Apply(stream grpc.ClientStreamingServer[pb.ApplyRequest, pb.ApplyResponse]) error {
	c := newCollector()
	for !c.committed {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.InvalidArgument, "the Apply ended without a commit: nothing was changed")
		} else if err != nil {
			return err
		}
		first := !c.begun
		if err := c.add(m); err != nil {
			return asStatus(codes.InvalidArgument, err)
		}
		if first {
			if err := s.fence.check(c.session); err != nil {
				return asStatus(codes.PermissionDenied, err)
			}
		}
	}
	response, err := s.commit(stream.Context(), &c.transaction)
	if err != nil {
		return err
	}
	return stream.SendAndClose(response)
}

// manyServices are enough for the messages of one Apply to weigh several times
// what is kept of them. Such an Apply is rare; the memory is given back at once,
// as it may be long before the next one.
const manyServices = 1000

func (s *Server) commit(ctx context.Context, tx *transaction) (*pb.ApplyResponse, error) {
	release, err := s.serveTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if s.configured == nil {
		return nil, status.Error(codes.FailedPrecondition, "the plugin must be configured before an Apply")
	}
	if err := s.fence.pass(tx.session); err != nil {
		return nil, asStatus(codes.PermissionDenied, err)
	}
	if !tx.full && (!s.state.known || s.state.revision != tx.base) {
		return nil, status.Errorf(codes.FailedPrecondition, "%v %d", ErrBaseUnknown, tx.base)
	}
	// Once committed, an update is carried through even if the core goes away
	// in the middle; only the deadline that the core has set still counts.
	applyCtx, cancel := withoutHost(ctx)
	defer cancel()
	update, refused := s.state.begin(tx, s.options)
	start := time.Now()
	err = s.guard("Apply", func() error { return s.dataplane.Apply(applyCtx, update) })
	if err != nil {
		return nil, asStatus(codes.Unknown, err)
	}
	failed := s.concerned(update)
	s.state.succeed(update, failed)
	maps.Copy(failed, refused)
	if len(tx.order) >= manyServices {
		s.workers.Go(debug.FreeOSMemory)
	}
	return respond(update, failed, time.Since(start)), nil
}

// withoutHost gives a context that only keeps the deadline.
func withoutHost(ctx context.Context) (context.Context, context.CancelFunc) {
	free := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(free, deadline)
	}
	return context.WithCancel(free)
}

// concerned gives the failures of services that the update has to do with.
func (s *Server) concerned(u *Update) map[string]error {
	out := map[string]error{}
	for id, err := range u.Failed() {
		if u.services[id] == nil {
			if _, removed := slices.BinarySearch(u.removed, id); !removed {
				s.log.Warn("the dataplane failed a service that it was not given", "service", id, "error", err)
				continue
			}
		}
		out[id] = err
	}
	return out
}

func respond(u *Update, failed map[string]error, took time.Duration) *pb.ApplyResponse {
	out := &pb.ApplyResponse{Revision: u.revision, Duration: durationpb.New(took)}
	for _, s := range u.upserted {
		if failed[s.ID] == nil {
			out.Upserted++
		}
	}
	for _, id := range u.removed {
		if failed[id] == nil {
			out.Removed++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(failed)) {
		out.Errors = append(out.Errors, &pb.ServiceError{Id: id, Message: failed[id].Error()})
	}
	return out
}

// Inspect answers the call of the same name.
func (s *Server) Inspect(ctx context.Context, m *pb.InspectRequest) (*pb.InspectResponse, error) {
	if err := checkID(m.GetId()); err != nil {
		return nil, asStatus(codes.InvalidArgument, err)
	}
	inspector, ok := s.dataplane.(Inspector)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "this dataplane can't be inspected")
	}
	var text string
	var detail any
	err := s.guard("Inspect", func() (err error) { text, detail, err = inspector.Inspect(ctx, m.GetId()); return err })
	switch {
	case errors.Is(err, ErrUnknownService):
		return nil, asStatus(codes.NotFound, err)
	case err != nil:
		return nil, asStatus(codes.Unknown, err)
	}
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(detail); err != nil {
		return nil, status.Errorf(codes.Internal, "encoding the detail of service %s: %v", m.GetId(), err)
	}
	return &pb.InspectResponse{Text: text, DetailJson: bytes.TrimSpace(data.Bytes())}, nil
}

// Hold answers the call of the same name.
func (s *Server) Hold(ctx context.Context, m *pb.HoldRequest) (*pb.HoldResponse, error) {
	holder, ok := s.dataplane.(Holder)
	if !ok { // then it does nothing of its own accord
		return &pb.HoldResponse{}, nil
	}
	if err := s.guard("Hold", func() error { return holder.Hold(ctx, m.GetHold()) }); err != nil {
		return nil, asStatus(codes.Unknown, err)
	}
	return &pb.HoldResponse{}, nil
}

var closeModes = map[pb.ShutdownMode]CloseMode{
	pb.ShutdownMode_SHUTDOWN_MODE_HANDOVER: CloseHandover,
	pb.ShutdownMode_SHUTDOWN_MODE_DETACH:   CloseDetach,
	pb.ShutdownMode_SHUTDOWN_MODE_CLEANUP:  CloseCleanup,
}

// Shutdown answers the call of the same name. With HANDOVER it answers at once
// and the dataplane drains; otherwise the answer tells how Close went.
func (s *Server) Shutdown(ctx context.Context, m *pb.ShutdownRequest) (*pb.ShutdownResponse, error) {
	mode, ok := closeModes[m.GetMode()]
	if !ok {
		return nil, status.Errorf(codes.InvalidArgument, "unknown shutdown mode %d", m.GetMode())
	}
	if !s.startEnd() {
		return nil, status.Error(codes.Unavailable, "the plugin is ending already")
	}
	// A host that goes away doesn't stop what it has asked for.
	free := context.WithoutCancel(ctx)
	if mode != CloseHandover {
		return &pb.ShutdownResponse{}, asStatus(codes.Unknown, s.end(free, mode))
	}
	s.workers.Go(func() {
		if err := s.end(free, mode); err != nil {
			s.log.Error("the dataplane closed with an error", "error", err)
		}
	})
	return &pb.ShutdownResponse{}, nil
}

// asStatus keeps an error that is a status itself, and gives any other the
// code, but for a deadline that has passed.
func asStatus(code codes.Code, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		code = codes.DeadlineExceeded
	}
	return status.Error(code, err.Error())
}
