package admin

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// ServiceState says how a service fares, in one word.
type ServiceState string

// The states of a service, from best to worst.
const (
	// StateOK is carried as asked: the dataplane has acknowledged it.
	StateOK ServiceState = "ok"
	// StateDegraded is carried, with a flaw that the reason names: no usable
	// endpoint, an endpoint that can't be used, a plugin that doesn't run.
	StateDegraded ServiceState = "degraded"
	// StateWaiting isn't acknowledged yet; the reason names what it waits for.
	StateWaiting ServiceState = "waiting"
	// StateFailed is a service that its dataplane could not carry.
	StateFailed ServiceState = "failed"
	// StateRejected is a service that the core refuses.
	StateRejected ServiceState = "rejected"
)

// ServiceStates lists all states, from best to worst.
func ServiceStates() []ServiceState {
	return []ServiceState{StateOK, StateDegraded, StateWaiting, StateFailed, StateRejected}
}

// View heads every list: what the list belongs to.
type View struct {
	// Index changes with everything that the lists show, also with an
	// acknowledgement that leaves the revision alone; ?index=N&wait=30s waits
	// until it differs from N.
	Index uint64 `json:"index"`
	// Revision of the snapshot.
	Revision uint64 `json:"revision"`
}

// Status is the body of GET /v1/status.
type Status struct {
	View
	Version       string            `json:"version"`
	PID           int               `json:"pid"`
	StartedAt     time.Time         `json:"started_at"`
	Session       uint64            `json:"session"`
	DataDir       string            `json:"data_dir"`
	PluginDir     string            `json:"plugin_dir"`
	NodeAddresses []netip.Addr      `json:"node_addresses"`
	ConfigFiles   []string          `json:"config_files"`
	WatchFiles    bool              `json:"watch_files"`
	SyncInterval  Seconds           `json:"sync_interval_seconds"`
	Services      int               `json:"services"`
	ByState       map[string]int    `json:"services_by_state"`
	Sources       []SourceStatus    `json:"sources"`
	Dataplanes    []DataplaneStatus `json:"dataplanes"`
	// LastReload is the last attempt to load the configuration anew.
	LastReload *Reload `json:"last_reload,omitempty"`
	// Problems are what an operator should see to, beyond single services.
	Problems []string `json:"problems,omitempty"`
	Health   Health   `json:"health"`
}

// SourceStatus is how one source fares.
type SourceStatus struct {
	Name string `json:"name"`
	// Read is set once it has been read, or has given its saved state.
	Read       bool       `json:"read"`
	StaleSince *time.Time `json:"stale_since,omitempty"`
	Error      string     `json:"error,omitempty"`
}

// DataplaneStatus is how the way to one dataplane fares.
type DataplaneStatus struct {
	Name string `json:"name"`
	// Connected is set while the plugin runs and is configured.
	Connected bool `json:"connected"`
	// State of the plugin's process, in a word.
	State string `json:"state"`
	// Acknowledged is the newest revision that it has acknowledged; 0 for none.
	Acknowledged uint64 `json:"acknowledged_revision"`
	// WaitingSince is when the oldest change was made that it has not yet
	// acknowledged; absent when there is none.
	WaitingSince *time.Time `json:"waiting_since,omitempty"`
	// SilentSince is since when a plugin that runs has not answered; absent
	// when it answers.
	SilentSince *time.Time `json:"silent_since,omitempty"`
	// Holding is what keeps the core from sending, such as an unread source.
	Holding string `json:"holding,omitempty"`
	// Error is why the plugin doesn't run, or the last Apply failed as a whole.
	Error string `json:"error,omitempty"`
}

// Silence says for how long the plugin has not answered; empty when it does.
func (d *DataplaneStatus) Silence(now time.Time) string {
	if d.SilentSince == nil {
		return ""
	}
	return fmt.Sprintf("its plugin has not answered for %s", now.Sub(*d.SilentSince).Round(time.Second))
}

// ServiceList is the body of GET /v1/services.
type ServiceList struct {
	View
	Services []Service `json:"services"`
	// Sources that the services come from, the stale ones among them.
	Sources []SourceStatus `json:"sources"`
}

// Service is one service as its operator sees it.
type Service struct {
	ID     string       `json:"id"`
	State  ServiceState `json:"state"`
	Reason string       `json:"reason,omitempty"`
	Source string       `json:"source,omitempty"`
	// Dataplane that carries it.
	Dataplane string     `json:"dataplane,omitempty"`
	Frontends []Frontend `json:"frontends"`
	// Endpoints by state.
	Endpoints EndpointCount `json:"endpoints"`
	// Acknowledged is the revision at which the dataplane has acknowledged the
	// service as it is now; 0 while it has not.
	Acknowledged uint64   `json:"acknowledged_revision"`
	Notes        []string `json:"notes,omitempty"`
}

// Frontend is an address at which a service is reached.
type Frontend struct {
	Kind     dataplane.FrontendKind `json:"kind"`
	Address  netip.Addr             `json:"address"`
	Port     uint16                 `json:"port"`
	Protocol dataplane.Protocol     `json:"protocol"`
}

// EndpointCount counts the endpoints of a service by state.
type EndpointCount struct {
	Active   int `json:"active"`
	Draining int `json:"draining"`
	// Unused instances are known to the source and not given to the dataplane.
	Unused int `json:"unused"`
}

// ServiceDetail is the body of GET /v1/services/NAME.
type ServiceDetail struct {
	View
	Service   Service       `json:"service"`
	Policy    ServicePolicy `json:"policy"`
	Endpoints []Endpoint    `json:"endpoints"`
}

// ServicePolicy is what the dataplane was told to do with the service.
type ServicePolicy struct {
	Balance    string          `json:"balance,omitempty"`
	Affinity   Seconds         `json:"affinity_seconds,omitempty"`
	Drain      Seconds         `json:"drain_seconds,omitempty"`
	OnEmpty    string          `json:"on_empty,omitempty"`
	OnDrainEnd string          `json:"on_drain_end,omitempty"`
	Masquerade string          `json:"masquerade,omitempty"`
	Allow      []netip.Prefix  `json:"allow,omitempty"`
	Options    json.RawMessage `json:"options,omitempty"`
}

// EndpointList is the body of GET /v1/endpoints and of
// GET /v1/services/NAME/endpoints.
type EndpointList struct {
	View
	Endpoints []Endpoint `json:"endpoints"`
}

// Endpoint is one instance of a service.
type Endpoint struct {
	Service string `json:"service"`
	Address string `json:"address"`
	Port    uint16 `json:"port"`
	Weight  uint32 `json:"weight"`
	// State that the dataplane was given: active or draining; "unused" for an
	// instance that it was not given.
	State         string     `json:"state"`
	DrainDeadline *time.Time `json:"drain_deadline,omitempty"`
	// Health by the source: passing, warning, critical or maintenance; empty
	// for an endpoint that the source no longer has.
	Health string `json:"health,omitempty"`
	Reason string `json:"reason,omitempty"`
	Zone   string `json:"zone,omitempty"`
	Node   string `json:"node,omitempty"`
	Local  bool   `json:"local,omitempty"`
	// Statistics since the plugin's start; absent where it gives none.
	Statistics *Counters `json:"statistics,omitempty"`
}

// Counters are totals since the plugin's start.
type Counters struct {
	Connections uint64 `json:"connections"`
	Active      uint64 `json:"active_connections"`
	BytesIn     uint64 `json:"bytes_in"`
	BytesOut    uint64 `json:"bytes_out"`
	Failed      uint64 `json:"failed_connections"`
}

// PluginList is the body of GET /v1/plugins.
type PluginList struct {
	View
	Plugins []Plugin `json:"plugins"`
}

// Plugin is one dataplane's plugin and its process.
type Plugin struct {
	Name string `json:"name"`
	// State in a word, such as running, starting, backoff, missing, held.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Version and path of the binary that runs, or would.
	Version   string     `json:"version,omitempty"`
	Path      string     `json:"path,omitempty"`
	PID       int        `json:"pid,omitempty"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	Protocol  int        `json:"protocol,omitempty"`
	// Starts and Crashes since the agent's start.
	Starts  int `json:"starts"`
	Crashes int `json:"crashes"`
	// NextStart is when it will be tried again; absent when that isn't due.
	NextStart    *time.Time `json:"next_start,omitempty"`
	Default      bool       `json:"default,omitempty"`
	Services     int        `json:"services"`
	Acknowledged uint64     `json:"acknowledged_revision"`
	Log          string     `json:"log,omitempty"`
}

// Explanation is the body of GET /v1/explain?address=ADDRESS:PORT.
type Explanation struct {
	View
	Address netip.AddrPort `json:"address"`
	// Verdict in one sentence.
	Verdict string `json:"verdict"`
	// Service that owns the frontend; absent when none does.
	Service   *Service   `json:"service,omitempty"`
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// Related names services that come near: the same address with another
	// port, or refused though they ask for this one.
	Related []Service `json:"related,omitempty"`
	// Pool that holds the address, and the service that has the lease.
	Pool       string `json:"pool,omitempty"`
	LeaseOwner string `json:"lease_owner,omitempty"`
	// InForce is what the plugin says is in force now.
	InForce *InForce `json:"in_force,omitempty"`
}

// InForce is what a plugin says of one service.
type InForce struct {
	Dataplane string          `json:"dataplane"`
	Text      string          `json:"text,omitempty"`
	Detail    json.RawMessage `json:"detail,omitempty"`
	Error     string          `json:"error,omitempty"`
}

// Plan is the body of GET /v1/plan: what a reload would change.
type Plan struct {
	View
	// Valid is false when the files have mistakes: a reload would change
	// nothing.
	Valid bool `json:"valid"`
	Findings
	Changes []PlannedChange `json:"changes"`
}

// PlannedChange is one thing that a reload would change.
type PlannedChange struct {
	// Action is add, change or remove.
	Action string `json:"action"`
	// Kind is service, dataplane, vip_pool or setting.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Details say what would change, one line each.
	Details []string `json:"details,omitempty"`
}

// Findings are the mistakes and doubts in configuration files.
type Findings struct {
	Diagnostics []config.Diagnostic `json:"diagnostics,omitempty"`
	// Omitted is how many more there were.
	Omitted int `json:"diagnostics_omitted,omitempty"`
	// Text is what a terminal shows of them, source lines included.
	Text string `json:"diagnostics_text,omitempty"`
}

// FindingsOf gives the findings of a Load or a Bind.
func FindingsOf(d *config.Diagnostics) Findings {
	if d.Len() == 0 {
		return Findings{}
	}
	var text strings.Builder
	_ = d.WriteText(&text, false)
	return Findings{Diagnostics: d.All(), Omitted: d.Omitted(), Text: text.String()}
}

// Reload is one attempt to load the configuration anew, and the body of the
// answer to POST /v1/reload.
type Reload struct {
	Time time.Time `json:"time"`
	// Trigger is start, api, signal or files.
	Trigger string `json:"trigger"`
	// OK is false when the files had mistakes; the configuration of before is
	// in force then.
	OK bool `json:"ok"`
	// Changed is false when the files say the same as before.
	Changed bool `json:"changed"`
	Findings
	// Notes name settings that take effect at the next start only.
	Notes []string `json:"notes,omitempty"`
	// Accepted are the sources whose losses were accepted, where that was asked
	// for.
	Accepted []string `json:"accepted,omitempty"`
	Revision uint64   `json:"revision"`
}

// LeaseList is the body of GET /v1/vip/leases.
type LeaseList struct {
	View
	Leases []Lease `json:"leases"`
}

// Lease is the record that a service holds addresses of a pool, or that they
// rest after it gave them back.
type Lease struct {
	Pool      string       `json:"pool"`
	Service   string       `json:"service"`
	Addresses []netip.Addr `json:"addresses"`
	// Since is when the service got them.
	Since time.Time `json:"since"`
	// RestsUntil is set for addresses that were given back and aren't given to
	// others before.
	RestsUntil *time.Time `json:"rests_until,omitempty"`
	// InUse is set while a service of the snapshot has the addresses.
	InUse bool `json:"in_use"`
}

// Version is the body of GET /v1/version and of `patchbay version`.
type Version struct {
	Version  string `json:"version"`
	Revision string `json:"vcs_revision,omitempty"`
	Time     string `json:"vcs_time,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// Protocol is the version of the plugin contract.
	Protocol int `json:"protocol"`
}

// Error is the body of every answer that is an error, under "error", and what
// [Client] gives for it.
type Error struct {
	// Status of the answer.
	Status  int    `json:"-"`
	Message string `json:"message"`
	// Hint says what to do about it; may be empty.
	Hint string `json:"hint,omitempty"`
}

// Error gives message and hint.
func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + " (" + strings.TrimSuffix(e.Hint, ".") + ")"
}

type errorBody struct {
	Error *Error `json:"error"`
}

// Seconds is a duration that JSON holds as a number of seconds.
type Seconds time.Duration

// MarshalJSON gives the number of seconds.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(s).Seconds())
}

// UnmarshalJSON takes a number of seconds.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	*s = Seconds(f * float64(time.Second))
	return nil
}
