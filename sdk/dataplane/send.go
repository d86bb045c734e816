package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/patchbay-proxy/patchbay/sdk/proto/patchbay/dataplane/v1"
)

const (
	// messageSize is what the messages of a stream aim at.
	messageSize = 256 << 10
	// maxMessageSize is what no message is above.
	maxMessageSize = 1 << 20
	// maxServiceSize is what one upsert may come to: what can't be split
	// travels in a message with at most messageSize of others.
	maxServiceSize = maxMessageSize - messageSize - 1024
)

// Apply sends a change and waits for what it came to. A service that can't be
// sent at all is in Result.Failed, as if the plugin had refused it. Errors are
// [ErrBaseUnknown], which asks for a full change, [ErrStaleSession], and those
// after which the state of the plugin is unknown.
func (c *Client) Apply(ctx context.Context, change Change) (Result, error) {
	ctx, cancel := context.WithCancel(ctx) // so that a stream given up on ends
	defer cancel()
	stream, err := c.rpc.Apply(ctx)
	if err != nil {
		return Result{}, callError("Apply", err)
	}
	w := newChangeWriter(stream, change)
	// After io.EOF the plugin has answered already: the answer says why.
	if err := w.write(change); err != nil && !errors.Is(err, io.EOF) {
		return Result{}, callError("Apply", err)
	}
	m, err := stream.CloseAndRecv()
	if err != nil {
		return Result{}, applyError(change, err)
	}
	if m.GetRevision() != change.Revision {
		return Result{}, fmt.Errorf("Apply: the plugin acknowledged revision %d, not %d", m.GetRevision(), change.Revision)
	}
	return w.result(m)
}

func applyError(change Change, err error) error {
	switch code := status.Code(err); {
	case code == codes.PermissionDenied:
		return fmt.Errorf("Apply: %w: %w", ErrStaleSession, err)
	case code == codes.FailedPrecondition && !change.Full:
		return fmt.Errorf("Apply: %w: %w", ErrBaseUnknown, err)
	}
	return callError("Apply", err)
}

// changeWriter cuts a change into messages.
type changeWriter struct {
	stream grpc.ClientStreamingClient[pb.ApplyRequest, pb.ApplyResponse]
	next   *pb.ApplyRequest
	size   int
	// unsent holds the reason for each service that no message can carry.
	unsent map[string]string
}

func newChangeWriter(stream grpc.ClientStreamingClient[pb.ApplyRequest, pb.ApplyResponse], change Change) *changeWriter {
	return &changeWriter{stream: stream, unsent: map[string]string{}, next: &pb.ApplyRequest{
		Begin: &pb.Begin{Session: change.Session, Revision: change.Revision, Base: change.Base, Full: change.Full},
	}}
}

func (w *changeWriter) write(change Change) error {
	for _, s := range change.Upserts {
		m, err := encodeService(s)
		if err != nil {
			w.unsent[s.ID] = err.Error()
			continue
		}
		if err := w.upsert(m); err != nil {
			return err
		}
	}
	for _, id := range change.Deletes {
		if err := checkID(id); err != nil {
			w.unsent[id] = err.Error()
			continue
		}
		w.next.Deletes = append(w.next.Deletes, id)
		if err := w.grow(len(id) + 4); err != nil {
			return err
		}
	}
	w.next.Commit = true
	return w.flush()
}

// upsert sends a service, the endpoints of a large one in parts.
func (w *changeWriter) upsert(m *pb.Service) error {
	size := proto.Size(m)
	if size <= messageSize {
		return w.add(&pb.Upsert{Service: m}, size)
	}
	endpoints := m.Endpoints
	m.Endpoints = nil
	if size = proto.Size(m); size > maxServiceSize {
		w.unsent[m.Id] = fmt.Sprintf("its %d bytes without endpoints are too many for one message", size)
		return nil
	}
	if err := w.add(&pb.Upsert{Service: m}, size); err != nil {
		return err
	}
	for len(endpoints) > 0 {
		n, size := 0, 0
		for n < len(endpoints) && size < messageSize/2 {
			size += proto.Size(endpoints[n]) + 4
			n++
		}
		part := &pb.Upsert{MoreEndpoints: true, Service: &pb.Service{Id: m.Id, Endpoints: endpoints[:n]}}
		if err := w.add(part, size+len(m.Id)); err != nil {
			return err
		}
		endpoints = endpoints[n:]
	}
	return nil
}

func (w *changeWriter) add(u *pb.Upsert, size int) error {
	w.next.Upserts = append(w.next.Upserts, u)
	return w.grow(size + 16)
}

// grow sends the message once it is large enough. There is always another, for
// the commit.
func (w *changeWriter) grow(size int) error {
	if w.size += size; w.size < messageSize {
		return nil
	}
	return w.flush()
}

func (w *changeWriter) flush() error {
	m := w.next
	w.next, w.size = &pb.ApplyRequest{}, 0
	return w.stream.Send(m)
}

func (w *changeWriter) result(m *pb.ApplyResponse) (Result, error) {
	took, err := decodeDuration(m.GetDuration())
	if err != nil {
		return Result{}, fmt.Errorf("Apply: the duration: %w", err)
	}
	r := Result{
		Revision: m.GetRevision(), Upserted: int(m.GetUpserted()), Removed: int(m.GetRemoved()), Duration: took, Failed: w.unsent,
	}
	for _, e := range m.GetErrors() {
		r.Failed[e.GetId()] = e.GetMessage()
	}
	return r, nil
}
