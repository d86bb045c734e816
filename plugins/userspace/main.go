// Command patchbay-dataplane-userspace is the dataplane that carries services'
// connections itself, in user space: it listens on their addresses and connects
// to their endpoints. It needs no privileges on 127.0.0.0/8, and it can do what
// a kernel dataplane can't: when an endpoint doesn't answer, another one is
// tried before the client notices.
//
// The agent starts it and speaks the plugin contract with it (package
// sdk/dataplane). In this package services of the contract become services of
// package loop, which moves the bytes; addresses that are not on this node get
// a local route.
package main

import (
	_ "embed"
	"runtime"
	"strings"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

//go:embed VERSION
var versionFile string

// version is set by the build to the content of VERSION, too.
var version = strings.TrimSpace(versionFile)

func main() {
	dataplane.Serve(newUserspace(options{
		log: dataplane.Logger(),
		// Two more than loops: the loops never share theirs, and the rest of
		// the program has some without taking one of a loop's away.
		started: func(loops int) { runtime.GOMAXPROCS(loops + 2) },
	}))
}
