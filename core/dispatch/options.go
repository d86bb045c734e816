package dispatch

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// Applier is a plugin as a session sees it; [*dataplane.Client] is one. It
// must be comparable.
type Applier interface {
	// Apply brings the plugin to the state of the change, or returns an error
	// that may be [dataplane.ErrBaseUnknown] or [dataplane.ErrStaleSession].
	// After any other error the state reached is unknown.
	Apply(ctx context.Context, change dataplane.Change) (dataplane.Result, error)
}

// Options of a Session. Dataplane and SessionNumber have no default.
type Options struct {
	// Dataplane is the name of the block, by which services name their carrier.
	Dataplane string
	// SessionNumber is higher than that of every core that wrote before.
	SessionNumber uint64
	// SyncInterval is how often an empty difference makes the plugin check
	// itself; default 30 s.
	SyncInterval time.Duration
	// ApplyTimeout is the deadline of an Apply, to which 5 ms are added for
	// each service it carries; default 30 s.
	ApplyTimeout time.Duration
	// MinInterval is the least rest between two Applies under churn; default
	// 10 ms. The first change after a rest goes at once. A plugin that takes
	// longer for an Apply gets as long a rest as it took, up to ten times
	// this, so that churn comes in larger bundles and never takes all of a
	// processor.
	MinInterval time.Duration
	// GraceForSources is how long after the start of Run a plugin that found
	// nothing in place waits for unread sources; default 5 s.
	GraceForSources time.Duration

	Logger hclog.Logger
	// OnApplied is told of every Apply, after its outcome has been taken in.
	// It is called from Run's goroutine and must not block.
	OnApplied func(Applied)
	// OnHang is told when an Apply has met its deadline, with how many did so
	// in a row. It is called from Run's goroutine and must not block.
	OnHang func(plugin Applier, inARow int)
}

// Applied is what became of one Apply.
type Applied struct {
	Plugin   Applier
	Revision uint64
	Full     bool
	// Upserts and Deletes are how many services were sent.
	Upserts, Deletes int
	// Failed is how many of them the plugin could not carry.
	Failed int
	// Duration of the call.
	Duration time.Duration
	// Latency from the making of the snapshot to its acknowledgement; zero for
	// a check without changes, a retry, or an error.
	Latency time.Duration
	Err     error
}

// State of a session, in the words that operators read.
type State string

// The states of a session.
const (
	// StateDisconnected means that there is no plugin.
	StateDisconnected State = "disconnected"
	// StateWaiting means that a source is still to be read.
	StateWaiting State = "waiting for sources"
	// StateHeld means that SetHold has stopped the session.
	StateHeld State = "held"
	// StateApplying means that an Apply is in flight.
	StateApplying State = "applying"
	// StateBackoff means that an Apply failed as a whole and is to be tried
	// again.
	StateBackoff State = "retrying"
	// StatePending means that changes wait for their turn.
	StatePending State = "pending"
	// StateSynced means that the plugin has acknowledged all there is; single
	// services may have failed.
	StateSynced State = "synced"
	// StateSuperseded means that the plugin obeys a newer core: nothing is
	// sent any more.
	StateSuperseded State = "superseded"
)

// Status of a session at one moment.
type Status struct {
	Dataplane string
	State     State
	// WantedRevision is that of the newest snapshot; 0 before the first.
	WantedRevision uint64
	// AcknowledgedRevision is the newest with which the plugin agrees: it
	// follows WantedRevision when a snapshot changes nothing here.
	AcknowledgedRevision uint64
	// WaitingSince is since when something waits for acknowledgement; zero
	// when nothing does. Services that the plugin has refused don't count.
	WaitingSince time.Time
	// LastError is why the last Apply failed as a whole; empty once one has
	// succeeded.
	LastError     string
	LastErrorTime time.Time
	// NextAttempt is when a failed Apply is tried again; zero otherwise.
	NextAttempt time.Time

	// Counts since the session was made.
	FullApplies, DifferenceApplies, CheckApplies uint64
	FailedApplies                                uint64
	ServicesUpserted, ServicesDeleted            uint64
	// LastApply is when the last successful Apply ended, and LastDuration how
	// long it took.
	LastApply    time.Time
	LastDuration time.Duration

	// Acknowledged is how many services the plugin carries as asked.
	Acknowledged int
	// Failed holds, by id, the services that the plugin could not carry.
	Failed map[string]Failure
}

// Failure is why a plugin does not carry one service as asked.
type Failure struct {
	Err string
	// Since is when the service first failed in a row of Attempts.
	Since    time.Time
	Attempts int
	// NextRetry is the earliest time at which it is sent again.
	NextRetry time.Time
}

// Ack is what the plugin has said of one service.
type Ack struct {
	// Revision at which the plugin took the service in the form it has now; 0
	// if it never did.
	Revision uint64
	// Current means that this form is the desired one.
	Current bool
	// Failure is set while the plugin can't carry it as asked.
	Failure *Failure
}

// fill puts the defaults in.
func (o *Options) fill() {
	setDefault(&o.SyncInterval, 30*time.Second)
	setDefault(&o.ApplyTimeout, 30*time.Second)
	setDefault(&o.MinInterval, 10*time.Millisecond)
	setDefault(&o.GraceForSources, 5*time.Second)
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d <= 0 {
		*d = value
	}
}
