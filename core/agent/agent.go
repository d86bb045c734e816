// Package agent wires the parts of the core together, and starts, reloads and
// stops them.
//
// In go the command line's options; out come running sources, a catalog, a
// plugin host and a session per dataplane, and the admin API whose backend the
// [Agent] is. `patchbay agent` calls [Run], `patchbay cleanup` calls [Cleanup].
//
// The files of the package: agent.go starts and stops, start.go is the way
// from nothing to the first configuration in force, reload.go the way from one
// to the next, check.go what is checked before that, plan.go what it would
// change; carrier.go is one dataplane with its plugin and session; view.go and
// backend.go are what the API shows; the others are what their names say.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source/static"
	"github.com/patchbay-proxy/patchbay/core/state"
	"github.com/patchbay-proxy/patchbay/core/vip"
)

// Options of an agent, mostly the flags of `patchbay agent`.
type Options struct {
	// ConfigPaths are files and folders; none for the default place.
	ConfigPaths []string
	// DataDir, PluginDir and Socket override the files where not empty.
	DataDir, PluginDir, Socket string
	// LogLevel overrides the files where not empty.
	LogLevel string
	Version  admin.Version
	// Output gets the log; default standard error.
	Output io.Writer
	// Reload makes the agent load its configuration anew; nil for never.
	Reload <-chan os.Signal
}

// Names of files in the data folder.
const (
	catalogName = "catalog.json"
	staticName  = "static.json"
	consulName  = "consul.json"
)

// InvalidConfigError is a configuration that can't be started with.
type InvalidConfigError struct{ Diagnostics *config.Diagnostics }

func (e *InvalidConfigError) Error() string {
	return "the configuration is invalid:\n" + e.Diagnostics.Error()
}

// Agent is a running core.
type Agent struct {
	options Options
	log     hclog.Logger
	started time.Time
	session uint64
	dataDir string

	notice  *notice
	leases  *vip.File
	catalog *catalog.Catalog
	static  *static.Source
	metrics *admin.Metrics
	server  *admin.Server
	files   *fileWatch
	// troubles are those with the files in the data folder.
	troubles *state.Troubles

	// running ends when the agent stops; wg waits for everything it started.
	running context.Context
	wg      sync.WaitGroup
	// carriersCtx ends after running, when the carriers have been let go.
	carriersCtx context.Context

	// grown is set after what took much memory for a moment.
	grown atomic.Bool
	// inForceOnce is closed when the first configuration is in force.
	inForceOnce chan struct{}
	// changing is held by the one who changes what is in force.
	changing semaphore

	mu sync.Mutex
	// loaded is what the files said, config the same bound to the schemas of
	// the plugins; it is in force.
	loaded, config *config.Config
	schemas        map[string]config.PluginSchema
	node           catalog.NodeFacts
	carriers       map[string]*carrier
	// leaving are carriers whose block is gone, until their dataplane has
	// acknowledged that its services are gone.
	leaving map[string]*carrier
	// silent are the files, with their identity, that were started for a
	// dataplane and did not answer in time.
	silent     map[string]string
	discovery  *discovery // nil without a source "consul"
	lastReload *admin.Reload
	loadedAt   time.Time
	// latest is the configuration that was loaded last, valid or not, and
	// latestBegan when its files began to be read.
	latest      *config.Config
	latestBegan time.Time
	reloads     struct{ ok, failed uint64 }
	problems    []string
}

// Run starts an agent and returns when ctx has ended and everything is
// stopped: plugins are ended, what they put into the kernel stays. It is an
// [InvalidConfigError] when the configuration has mistakes, a [HeldError] when
// another agent has the data folder.
func Run(ctx context.Context, options Options) error {
	if options.Output == nil {
		options.Output = os.Stderr
	}
	began := time.Now()
	cfg, diagnostics := config.Load(options.ConfigPaths, options.loadOptions())
	if diagnostics.HasErrors() {
		return &InvalidConfigError{diagnostics}
	}
	lock, err := LockDataDir(cfg.DataDir)
	if err != nil {
		return err
	}
	defer lock.Release()

	// Before anything is written: an agent that can't start leaves nothing.
	socket, err := admin.ListenSocket(cfg.Agent.Socket, cfg.Agent.User, cfg.Agent.Group)
	if err != nil {
		return err
	}
	defer socket.Close()
	a, err := prepare(options, cfg)
	if err != nil {
		return err
	}
	defer a.close()
	return a.run(ctx, cfg, socket, began, diagnostics)
}

func (o Options) loadOptions() config.Options {
	return config.Options{DataDir: o.DataDir, PluginDir: o.PluginDir, Socket: o.Socket}
}

// prepare makes the parts that need the data folder; nothing runs yet.
func prepare(options Options, cfg *config.Config) (*Agent, error) {
	a := &Agent{
		options:     options,
		log:         newLogger(options, cfg.Agent),
		started:     time.Now(),
		dataDir:     cfg.DataDir,
		notice:      newNotice(),
		troubles:    &state.Troubles{},
		inForceOnce: make(chan struct{}),
		changing:    make(semaphore, 1),
		schemas:     map[string]config.PluginSchema{},
		carriers:    map[string]*carrier{},
		leaving:     map[string]*carrier{},
		silent:      map[string]string{},
	}
	var warning error
	var err error
	if a.session, warning, err = nextSession(cfg.DataDir); err != nil {
		return nil, err
	}
	if warning != nil {
		a.problem("state", warning)
	}
	if a.leases, err = vip.OpenFile(filepath.Join(cfg.DataDir, vip.FileName), vip.FileOptions{Logger: a.log.Named("vip"), Troubles: a.troubles}); err != nil {
		return nil, err
	}
	a.catalog, err = catalog.New(catalog.Options{
		Leases:    a.leases,
		StatePath: filepath.Join(cfg.DataDir, catalogName),
		Troubles:  a.troubles,
		Logger:    a.log.Named("catalog"),
	})
	if err != nil {
		return nil, errors.Join(err, a.leases.Close())
	}
	a.static = static.New(static.Options{
		StatePath: filepath.Join(cfg.DataDir, staticName),
		Troubles:  a.troubles,
		Logger:    a.log.Named("static"),
	})
	a.metrics = admin.NewMetrics(a.sample)
	a.files = newFileWatch(a.log.Named("files"))
	return a, nil
}

// close frees what prepare has made.
func (a *Agent) close() {
	if err := a.leases.Close(); err != nil {
		a.log.Error("saving the leases of VIPs", "error", err)
	}
}

// maxProblems is how many problems are kept; the log has all.
const maxProblems = 20

// problem keeps what an operator should see to, and logs it.
func (a *Agent) problem(what string, err error) {
	a.log.Error(what, "error", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.problems) < maxProblems {
		a.problems = append(a.problems, err.Error())
	}
}

func newLogger(options Options, agent config.Agent) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name:       "patchbay",
		Level:      hclog.LevelFromString(logLevel(options, agent)),
		Output:     options.Output,
		JSONFormat: agent.LogFormat == "json",
		TimeFn:     func() time.Time { return time.Now().UTC() },
		TimeFormat: "2006-01-02T15:04:05.000Z07:00",
	})
}

func logLevel(options Options, agent config.Agent) string {
	switch {
	case options.LogLevel != "":
		return options.LogLevel
	case agent.LogLevel != "":
		return agent.LogLevel
	}
	return "info"
}

// run is the agent's life. The order of the end is that of the start turned
// round: the API last, so that it can be asked why the end takes its time.
func (a *Agent) run(ctx context.Context, cfg *config.Config, socket net.Listener, began time.Time, diagnostics *config.Diagnostics) error {
	a.server = admin.NewServer(a, a.metrics.Registry, a.log.Named("api"))
	defer a.server.Close()

	carriersCtx, stopCarriers := context.WithCancel(context.WithoutCancel(ctx))
	a.carriersCtx = carriersCtx
	running, stop := context.WithCancel(ctx)
	a.running = running
	defer func() {
		a.log.Info("stopping")
		stop()
		stopCarriers()
		// Who changes the configuration just now comes to an end first, and
		// nobody begins any more: the semaphore is never released.
		a.changing <- struct{}{}
		a.wg.Wait()
		a.log.Info("stopped")
	}()

	if err := a.start(ctx, cfg, began, diagnostics); err != nil {
		return err
	}
	if err := a.listenHTTP(cfg.Agent.HTTP); err != nil {
		return err
	}
	a.server.Serve(socket)
	a.log.Info("started", "version", a.options.Version.Version, "pid", os.Getpid(), "session", a.session,
		"socket", cfg.Agent.Socket, "data_dir", cfg.DataDir, "plugin_dir", cfg.PluginDir, "services", a.catalog.Snapshot().Len())
	a.serveEvents(ctx)
	return nil
}

func (a *Agent) listenHTTP(address string) error {
	if address == "" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("agent { http = %q }: %w", address, err)
	}
	a.server.ServeHealth(listener)
	return nil
}

// serveEvents reloads when somebody asks for it, until ctx ends.
func (a *Agent) serveEvents(ctx context.Context) {
	// A node's memory belongs to others: the collector works a little more, and
	// what files and whole updates took for a moment is given back.
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(50))
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	seen := a.fingerprint()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.options.Reload:
			a.reload(ctx, "signal")
		case <-a.files.changed:
			a.reload(ctx, "files")
		case <-tick.C:
			// Processes come and go without telling; who waits is told here.
			if now := a.fingerprint(); now != seen {
				seen = now
				a.notice.bump()
			}
			a.followAddresses(ctx)
			if _, unsaved := a.troubles.List(); len(unsaved) > 0 {
				// Their end is seen by trying, also when there is nothing to save.
				_ = a.leases.Sync()
			}
			if a.grown.CompareAndSwap(true, false) {
				debug.FreeOSMemory()
			}
		}
	}
}

// fingerprint of what changes without notice.
func (a *Agent) fingerprint() string {
	text := ""
	for _, c := range a.allCarriers() {
		text += c.fingerprint()
	}
	for _, s := range a.catalog.Sources() {
		text += fmt.Sprint(s)
	}
	return text
}

// allCarriers gives the carriers in the order of names, those that are leaving
// last. There is one of each name: of one that leaves and its successor, the
// successor.
func (a *Agent) allCarriers() []*carrier {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []*carrier
	for _, set := range []map[string]*carrier{a.carriers, a.leaving} {
		for _, name := range slices.Sorted(maps.Keys(set)) {
			if c := a.carriers[name]; c == nil || c == set[name] {
				all = append(all, set[name])
			}
		}
	}
	return all
}

// inForce gives the configuration that is in force.
func (a *Agent) inForce() *config.Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.config
}

// semaphore is a lock that can be waited for with a context.
type semaphore chan struct{}

func (s semaphore) acquire(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s semaphore) release() { <-s }
