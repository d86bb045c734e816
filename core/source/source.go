// Package source says what a source of services is.
//
// A source tells a [Sink] (the catalog) which services exist, with which
// instances in which health. It knows no policy: what becomes of an unhealthy
// instance, which VIP a service has and who carries it is the catalog's
// business.
package source

import (
	"context"
	"time"
)

// Static is the name of the source of the configuration's own services. Where
// two sources know one name, it wins.
const Static = "static"

// Health of an instance as its source sees it, from best to worst.
type Health uint8

// The states of health.
const (
	Passing Health = iota + 1
	Warning
	Critical
	Maintenance
)

// Service is what a source knows of one service. It is immutable once handed
// to a Sink.
type Service struct {
	// Name, which is the service's id.
	Name string
	// Meta that overrides policy, such as patchbay-port; nil for static
	// services, whose policy is in the file.
	Meta map[string]string
	// Port of the frontend that the source would use where nobody says
	// otherwise; 0 for none.
	Port      uint16
	Instances []Instance
	// Notes are what an operator should know, such as a host name whose last
	// answer is kept because it doesn't resolve.
	Notes []string
}

// Instance is one instance of a service.
type Instance struct {
	// ID is unique within the service and stable over the instance's life.
	ID string
	// Address is an IP address, or a host name that doesn't resolve.
	Address string
	// Host is the name that Address was resolved from; empty when the source
	// gave an address.
	Host   string
	Port   uint16
	Weight uint32
	// WarningWeight is used in place of Weight while the health is Warning
	// and the policy says weigh.
	WarningWeight uint32
	Health        Health
	// Reason for the health in a few words, for people; may be empty.
	Reason     string
	Zone, Node string
	// Local is set for an instance on this node.
	Local bool
}

// Changes is what differs from what the source said before.
type Changes struct {
	Upserts []*Service
	Removed []string
	// Replace means that Upserts is everything the source knows; what it does
	// not name is removed.
	Replace bool
}

// Status of a source, for operators and for the rule that an unread source
// holds dispatch back.
type Status struct {
	// Read is set once the source has been read, or has given its saved state.
	Read bool
	// StaleSince is when the source could last be read; zero while it can.
	StaleSince time.Time
	// Err is why it can't. While it can, it is what else an operator has to mend;
	// empty for nothing.
	Err string
}

// Sink takes what a source says. Its methods may be called from any goroutine
// and don't block for long.
type Sink interface {
	Change(source string, changes Changes)
	SetStatus(source string, status Status)
}

// Source is one place where services come from.
type Source interface {
	// Name by which the source is shown, such as "static" or "consul".
	Name() string
	// Run reads the source until ctx ends, telling sink.
	Run(ctx context.Context, sink Sink) error
}
