package agent

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/pluginhost"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// candidate is a configuration that is without mistakes, and what it was
// checked with.
type candidate struct {
	loaded, bound *config.Config
	schemas       map[string]config.PluginSchema
	// began is when the files began to be read.
	began time.Time
}

// load reads the files and checks them against the plugins. The candidate's
// loaded is set in any case, the rest when there are no errors.
func (a *Agent) load(ctx context.Context) (candidate, *config.Diagnostics) {
	return check(a.options.ConfigPaths, a.options.loadOptions(), false, func(loaded *config.Config, block *config.Dataplane) (answer, error) {
		return a.ask(ctx, loaded, block)
	})
}

// check reads files and checks them against the plugins, whom ask asks. That a
// plugin could not be asked is a warning, or where strict an error.
func check(paths []string, options config.Options, strict bool, ask func(*config.Config, *config.Dataplane) (answer, error)) (candidate, *config.Diagnostics) {
	next := candidate{began: time.Now(), schemas: map[string]config.PluginSchema{}}
	loaded, diagnostics := config.Load(paths, options)
	next.loaded = loaded
	unasked := config.Unasked{Why: map[string]error{}, Strict: strict}
	var refusals []refusal
	for i := range loaded.Dataplanes {
		block := &loaded.Dataplanes[i]
		answer, err := ask(loaded, block)
		if err != nil {
			unasked.Why[block.Name] = err
		}
		if answer.schema != nil {
			next.schemas[block.Name] = *answer.schema
			refusals = append(refusals, refusal{block.Name, answer.found})
		}
	}
	var found *config.Diagnostics
	next.bound, found = config.Bind(loaded, next.schemas, unasked)
	diagnostics.Append(found)
	for _, r := range refusals {
		diagnostics.Append(config.Refused(next.bound, r.name, next.schemas[r.name], r.found))
	}
	return next, diagnostics
}

// Check reads and checks configuration files for `patchbay validate`, without
// an agent: each plugin that is at hand is started, asked and ended. One that
// could not be asked is reported with the reason: a warning, or where strict an
// error.
func Check(ctx context.Context, options Options, strict bool) *config.Diagnostics {
	load := options.loadOptions()
	load.CheckOnly = true
	_, diagnostics := check(options.ConfigPaths, load, strict, func(loaded *config.Config, block *config.Dataplane) (answer, error) {
		binary, err := chooseBinary(loaded.PluginDir, block)
		if err != nil {
			return answer{}, err
		}
		return probe(ctx, binary, loaded, block, hclog.NewNullLogger())
	})
	return diagnostics
}

// refusal is what a plugin has against its block.
type refusal struct {
	name  string
	found []dataplane.Diagnostic
}

// answer is what a plugin says of a configuration.
type answer struct {
	schema *config.PluginSchema
	found  []dataplane.Diagnostic
}

// chooseBinary gives the file that would run for a block.
func chooseBinary(dir string, block *config.Dataplane) (pluginhost.Binary, error) {
	return pluginhost.Choose(dir, block.Name, block.Version, block.SHA256)
}

// probe asks a plugin that is started for this alone.
func probe(ctx context.Context, binary pluginhost.Binary, loaded *config.Config, block *config.Dataplane, logger hclog.Logger) (answer, error) {
	var got answer
	err := pluginhost.Probe(ctx, binary, pluginhost.ProbeOptions{SHA256: block.SHA256, Logger: logger},
		func(ctx context.Context, process *pluginhost.Process) error {
			var err error
			got, err = askClient(ctx, process.Client(), process.Description(), loaded, block)
			return err
		})
	return got, err
}

func askClient(ctx context.Context, client *dataplane.Client, description *dataplane.HostDescription, loaded *config.Config, block *config.Dataplane) (answer, error) {
	schema := schemaOf(description)
	got := answer{schema: &schema}
	// What Bind finds is found again, for all blocks at once.
	bound, _ := config.Bind(loaded, map[string]config.PluginSchema{block.Name: schema}, config.Unasked{})
	data := bound.Dataplane(block.Name).PluginJSON
	if data == nil {
		return got, nil
	}
	ctx, cancel := context.WithTimeout(ctx, configureTimeout)
	defer cancel()
	found, err := client.ValidateConfig(ctx, data)
	got.found = found
	return got, err
}
