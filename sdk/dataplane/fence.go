package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
)

// fenceFile holds the highest session number seen, in the plugin's state
// folder, as a decimal number and a newline.
const fenceFile = "session"

// fence keeps out a core that hangs and wakes up after a newer one has
// written. It outlives the process once it knows the state folder.
type fence struct {
	log hclog.Logger

	mu      sync.Mutex
	highest uint64
	dir     string // empty for memory alone
}

// open takes the state folder and what an earlier process left there. A file
// that can't be read as a number is taken for none: a garbled fence must not
// keep every core out.
func (f *fence) open(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dir == dir {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(dir, fenceFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the highest session number: %w", err)
	}
	f.dir = dir
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(string(data), "\n"), 10, 64)
	if err != nil {
		f.log.Warn("the file with the highest session number is garbled, starting anew", "dir", dir)
		return nil
	}
	f.highest = max(f.highest, n)
	return nil
}

// check refuses a session below the highest.
func (f *fence) check(session uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refuse(session)
}

func (f *fence) refuse(session uint64) error {
	if session < f.highest {
		return fmt.Errorf("session %d is over: session %d has written since", session, f.highest)
	}
	return nil
}

// pass refuses a session below the highest, and makes it the highest. When that
// can't be written to the disk, traffic goes first: the fence then holds for
// this process alone.
func (f *fence) pass(session uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refuse(session); err != nil || session == f.highest {
		return err
	}
	f.highest = session
	if f.dir == "" {
		return nil
	}
	if err := writeFile(filepath.Join(f.dir, fenceFile), fmt.Appendf(nil, "%d\n", session)); err != nil {
		f.log.Error("the session number can't be saved", "session", session, "error", err)
	}
	return nil
}

// writeFile replaces a file at once or not at all.
func writeFile(path string, data []byte) (err error) {
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("making a temporary file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary.Name())
		}
	}()
	_, err = temporary.Write(data)
	err = errors.Join(err, temporary.Sync(), temporary.Close())
	if err != nil {
		return fmt.Errorf("writing %s: %w", temporary.Name(), err)
	}
	if err = os.Rename(temporary.Name(), path); err != nil {
		return fmt.Errorf("replacing %s: %w", path, err)
	}
	return nil
}
