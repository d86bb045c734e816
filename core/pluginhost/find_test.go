package pluginhost

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// needRoot skips a case that needs root, and fails it in CI.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("root is missing, which gives a file to another user")
	}
	t.Skip("root is missing, which gives a file to another user")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writePlugin writes a file that could be a plugin.
func writePlugin(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
	must(t, os.Chmod(path, mode))
}

func TestFindOrder(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"web_v1.2.0", "web_v1.10.0", "web_v2.0.0-rc.1", "web_v2.0.0", "web_v1.9.9+build.5",
		"web-two_v3.0.0", "web_two_v4.0.0", "api_v1.0.0",
	} {
		writePlugin(t, filepath.Join(dir, filePrefix+name), 0o755)
	}
	writePlugin(t, filepath.Join(dir, "patchbay"), 0o755)
	writePlugin(t, filepath.Join(dir, filePrefix+"web_v"), 0o755)
	writePlugin(t, filepath.Join(dir, filePrefix+"web_vnext"), 0o755)
	writePlugin(t, filepath.Join(dir, filePrefix+"README"), 0o644)

	names := func(name string) (found, refused []string) {
		binaries, refusals, err := Find(dir, name)
		must(t, err)
		for _, b := range binaries {
			found = append(found, b.Name+" "+b.Version.Original())
		}
		for _, r := range refusals {
			refused = append(refused, strings.TrimPrefix(filepath.Base(r.Path), filePrefix))
		}
		return found, refused
	}
	found, refused := names("web")
	want := []string{"web 2.0.0", "web 2.0.0-rc.1", "web 1.10.0", "web 1.9.9+build.5", "web 1.2.0"}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("web (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"web_v", "web_vnext"}, refused); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	found, refused = names("")
	want = append(append([]string{"api 1.0.0"}, want...), "web-two 3.0.0", "web_two 4.0.0")
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"README", "web_v", "web_vnext"}, refused); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if _, _, err := Find(filepath.Join(dir, "nowhere"), "web"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that isn't there: %v", err)
	}
}

// TestTrust has a plugin in a folder "p", with something wrong about it.
func TestTrust(t *testing.T) {
	const file = filePrefix + "web_v1.0.0"
	tests := []struct {
		name    string
		root    bool // needs root
		prepare func(t *testing.T, dir, path string)
		want    string // part of the reason; empty for none
	}{
		{name: "sound", prepare: func(*testing.T, string, string) {}},
		{name: "mode 0700", prepare: func(t *testing.T, _, path string) { must(t, os.Chmod(path, 0o700)) }},
		{name: "not executable", want: "is not executable: chmod 0755", prepare: func(t *testing.T, _, path string) { must(t, os.Chmod(path, 0o644)) }},
		{name: "writable by others", want: "others may write the file", prepare: func(t *testing.T, _, path string) { must(t, os.Chmod(path, 0o757)) }},
		{name: "writable by group", want: "chmod go-w", prepare: func(t *testing.T, _, path string) { must(t, os.Chmod(path, 0o775)) }},
		{name: "folder writable by group", want: "others may write the folder", prepare: func(t *testing.T, dir, _ string) { must(t, os.Chmod(filepath.Join(dir, "p"), 0o775)) }},
		{name: "folder sticky and writable", want: "(mode 0777): put the plugin into a folder of its own with mode 0755", prepare: func(t *testing.T, dir, _ string) {
			must(t, os.Chmod(filepath.Join(dir, "p"), 0o777|os.ModeSticky))
		}},
		{name: "folder above writable", want: "others may write the folder", prepare: func(t *testing.T, dir, _ string) { must(t, os.Chmod(dir, 0o777)) }},
		{name: "folder above writable and sticky", prepare: func(t *testing.T, dir, _ string) {
			must(t, os.Chmod(dir, 0o777|os.ModeSticky)) // as /tmp
		}},
		{name: "a folder", want: "is not a regular file", prepare: func(t *testing.T, _, path string) {
			must(t, os.Remove(path))
			must(t, os.Mkdir(path, 0o755))
		}},
		{name: "another's", root: true, want: "belongs to user id 1234", prepare: func(t *testing.T, _, path string) { must(t, os.Chown(path, 1234, 1234)) }},
		{name: "another's folder", root: true, want: "belongs to user id 1234", prepare: func(t *testing.T, dir, _ string) { must(t, os.Chown(filepath.Join(dir, "p"), 1234, 1234)) }},
		{name: "link to a sound file", prepare: func(t *testing.T, dir, path string) { link(t, path, filepath.Join(dir, "elsewhere"), 0o755) }},
		{name: "relative link", prepare: func(t *testing.T, dir, path string) {
			link(t, path, filepath.Join(dir, "elsewhere"), 0o755)
			must(t, os.Remove(path))
			must(t, os.Symlink("../p/../elsewhere/target", path))
		}},
		{name: "link into a folder writable by others", want: "others may write the folder", prepare: func(t *testing.T, dir, path string) {
			link(t, path, filepath.Join(dir, "elsewhere"), 0o777)
		}},
		{name: "link into a sticky folder", want: "(mode 0777): put the plugin into a folder of its own with mode 0755", prepare: func(t *testing.T, dir, path string) {
			link(t, path, filepath.Join(dir, "elsewhere"), 0o777|os.ModeSticky)
		}},
		{name: "link through a folder writable by others", want: "others may write the folder", prepare: func(t *testing.T, dir, path string) {
			link(t, path, filepath.Join(dir, "elsewhere"), 0o755)
			loose := filepath.Join(dir, "loose")
			must(t, os.Mkdir(loose, 0o755))
			must(t, os.Chmod(loose, 0o777))
			must(t, os.Rename(path, filepath.Join(loose, "hop")))
			must(t, os.Symlink(filepath.Join(loose, "hop"), path))
		}},
		{name: "another's link in a sticky folder", root: true, want: "belongs to user id 1234", prepare: func(t *testing.T, dir, path string) {
			link(t, path, filepath.Join(dir, "elsewhere"), 0o755)
			loose := filepath.Join(dir, "loose")
			must(t, os.Mkdir(loose, 0o755))
			must(t, os.Chmod(loose, 0o777|os.ModeSticky))
			must(t, os.Rename(path, filepath.Join(loose, "hop")))
			must(t, os.Lchown(filepath.Join(loose, "hop"), 1234, 1234))
			must(t, os.Symlink(filepath.Join(loose, "hop"), path))
		}},
		{name: "link to nothing", want: "no such file", prepare: func(t *testing.T, _, path string) {
			must(t, os.Remove(path))
			must(t, os.Symlink("nothing", path))
		}},
		{name: "link to itself", want: "too many symbolic links", prepare: func(t *testing.T, _, path string) {
			must(t, os.Remove(path))
			must(t, os.Symlink(path, path))
		}},
		{name: "link to the root", want: "is a folder", prepare: func(t *testing.T, _, path string) {
			must(t, os.Remove(path))
			must(t, os.Symlink("/", path))
		}},
		{name: "device", want: "is not a regular file", prepare: func(t *testing.T, _, path string) {
			must(t, os.Remove(path))
			must(t, os.Symlink("/dev/null", path))
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.root {
				needRoot(t)
			}
			dir := t.TempDir()
			must(t, os.Mkdir(filepath.Join(dir, "p"), 0o755))
			must(t, os.Chmod(filepath.Join(dir, "p"), 0o755))
			path := filepath.Join(dir, "p", file)
			writePlugin(t, path, 0o755)
			test.prepare(t, dir, path)
			binaries, refusals, err := Find(filepath.Join(dir, "p"), "web")
			must(t, err)
			switch {
			case test.want == "":
				if len(binaries) != 1 || len(refusals) != 0 {
					t.Errorf("refused: %v", refusals)
				}
			case len(binaries) != 0 || len(refusals) != 1 || !strings.Contains(refusals[0].Reason, test.want):
				t.Errorf("found %v, refused %v, want it refused because it %s", binaries, refusals, test.want)
			}
		})
	}
}

// link puts a sound file into a folder of that mode, and a link to it at path.
func link(t *testing.T, path, folder string, mode os.FileMode) {
	t.Helper()
	must(t, os.Remove(path))
	must(t, os.Mkdir(folder, 0o755))
	must(t, os.Chmod(folder, mode))
	writePlugin(t, filepath.Join(folder, "target"), 0o755)
	must(t, os.Symlink(filepath.Join(folder, "target"), path))
}

func TestChangedAfterFind(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, filePrefix+"web_v1.0.0")
	writePlugin(t, path, 0o755)
	binaries, _, err := Find(dir, "web")
	must(t, err)
	must(t, os.Chmod(path, 0o666|0o111))
	if image, err := open(binaries[0], ""); err == nil || !strings.Contains(err.Error(), "may write the file") {
		t.Errorf("opened %v, %v", image, err)
	}
	must(t, os.Remove(path))
	must(t, os.Symlink("/bin/sh", path))
	if image, err := open(binaries[0], ""); err == nil {
		t.Errorf("a link was followed: %v", image)
	}
}
