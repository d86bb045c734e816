package consultest_test

import (
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/patchbay-proxy/patchbay/test/consultest"
)

// TestRestart holds what the tests that use a server build on: a killed server
// comes back with its data, a wiped one without.
func TestRestart(t *testing.T) {
	server := consultest.Start(t, nil)
	register := &api.AgentServiceRegistration{ID: "web-1", Name: "web", Port: 80, Address: "127.0.0.1"}
	if err := server.Client().Agent().ServiceRegister(register); err != nil {
		t.Fatal(err)
	}
	known := func() bool {
		t.Helper()
		services, _, err := server.Client().Catalog().Services(nil)
		if err != nil {
			t.Fatal(err)
		}
		_, web := services["web"]
		return web
	}
	if !known() {
		t.Fatal("the service that was registered is not in the catalog")
	}
	server.Kill()
	server.Restart()
	if !known() {
		t.Error("the service is not in the catalog after a restart")
	}
	server.Kill()
	server.Wipe()
	server.Restart()
	if known() {
		t.Error("the service is in the catalog of a server without data")
	}
}
