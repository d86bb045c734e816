package admin

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestSocketModeAndEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "patchbay.sock")
	listener, err := ListenSocket(path, "", "")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := fs.ModeSocket | 0o660; info.Mode() != want {
		t.Errorf("mode %v, want %v", info.Mode(), want)
	}
	if _, err := os.Lstat(path + newSocketSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the name under which it was made is still there: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestSocketOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		skipOrFail(t, "giving a socket to another group needs root")
	}
	path := filepath.Join(t.TempDir(), "patchbay.sock")
	listener, err := ListenSocket(path, "nobody", "12345")
	if err == nil {
		listener.Close()
		t.Fatal("a group that isn't there was taken")
	}
	if !strings.Contains(err.Error(), `group = "12345"`) {
		t.Errorf("the error doesn't name the argument: %v", err)
	}
	listener, err = ListenSocket(path, "nobody", "daemon")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t); owner.Uid == 0 || owner.Gid == 0 {
		t.Errorf("owner %d:%d, want nobody:daemon", owner.Uid, owner.Gid)
	}
}

func TestSocketOfADeadAgentIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "patchbay.sock")
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	listener, err := ListenSocket(path, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestSocketOfALiveAgentIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "patchbay.sock")
	live, err := ListenSocket(path, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if second, err := ListenSocket(path, "", ""); err == nil {
		second.Close()
		t.Fatal("a second agent took the socket of one that lives")
	} else if !strings.Contains(err.Error(), "another agent answers on "+path) {
		t.Errorf("got %v", err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the first no longer answers: %v", err)
	}
	conn.Close()
}

// TestSocketOfTheNextAgentStays: an agent that ends late must not remove the
// socket of the one that came after it.
func TestSocketOfTheNextAgentStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "patchbay.sock")
	first, err := ListenSocket(path, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := ListenSocket(path, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	first.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the second agent's socket is gone: %v", err)
	}
}

func TestSocketRefusals(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, path, user, want string }{
		{"a file in the way", file, "", "it is no socket"},
		{"a path too long", filepath.Join(dir, strings.Repeat("x", 120)), "", "set a shorter one with -socket"},
		{"a file as folder", filepath.Join(file, "sock"), "", "folder"},
		{"an unknown user", filepath.Join(dir, "sock"), "nobody-of-that-name", `user = "nobody-of-that-name"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			listener, err := ListenSocket(c.path, c.user, "")
			if err == nil {
				listener.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q does not say %q", err, c.want)
			}
		})
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "precious" {
		t.Errorf("the file in the way was changed: %q, %v", data, err)
	}
}

// skipOrFail skips a test that can't run here, and fails it in CI, where
// everything must run.
func skipOrFail(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// TestNoSocket: who has no home and names no socket is told so.
func TestNoSocket(t *testing.T) {
	client := NewClient("")
	defer client.Close()
	_, err := client.Services(t.Context(), Watch{})
	var told *Error
	if !errors.As(err, &told) || !strings.Contains(told.Message, "no socket of an agent is known") || !strings.Contains(told.Hint, "-socket or PATCHBAY_SOCKET") {
		t.Errorf("%v", err)
	}
}
