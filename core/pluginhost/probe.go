package pluginhost

import (
	"context"

	"github.com/hashicorp/go-hclog"
)

// ProbeOptions of Probe.
type ProbeOptions struct {
	// SHA256 that the file must have, hex; empty for any.
	SHA256 string
	// RuntimeDir as in [Options].
	RuntimeDir string
	// Logger gets what the plugin prints; nil for none.
	Logger hclog.Logger
}

// Probe starts a plugin for a few questions, such as its schema, hands the
// process to use, and ends it. Nothing is left of it but what use told it to
// do.
func Probe(ctx context.Context, binary Binary, options ProbeOptions, use func(ctx context.Context, process *Process) error) error {
	return nil
}
