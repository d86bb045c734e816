package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// version is set by the linker: -X main.version=1.2.3.
var version = "0.0.0-dev"

// buildVersion tells what this binary was built from.
func buildVersion() admin.Version {
	v := admin.Version{
		Version:  version,
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Protocol: dataplane.ProtocolVersion,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified && v.Revision != "" {
		v.Revision += "-modified"
	}
	return v
}

func newVersionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the version of this program", Args: cobra.NoArgs}
	format := addFormat(cmd)
	cmd.RunE = action(func(cmd *cobra.Command, _ []string) error {
		v := buildVersion()
		if *format == formatJSON {
			return printJSON(cmd.OutOrStdout(), v)
		}
		return printVersion(cmd.OutOrStdout(), v)
	})
	return cmd
}

func printVersion(w io.Writer, v admin.Version) error {
	f := newFacts(w)
	f.add("Version", v.Version)
	f.add("Commit", joinNonEmpty(", ", v.Revision, v.Time))
	f.add("Built with", fmt.Sprintf("%s for %s", v.Go, v.Platform))
	f.add("Plugin contract", fmt.Sprintf("patchbay.dataplane.v%d", v.Protocol))
	return f.flush()
}
