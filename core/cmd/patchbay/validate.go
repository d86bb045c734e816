package main

import (
	"fmt"
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
checked by the plugin, which is started for that; where it can't be asked this
is a warning with the reason, and with -strict an error.`,
	}
	where, format := addPlaces(cmd), addFormat(cmd)
	strict := cmd.Flags().Bool("strict", false, "fail where a plugin can't be asked")
	cmd.RunE = action(func(cmd *cobra.Command, args []string) error {
		diagnostics := agent.Check(commandContext(cmd), agent.Options{
			ConfigPaths: append(slices.Clone(where.config), args...),
			DataDir:     where.dataDir,
			PluginDir:   where.pluginDir,
		}, *strict)
		failed := diagnostics.HasErrors()
		if *format == formatJSON {
			if err := diagnostics.WriteJSON(cmd.OutOrStdout()); err != nil {
				return err
			}
		} else {
			stderr := cmd.ErrOrStderr()
			_ = diagnostics.WriteText(stderr, isTerminal(stderr))
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
