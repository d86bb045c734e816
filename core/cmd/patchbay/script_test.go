package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"patchbay": main})
}

// TestScripts runs the command line as a user does: the scripts in
// testdata/script hold what it prints and its exit codes.
func TestScripts(t *testing.T) {
	plugins := t.TempDir()
	if err := os.Chmod(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(plugins, "patchbay-dataplane-null_v1.0.0"), ".")
	build.Dir = "../../../examples/null"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the plugin: %v\n%s", err, out)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			// The path of a socket is short, that of a test's folder need not be.
			short, err := os.MkdirTemp("", "pb-*")
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(short) })
			env.Setenv("PLUGINS", plugins)
			env.Setenv("PATCHBAY_SOCKET", filepath.Join(short, "sock"))
			env.Setenv("HOME", env.WorkDir)
			// The rules of the house for plugin folders hold for tests too.
			return os.Chmod(env.WorkDir, 0o755)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits,
			"await": await,
		},
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
	})
}

// exits runs a command and wants an exit code: exits 2 patchbay nonsense.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	if err != nil {
		ts.Fatalf("%v", err)
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// await runs a command until it succeeds and prints what a regular expression
// matches: await 'web +.* ok' patchbay services.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: await REGEXP COMMAND...")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	if err != nil {
		ts.Fatalf("%v", err)
	}
	var last string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		command := exec.Command(args[1], args[2:]...)
		command.Dir = ts.Getenv("WORK")
		command.Env = []string{"PATH=" + ts.Getenv("PATH"), "PATCHBAY_SOCKET=" + ts.Getenv("PATCHBAY_SOCKET")}
		path, err := lookPath(ts.Getenv("PATH"), args[1])
		if err != nil {
			ts.Fatalf("%v", err)
		}
		command.Path = path
		out, err := command.Output()
		if last = string(out); err == nil && pattern.MatchString(last) {
			return
		}
		last += fmt.Sprint(err)
	}
	ts.Fatalf("waited 30 s for %q in:\n%s", args[0], last)
}

func lookPath(path, name string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		full := filepath.Join(dir, name)
		if info, err := os.Stat(full); err == nil && info.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	return "", fmt.Errorf("%s is not in %s", name, path)
}

func TestNormalise(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"services -format=json -watch", "services --format=json --watch"},
		{"services --format=json", "services --format=json"},
		{"fmt -", "fmt -"},
		{"services -h", "services -h"},
		{"services -help", "services --help"},
		{"explain -- -format", "explain -- -format"},
		{"agent -config /a -config=/b", "agent --config /a --config=/b"},
		{"", ""},
	} {
		if got := strings.Join(normalise(strings.Fields(c.in)), " "); got != c.want {
			t.Errorf("%q becomes %q, want %q", c.in, got, c.want)
		}
	}
}

// TestPrintable: what others wrote can't move the terminal's cursor.
func TestPrintable(t *testing.T) {
	if got := printable("a\x1b[2Jb\tc\nd\x00"); got != "a?[2Jb c d?" {
		t.Errorf("got %q", got)
	}
	if got := printableText("a\n\tb\x1b"); got != "a\n    b?" {
		t.Errorf("got %q", got)
	}
}
