package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

func newPluginsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugins",
		Short: "List the dataplanes and their plugins' processes",
		Args:  cobra.NoArgs,
	}
	asks, format := addSocket(cmd), addFormat(cmd)
	cmd.RunE = action(func(cmd *cobra.Command, _ []string) error {
		return asks.ask(cmd, func(ctx context.Context, client *admin.Client) error {
			list, err := client.Plugins(ctx)
			if err != nil {
				return err
			}
			if *format == formatJSON {
				return printJSON(cmd.OutOrStdout(), list)
			}
			return printPlugins(cmd.OutOrStdout(), list.Plugins)
		})
	})
	return cmd
}

func printPlugins(w io.Writer, plugins []admin.Plugin) error {
	if len(plugins) == 0 {
		_, err := fmt.Fprintln(w, "No dataplanes.")
		return err
	}
	t := newTable(w, "DATAPLANE", "VERSION", "STATE", "PID", "STARTED", "STARTS", "CRASHES", "SERVICES", "ACK", "REASON")
	for _, p := range plugins {
		name, started, reason := p.Name, "", p.Reason
		if p.Default {
			name += " (default)"
		}
		if p.StartedAt != nil {
			started = ago(*p.StartedAt)
		}
		if p.NextStart != nil {
			reason = joinNonEmpty("; ", reason, "next start "+ago(*p.NextStart))
		}
		t.row(name, p.Version, p.State, number(p.PID), started, fmt.Sprint(p.Starts), fmt.Sprint(p.Crashes),
			fmt.Sprint(p.Services), number(p.Acknowledged), reason)
	}
	return t.flush()
}
