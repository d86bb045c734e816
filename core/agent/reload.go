package agent

import (
	"context"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/core/config"
)

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
		a.watchFiles(next.bound, next.began)
	} else {
		result.OK = true
		result.Notes = lateSettings(a.inForce(), next.bound)
		result.Changed = a.bringIntoForce(ctx, next)
		a.watchFiles(next.bound, next.began)
	}
	result.Revision = a.catalog.Snapshot().Revision
	a.recordReload(result)
	if result.OK {
		a.logWarnings(diagnostics)
		a.log.Info("configuration loaded", "trigger", trigger, "changed", result.Changed, "revision", result.Revision)
		for _, note := range result.Notes {
			a.log.Warn(note)
		}
	}
	return result
}

// logWarnings logs what is doubtful in a configuration that is valid.
func (a *Agent) logWarnings(diagnostics *config.Diagnostics) {
	for _, d := range diagnostics.All() {
		a.log.Warn("in the configuration", "warning", d.String())
	}
	if n := diagnostics.Omitted(); n > 0 {
		a.log.Warn("in the configuration", "more_warnings", n)
	}
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

// watchFiles follows the files of the configuration that was loaded last, by a
// reader who began at that time, if the one in force says so.
func (a *Agent) watchFiles(latest *config.Config, began time.Time) {
	a.mu.Lock()
	a.latest, a.latestBegan = latest, began
	a.mu.Unlock()
	a.followFiles()
}

// followFiles watches the files of the configuration in force, which grow when
// a plugin that comes late takes an argument from file(), and those of the one
// loaded last: of an invalid one a file may be missing that was there before.
// What is known is always of the very files that are watched.
func (a *Agent) followFiles() {
	a.mu.Lock()
	inForce, latest, began := a.config, a.latest, a.latestBegan
	a.mu.Unlock()
	if latest == nil {
		return // the start is not over
	}
	if !inForce.WatchFiles {
		a.files.watch(nil, "")
		return
	}
	files := slices.Concat(inForce.Files, latest.Files)
	slices.Sort(files)
	files = slices.Compact(files)
	a.files.watch(files, knownFiles(files, began))
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
			a.letGo(before, name)
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
// away from it. Should its plugin start anew on the way, it is configured by
// the configuration of before, which has its block.
func (a *Agent) letGo(before *config.Config, name string) {
	a.mu.Lock()
	c := a.carriers[name]
	if c == nil {
		a.mu.Unlock()
		return
	}
	delete(a.carriers, name)
	a.leaving[name] = c
	a.mu.Unlock()
	c.mu.Lock()
	c.parting = before
	c.mu.Unlock()
	a.log.Info("a dataplane leaves", "dataplane", name)
	a.wg.Go(func() {
		defer close(c.left)
		c.leave(a.running)
		c.settling <- struct{}{} // nobody configures it any more
		// Its successor, if there is one, waits for this: what is forgotten
		// here by name is nobody else's.
		a.metrics.Forget(name)
		a.catalog.SetCapabilities(name, nil)
		a.mu.Lock()
		if a.leaving[name] == c {
			delete(a.leaving, name)
		}
		a.mu.Unlock()
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
		a.newCarrier(bound, block, leaving)
		return true
	}
	if c.supervisor.Reconfigure(settingsOf(block)) {
		return true // the process that comes is configured when it is ready
	}
	wanted := a.hostConfig(bound, block)
	c.mu.Lock()
	sent := c.sent
	settled := sent != nil && sameHostConfig(sent, &wanted)
	if settled && c.connected {
		c.fault = "" // a block that it refused is not wanted any more
	}
	c.mu.Unlock()
	if sent == nil || settled {
		if c.failing() {
			c.supervisor.Restart("the configuration was loaded anew")
		}
		return false
	}
	done := make(chan struct{})
	a.wg.Go(func() {
		defer close(done)
		c.resettle()
	})
	if !c.silentSince().IsZero() {
		return true
	}
	// Mostly it takes milliseconds. Where it does not, others don't wait.
	select {
	case <-done:
	case <-time.After(askPatience):
		c.log.Warn("the plugin takes its time with its changed block: going on without it")
	case <-ctx.Done():
	}
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
