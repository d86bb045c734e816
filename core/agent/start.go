package agent

import (
	"context"
	"errors"
	"fmt"
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

// startTimeout is how long the start waits for plugins to say what they are. A
// plugin that is later is configured when it is there.
const startTimeout = 10 * time.Second

// start starts the plugins, checks the configuration against what they say of
// themselves, and brings it into force.
func (a *Agent) start(ctx context.Context, loaded *config.Config, began time.Time, diagnostics *config.Diagnostics) error {
	if err := a.changing.acquire(ctx); err != nil {
		return err
	}
	defer a.changing.release()
	for i := range loaded.Dataplanes {
		a.newCarrier(loaded, &loaded.Dataplanes[i])
	}
	a.awaitDescriptions(ctx)

	schemas := map[string]config.PluginSchema{}
	unasked := config.Unasked{Why: map[string]error{}}
	for _, c := range a.allCarriers() {
		if description := c.described(); description != nil {
			schemas[c.name] = schemaOf(description)
		} else {
			v := c.view()
			unasked.Why[c.name] = errors.New(v.notRunning())
		}
	}
	bound, found := config.Bind(loaded, schemas, unasked)
	diagnostics.Append(found)
	for _, c := range a.allCarriers() {
		refused, err := c.validate(ctx, bound, schemas)
		if err != nil {
			a.log.Warn("the plugin could not check its block", "dataplane", c.name, "error", err)
		}
		diagnostics.Append(refused)
	}
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

// awaitDescriptions waits until every plugin has said what it is, or is known
// not to for now.
func (a *Agent) awaitDescriptions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for _, c := range a.allCarriers() {
		for c.described() == nil && !c.failing() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				a.log.Warn("going on without a plugin that does not answer", "dataplane", c.name)
				return
			}
		}
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
func (c *carrier) validate(ctx context.Context, bound *config.Config, schemas map[string]config.PluginSchema) (*config.Diagnostics, error) {
	c.mu.Lock()
	client := c.client
	c.mu.Unlock()
	block := bound.Dataplane(c.name)
	if client == nil || block == nil || block.PluginJSON == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, configureTimeout)
	defer cancel()
	found, err := client.ValidateConfig(ctx, block.PluginJSON)
	if err != nil {
		return nil, err
	}
	return config.Refused(bound, c.name, schemas[c.name], found), nil
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

// configure makes a plugin that has just started ready for its session, by the
// configuration in force.
func (a *Agent) configure(ctx context.Context, c *carrier) error {
	if err := a.changing.acquire(ctx); err != nil {
		return err
	}
	defer a.changing.release()
	if err := a.bindTo(c); err != nil {
		return err
	}
	bound := a.inForce()
	refused, err := c.validate(ctx, bound, a.schemas)
	if err != nil {
		return fmt.Errorf("checking the block: %w", err)
	}
	if refused.HasErrors() {
		return fmt.Errorf("the plugin refuses its block: %w", refused)
	}
	return c.configure(ctx, bound)
}

// bindTo binds the configuration in force to the schema of a plugin, where it
// isn't yet: one that was not there at the start, or comes in another version.
func (a *Agent) bindTo(c *carrier) error {
	description := c.described()
	if description == nil {
		return errors.New("the plugin is gone")
	}
	a.mu.Lock()
	loaded, schemas := a.loaded, a.schemas
	a.mu.Unlock()
	wanted := schemaOf(description)
	if have, ok := schemas[c.name]; ok && sameSchema(have, wanted) {
		return nil
	}
	changed := map[string]config.PluginSchema{}
	for name, s := range schemas {
		changed[name] = s
	}
	changed[c.name] = wanted
	bound, found := config.Bind(loaded, changed, config.Unasked{})
	if found.HasErrors() {
		return fmt.Errorf("the block does not fit the plugin: %w", found)
	}
	a.adopt(loaded, bound, changed, nil)
	a.followFiles()
	return nil
}

func sameSchema(a, b config.PluginSchema) bool {
	return slices.Equal(a.Balance, b.Balance) && jsonOf(a.Config) == jsonOf(b.Config) && jsonOf(a.Options) == jsonOf(b.Options)
}

// configure sends the configuration to the plugin, and tells the catalog what
// the plugin can carry.
func (c *carrier) configure(ctx context.Context, bound *config.Config) error {
	c.mu.Lock()
	client, description := c.client, c.description
	c.mu.Unlock()
	block := bound.Dataplane(c.name)
	if block == nil || client == nil {
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
	c.sent, c.adopted = &wanted, adopted.Services
	c.mu.Unlock()
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
