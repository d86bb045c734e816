package pluginhost

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// searchPath is the PATH of every plugin.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// scriptFD is the descriptor in which a script finds its own text.
const scriptFD = 3

// child is a process that this one has started and reaps.
type child struct {
	pid     int
	started time.Time
	// exited is closed when the process has ended and has been reaped; state
	// may be read from then on.
	exited chan struct{}
	state  *os.ProcessState

	cmd   *exec.Cmd
	pidfd *os.File
	// runtimeDir is what its environment names, and that of its children.
	runtimeDir string

	// mu keeps the process number from being given to another process while
	// a signal is on its way.
	mu     sync.Mutex
	reaped bool
	// killed is set when kill was in time.
	killed bool
}

// startChild runs an image in a session of its own, with that environment,
// which names the runtime folder, standard input null, the two files as output,
// and no other descriptor.
func startChild(i *image, env []string, runtimeDir string, stdout, stderr *os.File) (*child, error) {
	pidfd := -1
	cmd := &exec.Cmd{
		Path:        fmt.Sprintf("/proc/self/fd/%d", i.file.Fd()),
		Args:        []string{filepath.Base(i.Path)},
		Env:         append([]string{"PATH=" + searchPath, "LANG=C.UTF-8"}, env...),
		Dir:         "/",
		Stdout:      stdout,
		Stderr:      stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	}
	if i.script {
		cmd.Path, cmd.ExtraFiles = fmt.Sprintf("/proc/self/fd/%d", scriptFD), []*os.File{i.file}
	}
	// What the core itself has inherited without the close-on-exec flag must
	// not reach a plugin.
	err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) { // Linux before 5.11
		return nil, fmt.Errorf("keeping descriptors from the plugin: %w", err)
	}
	if err := startPatiently(cmd); err != nil {
		return nil, startError(i, err)
	}
	c := &child{pid: cmd.Process.Pid, started: time.Now(), exited: make(chan struct{}), cmd: cmd, runtimeDir: runtimeDir}
	if err := c.watch(pidfd); err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return c, nil
}

// startError tells what is wrong with the file from what is wrong with the
// machine.
func startError(i *image, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return &unfitError{fmt.Errorf("starting %s: its interpreter or loader is not there: %w", i.Path, err)}
	case errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.ELIBBAD), errors.Is(err, unix.EACCES):
		return &unfitError{fmt.Errorf("starting %s: %w", i.Path, err)}
	}
	return &machineError{fmt.Errorf("starting %s: %w", i.Path, err)}
}

// startPatiently starts the command. A file that another process still has
// open for writing, if only because it has just forked, is tried again.
func startPatiently(cmd *exec.Cmd) error {
	for try := 1; ; try++ {
		err := cmd.Start()
		if !errors.Is(err, syscall.ETXTBSY) || try == 10 {
			return err
		}
		time.Sleep(20 * time.Millisecond)
		*cmd = exec.Cmd{
			Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Stdout: cmd.Stdout, Stderr: cmd.Stderr,
			ExtraFiles: cmd.ExtraFiles, SysProcAttr: cmd.SysProcAttr,
		}
	}
}

// watch starts the goroutine that waits for the end and reaps. It ends with
// the process.
func (c *child) watch(pidfd int) error {
	if pidfd < 0 {
		return errors.New("the kernel gives no pidfd: Linux 5.4 or later is needed")
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return errors.Join(fmt.Errorf("watching the plugin: %w", err), unix.Close(pidfd))
	}
	c.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
	raw, err := c.pidfd.SyscallConn()
	if err != nil {
		return errors.Join(fmt.Errorf("watching the plugin: %w", err), c.pidfd.Close())
	}
	go c.reap(raw)
	return nil
}

// reap waits for the end on the runtime's poller. What the plugin has started
// ends with it: two writers of one table are worse than none. That is done
// while the zombie still keeps its number.
func (c *child) reap(raw syscall.RawConn) {
	defer close(c.exited)
	_ = raw.Read(ended) // its only error is a closed file, which nobody closes before
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = unix.Kill(-c.pid, unix.SIGKILL) // there is nobody left as a rule
	family{leader: c.pid, runtimeDir: c.runtimeDir}.kill()
	_ = c.cmd.Wait() // the state says it better than the error
	c.state = c.cmd.ProcessState
	c.reaped = true
	_ = c.pidfd.Close()
}

// ended tells whether the process of a pidfd has ended: only then is it
// readable.
func ended(pidfd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// signal sends a signal to the process alone; after its end it does nothing.
func (c *child) signal(signal syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		_ = unix.Kill(c.pid, signal) // it can only have ended: reap is to come
	}
}

// kill ends the process and its group; reap ends all else that it started.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		c.killed = true
		_ = unix.Kill(-c.pid, unix.SIGKILL)
	}
}

// waitFor waits for the end, at most that long.
func (c *child) waitFor(limit time.Duration) bool {
	select {
	case <-c.exited: // whatever the timer says
		return true
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.exited:
		return true
	case <-timer.C:
		return false
	}
}

// ownEnd tells whether the process has ended otherwise than by kill; it may be
// called once exited is closed.
func (c *child) ownEnd() bool {
	if c.state == nil {
		return !c.killed
	}
	status, ok := c.state.Sys().(syscall.WaitStatus)
	return !c.killed || ok && !(status.Signaled() && status.Signal() == unix.SIGKILL)
}

// fate says in words how the process ended; it may be called once exited is
// closed.
func (c *child) fate() string {
	if c.state == nil {
		return "ended"
	}
	status, ok := c.state.Sys().(syscall.WaitStatus)
	switch {
	case ok && status.Signaled():
		return fmt.Sprintf("ended by signal %d (%v)", int(status.Signal()), status.Signal())
	case ok:
		return fmt.Sprintf("exited with status %d", status.ExitStatus())
	}
	return c.state.String()
}
