package pluginhost

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	version "github.com/hashicorp/go-version"
)

// filePrefix begins the name of every plugin's file, which is
// patchbay-dataplane-NAME_vVERSION.
const filePrefix = "patchbay-dataplane-"

// Binary is a plugin file that may be run.
type Binary struct {
	// Name of the dataplane and Version, as the file's name has them.
	Name    string
	Version *version.Version
	// Path of the file, and Target, where symbolic links lead.
	Path, Target string
}

// Refusal is a plugin file that must not be run.
type Refusal struct {
	Path   string
	Reason string
}

// Find lists the files of a plugin in dir, the highest version first, and
// those that must not be run with the reason. An empty name lists every
// plugin's, in the order of names. The error is that of reading dir.
func Find(dir, name string) ([]Binary, []Refusal, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("finding the plugin folder: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the plugin folder: %w", err)
	}
	var binaries []Binary
	var refusals []Refusal
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		binary, ours, err := examine(path, name)
		switch {
		case !ours:
		case err != nil:
			refusals = append(refusals, Refusal{Path: path, Reason: err.Error()})
		default:
			binaries = append(binaries, binary)
		}
	}
	slices.SortStableFunc(binaries, func(a, b Binary) int {
		if a.Name != b.Name {
			return strings.Compare(a.Name, b.Name)
		}
		return b.Version.Compare(a.Version)
	})
	return binaries, refusals, nil
}

// examine looks at one file; ours is false when it is none of this plugin's.
func examine(path, name string) (binary Binary, ours bool, err error) {
	found, text, ours := parseFileName(filepath.Base(path), name)
	if !ours {
		return Binary{}, false, nil
	}
	binary = Binary{Name: found, Path: path}
	if binary.Version, err = version.NewSemver(text); err != nil {
		return Binary{}, true, fmt.Errorf("its name must be %sNAME_vVERSION with a version such as 1.2.3: %w", filePrefix, err)
	}
	if err := trustHolder(filepath.Dir(path)); err != nil {
		return Binary{}, true, err
	}
	if binary.Target, err = resolve(path); err != nil {
		return Binary{}, true, err
	}
	info, err := os.Lstat(binary.Target)
	if err != nil {
		return Binary{}, true, fmt.Errorf("looking at the file: %w", err)
	}
	return binary, true, trustFile(binary.Target, info)
}

// parseFileName takes a file's name apart. With an empty name every plugin's
// file is ours, else those of the plugin of that name.
func parseFileName(file, name string) (found, version string, ours bool) {
	rest, ok := strings.CutPrefix(file, filePrefix)
	if !ok {
		return "", "", false
	}
	if name != "" {
		version, ok = strings.CutPrefix(rest, name+"_v")
		return name, version, ok
	}
	at := strings.LastIndex(rest, "_v")
	if at < 1 {
		return rest, "", true
	}
	return rest[:at], rest[at+2:], true
}
