package agent

import (
	"context"
	"sync"
)

// notice is a number that changes when something visible does, and lets others
// wait for that.
type notice struct {
	mu      sync.Mutex
	index   uint64
	changed chan struct{}
}

func newNotice() *notice { return &notice{index: 1, changed: make(chan struct{})} }

// bump says that something has changed.
func (n *notice) bump() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.index++
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *notice) now() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.index
}

// wait returns when the index differs from the given one, or ctx ends.
func (n *notice) wait(ctx context.Context, index uint64) {
	for {
		n.mu.Lock()
		now, changed := n.index, n.changed
		n.mu.Unlock()
		if now != index {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
