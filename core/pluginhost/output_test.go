package pluginhost

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
)

// logged is a logger whose lines a test can read.
type logged struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(p)
}

func (l *logged) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: l, DisableTime: true})
}

func (l *logged) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSuffix(l.buffer.String(), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func TestLines(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"hclog", `{"@level":"warn","@message":"low","@timestamp":"2026-01-01T00:00:00Z","@module":"fw","service":"a","n":3}`, "[WARN]  low: module=fw n=3 service=a"},
		{"hclog without a level", `{"@message":"hm"}`, "[INFO]  hm"},
		{"other JSON", `{"a":1}`, `[INFO]  {"a":1}`},
		{"broken JSON", `{"@message":"x"`, `[INFO]  {"@message":"x"`},
		{"message that is no text", `{"@message":1}`, `[INFO]  {"@message":1}`},
		{"text", "hello", "[INFO]  hello"},
		{"text with a level", "[ERROR] disk full", "[ERROR] disk full"},
		{"panic", "panic: boom", "[ERROR] panic: boom"},
		{"control characters", "a\x1b[31mred\x07\x00", "[INFO]  a [31mred  "},
		{"forged line in JSON", `{"@message":"x\n[ERROR] forged","k\n":"v\n2"}`, `[INFO]  x [ERROR] forged: "k "="v 2"`},
		{"not UTF-8", "a\xff\xfeb", "[INFO]  a  b"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out logged
			newLineLog(out.logger(), func(int) {}).stderr([]byte(test.in))
			got := out.lines()
			if len(got) != 1 || strings.ReplaceAll(got[0], `k =`, `"k "=`) != test.want {
				t.Errorf("logged %q, want %q", got, test.want)
			}
		})
	}
}

func TestPanicIsExplained(t *testing.T) {
	var out logged
	l := newLineLog(out.logger(), func(int) {})
	for i := range 20 {
		l.stderr(fmt.Appendf(nil, "line %d", i))
	}
	l.stderr([]byte("panic: boom"))
	for i := range 20 {
		l.stderr(fmt.Appendf(nil, "goroutine %d", i))
	}
	if got := l.lastWords(); !strings.HasPrefix(got, "panic: boom / goroutine 0 / ") {
		t.Errorf("last words %q", got)
	}
}

func TestHandshakeIsNotLogged(t *testing.T) {
	var out logged
	l := newLineLog(out.logger(), func(int) {})
	l.stdout([]byte("1|1|unix|/tmp/x|grpc|"))
	l.stdout([]byte("a|b"))
	if diff := cmp.Diff([]string{"[INFO]  a|b"}, out.lines()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTooManyLines(t *testing.T) {
	var out logged
	dropped := 0
	l := newLineLog(out.logger(), func(n int) { dropped += n })
	for range 10_000 {
		l.stderr([]byte("again"))
	}
	got := len(out.lines())
	if got < linesAtOnce || got+dropped != 10_000 {
		t.Errorf("%d lines logged, %d dropped, of 10000", got, dropped)
	}
	l.reportDropped(time.Now(), true)
	lines := out.lines()
	if last := lines[len(lines)-1]; !strings.Contains(last, fmt.Sprintf("lines=%d", dropped)) {
		t.Errorf("reported %q", last)
	}
}

// takeAll collects lines.
func takeAll(lines *[]string) func([]byte) {
	return func(line []byte) { *lines = append(*lines, string(line)) }
}

func TestOutputFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	must(t, os.WriteFile(path, []byte("from the process before\n"), 0o600))
	f, err := openOutput(path)
	must(t, err)
	defer func() { must(t, f.append.Close()); must(t, f.follow.Close()) }()
	write := func(text string) {
		t.Helper()
		_, err := f.append.WriteString(text)
		must(t, err)
	}
	read := func() (lines []string) {
		t.Helper()
		_, err := f.read(takeAll(&lines))
		must(t, err)
		return lines
	}
	if got := read(); got != nil {
		t.Errorf("read %q from a new file", got)
	}
	write("one\ntwo\n\nthr")
	if diff := cmp.Diff([]string{"one", "two"}, read()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	write("ee\n" + strings.Repeat("x", 3*longestLine) + "\nfour\n")
	if diff := cmp.Diff([]string{"three", strings.Repeat("x", longestLine), "four"}, read()); diff != "" {
		t.Errorf("a long line (-want +got):\n%s", diff)
	}

	// Once long and read, the file is emptied; the writer goes on at its end.
	write(strings.Repeat(strings.Repeat("y", 99)+"\n", longestFile/100+1))
	if got := len(read()); got != longestFile/100+1 {
		t.Errorf("read %d lines", got)
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Size() != 0 {
		t.Errorf("%d bytes are left", info.Size())
	}
	write("five\n")
	if diff := cmp.Diff([]string{"five"}, read()); diff != "" {
		t.Errorf("after the emptying (-want +got):\n%s", diff)
	}

	// Somebody else empties it.
	must(t, os.Truncate(path, 0))
	read()
	write("six\n")
	if diff := cmp.Diff([]string{"six"}, read()); diff != "" {
		t.Errorf("after an emptying by others (-want +got):\n%s", diff)
	}

	// What is far too much is not read at all.
	must(t, os.Truncate(path, longestBacklog+100))
	if got := read(); got != nil {
		t.Errorf("read %d lines of a backlog", len(got))
	}
	before, err := os.ReadFile(path + ".1")
	must(t, err)
	if string(before) != "from the process before\n" {
		t.Errorf("kept %q", before)
	}
}

// TestCatchUp has an earlier core read a part of what a plugin said.
func TestCatchUp(t *testing.T) {
	dir := t.TempDir()
	var before logged
	o, err := newOutput(dir, "web", before.logger(), func(int) {})
	must(t, err)
	write := func(text string) {
		t.Helper()
		_, err := o.stderr.append.WriteString(text)
		must(t, err)
	}
	write("read\n")
	o.look()
	write("not read\nhalf a li")
	must(t, o.closeFiles()) // as the kernel does for a core that is killed

	for i, want := range [][]string{{"[INFO]  not read", "[INFO]  half a li"}, nil} {
		var after logged
		next, err := newOutput(dir, "web", after.logger(), func(int) {})
		must(t, err)
		if diff := cmp.Diff(want, after.lines()); diff != "" {
			t.Errorf("core %d (-want +got):\n%s", i, diff)
		}
		must(t, next.closeFiles())
	}
	for _, junk := range []string{"", "junk", "99999999999\n", "-5\n", "0 0\n"} {
		must(t, os.WriteFile(filepath.Join(dir, "web.offsets"), []byte(junk), 0o600))
		next, err := newOutput(dir, "web", before.logger(), func(int) {})
		must(t, err)
		must(t, next.closeFiles())
	}
}

// FuzzLine has lines that nobody expects: one line in, at most one line out.
func FuzzLine(f *testing.F) {
	for _, seed := range []string{`{"@level":"info","@message":"m","k":[1,{"a":null}]}`, "[WARN] x", "panic: x", `{"@message":"\u0000\n"}`, "\xff"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var out logged
		l := newLineLog(out.logger(), func(int) {})
		l.stderr(line)
		for _, got := range out.lines()[1:] {
			// A list or object of a field may be printed over several lines, but
			// none of them may look like a line of its own.
			if strings.HasPrefix(got, "[") {
				t.Errorf("line %q forged %q", line, got)
			}
		}
		if text := l.lastWords(); !json.Valid(fmt.Appendf(nil, "%q", text)) && strings.ContainsAny(text, "\n\x1b") {
			t.Errorf("last words %q", text)
		}
	})
}

// TestOutputIsFollowed has output that comes after long silence, with the
// kernel's word that it came and without.
func TestOutputIsFollowed(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf=%v", deaf), func(t *testing.T) {
			var out logged
			o, err := newOutput(t.TempDir(), "web", out.logger(), func(int) {})
			must(t, err)
			if o.changes == nil {
				t.Fatal("no inotify: too many of them are in use on this machine")
			}
			if deaf {
				must(t, o.changes.Close())
				o.changes = nil
			}
			go o.follow()
			for i := range 3 {
				time.Sleep(150 * time.Millisecond) // long for the eager looks at the start
				file := []*outputFile{o.stdout, o.stderr}[i%2]
				_, err := fmt.Fprintf(file.append, "line %d\n", i)
				must(t, err)
				waitUntil(t, "the line is in the log", func() error {
					if lines := out.lines(); len(lines) != i+1 {
						return fmt.Errorf("%q", lines)
					}
					return nil
				})
			}
			must(t, o.Close())
		})
	}
}
