package agent

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"
)

const (
	// settle is how long files must rest before they are loaded: an editor
	// writes, renames and removes in bursts.
	settle = 200 * time.Millisecond
	// settleLimit is how long a file that never rests is waited for.
	settleLimit = 2 * time.Second
	// pollInterval is how often files are looked at without a notice: file
	// systems of the network give none.
	pollInterval = 5 * time.Second
)

// fileWatch tells when configuration files change. It watches the folders that
// hold them, not the files: editors and Kubernetes put new files in their place.
type fileWatch struct {
	log     hclog.Logger
	orders  chan watchOrder
	changed chan struct{}
}

func newFileWatch(logger hclog.Logger) *fileWatch {
	return &fileWatch{log: logger, orders: make(chan watchOrder, 1), changed: make(chan struct{}, 1)}
}

// watchOrder is what to watch, and the fingerprint of what is known of it.
type watchOrder struct {
	paths []string
	known string
}

// watch sets the files and folders to watch, none for none, and what is known
// of them, by knownFiles.
func (w *fileWatch) watch(paths []string, known string) {
	order := watchOrder{paths, known}
	for {
		select {
		case w.orders <- order:
			return
		case <-w.orders:
		}
	}
}

// knownFiles gives the fingerprint of files that have just been read, by a
// reader who began at that time. Where one may have changed while it was read
// it is empty, so that they are read once more.
func knownFiles(paths []string, began time.Time) string {
	// The kernel's clock for files lags by up to a tick.
	began = began.Add(-20 * time.Millisecond)
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			continue
		}
		changed := info.ModTime()
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			changed = time.Unix(stat.Ctim.Unix())
		}
		if changed.After(began) {
			return ""
		}
	}
	return fingerprint(paths)
}

// run watches until ctx ends.
func (w *fileWatch) run(ctx context.Context) {
	var events chan fsnotify.Event
	var problems chan error
	notifier, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("the kernel gives no notice of changed files: looking at them every few seconds instead", "error", err)
	} else {
		defer func() { _ = notifier.Close() }()
		events, problems = notifier.Events, notifier.Errors
	}
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	settled := time.NewTimer(time.Hour)
	defer settled.Stop()

	var paths []string
	var known, stamped string
	var first time.Time // of the events that wait to settle
	begin := func() {
		if first.IsZero() {
			first = time.Now()
		}
		settled.Reset(max(0, min(settle, time.Until(first.Add(settleLimit)))))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case order := <-w.orders:
			paths, known = order.paths, order.known
			w.follow(notifier, paths)
			stamped = stamp(paths)
			if len(paths) > 0 && known != fingerprint(paths) {
				begin()
			}
		case event := <-events:
			if event.Op != fsnotify.Chmod && len(paths) > 0 {
				begin()
			}
		case err := <-problems:
			w.log.Warn("watching configuration files", "error", err)
		case <-poll.C:
			if now := stamp(paths); now != stamped {
				stamped = now
				begin()
			}
		case <-settled.C:
			first = time.Time{}
			w.follow(notifier, paths)
			if now := fingerprint(paths); now != known {
				known, stamped = now, stamp(paths)
				select {
				case w.changed <- struct{}{}:
				default:
				}
			}
		}
	}
}

// follow watches the folders of paths, and no others.
func (w *fileWatch) follow(notifier *fsnotify.Watcher, paths []string) {
	if notifier == nil {
		return
	}
	wanted := map[string]bool{}
	for _, p := range paths {
		for _, dir := range foldersOf(p) {
			wanted[dir] = true
		}
	}
	for _, dir := range notifier.WatchList() {
		if !wanted[dir] {
			_ = notifier.Remove(dir)
		}
	}
	// A folder that was removed and made again needs a new watch, and adding
	// one twice does nothing.
	for _, dir := range slices.Sorted(maps.Keys(wanted)) {
		if err := notifier.Add(dir); err != nil && !os.IsNotExist(err) {
			w.log.Debug("no notice of changes in a folder: looking at it every few seconds instead", "path", dir, "error", err)
		}
	}
}

// foldersOf gives the folders where a change can change what path leads to:
// its own, that of each symbolic link on the way, and path if it is a folder.
func foldersOf(path string) []string {
	var dirs []string
	// The kernel follows at most 40 links, see path_resolution(7).
	for range 40 {
		dirs = append(dirs, filepath.Dir(path))
		info, err := os.Lstat(path)
		if err != nil {
			return dirs
		}
		if info.IsDir() {
			return append(dirs, path)
		}
		if info.Mode()&os.ModeSymlink == 0 {
			// Links among the parents: where they lead.
			if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
				dirs = append(dirs, filepath.Dir(real))
			}
			return dirs
		}
		target, err := os.Readlink(path)
		if err != nil {
			return dirs
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		// A link such as ..data/file.hcl leads through a link of its own.
		if parent := filepath.Dir(target); isLink(parent) {
			dirs = append(dirs, filepath.Dir(parent))
		}
		path = target
	}
	return dirs
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&os.ModeSymlink != 0
}

// fingerprint of what the files hold; of a folder, of the names of its
// configuration files.
func fingerprint(paths []string) string {
	sum := sha256.New()
	for _, p := range paths {
		fmt.Fprintf(sum, "%q\n", p)
		info, err := os.Stat(p)
		switch {
		case err != nil:
			fmt.Fprintf(sum, "%v\n", err)
		case info.IsDir():
			entries, _ := os.ReadDir(p)
			for _, e := range entries {
				name := e.Name()
				if (strings.HasSuffix(name, ".hcl") || strings.HasSuffix(name, ".json")) && !strings.HasPrefix(name, ".") {
					fmt.Fprintf(sum, "%q\n", name)
				}
			}
		case info.Mode().IsRegular():
			if file, err := os.Open(p); err == nil {
				_, _ = io.Copy(sum, file)
				_ = file.Close()
			}
		}
	}
	return string(sum.Sum(nil))
}

// stamp is a cheap sign of change: which files the paths lead to, how large
// they are and when they were written.
func stamp(paths []string) string {
	var b strings.Builder
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			fmt.Fprintf(&b, "%s %v\n", p, err)
			continue
		}
		var inode uint64
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			inode = stat.Ino
		}
		fmt.Fprintf(&b, "%s %d %d %d\n", p, info.Size(), info.ModTime().UnixNano(), inode)
	}
	return b.String()
}
