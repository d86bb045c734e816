package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

func newVIPCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vip",
		Short: "List and release the leases of VIPs",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVIPListCommand(), newVIPReleaseCommand())
	return cmd
}

func newVIPListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the leases", Args: cobra.NoArgs}
	asks, format := addSocket(cmd), addFormat(cmd)
	cmd.RunE = action(func(cmd *cobra.Command, _ []string) error {
		return asks.ask(cmd, func(ctx context.Context, client *admin.Client) error {
			list, err := client.Leases(ctx)
			if err != nil {
				return err
			}
			if *format == formatJSON {
				return printJSON(cmd.OutOrStdout(), list)
			}
			return printLeases(cmd.OutOrStdout(), list.Leases)
		})
	})
	return cmd
}

func printLeases(w io.Writer, leases []admin.Lease) error {
	if len(leases) == 0 {
		_, err := fmt.Fprintln(w, "No leases.")
		return err
	}
	t := newTable(w, "POOL", "ADDRESS", "SERVICE", "SINCE", "STATE")
	for _, l := range leases {
		state := "in use"
		switch {
		case l.RestsUntil != nil:
			state = "rests until " + l.RestsUntil.Local().Format(time.DateTime)
		case !l.InUse:
			state = "held, not in use"
		}
		t.row(l.Pool, strings.Join(texts(l.Addresses), ", "), l.Service, l.Since.Local().Format(time.DateTime), state)
	}
	return t.flush()
}

func newVIPReleaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release SERVICE",
		Short: "Free the VIP that a service holds and no longer uses",
		Long: `Free the lease of a service that is no longer there. The address rests for a day
before another service may get it. A lease in use is not freed.`,
		Args: cobra.ExactArgs(1),
	}
	asks := addSocket(cmd)
	cmd.RunE = action(func(cmd *cobra.Command, args []string) error {
		return asks.ask(cmd, func(ctx context.Context, client *admin.Client) error {
			if _, err := client.ReleaseLease(ctx, args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "Released the lease of %s.\n", args[0])
			return err
		})
	})
	return cmd
}
