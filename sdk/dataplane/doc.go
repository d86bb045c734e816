// Package dataplane is what an author of a Patchbay dataplane plugin imports.
//
// A dataplane makes the kernel, or itself, forward the traffic of services to
// their endpoints. An author implements [Dataplane], and optionally
// [Validator], [Statistician], [Inspector], [Holder] and [Notifier], and calls
// [Serve] in main:
//
//	func main() { dataplane.Serve(&myDataplane{}) }
//
// The core decides what is in force: it has already applied health, locality
// and conflicts when a [Service] arrives. The plugin gets an [Update], which
// offers the whole desired state and what changed, and reports the services it
// could not carry with [Update.Fail].
//
// A host of plugins (the core, the conformance suite) uses [Client].
package dataplane
