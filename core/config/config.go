// Package config reads configuration files into a [Config].
//
// In go HCL2 or JSON files, or a directory of them; out come a Config and
// diagnostics with file, line and source line for every mistake at once. The
// agent and the command line call it. What belongs to a plugin (the rest of a
// dataplane block, a service's options) stays undecoded until the plugin's
// schema is at hand.
package config

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// Config is what the files say, with every default filled in. It is immutable
// once loaded.
type Config struct {
	DataDir   string
	PluginDir string
	// WatchFiles makes the agent reload by itself when a file changes.
	WatchFiles bool
	// SyncInterval is how often a dataplane checks itself.
	SyncInterval time.Duration

	Agent      Agent
	Node       Node
	Pools      []Pool
	Dataplanes []Dataplane
	// Services are the service blocks in the order of the files, defaults
	// applied.
	Services []*Service
	// Consul is where services are discovered; nil for nowhere. Defaults are
	// those of a discovered service that has no block; nil without a source.
	Consul   *Consul  `json:",omitempty"`
	Defaults *Service `json:",omitempty"`

	// Files that were read, in order, the directories that were given, and the
	// files that file() included, as absolute paths: what to watch. Those that
	// plugins' arguments include are known once bound.
	Files []string

	// sources are the files' contents and where their expressions are
	// evaluated; Bind needs both.
	sources *sources
	// spare are blocks that don't count, because their name is wrong or taken:
	// what else is wrong with them is reported all the same.
	spare struct {
		dataplanes []Dataplane
		services   []*Service
	}
}

// Dataplane gives the block of that name, or the default one for "". It is nil
// when there is none.
func (c *Config) Dataplane(name string) *Dataplane {
	for i := range c.Dataplanes {
		if d := &c.Dataplanes[i]; d.Name == name || name == "" && d.Default {
			return d
		}
	}
	return nil
}

// Agent holds the settings of the agent block.
type Agent struct {
	LogLevel  string // trace, debug, info, warn, error
	LogFormat string // text, json
	// Socket is the path of the admin API's unix socket.
	Socket string
	// HTTP is the TCP address of /metrics and /healthz; empty for none.
	HTTP string
	// User and Group of the socket's readers; empty for the agent's own.
	User, Group string
}

// Node describes the node that the agent runs on.
type Node struct {
	Zone string
	// Addresses where node frontends listen; empty for the address of the
	// default route.
	Addresses []netip.Addr
	// LocalNetworks are networks for which this node is the only gateway.
	LocalNetworks []netip.Prefix
}

// Pool is a vip_pool block.
type Pool struct {
	Name string
	// CIDR holds one range per family.
	CIDR []netip.Prefix
	// Store of the leases: file, or later consul.
	Store string
	Range hcl.Range
}

// Dataplane is a dataplane block: the core's arguments, and the body whose
// remaining arguments belong to the plugin.
type Dataplane struct {
	Name    string
	Default bool
	// Version constrains the plugin, as in "~> 1.0"; empty for any.
	Version string
	// SHA256 that the plugin's file must have, hex; empty for any.
	SHA256       string
	User         string
	Capabilities []string
	AutoUpgrade  bool
	// Body is the whole block, for the check against the plugin's schema.
	Body  hcl.Body
	Range hcl.Range
	// PluginJSON is the plugin's part, in the form of ConfigureRequest's
	// config_json; nil until decoded against a schema.
	PluginJSON json.RawMessage
}

// Service is a service block: what to do with a discovered service, or a
// static one when it has endpoints.
type Service struct {
	Name string
	// VIP addresses, one per family at most; empty to take one from a pool.
	VIP []netip.Addr
	// VIPService shares the VIPs of another service: vip = service("web").
	VIPService string
	// Pool to take the VIP from; empty for the first.
	Pool      string
	Port      uint16 // 0 where the file doesn't say
	Protocols []dataplane.Protocol
	NodePort  uint16 // 0 for none
	External  []netip.Addr
	Dataplane string // empty for the default dataplane
	Balance   string
	Affinity  time.Duration
	Warning   string // use, weigh, drop
	Prefer    string // node, zone, none
	Allow     []netip.Prefix

	Masquerade dataplane.Masquerade
	OnEmpty    dataplane.EmptyAction
	OnDrainEnd dataplane.DrainEndAction
	// Drain is how long an endpoint that leaves keeps its connections.
	Drain time.Duration

	// Options is the expression of the options argument, nil when absent;
	// OptionsJSON is what it comes to by the plugin's schema.
	Options     hcl.Expression
	OptionsJSON json.RawMessage

	Endpoints []Endpoint
	Check     *Check
	Range     hcl.Range

	balanceAt *hcl.Range
}

// Static tells whether the block has endpoints of its own.
func (s *Service) Static() bool { return len(s.Endpoints) > 0 }

// Endpoint is an endpoint block of a static service.
type Endpoint struct {
	// Host is an address or a host name, which is resolved again at its TTL.
	Host   string
	Port   uint16
	Weight uint32
	Zone   string
	Range  hcl.Range
}

// Check is how the core checks the endpoints of a static service.
type Check struct {
	// TCP is set for a check that connects; HTTP is the path of one that asks
	// and wants a status of 200 to 399. One of the two.
	TCP               bool
	HTTP              string
	Interval, Timeout time.Duration
	// Rise successes in a row make an endpoint healthy, Fall failures unhealthy.
	Rise, Fall int
}
