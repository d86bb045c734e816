package main

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestPage compares docs/cli.md with the commands and their flags, both ways.
func TestPage(t *testing.T) {
	data, err := os.ReadFile("../../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	known := map[string]bool{"h": true}
	var walk func(cmd *cobra.Command, name string)
	walk = func(cmd *cobra.Command, name string) {
		for _, sub := range cmd.Commands() {
			full := sub.Name()
			if name != "" {
				full = name + " " + full
			}
			if sub.HasSubCommands() && full != "completion" {
				walk(sub, full)
				continue
			}
			if full == "help" || name == "completion" {
				continue
			}
			if !regexp.MustCompile("`patchbay " + full + "[ `]|\n(\\$ )?patchbay " + full + "[ \n]").MatchString(page) {
				t.Errorf("the page does not show `patchbay %s`", full)
			}
			sub.Flags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
		}
	}
	walk(newRoot(), "")
	shown := map[string]bool{}
	for _, found := range regexp.MustCompile("[ `\\[]-([a-z][a-z-]*)\\b").FindAllStringSubmatch(page, -1) {
		shown[found[1]] = true
	}
	// Flags of other programs in the examples.
	for _, foreign := range []string{"s"} {
		delete(shown, foreign)
	}
	var missing, invented []string
	for name := range known {
		if !shown[name] && name != "help" {
			missing = append(missing, name)
		}
	}
	for name := range shown {
		if !known[name] {
			invented = append(invented, name)
		}
	}
	slices.Sort(missing)
	slices.Sort(invented)
	if diff := cmp.Diff([]string(nil), missing); diff != "" {
		t.Errorf("flags that the page doesn't show:\n%s", diff)
	}
	if diff := cmp.Diff([]string(nil), invented); diff != "" {
		t.Errorf("flags that the page shows and nobody has:\n%s", diff)
	}
}
