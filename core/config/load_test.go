package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

var update = flag.Bool("update", false, "write the golden files anew")

func testNetworks() ([]Network, error) {
	return []Network{
		{Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.7/24")},
		{Interface: "eth0", Prefix: netip.MustParsePrefix("2001:db8:1::7/64")},
		{Interface: "docker0", Prefix: netip.MustParsePrefix("172.17.0.1/16")},
	}, nil
}

// testOptions are those of a host with the networks above and four variables.
func testOptions() Options {
	env := map[string]string{
		"RETRIES": "7", "PORT": "8080", "BACKEND": "10.0.3.8:8080", "CAPTURE": "hunter2-of-the-environment",
	}
	return Options{
		Places:    Places{Config: "/nonexistent", DataDir: "/data", PluginDir: "/plugins", Socket: "/run/patchbay.sock"},
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		Networks:  testNetworks,
	}
}

// testConfig has an argument of every kind.
type testConfig struct {
	Capture        string            `name:"capture" default:"auto" enum:"auto,bind,redirect"`
	ConnectTimeout time.Duration     `name:"connect_timeout" default:"2s" min:"1ms"`
	Retries        int               `name:"retries" default:"1" min:"0" max:"10"`
	Buffer         schema.Size       `name:"buffer" default:"64KiB"`
	IdleTimeout    time.Duration     `name:"idle_timeout" default:"0s"`
	MaxConnections int64             `name:"max_connections" default:"100"`
	Ratio          float64           `name:"ratio" default:"0.5"`
	OldLimit       *int              `name:"old_limit" deprecated:"use max_connections"`
	Ports          []uint16          `name:"ports"`
	Labels         map[string]string `name:"labels"`
	Token          string            `name:"token" sensitive:"true"`
	Mode           string            `name:"mode" default:"fast" enum:"fast,slow"`
	TLS            *testTLS          `name:"tls"`
	Auth           *testAuth         `name:"auth"`
	Backend        []testBackend     `name:"backend"`
}

type testTLS struct {
	Certificate string `name:"certificate" required:"true"`
	Key         string `name:"key" sensitive:"true"`
	Minimum     string `name:"minimum" default:"1.2" enum:"1.2,1.3"`
}

type testAuth struct {
	User     string `name:"user"`
	Password string `name:"password" sensitive:"true"`
}

type testBackend struct {
	Name   string `name:"name" required:"true"`
	Weight int    `name:"weight" default:"1" min:"0" max:"100"`
}

type testStrict struct {
	Address string  `name:"address" required:"true"`
	TLS     testTLS `name:"tls" required:"true"`
}

type testServiceOptions struct {
	Retries int           `name:"retries" default:"1"`
	Timeout time.Duration `name:"timeout" default:"2s"`
	Secret  string        `name:"secret" sensitive:"true"`
}

func testSchemas(t testing.TB) map[string]PluginSchema {
	t.Helper()
	of := func(v any) *schema.Schema {
		s, err := schema.Of(v)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	return map[string]PluginSchema{
		"userspace": {
			Config: of(testConfig{}), Options: of(testServiceOptions{}),
			Balance: []string{dataplane.BalanceRoundRobin, dataplane.BalanceLeastConnections},
		},
		"strict": {Config: of(testStrict{})},
		"other":  {},
	}
}

// validate does what `patchbay validate` does.
func validate(t testing.TB, path string) (*Config, *Diagnostics) {
	t.Helper()
	cfg, diags := Load([]string{path}, testOptions())
	bound, more := Bind(cfg, testSchemas(t), Unasked{})
	diags.Append(more)
	return bound, diags
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run with -update to write it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", path, diff)
	}
}

// configsIn lists the cases of a folder: files and folders of files.
func configsIn(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); e.IsDir() || ext == ".hcl" || ext == ".json" {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	if len(paths) == 0 {
		t.Fatalf("no cases in %s", dir)
	}
	return paths
}

func TestBad(t *testing.T) {
	for _, path := range configsIn(t, "testdata/bad") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			_, diags := validate(t, path)
			var text, data bytes.Buffer
			if err := diags.WriteText(&text, false); err != nil {
				t.Fatal(err)
			}
			if err := diags.WriteJSON(&data); err != nil {
				t.Fatal(err)
			}
			for _, out := range []string{text.String(), data.String(), diags.Error()} {
				if strings.Contains(out, "hunter2") || strings.Contains(out, "secret-mode") {
					t.Errorf("a secret is shown:\n%s", out)
				}
			}
			if diags.Len() == 0 {
				t.Error("no diagnostics")
			}
			golden(t, path+".golden", text.String())
		})
	}
}

func TestGood(t *testing.T) {
	for _, path := range configsIn(t, "testdata/good") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			cfg, diags := validate(t, path)
			if diags.Len() > 0 {
				t.Fatalf("diagnostics:\n%v", diags.All())
			}
			golden(t, path+".golden", describe(t, cfg))
		})
	}
}

// describe writes a Config without the places in files, for golden texts.
func describe(t *testing.T, cfg *Config) string {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	type plainDataplane struct {
		Dataplane
		Body, Range any `json:",omitempty"`
	}
	type plainService struct {
		*Service
		Options, Range any `json:",omitempty"`
		Endpoints      []string
	}
	out := struct {
		*Config
		Pools      []string
		Dataplanes []plainDataplane
		Services   []plainService
	}{Config: cfg}
	for _, p := range cfg.Pools {
		out.Pools = append(out.Pools, fmt.Sprintf("%s %v %s", p.Name, p.CIDR, p.Store))
	}
	for _, d := range cfg.Dataplanes {
		out.Dataplanes = append(out.Dataplanes, plainDataplane{Dataplane: d})
	}
	for _, s := range cfg.Services {
		p := plainService{Service: s}
		for _, e := range s.Endpoints {
			p.Endpoints = append(p.Endpoints, fmt.Sprintf("%s %d weight %d zone %q", e.Host, e.Port, e.Weight, e.Zone))
		}
		out.Services = append(out.Services, p)
	}
	data, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(data), wd, "DIR") + "\n"
}

// write makes a file in a fresh folder.
func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUnreadable(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo.hcl")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(t.TempDir(), "loop.hcl")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "folder.hcl")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	cases := []struct{ name, path, want string }{
		{"missing", filepath.Join(t.TempDir(), "missing.hcl"), "no such file"},
		{"fifo", fifo, "a named pipe"},
		{"device", "/dev/null", "a device"},
		{"loop", loop, "symbolic links"},
		{"folder without files", folder, "no *.hcl or *.json"},
	}
	if os.Geteuid() != 0 {
		closed := write(t, "closed.hcl", "")
		if err := os.Chmod(closed, 0); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, struct{ name, path, want string }{"no permission", closed, "permission denied"})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg, diags := Load([]string{c.path}, testOptions())
			if !diags.HasErrors() || !strings.Contains(diags.Error(), c.want) {
				t.Errorf("got %q, want an error with %q", diags.Error(), c.want)
			}
			if cfg == nil {
				t.Error("no Config")
			}
		})
	}
}

// TestOneUnreadableOfSeveral shows that the other files are checked too.
func TestOneUnreadableOfSeveral(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "10.hcl"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "20.hcl"), []byte("dataplane \"userspace\" {}\nwatch_flies = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, diags := Load([]string{dir}, testOptions())
	for _, want := range []string{"a named pipe", "watch_files"} {
		if !strings.Contains(diags.Error(), want) {
			t.Errorf("no %q in %q", want, diags.Error())
		}
	}
}

func TestGarbage(t *testing.T) {
	random := make([]byte, 8*garbage)
	state := uint32(1)
	for i := range random {
		state = state*1664525 + 1013904223
		random[i] = byte(state >> 24)
	}
	cases := map[string]string{
		"random":          string(random),
		"lines":           strings.Repeat("foo bar baz\n", 8*garbage/12),
		"arguments":       strings.Repeat("x = 1\n", garbage/6),
		"brackets":        strings.Repeat("[", 8*garbage),
		"braces":          strings.Repeat("{", garbage),
		"blocks":          strings.Repeat("a {\n", garbage/4),
		"parentheses":     "a = " + strings.Repeat("(", garbage),
		"quotes":          strings.Repeat("\"", garbage),
		"templates":       "a = " + strings.Repeat("\"${", garbage/3),
		"directives":      "a = \"" + strings.Repeat("%{ if true }", garbage/13) + "\"\n",
		"directive lines": "a = <<EOT\n" + strings.Repeat("%{ if true }\n", garbage/14) + "EOT\n",
		"negations":       "a = " + strings.Repeat("!", garbage),
		"minuses":         "a = " + strings.Repeat("-", garbage) + "1\n",
		"sum":             "a = 1" + strings.Repeat("+1", garbage/2) + "\n",
		"choices":         "a = " + strings.Repeat("true ? 1 : ", garbage/11) + "1\n",
		"indexes":         "a = b" + strings.Repeat("[0]", garbage/3) + "\n",
		"digits":          "a = " + strings.Repeat("9", garbage) + "\n",
		"newlines":        strings.Repeat("\n", garbage),
		"zeros":           strings.Repeat("\x00", garbage),
		"services":        strings.Repeat("service \"web\" {\n  prot = 1\n}\n", garbage/30),
		"heredoc":         "a = <<E\n" + strings.Repeat("abcde\n", garbage/6) + "E\n",
		"heredocs":        strings.Repeat("a=<<E\n", garbage/6),
		"controls":        strings.Repeat("\x01", garbage),
		"backslashes":     strings.Repeat("\\", garbage),
		"names":           strings.Repeat("service \"a b\" {}\n", garbage/18),
		"references":      "dataplane \"u\" {}\n" + numbered("service \"s%d\" {\n  vip = service(\"t%[1]d\")\n}\n", garbage/40),
		"chain":           "dataplane \"u\" {}\n" + numbered("service \"s%d\" {\n  vip = service(\"s%d\")\n}\n", garbage/40),
	}
	for name, text := range cases {
		for _, ext := range []string{".hcl", ".json"} {
			t.Run(name+ext, func(t *testing.T) {
				path := write(t, "garbage"+ext, text)
				_, diags := validate(t, path)
				var out bytes.Buffer
				if err := diags.WriteText(&out, false); err != nil {
					t.Fatal(err)
				}
				if !diags.HasErrors() && name != "newlines" {
					t.Error("no errors")
				}
				if len(diags.All()) > maxDiagnostics+2 || out.Len() > 200<<10 {
					t.Errorf("%d diagnostics shown in %d bytes", len(diags.All()), out.Len())
				}
				if ext == ".hcl" {
					if got, more := Format(path, []byte(text)); more.HasErrors() && string(got) != text {
						t.Error("Format changed what it can't parse")
					}
				}
			})
		}
	}
}

func numbered(format string, n int) string {
	var b strings.Builder
	for i := range n {
		if strings.Count(format, "%") > 2 || strings.Contains(format, "[1]") {
			fmt.Fprintf(&b, format, i)
		} else {
			fmt.Fprintf(&b, format, i, i+1)
		}
	}
	return b.String()
}

func TestOmittedAreCounted(t *testing.T) {
	_, diags := Load([]string{write(t, "many.hcl", "dataplane \"u\" {}\n"+strings.Repeat("service \"a b\" {}\n", 200))}, testOptions())
	if len(diags.All()) != maxDiagnostics || diags.Omitted() != 150 || diags.Len() != 200 {
		t.Errorf("shown %d, omitted %d, all %d", len(diags.All()), diags.Omitted(), diags.Len())
	}
	var text bytes.Buffer
	if err := diags.WriteText(&text, false); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "and 150 more errors") {
		t.Errorf("the rest is not counted:\n%s", text.String()[max(0, text.Len()-200):])
	}
}

func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "patchbay.hcl")
	const plain = "dataplane \"u\" {}\n"
	for _, c := range []struct {
		name, text            string
		opts                  Options
		data, plugins, socket string
	}{
		{"defaults", plain, Options{Places: Places{DataDir: "/d", PluginDir: "/p", Socket: "/s"}}, "/d", "/p", "/s"},
		{"the socket is in the data_dir", plain, Options{Places: Places{DataDir: "/d", PluginDir: "/p"}}, "/d", "/p", "/d/patchbay.sock"},
		{"the file's paths start at the file", "data_dir = \"d\"\nplugin_dir = \"../p\"\nagent {\n  socket = \"s\"\n}\n" + plain,
			Options{Places: Places{DataDir: "/d", PluginDir: "/p", Socket: "/s"}}, dir + "/d", filepath.Dir(dir) + "/p", dir + "/s"},
		{"flags win", "data_dir = \"d\"\nplugin_dir = \"p\"\nagent {\n  socket = \"s\"\n}\n" + plain,
			Options{DataDir: "/fd", PluginDir: "/fp", Socket: "/fs"}, "/fd", "/fp", "/fs"},
		{"the socket follows the flag", "data_dir = \"d\"\n" + plain,
			Options{DataDir: "/fd", Places: Places{PluginDir: "/p"}}, "/fd", "/p", "/fd/patchbay.sock"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, diags := Load([]string{path}, c.opts)
			if diags.Len() > 0 {
				t.Fatal(diags.All())
			}
			want := [3]string{c.data, c.plugins, c.socket}
			if got := [3]string{cfg.DataDir, cfg.PluginDir, cfg.Agent.Socket}; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestDefaultPlaces(t *testing.T) {
	if got := DefaultPlaces(0); got != (Places{"/etc/patchbay.d", "/var/lib/patchbay", "/usr/lib/patchbay/plugins", "/run/patchbay/patchbay.sock"}) {
		t.Errorf("root: %+v", got)
	}
	t.Setenv("XDG_STATE_HOME", "/home/me/state")
	t.Setenv("XDG_CONFIG_HOME", "/home/me/config")
	got := DefaultPlaces(1000)
	if got.DataDir != "/home/me/state/patchbay" || got.SocketPath() != "/home/me/state/patchbay/patchbay.sock" || got.Config != "/home/me/config/patchbay.d" {
		t.Errorf("user: %+v", got)
	}
	if filepath.Base(got.PluginDir) != "plugins" {
		t.Errorf("plugins: %q", got.PluginDir)
	}
}

func TestSocketPathTooLong(t *testing.T) {
	opts := testOptions()
	opts.Socket = "/" + strings.Repeat("s", 107)
	_, diags := Load([]string{write(t, "a.hcl", "dataplane \"u\" {}\n")}, opts)
	if !strings.Contains(diags.Error(), "107") {
		t.Errorf("got %q", diags.Error())
	}
}

func TestFileFunctionLimits(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("huge", strings.Repeat("x", maxIncludedFile+1))
	put("binary", "\xff\xfe")
	put("a.hcl", "dataplane \"u\" {\n  version = file(\"huge\")\n  user = file(\"binary\")\n  sha256 = file(\".\")\n}\n")
	_, diags := Load([]string{filepath.Join(dir, "a.hcl")}, testOptions())
	for _, want := range []string{"larger than 1 MiB", "not UTF-8", "a directory"} {
		if !strings.Contains(diags.Error(), want) {
			t.Errorf("no %q in %q", want, diags.Error())
		}
	}
}

// loadBody does what Load does with a file that is parsed in pieces of that
// size.
func loadBody(t testing.TB, path string, text []byte, size int) *loader {
	t.Helper()
	src := newSources(testOptions().LookupEnv)
	src.add(path, text)
	l := &loader{opts: testOptions(), report: newReport(src), cfg: &Config{sources: src}}
	parts, diags := parse(text, path, src, size)
	l.report.hcl(diags)
	l.incomplete = diags.HasErrors()
	if parts != nil {
		l.decode([]*fileParts{parts})
	} else {
		l.decode(nil)
	}
	l.check()
	return l
}

// TestPieces holds that a large file means the same whether it is parsed in
// pieces or whole, whatever stands at the left margin.
func TestPieces(t *testing.T) {
	filler := large(300, 10)
	tricky := []string{
		"",
		"# a comment with a brace\n/*\n}\n*/\n",
		"data_dir = <<EOT\n" + strings.Repeat("}\n", 4000) + strings.Repeat("x", pieceSize) + "\nEOT\n",
		"dataplane \"b\" {\nobject = {\n" + strings.Repeat("a = {\n}\n", 10) + "}\n}\n",
	}
	for i, extra := range tricky {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			text := []byte(filler + extra + strings.ReplaceAll(filler[strings.Index(filler, "service"):], "service-", "more-"))
			path := write(t, "a.hcl", string(text))
			got, diags := Load([]string{path}, testOptions())
			l := loadBody(t, path, text, len(text))
			if diff := cmp.Diff(l.cfg.Services, got.Services, cmpopts.IgnoreFields(Service{}, "balanceAt", "Options"), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("services differ (-whole +pieces):\n%.2000s", diff)
			}
			if diff := cmp.Diff(l.report.finish().All(), diags.All(), cmpopts.IgnoreUnexported(Diagnostic{})); diff != "" {
				t.Errorf("diagnostics differ (-whole +pieces):\n%s", diff)
			}
		})
	}
}

// TestNoHome: without a home folder a file can be checked, an agent needs a
// data_dir, and who names no file is told that there is no default place.
func TestNoHome(t *testing.T) {
	path := write(t, "a.hcl", "dataplane \"userspace\" {}\n")
	for _, c := range []struct {
		name      string
		paths     []string
		checkOnly bool
		want      string // of the errors, empty for none
	}{
		{"a check", []string{path}, true, ""},
		{"an agent", []string{path}, false, "-data-dir"},
		{"no file", nil, true, "the home folder is not known. Name a file or a directory with -config."},
	} {
		opts := testOptions()
		opts.Places, opts.CheckOnly = Places{PluginDir: "/plugins"}, c.checkOnly
		_, diags := Load(c.paths, opts)
		if got := diags.Error(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	opts := testOptions()
	opts.Places.Config = "/nonexistent"
	if _, diags := Load(nil, opts); !strings.Contains(diags.Error(), "with -config") {
		t.Errorf("the default place is not there: %v", diags)
	}
	if _, diags := Load([]string{"/nowhere"}, opts); strings.Contains(diags.Error(), "-config") {
		t.Errorf("a path was given: %v", diags)
	}
}
