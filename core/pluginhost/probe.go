package pluginhost

import (
	"context"
	"errors"
	"fmt"

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
// do. The context of use ends when the process does.
func Probe(ctx context.Context, binary Binary, options ProbeOptions, use func(ctx context.Context, process *Process) error) error {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	image, err := open(binary, options.SHA256)
	if err != nil {
		return fmt.Errorf("plugin %s: %w", binary.Name, err)
	}
	process, err := launch(ctx, image, launchOptions{
		runtimeDir: options.RuntimeDir, logger: options.Logger, dropped: func(int) {},
	})
	err = errors.Join(err, image.Close())
	if process == nil {
		return fmt.Errorf("plugin %s: %w", binary.Name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	finished := make(chan struct{})
	go func() { // ends with this call
		select {
		case <-process.child.exited:
			cancel()
		case <-finished:
		}
	}()
	err = errors.Join(err, use(ctx, process))
	close(finished)
	cancel()
	process.stop()
	return err
}
