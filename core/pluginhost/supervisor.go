package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

const (
	// readyTimeout is how long OnReady may take.
	readyTimeout = 30 * time.Second
	// missingLook is how often the folder is looked at while no file may be run.
	missingLook = 3 * time.Second
)

// Settings are what a reload may change. The zero value runs the highest
// version there is.
type Settings struct {
	// Constraint on the version, as in "~> 1.0"; empty for any.
	Constraint string
	// SHA256 that the file must have, hex; empty for any.
	SHA256 string
}

// Options of a Supervisor. All but Settings, RuntimeDir and Logger are needed.
type Options struct {
	Settings
	// Name of the dataplane.
	Name string
	// Dir is where plugin files are.
	Dir string
	// StateDir is a folder of this supervisor's alone, made if need be: what
	// the next core must know of the process, and the last version that
	// worked. The plugin's own state does not belong there.
	StateDir string
	// LogDir is where the plugin's output goes, in NAME.stdout and
	// NAME.stderr; made if need be.
	LogDir string
	// RuntimeDir holds short-lived folders of sockets; default
	// $XDG_RUNTIME_DIR, or /run for root, else the folder for temporary files.
	RuntimeDir string
	// Logger should name the dataplane; what the plugin prints goes there too.
	Logger hclog.Logger
	// OnReady is called with a process that answered to Describe as its file's
	// name says: it configures it and hands it to a session. An error ends the
	// process and counts as a failed start. The context ends after 30 s, or
	// when the process does.
	OnReady func(ctx context.Context, process *Process) error
	// OnGone is called once the process of a successful OnReady has ended or
	// is about to be ended; err is nil when the supervisor wanted it.
	OnGone func(process *Process, err error)
	// OnKept, if set, is called when something else was to take the place of
	// the process of a successful OnReady but can't be run or doesn't start, for
	// the reason given: the process goes on, by the settings of now. It must
	// not block.
	OnKept func(process *Process, err error)
}

// Supervisor keeps one plugin running.
type Supervisor struct {
	options Options
	log     hclog.Logger
	rules   rules
	// wake holds one token: there is something new for Run to look at.
	wake         chan struct{}
	droppedLines atomic.Uint64

	mu       sync.Mutex
	settings Settings
	// restart is why the process is to be replaced; empty for not at all.
	restart string
	// pardon makes Run forget what crashed before.
	pardon bool
	status Status
	good   *good

	// Run's goroutine alone uses these: what has crashed, and the settings by
	// which the process was chosen.
	trial    trial
	chosenBy Settings
}

// New makes a supervisor; it starts nothing before Run.
func New(options Options) *Supervisor {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	return &Supervisor{
		options: options, log: options.Logger, rules: defaultRules, settings: options.Settings,
		wake: make(chan struct{}, 1), status: Status{State: StateStopped}, trial: newTrial(),
	}
}

// Run ends what an earlier core may have left running, then keeps the plugin
// running until ctx ends, and has ended it when it returns: with Shutdown in
// the mode DETACH, then SIGTERM, then SIGKILL. What the plugin put into the
// kernel stays. The error says that the supervisor could not work at all, such
// as a state folder that can't be written.
func (s *Supervisor) Run(ctx context.Context) error {
	defer s.report(func(status *Status) {
		clearProcess(status)
		status.State, status.NextAttempt = StateStopped, time.Time{}
	})
	if err := s.prepare(ctx); err != nil {
		return fmt.Errorf("plugin %s: %w", s.options.Name, err)
	}
	for ctx.Err() == nil {
		s.takePardon()
		wait := s.attempt(ctx)
		s.sleep(ctx, wait)
	}
	return nil
}

// prepare makes the folders and takes over from an earlier core.
func (s *Supervisor) prepare(ctx context.Context) error {
	if err := os.MkdirAll(s.options.StateDir, 0o700); isFull(err) {
		s.log.Warn("there is no room for the plugin's state folder", "error", err)
	} else if err != nil {
		return fmt.Errorf("making the state folder: %w", err)
	}
	if err := os.MkdirAll(s.options.LogDir, 0o750); isFull(err) {
		s.log.Warn("there is no room for the log folder", "error", err)
	} else if err != nil {
		return fmt.Errorf("making the log folder: %w", err)
	}
	good, err := readGood(s.options.StateDir)
	if err != nil {
		s.log.Warn("the last version that worked is not known any more", "error", err)
	}
	s.mu.Lock()
	s.good = good
	s.mu.Unlock()
	pid, err := endOrphan(ctx, s.options.StateDir)
	if err != nil {
		s.log.Warn("what an earlier core may have left running is not known", "error", err)
	}
	if pid != 0 {
		s.log.Info("ended the plugin process that an earlier core had left running", "pid", pid)
	}
	pids, err := sweep(ctx, s.options.RuntimeDir, s.options.StateDir)
	if err != nil {
		s.log.Warn("something that an earlier core left is still there", "error", err)
	}
	if len(pids) > 0 {
		s.log.Info("ended processes that an earlier core had left running", "pids", pids)
	}
	return nil
}

// isFull tells of a disk without room: a plugin runs all the same.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}

// sleep waits until it is time for another attempt, or something is new.
func (s *Supervisor) sleep(ctx context.Context, wait time.Duration) {
	if wait <= 0 || ctx.Err() != nil {
		return
	}
	s.report(func(status *Status) { status.NextAttempt = time.Now().Add(wait) })
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-s.wake:
	case <-timer.C:
	}
	s.report(func(status *Status) { status.NextAttempt = time.Time{} })
}

// attempt starts a process and lives with it until it ends; it returns how
// long to wait before the next.
func (s *Supervisor) attempt(ctx context.Context) time.Duration {
	choice, err := s.choose()
	if err != nil {
		s.fault(StateMissing, err)
		return missingLook
	}
	image := choice.image
	if choice.instead != "" {
		s.log.Warn("another version of the plugin runs, because the one to run crashes",
			"version", image.Version.Original(), "instead_of", choice.instead)
	}
	process, err := s.start(ctx, image)
	if ctx.Err() != nil && process == nil {
		return 0
	}
	if err != nil {
		return s.crashed(image, false, 0, err)
	}
	err = s.live(ctx, process)
	if err == nil {
		return 0
	}
	acknowledged := false
	select {
	case <-process.ack:
		acknowledged = true
	default:
	}
	return s.crashed(image, acknowledged, time.Since(process.Started()), err)
}

// start launches an image and has it configured. When it fails nothing is left
// of the process.
func (s *Supervisor) start(ctx context.Context, image *image) (*Process, error) {
	s.report(func(status *Status) {
		status.State = StateStarting
		status.Starts++
	})
	process, err := launch(ctx, image, launchOptions{
		runtimeDir: s.options.RuntimeDir, stateDir: s.options.StateDir, logDir: s.options.LogDir, logger: s.log,
		started: func(pid int, runtimeDir string) {
			if err := writeRecord(s.options.StateDir, image, pid, runtimeDir); err != nil {
				s.log.Warn("the plugin's process can't be noted for the next core, which will look for it", "error", err)
			}
		},
		dropped: func(lines int) { s.droppedLines.Add(uint64(lines)) },
	})
	err = errors.Join(err, image.Close())
	if process != nil && err == nil {
		s.report(func(status *Status) {
			status.Version, status.Path, status.SHA256 = image.Version.Original(), image.Path, image.sum
			status.PID, status.Started = process.PID(), process.Started()
		})
		err = s.makeReady(ctx, process)
	}
	if err != nil {
		if process != nil {
			process.kill()
		}
		return nil, errors.Join(err, s.forget())
	}
	return process, nil
}

// makeReady calls OnReady, which ends early when the process does.
func (s *Supervisor) makeReady(ctx context.Context, process *Process) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	finished := make(chan struct{})
	defer close(finished)
	go func() { // ends with this call
		select {
		case <-process.child.exited:
			cancel()
		case <-finished:
		}
	}()
	err := s.options.OnReady(ctx, process)
	if err != nil && process.child.waitFor(0) {
		<-process.done
		return fmt.Errorf("%w, while it was being configured: %w", process.end(), err)
	}
	return err
}

// live waits for the end of a process that is ready, or brings it about; the
// error is nil when the supervisor wanted it.
func (s *Supervisor) live(ctx context.Context, process *Process) error {
	s.report(func(status *Status) { status.State = StateRunning })
	s.log.Info("plugin is running", "version", process.image.Version.Original(), "pid", process.PID())
	err := s.watch(ctx, process)
	s.report(func(status *Status) { status.State = StateStopping })
	s.options.OnGone(process, err)
	switch {
	case err == nil:
		process.stop()
	default:
		process.kill() // which does nothing to one that has ended
	}
	s.report(clearProcess)
	if err := s.forget(); err != nil {
		s.log.Warn("plugin's process is noted though it has ended", "error", err)
	}
	return err
}

// watch waits for a reason to end the process, or its own end. On the way it
// sees the version prove itself.
func (s *Supervisor) watch(ctx context.Context, process *Process) error {
	ack := process.ack
	var proved <-chan time.Time
	next := &successor{supervisor: s, process: process}
	defer next.giveUp()
	for {
		var reason string
		select {
		case <-ctx.Done():
			return nil
		case err := <-process.failed:
			return err
		case <-process.child.exited:
			<-process.done
			if ctx.Err() != nil { // both at once: it was told to end
				return nil
			}
			return process.end()
		case <-ack:
			ack = nil
			s.trial.worked[process.image.sum] = true
			timer := time.NewTimer(time.Until(process.Started().Add(s.rules.young)))
			defer timer.Stop()
			proved = timer.C
		case <-proved:
			s.prove(process.image)
		case <-s.wake:
			reason = next.look(ctx)
		case err := <-next.trying:
			reason = next.tried(ctx, err)
		}
		if reason != "" {
			s.log.Info("plugin is being restarted", "reason", reason)
			return nil
		}
	}
}

func (s *Supervisor) takePardon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pardon {
		s.trial.pardon()
	}
	s.pardon, s.restart = false, ""
}

func (s *Supervisor) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// forget removes the note of the process.
func (s *Supervisor) forget() error { return removeRecord(s.options.StateDir) }
