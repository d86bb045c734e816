package dataplane_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// The test binary is the plugin, too, and a client under another user.
const (
	envRole = "PATCHBAY_TEST_ROLE"
	envFile = "PATCHBAY_TEST_FILE"
)

func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "plugin":
		dataplane.Serve(talker{newQuiet()})
		os.Exit(7) // Serve has returned
	case "stranger":
		os.Exit(stranger(os.Getenv(envFile)))
	}
	goleak.VerifyTestMain(m)
}

// talker is a plugin that prints much and writes down how it was closed.
type talker struct{ quiet }

func (talker) Apply(_ context.Context, u *dataplane.Update) error {
	if u.Revision() == 666 {
		line := strings.Repeat("x", 1000)
		for range 10_000 {
			fmt.Println(line)
			fmt.Fprintln(os.Stderr, line)
		}
	}
	dataplane.Logger().Info("applied", "revision", u.Revision())
	return nil
}

func (talker) Close(_ context.Context, mode dataplane.CloseMode) error {
	return os.WriteFile(os.Getenv(envFile), fmt.Appendf(nil, "closed %d", mode), 0o600)
}

// process is a plugin started as the core does: its output goes to files.
type process struct {
	cmd                 *exec.Cmd
	dir, stdout, stderr string
	socket, closed      string
	exited              chan error
}

func startProcess(t *testing.T, extraEnv ...string) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb") // a short path: it holds a socket
	if err != nil {
		t.Fatal(err)
	}
	p := &process{dir: dir, stdout: filepath.Join(dir, "stdout"), stderr: filepath.Join(dir, "stderr"),
		closed: filepath.Join(dir, "closed"), exited: make(chan error, 1)}
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Env = append([]string{envRole + "=plugin", envFile + "=" + p.closed, plugin.EnvUnixSocketDir + "=" + dir,
		"PLUGIN_PROTOCOL_VERSIONS=1", dataplane.Handshake.MagicCookieKey + "=" + dataplane.Handshake.MagicCookieValue}, extraEnv...)
	for name, to := range map[string]*io.Writer{p.stdout: &p.cmd.Stdout, p.stderr: &p.cmd.Stderr} {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		*to = f
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.exited <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.wait(t)
		_ = os.RemoveAll(dir)
	})
	p.socket = p.handshake(t)
	return p
}

// wait gives how the process ended.
func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.exited:
		p.exited <- err
		return err
	case <-time.After(patience):
		t.Fatal("the plugin doesn't exit")
		return nil
	}
}

// handshake waits for the one line on standard output.
func (p *process) handshake(t *testing.T) string {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		data, _ := os.ReadFile(p.stdout)
		if !bytes.HasSuffix(data, []byte("\n")) {
			continue
		}
		line := strings.TrimSuffix(string(data), "\n")
		fields := strings.Split(line, "|")
		if len(fields) != 6 || fields[0] != "1" || fields[1] != "1" || fields[2] != "unix" || fields[4] != "grpc" {
			t.Fatalf("the handshake is %q", line)
		}
		return fields[3]
	}
	log, _ := os.ReadFile(p.stderr)
	t.Fatalf("no handshake; standard error:\n%s", log)
	return ""
}

func (p *process) dial(t *testing.T, pid int) (*dataplane.Client, *grpc.ClientConn) {
	t.Helper()
	credentials := dataplane.PeerCredentials(func() int { return pid })
	conn, err := grpc.NewClient("unix:"+p.socket, append(dataplane.GRPCDialOptions(), grpc.WithTransportCredentials(credentials))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return dataplane.NewClient(conn), conn
}

func (p *process) wantClosed(t *testing.T, mode dataplane.CloseMode) {
	t.Helper()
	got, err := os.ReadFile(p.closed)
	if want := fmt.Sprintf("closed %d", mode); err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// wantReturned: Serve came back, and main went on.
func (p *process) wantReturned(t *testing.T) {
	t.Helper()
	var exit *exec.ExitError
	if err := p.wait(t); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		log, _ := os.ReadFile(p.stderr)
		t.Errorf("the process ended with %v; standard error:\n%s", err, log)
	}
}

func TestServe(t *testing.T) {
	p := startProcess(t)
	client, conn := p.dial(t, p.cmd.Process.Pid)
	if d, err := client.Describe(contextOf(t)); err != nil || d.Name != "quiet" {
		t.Fatalf("Describe: %+v, %v", d, err)
	}
	if _, err := client.Configure(contextOf(t), dataplane.HostConfig{}); err != nil {
		t.Fatal(err)
	}
	// 20 MB of output neither block the plugin nor reach the host's protocol.
	if _, err := client.Apply(contextOf(t), dataplane.Change{Revision: 666, Full: true}); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{p.stdout, p.stderr} {
		if info, err := os.Stat(file); err != nil || info.Size() < 10_000_000 {
			t.Errorf("%s: %v, %v", file, info.Size(), err)
		}
	}
	// A host that goes away changes nothing.
	_ = conn.Close()
	client, _ = p.dial(t, p.cmd.Process.Pid)
	if _, err := client.Apply(contextOf(t), dataplane.Change{Revision: 667, Base: 666}); err != nil {
		t.Fatal(err)
	}
	wantLogged(t, p.stderr, `"@message":"applied"`)
	if err := client.Shutdown(contextOf(t), dataplane.CloseCleanup); err != nil {
		t.Fatal(err)
	}
	p.wantReturned(t)
	p.wantClosed(t, dataplane.CloseCleanup)
	if _, err := os.Stat(p.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

func wantLogged(t *testing.T, file, want string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(data, []byte(want)) {
		t.Errorf("%s is not in %s, %v", want, file, err)
	}
}

func TestServeSignals(t *testing.T) {
	p := startProcess(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE} {
		if err := p.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	client, _ := p.dial(t, p.cmd.Process.Pid)
	if _, err := client.Describe(contextOf(t)); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.wantReturned(t)
	p.wantClosed(t, dataplane.CloseDetach)
}

// TestServeGoPlugin starts the plugin as a host with go-plugin's own runner
// does, and ends it in both ways: go-plugin's, and the contract's, which must
// not wait for go-plugin's own streams.
func TestServeGoPlugin(t *testing.T) {
	for name, end := range map[string]struct {
		by   func(*plugin.Client, *dataplane.Client) error
		want dataplane.CloseMode
	}{
		"kill": {func(h *plugin.Client, _ *dataplane.Client) error { h.Kill(); return nil }, dataplane.CloseDetach},
		"shutdown": {func(_ *plugin.Client, c *dataplane.Client) error {
			return c.Shutdown(contextOf(t), dataplane.CloseHandover)
		}, dataplane.CloseHandover},
	} {
		t.Run(name, func(t *testing.T) {
			closed := filepath.Join(t.TempDir(), "closed")
			host, client := startGoPlugin(t, closed)
			if d, err := client.Describe(contextOf(t)); err != nil || d.Version != "1.0.0" {
				t.Errorf("Describe: %+v, %v", d, err)
			}
			if err := end.by(host, client); err != nil {
				t.Error(err)
			}
			for limit := time.Now().Add(patience); !host.Exited(); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(limit) {
					t.Fatal("the plugin doesn't exit")
				}
			}
			if got, err := os.ReadFile(closed); err != nil || string(got) != fmt.Sprintf("closed %d", end.want) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func startGoPlugin(t *testing.T, closed string) (*plugin.Client, *dataplane.Client) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cmd.Env = []string{envRole + "=plugin", envFile + "=" + closed, plugin.EnvUnixSocketDir + "=" + dir}
	credentials := dataplane.PeerCredentials(func() int { return cmd.Process.Pid })
	host := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: dataplane.Handshake, VersionedPlugins: dataplane.VersionedPlugins(), Cmd: cmd,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC}, Logger: hclog.NewNullLogger(),
		GRPCDialOptions: append(dataplane.GRPCDialOptions(), grpc.WithTransportCredentials(credentials)),
	})
	t.Cleanup(host.Kill)
	protocol, err := host.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = protocol.Close() })
	if v := host.NegotiatedVersion(); v != dataplane.ProtocolVersion {
		t.Errorf("version %d", v)
	}
	if err := protocol.Ping(); err != nil {
		t.Error(err)
	}
	raw, err := protocol.Dispense(dataplane.PluginName)
	if err != nil {
		t.Fatal(err)
	}
	return host, raw.(*dataplane.Client)
}

func TestServeRefusesOtherProcess(t *testing.T) {
	p := startProcess(t)
	client, _ := p.dial(t, os.Getpid())
	_, err := client.Describe(contextOf(t))
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "not to the plugin") {
		t.Errorf("got %v", err)
	}
}

func TestServeRefusesOtherUser(t *testing.T) {
	needRoot(t)
	p := startProcess(t, dataplane.EnvHostUID+"=65533")
	for path, mode := range map[string]os.FileMode{p.dir: 0o711, p.socket: 0o777} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for uid, want := range map[int]string{65534: "refused", 65533: "answered"} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{envRole + "=stranger", envFile + "=" + p.socket}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		out, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("user %d: got %q, %v, want %q", uid, out, err, want)
		}
	}
	wantLogged(t, p.stderr, `"@message":"refused a connection"`)
	wantLogged(t, p.stderr, `"uid":65534`)
}

// stranger tells on standard output how a plugin treats this user: whether its
// server says a word of HTTP/2.
func stranger(socket string) int {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	if _, err := bufio.NewReader(conn).ReadByte(); err != nil {
		fmt.Println("refused")
	} else {
		fmt.Println("answered")
	}
	return 0
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("needs root, to connect as another user")
	}
	t.Skip("needs root, to connect as another user")
}

func TestServeWrongEnvironment(t *testing.T) {
	base := []string{envRole + "=plugin", dataplane.Handshake.MagicCookieKey + "=" + dataplane.Handshake.MagicCookieValue}
	for name, c := range map[string]struct {
		env, want string
	}{
		"user id": {dataplane.EnvHostUID + "=me", "not a user id"},
		"folder":  {plugin.EnvUnixSocketDir + "=/does/not/exist", "can't listen"},
	} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(base, c.env)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !bytes.Contains(out, []byte(c.want)) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestByHand(t *testing.T) {
	run := func(args ...string) (stdout, stderr string, code int) {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Env = []string{envRole + "=plugin"}
		var out, errOut bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errOut
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
	}
	out, errOut, code := run()
	if code != 1 || out != "" || !strings.Contains(errOut, "patchbay-dataplane-quiet_v1.0.0") {
		t.Errorf("exit %d\n%s%s", code, out, errOut)
	}
	for _, flag := range []string{"-describe", "--describe"} {
		out, errOut, code = run(flag)
		var d struct {
			Name     string
			Protocol int
		}
		if err := json.Unmarshal([]byte(out), &d); err != nil || code != 0 || errOut != "" || d.Name != "quiet" || d.Protocol != 1 || strings.Contains(out, "null") {
			t.Errorf("exit %d, %v\n%s%s", code, err, out, errOut)
		}
	}
}
