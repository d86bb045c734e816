package pluginhost

import (
	"errors"
	"fmt"
	"strings"

	version "github.com/hashicorp/go-version"
)

// Choose gives the file that would run: the highest version that the
// constraint allows, as in "~> 1.0", that may be run and that has the sha256,
// hex, if one is wanted. A file that does not pass gives way to the next. Empty
// strings allow any. The error says why none of the files will do, or that
// the constraint or the folder can't be read.
func Choose(dir, name, constraint, sha256 string) (Binary, error) {
	f, err := candidates(dir, name, Settings{Constraint: constraint, SHA256: sha256})
	if err != nil {
		return Binary{}, err
	}
	image, err := f.first()
	if err != nil {
		return Binary{}, err
	}
	return image.Binary, image.Close()
}

// files are those of one plugin that its settings allow, the highest version
// first. They are opened and verified one after another, as far as need be.
type files struct {
	dir, name string
	settings  Settings
	// fit are those whose version the constraint allows, of all there are.
	fit, all []Binary
	// refusals are files that must not be run, which grow while files are
	// opened; unpinned are those that have another sha256 than is wanted.
	refusals, unpinned []Refusal
}

// candidates finds the files of a plugin. The error says that the folder or the
// constraint can't be read.
func candidates(dir, name string, settings Settings) (*files, error) {
	f := &files{dir: dir, name: name, settings: settings}
	var allowed version.Constraints
	var err error
	if settings.Constraint != "" {
		if allowed, err = version.NewConstraint(settings.Constraint); err != nil {
			return nil, fmt.Errorf("the version %q of the dataplane block: %w", settings.Constraint, err)
		}
	}
	if f.all, f.refusals, err = Find(dir, name); err != nil {
		return nil, err
	}
	for _, b := range f.all {
		if settings.Constraint == "" || allowed.Check(b.Version) {
			f.fit = append(f.fit, b)
		}
	}
	return f, nil
}

// open opens and verifies one file; nil for one that does not pass.
func (f *files) open(b Binary) *image {
	image, err := open(b, f.settings.SHA256)
	var other *otherSumError
	switch {
	case errors.As(err, &other):
		f.unpinned = append(f.unpinned, Refusal{Path: b.Path, Reason: err.Error()})
	case err != nil:
		f.refusals = append(f.refusals, Refusal{Path: b.Path, Reason: err.Error()})
	}
	return image
}

// first opens the highest version that passes.
func (f *files) first() (*image, error) {
	for _, b := range f.fit {
		if image := f.open(b); image != nil {
			return image, nil
		}
	}
	return nil, f.missing()
}

// missing says why there is no file to run, once all that fit were opened.
func (f *files) missing() error {
	text := fmt.Sprintf("no file %s%s_v* in %s can be run", filePrefix, f.name, f.dir)
	if f.settings.Constraint != "" {
		text += fmt.Sprintf(" with a version %q", f.settings.Constraint)
	}
	var parts []string
	if len(f.fit) == 0 && len(f.all) > 0 {
		parts = append(parts, fmt.Sprintf("the highest of %d versions is %s", len(f.all), f.all[0].Version.Original()))
	}
	for _, r := range append(f.unpinned, f.refusals...) {
		parts = append(parts, fmt.Sprintf("%s must not be run: %s", r.Path, r.Reason))
	}
	if len(parts) == 0 {
		return errors.New(text + ": there is none")
	}
	return errors.New(text + ": " + strings.Join(parts, "; "))
}
