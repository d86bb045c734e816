package pluginhost

import "time"

// State of a plugin, in the words that operators read.
type State string

// The states of a plugin.
const (
	// StateStopped means that Run has not begun or has ended.
	StateStopped State = "stopped"
	// StateMissing means that no file may be run: Refusals and LastError say
	// why.
	StateMissing State = "missing"
	// StateStarting means that the process is being started and configured.
	StateStarting State = "starting"
	// StateRunning means that it is ready.
	StateRunning State = "running"
	// StateBackoff means that it ended, or did not start, and will be started
	// again at NextAttempt.
	StateBackoff State = "restarting"
	// StateHeld means that it crashed too often and that no version is left
	// left to go to: what it put into the kernel stays. It is tried again every
	// few seconds if it has worked before, else less and less often, down to
	// once a minute.
	StateHeld State = "held"
	// StateStopping means that it is being ended.
	StateStopping State = "stopping"
)

// Status of a plugin at one moment.
type Status struct {
	Name  string
	State State
	// Version, Path, SHA256 (hex), PID and Started are those of the process;
	// empty while there is none.
	Version string
	Path    string
	SHA256  string
	PID     int
	Started time.Time
	// Starts counts the processes since Run began; Crashes those that ended,
	// or failed to start, without being asked to.
	Starts, Crashes uint64
	// LastError is why the last process ended or did not start, or was not
	// replaced.
	LastError     string
	LastErrorTime time.Time
	// NextAttempt is when it will be started again; zero while it runs.
	NextAttempt time.Time
	// LastGood is the last version that worked; empty if none did.
	LastGood string
	// RolledBackFrom is the version that crashed too often or doesn't start,
	// while another runs in its place; empty otherwise.
	RolledBackFrom string
	// Refusals are files of this plugin that must not be run.
	Refusals []Refusal
	// DroppedLines counts lines of output that were not logged because there
	// were too many.
	DroppedLines uint64
}

// Status tells how the plugin stands.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Name = s.options.Name
	status.DroppedLines = s.droppedLines.Load()
	if s.good != nil {
		status.LastGood = s.good.Version
	}
	return status
}

// report changes the status.
func (s *Supervisor) report(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// clearProcess takes the process out of the status.
func clearProcess(status *Status) {
	status.Version, status.Path, status.SHA256, status.PID, status.Started = "", "", "", 0, time.Time{}
}
