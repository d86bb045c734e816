package catalog

import (
	"slices"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// Snapshot is the whole desired state of this node at one revision. It is
// immutable; making one costs the services that changed, not all.
type Snapshot struct {
	// Revision changes with every real change, and is compared for equality.
	Revision uint64
	// Time when the snapshot was made.
	Time time.Time
	// Unread names the sources that have not been read yet. When it alone
	// changes, subscribers get a snapshot of the same revision.
	Unread []string

	services *iradix.Tree[*Service]
}

// Service is one service of a snapshot: what its dataplane shall carry, or why
// it is refused.
type Service struct {
	ID string
	// Source that the service comes from; "" for a block that no source knows.
	Source string
	// Dataplane that carries it.
	Dataplane string
	// Desired state; nil when the service is rejected.
	Desired *dataplane.Service
	// Rejected is why the service is not carried; empty when it is.
	Rejected string
	// Waiting is set where Rejected passes of itself: the service waits for a
	// lease to be recorded, or for a source to be read.
	Waiting bool
	// Drain is how long an endpoint that goes is kept for its connections.
	Drain time.Duration
	// Notes are what an operator should know of a service that is carried:
	// endpoints of a family without frontend, a host name that doesn't
	// resolve, a loopback endpoint.
	Notes []string
	// Instances are all that the source knows, with their health, for people.
	Instances []source.Instance
}

// EmptySnapshot is the state before anything is known, at revision 0.
func EmptySnapshot() *Snapshot { return &Snapshot{services: iradix.New[*Service]()} }

// Next makes the snapshot that follows, with these services added or replaced
// and those ids gone; s stays as it is.
func (s *Snapshot) Next(revision uint64, made time.Time, upserts []*Service, removed []string) *Snapshot {
	txn := s.services.Txn()
	for _, v := range upserts {
		txn.Insert([]byte(v.ID), v)
	}
	for _, id := range removed {
		txn.Delete([]byte(id))
	}
	return &Snapshot{Revision: revision, Time: made, Unread: s.Unread, services: txn.Commit()}
}

// Get gives the service of that id, or nil.
func (s *Snapshot) Get(id string) *Service {
	v, _ := s.services.Get([]byte(id))
	return v
}

// Desired gives what a dataplane shall carry for that id, nil for nothing.
func (s *Snapshot) Desired(dataplaneName, id string) *dataplane.Service {
	if v := s.Get(id); v != nil && v.Dataplane == dataplaneName {
		return v.Desired
	}
	return nil
}

// All walks over the services in the order of their ids.
func (s *Snapshot) All(yield func(*Service) bool) {
	s.services.Root().Walk(func(_ []byte, v *Service) bool { return !yield(v) })
}

// Len is the number of services, the rejected included.
func (s *Snapshot) Len() int { return s.services.Len() }

// Equal tells whether both say the same.
func (s *Service) Equal(o *Service) bool {
	if s == o {
		return true
	}
	if s == nil || o == nil {
		return false
	}
	return s.ID == o.ID &&
		s.Source == o.Source &&
		s.Dataplane == o.Dataplane &&
		s.Rejected == o.Rejected &&
		s.Waiting == o.Waiting &&
		s.Drain == o.Drain &&
		s.Desired.Equal(o.Desired) &&
		slices.Equal(s.Notes, o.Notes) &&
		slices.Equal(s.Instances, o.Instances)
}

// Change is what a subscriber gets: the newest snapshot, and the ids of the
// services that differ from the one before, in order. A service that moves from one
// dataplane to another is named once; both sessions find out by Desired.
type Change struct {
	Snapshot *Snapshot
	IDs      []string
}
