package dataplane

import (
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/patchbay-proxy/patchbay/sdk/proto/patchbay/dataplane/v1"
)

// minStatisticsInterval keeps a host from making a plugin do nothing but count.
const minStatisticsInterval = 100 * time.Millisecond

// Watch answers the call of the same name: statistics at once and then at the
// interval, drift as it is found.
func (s *Server) Watch(m *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.WatchResponse]) error {
	interval, err := decodeDuration(m.GetStatisticsInterval())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "the statistics interval: %v", err)
	}
	var tick <-chan time.Time
	statistician, ok := s.dataplane.(Statistician)
	if ok && interval > 0 {
		ticker := time.NewTicker(max(interval, minStatisticsInterval))
		defer ticker.Stop()
		tick = ticker.C
		if err := s.sendStatistics(statistician, stream); err != nil {
			return err
		}
	}
	drifts, leave := s.drifts.join()
	defer leave()
	for {
		select {
		case <-tick:
			err = s.sendStatistics(statistician, stream)
		case d := <-drifts:
			err = stream.Send(&pb.WatchResponse{Event: &pb.WatchResponse_Drift{
				Drift: &pb.Drift{Service: d.Service, Message: d.Message, Repaired: d.Repaired},
			}})
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.ended:
			return status.Error(codes.Unavailable, "the plugin has ended")
		}
		if err != nil {
			return err
		}
	}
}

// sendStatistics sends the totals in messages of about 256 KiB. A dataplane
// that can't count now is asked again at the next interval.
func (s *Server) sendStatistics(from Statistician, stream grpc.ServerStreamingServer[pb.WatchResponse]) error {
	var all []ServiceStatistics
	err := s.guard("Statistics", func() (err error) { all, err = from.Statistics(stream.Context()); return err })
	if err != nil {
		if stream.Context().Err() == nil {
			s.log.Warn("no statistics this time", "error", err)
		}
		return nil
	}
	batch, size := &pb.Statistics{}, 0
	send := func() error {
		out := &pb.WatchResponse{Event: &pb.WatchResponse_Statistics{Statistics: batch}}
		batch, size = &pb.Statistics{}, 0
		return stream.Send(out)
	}
	for i := range all {
		one, err := encodeStatistics(&all[i])
		if err != nil {
			return asStatus(codes.Internal, fmt.Errorf("encoding: %w", err))
		}
		batch.Services = append(batch.Services, one)
		if size += proto.Size(one) + 8; size >= messageSize {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if len(batch.Services) > 0 {
		return send()
	}
	return nil
}

// maxDrifts is how many findings wait for a host that doesn't watch, or not
// fast enough; then the oldest go.
const maxDrifts = 256

// driftHub hands what a dataplane finds to whoever watches.
type driftHub struct {
	log hclog.Logger

	mu       sync.Mutex
	watchers map[chan Drift]bool
	// waiting is what was found while nobody watched.
	waiting []Drift
}

func newDriftHub(log hclog.Logger) *driftHub {
	return &driftHub{log: log, watchers: map[chan Drift]bool{}}
}

// run ends with the channel or with the dataplane.
func (h *driftHub) run(from <-chan Drift, ended <-chan struct{}) {
	for {
		select {
		case d, ok := <-from:
			if !ok {
				return
			}
			h.publish(d)
		case <-ended:
			return
		}
	}
}

func (h *driftHub) publish(d Drift) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers) == 0 {
		if h.waiting = append(h.waiting, d); len(h.waiting) > maxDrifts {
			h.waiting = h.waiting[1:]
		}
		return
	}
	for w := range h.watchers {
		select {
		case w <- d:
		default: // full: make room
			select {
			case <-w:
				h.log.Warn("drift is found faster than the host reads it", "service", d.Service)
			default:
			}
			select {
			case w <- d:
			default:
			}
		}
	}
}

func (h *driftHub) join() (<-chan Drift, func()) {
	w := make(chan Drift, maxDrifts)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.waiting {
		w <- d
	}
	h.waiting = nil
	h.watchers[w] = true
	return w, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers, w)
	}
}
