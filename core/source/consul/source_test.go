package consul

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// TestFollow holds the ordinary life: services come, change and go.
func TestFollow(t *testing.T) {
	f := newFakeConsul()
	f.put("web", item("web", "a", "10.0.0.1", 80), item("web", "b", "10.0.0.2", 80))
	f.change(func() { f.set("other", []string{"public"}, item("other", "o", "10.0.0.9", 80)) })
	r := run(t, Settings{Address: f.serve(t).URL, DefaultPort: 8080}, Options{})
	r.await(t, "both instances", has("web", "10.0.0.1:80", "10.0.0.2:80"))
	r.await(t, "the source is read", fresh)
	r.await(t, "what is not selected is not told", gone("other"))

	f.put("web", item("web", "a", "10.0.0.1", 80, checks(check("x", "critical"))), item("web", "b", "10.0.0.2", 8081, inService("Weights", map[string]any{"Passing": 7, "Warning": 2})))
	r.await(t, "health, port and weight", has("web", "10.0.0.1:80 critical", "10.0.0.2:8081 weight 7"))
	f.put("db", item("db", "d", "10.0.0.3", 5432, meta("patchbay-port", "5000", "team", "x")))
	r.await(t, "a new service, with its meta", func(services map[string]*source.Service, _ source.Status) bool {
		db := services["db"]
		return db != nil && len(db.Instances) == 1 && db.Port == 8080 && len(db.Meta) == 1 && db.Meta["patchbay-port"] == "5000"
	})
	f.put("web", item("web", "b", "10.0.0.2", 8081))
	r.await(t, "one left", has("web", "10.0.0.2:8081"))
	f.put("web")
	r.await(t, "the last instance of a service leaves, and the service goes", gone("web"))
	f.change(func() { f.set("db", nil, item("db", "d", "10.0.0.3", 5432)) })
	r.await(t, "a service that is not selected any more goes", gone("db"))
	f.put("db", item("db", "d", "10.0.0.3", 5432))
	r.await(t, "and comes back", has("db", "10.0.0.3:5432"))
	f.put("db")
	r.await(t, "the last service with one instance goes", gone("db"))
	r.await(t, "that is ordinary", fresh)
}

func respond(status int, header http.Header, body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		for key, values := range header {
			w.Header()[key] = values
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
		return true
	}
}

// on lets a fault happen to one path alone.
func on(path string, fault func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool { return r.URL.Path == path && fault(w, r) }
}

// TestFaults holds that no fault of Consul takes anything away, that it is
// shown, and that changes flow again after it.
func TestFaults(t *testing.T) {
	const listing, web = "/v1/catalog/services", "/v1/health/service/web"
	consul := func(extra ...string) http.Header {
		h := http.Header{"X-Consul-Index": {"5000"}, "Content-Type": {"application/json"}}
		for i := 0; i < len(extra); i += 2 {
			h[extra[i]] = []string{extra[i+1]}
		}
		return h
	}
	slow := func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }
	hangUp := func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
	// A body without end must be cut off by the reader, soon.
	endless := func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("X-Consul-Index", "5000")
		fmt.Fprint(w, "[")
		chunk := make([]byte, 1<<16)
		for i := range chunk {
			chunk[i] = ' '
		}
		for r.Context().Err() == nil {
			if _, err := w.Write(chunk); err != nil {
				break
			}
		}
		return true
	}
	for _, c := range []struct {
		name  string
		fault func(http.ResponseWriter, *http.Request) bool
		shown string
	}{
		{"500 for all", respond(500, nil, "No cluster leader"), "answers 500: No cluster leader"},
		{"429 for all", respond(429, http.Header{"Retry-After": {"0"}}, ""), "too many requests of this host (429)"},
		{"403 for all", respond(403, nil, "Permission denied"), "refuses the token (403): Permission denied"},
		{"401 for all", respond(401, nil, ""), "answers 401"},
		{"404 for all", respond(404, nil, "<html>nothing"), "answers 404"},
		{"a redirect", respond(302, http.Header{"Location": {"/elsewhere"}}, ""), "answers 302"},
		{"a web page", respond(200, http.Header{"Content-Type": {"text/html"}}, "<html></html>"), "a web page"},
		{"a web page with an index", respond(200, http.Header{"Content-Type": {"text/html"}, "X-Consul-Index": {"9"}}, "<html></html>"), "a web page"},
		{"no index", respond(200, nil, `{}`), "no X-Consul-Index"},
		{"index 0", respond(200, consul("X-Consul-Index", "0"), `{}`), "no X-Consul-Index"},
		{"never answers", slow, "does not answer in time"},
		{"hangs up", hangUp, "can't be asked"},
		{"cut JSON", respond(200, consul(), `{"web":["patch`), "cut or is not JSON"},
		{"cut by the length", respond(200, consul("Content-Length", "500"), `{"web":[]`), "cut or is not JSON"},
		{"no JSON", respond(200, consul(), `tuesday`), "cut or is not JSON"},
		{"empty body", respond(200, consul(), ``), "cut or is not JSON"},
		{"null", on(listing, respond(200, consul(), `null`)), "list of services is not as expected"},
		{"listing of wrong types", on(listing, respond(200, consul(), `{"web":{"tags":1}}`)), "list of services is not as expected"},
		{"listing is a list", on(listing, respond(200, consul(), `[]`)), "list of services is not as expected"},
		{"endless", endless, "more than"},
		{"text after the JSON", respond(200, consul(), `{"web":["patchbay"]} and more`), "more than one piece of JSON"},
		{"two pieces of JSON", on(listing, respond(200, consul(), `{"web":["patchbay"]}`+"\n"+`{"db":["patchbay"]}`)), "more than one piece of JSON"},
		{"far text after the JSON", on(listing, respond(200, consul(), `{"web":["patchbay"]}`+strings.Repeat(" ", 100_000)+`}`)), "more than one piece of JSON"},

		{"500 for one", on(web, respond(500, nil, "rpc error")), `service "web" can't be read`},
		{"403 for one", on(web, respond(403, nil, "Permission denied")), `service "web" can't be read`},
		{"one is null", on(web, respond(200, consul(), `null`)), "list of instances is not as expected"},
		{"one has wrong types", on(web, respond(200, consul(), `[{"Node":{"Node":"n"},"Service":{"ID":"x","Port":"eighty"}}]`)), "list of instances is not as expected"},
		{"one has an object", on(web, respond(200, consul(), `{}`)), "list of instances is not as expected"},
		{"one has an item without service", on(web, respond(200, consul(), `[{"Node":{"Node":"n"}}]`)), "no node or no id"},
		{"one has instances of another", on(web, respond(200, consul(), `[{"Node":{"Node":"n"},"Service":{"ID":"d","Service":"db","Address":"10.0.0.3","Port":5432}}]`)), `it has one of "db"`},
		{"one has text after it", on(web, respond(200, consul(), `[] and more`)), "more than one piece of JSON"},
		{"one is cut", on(web, respond(200, consul(), `[{"Node":{"Node":"n"},"Serv`)), "cut or is not JSON"},
		{"one is endless", on(web, endless), "more than"},
		{"one is filtered and empty", on(web, respond(200, consul("X-Consul-Results-Filtered-By-ACLs", "true"), `[]`)), "filtered by ACLs"},
		{"listing turns to filtered", on(listing, respond(200, consul("X-Consul-Results-Filtered-By-ACLs", "true"), `{"web":["patchbay"]}`)), "filtered by ACLs"},
		{"listing is filtered and empty", on(listing, respond(200, consul("X-Consul-Results-Filtered-By-ACLs", "true"), `{}`)), "filtered by ACLs"},
		{"empty listing with status 200", on(listing, respond(200, consul(), `{}`)), "turned empty"},
		{"all empty with status 200", func(w http.ResponseWriter, r *http.Request) bool {
			body := `[]`
			if r.URL.Path == listing {
				body = `{}`
			}
			return respond(200, consul(), body)(w, r)
		}, "turned empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeConsul()
			f.put("web", item("web", "a", "10.0.0.1", 80), item("web", "b", "10.0.0.2", 80))
			f.put("db", item("db", "d", "10.0.0.3", 5432))
			timing := quick
			timing.Timeout, timing.Wait = 300*time.Millisecond, 100*time.Millisecond
			r := run(t, Settings{Address: f.serve(t).URL, Hold: 50 * time.Millisecond}, Options{Timing: timing})
			r.maxBodyForTest(1 << 20)
			r.await(t, "the source is read", fresh)
			r.await(t, "both services", has("db", "10.0.0.3:5432"))
			end := r.watch(t, "web", "db")

			f.setFault(c.fault)
			r.await(t, "the fault is shown", stale(c.shown))
			f.awaitQuestions(t, 3)
			r.await(t, "web is as it was", has("web", "10.0.0.1:80", "10.0.0.2:80"))
			r.await(t, "db is as it was", has("db", "10.0.0.3:5432"))
			f.setFault(nil)
			r.await(t, "the fault is over", fresh)
			f.put("web", item("web", "a", "10.0.0.1", 80), item("web", "b", "10.0.0.2", 81))
			r.await(t, "a change flows", has("web", "10.0.0.1:80", "10.0.0.2:81"))
			end()
		})
	}
}

func (s *Source) maxBodyForTest(limit int64) {
	s.mu.Lock()
	s.maxBody = limit
	s.mu.Unlock()
	s.restart()
}
