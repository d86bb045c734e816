package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/pluginhost"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// askPatience is how long the start and a reload wait for one plugin that is
// asked. While they wait nothing changes in any dataplane, so it is short: a
// block that is not checked in time is checked when its plugin answers.
const askPatience = 2 * time.Second

var errSilent = fmt.Errorf("it has not answered within %s; its block is checked when it does", askPatience)

// ask asks the plugin of a block for its schema, and what it has against the
// block: the one that runs where the block does not want another file than
// before, else one that is started for this alone.
func (a *Agent) ask(ctx context.Context, loaded *config.Config, block *config.Dataplane) (answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askPatience, errSilent)
	defer cancel()
	a.mu.Lock()
	c := a.carriers[block.Name]
	var before *config.Dataplane
	if a.config != nil {
		before = a.config.Dataplane(block.Name)
	}
	a.mu.Unlock()
	if c != nil {
		switch p := c.running(); {
		case p.client == nil:
		case before != nil && settingsOf(before) == settingsOf(block):
			return c.askRunning(ctx, p, loaded, block)
		case p.connected:
			return a.askReplacement(ctx, c, p, loaded, block)
		}
	}
	binary, err := chooseBinary(loaded.PluginDir, block)
	if err != nil {
		return answer{}, err
	}
	return a.askFile(ctx, binary, loaded, block)
}

// askRunning asks the plugin that runs, unless it is known not to answer.
func (c *carrier) askRunning(ctx context.Context, p runningPlugin, loaded *config.Config, block *config.Dataplane) (answer, error) {
	if !c.silentSince().IsZero() {
		ended, cancel := context.WithCancelCause(ctx)
		cancel(errSilent)
		ctx = ended
	}
	got, err := askClient(ctx, p.client, p.description, loaded, block)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return got, err
}

// askReplacement asks for a block that wants another file than the one that
// runs. One that is not there, or does not answer, is a mistake of the block:
// what carries traffic is not given up for something unknown.
func (a *Agent) askReplacement(ctx context.Context, c *carrier, p runningPlugin, loaded *config.Config, block *config.Dataplane) (answer, error) {
	binary, err := chooseBinary(loaded.PluginDir, block)
	if err == nil && binary.Path == p.path && (block.SHA256 == "" || strings.EqualFold(block.SHA256, c.supervisor.Status().SHA256)) {
		return c.askRunning(ctx, p, loaded, block)
	}
	if err == nil {
		var got answer
		if got, err = a.askFile(ctx, binary, loaded, block); err == nil {
			return got, nil
		}
	}
	// That waits no longer: the time may be over.
	got, unasked := c.askRunning(ctx, p, loaded, block)
	got.found = append(got.found, dataplane.Diagnostic{
		Summary: "No plugin to change to",
		Detail:  fmt.Sprintf("The version or sha256 of the block has changed, and what it asks for can't take the place of the plugin that runs, %s: %v.", p.path, err),
	})
	return got, unasked
}

// askFile asks a plugin that is started for this alone, unless that very file
// is known not to answer. The process may take its time to end.
func (a *Agent) askFile(ctx context.Context, binary pluginhost.Binary, loaded *config.Config, block *config.Dataplane) (answer, error) {
	if a.isSilent(binary) {
		return answer{}, errSilent
	}
	type outcome struct {
		answer
		err error
	}
	answered := make(chan outcome, 2) // what was asked, and how it ended
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), askPatience, errSilent)
	a.wg.Go(func() {
		defer cancel()
		err := pluginhost.Probe(ctx, binary, pluginhost.ProbeOptions{SHA256: block.SHA256, Logger: a.log.Named("probe")},
			func(ctx context.Context, process *pluginhost.Process) error {
				got, err := askClient(ctx, process.Client(), process.Description(), loaded, block)
				answered <- outcome{got, err}
				return nil
			})
		answered <- outcome{err: err}
	})
	got := <-answered
	if got.err != nil && ctx.Err() != nil {
		a.silence(binary)
		got.err = errSilent
	}
	return got.answer, got.err
}

// silence notes that a file was started and did not answer in time.
func (a *Agent) silence(binary pluginhost.Binary) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silent[binary.Name] = identity(binary.Path)
}

// isSilent tells whether that very file is known not to answer.
func (a *Agent) isSilent(binary pluginhost.Binary) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.silent[binary.Name]
	return ok && known == identity(binary.Path)
}

// answers notes that the plugin of that name has answered.
func (a *Agent) answers(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.silent, name)
}

// identity of a file that differs when it has been replaced or written to.
func identity(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return path
	}
	return fmt.Sprint(path, info.Size(), info.ModTime().UnixNano())
}

// awaitDescriptions waits until every plugin has said what it is, or is known
// not to for now, or patience ends. It gives why each of the others has not.
func (a *Agent) awaitDescriptions(ctx context.Context, cfg *config.Config) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	why := map[string]error{}
	for _, c := range a.allCarriers() {
		for ctx.Err() == nil && c.described() == nil && !c.failing() {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		if c.described() != nil {
			continue
		}
		v := c.view()
		why[c.name] = errors.New(v.notRunning())
		if c.failing() {
			continue
		}
		why[c.name] = errSilent
		if binary, err := chooseBinary(cfg.PluginDir, cfg.Dataplane(c.name)); err == nil {
			a.silence(binary)
		}
	}
	return why
}

// validateAll asks each plugin that runs what it has against its block, all at
// once.
func (a *Agent) validateAll(ctx context.Context, bound *config.Config, schemas map[string]config.PluginSchema) *config.Diagnostics {
	ctx, cancel := context.WithTimeoutCause(ctx, askPatience, errSilent)
	defer cancel()
	type outcome struct {
		name  string
		found []dataplane.Diagnostic
		err   error
	}
	outcomes := make(chan outcome)
	carriers := a.allCarriers()
	for _, c := range carriers {
		go func() { // all are waited for
			found, err := c.validate(ctx, bound)
			outcomes <- outcome{c.name, found, err}
		}()
	}
	found := map[string][]dataplane.Diagnostic{}
	for range carriers {
		o := <-outcomes
		if o.err != nil {
			a.log.Warn("the plugin has not checked its block, which is checked once more when it is configured", "dataplane", o.name, "error", o.err)
		}
		found[o.name] = o.found
	}
	all := &config.Diagnostics{}
	for _, c := range carriers {
		all.Append(config.Refused(bound, c.name, schemas[c.name], found[c.name]))
	}
	return all
}
