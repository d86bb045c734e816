package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

func newReloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make the agent load its configuration anew",
		Long: `Make the agent load its configuration anew, as SIGHUP does. Files with mistakes
change nothing: the mistakes are printed and the exit code is 1.

A source that has suddenly lost all its services, or most of one, isn't believed
at once; -accept-empty says that it is right.`,
		Args: cobra.NoArgs,
	}
	asks, format := addSocket(cmd), addFormat(cmd)
	acceptEmpty := cmd.Flags().Bool("accept-empty", false, "believe sources that have lost their services")
	cmd.RunE = action(func(cmd *cobra.Command, _ []string) error {
		return asks.ask(cmd, func(ctx context.Context, client *admin.Client) error {
			load := client.Reload
			if *acceptEmpty {
				load = client.ReloadAccepting
			}
			reload, err := load(ctx)
			if err != nil {
				return err
			}
			if *format == formatJSON {
				if err := printJSON(cmd.OutOrStdout(), reload); err != nil {
					return err
				}
			} else {
				printReload(cmd.OutOrStdout(), cmd.ErrOrStderr(), reload)
			}
			if !reload.OK {
				return errQuiet
			}
			return nil
		})
	})
	return cmd
}

func printReload(out, errors io.Writer, r admin.Reload) {
	printFindings(errors, r.Findings)
	switch {
	case !r.OK:
		fmt.Fprintln(errors, "The configuration was not loaded: the one of before stays in force.")
	case !r.Changed:
		fmt.Fprintln(out, "Loaded; nothing has changed.")
	default:
		fmt.Fprintf(out, "Loaded; revision %d.\n", r.Revision)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(out, "Note: "+printable(n))
	}
	for _, s := range r.Accepted {
		fmt.Fprintf(out, "What source %s has lost is accepted.\n", printable(s))
	}
}

func printFindings(w io.Writer, f admin.Findings) {
	if f.Text != "" {
		fmt.Fprintln(w, printableText(f.Text))
	}
}

func newPlanCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Tell what a reload would change",
		Long: `Tell what a reload would change, without changing anything: the agent loads its
files beside the configuration in force and compares. Files with mistakes are an
error, exit code 1.`,
		Args: cobra.NoArgs,
	}
	asks, format := addSocket(cmd), addFormat(cmd)
	cmd.RunE = action(func(cmd *cobra.Command, _ []string) error {
		return asks.ask(cmd, func(ctx context.Context, client *admin.Client) error {
			plan, err := client.Plan(ctx)
			if err != nil {
				return err
			}
			if *format == formatJSON {
				if err := printJSON(cmd.OutOrStdout(), plan); err != nil {
					return err
				}
			} else {
				printPlan(cmd.OutOrStdout(), cmd.ErrOrStderr(), plan)
			}
			if !plan.Valid {
				return errQuiet
			}
			return nil
		})
	})
	return cmd
}

func printPlan(out, errors io.Writer, p admin.Plan) {
	printFindings(errors, p.Findings)
	if !p.Valid {
		fmt.Fprintln(errors, "A reload would change nothing: the files have mistakes.")
		return
	}
	signs := map[string]string{"add": "+", "change": "~", "remove": "-"}
	count := map[string]int{}
	for _, c := range p.Changes {
		count[c.Action]++
		fmt.Fprintf(out, "%s %s %s\n", signs[c.Action], c.Kind, printable(c.Name))
		for _, d := range c.Details {
			fmt.Fprintf(out, "    %s\n", printable(d))
		}
	}
	if len(p.Changes) == 0 {
		fmt.Fprintln(out, "A reload would change nothing.")
		return
	}
	fmt.Fprintf(out, "\n%d to add, %d to change, %d to remove.\n", count["add"], count["change"], count["remove"])
}
