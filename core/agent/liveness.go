package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/core/pluginhost"
)

// Every plugin that runs is asked now and then for a sign of life, which costs
// it next to nothing: Describe. One that hangs is so seen within seconds, even
// when there is nothing to apply.
const (
	// lifeEvery is how often, and lifeTimeout the deadline of the call.
	lifeEvery   = 5 * time.Second
	lifeTimeout = 5 * time.Second
	// silentAfter is how long an answer may take before the operator is told
	// that the plugin is silent.
	silentAfter = 2 * time.Second
	// patienceForProcess is how long a plugin may be silent that forwards
	// traffic in its own process: that hangs too, so that it is ended and
	// started again. patienceForKernel is for one whose traffic goes on
	// without it: only changes wait.
	patienceForProcess = 10 * time.Second
	patienceForKernel  = time.Minute
)

// listener asks for signs of life.
type listener struct {
	every, timeout, patience time.Duration
	ask                      func(context.Context) error
	// unanswered is told when the oldest question was asked that has no answer;
	// zero once there is one.
	unanswered func(since time.Time)
	// fail is told that patience has ended.
	fail func(error)
}

// run asks until ctx ends, or patience does. That takes two questions at least,
// one after the other: after a time in which nothing ran at all, on this side
// either, the first says nothing of the plugin.
func (l *listener) run(ctx context.Context) {
	for pause(ctx, l.every) {
		since := time.Now()
		l.unanswered(since)
		for asked := 1; ; asked++ {
			began := time.Now()
			err := l.askOnce(ctx)
			if ctx.Err() != nil {
				return
			}
			if answers(err) {
				l.unanswered(time.Time{})
				break
			}
			if silence := time.Since(since); asked >= 2 && silence >= l.patience {
				l.fail(fmt.Errorf("it has not answered for %s", silence.Round(time.Second)))
				return
			}
			// A connection that is refused is refused at once.
			if !pause(ctx, min(time.Second, l.timeout-time.Since(began))) {
				return
			}
		}
	}
}

func (l *listener) askOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return l.ask(ctx)
}

// answers tells whether a call was answered, be it with an error.
func answers(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	code := status.Code(err)
	return code != codes.DeadlineExceeded && code != codes.Unavailable
}

// pause waits, and tells whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// listen asks a process for signs of life, until the function that it gives is
// called, which waits for the end.
func (c *carrier) listen(process *pluginhost.Process) (stop func()) {
	l := listener{
		every: lifeEvery, timeout: lifeTimeout, patience: patienceForProcess,
		ask: func(ctx context.Context) error {
			_, err := process.Client().Describe(ctx)
			return err
		},
		unanswered: c.setUnanswered,
		fail: func(err error) {
			c.log.Error("the plugin hangs: it is ended and started again", "error", err)
			process.Fail(err)
		},
	}
	if process.Description().Capabilities.SurvivesProcess {
		l.patience = patienceForKernel
	}
	ctx, cancel := context.WithCancel(c.life)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func (c *carrier) setUnanswered(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unanswered = since
}

// silentSince is since when the plugin that runs does not answer; zero when it
// does.
func (c *carrier) silentSince() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unanswered.IsZero() || time.Since(c.unanswered) < silentAfter {
		return time.Time{}
	}
	return c.unanswered
}

// silence says for how long the plugin has not answered; empty when it does.
func (c *carrierView) silence() string {
	s := admin.DataplaneStatus{SilentSince: instant(c.silentSince)}
	return s.Silence(time.Now())
}
