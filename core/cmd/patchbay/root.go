package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// failure marks an error of a command that was used rightly, and failed. All
// other errors come from cobra, about wrong use.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// errQuiet is a failure that has been told already.
var errQuiet = errors.New("failed")

// action makes a cobra function whose errors are failures.
func action(do func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := do(cmd, args); err != nil {
			var wrong usageError
			if errors.As(err, &wrong) {
				return err
			}
			return failure{err}
		}
		return nil
	}
}

// usageError is wrong use that only the command itself can find.
type usageError struct{ message string }

func (e usageError) Error() string { return e.message }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "patchbay",
		Short: "One stable address for every service, on every node",
		Long: `Patchbay gives every service one stable address on every node, and moves its
traffic to the service's healthy instances.

Flags are long and take one dash or two. Exit codes: 0 all went well, 1 something
failed, 2 wrong use.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
	}
	versionAsked := root.Flags().Bool("version", false, "print the version, as the command version does")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *versionAsked {
			return printVersion(cmd.OutOrStdout(), buildVersion())
		}
		return cmd.Help()
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run:"},
		&cobra.Group{ID: "files", Title: "Configuration files:"},
		&cobra.Group{ID: "ask", Title: "Ask a running agent:"},
		&cobra.Group{ID: "other", Title: "Other:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("run", newAgentCommand(), newCleanupCommand())
	add("files", newValidateCommand(), newFmtCommand())
	add("ask", newServicesCommand(), newEndpointsCommand(), newExplainCommand(), newPluginsCommand(),
		newStatusCommand(), newPlanCommand(), newReloadCommand(), newVIPCommand())
	add("other", newPluginCommand(), newVersionCommand())
	root.SetHelpCommand(&cobra.Command{Use: "help [COMMAND]", Short: "Show help for a command", RunE: showHelp})
	root.SetHelpCommandGroupID("other")
	root.SetCompletionCommandGroupID("other")
	root.SetUsageTemplate(oneDash(root.UsageTemplate()))
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		// Of themselves these two take any word for a call for help.
		if c.HasSubCommands() {
			c.Args, c.RunE = knownCommand, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	completeNothing(root)
	return root
}

// knownCommand refuses a word that is none of the commands, and suggests one.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		text += fmt.Sprintf(": did you mean %q?", like[0])
	}
	return usageError{text}
}

// oneDash makes cobra's help show flags as this program's documents do. In the
// rows of flags pflag leaves room for a one-letter flag, which there is none of
// but -h.
func oneDash(template string) string {
	return strings.NewReplacer(
		".FlagUsages | trimTrailingWhitespaces", ".FlagUsages | trimTrailingWhitespaces | oneDash",
		"[command] --help", "COMMAND -help",
	).Replace(template)
}

func init() {
	cobra.AddTemplateFunc("oneDash", func(usages string) string {
		return strings.NewReplacer("  -h, --", "  -", "      --", "  -").Replace(usages)
	})
}

func showHelp(cmd *cobra.Command, args []string) error {
	target, _, err := cmd.Root().Find(args)
	if err != nil || target == nil || target == cmd.Root() && len(args) > 0 {
		return fmt.Errorf("there is no command %q", strings.Join(args, " "))
	}
	return target.Help()
}

// normalise turns -flag into --flag, so that both are taken: pflag would read
// the one as a row of one-letter flags. What follows a bare -- is left alone,
// and so are "-", -h and the names of flags that are words for cobra itself.
func normalise(args []string) []string {
	out := make([]string, 0, len(args))
	for i, a := range args {
		if a == "--" {
			return append(out, args[i:]...)
		}
		if len(a) > 2 && a[0] == '-' && a[1] != '-' {
			a = "-" + a
		}
		out = append(out, a)
	}
	return out
}

// report tells an error on stderr and gives the exit code.
func report(cmd *cobra.Command, err error, stderr io.Writer) int {
	if err == nil {
		return exitOK
	}
	var failed failure
	if errors.As(err, &failed) {
		if errors.Is(err, errQuiet) {
			return exitFailed
		}
		fmt.Fprintf(stderr, "Error: %s\n", message(failed.error))
		if hint := hintOf(err); hint != "" {
			fmt.Fprintf(stderr, "Hint: %s\n", hint)
		}
		return exitFailed
	}
	// Flags have two dashes for cobra, whatever the user has typed.
	text := strings.NewReplacer(" --", " -", "\"--", "\"-", "[--", "[-").Replace(err.Error())
	fmt.Fprintf(stderr, "Error: %s\n", strings.TrimSpace(text))
	if cmd != nil {
		fmt.Fprintf(stderr, "Usage: %s\nSee `%s -help`.\n", cmd.UseLine(), cmd.CommandPath())
	}
	return exitUsage
}

// message gives an error's text without the hint, which stands alone.
func message(err error) string {
	var told *admin.Error
	if errors.As(err, &told) && told.Hint != "" {
		return strings.Replace(err.Error(), told.Error(), told.Message, 1)
	}
	return err.Error()
}

func hintOf(err error) string {
	var told *admin.Error
	if errors.As(err, &told) {
		return told.Hint
	}
	return ""
}
