package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

// completionPatience is how long a shell waits for the agent's answer.
const completionPatience = time.Second

// completeService offers the names of the services that the agent knows; none
// when it doesn't answer.
func (a *asking) completeService(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(commandContext(cmd), completionPatience)
	defer cancel()
	client := admin.NewClient(a.path())
	defer client.Close()
	list, err := client.Services(ctx, admin.Watch{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, len(list.Services))
	for i, s := range list.Services {
		names[i] = s.ID
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeNothing offers no files where none are meant: to every command that
// says nothing else and doesn't take files.
func completeNothing(cmd *cobra.Command) {
	switch cmd.Name() {
	case "validate", "fmt":
		return
	}
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, c := range cmd.Commands() {
		completeNothing(c)
	}
}
