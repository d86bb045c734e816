package pluginhost

import version "github.com/hashicorp/go-version"

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
// plugin's, in the order of names.
func Find(dir, name string) ([]Binary, []Refusal, error) { return nil, nil, nil }
