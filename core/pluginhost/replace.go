package pluginhost

import (
	"context"
	"errors"
	"fmt"
)

// Restart starts the best version there is in the place of the process,
// forgetting what crashed before. A process that runs is not ended while there
// is nothing that could be started in its place. Restart returns at once;
// Status tells how it goes.
func (s *Supervisor) Restart(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restart, s.pardon = reason, true; reason == "" {
		s.restart = "an operator wants it"
	}
	s.wakeUp()
}

// Reconfigure takes new settings, and reports whether another file than the
// one that runs is now the one to run. That is started beside the process, to
// see whether it does start, and then replaces it; [Options.OnKept] is told
// when it doesn't. A plugin that isn't running is tried with the new settings
// at once.
func (s *Supervisor) Reconfigure(settings Settings) bool {
	s.mu.Lock()
	changed := s.settings != settings
	if changed {
		s.settings, s.pardon = settings, true
		s.wakeUp()
	}
	version, sum := s.status.Version, s.status.SHA256
	s.mu.Unlock()
	return changed && version != "" && !s.fits(settings, sum)
}

// fits tells whether the file with the sum is the one to run with these
// settings. It is, too, when no other will do.
func (s *Supervisor) fits(settings Settings, sum string) bool {
	files, err := candidates(s.options.Dir, s.options.Name, settings)
	if err != nil {
		return true
	}
	best, err := files.first()
	if err != nil {
		return true
	}
	return best.Close() == nil && best.sum == sum
}

// successor is what is to take the place of a process that runs: the process
// is ended only once its successor has shown that it starts.
type successor struct {
	supervisor *Supervisor
	process    *Process
	// restart is why the process is replaced even by one of the same file.
	restart string
	// passed is the sum of a file that was started and answered.
	passed string
	// trying is where the outcome of the file under trial comes; nil for none.
	trying chan error
	trial  Binary
	sum    string
	cancel context.CancelFunc
	// failed is why files that were tried don't start.
	failed error
}

// look sees whether something else is to run now, and gives the reason once
// the process may be ended for it.
func (n *successor) look(ctx context.Context) string {
	s := n.supervisor
	s.mu.Lock()
	restart, settings := s.restart, s.settings
	pardon := s.pardon
	s.restart, s.pardon = "", false
	s.mu.Unlock()
	if restart == "" && settings == s.chosenBy {
		return ""
	}
	if restart != "" {
		n.restart = restart
	}
	if pardon {
		s.trial.pardon()
		n.passed = ""
	}
	return n.decide(ctx)
}

// decide compares what runs with what is to run.
func (n *successor) decide(ctx context.Context) string {
	if n.trying != nil {
		return "" // its outcome leads here again
	}
	s := n.supervisor
	c, err := s.choose()
	if err != nil {
		n.keep(err)
		return ""
	}
	defer func() { _ = c.image.Close() }() // it was only read
	switch {
	case c.held:
		n.keep(n.failed)
	case c.image.sum != n.process.image.sum && c.image.sum != n.passed:
		n.try(ctx, c.image)
	case n.restart != "":
		return n.restart
	case c.image.sum == n.passed:
		return "the configuration wants another version"
	default:
		n.keep(n.failed)
	}
	return ""
}

// try starts a file beside the process, without configuring it. The goroutine
// ends with the outcome, which giveUp waits for.
func (n *successor) try(ctx context.Context, i *image) {
	ctx, n.cancel = context.WithCancel(ctx)
	n.trying, n.trial, n.sum = make(chan error, 1), i.Binary, i.sum
	options := ProbeOptions{SHA256: i.sum, RuntimeDir: n.supervisor.options.RuntimeDir, Logger: n.supervisor.log}
	go func(binary Binary, outcome chan<- error) {
		outcome <- Probe(ctx, binary, options, func(context.Context, *Process) error { return nil })
	}(i.Binary, n.trying)
}

// tried takes the outcome in.
func (n *successor) tried(ctx context.Context, err error) string {
	n.cancel()
	n.trying = nil
	if ctx.Err() != nil {
		return ""
	}
	if n.passed = n.sum; err != nil {
		n.passed = ""
		n.supervisor.trial.condemn(n.sum)
		n.failed = errors.Join(n.failed, fmt.Errorf("version %s does not start: %w", n.trial.Version.Original(), err))
	}
	return n.decide(ctx)
}

// keep lets the process go on, for want of another.
func (n *successor) keep(err error) {
	n.restart, n.failed = "", nil
	if err == nil {
		return
	}
	n.supervisor.keptOn(err)
	if n.supervisor.options.OnKept != nil {
		n.supervisor.options.OnKept(n.process, err)
	}
}

// giveUp ends a trial that is under way.
func (n *successor) giveUp() {
	if n.trying != nil {
		n.cancel()
		if err := <-n.trying; err != nil {
			n.supervisor.log.Debug("a trial was given up", "version", n.trial.Version.Original(), "error", err)
		}
	}
}
