package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/state"
)

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "by it")
	first, err := LockDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var held *HeldError
	if second, err := LockDataDir(dir); !errors.As(err, &held) {
		if err == nil {
			second.Release()
		}
		t.Fatalf("a second lock on one folder: %v", err)
	}
	if want := fmt.Sprintf("process %d since ", os.Getpid()); !strings.HasPrefix(held.Holder, want) {
		t.Errorf("the holder is %q, want it to begin with %q", held.Holder, want)
	}
	first.Release()
	again, err := LockDataDir(dir)
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	again.Release()
}

// TestLockOfARemovedFile: who waits to open the lock while a cleanup removes it
// must not end with the lock of a file that is gone.
func TestLockOfARemovedFile(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	holders := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				lock, err := LockDataDir(dir)
				if err != nil {
					continue
				}
				mu.Lock()
				if holders++; holders > 1 {
					t.Error("two hold the lock at once")
				}
				mu.Unlock()
				mu.Lock()
				holders--
				mu.Unlock()
				// As a cleanup does, with the lock held.
				_ = os.Remove(filepath.Join(dir, lockName))
				lock.Release()
			}
		})
	}
	wg.Wait()
}

func TestNextSession(t *testing.T) {
	dir := t.TempDir()
	first, warning, err := nextSession(dir)
	if err != nil || warning != nil {
		t.Fatal(err, warning)
	}
	if now := uint64(time.Now().UnixMilli()); first > now || first < now-60_000 {
		t.Errorf("the first session is %d, want the time in milliseconds, about %d", first, now)
	}
	second, _, err := nextSession(dir)
	if err != nil || second <= first {
		t.Errorf("session %d after %d, %v", second, first, err)
	}
	// A clock that went back does not lead below what was.
	future := uint64(time.Now().Add(24 * time.Hour).UnixMilli())
	path := filepath.Join(dir, sessionName)
	if err := state.Write(path, sessionKind, sessionVersion, savedSession{future}); err != nil {
		t.Fatal(err)
	}
	if n, _, err := nextSession(dir); err != nil || n != future+1 {
		t.Errorf("session %d after %d, %v", n, future, err)
	}
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	n, warning, err := nextSession(dir)
	if err != nil || warning == nil || n < second {
		t.Errorf("with a damaged file: session %d, warning %v, error %v", n, warning, err)
	}
	if err := state.Write(path, sessionKind, sessionVersion+1, savedSession{1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := nextSession(dir); err == nil {
		t.Error("a file of a newer version was taken")
	}
}

func TestNextSessionOnAFolderThatIsNoFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := nextSession(path); err == nil {
		t.Error("a session was saved in a file that is no folder")
	}
}
