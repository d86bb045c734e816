package catalog

import (
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// EmptySnapshot is the state before anything is known, at revision 0.
func EmptySnapshot() *Snapshot { return &Snapshot{services: iradix.New[*Service]()} }

// Next makes the snapshot that follows, with these services added or replaced
// and those ids gone. Its cost is that of the services named.
func (s *Snapshot) Next(revision uint64, made time.Time, upserts []*Service, removed []string) *Snapshot {
	txn := s.services.Txn()
	for _, service := range upserts {
		txn.Insert([]byte(service.ID), service)
	}
	for _, id := range removed {
		txn.Delete([]byte(id))
	}
	return &Snapshot{Revision: revision, Time: made, services: txn.Commit()}
}
