package pluginhost

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
)

// longestSocket is what go-plugin makes of our folder: its path, with the NUL
// at the end, must fit into the 108 bytes of a sockaddr_un.
const (
	longestSocket = "/patchbay-4294967295/plugin-dir4294967295/plugin4294967295"
	socketPathMax = 107
)

// makeRuntimeDir makes a folder for the sockets of one process, which only the
// agent's user may enter. Before there is a process, it says whose it will be:
// the supervisor's with that state folder, or nobody's for an empty one.
func makeRuntimeDir(configured, stateDir string) (string, error) {
	mine, err := thisOwner(stateDir)
	if err != nil {
		return "", fmt.Errorf("making a folder for sockets: %w", err)
	}
	var errs []error
	for _, parent := range runtimeParents(configured) {
		if len(parent)+len(longestSocket) > socketPathMax {
			errs = append(errs, fmt.Errorf("%s is too long for the path of a socket", parent))
			continue
		}
		dir, err := mkdirNumbered(parent)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := os.Symlink(mine.String(), filepath.Join(dir, ownerName)); err != nil {
			errs = append(errs, err, os.Remove(dir))
			continue
		}
		return dir, nil
	}
	return "", fmt.Errorf("making a folder for sockets: %w", errors.Join(errs...))
}

// mkdirNumbered makes a folder whose name holds the number of this process: one
// that is left before it is marked can be told by it.
func mkdirNumbered(parent string) (string, error) {
	for try := 1; ; try++ {
		dir := filepath.Join(parent, fmt.Sprintf("%s%07d%03d", runtimePrefix, os.Getpid(), rand.IntN(1000)))
		err := os.Mkdir(dir, 0o700)
		if err == nil || try == 100 || !errors.Is(err, os.ErrExist) {
			return dir, err
		}
	}
}

// runtimeParents gives the places for short-lived folders, the best first.
func runtimeParents(configured string) []string {
	if configured != "" {
		return []string{configured}
	}
	var parents []string
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && private(dir) {
		parents = append(parents, dir)
	}
	if os.Geteuid() == 0 {
		parents = append(parents, "/run")
	}
	return append(parents, os.TempDir(), "/tmp")
}

// private tells whether a folder is the agent's user's alone: after su or sudo
// the variable may name another's.
func private(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
