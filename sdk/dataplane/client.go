package dataplane

import (
	"errors"
)

// Errors of [Client.Apply] that a host must tell apart.
var (
	// ErrBaseUnknown means that the plugin does not hold the base of a
	// difference: everything is to be sent.
	ErrBaseUnknown = errors.New("the plugin does not hold the base revision")
	// ErrStaleSession means that a core with a higher session number has
	// written: this one must not.
	ErrStaleSession = errors.New("a newer core session owns the plugin")
	// ErrUnknownService is what Inspect gives for an id that isn't in force.
	ErrUnknownService = errors.New("unknown service")
)

// Change is what a host sends with one Apply.
type Change struct {
	// Session number of the host, higher with every start of a core.
	Session uint64
	// Revision that is reached.
	Revision uint64
	// Base is the acknowledged revision that a difference starts from.
	Base uint64
	// Full means that Upserts is the whole desired state.
	Full    bool
	Upserts []*Service
	Deletes []string
}
