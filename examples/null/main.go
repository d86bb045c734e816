// Command patchbay-dataplane-null is the smallest dataplane plugin: it carries
// no traffic, and remembers what it was told. Read it as a first example, and
// run it to see what the core sends.
package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// The name must be that of the file: patchbay-dataplane-null_v1.0.0.
const (
	name    = "null"
	version = "1.0.0"
)

func main() { dataplane.Serve(&null{services: map[string]*dataplane.Service{}}) }

// config is what a dataplane "null" block takes. The tags are the schema: the
// core checks the file by them and fills in the defaults.
type config struct {
	_          struct{} `description:"Carries no traffic and remembers what it is told."`
	LogUpdates bool     `name:"log_updates" default:"false" description:"Log every update."`
}

// options are what a service's options take when this dataplane carries it.
type options struct {
	Comment string `name:"comment" description:"Shown by explain."`
}

type null struct {
	mu       sync.Mutex // Inspect and Statistics come while Apply runs
	config   *config
	services map[string]*dataplane.Service
	updates  int
}

// Describe says what the plugin is. The core refuses a service that needs what
// is not claimed here; who does nothing can claim all that a service may ask.
func (n *null) Describe() dataplane.Description {
	return dataplane.Description{
		Name: name, Version: version, Config: &config{}, Options: &options{},
		Capabilities: dataplane.Capabilities{
			Protocols:     []dataplane.Protocol{dataplane.TCP, dataplane.UDP, dataplane.SCTP},
			Families:      []dataplane.Family{dataplane.IPv4, dataplane.IPv6},
			FrontendKinds: []dataplane.FrontendKind{dataplane.Virtual, dataplane.Node, dataplane.External},
			Balance: []string{
				dataplane.BalanceRoundRobin, dataplane.BalanceLeastConnections, dataplane.BalanceRandom,
				dataplane.BalanceSourceHash, dataplane.BalanceMaglev,
			},
			Affinity: true, Weights: true, Draining: true, SourceFilter: true,
			Statistics: true, // all of them zero
			CleansHost: true, // nothing is ever there
		},
	}
}

// Configure comes before the first Apply, and again when the file changes. A
// real dataplane looks here for what an earlier process left, and adopts it.
func (n *null) Configure(_ context.Context, c dataplane.Config) (dataplane.Adopted, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.config = c.Block.(*config)
	return dataplane.Adopted{}, nil
}

// Apply could also take update.Services(), the whole desired state, and work
// out the rest by itself.
func (n *null) Apply(_ context.Context, update *dataplane.Update) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range update.Upserted() {
		n.services[s.ID] = s // or update.Fail(s.ID, why) for one that can't be carried
	}
	for _, id := range update.Removed() {
		delete(n.services, id)
	}
	n.updates++
	if n.config.LogUpdates {
		dataplane.Logger().Info("applied", "revision", update.Revision(), "services", len(n.services),
			"upserted", len(update.Upserted()), "removed", len(update.Removed()))
	}
	return nil
}

// Close has nothing to leave in place, to drain or to remove.
func (n *null) Close(context.Context, dataplane.CloseMode) error { return nil }

// Inspect is optional: it answers `patchbay explain`.
func (n *null) Inspect(_ context.Context, id string) (string, any, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.services[id]
	if s == nil {
		return "", nil, dataplane.ErrUnknownService
	}
	detail := map[string]any{
		"endpoints": len(s.Endpoints), "updates": n.updates, "comment": s.Options.(*options).Comment,
	}
	return fmt.Sprintf("remembered with %d endpoints after %d updates", len(s.Endpoints), n.updates), detail, nil
}

// Statistics is optional: it feeds the core's metrics.
func (n *null) Statistics(context.Context) ([]dataplane.ServiceStatistics, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]dataplane.ServiceStatistics, 0, len(n.services))
	for id, s := range n.services {
		one := dataplane.ServiceStatistics{ID: id}
		for _, e := range s.Endpoints {
			one.Endpoints = append(one.Endpoints, dataplane.EndpointStatistics{Address: e.Address})
		}
		out = append(out, one)
	}
	return out, nil
}
