package dataplane

import (
	"context"
	"net/netip"
	"time"
)

// ProtocolVersion is the major version of the contract that this package
// speaks, the 1 of patchbay.dataplane.v1.
const ProtocolVersion = 1

// Dataplane is the one type that an author writes. Calls of Configure, Apply
// and Close never overlap; Describe may be called at any time.
type Dataplane interface {
	// Describe tells what the plugin is. It changes nothing and is called
	// before everything else.
	Describe() Description
	// Configure sets the dataplane up, or anew while it runs. It is
	// idempotent: what is in place already is adopted, not torn down.
	Configure(ctx context.Context, config Config) (Adopted, error)
	// Apply brings the dataplane to the state of the update. A service that
	// can't be carried is reported with [Update.Fail] and stops no other; an
	// error means that the state reached is unknown, and the core will send
	// everything again. Applying the same state twice changes nothing.
	Apply(ctx context.Context, update *Update) error
	// Close ends the dataplane in one of three ways. The process ends when it
	// has returned. It may come without Configure.
	Close(ctx context.Context, mode CloseMode) error
}

// Validator is implemented by a dataplane whose configuration has rules that
// the schema can't say. Validate changes nothing and may come before
// Configure.
type Validator interface {
	Validate(ctx context.Context, config Config) []Diagnostic
}

// Statistician is implemented by a dataplane that counts.
type Statistician interface {
	// Statistics gives the totals since the plugin's start. The slice is the
	// caller's.
	Statistics(ctx context.Context) ([]ServiceStatistics, error)
}

// Inspector is implemented by a dataplane that can tell what is in force for
// one service, for `patchbay explain`.
type Inspector interface {
	// Inspect gives text for an operator and a value that encodes to JSON. An
	// unknown id is [ErrUnknownService].
	Inspect(ctx context.Context, id string) (text string, detail any, err error)
}

// Holder is implemented by a dataplane that does things of its own accord,
// such as repairing drift or ending drain times.
type Holder interface {
	// Hold with true makes the dataplane write nothing but what Apply asks
	// for, until Hold with false.
	Hold(ctx context.Context, hold bool) error
}

// Notifier is implemented by a dataplane that repairs what others change.
type Notifier interface {
	// Drift gives a channel of what was found changed. It is called once,
	// before Configure.
	Drift() <-chan Drift
}

// Description is what a plugin says of itself.
type Description struct {
	// Name of the dataplane, as in the name of its file:
	// patchbay-dataplane-NAME_vVERSION.
	Name string
	// Semantic version, without a leading v.
	Version      string
	Capabilities Capabilities
	Privileges   Privileges
	// Config is a pointer to a zero value of the author's struct for the
	// dataplane block, whose tags give its schema (package schema); nil for a
	// block without arguments.
	Config any
	// Options is the same for the options of a service.
	Options any
}

// Capabilities say what a dataplane can carry. The core refuses, with the
// reason, a service that needs what is missing here.
type Capabilities struct {
	Protocols     []Protocol     `json:"protocols"`
	Families      []Family       `json:"families"`
	FrontendKinds []FrontendKind `json:"frontend_kinds"`
	// Balance methods; the first is the dataplane's own default.
	Balance            []string `json:"balance"`
	Affinity           bool     `json:"affinity"`
	Weights            bool     `json:"weights"`
	Draining           bool     `json:"draining"`
	Statistics         bool     `json:"statistics"`
	KeepsClientAddress bool     `json:"keeps_client_address"`
	RefusesUnusedPorts bool     `json:"refuses_unused_ports"`
	SourceFilter       bool     `json:"source_filter"`
	SurvivesProcess    bool     `json:"survives_process"`
	RepairsFlush       bool     `json:"repairs_flush"`
	CleansHost         bool     `json:"cleans_host"`
}

// Privileges are what a plugin needs beyond those of an ordinary user.
type Privileges struct {
	// Capabilities by the kernel's names, such as CAP_NET_ADMIN.
	Capabilities []string `json:"capabilities"`
	// Root is set where user id 0 is needed besides.
	Root bool `json:"root"`
}

// Config is what Configure gets.
type Config struct {
	// Block is of the type of Description.Config, filled from the dataplane
	// block; nil where Description.Config is.
	Block any
	// StateDir is a folder of this plugin's alone; it outlives the process.
	StateDir string
	// NodeAddresses are where node frontends listen.
	NodeAddresses []netip.Addr
	// Pools are the ranges from which VIPs are taken.
	Pools []netip.Prefix
	// LocalNetworks are those for which this node is the only gateway.
	LocalNetworks []netip.Prefix
}

// Adopted says what Configure found in place.
type Adopted struct {
	// Services of ours that carry traffic already. While this is above zero,
	// the core sends nothing until every source has been read.
	Services int
}

// CloseMode says how a dataplane ends.
type CloseMode int

// The ways to end.
const (
	// CloseDetach leaves everything in place that outlives the process.
	CloseDetach CloseMode = iota + 1
	// CloseHandover does the same for a successor that is ready; Close
	// returns when what only this process can carry has drained.
	CloseHandover
	// CloseCleanup removes every trace from the host.
	CloseCleanup
)

// Diagnostic is one finding about a dataplane block.
type Diagnostic struct {
	// Warning is false for an error.
	Warning bool
	Summary string
	Detail  string
	// Path to the argument within the block; empty for the whole block.
	Path []string
}

// Drift is something of ours that others changed.
type Drift struct {
	// Service concerned; empty when it is none alone.
	Service  string
	Message  string
	Repaired bool
}

// ServiceStatistics are the totals of one service since the plugin's start.
type ServiceStatistics struct {
	ID string
	Counters
	// Refused counts connections refused by a limit or by the allowed sources.
	Refused   uint64
	Endpoints []EndpointStatistics
}

// EndpointStatistics are the totals of one endpoint of a service.
type EndpointStatistics struct {
	Address netip.AddrPort
	Counters
}

// Counters of connections and bytes.
type Counters struct {
	Connections uint64
	// Active connections now.
	Active uint64
	// BytesIn from clients to endpoints, BytesOut back.
	BytesIn, BytesOut uint64
	// Failed attempts: of a service, connections that no endpoint took.
	Failed uint64
}

// Result is what an Apply came to.
type Result struct {
	Revision          uint64
	Upserted, Removed int
	Duration          time.Duration
	// Failed holds the reason for each service that could not be carried.
	Failed map[string]string
}
