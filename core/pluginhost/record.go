package pluginhost

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-proxy/patchbay/core/state"
)

// Files in a supervisor's state folder.
const (
	processFile = "process.json"
	goodFile    = "last-good.json"

	processKind, processVersion = "plugin-process", 1
	goodKind, goodVersion       = "plugin-last-good", 1
)

// record is what the next core must know of a running plugin, to recognise it
// beyond doubt.
type record struct {
	PID int `json:"pid"`
	// StartTicks is the start of the process in clock ticks since the boot.
	StartTicks uint64 `json:"start_ticks"`
	BootID     string `json:"boot_id"`
	SHA256     string `json:"sha256"`
	Script     bool   `json:"script"`
	Version    string `json:"version"`
	RuntimeDir string `json:"runtime_dir"`
}

// good is the last version that worked.
type good struct {
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// startTicks reads the start of a process.
func startTicks(pid int) (uint64, error) {
	s, err := readStat(pid)
	return s.startTicks, err
}

// writeRecord notes a process that has just been started.
func writeRecord(dir string, i *image, pid int, runtimeDir string) error {
	r := record{PID: pid, SHA256: i.sum, Script: i.script, Version: i.Version.Original(), RuntimeDir: runtimeDir}
	var err, err2 error
	r.BootID, err = bootID()
	r.StartTicks, err2 = startTicks(pid)
	if err := errors.Join(err, err2); err != nil {
		return fmt.Errorf("noting the plugin's process: %w", err)
	}
	return state.Write(filepath.Join(dir, processFile), processKind, processVersion, r)
}

func removeRecord(dir string) error {
	if err := os.Remove(filepath.Join(dir, processFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forgetting the plugin's process: %w", err)
	}
	return nil
}

// endOrphan ends the process that an earlier core has left running, and
// returns its number, 0 if there was none. It returns only when the process is
// gone or ctx has ended.
func endOrphan(ctx context.Context, dir string) (int, error) {
	var r record
	err := state.Read(filepath.Join(dir, processFile), processKind, processVersion, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("a plugin that an earlier core may have left running can't be told: %w", err)
	}
	pidfd, err := r.find()
	if err != nil {
		return 0, err
	}
	ended := 0
	if pidfd >= 0 {
		ended = r.PID
		err = endByPidfd(ctx, pidfd, r.PID)
		if err := errors.Join(err, unix.Close(pidfd)); err != nil {
			return 0, err
		}
		family{leader: r.PID, runtimeDir: r.RuntimeDir}.kill()
	}
	if runtimeName.MatchString(filepath.Base(r.RuntimeDir)) {
		// What it has started may live on without it.
		if _, err = (family{runtimeDir: r.RuntimeDir}).end(ctx); err == nil {
			err = os.RemoveAll(r.RuntimeDir)
		}
	}
	return ended, errors.Join(err, removeRecord(dir))
}

// find gives a pidfd of the process, or -1 when it is gone. The number may
// belong to another process by now: boot, start and program must agree. They
// are looked at with the pidfd in hand, and the process that it means can't
// change.
func (r *record) find() (int, error) {
	boot, err := bootID()
	if err != nil || boot != r.BootID || r.PID <= 1 {
		return -1, err
	}
	pidfd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return -1, nil
	} else if err != nil {
		return -1, fmt.Errorf("looking for the plugin of an earlier core, pid %d: %w", r.PID, err)
	}
	if ticks, err := startTicks(r.PID); err == nil && ticks == r.StartTicks && r.runsOurs() && !ended(uintptr(pidfd)) {
		return pidfd, nil
	}
	return -1, unix.Close(pidfd)
}

// runsOurs tells whether the process runs the file that was started: for a
// script the file is in its descriptor.
func (r *record) runsOurs() bool {
	path := fmt.Sprintf("/proc/%d/exe", r.PID)
	if r.Script {
		path = fmt.Sprintf("/proc/%d/fd/%d", r.PID, scriptFD)
	}
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	return errors.Join(err, file.Close()) == nil && hex.EncodeToString(hash.Sum(nil)) == r.SHA256
}

// Time that an orphan gets after SIGTERM, and between looks at it.
const (
	orphanGrace = 3 * time.Second
	orphanLook  = 10 * time.Millisecond
)

// endByPidfd ends a process that is no child, with its group: SIGTERM, then
// SIGKILL.
func endByPidfd(ctx context.Context, pidfd, pid int) error {
	start, killed := time.Now(), false
	// The group has the leader's number, which is its own while it lives.
	_ = unix.PidfdSendSignal(pidfd, unix.SIGTERM, nil, 0)
	for !ended(uintptr(pidfd)) {
		if !killed && time.Since(start) > orphanGrace {
			killed = true
			_ = unix.Kill(-pid, unix.SIGKILL)
			_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the plugin of an earlier core, pid %d, has not ended yet: %w", pid, ctx.Err())
		case <-time.After(orphanLook):
		}
	}
	return nil
}

// readGood gives the last version that worked, nil for none.
func readGood(dir string) (*good, error) {
	var g good
	err := state.Read(filepath.Join(dir, goodFile), goodKind, goodVersion, &g)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &g, nil
}

func writeGood(dir string, g good) error {
	return state.Write(filepath.Join(dir, goodFile), goodKind, goodVersion, g)
}
