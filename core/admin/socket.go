package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what sun_path holds, less the zero at its end and the
// suffix of the name under which a socket is made.
const maxSocketPath = 107 - len(newSocketSuffix)

const newSocketSuffix = ".new"

// ListenSocket listens on a unix socket at path with mode 0660, owned by the
// named user and group where they aren't empty. The folder is made if it is
// missing. A socket that nobody answers on, left behind by an agent that died,
// is replaced; one that answers is refused. The listener removes the socket
// when it is closed, unless another has taken its place.
func ListenSocket(path, userName, groupName string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s is %d bytes long, the kernel takes %d: set a shorter one with -socket or agent { socket = ... }",
			path, len(path), maxSocketPath)
	}
	uid, gid, err := lookupOwner(userName, groupName)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("making the socket's folder: %w", err)
	}
	if err := refuseLive(path); err != nil {
		return nil, err
	}

	// The socket appears under its own name complete, with owner and mode.
	temporary := path + newSocketSuffix
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing an old socket: %w", err)
	}
	// The kernel takes the mode of the file from the mode of the descriptor,
	// so that there is no moment in which others may connect.
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var chmodErr error
		err := raw.Control(func(fd uintptr) { chmodErr = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, chmodErr)
	}}
	listener, err := config.Listen(context.Background(), "unix", temporary)
	if err != nil {
		return nil, fmt.Errorf("listening on the admin socket: %w", err)
	}
	socket := &socketListener{UnixListener: listener.(*net.UnixListener), path: path}
	socket.SetUnlinkOnClose(false)
	if err := socket.publish(temporary, uid, gid); err != nil {
		_ = os.Remove(temporary)
		_ = socket.UnixListener.Close()
		return nil, err
	}
	return socket, nil
}

// socketListener removes its own socket, and only that, when it is closed.
type socketListener struct {
	*net.UnixListener
	path   string
	info   fs.FileInfo
	remove sync.Once
}

func (l *socketListener) publish(temporary string, uid, gid int) error {
	if uid >= 0 || gid >= 0 {
		if err := os.Chown(temporary, uid, gid); err != nil {
			return fmt.Errorf("giving the admin socket to its readers: %w", err)
		}
	}
	if err := os.Chmod(temporary, 0o660); err != nil {
		return fmt.Errorf("setting the admin socket's mode: %w", err)
	}
	info, err := os.Stat(temporary)
	if err != nil {
		return err
	}
	l.info = info
	// A link, unlike a rename, never takes the place of a socket that another
	// agent has put there in the meantime.
	err = os.Link(temporary, l.path)
	if errors.Is(err, fs.ErrExist) {
		if err := RemoveDeadSocket(l.path); err != nil {
			return err
		}
		err = os.Link(temporary, l.path)
	}
	if err != nil {
		return fmt.Errorf("putting the admin socket in place: %w", err)
	}
	return os.Remove(temporary)
}

// Addr gives the path at which clients find the socket, not that at which it
// was made.
func (l *socketListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close ends the listener, and removes the socket if it is still its own.
func (l *socketListener) Close() error {
	// Once: another's socket may come to have the number of ours.
	l.remove.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.info) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// refuseLive fails where something answers at path, or where path is no
// socket.
func refuseLive(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at the admin socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is in the way of the admin socket: it is no socket; move it, or set another path with -socket", path)
	}
	conn, err := net.DialTimeout("unix", path, 2*time.Second)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("another agent answers on %s: stop it, or give this one a socket of its own with -socket", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot tell whether another agent listens on %s: %w", path, err)
	}
	return nil
}

// lookupOwner gives -1 for what is to stay as it is.
func lookupOwner(userName, groupName string) (uid, gid int, err error) {
	uid, gid = -1, -1
	if userName != "" {
		u, err := user.Lookup(userName)
		if err != nil {
			if u, err = user.LookupId(userName); err != nil {
				return 0, 0, fmt.Errorf("agent { user = %q }: no such user on this host", userName)
			}
		}
		if uid, err = strconv.Atoi(u.Uid); err != nil {
			return 0, 0, fmt.Errorf("user %s has the id %q, which is no number", userName, u.Uid)
		}
	}
	if groupName != "" {
		g, err := user.LookupGroup(groupName)
		if err != nil {
			if g, err = user.LookupGroupId(groupName); err != nil {
				return 0, 0, fmt.Errorf("agent { group = %q }: no such group on this host", groupName)
			}
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return 0, 0, fmt.Errorf("group %s has the id %q, which is no number", groupName, g.Gid)
		}
	}
	return uid, gid, nil
}

// RemoveDeadSocket removes a socket that nobody answers on.
func RemoveDeadSocket(path string) error {
	if err := refuseLive(path); err != nil {
		return err
	}
	return os.Remove(path)
}
