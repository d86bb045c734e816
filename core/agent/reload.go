package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	version "github.com/hashicorp/go-version"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/pluginhost"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// candidate is a configuration that is without mistakes, and what it was
// checked with.
type candidate struct {
	loaded, bound *config.Config
	schemas       map[string]config.PluginSchema
	// known is the fingerprint of the files, as of knownFiles.
	known string
}

// Reload implements admin.Backend.
func (a *Agent) Reload(context.Context) (admin.Reload, error) {
	// A client that goes away does not stop half a reload; the agent's end does.
	return a.reload(a.running, "api"), nil
}

// reload loads the files anew and brings them into force, or leaves everything
// as it is when they have mistakes.
func (a *Agent) reload(ctx context.Context, trigger string) admin.Reload {
	if err := a.changing.acquire(ctx); err != nil {
		return admin.Reload{Time: time.Now().UTC(), Trigger: trigger, Findings: admin.Findings{Text: "the agent is stopping"}}
	}
	defer a.changing.release()
	next, diagnostics := a.load(ctx)
	result := admin.Reload{Time: time.Now().UTC(), Trigger: trigger, Findings: admin.FindingsOf(diagnostics)}
	if diagnostics.HasErrors() {
		a.log.Error("the configuration has mistakes: that of before stays in force", "trigger", trigger, "error", diagnostics)
		a.watchFiles(next.loaded, next.known)
	} else {
		result.OK = true
		result.Notes = lateSettings(a.inForce(), next.bound)
		result.Changed = a.bringIntoForce(ctx, next)
		a.watchFiles(next.bound, next.known)
	}
	result.Revision = a.catalog.Snapshot().Revision
	a.recordReload(result)
	if result.OK {
		a.log.Info("configuration loaded", "trigger", trigger, "changed", result.Changed, "revision", result.Revision)
		for _, note := range result.Notes {
			a.log.Warn(note)
		}
	}
	return result
}

func (a *Agent) recordReload(r admin.Reload) {
	a.grown.Store(true)
	a.mu.Lock()
	a.lastReload = &r
	if r.OK {
		a.loadedAt = r.Time
	}
	if r.Trigger != "start" {
		if r.OK {
			a.reloads.ok++
		} else {
			a.reloads.failed++
		}
	}
	a.mu.Unlock()
	a.notice.bump()
}

// watchFiles follows the files of a configuration, if that in force says so.
// What is known of them is what was read when loading began at that time.
func (a *Agent) watchFiles(latest *config.Config, known string) {
	inForce := a.inForce()
	if !inForce.WatchFiles {
		a.files.watch(nil, "")
		return
	}
	if slices.Equal(inForce.Files, latest.Files) {
		a.files.watch(latest.Files, known)
		return
	}
	// Of an invalid configuration a file may be missing that was there before.
	files := slices.Concat(inForce.Files, latest.Files)
	slices.Sort(files)
	files = slices.Compact(files)
	a.files.watch(files, fingerprint(files))
}

// load reads the files and checks them against the plugins. The candidate's
// loaded is set in any case, the rest when there are no errors.
func (a *Agent) load(ctx context.Context) (candidate, *config.Diagnostics) {
	next, diagnostics, unchecked := check(a.options.ConfigPaths, a.options.loadOptions(), func(loaded *config.Config, block *config.Dataplane) (answer, error) {
		return a.ask(ctx, loaded, block)
	})
	for name, err := range unchecked {
		a.log.Warn("the block can't be checked by its plugin", "dataplane", name, "error", err)
	}
	return next, diagnostics
}

// check reads files and checks them against the plugins, whom ask asks. Blocks
// whose plugin could not be asked are given with the reason.
func check(paths []string, options config.Options, ask func(*config.Config, *config.Dataplane) (answer, error)) (candidate, *config.Diagnostics, map[string]error) {
	began := time.Now()
	loaded, diagnostics := config.Load(paths, options)
	next := candidate{loaded: loaded, schemas: map[string]config.PluginSchema{}, known: knownFiles(loaded.Files, began)}
	unchecked := map[string]error{}
	var refusals []refusal
	for i := range loaded.Dataplanes {
		block := &loaded.Dataplanes[i]
		answer, err := ask(loaded, block)
		if err != nil {
			unchecked[block.Name] = err
		}
		if answer.schema != nil {
			next.schemas[block.Name] = *answer.schema
			refusals = append(refusals, refusal{block.Name, answer.found})
		}
	}
	var found *config.Diagnostics
	next.bound, found = config.Bind(loaded, next.schemas)
	diagnostics.Append(found)
	for _, r := range refusals {
		diagnostics.Append(config.Refused(next.bound, r.name, next.schemas[r.name], r.found))
	}
	return next, diagnostics, unchecked
}

// Check reads and checks configuration files for `patchbay validate`, without
// an agent: each plugin that is at hand is started, asked and ended. unchecked
// are the dataplanes whose plugin could not be asked, with the reason.
func Check(ctx context.Context, options Options) (diagnostics *config.Diagnostics, unchecked map[string]error) {
	_, diagnostics, unchecked = check(options.ConfigPaths, options.loadOptions(), func(loaded *config.Config, block *config.Dataplane) (answer, error) {
		binary, err := chooseBinary(loaded.PluginDir, block)
		if err != nil {
			return answer{}, err
		}
		return probe(ctx, binary, loaded, block, hclog.NewNullLogger())
	})
	return diagnostics, unchecked
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

// ask asks the plugin of a block for its schema, and what it has against the
// block: the one that runs where it is the one that would run, else one that is
// started for this alone.
func (a *Agent) ask(ctx context.Context, loaded *config.Config, block *config.Dataplane) (answer, error) {
	a.mu.Lock()
	c := a.carriers[block.Name]
	a.mu.Unlock()
	binary, missing := chooseBinary(loaded.PluginDir, block)
	if c != nil {
		if description, client, path := c.running(); client != nil && (missing != nil || path == binary.Path) {
			return askClient(ctx, client, description, loaded, block)
		}
	}
	if missing != nil {
		return answer{}, missing
	}
	return probe(ctx, binary, loaded, block, a.log.Named("probe"))
}

// running gives the plugin that runs and its file; the client is nil when
// there is none.
func (c *carrier) running() (*dataplane.HostDescription, *dataplane.Client, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return nil, nil, ""
	}
	return c.description, c.client, c.process.Binary().Path
}

// chooseBinary gives the file that would run for a block.
func chooseBinary(dir string, block *config.Dataplane) (pluginhost.Binary, error) {
	binaries, refusals, err := pluginhost.Find(dir, block.Name)
	if err != nil {
		return pluginhost.Binary{}, err
	}
	var constraint version.Constraints
	if block.Version != "" {
		if constraint, err = version.NewConstraint(block.Version); err != nil {
			return pluginhost.Binary{}, err
		}
	}
	for _, b := range binaries {
		if constraint == nil || constraint.Check(b.Version) {
			return b, nil
		}
	}
	switch {
	case len(refusals) > 0:
		return pluginhost.Binary{}, fmt.Errorf("%s must not be run: %s", refusals[0].Path, refusals[0].Reason)
	case len(binaries) > 0:
		return pluginhost.Binary{}, fmt.Errorf("no version of the plugin in %s fits %q", dir, block.Version)
	}
	return pluginhost.Binary{}, fmt.Errorf("there is no file patchbay-dataplane-%s_v* in %s", block.Name, dir)
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
	bound, _ := config.Bind(loaded, map[string]config.PluginSchema{block.Name: schema})
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

// bringIntoForce brings a candidate into force, and tells whether it changed
// anything.
func (a *Agent) bringIntoForce(ctx context.Context, next candidate) (changed bool) {
	before := a.inForce()
	static := a.static.Preview(next.bound.Services)
	revision := a.catalog.Snapshot().Revision
	a.log.SetLevel(hclog.LevelFromString(logLevel(a.options, next.bound.Agent)))
	a.adopt(next.loaded, next.bound, next.schemas, static)
	a.static.Set(next.bound.Services)
	a.discover(next.bound)
	changed = a.catalog.Snapshot().Revision != revision
	for i := range before.Dataplanes {
		if name := before.Dataplanes[i].Name; next.bound.Dataplane(name) == nil {
			a.letGo(name)
			changed = true
		}
	}
	for i := range next.bound.Dataplanes {
		if a.updateCarrier(ctx, next.bound, &next.bound.Dataplanes[i]) {
			changed = true
		}
	}
	return changed
}

// letGo ends a carrier in the background, whose services the catalog has taken
// away from it.
func (a *Agent) letGo(name string) {
	a.mu.Lock()
	c := a.carriers[name]
	delete(a.carriers, name)
	if c != nil {
		a.leaving[name] = c
	}
	a.mu.Unlock()
	if c == nil {
		return
	}
	a.log.Info("a dataplane leaves", "dataplane", name)
	a.wg.Go(func() {
		c.leave(a.running)
		a.mu.Lock()
		delete(a.leaving, name)
		a.mu.Unlock()
		a.metrics.Forget(name)
		a.catalog.SetCapabilities(name, nil)
		a.notice.bump()
	})
}

// updateCarrier brings one dataplane to its block, and tells whether that
// changed anything.
func (a *Agent) updateCarrier(ctx context.Context, bound *config.Config, block *config.Dataplane) bool {
	a.mu.Lock()
	c, leaving := a.carriers[block.Name], a.leaving[block.Name]
	a.mu.Unlock()
	if c == nil {
		if leaving != nil {
			// Two of a name would share folders and what is in the kernel.
			leaving.stop()
			<-leaving.done
		}
		a.newCarrier(bound, block)
		return true
	}
	if c.supervisor.Reconfigure(settingsOf(block)) {
		return true // the process that comes is configured when it is ready
	}
	wanted := a.hostConfig(bound, block)
	c.mu.Lock()
	client, sent := c.client, c.sent
	c.mu.Unlock()
	if sent == nil || sameHostConfig(sent, &wanted) {
		if c.failing() {
			c.supervisor.Restart("the configuration was loaded anew")
		}
		return false
	}
	if err := c.configure(ctx, bound); err != nil {
		c.log.Error("the plugin did not take its changed block: it is started anew", "error", err)
		c.supervisor.Restart(err.Error())
		return true
	}
	c.mu.Lock()
	adopted := c.adopted
	c.mu.Unlock()
	c.session.Attach(client, adopted)
	return true
}

// lateSettings names what has changed and takes effect at the next start only.
func lateSettings(before, after *config.Config) []string {
	var notes []string
	check := func(name string, changed bool) {
		if changed {
			notes = append(notes, name+" has changed: that takes effect when the agent is started again")
		}
	}
	check("data_dir", before.DataDir != after.DataDir)
	check("plugin_dir", before.PluginDir != after.PluginDir)
	check("sync_interval", before.SyncInterval != after.SyncInterval)
	check("agent.socket", before.Agent.Socket != after.Agent.Socket)
	check("agent.user", before.Agent.User != after.Agent.User)
	check("agent.group", before.Agent.Group != after.Agent.Group)
	check("agent.http", before.Agent.HTTP != after.Agent.HTTP)
	check("agent.log_format", before.Agent.LogFormat != after.Agent.LogFormat)
	return notes
}

// Plan implements admin.Backend.
func (a *Agent) Plan(ctx context.Context) (admin.Plan, error) {
	if err := a.changing.acquire(ctx); err != nil {
		return admin.Plan{}, err
	}
	defer a.changing.release()
	next, diagnostics := a.load(ctx)
	plan := admin.Plan{View: a.view().head(), Findings: admin.FindingsOf(diagnostics), Changes: []admin.PlannedChange{}}
	if diagnostics.HasErrors() {
		return plan, nil
	}
	plan.Valid = true
	before := a.inForce()
	plan.Changes = append(plan.Changes, planDataplanes(before, next.bound)...)
	plan.Changes = append(plan.Changes, planSettings(before, next.bound)...)
	policy := policyOf(next.bound, nodeFacts(next.bound))
	services := a.catalog.Plan(policy, a.static.Preview(next.bound.Services))
	plan.Changes = append(plan.Changes, planServices(services)...)
	return plan, nil
}

var planActions = map[catalog.Action]string{catalog.Added: "add", catalog.Changed: "change", catalog.Removed: "remove"}

func planServices(p *catalog.Plan) []admin.PlannedChange {
	leases := map[string]catalog.PlannedLease{}
	for _, l := range p.Leases {
		leases[l.Service] = l
	}
	var out []admin.PlannedChange
	for _, c := range p.Changes {
		shown := admin.PlannedChange{Action: planActions[c.Action], Kind: "service", Name: c.ID}
		for _, f := range c.Fields {
			shown.Details = append(shown.Details, describeField(f.Field, f.Old, f.New))
		}
		if l, ok := leases[c.ID]; ok {
			shown.Details = append(shown.Details, fmt.Sprintf("takes %v from vip_pool %s", l.Addresses, l.Pool))
		}
		if c.Rejected != "" {
			shown.Details = append(shown.Details, "would be rejected: "+c.Rejected)
		}
		out = append(out, shown)
	}
	return out
}

func describeField(name, before, after string) string {
	switch {
	case before == "":
		return fmt.Sprintf("%s: %s", name, after)
	case after == "":
		return fmt.Sprintf("%s: %s, to be gone", name, before)
	}
	return fmt.Sprintf("%s: %s -> %s", name, before, after)
}

func planDataplanes(before, after *config.Config) []admin.PlannedChange {
	var out []admin.PlannedChange
	for i := range after.Dataplanes {
		now := &after.Dataplanes[i]
		old := before.Dataplane(now.Name)
		if old == nil {
			out = append(out, admin.PlannedChange{Action: "add", Kind: "dataplane", Name: now.Name})
			continue
		}
		var details []string
		note := func(field string, old, now any) {
			if o, n := fmt.Sprint(old), fmt.Sprint(now); o != n {
				details = append(details, describeField(field, o, n))
			}
		}
		note("default", old.Default, now.Default)
		note("version", old.Version, now.Version)
		note("sha256", old.SHA256, now.SHA256)
		note("user", old.User, now.User)
		note("capabilities", old.Capabilities, now.Capabilities)
		note("auto_upgrade", old.AutoUpgrade, now.AutoUpgrade)
		// Values may be sensitive: only the names are told.
		details = append(details, changedArguments(old.PluginJSON, now.PluginJSON)...)
		if len(details) > 0 {
			out = append(out, admin.PlannedChange{Action: "change", Kind: "dataplane", Name: now.Name, Details: details})
		}
	}
	for i := range before.Dataplanes {
		if name := before.Dataplanes[i].Name; after.Dataplane(name) == nil {
			out = append(out, admin.PlannedChange{Action: "remove", Kind: "dataplane", Name: name})
		}
	}
	return out
}

// changedArguments names the arguments of a plugin that differ.
func changedArguments(before, after json.RawMessage) []string {
	var old, now map[string]json.RawMessage
	_ = json.Unmarshal(before, &old)
	_ = json.Unmarshal(after, &now)
	names := map[string]bool{}
	for _, m := range []map[string]json.RawMessage{old, now} {
		for name := range m {
			if string(old[name]) != string(now[name]) {
				names[name] = true
			}
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		out = append(out, name+" changes")
	}
	return out
}

func planSettings(before, after *config.Config) []admin.PlannedChange {
	var out []admin.PlannedChange
	note := func(name string, old, now any, late bool) {
		o, n := fmt.Sprint(old), fmt.Sprint(now)
		if o == n {
			return
		}
		details := []string{describeField(name, o, n)}
		if late {
			details = append(details, "takes effect when the agent is started again")
		}
		out = append(out, admin.PlannedChange{Action: "change", Kind: "setting", Name: name, Details: details})
	}
	note("data_dir", before.DataDir, after.DataDir, true)
	note("plugin_dir", before.PluginDir, after.PluginDir, true)
	note("watch_files", before.WatchFiles, after.WatchFiles, false)
	note("sync_interval", before.SyncInterval, after.SyncInterval, true)
	note("agent.log_level", before.Agent.LogLevel, after.Agent.LogLevel, false)
	note("agent.log_format", before.Agent.LogFormat, after.Agent.LogFormat, true)
	note("agent.socket", before.Agent.Socket, after.Agent.Socket, true)
	note("agent.http", before.Agent.HTTP, after.Agent.HTTP, true)
	note("node", before.Node, after.Node, false)
	pools := func(c *config.Config) (out []string) {
		for _, p := range c.Pools {
			out = append(out, fmt.Sprint(p.Name, " ", p.CIDR, " ", p.Store))
		}
		return out
	}
	note("vip_pool", pools(before), pools(after), false)
	return out
}
