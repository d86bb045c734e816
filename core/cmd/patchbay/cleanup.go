package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/core/agent"
)

func newCleanupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove from this host what the dataplanes made, and the agent's state",
		Long: `Remove from this host what the dataplanes made, and the agent's state. The agent
must be stopped. The plugin of every dataplane that was ever used with the data
folder is started and told to remove every trace. What can't be removed is named,
and its state stays, so that it can be done later; the exit code is 1 then.`,
		Args: cobra.NoArgs,
	}
	where, format := addPlaces(cmd), addFormat(cmd)
	cmd.RunE = action(func(cmd *cobra.Command, _ []string) error {
		ctx, stop := endedBySignal(commandContext(cmd), cmd.ErrOrStderr())
		defer stop()
		report, err := agent.Cleanup(ctx, agent.Options{
			ConfigPaths: where.config,
			DataDir:     where.dataDir,
			PluginDir:   where.pluginDir,
			Output:      os.Stderr,
		})
		var held *agent.HeldError
		if errors.As(err, &held) {
			return &admin.Error{
				Message: fmt.Sprintf("an agent uses %s (%s)", held.DataDir, held.Holder),
				Hint:    "stop it first: while it runs it would put everything back",
			}
		}
		if err != nil {
			return err
		}
		if *format == formatJSON {
			err = printJSON(cmd.OutOrStdout(), report)
		} else {
			printCleanup(cmd.OutOrStdout(), cmd.ErrOrStderr(), report)
		}
		if err == nil && len(report.Left) > 0 {
			return errQuiet
		}
		return err
	})
	return cmd
}

func printCleanup(out, stderr io.Writer, r *agent.CleanupReport) {
	for _, name := range r.Cleaned {
		fmt.Fprintf(out, "Dataplane %s: cleaned up.\n", printable(name))
	}
	for _, path := range r.Removed {
		fmt.Fprintf(out, "Removed %s\n", printable(path))
	}
	for _, l := range r.Left {
		if l.Dataplane == "" {
			fmt.Fprintf(stderr, "Left: %s\n", printable(l.Reason))
			continue
		}
		fmt.Fprintf(stderr, "Dataplane %s: what it made may still be there: %s\n", printable(l.Dataplane), printable(l.Reason))
	}
	if len(r.Cleaned)+len(r.Removed)+len(r.Left) == 0 {
		fmt.Fprintf(out, "Nothing to clean up in %s.\n", printable(r.DataDir))
	}
}
