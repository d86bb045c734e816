package catalog

import (
	"container/heap"
	"time"
)

// timers is the heap of what is to be looked at again without anybody asking.
// An entry has one time at most; older ones that are still in the heap are
// passed over.
type timers struct{ h timerHeap }

type timer struct {
	at time.Time
	e  *entry
}

// set gives an entry its next time, zero for none.
func (t *timers) set(e *entry, at time.Time) {
	if e.wakeAt.Equal(at) {
		return
	}
	e.wakeAt = at
	if !at.IsZero() {
		heap.Push(&t.h, timer{at, e})
	}
}

// due takes out the entries whose time has come.
func (t *timers) due(now time.Time) []*entry {
	var out []*entry
	for len(t.h) > 0 && !now.Before(t.h[0].at) {
		if i := heap.Pop(&t.h).(timer); i.e.wakeAt.Equal(i.at) {
			i.e.wakeAt = time.Time{}
			out = append(out, i.e)
		}
	}
	return out
}

// next is the earliest time in the heap.
func (t *timers) next() (time.Time, bool) {
	for len(t.h) > 0 && !t.h[0].e.wakeAt.Equal(t.h[0].at) {
		heap.Pop(&t.h)
	}
	if len(t.h) == 0 {
		return time.Time{}, false
	}
	return t.h[0].at, true
}

type timerHeap []timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)        { *h = append(*h, x.(timer)) }
func (h *timerHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = timer{}
	*h = old[:len(old)-1]
	return last
}
