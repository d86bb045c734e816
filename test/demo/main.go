package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

// main keeps the first thread: the agent is told to end when the thread that
// started it does, which must not come before the end of the program.
func main() {
	runtime.LockOSThread()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// errStopped is the end that a user asks for.
var errStopped = errors.New("stopped")

func run(args []string, stdout, stderr io.Writer) int {
	o := options{once: os.Getenv("DEMO_ONCE") != "" && os.Getenv("DEMO_ONCE") != "0"}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.config, "config", "config.hcl", "configuration `file`; it is only read")
	flags.StringVar(&o.bin, "bin", "bin", "`folder` with patchbay and plugins/")
	flags.StringVar(&o.consul, "consul", "", "`program` of Consul, in which the backends are then registered; config.hcl is not used")
	flags.BoolVar(&o.once, "once", o.once, "make one round and end, with 1 when something went wrong")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	// A closed standard output is seen as a failed write, not as a signal that
	// ends the program before it has cleaned up.
	signal.Ignore(syscall.SIGPIPE)
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	err := show(ctx, o, &screen{to: stdout, stop: stop})
	var unwritten *writeError
	switch {
	case err == nil:
		return 0
	case errors.As(context.Cause(ctx), &unwritten):
		fmt.Fprintln(stderr, "demo:", unwritten)
		return 1
	case errors.Is(err, errStopped) && !o.once:
		return 0
	}
	fmt.Fprintln(stderr, "demo:", err)
	return 1
}

// screen is what the user sees. Nobody checks each line: a failed write ends
// the demo.
type screen struct {
	to   io.Writer
	stop context.CancelCauseFunc
}

type writeError struct{ err error }

func (e *writeError) Error() string { return "writing to standard output: " + e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

func (s *screen) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(s.to, format, args...); err != nil {
		s.stop(&writeError{err})
	}
}
