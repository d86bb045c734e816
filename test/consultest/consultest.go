// Package consultest runs a real Consul for tests: one server agent with a data
// folder and ports of its own, which can be killed and started again.
//
// Tests of the Consul source, and those across processes, call it:
//
//	server := consultest.Start(t, nil)
//	server.Client().Agent().ServiceRegister(...)
//	server.Kill()
//	server.Restart() // with the same data and ports
//
// The program is built by test/consul/build.sh, once a machine. Nothing is left
// behind: the process ends with the test, also when the test is killed.
package consultest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// patience is how long a server may take to have a leader, and to end.
const patience = 60 * time.Second

// Server is a Consul server agent. Its methods are for one goroutine, and fail
// the test when they can't do what they say.
type Server struct {
	// Address of its HTTP API, host and port.
	Address string
	// Ports by name, as in Consul's configuration.
	Ports map[string]int
	// Token that Client sends; empty without ACLs.
	Token string

	t       testing.TB
	dir     string
	process *exec.Cmd
	ended   chan struct{}
	client  *api.Client
}

var program = sync.OnceValues(func() (string, error) {
	_, here, _, _ := runtime.Caller(0)
	build := exec.Command(filepath.Join(filepath.Dir(here), "..", "consul", "build.sh"))
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("building Consul with %s: %w", build.Path, err)
	}
	return strings.TrimSpace(string(out)), nil
})

// Program gives the path of the Consul program, built if it wasn't.
func Program(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Start starts a server and waits until it answers and has a leader. Settings
// are Consul's own configuration, put over what the tests need.
func Start(t testing.TB, settings map[string]any) *Server {
	t.Helper()
	return StartWithToken(t, "", settings)
}

// StartWithToken is Start for a server with ACLs, whose Client sends a token.
func StartWithToken(t testing.TB, token string, settings map[string]any) *Server {
	t.Helper()
	s := &Server{Token: token, t: t, dir: t.TempDir()}
	t.Cleanup(s.Kill)
	// A port that was free may be taken before the server has it.
	var err error
	for range 3 {
		s.choosePorts(settings)
		s.writeConfig(settings)
		s.start()
		if err = s.ready(); err == nil {
			return s
		}
		s.Kill()
	}
	t.Fatalf("starting Consul: %v\n%s", err, s.logTail())
	return nil
}

// choosePorts finds free ones on loopback.
func (s *Server) choosePorts(settings map[string]any) {
	s.Ports = map[string]int{"grpc": -1, "dns": -1, "serf_wan": -1, "https": -1}
	wanted := []string{"http", "server", "serf_lan"}
	if _, tls := settings["tls"]; tls {
		wanted = append(wanted, "https")
	}
	for _, name := range wanted {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			s.t.Fatalf("finding a free port: %v", err)
		}
		defer listener.Close()
		s.Ports[name] = listener.Addr().(*net.TCPAddr).Port
	}
	s.Address = fmt.Sprintf("127.0.0.1:%d", s.Ports["http"])
}

func (s *Server) writeConfig(settings map[string]any) {
	config := map[string]any{
		"server": true, "bootstrap_expect": 1,
		"node_name": "node-1", "datacenter": "dc1",
		"bind_addr": "127.0.0.1", "client_addr": "127.0.0.1",
		"data_dir":             filepath.Join(s.dir, "data"),
		"log_level":            "info",
		"disable_update_check": true,
		"performance":          map[string]any{"raft_multiplier": 1},
		"ports":                s.Ports,
	}
	maps.Copy(config, settings)
	data, err := json.MarshalIndent(config, "", "\t")
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, "consul.json"), data, 0o600)
	}
	if err != nil {
		s.t.Fatalf("writing Consul's configuration: %v", err)
	}
}

// start starts the process. It is bound to the life of the thread that starts
// it, so that no server outlives a test that is killed; that thread is kept
// for it.
func (s *Server) start() {
	s.t.Helper()
	path := Program(s.t)
	s.process = exec.Command(path, "agent", "-config-file", filepath.Join(s.dir, "consul.json"))
	s.process.Dir = s.dir
	s.process.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + s.dir}
	log, err := os.OpenFile(filepath.Join(s.dir, "consul.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		s.t.Fatalf("opening Consul's log: %v", err)
	}
	defer log.Close()
	s.process.Stdout, s.process.Stderr = log, log
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	s.ended = make(chan struct{})
	started := make(chan error)
	process, ended := s.process, s.ended
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := process.Start()
		started <- err
		if err == nil {
			_ = process.Wait() // how it ended is in its log
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		s.t.Fatalf("starting %s: %v", path, err)
	}
}

// ready waits until the server answers and has a leader.
func (s *Server) ready() error {
	deadline := time.Now().Add(patience)
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var last error
	for time.Now().Before(deadline) {
		select {
		case <-s.ended:
			return errors.New("it ended")
		case <-time.After(50 * time.Millisecond):
		}
		var leader string
		if last = get(&client, "http://"+s.Address+"/v1/status/leader", &leader); last != nil || leader == "" {
			continue
		}
		// With a leader the catalog still waits for it to take over, which it
		// has done when the server has registered itself.
		var services map[string][]string
		last = get(&client, "http://"+s.Address+"/v1/catalog/services", &services)
		if _, itself := services["consul"]; last == nil && (itself || s.Token != "") {
			return nil
		}
	}
	return fmt.Errorf("no leader within %v: %w", patience, last)
}

func get(client *http.Client, url string, out any) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(out)
}

// Client gives a client of the server's API.
func (s *Server) Client() *api.Client {
	if s.client == nil {
		config := api.DefaultNonPooledConfig()
		config.Address, config.Token = s.Address, s.Token
		client, err := api.NewClient(config)
		if err != nil {
			s.t.Fatalf("making a client of Consul: %v", err)
		}
		s.client = client
	}
	return s.client
}

// Kill ends the server at once, as a crash would. Its data stays until the test
// ends.
func (s *Server) Kill() {
	s.t.Helper()
	if s.process == nil || s.process.Process == nil {
		return
	}
	_ = syscall.Kill(-s.process.Process.Pid, syscall.SIGKILL)
	select {
	case <-s.ended:
		s.process = nil
	case <-time.After(patience):
		s.t.Errorf("Consul (process %d) did not end", s.process.Process.Pid)
	}
}

// Restart starts a server that has been killed again, with its data and ports,
// and waits until it has a leader.
func (s *Server) Restart() {
	s.t.Helper()
	s.start()
	if err := s.ready(); err != nil {
		s.t.Fatalf("starting Consul again: %v\n%s", err, s.logTail())
	}
}

// Wipe removes the data of a server that has been killed: started again, it has
// forgotten everything.
func (s *Server) Wipe() {
	s.t.Helper()
	if err := os.RemoveAll(filepath.Join(s.dir, "data")); err != nil {
		s.t.Fatalf("removing Consul's data: %v", err)
	}
}

// Pause stops the server's process, so that it takes connections and never
// answers; Resume lets it go on.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(signal syscall.Signal) {
	s.t.Helper()
	if err := syscall.Kill(s.process.Process.Pid, signal); err != nil {
		s.t.Fatalf("sending %v to Consul: %v", signal, err)
	}
}

// logTail gives the end of the server's log.
func (s *Server) logTail() string {
	out, _ := os.ReadFile(filepath.Join(s.dir, "consul.log"))
	lines := bytes.Split(out, []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-40):], []byte("\n")))
}
