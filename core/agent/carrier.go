package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/dispatch"
	"github.com/patchbay-proxy/patchbay/core/pluginhost"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

const (
	// statisticsInterval is how often plugins tell what they have counted.
	statisticsInterval = 10 * time.Second
	// hangsAllowed is how many Applies in a row may meet their deadline before
	// the plugin is ended. It answers otherwise, or listen would have ended it,
	// so that it probably forwards traffic all the same: there is no hurry.
	hangsAllowed = 2
	// describeTimeout, configureTimeout and inspectTimeout are the deadlines of
	// those calls.
	configureTimeout = 20 * time.Second
	inspectTimeout   = 5 * time.Second
	// leaveTimeout is how long a dataplane whose block is gone may take to
	// acknowledge that its services are gone.
	leaveTimeout = 30 * time.Second
)

// carrier is one dataplane block in force: its plugin's supervisor, and the
// session that brings it to the desired state.
type carrier struct {
	name       string
	log        hclog.Logger
	agent      *Agent
	supervisor *pluginhost.Supervisor
	session    *dispatch.Session
	// stop ends supervisor and session; done is closed when they have ended.
	stop context.CancelFunc
	done chan struct{}
	// left is closed when a carrier whose block is gone has ended and nothing
	// of it is left.
	left chan struct{}
	// life ends with stop. settling is held by the one who configures the
	// plugin.
	life     context.Context
	settling semaphore

	mu sync.Mutex
	// parting is the last configuration that had the block, once it is gone.
	parting *config.Config
	// process that runs, and what it said of itself; nil while there is none.
	process     *pluginhost.Process
	client      *dataplane.Client
	description *dataplane.HostDescription
	// connected is set while process is configured and attached.
	connected bool
	adopted   int
	// sent is what process was configured with.
	sent *dataplane.HostConfig
	// fault is why the block can't be used with the plugin; empty when it can.
	fault string
	// unanswered is when the plugin was asked for a sign of life that it has
	// not given yet; zero while it answers.
	unanswered time.Time
	// unwatch ends the goroutine that follows the plugin's events.
	unwatch    func()
	statistics statistics
}

// folders of a dataplane below the data folder.
func hostDir(dataDir, name string) string  { return filepath.Join(dataDir, "plugins", name, "host") }
func stateDir(dataDir, name string) string { return filepath.Join(dataDir, "plugins", name, "state") }
func logDir(dataDir string) string         { return filepath.Join(dataDir, "log") }

func settingsOf(block *config.Dataplane) pluginhost.Settings {
	return pluginhost.Settings{Constraint: block.Version, SHA256: block.SHA256}
}

// newCarrier makes the carrier of a block and starts it: its plugin is being
// started when newCarrier returns. A predecessor of the same name that is still
// leaving is told to end, and ends first: two would share folders, and what is
// in the kernel.
func (a *Agent) newCarrier(cfg *config.Config, block *config.Dataplane, predecessor *carrier) *carrier {
	c := &carrier{
		name:       block.Name,
		log:        a.log.Named("dataplane").With("dataplane", block.Name),
		agent:      a,
		done:       make(chan struct{}),
		left:       make(chan struct{}),
		settling:   make(semaphore, 1),
		statistics: newStatistics(),
	}
	c.supervisor = pluginhost.New(pluginhost.Options{
		Settings: settingsOf(block),
		Name:     block.Name,
		Dir:      cfg.PluginDir,
		StateDir: hostDir(a.dataDir, block.Name),
		LogDir:   logDir(a.dataDir),
		Logger:   a.log.Named("plugin").With("dataplane", block.Name),
		OnReady:  c.ready,
		OnGone:   c.gone,
		// Its block may have changed with what it did not give way to.
		OnKept: func(*pluginhost.Process, error) { a.wg.Go(c.resettle) },
	})
	c.session = dispatch.New(dispatch.Options{
		Dataplane:     block.Name,
		SessionNumber: a.session,
		SyncInterval:  cfg.SyncInterval,
		Logger:        a.log.Named("dispatch"),
		OnApplied:     c.applied,
		OnHang:        c.hangs,
	})
	c.life, c.stop = context.WithCancel(a.carriersCtx)
	a.mu.Lock()
	a.carriers[c.name] = c
	a.mu.Unlock()
	unsubscribe := a.catalog.Subscribe(c.publish)
	a.wg.Go(func() {
		defer close(c.done)
		defer unsubscribe()
		if predecessor != nil {
			predecessor.stop()
			<-predecessor.left
		}
		c.run(c.life)
	})
	return c
}

// run runs supervisor and session until ctx ends. The session ends first, so
// that nothing is sent to a plugin that is being ended.
func (c *carrier) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.session.Run(ctx); err != nil {
			c.agent.problem("dataplane", fmt.Errorf("dataplane %s: %w", c.name, err))
		}
	})
	if err := c.supervisor.Run(ctx); err != nil {
		c.agent.problem("dataplane", fmt.Errorf("dataplane %s: %w", c.name, err))
	}
	wg.Wait()
}

// runningPlugin is the plugin that runs; its client is nil when there is none.
type runningPlugin struct {
	client      *dataplane.Client
	description *dataplane.HostDescription
	path        string
	connected   bool
}

func (c *carrier) running() runningPlugin {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return runningPlugin{}
	}
	return runningPlugin{c.client, c.description, c.process.Binary().Path, c.connected}
}

// publish tells the session of a change, and that all sources are read.
func (c *carrier) publish(change catalog.Change) {
	c.session.Publish(change)
	if len(change.Snapshot.Unread) == 0 {
		c.session.Release()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range change.IDs {
		if change.Snapshot.Desired(c.name, id) == nil {
			c.statistics.forget(id)
		}
	}
}

// ready takes a new process: it tells the agent what the plugin is, waits for
// the first configuration to be in force, and configures the plugin.
func (c *carrier) ready(ctx context.Context, process *pluginhost.Process) error {
	c.mu.Lock()
	c.process, c.client, c.description = process, process.Client(), process.Description()
	c.sent, c.unanswered = nil, time.Time{}
	c.mu.Unlock()
	c.agent.answers(c.name)
	c.agent.notice.bump()
	select {
	case <-c.agent.inForceOnce:
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err := c.settle(ctx)
	c.mu.Lock()
	c.fault = ""
	if err != nil {
		c.fault = err.Error()
		c.process, c.client = nil, nil
		c.mu.Unlock()
		c.agent.notice.bump()
		return err
	}
	c.connected = true
	client, adopted := c.client, c.adopted
	stopWatch, stopListening := c.watch(client), c.listen(process)
	c.unwatch = func() {
		stopListening()
		stopWatch()
	}
	c.mu.Unlock()
	c.log.Info("connected", "version", process.Binary().Version, "pid", process.PID(), "adopted", adopted)
	c.session.Attach(client, adopted)
	c.agent.notice.bump()
	return nil
}

// gone lets go of a process that has ended or is about to.
func (c *carrier) gone(process *pluginhost.Process, err error) {
	c.mu.Lock()
	client, unwatch := c.client, c.unwatch
	if c.process == process {
		c.process, c.client, c.sent, c.unwatch, c.connected = nil, nil, nil, nil, false
		c.unanswered = time.Time{}
		c.statistics.processGone()
	}
	c.mu.Unlock()
	if client != nil {
		c.session.Detach(client)
	}
	if unwatch != nil {
		unwatch()
	}
	if err != nil {
		c.log.Warn("the plugin is gone: what it has put in place stays", "error", err)
	}
	c.agent.notice.bump()
}

// watch follows what the plugin tells of its own accord, until the function
// that it gives is called, which waits for the end.
func (c *carrier) watch(client *dataplane.Client) (stop func()) {
	ctx, cancel := context.WithCancel(c.agent.carriersCtx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			err := client.Watch(ctx, statisticsInterval, func(e dataplane.WatchEvent) error {
				c.event(e)
				return nil
			})
			if ctx.Err() != nil {
				return
			}
			c.log.Debug("the plugin's events ended", "error", err)
			if errors.Is(err, errors.ErrUnsupported) {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (c *carrier) event(e dataplane.WatchEvent) {
	snapshot := c.agent.catalog.Snapshot()
	c.mu.Lock()
	c.statistics.take(e, func(id string) bool { return snapshot.Desired(c.name, id) != nil })
	c.mu.Unlock()
	if e.Drift != nil {
		c.log.Warn("something of ours was changed by others", "service", e.Drift.Service, "what", e.Drift.Message, "repaired", e.Drift.Repaired)
	}
}

// applied is told of every Apply.
func (c *carrier) applied(a dispatch.Applied) {
	if a.Full {
		c.agent.grown.Store(true)
	}
	if a.Err == nil {
		c.agent.metrics.Applied(c.name, a.Duration, a.Latency)
		c.mu.Lock()
		process := c.process
		if c.client == nil || dispatch.Applier(c.client) != a.Plugin {
			process = nil
		}
		c.mu.Unlock()
		if process != nil {
			process.Acknowledged()
		}
	}
	c.agent.notice.bump()
}

// hangs is told that the plugin doesn't answer.
func (c *carrier) hangs(plugin dispatch.Applier, inARow int) {
	c.mu.Lock()
	process := c.process
	if c.client == nil || dispatch.Applier(c.client) != plugin {
		process = nil
	}
	c.mu.Unlock()
	if process != nil && inARow >= hangsAllowed {
		process.Fail(fmt.Errorf("%d updates in a row were not answered in time", inARow))
	}
}

// leave ends a carrier whose block is gone: once its dataplane has
// acknowledged that its services are gone, or can't in time.
func (c *carrier) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		s := c.session.Status()
		if s.State == dispatch.StateSynced && s.Acknowledged == 0 && len(s.Failed) == 0 {
			c.log.Info("left: its services are gone from it")
			break
		}
		select {
		case <-tick.C:
			continue
		case <-c.life.Done():
			c.log.Info("left early: its block is back, or the agent stops", "state", s.State)
		case <-ctx.Done():
			c.log.Warn("left without an acknowledgement: what it carried may still be in place, `patchbay cleanup` removes it", "state", s.State)
		}
		break
	}
	c.stop()
	<-c.done
}

// fingerprint of what changes without notice.
func (c *carrier) fingerprint() string {
	plugin, session := c.supervisor.Status(), c.session.Status()
	return fmt.Sprint(c.name, plugin.State, plugin.PID, plugin.Starts, plugin.Crashes, plugin.LastError, c.silentSince().IsZero(),
		session.State, session.AcknowledgedRevision, session.LastError, len(session.Failed))
}

// carrierView is how a carrier stands at one moment.
type carrierView struct {
	name         string
	connected    bool
	fault        string
	silentSince  time.Time // zero when the plugin answers
	plugin       pluginhost.Status
	session      dispatch.Status
	description  *dataplane.HostDescription
	acknowledged func(id string) dispatch.Ack
	// endpointCounters gives the counters of a service's endpoints.
	endpointCounters func(id string) map[netip.AddrPort]dataplane.Counters
}

func (c *carrier) view() carrierView {
	v := carrierView{
		name:         c.name,
		silentSince:  c.silentSince(),
		plugin:       c.supervisor.Status(),
		session:      c.session.Status(),
		acknowledged: c.session.Acknowledged,
		endpointCounters: func(id string) map[netip.AddrPort]dataplane.Counters {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.statistics.endpoints(id)
		},
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v.connected, v.fault, v.description = c.connected, c.fault, c.description
	return v
}

// pluginState gives the state of the plugin in a word, and why.
func (v *carrierView) pluginState() (state, reason string) {
	state = string(v.plugin.State)
	switch {
	case v.plugin.State == pluginhost.StateRunning && !v.connected:
		state = string(pluginhost.StateStarting)
	case v.plugin.State == pluginhost.StateRunning:
		if reason = v.fault; reason == "" && v.plugin.RolledBackFrom != "" {
			reason = fmt.Sprintf("version %s crashed too often", v.plugin.RolledBackFrom)
		}
		return state, reason
	}
	reason = v.plugin.LastError
	if v.fault != "" {
		reason = v.fault
	}
	if reason == "" && len(v.plugin.Refusals) > 0 {
		reason = fmt.Sprintf("%s: %s", v.plugin.Refusals[0].Path, v.plugin.Refusals[0].Reason)
	}
	return state, reason
}
