package static

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// scheduler runs tasks when they are due, a bounded number at once. A task at
// rest is an entry of a heap; only one that runs has a goroutine. Tasks that
// come due while all slots are taken run late, and are not made up for.
type scheduler struct {
	slots int
	wake  chan struct{}

	mu      sync.Mutex
	heap    taskHeap
	running int
}

// task is something to do again and again.
type task struct {
	due time.Time
	// index in the heap; -1 while it isn't there.
	index   int
	removed bool
	// run does it, and gives the time until it is due again.
	run func(ctx context.Context) time.Duration
}

func newScheduler(slots int) *scheduler {
	return &scheduler{slots: slots, wake: make(chan struct{}, 1)}
}

func (s *scheduler) add(t *task, after time.Duration) {
	s.mu.Lock()
	t.due = time.Now().Add(after)
	heap.Push(&s.heap, t)
	s.mu.Unlock()
	s.signal()
}

// remove takes a task out. One that runs now is not run again.
func (s *scheduler) remove(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.removed = true
	if t.index >= 0 {
		heap.Remove(&s.heap, t.index)
	}
}

func (s *scheduler) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run starts tasks until ctx ends, and returns when all have ended.
func (s *scheduler) run(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		due, wait := s.take()
		for _, t := range due {
			tasks.Go(func() { s.done(t, t.run(ctx)) })
		}
		timer.Reset(wait)
	}
}

// take gives the tasks to start now, and the time until there may be more.
func (s *scheduler) take() ([]*task, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var due []*task
	for len(s.heap) > 0 && s.running < s.slots {
		if wait := s.heap[0].due.Sub(now); wait > 0 {
			return due, wait
		}
		due = append(due, heap.Pop(&s.heap).(*task))
		s.running++
	}
	// Nothing to do, or no slot: a signal comes with either.
	return due, time.Hour
}

func (s *scheduler) done(t *task, after time.Duration) {
	s.mu.Lock()
	s.running--
	if !t.removed {
		t.due = time.Now().Add(after)
		heap.Push(&s.heap, t)
	}
	s.mu.Unlock()
	s.signal()
}

type taskHeap []*task

func (h taskHeap) Len() int           { return len(h) }
func (h taskHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h taskHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *taskHeap) Push(x any) {
	t := x.(*task)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *taskHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.index = -1
	return t
}
