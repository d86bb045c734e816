package pluginhost

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// rules say when a version has failed.
type rules struct {
	// young is the age up to which an end counts as a crash; a version that
	// has acknowledged something and is older works.
	young time.Duration
	// allowed crashes within the window condemn a version.
	allowed int
	window  time.Duration
	// backoffMin and backoffMax bound the wait before another start. A plugin
	// that is held waits for heldMin at first, and always if it has worked:
	// nothing else will carry its traffic.
	backoffMin, backoffMax, heldMin time.Duration
}

var defaultRules = rules{
	young: 30 * time.Second, allowed: 3, window: 2 * time.Minute,
	backoffMin: 100 * time.Millisecond, backoffMax: time.Minute, heldMin: 5 * time.Second,
}

// trial is what is held against the files of a plugin, and for them. Files are
// told apart by their sums.
type trial struct {
	// condemned holds the files that crashed too often, and when each was
	// tried last.
	condemned map[string]time.Time
	// worked holds those that have acknowledged something.
	worked map[string]bool
	// crashes of one file, the one with the sum, that count.
	crashes []time.Time
	sum     string
	// attempts in a row that came to nothing, and how many of them while the
	// plugin was held.
	attempts, heldAttempts int
}

func newTrial() trial {
	return trial{condemned: map[string]time.Time{}, worked: map[string]bool{}}
}

// pardon forgets what is held against files.
func (t *trial) pardon() {
	worked := t.worked
	*t = newTrial()
	t.worked = worked
}

// crash notes a crash that counts, and tells whether it condemns the file.
func (t *trial) crash(sum string, now time.Time, r rules) bool {
	if t.sum != sum {
		t.sum, t.crashes = sum, nil
	}
	if _, before := t.condemned[sum]; before {
		t.condemned[sum] = now
		return false
	}
	t.crashes = append(t.crashes, now)
	if len(t.crashes) < r.allowed {
		return false
	}
	t.crashes = t.crashes[len(t.crashes)-r.allowed:]
	if now.Sub(t.crashes[0]) > r.window {
		return false
	}
	t.condemned[sum] = now
	return true
}

// condemn notes a file that is of no use.
func (t *trial) condemn(sum string) { t.condemned[sum] = time.Now() }

// backoff gives the wait before the next start.
func (t *trial) backoff(r rules) time.Duration {
	d := doubled(r.backoffMin, t.attempts, r.backoffMax)
	t.attempts++
	return jitter(d)
}

// backoffHeld gives the wait before the next start of a plugin that is held.
func (t *trial) backoffHeld(r rules, worked bool) time.Duration {
	d := r.heldMin
	if !worked {
		d = doubled(r.heldMin, t.heldAttempts, r.backoffMax)
	}
	t.heldAttempts++
	return jitter(d)
}

func doubled(d time.Duration, times int, limit time.Duration) time.Duration {
	return min(d<<min(times, 16), limit)
}

func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// crashed takes in that a process ended, or did not start, without being asked
// to, and gives the wait before the next start.
func (s *Supervisor) crashed(image *image, acknowledged bool, lived time.Duration, err error) time.Duration {
	var machine *machineError
	if errors.As(err, &machine) {
		// No version is to blame, and none would do better.
		s.fault(StateBackoff, err)
		return min(s.trial.backoff(s.rules), jitter(s.rules.heldMin))
	}
	s.report(func(status *Status) { status.Crashes++ })
	if acknowledged && lived >= s.rules.young {
		s.trial.attempts = 0
		s.fault(StateBackoff, err)
		return s.trial.backoff(s.rules)
	}
	condemned := s.trial.crash(image.sum, time.Now(), s.rules)
	if condemned {
		s.log.Error("this version of the plugin crashes", "version", image.Version.Original(),
			"crashes", s.rules.allowed, "within", s.rules.window)
	}
	var unfit *unfitError
	if errors.As(err, &unfit) { // the kernel will say the same again
		s.trial.condemn(image.sum)
		condemned = true
	}
	if held, worked := s.isHeld(image.sum); held {
		s.fault(StateHeld, err)
		return s.trial.backoffHeld(s.rules, worked)
	}
	if condemned {
		s.trial.attempts = 0 // it is another's turn
	}
	s.fault(StateBackoff, err)
	return s.trial.backoff(s.rules)
}

// isHeld tells whether a file is condemned with no other to go to, and whether
// the one that is tried now and then has worked before.
func (s *Supervisor) isHeld(sum string) (held, worked bool) {
	if _, condemned := s.trial.condemned[sum]; !condemned {
		return false, false
	}
	files, err := candidates(s.options.Dir, s.options.Name, s.chosenBy)
	if err != nil {
		return false, false // the next attempt says it
	}
	c, err := s.pick(files)
	if err != nil {
		return false, false
	}
	_ = c.image.Close() // it was only read
	return c.held, s.worked(c.image.sum)
}

// machineError is a failure of the machine: no version of the plugin is to
// blame.
type machineError struct{ error }

func (e *machineError) Unwrap() error { return e.error }

// unfitError says that the kernel doesn't take a file as a program.
type unfitError struct{ error }

func (e *unfitError) Unwrap() error { return e.error }

// fault shows and logs why there is no process; the log hears of the same
// reason once.
func (s *Supervisor) fault(state State, err error) {
	text := err.Error()
	var known bool
	s.report(func(status *Status) {
		known = status.State == state && status.LastError == text && state == StateMissing
		clearProcess(status)
		status.State, status.LastError, status.LastErrorTime = state, text, time.Now()
	})
	if !known {
		s.log.Error("plugin is not running", "state", string(state), "error", err)
	}
}

// keptOn shows and logs why a process was not replaced.
func (s *Supervisor) keptOn(err error) {
	s.report(func(status *Status) { status.LastError, status.LastErrorTime = err.Error(), time.Now() })
	s.log.Error("the plugin that runs is kept: there is nothing to take its place", "error", err)
}

// prove takes in that a version works.
func (s *Supervisor) prove(i *image) {
	delete(s.trial.condemned, i.sum)
	s.trial.crashes, s.trial.attempts, s.trial.heldAttempts = nil, 0, 0
	g := good{Version: i.Version.Original(), SHA256: i.sum}
	s.mu.Lock()
	known := s.good != nil && *s.good == g
	s.good = &g
	s.mu.Unlock()
	if known {
		return
	}
	if err := writeGood(s.options.StateDir, g); err != nil {
		s.log.Warn("the last version that worked can't be saved", "error", err)
	}
}

// choice is a file to run.
type choice struct {
	image *image
	// instead is the version that would run if it didn't crash; empty when
	// this is it.
	instead string
	// held is set when this one has crashed too often as well, and there is
	// none that has not.
	held bool
}

// choose opens the file to run, by the settings of now.
func (s *Supervisor) choose() (choice, error) {
	s.mu.Lock()
	settings := s.settings
	s.mu.Unlock()
	s.chosenBy = settings
	files, err := candidates(s.options.Dir, s.options.Name, settings)
	if err != nil {
		return choice{}, err
	}
	c, err := s.pick(files)
	s.report(func(status *Status) { status.Refusals, status.RolledBackFrom = files.refusals, c.instead })
	return c, err
}

// pick opens the highest version that passes. One that crashes gives way to
// the last that worked, and if it never worked itself, to the next lower; when
// all are condemned, the one that worked is tried again, or each in its turn.
func (s *Supervisor) pick(f *files) (choice, error) {
	best, err := f.first()
	if err != nil {
		return choice{}, err
	}
	if _, condemned := s.trial.condemned[best.sum]; !condemned {
		return choice{image: best}, nil
	}
	c := choice{image: best, held: true}
	for _, b := range s.successors(f, best) {
		image := f.open(b)
		if image == nil {
			continue
		}
		_, condemned := s.trial.condemned[image.sum]
		worked := s.worked(image.sum)
		if !condemned || s.better(image, c.image) {
			_ = c.image.Close() // it was only read
			c = choice{image: image, instead: best.Version.Original(), held: condemned}
		} else {
			_ = image.Close()
		}
		if !condemned || worked {
			break
		}
	}
	return c, nil
}

// better tells which of two condemned files is to be tried now.
func (s *Supervisor) better(a, b *image) bool {
	if worked := s.worked(a.sum); worked != s.worked(b.sum) {
		return worked
	}
	return s.trial.condemned[a.sum].Before(s.trial.condemned[b.sum])
}

// worked tells whether a file has worked, now or for an earlier core.
func (s *Supervisor) worked(sum string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trial.worked[sum] || s.good != nil && s.good.SHA256 == sum
}

// successors are the files to try in the place of the best one: the last that
// worked, whatever the constraint, then the lower ones. A file that has worked
// itself is not given up for one of which nobody knows.
func (s *Supervisor) successors(f *files, best *image) []Binary {
	s.mu.Lock()
	g := s.good
	s.mu.Unlock()
	var next []Binary
	if g != nil {
		at := slices.IndexFunc(f.all, func(b Binary) bool { return b.Version.Original() == g.Version })
		if at >= 0 && f.all[at].Path != best.Path {
			next = append(next, f.all[at])
		}
	}
	if s.worked(best.sum) {
		return next
	}
	for _, b := range f.fit {
		if b.Version.LessThan(best.Version) && !slices.ContainsFunc(next, func(n Binary) bool { return n.Path == b.Path }) {
			next = append(next, b)
		}
	}
	return next
}
