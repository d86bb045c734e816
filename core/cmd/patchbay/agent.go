package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/agent"
	"github.com/patchbay-proxy/patchbay/core/config"
)

// places are the flags that say where things are.
type places struct {
	config             []string
	dataDir, pluginDir string
}

func addPlaces(cmd *cobra.Command) *places {
	defaults := config.DefaultPlaces(os.Geteuid())
	p := &places{}
	cmd.Flags().StringSliceVar(&p.config, "config", nil, "configuration `path`, a file or a folder; may be given several times (default "+cmp.Or(defaults.Config, "none, for the home folder is not known")+")")
	cmd.Flags().StringVar(&p.dataDir, "data-dir", "", "`folder` of the agent's state (default data_dir of the configuration"+orElse(defaults.DataDir)+")")
	cmd.Flags().StringVar(&p.pluginDir, "plugin-dir", "", "`folder` of the plugins (default plugin_dir of the configuration"+orElse(defaults.PluginDir)+")")
	return p
}

// orElse ends a flag's usage with a default that isn't always known.
func orElse(place string) string {
	if place == "" {
		return ""
	}
	return ", else " + place
}

func newAgentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent in the foreground",
		Long: `Run the agent in the foreground, until Ctrl-C or SIGTERM. SIGHUP makes it load its
configuration anew. What the plugins have put into the kernel stays when it ends:
"patchbay cleanup" removes it.`,
		Args: cobra.NoArgs,
	}
	where := addPlaces(cmd)
	socket := cmd.Flags().String("socket", "", "`path` of the admin API's socket (default $PATCHBAY_SOCKET, else socket of the configuration)")
	level := cmd.Flags().String("log-level", "", "trace, debug, info, warn or error (default log_level of the configuration, else info)")
	cmd.RunE = action(func(cmd *cobra.Command, _ []string) error {
		switch *level {
		case "", "trace", "debug", "info", "warn", "error":
		default:
			return usageError{fmt.Sprintf("-log-level %q: use trace, debug, info, warn or error", *level)}
		}
		if *socket == "" {
			*socket = os.Getenv("PATCHBAY_SOCKET")
		}
		stderr := cmd.ErrOrStderr()
		ctx, stop := endedBySignal(commandContext(cmd), stderr)
		defer stop()
		reload := make(chan os.Signal, 1)
		signal.Notify(reload, syscall.SIGHUP)
		defer signal.Stop(reload)

		err := agent.Run(ctx, agent.Options{
			ConfigPaths: where.config,
			DataDir:     where.dataDir,
			PluginDir:   where.pluginDir,
			Socket:      *socket,
			LogLevel:    *level,
			Version:     buildVersion(),
			Output:      stderr,
			Reload:      reload,
		})
		return reportInvalid(stderr, err)
	})
	return cmd
}

// reportInvalid prints the diagnostics of a configuration in full.
func reportInvalid(w io.Writer, err error) error {
	var invalid *agent.InvalidConfigError
	if !errors.As(err, &invalid) {
		return err
	}
	_ = invalid.Diagnostics.WriteText(w, isTerminal(w))
	return errQuiet
}

// endedBySignal gives a context that ends with SIGINT or SIGTERM. A second
// signal ends the process at once; the next agent then ends the plugins.
func endedBySignal(parent context.Context, w io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-signals:
			case <-stop:
				return
			}
			if n > 0 {
				fmt.Fprintln(w, "Ended by force: plugins may still run, the next agent ends them.")
				os.Exit(exitFailed)
			}
			cancel()
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stop)
		<-done
		cancel()
	}
}
