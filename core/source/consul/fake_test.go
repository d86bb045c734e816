package consul

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeConsul answers like a Consul agent, from a catalog in memory, and can be
// told to fail.
type fakeConsul struct {
	mu      sync.Mutex
	index   uint64
	changed chan struct{}
	// tags and instances by the service's name, and the index at which it
	// changed last.
	tags      map[string][]string
	instances map[string][]map[string]any
	at        map[string]uint64
	listedAt  uint64
	// filtered marks answers as filtered by ACLs.
	filtered bool
	// token that is wanted; empty for none.
	token string
	// fault answers instead; false lets the answer go its way.
	fault func(w http.ResponseWriter, r *http.Request) bool
	// asked counts questions by path, direct those of them without an index;
	// waiting are those that wait now, and
	// mostWaiting the most there were.
	asked, direct        map[string]int
	waiting, mostWaiting int
}

func newFakeConsul() *fakeConsul {
	return &fakeConsul{
		index: 100, listedAt: 100, changed: make(chan struct{}), tags: map[string][]string{},
		instances: map[string][]map[string]any{}, at: map[string]uint64{}, asked: map[string]int{}, direct: map[string]int{},
	}
}

// serve starts it over plain HTTP.
func (f *fakeConsul) serve(t *testing.T) *httptest.Server {
	server := httptest.NewServer(f)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server
}

// change does something to the catalog as one write.
func (f *fakeConsul) change(what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	what()
	f.wake()
}

func (f *fakeConsul) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// set gives a service its tags and instances, within change.
func (f *fakeConsul) set(name string, tags []string, instances ...map[string]any) {
	if len(instances) == 0 {
		delete(f.tags, name)
		delete(f.instances, name)
	} else {
		f.tags[name], f.instances[name] = tags, instances
	}
	f.at[name] = f.index
	f.listedAt = f.index
}

// put is a change of one service, tagged patchbay.
func (f *fakeConsul) put(name string, instances ...map[string]any) {
	f.change(func() { f.set(name, []string{"patchbay"}, instances...) })
}

// moveIndexes changes every index and nothing else.
func (f *fakeConsul) moveIndexes() {
	f.change(func() {
		f.listedAt = f.index
		for name := range f.at {
			f.at[name] = f.index
		}
	})
}

// lose makes it one that has lost everything and begins anew.
func (f *fakeConsul) lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index, f.listedAt = 7, 7
	clear(f.tags)
	clear(f.instances)
	clear(f.at)
	f.wake()
}

func (f *fakeConsul) setFault(fault func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
	f.wake()
}

func (f *fakeConsul) questions(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[path]
}

// awaitQuestions waits until it has been asked that many times more.
func (f *fakeConsul) awaitQuestions(t *testing.T, more int) {
	t.Helper()
	total := func() (n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, asked := range f.asked {
			n += asked
		}
		return n
	}
	deadline := time.Now().Add(patience)
	for wanted := total() + more; total() < wanted; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it was not asked %d times more within %v", more, patience)
		}
	}
}

// stir lets all that waits be answered a few times, with nothing changed.
func (f *fakeConsul) stir(t *testing.T) {
	t.Helper()
	for range 3 {
		f.moveIndexes()
		f.awaitQuestions(t, 2)
	}
}

// ServeHTTP implements http.Handler.
func (f *fakeConsul) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked[r.URL.Path]++
	if r.URL.Query().Get("index") == "" {
		f.direct[r.URL.Path]++
	}
	fault, token := f.fault, f.token
	f.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	if token != "" && r.Header.Get("X-Consul-Token") != token {
		http.Error(w, "Permission denied: token with AccessorID 'x' lacks permission", http.StatusForbidden)
		return
	}
	if r.URL.Path == "/v1/agent/self" {
		fmt.Fprint(w, `{"Config":{"NodeName":"here"}}`)
		return
	}
	index, body, filtered, ok := f.answer(r)
	if !ok {
		return
	}
	if f.faulty(w, r) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Consul-Index", strconv.FormatUint(index, 10))
	w.Header().Set("X-Consul-KnownLeader", "true")
	w.Header().Set("X-Consul-LastContact", "0")
	if filtered {
		w.Header().Set("X-Consul-Results-Filtered-By-ACLs", "true")
	}
	w.Write(body)
}

// faulty lets a fault that was set while a question waited answer it.
func (f *fakeConsul) faulty(w http.ResponseWriter, r *http.Request) bool {
	f.mu.Lock()
	fault := f.fault
	f.mu.Unlock()
	return fault != nil && fault(w, r)
}

// answer waits as a blocking query does, and gives what there is.
func (f *fakeConsul) answer(r *http.Request) (uint64, []byte, bool, bool) {
	wanted, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
	timeout := time.After(wait)
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		index, body := f.current(r.URL.Path)
		if wanted == 0 || index != wanted || f.fault != nil {
			return index, body, f.filtered, true
		}
		changed := f.changed
		f.waiting++
		f.mostWaiting = max(f.mostWaiting, f.waiting)
		f.mu.Unlock()
		end, gone := false, false
		select {
		case <-changed:
		case <-timeout:
			end = true
		case <-r.Context().Done():
			gone = true
		}
		f.mu.Lock()
		f.waiting--
		if gone {
			return 0, nil, false, false
		}
		if end {
			return index, body, f.filtered, true
		}
	}
}

func (f *fakeConsul) current(path string) (uint64, []byte) {
	if path == "/v1/catalog/services" {
		names := map[string][]string{"consul": {}}
		for name, tags := range f.tags {
			names[name] = tags
		}
		body, _ := json.Marshal(names)
		return f.listedAt, body
	}
	name := strings.TrimPrefix(path, "/v1/health/service/")
	list := f.instances[name]
	if list == nil {
		list = []map[string]any{}
	}
	body, _ := json.Marshal(list)
	index := f.at[name]
	if index == 0 {
		index = f.index
	}
	return index, body
}

// item makes an instance on a node of its own, as health/service gives it.
func item(name, id, address string, port int, options ...func(node, service, all map[string]any)) map[string]any {
	node := map[string]any{"Node": "node-" + id, "Address": "10.9.9.9", "Datacenter": "dc1"}
	service := map[string]any{"ID": id, "Service": name, "Address": address, "Port": port, "Weights": map[string]any{"Passing": 1, "Warning": 1}}
	all := map[string]any{"Node": node, "Service": service, "Checks": []any{check("serfHealth", "passing")}}
	for _, o := range options {
		o(node, service, all)
	}
	return all
}

func check(id, status string) map[string]any {
	return map[string]any{"CheckID": id, "Name": id, "Status": status}
}

func checks(list ...map[string]any) func(node, service, all map[string]any) {
	return func(_, _, all map[string]any) { all["Checks"] = list }
}

func meta(pairs ...string) func(node, service, all map[string]any) {
	return func(_, service, _ map[string]any) {
		m := map[string]string{}
		for pair := range slices.Chunk(pairs, 2) {
			m[pair[0]] = pair[1]
		}
		service["Meta"] = m
	}
}

func inService(key string, value any) func(node, service, all map[string]any) {
	return func(_, service, _ map[string]any) { service[key] = value }
}

func inNode(key string, value any) func(node, service, all map[string]any) {
	return func(node, _, _ map[string]any) { node[key] = value }
}
