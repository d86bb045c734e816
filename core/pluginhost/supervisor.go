package pluginhost

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
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
	Logger     hclog.Logger
	// OnReady is called with a process that answered to Describe as its file's
	// name says: it configures it and hands it to a session. An error ends the
	// process and counts as a failed start. The context ends after 30 s, or
	// when the process does.
	OnReady func(ctx context.Context, process *Process) error
	// OnGone is called once the process of a successful OnReady has ended or
	// is about to be ended; err is nil when the supervisor wanted it.
	OnGone func(process *Process, err error)
}

// Supervisor keeps one plugin running.
type Supervisor struct{}

// New makes a supervisor; it starts nothing before Run.
func New(options Options) *Supervisor { return &Supervisor{} }

// Run ends what an earlier core may have left running, then keeps the plugin
// running until ctx ends, and has ended it when it returns: with Shutdown in
// the mode DETACH, then SIGTERM, then SIGKILL. What the plugin put into the
// kernel stays. The error says that the supervisor could not work at all, such
// as a state folder that can't be written.
func (s *Supervisor) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Restart ends the process and starts the best version there is, forgetting
// what crashed before. It returns at once; Status tells how it goes.
func (s *Supervisor) Restart(reason string) {}

// Reconfigure takes new settings, and restarts the plugin if another file is
// now the one to run. It reports whether it does.
func (s *Supervisor) Reconfigure(settings Settings) bool { return false }

// Status tells how the plugin stands.
func (s *Supervisor) Status() Status { return Status{} }

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
	// to go back to: what it put into the kernel stays, and it is tried again
	// about once a minute.
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
	// LastError is why the last process ended or did not start.
	LastError     string
	LastErrorTime time.Time
	// NextAttempt is when it will be started again; zero while it runs.
	NextAttempt time.Time
	// LastGood is the last version that worked; empty if none did.
	LastGood string
	// RolledBackFrom is the version that crashed too often, while an older
	// one runs in its place; empty otherwise.
	RolledBackFrom string
	// Refusals are files of this plugin that must not be run.
	Refusals []Refusal
	// DroppedLines counts lines of output that were not logged because there
	// were too many.
	DroppedLines uint64
}
