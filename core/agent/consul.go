package agent

import (
	"context"
	"os"
	"path/filepath"

	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source/consul"
)

// discovery is the source "consul" while the configuration has one.
type discovery struct {
	source *consul.Source
	stop   context.CancelFunc
	done   chan struct{}
}

func consulSettings(block *config.Consul) consul.Settings {
	return consul.Settings{
		Address: block.Address, Datacenter: block.Datacenter, Token: block.Token, TokenFile: block.TokenFile,
		TLS:    consul.TLS{CAFile: block.CAFile, CertFile: block.CertFile, KeyFile: block.KeyFile, ServerName: block.ServerName},
		Select: block.Select, Exclude: block.Exclude, DefaultPort: block.DefaultPort, MaxBlocking: block.MaxBlocking, Hold: block.Hold,
	}
}

// policyOf is what the catalog applies of a configuration.
func policyOf(bound *config.Config, node catalog.NodeFacts) catalog.Policy {
	policy := catalog.Policy{Config: bound, Node: node, Defaults: bound.Defaults}
	if bound.Consul != nil {
		policy.Sources = []string{consul.Name}
	}
	return policy
}

// discover brings the source "consul" to the configuration in force: starts,
// changes or ends it. The caller holds changing.
func (a *Agent) discover(bound *config.Config) {
	a.mu.Lock()
	running := a.discovery
	a.mu.Unlock()
	var next *discovery
	switch {
	case bound.Consul == nil && running == nil:
		return
	case bound.Consul == nil:
		running.stop()
		<-running.done
		// Should it come back, what was known is long out of date.
		_ = os.Remove(filepath.Join(a.dataDir, consulName))
	case running != nil:
		if err := running.source.Set(consulSettings(bound.Consul)); err != nil {
			a.problem("the source \"consul\" keeps its settings of before", err)
		}
		return
	default:
		var err error
		if next, err = a.startDiscovery(bound.Consul); err != nil {
			a.problem("the source \"consul\" can't be started", err)
			return
		}
	}
	a.mu.Lock()
	a.discovery = next
	a.mu.Unlock()
}

func (a *Agent) startDiscovery(block *config.Consul) (*discovery, error) {
	source, err := consul.New(consulSettings(block), consul.Options{
		StatePath: filepath.Join(a.dataDir, consulName),
		Logger:    a.log.Named("consul"),
	})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(a.running)
	d := &discovery{source: source, stop: stop, done: make(chan struct{})}
	a.wg.Go(func() {
		defer close(d.done)
		defer stop()
		a.runPart(consul.Name, func(context.Context) error { return source.Run(ctx, a.catalog) })
	})
	return d, nil
}

// AcceptEmpty implements admin.Backend.
func (a *Agent) AcceptEmpty() []string {
	a.mu.Lock()
	d := a.discovery
	a.mu.Unlock()
	if d == nil || !d.source.AcceptEmpty() {
		return []string{}
	}
	a.log.Warn("an operator accepts what the source says, though it has lost services", "source", consul.Name)
	a.notice.bump()
	return []string{consul.Name}
}
