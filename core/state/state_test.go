package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type content struct {
	Names []string `json:"names"`
	Count int      `json:"count"`
}

func TestReadBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	for _, want := range []content{{Names: []string{"a\n", "b"}, Count: 2}, {}} {
		if err := Write(path, "test", 1, want); err != nil {
			t.Fatal(err)
		}
		var got content
		err := Read(path, "test", 1, &got)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("read back (-want +got):\n%s", diff)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v, want 0600", info.Mode(), err)
	}
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestMissing(t *testing.T) {
	if err := Read(filepath.Join(t.TempDir(), "x"), "test", 1, new(content)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v, want fs.ErrNotExist", err)
	}
}

// TestDamaged: whatever is wrong with a file is found, said, and moved out of
// the way.
func TestDamaged(t *testing.T) {
	whole, err := Encode("test", 1, content{Names: []string{"web"}, Count: 7})
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string][]byte{
		"empty":                 nil,
		"no header":             []byte("{}\n{}\n"),
		"no line":               []byte("garbage"),
		"another kind":          mustEncode(t, "other", 1, content{}),
		"partly another type":   mustEncode(t, "test", 1, map[string]any{"names": []string{"a"}, "count": "x"}),
		"another type":          mustEncode(t, "test", 1, []int{1}),
		"something appended":    append(append([]byte{}, whole...), '\n'),
		"a megabyte of garbage": []byte(strings.Repeat("\x00\xff", 1<<19)),
	}
	for i := range len(whole) {
		cases["cut at "+digits(i)] = whole[:i]
		flipped := append([]byte{}, whole...)
		flipped[i] ^= 1
		cases["bit flipped at "+digits(i)] = flipped
	}
	for name, data := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.json")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			got := content{Count: 42}
			err := Read(path, "test", 1, &got)
			var damaged *DamagedError
			var version *VersionError
			if errors.As(err, &version) {
				// A flipped bit in the version number is another version.
				return
			}
			if !errors.As(err, &damaged) {
				t.Fatalf("error is %v, want a DamagedError; read %v", err, got)
			}
			if got.Count != 42 || got.Names != nil {
				t.Errorf("the value was changed to %v", got)
			}
			moved, err := os.ReadFile(damaged.MovedTo)
			if err != nil || string(moved) != string(data) {
				t.Errorf("the damaged file is not at %s: %v", damaged.MovedTo, err)
			}
			if err := Read(path, "test", 1, new(content)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("second read: %v, want fs.ErrNotExist", err)
			}
		})
	}
}

func digits(i int) string {
	return string(rune('0'+i/100)) + string(rune('0'+i/10%10)) + string(rune('0'+i%10))
}

func mustEncode(t *testing.T, kind string, version int, v any) []byte {
	data, err := Encode(kind, version, v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestNewerVersionStaysInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	if err := Write(path, "test", 2, content{}); err != nil {
		t.Fatal(err)
	}
	err := Read(path, "test", 1, new(content))
	var version *VersionError
	if !errors.As(err, &version) || version.Path != path || version.Have != 2 {
		t.Errorf("error is %v", err)
	}
	if err := Read(path, "test", 2, new(content)); err != nil {
		t.Errorf("it was moved: %v", err)
	}
}

// TestFailedWrite: the file of before stays, and nothing is left beside it.
func TestFailedWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.json")
	if err := Write(path, "test", 1, content{Count: 1}); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, "test", 1, func() {}); err == nil {
		t.Error("a function was saved")
	}
	// The limit on a file's size stands for a full disk.
	limit := func(n uint64) {
		var was syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	limit(100)
	err := Write(path, "test", 1, content{Names: []string{strings.Repeat("x", 1000)}})
	limit(was.Cur)
	if !errors.Is(err, syscall.EFBIG) {
		t.Errorf("error is %v, want %v", err, syscall.EFBIG)
	}
	var got content
	err = Read(path, "test", 1, &got)
	if err != nil || got.Count != 1 {
		t.Errorf("read %v, %v", got, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func FuzzDecode(f *testing.F) {
	good, _ := Encode("test", 1, content{Names: []string{"a"}, Count: 1})
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add([]byte("\n\n"))
	f.Add([]byte(`{"patchbay":"test","version":1}` + "\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got content
		err := Decode(data, "test", 1, &got)
		if err != nil {
			if got.Names != nil || got.Count != 0 {
				t.Errorf("failed, and gave %v", got)
			}
			return
		}
		again, err := Encode("test", 1, got)
		if err != nil {
			t.Fatal(err)
		}
		var twice content
		err = Decode(again, "test", 1, &twice)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, twice); diff != "" {
			t.Error(diff)
		}
	})
}
