package dataplane

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
)

// Update is the state that Apply shall bring about, seen in two ways: the
// whole desired state, and what changed since the last update that succeeded.
// What it gives is read-only. The update itself is for use within Apply; the
// services that it gives may be kept.
type Update struct {
	revision uint64
	services map[string]*Service
	upserted []*Service
	removed  []string

	mu     sync.Mutex
	failed map[string]error
}

// NewUpdate makes the update that leads from one state to another; a plugin's
// own tests use it, Serve makes them otherwise.
func NewUpdate(revision uint64, previous, desired []*Service) *Update {
	u := &Update{revision: revision, services: make(map[string]*Service, len(desired))}
	before := make(map[string]*Service, len(previous))
	for _, s := range previous {
		before[s.ID] = s
	}
	for _, s := range desired {
		u.services[s.ID] = s
		if old, ok := before[s.ID]; !ok || !s.Equal(old) {
			u.upserted = append(u.upserted, s)
		}
	}
	for id := range before {
		if _, ok := u.services[id]; !ok {
			u.removed = append(u.removed, id)
		}
	}
	u.sort()
	return u
}

func (u *Update) sort() {
	slices.SortFunc(u.upserted, func(a, b *Service) int { return cmp.Compare(a.ID, b.ID) })
	slices.Sort(u.removed)
}

// Revision that is reached with this update.
func (u *Update) Revision() uint64 { return u.revision }

// Services gives the whole desired state in the order of ids. Its cost grows
// with the number of services; Upserted and Removed cost only what changed.
func (u *Update) Services() []*Service {
	return slices.SortedFunc(maps.Values(u.services), func(a, b *Service) int { return cmp.Compare(a.ID, b.ID) })
}

// Service gives the desired state of one service, nil when it is to be gone.
func (u *Update) Service(id string) *Service { return u.services[id] }

// Upserted gives, in the order of ids, the services that are new, differ from
// the last update that succeeded, or failed in it and are sent again.
func (u *Update) Upserted() []*Service { return u.upserted }

// Removed gives, in order, the ids of services that are to be gone.
func (u *Update) Removed() []string { return u.removed }

// Fail reports that one service, upserted or removed, could not be carried as
// asked. The core shows the reason and sends the service again after a while.
// It may be called from several goroutines; the last reason counts.
func (u *Update) Fail(id string, err error) {
	if err == nil {
		err = errors.New("the dataplane gave no reason")
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failed == nil {
		u.failed = map[string]error{}
	}
	u.failed[id] = err
}

// Failed gives what [Update.Fail] was told, for a plugin's own tests.
func (u *Update) Failed() map[string]error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.failed)
}
