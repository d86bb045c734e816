package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/pluginhost"
	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// start starts the plugins, checks the configuration against what they say of
// themselves, and brings it into force.
func (a *Agent) start(ctx context.Context, loaded *config.Config, began time.Time, diagnostics *config.Diagnostics) error {
	if err := a.changing.acquire(ctx); err != nil {
		return err
	}
	defer a.changing.release()
	for i := range loaded.Dataplanes {
		a.newCarrier(loaded, &loaded.Dataplanes[i], nil)
	}
	unasked := config.Unasked{Why: a.awaitDescriptions(ctx, loaded)}

	schemas := map[string]config.PluginSchema{}
	for _, c := range a.allCarriers() {
		if description := c.described(); description != nil && unasked.Why[c.name] == nil {
			schemas[c.name] = schemaOf(description)
		}
	}
	bound, found := config.Bind(loaded, schemas, unasked)
	diagnostics.Append(found)
	diagnostics.Append(a.validateAll(ctx, bound, schemas))
	if diagnostics.HasErrors() {
		return &InvalidConfigError{diagnostics}
	}
	a.logWarnings(diagnostics)

	static := a.static.Preview(bound.Services)
	a.adopt(loaded, bound, schemas, static)
	a.static.Set(bound.Services)
	a.recordReload(admin.Reload{Time: time.Now().UTC(), Trigger: "start", OK: true, Changed: true,
		Findings: admin.FindingsOf(diagnostics), Revision: a.catalog.Snapshot().Revision})
	unsubscribe := a.catalog.Subscribe(func(catalog.Change) { a.notice.bump() })
	a.wg.Go(func() {
		defer unsubscribe()
		a.runPart("catalog", a.catalog.Run)
	})
	a.wg.Go(func() {
		a.runPart("static", func(ctx context.Context) error { return a.static.Run(ctx, a.catalog) })
	})
	a.discover(bound)
	a.watchFiles(bound, began)
	a.wg.Go(func() { a.files.run(a.running) })
	close(a.inForceOnce)
	return nil
}

// runPart runs a part until the agent stops; an end before that is a problem.
func (a *Agent) runPart(name string, run func(context.Context) error) {
	if err := run(a.running); err != nil && !errors.Is(err, context.Canceled) {
		a.problem("a part of the agent has ended", fmt.Errorf("%s: %w", name, err))
	}
}

// described gives what the plugin that runs says of itself, or nil.
func (c *carrier) described() *dataplane.HostDescription {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return nil
	}
	return c.description
}

// failing tells whether the plugin is known not to run for now.
func (c *carrier) failing() bool {
	switch c.supervisor.Status().State {
	case pluginhost.StateMissing, pluginhost.StateBackoff, pluginhost.StateHeld:
		return true
	}
	return false
}

func schemaOf(d *dataplane.HostDescription) config.PluginSchema {
	return config.PluginSchema{Config: d.ConfigSchema, Options: d.OptionsSchema, Balance: d.Capabilities.Balance}
}

// validate asks the plugin that runs what it has against its block.
func (c *carrier) validate(ctx context.Context, bound *config.Config) ([]dataplane.Diagnostic, error) {
	c.mu.Lock()
	client := c.client
	c.mu.Unlock()
	block := bound.Dataplane(c.name)
	if client == nil || block == nil || block.PluginJSON == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, configureTimeout)
	defer cancel()
	return client.ValidateConfig(ctx, block.PluginJSON)
}

// adopt brings a bound configuration into force in the catalog; static is what
// the static source will say of it, nil when that stays as it is. The caller
// holds changing.
func (a *Agent) adopt(loaded, bound *config.Config, schemas map[string]config.PluginSchema, static []*source.Service) {
	node := nodeFacts(bound)
	a.mu.Lock()
	if len(bound.Node.Addresses) == 0 && (a.config == nil || len(a.config.Node.Addresses) == 0) {
		node.Addresses = keepFamilies(a.node.Addresses, node.Addresses)
	}
	a.loaded, a.config, a.schemas, a.node = loaded, bound, schemas, node
	a.mu.Unlock()
	policy := policyOf(bound, node)
	policy.Static = static
	a.catalog.Configure(policy)
}

// boundTo gives the configuration that a carrier is to be configured by: the
// one in force, bound to the schema of its plugin, where it isn't yet: of one
// that was not there at the start, or comes in another version. For a carrier
// whose block is gone it is the last that had it.
func (a *Agent) boundTo(ctx context.Context, c *carrier) (*config.Config, map[string]config.PluginSchema, error) {
	c.mu.Lock()
	parting, process, description := c.parting, c.process, c.description
	c.mu.Unlock()
	if process == nil {
		return nil, nil, errors.New("the plugin is gone")
	}
	wanted := schemaOf(description)
	if parting != nil {
		return parting, map[string]config.PluginSchema{c.name: wanted}, nil
	}
	fits := func() (*config.Config, map[string]config.PluginSchema, bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		have, ok := a.schemas[c.name]
		return a.config, a.schemas, ok && sameSchema(have, wanted)
	}
	if bound, schemas, ok := fits(); ok {
		return bound, schemas, nil
	}
	if err := a.changing.acquire(ctx); err != nil {
		return nil, nil, err
	}
	defer a.changing.release()
	bound, schemas, ok := fits()
	if ok || bound.Dataplane(c.name) == nil {
		return bound, schemas, nil
	}
	a.mu.Lock()
	loaded := a.loaded
	a.mu.Unlock()
	schemas = maps.Clone(schemas)
	schemas[c.name] = wanted
	bound, found := config.Bind(loaded, schemas, config.Unasked{})
	if found.HasErrors() {
		return nil, nil, fmt.Errorf("the block does not fit the plugin: %w", found)
	}
	a.adopt(loaded, bound, schemas, nil)
	a.followFiles()
	return bound, schemas, nil
}

func sameSchema(a, b config.PluginSchema) bool {
	return slices.Equal(a.Balance, b.Balance) && jsonOf(a.Config) == jsonOf(b.Config) && jsonOf(a.Options) == jsonOf(b.Options)
}

// refusedError is what a plugin has against its block.
type refusedError struct{ found *config.Diagnostics }

func (e *refusedError) Error() string { return "the plugin refuses its block: " + e.found.Error() }

// settle configures the plugin by what is in force, until that has not changed
// meanwhile; it tells whether there was anything to do. Nobody waits for a
// plugin that takes its time with that but its own carrier: changing is not
// held while it is asked.
func (c *carrier) settle(ctx context.Context) (configured bool, err error) {
	if err := c.settling.acquire(ctx); err != nil {
		return false, err
	}
	defer c.settling.release()
	for {
		bound, schemas, err := c.agent.boundTo(ctx, c)
		if err != nil {
			return configured, err
		}
		if block := bound.Dataplane(c.name); block != nil {
			wanted := c.agent.hostConfig(bound, block)
			c.mu.Lock()
			sent := c.sent
			c.mu.Unlock()
			if sent != nil && sameHostConfig(sent, &wanted) {
				return configured, nil
			}
		}
		found, err := c.validate(ctx, bound)
		if err != nil {
			return configured, fmt.Errorf("checking the block: %w", err)
		}
		if refused := config.Refused(bound, c.name, schemas[c.name], found); refused.HasErrors() {
			return configured, &refusedError{refused}
		}
		if err := c.configure(ctx, bound); err != nil {
			return configured, err
		}
		configured = true
	}
}

// resettle brings a plugin that is connected to a changed configuration. One
// that does not take it is started anew, but for one that refuses its block,
// which goes on with what it has.
func (c *carrier) resettle() {
	configured, err := c.settle(c.life)
	if c.life.Err() != nil {
		return
	}
	c.mu.Lock()
	client, adopted := c.client, c.adopted
	c.fault = ""
	var refused *refusedError
	if errors.As(err, &refused) {
		c.fault = err.Error()
	}
	c.mu.Unlock()
	switch {
	case client == nil: // it has ended, and its successor is configured when it is ready
	case refused != nil:
		c.log.Error("the plugin goes on with its block of before", "error", err)
	case err != nil:
		c.log.Error("the plugin did not take its changed block: it is started anew", "error", err)
		c.supervisor.Restart(err.Error())
	case configured:
		c.session.Attach(client, adopted)
	}
	c.agent.notice.bump()
}

// configure sends the configuration to the plugin, and tells the catalog what
// the plugin can carry.
func (c *carrier) configure(ctx context.Context, bound *config.Config) error {
	c.mu.Lock()
	client, description := c.client, c.description
	c.mu.Unlock()
	block := bound.Dataplane(c.name)
	switch {
	case client == nil:
		return errors.New("the plugin is gone")
	case block == nil || block.PluginJSON == nil:
		return errors.New("the block is gone")
	}
	wanted := c.agent.hostConfig(bound, block)
	if err := os.MkdirAll(wanted.StateDir, 0o700); err != nil {
		return fmt.Errorf("making the plugin's state folder: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, configureTimeout)
	defer cancel()
	if !c.everConfigured() {
		// It may make something and fail, or the agent may end meanwhile.
		c.rememberConfigured(description.ConfigSchema, wanted)
	}
	adopted, err := client.Configure(ctx, wanted)
	if err != nil {
		return fmt.Errorf("configuring the plugin: %w", err)
	}
	c.rememberConfigured(description.ConfigSchema, wanted)
	c.mu.Lock()
	current := c.client == client
	if current {
		c.sent, c.adopted = &wanted, adopted.Services
	}
	c.mu.Unlock()
	if !current { // it has ended meanwhile, and its successor has not been told
		return errors.New("the plugin is gone")
	}
	capabilities := description.Capabilities
	c.agent.catalog.SetCapabilities(c.name, &capabilities)
	return nil
}

// hostConfig is what a plugin is configured with.
func (a *Agent) hostConfig(bound *config.Config, block *config.Dataplane) dataplane.HostConfig {
	a.mu.Lock()
	node := a.node
	a.mu.Unlock()
	h := dataplane.HostConfig{
		ConfigJSON:    block.PluginJSON,
		StateDir:      stateDir(a.dataDir, block.Name),
		NodeAddresses: node.Addresses,
		LocalNetworks: bound.Node.LocalNetworks,
	}
	for _, p := range bound.Pools {
		h.Pools = append(h.Pools, p.CIDR...)
	}
	return h
}

func sameHostConfig(a, b *dataplane.HostConfig) bool {
	return string(a.ConfigJSON) == string(b.ConfigJSON) && a.StateDir == b.StateDir &&
		slices.Equal(a.NodeAddresses, b.NodeAddresses) && slices.Equal(a.Pools, b.Pools) &&
		slices.Equal(a.LocalNetworks, b.LocalNetworks)
}
