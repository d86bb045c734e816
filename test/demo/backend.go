package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"
)

// backend is a small web server that says its name. It can be taken away and
// put back.
type backend struct {
	service, name, address string
	server                 *http.Server
	done                   chan struct{}
}

// newBackends gives the instances that config.hcl names, not yet up.
func newBackends() []*backend {
	var all []*backend
	for _, s := range []struct {
		service   string
		firstPort int
		number    int
	}{{"web", 18081, 3}, {"api", 18091, 2}} {
		for i := range s.number {
			all = append(all, &backend{
				service: s.service,
				name:    fmt.Sprintf("%s-%d", s.service, i+1),
				address: fmt.Sprintf("127.0.0.1:%d", s.firstPort+i),
			})
		}
	}
	return all
}

func (b *backend) up() error {
	l, err := net.Listen("tcp", b.address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s, where the demo's backend %s listens, is taken by another program, perhaps by another demo: end that first (`ss -ltnp` names it)", b.address, b.name)
	}
	if err != nil {
		return fmt.Errorf("starting the backend %s: %w", b.name, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%s\n", b.name)
	})
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	b.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	b.done = make(chan struct{})
	go func(server *http.Server, done chan struct{}) {
		// It ends with ErrServerClosed when it is taken away.
		_ = server.Serve(l)
		close(done)
	}(b.server, b.done)
	return nil
}

// down takes the backend away: answers under way come to their end, new
// connections are refused.
func (b *backend) down() {
	if b.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if b.server.Shutdown(ctx) != nil {
		b.server.Close()
	}
	<-b.done
	b.server = nil
}
