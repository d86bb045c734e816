package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/pluginhost"
	"github.com/patchbay-proxy/patchbay/core/vip"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// cleanupTimeout is how long one plugin may take to remove what it made.
const cleanupTimeout = 2 * time.Minute

// CleanupReport is what a cleanup did, and what it had to leave.
type CleanupReport struct {
	DataDir string `json:"data_dir"`
	// Cleaned dataplanes left no trace, as their plugins say.
	Cleaned []string `json:"cleaned"`
	// Left are dataplanes whose traces may still be there, with the reason.
	Left []LeftBehind `json:"left"`
	// Removed are the files and folders of the agent's own state.
	Removed []string `json:"removed"`
}

// LeftBehind is a dataplane that could not be cleaned up.
type LeftBehind struct {
	Dataplane string `json:"dataplane"`
	Reason    string `json:"reason"`
}

// Cleanup removes what plugins have put into this host, and the agent's state.
// It needs no configuration: what each plugin was configured with is saved, but
// for sensitive values. While an agent has
// the data folder it is a [HeldError]. What can't be cleaned is in the report,
// and its state stays, so that a later cleanup can do it.
func Cleanup(ctx context.Context, options Options) (*CleanupReport, error) {
	cfg, _ := config.Load(options.ConfigPaths, options.loadOptions())
	report := &CleanupReport{DataDir: cfg.DataDir, Cleaned: []string{}, Left: []LeftBehind{}, Removed: []string{}}
	if cfg.DataDir == "" {
		return report, errors.New("no data folder is known: name it with -data-dir")
	}
	if _, err := os.Stat(cfg.DataDir); errors.Is(err, fs.ErrNotExist) {
		return report, nil
	}
	lock, err := LockDataDir(cfg.DataDir)
	if err != nil {
		return report, err
	}
	defer lock.Release()

	names, err := usedDataplanes(cfg.DataDir)
	if err != nil {
		return report, err
	}
	logger := hclog.New(&hclog.LoggerOptions{Name: "patchbay", Output: options.Output, Level: hclog.LevelFromString(logLevel(options, config.Agent{LogLevel: "warn"}))})
	for _, name := range names {
		if err := cleanDataplane(ctx, cfg, len(options.ConfigPaths) > 0, name, logger); err != nil {
			report.Left = append(report.Left, LeftBehind{name, err.Error()})
			continue
		}
		report.Cleaned = append(report.Cleaned, name)
		report.remove(filepath.Join(cfg.DataDir, "plugins", name))
	}
	if len(report.Left) == 0 {
		report.removeState(cfg)
	}
	return report, nil
}

// usedDataplanes are those that have a folder.
func usedDataplanes(dataDir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dataDir, "plugins"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("looking for dataplanes that were used: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// cleanDataplane starts a plugin, which ends the process that an agent may have
// left, and tells it to remove every trace. named tells that the user has named
// configuration files.
func cleanDataplane(ctx context.Context, cfg *config.Config, named bool, name string, logger hclog.Logger) error {
	block := cfg.Dataplane(name)
	if block == nil {
		block = &config.Dataplane{Name: name}
	}
	if _, err := chooseBinary(cfg.PluginDir, block); err != nil {
		return fmt.Errorf("its plugin can't be run, and only the plugin knows what it made: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	running, stop := context.WithCancel(ctx)
	defer stop()
	outcome := make(chan error, 1)
	supervisor := pluginhost.New(pluginhost.Options{
		Settings: settingsOf(block),
		Name:     name,
		Dir:      cfg.PluginDir,
		StateDir: hostDir(cfg.DataDir, name),
		LogDir:   logDir(cfg.DataDir),
		Logger:   logger.Named("plugin").With("dataplane", name),
		OnReady: func(ctx context.Context, process *pluginhost.Process) error {
			err := shutdownWithCleanup(ctx, cfg, named, name, process)
			select {
			case outcome <- err:
			default: // it was started once more before it was stopped
			}
			stop()
			return nil
		},
		OnGone: func(*pluginhost.Process, error) {},
	})
	err := supervisor.Run(running)
	select {
	case result := <-outcome:
		return errors.Join(result, err)
	default:
	}
	if err == nil {
		err = ctx.Err()
	}
	if last := supervisor.Status().LastError; last != "" {
		err = errors.New(last)
	}
	return fmt.Errorf("its plugin did not get ready: %w", err)
}

func shutdownWithCleanup(ctx context.Context, cfg *config.Config, named bool, name string, process *pluginhost.Process) error {
	h, err := cleanupConfig(cfg, named, name, process.Description())
	if err != nil {
		return err
	}
	client := process.Client()
	_, configureErr := client.Configure(ctx, h)
	// A plugin that can't be configured any more may still know how to clean up
	// some of it. What it made by its configuration may stay, so that it counts
	// as left.
	if configureErr != nil {
		configureErr = fmt.Errorf("its plugin could not be configured: %w", configureErr)
		if !named {
			configureErr = fmt.Errorf("%w: %w", configureErr, errGiveConfig)
		}
	}
	if err := client.Shutdown(ctx, dataplane.CloseCleanup); err != nil {
		return errors.Join(fmt.Errorf("its plugin could not clean up: %w", err), configureErr)
	}
	return configureErr
}

func (r *CleanupReport) remove(path string) {
	if _, err := os.Lstat(path); err != nil {
		return
	}
	if err := os.RemoveAll(path); err != nil {
		r.Left = append(r.Left, LeftBehind{Dataplane: "", Reason: err.Error()})
		return
	}
	r.Removed = append(r.Removed, path)
}

// removeState removes what the agent itself keeps: what it knows the names of,
// and the folder if nothing else is in it. The lock goes last.
func (r *CleanupReport) removeState(cfg *config.Config) {
	for _, name := range []string{"plugins", "log", catalogName, staticName, consulName, sessionName, vip.FileName} {
		r.remove(filepath.Join(cfg.DataDir, name))
		for _, suffix := range []string{".new", ".damaged", ".old", ".old.new"} {
			r.remove(filepath.Join(cfg.DataDir, name+suffix))
		}
	}
	if socket := cfg.Agent.Socket; socket != "" {
		if _, err := os.Lstat(socket); err == nil && admin.RemoveDeadSocket(socket) == nil {
			r.Removed = append(r.Removed, socket)
		}
	}
	r.remove(filepath.Join(cfg.DataDir, lockName))
	if os.Remove(cfg.DataDir) == nil {
		r.Removed = append(r.Removed, cfg.DataDir)
	}
}
