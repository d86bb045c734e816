package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"

	"github.com/hashicorp/hcl/v2"
)

const (
	// maxConfigFile keeps a path that was mistaken (a disk image, a core dump)
	// from being read whole. 20,000 services of 10 endpoints take 16 MiB.
	maxConfigFile = 64 << 20
	// maxIncludedFile is the most that the function file() takes.
	maxIncludedFile = 1 << 20
)

// find gives the files that paths name, each once.
func (l *loader) find(paths []string) []string {
	var files []string
	seen := map[string]bool{}
	add := func(path string) {
		if abs, err := filepath.Abs(path); err == nil {
			if seen[abs] {
				return
			}
			seen[abs] = true
			l.cfg.Files = append(l.cfg.Files, abs)
		}
		files = append(files, path)
	}
	var dirs []string
	for _, path := range paths {
		if path == "" && l.opts.Places.Config == "" {
			l.incomplete = true
			l.report.errorf(nil, "No configuration",
				"There is no default place for the configuration here, because the home folder is not known. Name a file or a directory with -config.")
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			l.unreadable(path, err)
			continue
		}
		if !info.IsDir() {
			add(path)
			continue
		}
		if abs, err := filepath.Abs(path); err == nil {
			dirs = append(dirs, abs)
		}
		names, err := configFiles(path)
		if err != nil {
			l.unreadable(path, err)
			continue
		}
		if len(names) == 0 {
			l.report.errorf(nil, "No configuration files", "The directory %s has no *.hcl or *.json file.", path)
		}
		for _, name := range names {
			add(filepath.Join(path, name))
		}
	}
	l.cfg.Files = append(l.cfg.Files, dirs...)
	return files
}

// configFiles lists a directory's configuration files in lexical order. Hidden
// ones are left out: editors keep their copies there.
func configFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if strings.HasPrefix(e.Name(), ".") || ext != ".hcl" && ext != ".json" || e.IsDir() {
			continue
		}
		names = append(names, e.Name())
	}
	sort.Strings(names)
	return names, nil
}

func (l *loader) unreadable(path string, err error) {
	l.incomplete = true
	detail := fmt.Sprintf("%s can't be read: %s.", path, reason(err))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if path == l.opts.Places.Config {
			detail += " Name a file or a directory with -config."
		}
	case errors.Is(err, fs.ErrPermission):
		detail += " The agent's user needs the right to read it."
	}
	l.report.errorf(&hcl.Range{Filename: path}, "Unreadable file", "%s", detail)
}

// reason leaves the path out of an error that a message already names.
func reason(err error) string {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err.Error()
	}
	return err.Error()
}

// readRegular reads a regular file of at most limit bytes. It never blocks on
// a fifo or a device.
func readRegular(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is not a regular file but %s", kindOf(info.Mode()))
	}
	tooLarge := fmt.Errorf("it is larger than %d MiB", limit>>20)
	if info.Size() > limit {
		return nil, tooLarge
	}
	data := make([]byte, 0, info.Size()+1)
	for {
		n, err := f.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if int64(len(data)) > limit {
			return nil, tooLarge
		}
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "something else"
}
