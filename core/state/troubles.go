package state

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Troubles collects what is wrong with files of state, for an operator: those
// that were found damaged, and those that can't be written just now. A nil
// *Troubles collects nothing. Its methods may be called from any goroutine.
type Troubles struct {
	mu      sync.Mutex
	damaged []string
	// failing by path.
	failing map[string]string
}

// Damaged notes a file that could not be believed, and what follows from that.
func (t *Troubles) Damaged(consequence string, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.damaged = append(t.damaged, fmt.Sprintf("%s: %v", consequence, err))
}

// Written notes the outcome of a write.
func (t *Troubles) Written(path string, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		delete(t.failing, path)
		return
	}
	if t.failing == nil {
		t.failing = map[string]string{}
	}
	t.failing[path] = fmt.Sprintf("%s can't be written: %v", path, err)
}

// List gives both in words.
func (t *Troubles) List() (damaged, failing []string) {
	if t == nil {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(t.failing)) {
		failing = append(failing, t.failing[path])
	}
	return slices.Clone(t.damaged), failing
}
