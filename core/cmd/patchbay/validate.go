package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/agent"
)

func newValidateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate [PATH...]",
		Short: "Check configuration files",
		Long: `Check configuration files, each a file or a folder of *.hcl and *.json, without an
agent. Every mistake is reported at once. What belongs to a dataplane's plugin is
checked by the plugin, which is started for that; where it isn't at hand this is a
warning, and with -strict an error.`,
	}
	where, format := addPlaces(cmd), addFormat(cmd)
	strict := cmd.Flags().Bool("strict", false, "fail where a plugin isn't at hand")
	cmd.RunE = action(func(cmd *cobra.Command, args []string) error {
		diagnostics, unchecked := agent.Check(commandContext(cmd), agent.Options{
			ConfigPaths: append(slices.Clone(where.config), args...),
			DataDir:     where.dataDir,
			PluginDir:   where.pluginDir,
		})
		failed := diagnostics.HasErrors() || *strict && len(unchecked) > 0
		if *format == formatJSON {
			if err := diagnostics.WriteJSON(cmd.OutOrStdout()); err != nil {
				return err
			}
		} else {
			stderr := cmd.ErrOrStderr()
			_ = diagnostics.WriteText(stderr, isTerminal(stderr))
			for _, name := range slices.Sorted(maps.Keys(unchecked)) {
				fmt.Fprintf(stderr, "Dataplane %s was not checked by its plugin: %v\n", name, unchecked[name])
			}
			if !failed {
				fmt.Fprintln(cmd.OutOrStdout(), "The configuration is valid.")
			}
		}
		if failed {
			return errQuiet
		}
		return nil
	})
	return cmd
}
