package consul

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/patchbay-proxy/patchbay/core/source"
	"github.com/patchbay-proxy/patchbay/test/consultest"
)

// usual is the timing that users have, but for how long is waited before
// something is given up.
var usual = Timing{Settle: 2 * time.Second, Follow: 20 * time.Millisecond}

// external registers an instance on a node that is none of Consul's agents.
func external(node, address string, s *api.AgentService, checks ...*api.HealthCheck) *api.CatalogRegistration {
	s.Tags = []string{"patchbay"}
	return &api.CatalogRegistration{Node: node, Address: address, Service: s, Checks: checks}
}

// TestRealInstances goes through what instances may look like, as a real Consul
// gives them.
func TestRealInstances(t *testing.T) {
	t.Parallel()
	server := consultest.Start(t, nil)
	catalog := server.Client().Catalog()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []*api.CatalogRegistration{
		external("n1", "10.1.0.1", &api.AgentService{ID: "a", Service: "plain", Port: 80, Address: "10.2.0.1", Weights: api.AgentWeights{Passing: 7, Warning: 2}}),
		external("n2", "10.1.0.2", &api.AgentService{ID: "a", Service: "plain", Port: 80}),
		external("n3", "10.1.0.3", &api.AgentService{ID: "a", Service: "plain", Port: 80},
			&api.HealthCheck{Node: "n3", CheckID: "_node_maintenance", Status: "critical", Notes: "new kernel"}),
		external("n4", "10.1.0.4", &api.AgentService{ID: "a", Service: "plain", Port: 80},
			&api.HealthCheck{Node: "n4", CheckID: "c", Name: "c", Status: "warning", ServiceID: "a"}),
		external("n1", "10.1.0.1", &api.AgentService{ID: "zero", Service: "odd", Port: 0}),
		external("n1", "10.1.0.1", &api.AgentService{ID: "v6", Service: "odd", Port: 80, Address: "2001:db8::7"}),
		external("n1", "10.1.0.1", &api.AgentService{ID: "host", Service: "odd", Port: 80, Address: "localhost"}),
		external("n5", "", &api.AgentService{ID: "own", Service: "odd", Port: 81, Address: "10.2.0.5"}),
		external("n1", "10.1.0.1", &api.AgentService{ID: "proxy", Service: "web-sidecar-proxy", Port: 20000, Kind: api.ServiceKindConnectProxy, Proxy: &api.AgentServiceConnectProxyConfig{DestinationServiceName: "web"}}),
	} {
		if r.Address == "" {
			// Consul wants a node's address unless the node is there already.
			must(catalog.Register(&api.CatalogRegistration{Node: r.Node, Address: "10.1.0.9"}, nil))
			r.SkipNodeUpdate = true
		}
		must(catalog.Register(r, nil))
	}
	r := run(t, Settings{Address: server.Address}, Options{Timing: usual})
	r.await(t, "plain", has("plain", "10.2.0.1:80 weight 7", "10.1.0.2:80", "10.1.0.3:80 maintenance", "10.1.0.4:80 warning"))
	r.await(t, "keys and reasons", func(services map[string]*source.Service, _ source.Status) bool {
		return slices.ContainsFunc(services["plain"].Instances, func(i source.Instance) bool {
			return i.ID == "dc1/n3/a" && i.Node == "n3" && i.Reason == "its node is in maintenance: new kernel"
		})
	})
	r.await(t, "odd", func(services map[string]*source.Service, _ source.Status) bool {
		odd := services["odd"]
		if odd == nil {
			return false
		}
		var at []string
		for _, i := range odd.Instances {
			at = append(at, short(i))
		}
		return slices.Contains(at, "10.2.0.5:81") && slices.Contains(at, "2001:db8::7:80") && slices.Contains(at, "127.0.0.1:80") &&
			slices.Contains(odd.Notes, "instances without a port are left out: dc1/n1/zero")
	})
	r.await(t, "connect proxies are no service", gone("web-sidecar-proxy"))
	r.await(t, "the source is read", fresh)
	must(catalog.Register(&api.CatalogRegistration{Node: "n2", Address: "10.1.0.2", Check: &api.AgentCheck{Node: "n2", CheckID: "new", Status: "critical"}}, nil))
	r.await(t, "a check of a node", has("plain", "10.2.0.1:80 weight 7", "10.1.0.2:80 critical", "10.1.0.3:80 maintenance", "10.1.0.4:80 warning"))
	if strings.Contains(strings.Join(sortedKeys(r.state()), " "), "consul") {
		t.Error("the service consul is selected")
	}
}

// TestRealRestart holds that services live on while Consul is away, hangs or
// comes back without its data, and follow again after that.
func TestRealRestart(t *testing.T) {
	t.Parallel()
	server := consultest.Start(t, nil)
	register := func(id string, port int) {
		t.Helper()
		s := &api.AgentServiceRegistration{ID: id, Name: "web", Tags: []string{"patchbay"}, Address: "10.0.0.1", Port: port}
		if err := server.Client().Agent().ServiceRegister(s); err != nil {
			t.Fatal(err)
		}
	}
	register("a", 80)
	register("b", 81)
	timing := usual
	timing.Wait, timing.Timeout = 2*time.Second, time.Second
	r := run(t, Settings{Address: server.Address}, Options{Timing: timing})
	r.await(t, "both", has("web", "10.0.0.1:80", "10.0.0.1:81"))
	r.await(t, "the source is read", fresh)
	end := r.watch(t, "web")

	server.Kill()
	r.await(t, "it is stale", stale("can't be asked"))
	server.Restart()
	r.await(t, "it is read again", fresh)
	register("b", 82)
	r.await(t, "a change flows", has("web", "10.0.0.1:80", "10.0.0.1:82"))

	server.Pause()
	r.await(t, "it hangs", stale("does not answer in time"))
	server.Resume()
	r.await(t, "it is read again", fresh)
	register("b", 83)
	r.await(t, "a change flows", has("web", "10.0.0.1:80", "10.0.0.1:83"))

	server.Kill()
	r.await(t, "it is stale", stale("can't be asked"))
	server.Wipe()
	server.Restart()
	r.await(t, "it has lost its data", stale("services are missing"))
	r.await(t, "all is kept", has("web", "10.0.0.1:80", "10.0.0.1:83"))
	register("a", 90)
	r.await(t, "what is back is followed, what is missing kept", has("web", "10.0.0.1:90", "10.0.0.1:83"))
	r.await(t, "what does not come back is given up", has("web", "10.0.0.1:90"))
	r.await(t, "all is well", fresh)
	end()
}

// TestRealUnchecked holds that a restart of Consul with its data takes no
// instance away: it has every check as critical until it runs.
func TestRealUnchecked(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	gate := make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slow.Load() {
			select {
			case <-gate:
			case <-r.Context().Done():
			}
		}
		fmt.Fprint(w, "fine")
	}))
	t.Cleanup(backend.Close)
	server := consultest.Start(t, nil)
	if err := server.Client().Agent().ServiceRegister(&api.AgentServiceRegistration{
		ID: "a", Name: "web", Tags: []string{"patchbay"}, Address: "10.0.0.1", Port: 80,
		Check: &api.AgentServiceCheck{HTTP: backend.URL, Interval: "1s", Timeout: "1m"},
	}); err != nil {
		t.Fatal(err)
	}
	r := run(t, Settings{Address: server.Address, Hold: time.Minute}, Options{Timing: usual})
	r.await(t, "its check has run", all(fresh, has("web", "10.0.0.1:80")))
	end := r.watch(t, "web")
	slow.Store(true)
	server.Kill()
	r.await(t, "it is stale", stale("can't be asked"))
	server.Restart()
	r.await(t, "it is read again", fresh)
	r.await(t, "the check has not run yet", func(services map[string]*source.Service, _ source.Status) bool {
		return strings.Contains(strings.Join(services["web"].Notes, " "), "1 of 1 instances keep their health")
	})
	close(gate)
	r.await(t, "the check has run", func(services map[string]*source.Service, _ source.Status) bool {
		return len(services["web"].Notes) == 0
	})
	end()
}

// TestRealMany holds that 500 services are followed over plain HTTP: those that
// have a blocking query, and those that are read in turn from the agent's cache.
func TestRealMany(t *testing.T) {
	t.Parallel()
	const many = 500
	server := consultest.Start(t, nil)
	catalog := server.Client().Catalog()
	name := func(n int) string { return fmt.Sprintf("s%03d", n) }
	put := func(n, port int) {
		t.Helper()
		if _, err := catalog.Register(external("outside", "10.1.0.1", &api.AgentService{ID: name(n), Service: name(n), Port: port}), nil); err != nil {
			t.Fatal(err)
		}
	}
	for n := range many {
		put(n, 1000+n)
	}
	r := run(t, Settings{Address: server.Address}, Options{Timing: usual})
	began := time.Now()
	r.await(t, "all are read", func(services map[string]*source.Service, status source.Status) bool {
		return len(services) == many && fresh(services, status)
	})
	t.Logf("%d services were read in %v", many, time.Since(began))
	r.Source.mu.Lock()
	blocking, inTurn := r.round.blocking, make([]int, 0, many)
	for _, v := range r.round.turn {
		inTurn = append(inTurn, atoi(t, v.name[1:]))
	}
	r.Source.mu.Unlock()
	if blocking != 99 || len(inTurn) != many-99 {
		t.Errorf("%d services have a blocking query and %d are read in turn, want 99 and %d", blocking, len(inTurn), many-99)
	}
	slowest := time.Duration(0)
	for i, n := range []int{inTurn[0], inTurn[100], inTurn[200], inTurn[300], inTurn[400]} {
		put(n, 2000+i)
		written := time.Now()
		r.await(t, "a change of one read in turn", has(name(n), fmt.Sprintf("10.1.0.1:%d", 2000+i)))
		slowest = max(slowest, time.Since(written))
	}
	t.Logf("of 5 changes of services that are read in turn, the slowest was followed after %v", slowest)
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRealACL holds how tokens that see less are taken, and that a token file
// is read again.
func TestRealACL(t *testing.T) {
	t.Parallel()
	const management = "11111111-1111-1111-1111-111111111111"
	server := consultest.StartWithToken(t, management, map[string]any{
		"acl": map[string]any{"enabled": true, "default_policy": "deny", "tokens": map[string]any{"initial_management": management, "agent": management, "default": ""}},
	})
	client := server.Client()
	for _, name := range []string{"web", "db"} {
		s := &api.AgentServiceRegistration{ID: name, Name: name, Tags: []string{"patchbay"}, Address: "10.0.0.1", Port: 80}
		if err := client.Agent().ServiceRegisterOpts(s, api.ServiceRegisterOpts{Token: management}); err != nil {
			t.Fatal(err)
		}
	}
	token := func(rules string) string {
		t.Helper()
		name := fmt.Sprint("p", time.Now().UnixNano())
		if _, _, err := client.ACL().PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, nil); err != nil {
			t.Fatal(err)
		}
		made, _, err := client.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLTokenPolicyLink{{Name: name}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return made.SecretID
	}
	all := token(`service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`)
	some := token(`service "web" { policy = "read" } node_prefix "" { policy = "read" }`)
	none := token(`key "x" { policy = "read" }`)
	file := filepath.Join(t.TempDir(), "token")
	give := func(token string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}

	give(some)
	r := run(t, Settings{Address: server.Address, TokenFile: file}, Options{Timing: usual})
	r.await(t, "one that was always filtered is normal", func(services map[string]*source.Service, status source.Status) bool {
		return has("web", "10.0.0.1:80")(services, status) && services["db"] == nil && fresh(services, status)
	})
	give(all)
	r.await(t, "the file is read again", func(services map[string]*source.Service, status source.Status) bool {
		return services["web"] != nil && has("db", "10.0.0.1:80")(services, status) && fresh(services, status)
	})
	end := r.watch(t, "web", "db")
	give(some)
	r.await(t, "it turns filtered", stale("filtered by ACLs"))
	give(none)
	r.await(t, "it sees nothing any more", stale("ACLs"))
	give("22222222-2222-2222-2222-222222222222")
	r.await(t, "a token that is none", stale("(403)"))
	give(all)
	r.await(t, "it has its rights again", fresh)
	end()
	give(some)
	r.await(t, "it turns filtered", stale("filtered by ACLs"))
	if !r.AcceptEmpty() {
		t.Error("AcceptEmpty: nothing is held, want something")
	}
	r.await(t, "the operator accepts", func(services map[string]*source.Service, status source.Status) bool {
		return services["web"] != nil && services["db"] == nil && fresh(services, status)
	})
	r.stop()
	for _, secret := range []string{all, some, none} {
		if strings.Contains(r.log.String(), secret) {
			t.Errorf("a token is in the log:\n%s", r.log)
		}
	}
}

// TestRealTLS holds that Consul's HTTPS is used over HTTP/2, with a client's
// certificate, and that all services then have a blocking query.
func TestRealTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := newAuthority(t, dir)
	ca.issue(t, "server", "server.dc1.consul")
	ca.issue(t, "client", "patchbay")
	server := consultest.Start(t, map[string]any{"tls": map[string]any{"defaults": map[string]any{
		"ca_file": ca.path("ca.pem"), "cert_file": ca.path("server.pem"), "key_file": ca.path("server.key"), "verify_incoming": true,
	}, "internal_rpc": map[string]any{"verify_incoming": false}}})
	for n := range 5 {
		s := &api.AgentServiceRegistration{Name: fmt.Sprint("s", n), Tags: []string{"patchbay"}, Address: "10.0.0.1", Port: 80 + n}
		if err := server.Client().Agent().ServiceRegister(s); err != nil {
			t.Fatal(err)
		}
	}
	settings := Settings{
		Address: fmt.Sprintf("https://127.0.0.1:%d", server.Ports["https"]), MaxBlocking: 2,
		TLS: TLS{CAFile: ca.path("ca.pem"), CertFile: ca.path("client.pem"), KeyFile: ca.path("client.key"), ServerName: "server.dc1.consul"},
	}
	r := run(t, settings, Options{Timing: usual})
	r.await(t, "all services", func(services map[string]*source.Service, status source.Status) bool {
		return len(services) == 5 && fresh(services, status)
	})
	r.Source.mu.Lock()
	if blocking := r.round.blocking; blocking != 5 {
		t.Errorf("%d services have a blocking query, want all 5 over HTTP/2", blocking)
	}
	r.Source.mu.Unlock()

	// Another authority's certificate is not taken; what was known stays.
	other := newAuthority(t, t.TempDir())
	settings.TLS.CAFile = other.path("ca.pem")
	if err := r.Set(settings); err != nil {
		t.Fatal(err)
	}
	r.await(t, "a certificate of somebody else", stale("certificate"))
	// The file is put right, and read again.
	data, err := os.ReadFile(ca.path("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other.path("ca.pem"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	r.await(t, "the file is read again", func(services map[string]*source.Service, status source.Status) bool {
		return len(services) == 5 && fresh(services, status)
	})
}

// authority issues certificates into a folder.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	a := &authority{dir: dir}
	a.issue(t, "ca", "an authority")
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) issue(t *testing.T, file, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if a.cert == nil {
		cert.IsCA, cert.BasicConstraintsValid, cert.KeyUsage = true, true, x509.KeyUsageCertSign
		a.cert, a.key = cert, key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(a.path(file+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tls.LoadX509KeyPair(a.path(file+".pem"), a.path(file+".key")); err != nil {
		t.Fatal(err)
	}
}
