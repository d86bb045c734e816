package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestListener: a plugin is given up only when it has not answered twice in a
// row and patience has ended; an error is an answer too.
func TestListener(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	refused := func(context.Context) error { return status.Error(codes.Unavailable, "connection refused") }
	failing := func(context.Context) error { return status.Error(codes.Internal, "it panicked") }
	well := func(context.Context) error { return nil }
	for _, c := range []struct {
		name     string
		patience time.Duration
		// answers of the plugin in their order; the last one goes on.
		answers []func(context.Context) error
		fails   bool
	}{
		{"answers", 20 * time.Millisecond, []func(context.Context) error{well}, false},
		{"answers with errors", 20 * time.Millisecond, []func(context.Context) error{failing}, false},
		{"hangs", 20 * time.Millisecond, []func(context.Context) error{well, hang}, true},
		{"is not reached", 20 * time.Millisecond, []func(context.Context) error{well, refused}, true},
		{"hangs once, for longer than patience", 0, []func(context.Context) error{hang, well, hang, well}, false},
		{"hangs for less than patience", time.Hour, []func(context.Context) error{hang, hang, hang, hang, well}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			failed := make(chan error, 1)
			asked := 0
			var silent bool
			l := listener{
				every: time.Millisecond, timeout: 10 * time.Millisecond, patience: c.patience,
				ask: func(ctx context.Context) error {
					if !silent {
						t.Error("an unanswered question is not told")
					}
					answer := c.answers[min(asked, len(c.answers)-1)]
					if asked++; asked == len(c.answers)+10 && !c.fails {
						cancel() // it has lasted long enough
					}
					return answer(ctx)
				},
				unanswered: func(since time.Time) { silent = !since.IsZero() },
				fail:       func(err error) { failed <- err },
			}
			l.run(ctx)
			select {
			case err := <-failed:
				if !c.fails || !strings.Contains(err.Error(), "has not answered for") {
					t.Errorf("given up: %v", err)
				}
			default:
				if c.fails {
					t.Error("not given up")
				}
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, true},
		{errors.New("wrong"), true},
		{status.Error(codes.Internal, "panicked"), true},
		{status.Error(codes.DeadlineExceeded, "late"), false},
		{status.Error(codes.Unavailable, "gone"), false},
		{context.DeadlineExceeded, false},
	} {
		if got := answers(c.err); got != c.want {
			t.Errorf("%v counts as an answer: %t", c.err, got)
		}
	}
}
