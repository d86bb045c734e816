// Package state reads and writes the files in which the core keeps what must
// outlive it: one JSON value a file, behind a line that says what it is, in
// which version, and what its bytes must sum to.
//
// In go a path, the kind and version of the file and a value; a reader gets
// the value back, or is told that the file is missing, damaged (and where it
// was moved to), or of a version it doesn't know. The static source and the
// catalog call it. A file is replaced as a whole or not at all: a crash or a
// full disk in the middle of a write leaves the one before.
//
// The leases of VIPs grow one record at a time and have a file form of their
// own in package vip, made from the same parts.
package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
)

// maxSize of a file that Read takes, in bytes: 100 times what 100,000
// endpoints need.
const maxSize = 1 << 30

// header is the first line of a file.
type header struct {
	Kind    string `json:"patchbay"`
	Version int    `json:"version"`
	SHA256  string `json:"sha256"`
}

// DamagedError says that a file could not be believed. It is out of the way
// when Read returns, so that a new one can be written.
type DamagedError struct {
	Path string
	// MovedTo is where the file is now; empty when it could not be moved.
	MovedTo string
	Reason  string
}

func (e *DamagedError) Error() string {
	if e.MovedTo == "" {
		return fmt.Sprintf("%s is damaged (%s) and could not be moved aside", e.Path, e.Reason)
	}
	return fmt.Sprintf("%s is damaged (%s); it was moved to %s", e.Path, e.Reason, e.MovedTo)
}

// VersionError says that a file was written by a version of the core that
// this one doesn't know. The file stays where it is.
type VersionError struct {
	Path         string
	Have, Expect int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s has version %d, and this core knows %d: start the core that wrote it, or move the file away", e.Path, e.Have, e.Expect)
}

// Write replaces the file at path by value, on disk when it returns. The
// folder must exist.
func Write(path, kind string, version int, value any) error {
	data, err := Encode(kind, version, value)
	if err != nil {
		return fmt.Errorf("saving %s: %w", path, err)
	}
	if err := Replace(path, data); err != nil {
		return fmt.Errorf("saving %s: %w", path, err)
	}
	return nil
}

// Encode gives the bytes of a file.
func Encode(kind string, version int, value any) ([]byte, error) {
	body, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	body = append(body, '\n')
	sum := sha256.Sum256(body)
	head, err := json.Marshal(header{Kind: kind, Version: version, SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		return nil, err
	}
	return append(append(head, '\n'), body...), nil
}

// Replace puts data at path in one step: what is there before stays until all
// of it is on disk.
func Replace(path string, data []byte) error {
	temporary := path + ".new"
	err := writeSynced(temporary, data)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		// What was begun takes room that is short already.
		_ = os.Remove(temporary)
		return err
	}
	return SyncDir(filepath.Dir(path))
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// SyncDir puts a folder's entries on disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Read fills the value that a pointer leads to from the file at path. A missing file is [fs.ErrNotExist],
// one of another version a [VersionError]. A cut or garbled file is moved aside
// and comes back as a [DamagedError]; value is then as it was.
func Read(path, kind string, version int, value any) error {
	data, err := readAll(path)
	if err != nil {
		return fmt.Errorf("reading saved state: %w", err)
	}
	err = Decode(data, kind, version, value)
	if ve := (*VersionError)(nil); errors.As(err, &ve) {
		ve.Path = path
		return ve
	}
	if err != nil {
		return MoveAside(path, err.Error())
	}
	return nil
}

func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	return io.ReadAll(io.LimitReader(f, maxSize))
}

// Decode fills the value that a pointer leads to from the bytes of a file; it is
// untouched when that fails.
func Decode(data []byte, kind string, version int, value any) error {
	first, body, found := bytes.Cut(data, []byte{'\n'})
	if !found {
		return errors.New("its first line is cut")
	}
	var head header
	if err := json.Unmarshal(first, &head); err != nil {
		return errors.New("its first line is not a header")
	}
	if head.Kind != kind {
		return fmt.Errorf("it holds %.40q where %q was expected", head.Kind, kind)
	}
	if head.Version != version {
		return &VersionError{Have: head.Version, Expect: version}
	}
	if sum := sha256.Sum256(body); head.SHA256 != hex.EncodeToString(sum[:]) {
		return errors.New("its checksum is wrong")
	}
	// A decoder that fails has filled in a part: that goes into a copy.
	fresh := reflect.New(reflect.TypeOf(value).Elem())
	if err := json.Unmarshal(body, fresh.Interface()); err != nil {
		return fmt.Errorf("its content is not as expected: %w", err)
	}
	reflect.ValueOf(value).Elem().Set(fresh.Elem())
	return nil
}

// MoveAside renames a damaged file, in place of the one moved aside before it,
// and gives the error that says so.
func MoveAside(path, reason string) *DamagedError {
	e := &DamagedError{Path: path, Reason: reason}
	aside := path + ".damaged"
	if err := os.Rename(path, aside); err == nil {
		e.MovedTo = aside
	}
	return e
}
