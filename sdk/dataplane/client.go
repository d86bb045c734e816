package dataplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/patchbay-proxy/patchbay/sdk/proto/patchbay/dataplane/v1"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// Errors of [Client] that a host must tell apart. The status of gRPC stays
// within reach of [status.FromError]; a deadline that has passed is
// [context.DeadlineExceeded] too, and what a plugin can't do at all is
// [errors.ErrUnsupported].
var (
	// ErrBaseUnknown means that the plugin does not hold the base of a
	// difference: everything is to be sent.
	ErrBaseUnknown = errors.New("the plugin does not hold the base revision")
	// ErrStaleSession means that a core with a higher session number has
	// written: this one must not.
	ErrStaleSession = errors.New("a newer core session owns the plugin")
	// ErrUnknownService is what Inspect gives for an id that isn't in force.
	ErrUnknownService = errors.New("unknown service")
)

// Change is what a host sends with one Apply.
type Change struct {
	// Session number of the host, higher with every start of a core.
	Session uint64
	// Revision that is reached.
	Revision uint64
	// Base is the acknowledged revision that a difference starts from.
	Base uint64
	// Full means that Upserts is the whole desired state.
	Full    bool
	Upserts []*Service
	Deletes []string
}

// HostDescription is what a host gets to know of a plugin.
type HostDescription struct {
	// Description as the plugin gave it, but for Config and Options, which are
	// nil here: their schemas stand below.
	Description
	// ConfigSchema describes the plugin's part of its dataplane block, and
	// OptionsSchema a service's options. Both are valid and never nil.
	ConfigSchema, OptionsSchema *schema.Schema
	// Protocol is the major version of the contract that the plugin speaks.
	Protocol int
}

// HostConfig is what a host configures a plugin with.
type HostConfig struct {
	// ConfigJSON is the plugin's part of the dataplane block in the wire form
	// of package schema; empty for none.
	ConfigJSON json.RawMessage
	// StateDir is an absolute path.
	StateDir string
	// NodeAddresses, Pools and LocalNetworks as in [Config].
	NodeAddresses []netip.Addr
	Pools         []netip.Prefix
	LocalNetworks []netip.Prefix
}

// WatchEvent is what a plugin tells of its own accord: one of the two is set.
type WatchEvent struct {
	// Statistics of a part of the services.
	Statistics []ServiceStatistics
	Drift      *Drift
}

// Client calls a plugin on behalf of a host. Its methods may be called at the
// same time; a context with a deadline is the caller's to give.
type Client struct {
	rpc pb.DataplaneServiceClient
}

// NewClient makes a client on a connection, which stays the caller's.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{rpc: pb.NewDataplaneServiceClient(conn)}
}

// Describe asks what the plugin is. A description that the contract forbids,
// such as a schema with the core's own arguments, is an error.
func (c *Client) Describe(ctx context.Context) (*HostDescription, error) {
	m, err := c.rpc.Describe(ctx, &pb.DescribeRequest{})
	if err != nil {
		return nil, callError("Describe", err)
	}
	d, err := decodeDescription(m)
	if err != nil {
		return nil, fmt.Errorf("Describe: %w", err)
	}
	return d, nil
}

// ValidateConfig asks what the plugin has against a block, given in the wire
// form of package schema.
func (c *Client) ValidateConfig(ctx context.Context, configJSON json.RawMessage) ([]Diagnostic, error) {
	m, err := c.rpc.ValidateConfig(ctx, &pb.ValidateConfigRequest{ConfigJson: configJSON})
	if err != nil {
		return nil, callError("ValidateConfig", err)
	}
	var out []Diagnostic
	for _, d := range m.GetDiagnostics() {
		out = append(out, decodeDiagnostic(d))
	}
	return out, nil
}

// Configure sets the plugin up. After one that changed anything, the plugin
// takes a full Apply only.
func (c *Client) Configure(ctx context.Context, config HostConfig) (Adopted, error) {
	m := &pb.ConfigureRequest{ConfigJson: config.ConfigJSON, StateDir: config.StateDir}
	for _, a := range config.NodeAddresses {
		m.NodeAddresses = append(m.NodeAddresses, a.Unmap().String())
	}
	for _, p := range config.Pools {
		m.Pools = append(m.Pools, p.Masked().String())
	}
	for _, p := range config.LocalNetworks {
		m.LocalNetworks = append(m.LocalNetworks, p.Masked().String())
	}
	answer, err := c.rpc.Configure(ctx, m)
	if err != nil {
		return Adopted{}, callError("Configure", err)
	}
	return Adopted{Services: int(answer.GetAdoptedServices())}, nil
}

// Watch hands every event to the function until ctx ends, the plugin does, or
// the function gives an error; it returns why, never nil. Statistics come at
// once and then at the interval, which is 0 for none.
func (c *Client) Watch(ctx context.Context, interval time.Duration, event func(WatchEvent) error) error {
	ctx, cancel := context.WithCancel(ctx) // so that the stream ends with the function's error
	defer cancel()
	stream, err := c.rpc.Watch(ctx, &pb.WatchRequest{StatisticsInterval: durationpb.New(interval)})
	if err != nil {
		return callError("Watch", err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return callError("Watch", err)
		}
		e, err := decodeEvent(m)
		if err != nil {
			return fmt.Errorf("Watch: %w", err)
		}
		if e.Drift == nil && e.Statistics == nil {
			continue // a kind of event that a newer plugin knows
		}
		if err := event(e); err != nil {
			return err
		}
	}
}

func decodeEvent(m *pb.WatchResponse) (WatchEvent, error) {
	var e WatchEvent
	if d := m.GetDrift(); d != nil {
		e.Drift = &Drift{Service: d.GetService(), Message: d.GetMessage(), Repaired: d.GetRepaired()}
	}
	for _, s := range m.GetStatistics().GetServices() {
		one, err := decodeStatistics(s)
		if err != nil {
			return e, err
		}
		e.Statistics = append(e.Statistics, one)
	}
	return e, nil
}

// Inspect asks what is in force for one service: text for an operator, and the
// same as JSON. An id that the plugin doesn't know is [ErrUnknownService].
func (c *Client) Inspect(ctx context.Context, id string) (text string, detail json.RawMessage, err error) {
	m, err := c.rpc.Inspect(ctx, &pb.InspectRequest{Id: id})
	if status.Code(err) == codes.NotFound {
		return "", nil, fmt.Errorf("Inspect: %w: %w", ErrUnknownService, err)
	} else if err != nil {
		return "", nil, callError("Inspect", err)
	}
	if detail = m.GetDetailJson(); len(detail) > 0 && !json.Valid(detail) {
		return "", nil, fmt.Errorf("Inspect: the detail of service %s is no JSON", id)
	}
	return m.GetText(), detail, nil
}

// Hold makes the plugin write nothing of its own accord, until it is released.
func (c *Client) Hold(ctx context.Context, hold bool) error {
	if _, err := c.rpc.Hold(ctx, &pb.HoldRequest{Hold: hold}); err != nil {
		return callError("Hold", err)
	}
	return nil
}

// Shutdown ends the plugin; its process exits after the answer. With
// [CloseHandover] the answer comes at once and the process exits when it has
// drained; otherwise it tells how the end went.
func (c *Client) Shutdown(ctx context.Context, mode CloseMode) error {
	m := &pb.ShutdownRequest{}
	for wire, model := range closeModes {
		if model == mode {
			m.Mode = wire
		}
	}
	if _, err := c.rpc.Shutdown(ctx, m); err != nil {
		return callError("Shutdown", err)
	}
	return nil
}

// callError makes what hosts tell apart visible to [errors.Is].
func callError(call string, err error) error {
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return fmt.Errorf("%s: %w: %w", call, context.DeadlineExceeded, err)
	case codes.Canceled:
		return fmt.Errorf("%s: %w: %w", call, context.Canceled, err)
	case codes.Unimplemented:
		return fmt.Errorf("%s: %w: %w", call, errors.ErrUnsupported, err)
	}
	return fmt.Errorf("%s: %w", call, err)
}
