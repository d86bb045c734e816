package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

func newStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the agent fares as a whole",
		Args:  cobra.NoArgs,
	}
	asks, format := addSocket(cmd), addFormat(cmd)
	cmd.RunE = action(func(cmd *cobra.Command, _ []string) error {
		return asks.ask(cmd, func(ctx context.Context, client *admin.Client) error {
			status, err := client.Status(ctx, admin.Watch{})
			if err != nil {
				return err
			}
			if *format == formatJSON {
				return printJSON(cmd.OutOrStdout(), status)
			}
			return printStatus(cmd.OutOrStdout(), status)
		})
	})
	return cmd
}

func printStatus(w io.Writer, s admin.Status) error {
	f := newFacts(w)
	f.add("Health", ifSome(s.Health.Healthy, "healthy"))
	for _, reason := range s.Health.Reasons {
		f.add("Health", "not healthy: "+reason)
	}
	for _, note := range s.Health.Notes {
		f.add("Note", note)
	}
	f.add("Agent", fmt.Sprintf("version %s, pid %d, started %s", s.Version, s.PID, ago(s.StartedAt)))
	f.add("Revision", strconv.FormatUint(s.Revision, 10))
	var states []string
	for _, state := range admin.ServiceStates() {
		if n := s.ByState[string(state)]; n > 0 {
			states = append(states, fmt.Sprintf("%d %s", n, state))
		}
	}
	f.add("Services", joinNonEmpty(": ", strconv.Itoa(s.Services), strings.Join(states, ", ")))
	f.add("Configuration", strings.Join(s.ConfigFiles, ", "))
	f.add("Data", s.DataDir)
	if r := s.LastReload; r != nil {
		outcome := "loaded"
		if !r.OK {
			outcome = "refused, the configuration of before is in force"
		}
		f.add("Last reload", fmt.Sprintf("%s (%s, by %s)", outcome, ago(r.Time), r.Trigger))
	}
	for _, source := range s.Sources {
		f.add("Source "+source.Name, sourceState(source))
	}
	for _, d := range s.Dataplanes {
		f.add("Dataplane "+d.Name, joinNonEmpty(", ", d.State,
			ifSome(d.Acknowledged > 0, fmt.Sprintf("acknowledged revision %d", d.Acknowledged)), d.Holding, d.Error))
	}
	for _, p := range s.Problems {
		f.add("Problem", p)
	}
	if err := f.flush(); err != nil {
		return err
	}
	if s.LastReload != nil && !s.LastReload.OK {
		fmt.Fprintln(w)
		printFindings(w, s.LastReload.Findings)
	}
	return nil
}

// sourceState says how a source fares: "read" when all is well.
func sourceState(s admin.SourceStatus) string {
	switch {
	case !s.Read:
		return joinNonEmpty(": ", "not read yet", s.Error)
	case s.StaleSince != nil:
		return joinNonEmpty(": ", "stale since "+s.StaleSince.Local().Format(time.DateTime), s.Error)
	}
	return joinNonEmpty(": ", "read", s.Error)
}
