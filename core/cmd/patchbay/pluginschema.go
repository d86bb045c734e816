package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/agent"
	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

func newPluginCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugin",
		Short: "Look at plugins, without an agent",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPluginSchemaCommand())
	return cmd
}

func newPluginSchemaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema NAME",
		Short: "Show the arguments that a plugin takes",
		Long: `Show what a plugin takes: the arguments of its dataplane block, the options of a
service, what it can do and what it needs. The plugin is started for that, and ended.`,
		Args: cobra.ExactArgs(1),
	}
	format := addFormat(cmd)
	dir := cmd.Flags().String("plugin-dir", "", "`folder` of the plugins (default "+config.DefaultPlaces(os.Geteuid()).PluginDir+")")
	version := cmd.Flags().String("version", "", `constraint on the version, such as "~> 1.0" (default: the highest)`)
	cmd.RunE = action(func(cmd *cobra.Command, args []string) error {
		if *dir == "" {
			*dir = config.DefaultPlaces(os.Geteuid()).PluginDir
		}
		d, err := agent.DescribePlugin(commandContext(cmd), *dir, args[0], *version)
		if err != nil {
			return err
		}
		if *format == formatJSON {
			return printJSON(cmd.OutOrStdout(), d)
		}
		return printPluginSchema(cmd.OutOrStdout(), d)
	})
	return cmd
}

func printPluginSchema(w io.Writer, d *agent.PluginDescription) error {
	f := newFacts(w)
	f.add("Dataplane", d.Name)
	f.add("Version", d.Version)
	f.add("Contract", fmt.Sprintf("patchbay.dataplane.v%d", d.Protocol))
	f.add("Carries", strings.Join(append(texts(d.Capabilities.Protocols), texts(d.Capabilities.Families)...), ", "))
	f.add("Frontends", strings.Join(texts(d.Capabilities.FrontendKinds), ", "))
	f.add("Balance", strings.Join(d.Capabilities.Balance, ", "))
	f.add("Can", strings.Join(d.Abilities(), ", "))
	f.add("Needs", strings.Join(d.Needs(), ", "))
	if err := f.flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\ndataplane %q {\n", d.Name)
	printArguments(w, d.ConfigSchema, "  ")
	fmt.Fprintln(w, "}")
	if len(d.OptionsSchema.Arguments) > 0 {
		fmt.Fprint(w, "\nservice \"...\" {\n  options = {\n")
		printArguments(w, d.OptionsSchema, "    ")
		fmt.Fprint(w, "  }\n}\n")
	}
	return nil
}

// printArguments prints a schema as a block that a user could fill in.
func printArguments(w io.Writer, s *schema.Schema, indent string) {
	if len(s.Arguments) == 0 {
		fmt.Fprintf(w, "%s# no arguments\n", indent)
	}
	for i, a := range s.Arguments {
		if i > 0 {
			fmt.Fprintln(w)
		}
		for _, line := range describeArgument(a) {
			fmt.Fprintf(w, "%s# %s\n", indent, printable(line))
		}
		if a.Object != nil {
			fmt.Fprintf(w, "%s%s {\n", indent, a.Name)
			printArguments(w, a.Object, indent+"  ")
			fmt.Fprintf(w, "%s}\n", indent)
			continue
		}
		value := string(a.Default)
		if value == "" || value == "null" {
			fmt.Fprintf(w, "%s# %s = ...\n", indent, a.Name)
			continue
		}
		fmt.Fprintf(w, "%s%s = %s\n", indent, a.Name, printable(value))
	}
}

// describeArgument says in lines what there is to know of an argument.
func describeArgument(a *schema.Argument) []string {
	var lines []string
	if a.Description != "" {
		lines = append(lines, strings.Split(a.Description, "\n")...)
	}
	kind := a.Type.String()
	if a.Element != 0 {
		kind += " of " + a.Element.String()
	}
	facts := []string{kind}
	if a.Required {
		facts = append(facts, "required")
	}
	if len(a.Enum) > 0 {
		facts = append(facts, "one of "+strings.Join(a.Enum, ", "))
	}
	if a.Min != "" {
		facts = append(facts, "at least "+a.Min)
	}
	if a.Max != "" {
		facts = append(facts, "at most "+a.Max)
	}
	if a.Sensitive {
		facts = append(facts, "sensitive")
	}
	if a.Deprecated != "" {
		facts = append(facts, "deprecated: "+a.Deprecated)
	}
	return append(lines, strings.Join(facts, "; "))
}
