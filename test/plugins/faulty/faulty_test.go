package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// The test binary is the plugin when it bears a plugin's name.
func TestMain(m *testing.M) {
	if strings.HasPrefix(filepath.Base(os.Args[0]), "patchbay-dataplane-") {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const patience = 30 * time.Second

func contextOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// install copies the test binary under a plugin's name.
func install(t *testing.T, base string) string {
	t.Helper()
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	path := filepath.Join(t.TempDir(), base)
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// start runs a plugin file by go-plugin's own means.
func start(t *testing.T, path string) (*dataplane.Client, *plugin.Client, error) {
	t.Helper()
	cmd := exec.Command(path)
	cmd.Env = []string{plugin.EnvUnixSocketDir + "=" + shortDir(t)}
	host := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: dataplane.Handshake, VersionedPlugins: dataplane.VersionedPlugins(), Cmd: cmd,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC}, Logger: hclog.NewNullLogger(), StartTimeout: patience,
	})
	t.Cleanup(host.Kill)
	protocol, err := host.Client()
	if err != nil {
		return nil, host, err
	}
	raw, err := protocol.Dispense(dataplane.PluginName)
	if err != nil {
		t.Fatal(err)
	}
	return raw.(*dataplane.Client), host, nil
}

func waitExited(t *testing.T, host *plugin.Client) {
	t.Helper()
	for end := time.Now().Add(patience); !host.Exited(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the plugin doesn't exit")
		}
	}
}

func TestNameOfTheFile(t *testing.T) {
	client, _, err := start(t, install(t, "patchbay-dataplane-other_v2.3.4"))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := client.Describe(contextOf(t)); err != nil || d.Name != "other" || d.Version != "2.3.4" {
		t.Errorf("got %+v, %v", d, err)
	}
}

func TestAtStart(t *testing.T) {
	for build, want := range map[string]string{
		"crash-at-start": "failed to read any lines",
		"garbage":        "handshake",
		"protocol-2":     "incompatible API version",
		"no-such-fault":  "failed to read any lines",
	} {
		t.Run(build, func(t *testing.T) {
			_, _, err := start(t, install(t, "patchbay-dataplane-faulty_v1.0.0+"+build))
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(want)) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("crash-after", func(t *testing.T) {
		_, host, err := start(t, install(t, "patchbay-dataplane-faulty_v1.0.0+crash-after.1s"))
		if err != nil {
			t.Fatal(err)
		}
		waitExited(t, host)
	})
}

func TestInDescribe(t *testing.T) {
	path := install(t, "patchbay-dataplane-faulty_v1.0.0")
	client, _, err := start(t, path)
	if err != nil {
		t.Fatal(err)
	}
	set := func(words string) { setFaults(t, path, words) }
	set("wrong_name wrong_version")
	if d, err := client.Describe(contextOf(t)); err != nil || d.Name != "impostor" || d.Version != "9.9.9" {
		t.Errorf("got %+v, %v", d, err)
	}
	set("bad_schema")
	if _, err := client.Describe(contextOf(t)); status.Code(err) != codes.Internal {
		t.Errorf("got %v", err)
	}
	set("hang_describe")
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := client.Describe(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func setFaults(t *testing.T, path, words string) {
	t.Helper()
	file := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".faults")
	if err := os.WriteFile(file, []byte(words), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestByConfiguration(t *testing.T) {
	path := install(t, "patchbay-dataplane-faulty_v1.0.0")
	client, _, err := start(t, path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	configure := func(json string) error {
		_, err := client.Configure(contextOf(t), dataplane.HostConfig{ConfigJSON: []byte(json), StateDir: dir})
		return err
	}
	if got, err := client.ValidateConfig(contextOf(t), []byte(`{"faults":["nonsense"]}`)); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	full := dataplane.Change{Revision: 1, Full: true, Upserts: []*dataplane.Service{{ID: "a"}, {ID: "b"}}}
	for _, c := range []struct{ faults, want string }{
		{`"fail_service=a,b"`, ""},
		{`"fail_apply"`, "applying fails"},
		{`"panic_in_apply"`, "panicked"},
		{`"slow_apply=1ms"`, ""},
	} {
		if err := configure(`{"faults":[` + c.faults + `]}`); err != nil {
			t.Fatal(err)
		}
		got, err := client.Apply(contextOf(t), full)
		switch {
		case (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: %v", c.faults, err)
		case strings.Contains(c.faults, "fail_service") && len(got.Failed) != 2:
			t.Errorf("%s: %+v", c.faults, got)
		}
	}
	if err := configure(`{"faults":["refuse_base","adopted=4"]}`); err != nil {
		t.Fatal(err)
	}
	difference := dataplane.Change{Revision: 2, Base: 1}
	for i, want := range []error{nil, dataplane.ErrBaseUnknown} {
		if _, err := client.Apply(contextOf(t), []dataplane.Change{full, difference}[i]); !errors.Is(err, want) {
			t.Errorf("refuse_base: %v, want %v", err, want)
		}
	}
	if err := configure(`{"faults":["fail_configure"]}`); err == nil {
		t.Error("fail_configure: configured")
	}
	journal, err := os.ReadFile(filepath.Join(dir, "journal"))
	if err != nil || bytes.Count(journal, []byte("apply ")) != 6 {
		t.Errorf("%v, the journal:\n%s", err, journal)
	}
}

func TestDies(t *testing.T) {
	path, dir := install(t, "patchbay-dataplane-faulty_v1.0.0"), t.TempDir()
	setFaults(t, path, "die_once_in_apply")
	for _, dies := range []bool{true, false} {
		client, host, err := start(t, path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Configure(contextOf(t), dataplane.HostConfig{StateDir: dir}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Apply(contextOf(t), dataplane.Change{Full: true}); (err != nil) != dies {
			t.Errorf("got %v", err)
		}
		if dies {
			waitExited(t, host)
		}
	}
}

// TestSpam: no end of output, into a file; and SIGTERM ends it all the same.
func TestSpam(t *testing.T) {
	path := install(t, "patchbay-dataplane-faulty_v1.0.0+spam-stdout")
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(path)
	cmd.Stdout = out
	cmd.Env = []string{dataplane.Handshake.MagicCookieKey + "=" + dataplane.Handshake.MagicCookieValue,
		plugin.EnvUnixSocketDir + "=" + shortDir(t)}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	waitSize := func(size int64) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			if info, err := out.Stat(); err == nil && info.Size() >= size {
				return
			} else if time.Now().After(end) {
				t.Fatalf("less than %d bytes are printed", size)
			}
		}
	}
	waitSize(1) // the handshake, at one write
	if _, err := dial(t, out.Name(), cmd.Process.Pid).Describe(contextOf(t)); err != nil {
		t.Error(err)
	}
	waitSize(1_000_000)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// dial finds the handshake in what was printed.
func dial(t *testing.T, output string, pid int) *dataplane.Client {
	t.Helper()
	data, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := bytes.Cut(data, []byte("|unix|"))
	if !ok {
		t.Fatal("no handshake")
	}
	socket, _, _ := bytes.Cut(rest, []byte("|"))
	credentials := dataplane.PeerCredentials(func() int { return pid })
	conn, err := grpc.NewClient("unix:"+string(socket), grpc.WithTransportCredentials(credentials))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return dataplane.NewClient(conn)
}
