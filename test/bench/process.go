package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a program under measurement with all that it started.
type process struct {
	cmd *exec.Cmd
	log *bytes.Buffer
	end chan struct{}
	out *os.File // the reading end of its output, when that isn't logged
}

// startTalking starts a program whose output is read, not logged.
func startTalking(h *host, cmd *exec.Cmd) (*process, *bufio.Reader, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdout = w
	p, err := startProcess(h, cmd)
	w.Close()
	if err != nil {
		r.Close()
		return nil, nil, err
	}
	p.out = r
	return p, bufio.NewReader(r), nil
}

func startProcess(h *host, cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, log: &bytes.Buffer{}, end: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.log
	}
	cmd.Stderr = p.log
	if err := h.start(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	go func() {
		_ = cmd.Wait() // what it said is in the log; how it ended is no matter
		close(p.end)
	}()
	return p, nil
}

// stop ends the program, gently at first, and whatever it leaves behind.
func (p *process) stop() {
	pids := p.tree()
	if p.out != nil {
		p.out.Close()
	}
	_ = p.cmd.Process.Signal(unix.SIGINT)
	select {
	case <-p.end:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.end
	}
	for _, pid := range pids[1:] {
		// A helper that outlives its parent: nginx's workers for a moment, a
		// plugin. Their ids can't be reused yet, so soon.
		for range 50 {
			if syscall.Kill(pid, 0) != nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// tree gives the ids of the program and of all that descends from it, its own
// first.
func (p *process) tree() []int {
	children := map[int][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []int{p.cmd.Process.Pid}
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// pid (name) state ppid ...; the name may hold anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	pids := []int{p.cmd.Process.Pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, children[pids[i]]...)
	}
	return pids
}

// usage of a program and its descendants.
type usage struct {
	CPU         time.Duration // user and system
	RSS         int64         // bytes
	Descriptors int
}

func (p *process) cpu() time.Duration {
	var sum time.Duration
	for _, pid := range p.tree() {
		// The clock of a process's CPU time, as clock_getcpuclockid makes it:
		// nanoseconds, ended threads included.
		var t unix.Timespec
		if unix.ClockGettime(int32(^pid<<3|2), &t) == nil {
			sum += time.Duration(t.Nano())
		}
	}
	return sum
}

func (p *process) usage() usage {
	u := usage{CPU: p.cpu()}
	for _, pid := range p.tree() {
		u.RSS += rss(pid)
		if fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
			u.Descriptors += len(fds)
		}
	}
	return u
}

// settled waits, for 10 s at most, until the resident size stays the same for
// a second: Go gives memory back some time after it was used.
func (p *process) settled() usage {
	u, same := p.usage(), 0
	for range 40 {
		time.Sleep(250 * time.Millisecond)
		now := p.usage()
		if same++; now.RSS != u.RSS {
			same = 0
		}
		if u = now; same == 4 {
			break
		}
	}
	return u
}

// rss reads the exact resident size in bytes; VmRSS lags by some pages.
func rss(pid int) int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "Rss:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}

// until waits for a condition, for two minutes at most: a machine may be busy.
func (p *process) until(what string, ok func() bool) error {
	for range 2400 {
		if ok() {
			return nil
		}
		select {
		case <-p.end:
			return fmt.Errorf("it ended before %s; it said:\n%s", what, p.log)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return errors.New("two minutes have passed without " + what)
}
