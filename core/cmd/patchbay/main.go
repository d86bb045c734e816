// Command patchbay is the core of Patchbay and its command line.
//
// `patchbay agent` runs the agent; all other commands check files, or ask a
// running agent through its socket. Flags are long and take one dash or two.
// The exit code is 0 when all went well, 1 when something failed, 2 when the
// command was used wrongly.
package main

import (
	"io"
	"os"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is main with everything it touches handed in; it gives the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(normalise(args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	executed, err := root.ExecuteC()
	return report(executed, err, stderr)
}
