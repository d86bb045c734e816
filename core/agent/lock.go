package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Lock is the right to a data folder, of one process at a time.
type Lock struct{ file *os.File }

// HeldError says who has the data folder.
type HeldError struct {
	DataDir string
	// Holder as its lock file says it; empty where it says nothing.
	Holder string
}

func (e *HeldError) Error() string {
	holder := e.Holder
	if holder == "" {
		holder = "a process that left no name"
	}
	return fmt.Sprintf("the data folder %s is in use by %s: stop that, or give this agent a folder of its own with -data-dir", e.DataDir, holder)
}

// LockDataDir takes the lock of a data folder, which is made if it is missing.
// It is a [HeldError] when another process has it. The kernel frees the lock
// when the process ends, however it ends.
func LockDataDir(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the data folder: %w", err)
	}
	path := filepath.Join(dir, lockName)
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("opening the lock of the data folder: %w", err)
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			defer file.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				text, _ := io.ReadAll(io.LimitReader(file, 200))
				return nil, &HeldError{DataDir: dir, Holder: strings.TrimSpace(string(text))}
			}
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !stillAt(path, file) {
			// A cleanup has removed the file between our opening and locking it.
			_ = file.Close()
			continue
		}
		// Who holds it is for people alone: a full disk is no reason to fail here.
		if file.Truncate(0) == nil {
			_, _ = fmt.Fprintf(file, "process %d since %s\n", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
		}
		return &Lock{file}, nil
	}
}

const lockName = "lock"

func stillAt(path string, file *os.File) bool {
	opened, err := file.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	return err == nil && os.SameFile(opened, now)
}

// Release gives the folder back.
func (l *Lock) Release() { _ = l.file.Close() }
