package consul

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// TestToken holds that the token is sent, read again when its file changes, and
// shown nowhere, also when Consul quotes it.
func TestToken(t *testing.T) {
	f := newFakeConsul()
	f.put("web", item("web", "a", "10.0.0.1", 80))
	f.token = "first-secret"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(" first-secret\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	statePath := filepath.Join(t.TempDir(), "consul.json")
	r := run(t, Settings{Address: f.serve(t).URL, TokenFile: file}, Options{StatePath: statePath, Timing: quick})
	r.await(t, "the source is read", all(fresh, has("web", "10.0.0.1:80")))

	f.mu.Lock()
	f.token = "second-secret"
	f.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if token := r.Header.Get("X-Consul-Token"); token != "second-secret" {
			http.Error(w, "no rights for "+token, http.StatusForbidden)
			return true
		}
		return false
	}
	f.wake()
	f.mu.Unlock()
	r.await(t, "the token has no rights any more", stale("no rights for (token)"))
	for _, bad := range []string{"two words", "\x00", "bad\x7f"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte("second-secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.await(t, "the file is read again", fresh)
	f.setFault(nil)
	f.put("web", item("web", "a", "10.0.0.1", 81))
	r.await(t, "a change flows", has("web", "10.0.0.1:81"))
	r.stop()
	saved, err := os.ReadFile(statePath)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"first-secret", "second-secret"} {
		if strings.Contains(r.log.String()+string(saved), secret) {
			t.Errorf("the token is in the log or the saved state:\n%s\n%s", r.log, saved)
		}
	}
}

// TestEmptyTokenFile holds that a token file which is empty for a time is no
// wish to ask without a token: what anybody may see, here an empty list, would
// be believed.
func TestEmptyTokenFile(t *testing.T) {
	f := newFakeConsul()
	f.put("web", item("web", "a", "10.0.0.1", 80))
	f.put("db", item("db", "d", "10.0.0.3", 5432))
	anonymous := 0
	f.fault = func(w http.ResponseWriter, r *http.Request) bool {
		switch token := r.Header.Get("X-Consul-Token"); {
		case token != "":
			return false
		case strings.HasPrefix(r.URL.Path, "/v1/health/"):
			f.mu.Lock()
			anonymous++
			f.mu.Unlock()
			return respond(200, http.Header{"X-Consul-Index": {"5000"}}, `[]`)(w, r)
		default:
			return respond(200, http.Header{"X-Consul-Index": {"5000"}}, `{"web":["patchbay"]}`)(w, r)
		}
	}
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("secret")
	settings := Settings{Address: f.serve(t).URL, TokenFile: file}
	r := run(t, settings, Options{})
	r.await(t, "the source is read", all(fresh, has("web", "10.0.0.1:80"), has("db", "10.0.0.3:5432")))
	end := r.watch(t, "web", "db")
	shown := func(_ map[string]*source.Service, status source.Status) bool {
		return status.StaleSince.IsZero() && strings.Contains(status.Err, "is empty")
	}
	for _, empty := range []string{"", " \n"} {
		write(empty)
		r.await(t, "it is shown, and Consul is still read", shown)
		f.put("web", item("web", "a", "10.0.0.1", 81))
		r.await(t, "a change flows with the last token", has("web", "10.0.0.1:81"))
		write("secret")
		r.await(t, "the file has a token again", fresh)
		f.put("web", item("web", "a", "10.0.0.1", 80))
		r.await(t, "a change flows", has("web", "10.0.0.1:80"))
	}
	// With other settings there is no last token: nothing is asked.
	write("")
	settings.DefaultPort = 8080
	if err := r.Set(settings); err != nil {
		t.Fatal(err)
	}
	r.await(t, "it can't be asked", stale("is empty"))
	write("secret")
	r.await(t, "the file has a token again", fresh)
	end()
	f.mu.Lock()
	defer f.mu.Unlock()
	if anonymous > 0 {
		t.Errorf("%d questions were asked without a token", anonymous)
	}
	if !strings.Contains(r.log.String(), "is empty") {
		t.Errorf("nothing is in the log:\n%s", r.log)
	}
}

// TestEnvironment holds that Consul's own variables count where the settings
// say nothing, and that the settings win.
func TestEnvironment(t *testing.T) {
	f := newFakeConsul()
	f.put("web", item("web", "a", "10.0.0.1", 80))
	f.token = "secret"
	url := f.serve(t).URL
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		env      map[string]string
		settings Settings
		shown    string
	}{
		{"all from there", map[string]string{"CONSUL_HTTP_ADDR": url, "CONSUL_HTTP_TOKEN": "secret"}, Settings{}, ""},
		{"without scheme", map[string]string{"CONSUL_HTTP_ADDR": strings.TrimPrefix(url, "http://"), "CONSUL_HTTP_TOKEN": "secret"}, Settings{}, ""},
		{"a token file", map[string]string{"CONSUL_HTTP_ADDR": url, "CONSUL_HTTP_TOKEN_FILE": file}, Settings{}, ""},
		{"the settings win", map[string]string{"CONSUL_HTTP_ADDR": "127.0.0.1:1", "CONSUL_HTTP_TOKEN": "wrong"}, Settings{Address: url, Token: "secret"}, ""},
		{"a file of the settings wins", map[string]string{"CONSUL_HTTP_TOKEN": "wrong"}, Settings{Address: url, TokenFile: file}, ""},
		{"HTTPS of a server that has none", map[string]string{"CONSUL_HTTP_ADDR": url, "CONSUL_HTTP_SSL": "true"}, Settings{}, "https://"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range []string{"CONSUL_HTTP_ADDR", "CONSUL_HTTP_TOKEN", "CONSUL_HTTP_TOKEN_FILE", "CONSUL_HTTP_SSL"} {
				t.Setenv(name, c.env[name])
			}
			r := run(t, c.settings, Options{})
			if c.shown != "" {
				r.await(t, "it can't be read", stale(c.shown))
				return
			}
			r.await(t, "the source is read", all(fresh, has("web", "10.0.0.1:80")))
		})
	}
}

// TestUnixSocket holds that an agent is asked through a unix socket.
func TestUnixSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "pb-*")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "consul.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	f := newFakeConsul()
	f.put("web", item("web", "a", "10.0.0.1", 80, inNode("Node", "here")))
	server := &http.Server{Handler: f}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	defer func() {
		_ = server.Close()
		<-done
	}()
	r := run(t, Settings{Address: "unix://" + path}, Options{})
	r.await(t, "the source is read", all(fresh, has("web", "10.0.0.1:80")))
	r.await(t, "what is on its node is local", func(services map[string]*source.Service, _ source.Status) bool {
		return services["web"].Instances[0].Local
	})
	r.stop()
}
