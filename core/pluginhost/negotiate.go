package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// negotiate starts the process through go-plugin, which reads its first line.
// Of go-plugin's goroutines none outlives the process; its folder is in ours.
func (p *Process) negotiate(ctx context.Context, options launchOptions) (net.Addr, error) {
	var run *processRunner
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  dataplane.Handshake,
		VersionedPlugins: dataplane.VersionedPlugins(),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		// Its own time-out would leave the process alone; ctx kills it.
		StartTimeout:     2 * startTimeout,
		SkipHostEnv:      true,
		Logger:           hclog.NewNullLogger(),
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: p.runtimeDir},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, socketDir string) (runner.Runner, error) {
			run = &processRunner{process: p, ctx: ctx, options: options, env: cmd.Env, socketDir: socketDir}
			return run, nil
		},
	})
	addr, err := client.Start()
	if run != nil && run.stopKilling != nil {
		run.stopKilling()
	}
	if err != nil {
		return nil, fmt.Errorf("the plugin did not tell where it listens: %w", shorten(err, p))
	}
	return addr, nil
}

// shorten says in our words, on one line, what go-plugin has against the first
// line: its own texts are many lines of advice for authors of another program.
func shorten(err error, p *Process) error {
	if p.child == nil { // our own error, which go-plugin has handed on
		return err
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	if rest, ok := strings.CutPrefix(text, "Unrecognized remote plugin message: "); ok {
		line, _, _ := strings.Cut(rest, "Failed to read any lines")
		if line == "" {
			return errEarlyEnd
		}
		return fmt.Errorf("its first line is not that of a plugin: %s", strings.TrimSpace(line))
	}
	if rest, ok := strings.CutPrefix(text, "incompatible API version with plugin. Plugin version: "); ok {
		spoken, known, _ := strings.Cut(rest, ", Client versions: ")
		return fmt.Errorf("it speaks version %s of the contract, and this core %s", spoken, strings.Trim(known, "[]"))
	}
	if strings.HasPrefix(text, "plugin exited before") {
		return errEarlyEnd
	}
	return errors.New(text)
}

var errEarlyEnd = errors.New("it ended before its first line")

// processRunner is a process as go-plugin wants to see it.
type processRunner struct {
	process   *Process
	ctx       context.Context
	options   launchOptions
	env       []string
	socketDir string
	// stopKilling ends the watch that kills the process with ctx.
	stopKilling func() bool
}

// Start starts the process.
func (r *processRunner) Start(context.Context) error {
	p := r.process
	env := append(r.env,
		dataplane.EnvHostUID+"="+strconv.Itoa(os.Geteuid()),
		dataplane.EnvLogLevel+"="+p.log.GetLevel().String())
	child, err := startChild(p.image, env, p.runtimeDir, p.output.stdout.append, p.output.stderr.append)
	if err != nil {
		return err
	}
	p.child = child
	r.stopKilling = context.AfterFunc(r.ctx, child.kill)
	if r.options.started != nil {
		r.options.started(child.pid, p.runtimeDir)
	}
	return nil
}

// Wait waits for the end, however the process was ended.
func (r *processRunner) Wait(context.Context) error { <-r.process.child.exited; return nil }

// Kill ends the process.
func (r *processRunner) Kill(context.Context) error { r.process.child.kill(); return nil }

// Stdout gives the line that says where the plugin listens.
func (r *processRunner) Stdout() io.ReadCloser {
	return &handshake{file: r.process.output.stdout.follow, exited: r.process.child.exited, ctx: r.ctx}
}

// Stderr gives nothing: the output is followed elsewhere.
func (r *processRunner) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name is for go-plugin's log, which we don't keep.
func (r *processRunner) Name() string { return filepath.Base(r.process.image.Path) }

// ID is the process number, empty before the start.
func (r *processRunner) ID() string {
	if r.process.child == nil {
		return ""
	}
	return strconv.Itoa(r.process.child.pid)
}

// Diagnose adds nothing: we know the process better.
func (r *processRunner) Diagnose(context.Context) string { return "" }

// PluginToHost takes a unix socket in the folder that the plugin was given, and
// nothing else.
func (r *processRunner) PluginToHost(network, address string) (string, string, error) {
	if network != "unix" || filepath.Dir(filepath.Clean(address)) != filepath.Clean(r.socketDir) {
		return "", "", fmt.Errorf("it listens at %s %s, not in the folder %s", network, address, r.socketDir)
	}
	return network, address, nil
}

// HostToPlugin is for go-plugin's broker, which isn't used.
func (r *processRunner) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}
