package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

func newExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain ADDRESS:PORT",
		Short: "Tell what becomes of a connection to an address, and why",
		Args:  cobra.ExactArgs(1),
	}
	asks, format := addSocket(cmd), addFormat(cmd)
	cmd.RunE = action(func(cmd *cobra.Command, args []string) error {
		address, err := netip.ParseAddrPort(args[0])
		if err != nil || address.Port() == 0 {
			return usageError{fmt.Sprintf("%q is no address and port: write 10.96.0.1:80 or [fd00::1]:80", args[0])}
		}
		return asks.ask(cmd, func(ctx context.Context, client *admin.Client) error {
			explanation, err := client.Explain(ctx, address)
			if err != nil {
				return err
			}
			if *format == formatJSON {
				return printJSON(cmd.OutOrStdout(), explanation)
			}
			return printExplanation(cmd.OutOrStdout(), explanation)
		})
	})
	return cmd
}

func printExplanation(w io.Writer, e admin.Explanation) error {
	fmt.Fprintf(w, "%s: %s\n", e.Address, printable(e.Verdict))
	facts := newFacts(w)
	if e.Service != nil {
		facts.add("Service", e.Service.ID)
		facts.add("State", string(e.Service.State))
		facts.add("Reason", e.Service.Reason)
		facts.add("Dataplane", e.Service.Dataplane)
		facts.add("Acknowledged", ifSome(e.Service.Acknowledged > 0, fmt.Sprintf("at revision %d of %d", e.Service.Acknowledged, e.Revision)))
		for _, n := range e.Service.Notes {
			facts.add("Note", n)
		}
	}
	if e.Pool != "" {
		facts.add("Pool", joinNonEmpty(", ", e.Pool, ifSome(e.LeaseOwner != "", "leased to "+e.LeaseOwner)))
	}
	if err := facts.flush(); err != nil {
		return err
	}
	if len(e.Endpoints) > 0 {
		fmt.Fprintln(w)
		if err := printEndpoints(w, e.Endpoints, false); err != nil {
			return err
		}
	}
	if e.InForce != nil {
		fmt.Fprintf(w, "\nIn force in the dataplane %s:\n", e.InForce.Dataplane)
		if e.InForce.Error != "" {
			fmt.Fprintf(w, "  can't be told: %s\n", printable(e.InForce.Error))
		}
		if e.InForce.Text != "" {
			fmt.Fprintln(w, printableText(e.InForce.Text))
		}
	}
	if len(e.Related) > 0 {
		fmt.Fprintln(w, "\nWhat comes near:")
		return printServices(w, e.Related)
	}
	return nil
}
