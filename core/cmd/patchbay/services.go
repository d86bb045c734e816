package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

func newServicesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "services [NAME]",
		Short: "List the services and how they fare",
		Long: `List the services: address, port, dataplane, endpoints by state, the revision
that the dataplane has acknowledged, and the reason where one is rejected, failed,
waiting or degraded. With a name: that service with its policy and endpoints.`,
		Args: cobra.MaximumNArgs(1),
	}
	asks, format := addSocket(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = asks.completeService
	watch := cmd.Flags().Bool("watch", false, "go on printing as things change, until Ctrl-C")
	cmd.RunE = action(func(cmd *cobra.Command, args []string) error {
		out := cmd.OutOrStdout()
		if *watch && len(args) > 0 {
			return usageError{"-watch is for the list of all services"}
		}
		if *watch {
			return asks.follow(cmd, func(ctx context.Context, client *admin.Client) error {
				return watchServices(ctx, client, out, *format)
			})
		}
		return asks.ask(cmd, func(ctx context.Context, client *admin.Client) error {
			if len(args) == 1 {
				detail, err := client.Service(ctx, args[0])
				if err != nil {
					return err
				}
				if *format == formatJSON {
					return printJSON(out, detail)
				}
				return printService(out, detail)
			}
			list, err := client.Services(ctx, admin.Watch{})
			if err != nil {
				return err
			}
			if *format == formatJSON {
				return printJSON(out, list)
			}
			return printList(out, list)
		})
	})
	return cmd
}

// printServices prints a line for each frontend of each service.
func printServices(w io.Writer, services []admin.Service) error {
	if len(services) == 0 {
		_, err := fmt.Fprintln(w, "No services.")
		return err
	}
	return printServiceRows(newTable(w, serviceHead...), services)
}

func printServiceRows(t *table, services []admin.Service) error {
	for _, s := range services {
		for _, row := range serviceRows(s) {
			t.row(row...)
		}
	}
	return t.flush()
}

// printList prints the services, and the sources that make what is listed
// incomplete or out of date.
func printList(w io.Writer, list admin.ServiceList) error {
	if err := printServices(w, list.Services); err != nil {
		return err
	}
	for _, s := range list.Sources {
		if state := sourceState(s); state != "read" {
			if _, err := fmt.Fprintf(w, "Source %s: %s\n", printable(s.Name), printable(state)); err != nil {
				return err
			}
		}
	}
	return nil
}

var serviceHead = []string{"SERVICE", "ADDRESS", "PORT", "DATAPLANE", "STATE", "ENDPOINTS", "ACK", "REASON"}

func serviceRows(s admin.Service) [][]string {
	rows := make([][]string, 0, max(1, len(s.Frontends)))
	reason := s.Reason
	if reason == "" {
		reason = strings.Join(s.Notes, "; ")
	}
	for _, f := range s.Frontends {
		address := f.Address.String()
		rows = append(rows, []string{s.ID, address, fmt.Sprintf("%d/%s", f.Port, f.Protocol), s.Dataplane,
			string(s.State), endpointCount(s.Endpoints), number(s.Acknowledged), reason})
	}
	if len(rows) == 0 {
		rows = append(rows, []string{s.ID, "", "", s.Dataplane, string(s.State), endpointCount(s.Endpoints), number(s.Acknowledged), reason})
	}
	return rows
}

func endpointCount(c admin.EndpointCount) string {
	var parts []string
	add := func(n int, word string) {
		if n > 0 {
			parts = append(parts, strconv.Itoa(n)+" "+word)
		}
	}
	add(c.Active, "active")
	add(c.Draining, "draining")
	add(c.Unused, "unused")
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func printService(w io.Writer, d admin.ServiceDetail) error {
	s := d.Service
	facts := newFacts(w)
	facts.add("Service", s.ID)
	facts.add("State", string(s.State))
	facts.add("Reason", s.Reason)
	facts.add("Source", s.Source)
	facts.add("Dataplane", s.Dataplane)
	for _, f := range s.Frontends {
		facts.add("Frontend", fmt.Sprintf("%s (%s)", joinHostPort(f), f.Kind))
	}
	facts.add("Acknowledged", ifSome(s.Acknowledged > 0, fmt.Sprintf("at revision %d", s.Acknowledged)))
	facts.add("Balance", d.Policy.Balance)
	facts.add("Affinity", ifSome(d.Policy.Affinity > 0, time.Duration(d.Policy.Affinity).String()))
	facts.add("Drain", ifSome(d.Policy.OnDrainEnd != "", time.Duration(d.Policy.Drain).String()))
	facts.add("When empty", d.Policy.OnEmpty)
	facts.add("When drained", d.Policy.OnDrainEnd)
	facts.add("Masquerade", d.Policy.Masquerade)
	if len(d.Policy.Allow) > 0 {
		facts.add("Allow", strings.Join(texts(d.Policy.Allow), ", "))
	}
	facts.add("Options", oneLine(d.Policy.Options))
	for _, n := range s.Notes {
		facts.add("Note", n)
	}
	if err := facts.flush(); err != nil {
		return err
	}
	if len(d.Endpoints) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return printEndpoints(w, d.Endpoints, false)
}

// oneLine gives JSON without the blanks that an indented body has.
func oneLine(data json.RawMessage) string {
	var out bytes.Buffer
	if json.Compact(&out, data) != nil {
		return string(data)
	}
	return out.String()
}

func ifSome(some bool, text string) string {
	if some {
		return text
	}
	return ""
}

// watchPause is the least time between two lists: who reads them is no faster.
const watchPause = 200 * time.Millisecond

// watchServices prints the list, and from then on what changes: on a terminal
// the whole list anew, else the lines that are new or different, in JSON a
// document for each change.
func watchServices(ctx context.Context, client *admin.Client, w io.Writer, as format) error {
	terminal := isTerminal(w)
	before := map[string][][]string{}
	watch := admin.Watch{}
	for ctx.Err() == nil {
		list, err := client.Services(ctx, watch)
		switch {
		case ctx.Err() != nil:
			continue
		case err != nil:
			return err
		case watch.Wait > 0 && list.Index == watch.Index:
			continue // the wait is over, nothing has changed
		case as == formatJSON:
			err = printJSON(w, list)
		case terminal:
			fmt.Fprintf(w, "\x1b[H\x1b[2Jrevision %d, %s\n\n", list.Revision, time.Now().Format(time.TimeOnly))
			err = printList(w, list)
		default:
			before, err = printChanges(w, before, list.Services)
		}
		if err != nil {
			return err
		}
		watch = admin.Watch{Index: list.Index, Wait: 5 * time.Minute}
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
	return nil
}

// printChanges prints the lines that differ from before, and the names of the
// services that are gone.
func printChanges(w io.Writer, before map[string][][]string, services []admin.Service) (map[string][][]string, error) {
	now := make(map[string][][]string, len(services))
	var changed []admin.Service
	for _, s := range services {
		rows := serviceRows(s)
		now[s.ID] = rows
		if !slices.EqualFunc(before[s.ID], rows, slices.Equal[[]string]) {
			changed = append(changed, s)
		}
	}
	if len(changed) > 0 {
		t := newTable(w)
		if len(before) == 0 { // one head, which a filter can leave out
			t = newTable(w, serviceHead...)
		}
		if err := printServiceRows(t, changed); err != nil {
			return now, err
		}
	}
	for id := range before {
		if _, ok := now[id]; !ok {
			if _, err := fmt.Fprintf(w, "%s: gone\n", printable(id)); err != nil {
				return now, err
			}
		}
	}
	return now, nil
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
