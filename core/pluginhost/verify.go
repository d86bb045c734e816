package pluginhost

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// What may be run: a file that nobody but root and the agent's user can write
// or put another in the place of. So every folder and every symbolic link on
// the way to it is looked at too.

// writableByOthers are the permissions that group and others must not have.
const writableByOthers = 0o022

// maxLinks is how many symbolic links are followed; the kernel's number.
const maxLinks = 40

// resolve gives the path without symbolic links, after looking at every folder
// and link on the way.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	current, rest, links := "/", split(path), 0
	for {
		info, err := os.Lstat(current)
		if err != nil {
			return "", fmt.Errorf("following the path: %w", err)
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", fmt.Errorf("%s: too many symbolic links", path)
			}
			if err := trustOwner(current, info); err != nil {
				return "", err
			}
			target, err := os.Readlink(current)
			if err != nil {
				return "", fmt.Errorf("following the path: %w", err)
			}
			current = filepath.Dir(current)
			if filepath.IsAbs(target) {
				current = "/"
			}
			rest = append(split(target), rest...)
		case len(rest) == 0:
			return current, trustHolder(filepath.Dir(current))
		case !info.IsDir():
			return "", fmt.Errorf("%s is not a folder", current)
		default:
			if err := trustFolder(current, info); err != nil {
				return "", err
			}
		}
		if len(rest) == 0 { // a link to "/" or ".."
			return "", fmt.Errorf("%s is a folder", path)
		}
		current, rest = filepath.Join(current, rest[0]), rest[1:]
	}
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// trustFolder looks at a folder on the way. In one with the sticky bit, such
// as /tmp, others may make files but not touch those of root and the agent's
// user, which is what comes next.
func trustFolder(path string, info fs.FileInfo) error {
	if err := trustOwner(path, info); err != nil {
		return err
	}
	if info.Mode().Perm()&writableByOthers != 0 && info.Mode()&fs.ModeSticky == 0 {
		return writable("folder", path, info)
	}
	return nil
}

// trustHolder looks at the folder that a plugin is in: nobody else may add one.
func trustHolder(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("looking at the folder: %w", err)
	}
	if info.Mode().Perm()&writableByOthers != 0 {
		return writable("folder", path, info)
	}
	return trustOwner(path, info)
}

func trustFile(path string, info fs.FileInfo) error {
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case info.Mode().Perm()&writableByOthers != 0:
		return writable("file", path, info)
	case info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("the file %s is not executable: chmod 0755 %s", path, path)
	}
	return trustOwner(path, info)
}

// writable says that others may write something, and what to do: never to take
// a shared folder such as /tmp from those who use it.
func writable(what, path string, info fs.FileInfo) error {
	advice := "chmod go-w " + path
	switch {
	case !info.IsDir():
	case info.Mode()&fs.ModeSticky != 0:
		advice = "put the plugin into a folder of its own with mode 0755"
	default:
		advice = "put the plugin into a folder that only root or the agent's user may write, or, if no one else has business there, " + advice
	}
	return fmt.Errorf("its group or others may write the %s %s (mode %04o): %s", what, path, info.Mode().Perm(), advice)
}

func trustOwner(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("the owner of %s can't be told", path)
	}
	if uid := int(stat.Uid); uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("%s belongs to user id %d, and must belong to root or to the agent's user (%d)", path, uid, os.Geteuid())
	}
	return nil
}

// image is an opened plugin file: what has been hashed is what will run,
// whatever happens to the path.
type image struct {
	Binary
	file *os.File
	// sum is the SHA-256 of the file, hex.
	sum string
	// script is set when the kernel runs an interpreter, which reads the
	// file once more.
	script bool
}

func (i *image) Close() error { return i.file.Close() }

// open opens and verifies a binary; want is the sum it must have, if not empty.
func open(binary Binary, want string) (*image, error) {
	file, err := os.OpenFile(binary.Target, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the plugin's file: %w", err)
	}
	i := &image{Binary: binary, file: file}
	if err := i.verify(want); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return i, nil
}

func (i *image) verify(want string) error {
	info, err := i.file.Stat()
	if err != nil {
		return fmt.Errorf("looking at %s: %w", i.Path, err)
	}
	if err := trustFile(i.Target, info); err != nil {
		return err
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, io.NewSectionReader(i.file, 0, info.Size())); err != nil {
		return fmt.Errorf("reading %s: %w", i.Path, err)
	}
	i.sum = hex.EncodeToString(hash.Sum(nil))
	if want != "" && !strings.EqualFold(want, i.sum) {
		return &otherSumError{path: i.Path, have: i.sum, want: want}
	}
	var magic [2]byte
	if _, err := i.file.ReadAt(magic[:], 0); errors.Is(err, io.EOF) {
		return fmt.Errorf("%s is no program: it has %d bytes", i.Path, info.Size())
	} else if err != nil {
		return fmt.Errorf("reading %s: %w", i.Path, err)
	}
	i.script = string(magic[:]) == "#!"
	return nil
}

// otherSumError says that a file is not the one that the configuration wants.
type otherSumError struct{ path, have, want string }

func (e *otherSumError) Error() string {
	return fmt.Sprintf("the file %s has the sha256 %s, and the configuration wants %s", e.path, e.have, e.want)
}
