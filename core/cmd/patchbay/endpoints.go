package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

func newEndpointsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "endpoints [SERVICE]",
		Short: "List the endpoints of a service, or of all",
		Args:  cobra.MaximumNArgs(1),
	}
	asks, format := addSocket(cmd), addFormat(cmd)
	cmd.ValidArgsFunction = asks.completeService
	cmd.RunE = action(func(cmd *cobra.Command, args []string) error {
		id := ""
		if len(args) == 1 {
			id = args[0]
		}
		return asks.ask(cmd, func(ctx context.Context, client *admin.Client) error {
			list, err := client.Endpoints(ctx, id)
			if err != nil {
				return err
			}
			if *format == formatJSON {
				return printJSON(cmd.OutOrStdout(), list)
			}
			return printEndpoints(cmd.OutOrStdout(), list.Endpoints, true)
		})
	})
	return cmd
}

func printEndpoints(w io.Writer, endpoints []admin.Endpoint, withService bool) error {
	if len(endpoints) == 0 {
		_, err := fmt.Fprintln(w, "No endpoints.")
		return err
	}
	head := []string{"ENDPOINT", "WEIGHT", "STATE", "HEALTH", "ZONE", "ACTIVE", "TOTAL", "FAILED", "REASON"}
	if withService {
		head = append([]string{"SERVICE"}, head...)
	}
	t := newTable(w, head...)
	for _, e := range endpoints {
		cells := []string{net.JoinHostPort(e.Address, strconv.Itoa(int(e.Port))), strconv.FormatUint(uint64(e.Weight), 10),
			e.State, e.Health, e.Zone}
		if e.Statistics != nil {
			cells = append(cells, strconv.FormatUint(e.Statistics.Active, 10),
				strconv.FormatUint(e.Statistics.Connections, 10), strconv.FormatUint(e.Statistics.Failed, 10))
		} else {
			cells = append(cells, "", "", "")
		}
		reason := e.Reason
		if e.DrainDeadline != nil {
			reason = joinNonEmpty("; ", reason, "drains until "+e.DrainDeadline.Local().Format(time.TimeOnly))
		}
		cells = append(cells, reason)
		if withService {
			cells = append([]string{e.Service}, cells...)
		}
		t.row(cells...)
	}
	return t.flush()
}
