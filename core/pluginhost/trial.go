package pluginhost

import (
	"math/rand/v2"
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
	// backoffMin and backoffMax bound the wait before another start.
	backoffMin, backoffMax time.Duration
}

var defaultRules = rules{
	young: 30 * time.Second, allowed: 3, window: 2 * time.Minute,
	backoffMin: 100 * time.Millisecond, backoffMax: time.Minute,
}

// trial is what is held against the files of a plugin.
type trial struct {
	// condemned holds the sums of files that crashed too often.
	condemned map[string]bool
	// crashes of one file, the one with the sum, that count.
	crashes []time.Time
	sum     string
	// attempts in a row that came to nothing.
	attempts int
	// held is set when no version is left to go back to.
	held bool
}

func newTrial() trial { return trial{condemned: map[string]bool{}} }

// crash notes a crash that counts, and tells whether the file is condemned now.
func (t *trial) crash(sum string, now time.Time, r rules) bool {
	if t.sum != sum {
		t.sum, t.crashes = sum, nil
	}
	t.crashes = append(t.crashes, now)
	if len(t.crashes) < r.allowed {
		return false
	}
	t.crashes = t.crashes[len(t.crashes)-r.allowed:]
	if now.Sub(t.crashes[0]) > r.window || t.condemned[sum] {
		return false
	}
	t.condemned[sum] = true
	return true
}

// backoff gives the wait before the next start.
func (t *trial) backoff(r rules) time.Duration {
	d := r.backoffMax
	if !t.held && t.attempts < 16 {
		d = min(r.backoffMin<<t.attempts, r.backoffMax)
	}
	t.attempts++
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// crashed takes in that a process ended, or did not start, without being asked
// to, and gives the wait before the next start.
func (s *Supervisor) crashed(image *image, acknowledged bool, lived time.Duration, err error) time.Duration {
	s.report(func(status *Status) { status.Crashes++ })
	if acknowledged && lived >= s.rules.young {
		s.trial.attempts = 0
		s.fault(StateBackoff, err)
		return s.trial.backoff(s.rules)
	}
	if s.trial.crash(image.sum, time.Now(), s.rules) {
		s.log.Error("this version of the plugin crashes", "version", image.Version.Original(),
			"crashes", s.rules.allowed, "within", s.rules.window)
		if _, fallback := s.fallback(image.sum); fallback {
			s.trial.attempts = 0
		}
	}
	state := StateBackoff
	if s.trial.condemned[image.sum] {
		if _, fallback := s.fallback(image.sum); !fallback {
			s.trial.held, state = true, StateHeld
		}
	}
	s.fault(state, err)
	return s.trial.backoff(s.rules)
}

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

// prove takes in that a version works.
func (s *Supervisor) prove(i *image) {
	delete(s.trial.condemned, i.sum)
	s.trial.crashes, s.trial.attempts, s.trial.held = nil, 0, false
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

// choose opens the file to run: the highest version that fits, or the last that
// worked in place of one that crashes.
func (s *Supervisor) choose() (*image, error) {
	s.mu.Lock()
	settings := s.settings
	s.mu.Unlock()
	s.chosenBy = settings
	files, err := candidates(s.options.Dir, s.options.Name, settings)
	if err != nil {
		return nil, err
	}
	best, err := files.first()
	s.report(func(status *Status) { status.Refusals, status.RolledBackFrom = files.refusals, "" })
	if err != nil {
		return nil, err
	}
	if !s.trial.condemned[best.sum] {
		s.trial.held = false
		return best, nil
	}
	before, ok := s.fallback(best.sum)
	if !ok {
		return best, nil // now and then
	}
	image, err := open(before, "")
	if err == nil && image.sum == s.good.SHA256 {
		s.report(func(status *Status) { status.RolledBackFrom = best.Version.Original() })
		s.log.Warn("going back to the last version that worked", "version", image.Version.Original(), "from", best.Version.Original())
		return image, best.Close()
	}
	if err == nil {
		err = image.Close()
	}
	if err != nil {
		s.log.Warn("the last version that worked can't be run", "version", s.good.Version, "error", err)
	}
	return best, nil
}

// fallback gives the file of the last version that worked, if that isn't the
// one with the sum and is not condemned itself.
func (s *Supervisor) fallback(sum string) (Binary, bool) {
	s.mu.Lock()
	g := s.good
	s.mu.Unlock()
	if g == nil || g.SHA256 == sum || s.trial.condemned[g.SHA256] {
		return Binary{}, false
	}
	binaries, _, err := Find(s.options.Dir, s.options.Name)
	if err != nil {
		return Binary{}, false
	}
	for _, b := range binaries {
		if b.Version.Original() == g.Version {
			return b, true
		}
	}
	return Binary{}, false
}
