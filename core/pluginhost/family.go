package pluginhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	plugin "github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
)

// family is a plugin's process and all that it has started: what is in its
// session, and what has left that but still carries the name of its runtime
// folder in the environment. A process that has left the session and cleaned
// its environment is lost to the core.
type family struct {
	// leader is the number of the plugin's process while that is a zombie of
	// ours or has just ended, so that no other session can have it; 0 to look
	// at environments alone.
	leader     int
	runtimeDir string
}

// stat is what /proc tells of a process.
type stat struct {
	pid, session int
	state        string
	startTicks   uint64
}

// readStat reads it; the name in the second field may hold anything, so fields
// are counted from its last bracket.
func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("/proc/%d/stat has only %d fields", pid, len(fields))
	}
	s := stat{pid: pid, state: fields[0]}
	var err2 error
	s.session, err = strconv.Atoi(fields[3])
	s.startTicks, err2 = strconv.ParseUint(fields[19], 10, 64)
	return s, errors.Join(err, err2)
}

// members gives those that live, without the leader.
func (f family) members() []stat {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var since uint64 // nobody is older than who started him
	if leader, err := readStat(f.leader); f.leader != 0 && err == nil {
		since = leader.startTicks
		if leader.state != "Z" { // another process has the number by now
			f.leader, since = 0, 0
		}
	}
	var found []stat
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == f.leader || pid == os.Getpid() {
			continue
		}
		if s, err := readStat(pid); err == nil && s.startTicks >= since && f.has(s) {
			found = append(found, s)
		}
	}
	return found
}

// has tells whether a process belongs to the family and lives.
func (f family) has(s stat) bool {
	if s.state == "Z" || s.state == "X" {
		return false
	}
	if f.leader != 0 && s.session == f.leader {
		return true
	}
	if f.runtimeDir == "" {
		return false
	}
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.pid))
	if err != nil {
		return false // another user's, or it has just ended
	}
	prefix := []byte(plugin.EnvUnixSocketDir + "=" + f.runtimeDir + "/")
	return slices.ContainsFunc(bytes.Split(environment, []byte{0}), func(entry []byte) bool {
		return bytes.HasPrefix(entry, prefix)
	})
}

// signal sends a signal to all that live, and tells whom.
func (f family) signal(signal unix.Signal) []stat {
	members := f.members()
	for _, s := range members {
		pidfd, err := unix.PidfdOpen(s.pid, 0)
		if err != nil {
			continue // it has ended
		}
		// The number may be another's by now: with the pidfd in hand it can't
		// change any more.
		if now, err := readStat(s.pid); err == nil && now.startTicks == s.startTicks {
			_ = unix.PidfdSendSignal(pidfd, signal, nil, 0) // it can only have ended
		}
		_ = unix.Close(pidfd)
	}
	return members
}

// familyPatience is how long kill goes on: what is started while it looks is
// found the next time, and a process that the kernel can't end just now is
// left to itself.
const familyPatience = time.Second

// kill ends all members at once.
func (f family) kill() {
	for start := time.Now(); len(f.signal(unix.SIGKILL)) > 0 && time.Since(start) < familyPatience; {
		time.Sleep(2 * time.Millisecond)
	}
}

// end ends all members, with SIGTERM first, and gives their numbers. The error
// says that some live on.
func (f family) end(ctx context.Context) ([]int, error) {
	var pids []int
	for _, s := range f.signal(unix.SIGTERM) {
		pids = append(pids, s.pid)
	}
	for start := time.Now(); ; {
		left := f.members()
		if len(left) == 0 {
			return pids, nil
		}
		if time.Since(start) > orphanGrace {
			f.signal(unix.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return pids, fmt.Errorf("a process of an earlier core's plugin, pid %d, has not ended yet: %w", left[0].pid, ctx.Err())
		case <-time.After(orphanLook):
		}
	}
}
