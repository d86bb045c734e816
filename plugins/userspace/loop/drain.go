package loop

import (
	"container/heap"
	"time"
)

// drains are the endpoints whose connections end at a deadline, the nearest
// first. An entry is a reminder only: when it is due, the endpoint itself says
// whether it still holds.
type drains struct {
	entries []drainEntry
	changed chan struct{}
}

type drainEntry struct {
	at       time.Time
	endpoint *endpoint
}

func (d *drains) Len() int           { return len(d.entries) }
func (d *drains) Less(i, j int) bool { return d.entries[i].at.Before(d.entries[j].at) }
func (d *drains) Swap(i, j int)      { d.entries[i], d.entries[j] = d.entries[j], d.entries[i] }
func (d *drains) Push(x any)         { d.entries = append(d.entries, x.(drainEntry)) }
func (d *drains) Pop() any {
	last := d.entries[len(d.entries)-1]
	d.entries = d.entries[:len(d.entries)-1]
	return last
}

// watch notes the deadlines of those endpoints that drain. The engine is
// locked.
func (d *drains) watch(list []*endpoint) {
	for _, p := range list {
		p.service.mu.Lock()
		draining, deadline := p.draining, p.deadline
		p.service.mu.Unlock()
		if draining && !deadline.IsZero() && !deadline.Equal(p.watched) {
			p.watched = deadline
			heap.Push(d, drainEntry{deadline, p})
		}
	}
	d.wake()
}

// wake makes watchDrains look again.
func (d *drains) wake() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// watchDrains resets connections whose endpoint's drain deadline has passed.
func (e *Engine) watchDrains() {
	for {
		var due <-chan time.Time
		e.mu.Lock()
		if !e.closed && !e.held {
			if next := e.cutDue(); !next.IsZero() {
				due = time.After(time.Until(next))
			}
		}
		e.mu.Unlock()
		select {
		case <-e.stop:
			return
		case <-e.drains.changed:
		case <-due:
		}
	}
}

// cutDue handles the entries that are due and says when the next is.
func (e *Engine) cutDue() time.Time {
	ended := map[*endpoint]bool{}
	for e.drains.Len() > 0 {
		next := e.drains.entries[0]
		if time.Now().Before(next.at) {
			break
		}
		heap.Pop(&e.drains)
		p := next.endpoint
		p.service.mu.Lock()
		if p.draining && p.deadline.Equal(next.at) && p.service.cut && !p.retired.Load() {
			ended[p] = true
		}
		p.service.mu.Unlock()
		p.watched = time.Time{}
	}
	if len(ended) > 0 {
		e.cutEndpoints(ended)
	}
	if e.drains.Len() == 0 {
		return time.Time{}
	}
	return e.drains.entries[0].at
}
