package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

// A core that is killed leaves the runtime folders of its plugins, and may
// leave processes of which it could not make a note. The next core knows both
// by the link in the folder, which is there before the process is: a link
// needs no room on a disk that is full, and is there as a whole or not at all.

const (
	runtimePrefix = "patchbay-"
	ownerName     = "owner"
	// strayAge is the age from which a folder is taken for left over that
	// belongs to no supervisor, or is not marked though its maker may live.
	strayAge = time.Minute
)

var runtimeName = regexp.MustCompile(`^` + runtimePrefix + `([0-9]{7})[0-9]{3}$`)

// owner is whose a runtime folder is.
type owner struct {
	boot string
	// pid and ticks of the core that made it.
	pid   int
	ticks uint64
	// device and inode of the supervisor's state folder; 0 for none. Whoever
	// holds the lock of the data folder is the only one to use it.
	device, inode uint64
}

const ownerForm = "%s %d %d %d %d"

func (o owner) String() string {
	return fmt.Sprintf(ownerForm, o.boot, o.pid, o.ticks, o.device, o.inode)
}

// thisOwner is this core with a state folder, or none.
func thisOwner(stateDir string) (owner, error) {
	boot, err := bootID()
	if err != nil {
		return owner{}, err
	}
	o := owner{boot: boot, pid: os.Getpid()}
	if o.ticks, err = startTicks(o.pid); err != nil || stateDir == "" {
		return o, err
	}
	info, err := os.Stat(stateDir)
	if errors.Is(err, os.ErrNotExist) {
		return o, nil // there was no room for it
	} else if err != nil {
		return o, err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		o.device, o.inode = stat.Dev, stat.Ino
	}
	return o, nil
}

// lives tells whether the core that made the folder runs.
func (o owner) lives() bool {
	ticks, err := startTicks(o.pid)
	return err == nil && ticks == o.ticks
}

// sweep ends the processes and removes the folders that earlier cores with
// this state folder have left, and what is left of those that belong to no
// supervisor. It gives the numbers of the processes.
func sweep(ctx context.Context, runtimeDir, stateDir string) ([]int, error) {
	mine, err := thisOwner(stateDir)
	if err != nil {
		return nil, fmt.Errorf("looking for what an earlier core has left: %w", err)
	}
	var pids []int
	var errs []error
	for _, parent := range runtimeParents(runtimeDir) {
		entries, err := os.ReadDir(parent)
		if err != nil {
			continue // no folder can be there either
		}
		for _, entry := range entries {
			dir := filepath.Join(parent, entry.Name())
			if !runtimeName.MatchString(entry.Name()) || !private(dir) || !mine.inherits(dir) {
				continue
			}
			ended, err := family{runtimeDir: dir}.end(ctx)
			if pids = append(pids, ended...); err == nil {
				err = os.RemoveAll(dir)
			}
			errs = append(errs, err)
		}
	}
	return pids, errors.Join(errs...)
}

// inherits tells whether a runtime folder is left over, and this core's to
// remove.
func (o owner) inherits(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	stray := time.Since(info.ModTime()) > strayAge
	text, err := os.Readlink(filepath.Join(dir, ownerName))
	if errors.Is(err, os.ErrNotExist) { // it had hardly begun, or was being removed
		return (stray || !makerLives(dir)) && len(family{runtimeDir: dir}.members()) == 0
	}
	var of owner
	if _, err := fmt.Sscanf(text, ownerForm, &of.boot, &of.pid, &of.ticks, &of.device, &of.inode); err != nil {
		return false
	}
	switch {
	case of.boot != o.boot:
		return true
	case of.lives():
		return false
	case of.inode == 0:
		return stray
	}
	return of.device == o.device && of.inode == o.inode
}

// makerLives tells whether there is a process with the number in a folder's
// name.
func makerLives(dir string) bool {
	parts := runtimeName.FindStringSubmatch(filepath.Base(dir))
	if parts == nil {
		return true
	}
	pid, err := strconv.Atoi(parts[1])
	return err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}
