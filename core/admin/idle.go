package admin

import (
	"net"
	"net/http"
	"sync"
)

// idleConnections bounds the connections that ask for nothing: beyond the limit
// the one that has been idle longest is closed, so that a client that opens
// many, or lets them lie, does not keep others out.
type idleConnections struct {
	limit int

	mu sync.Mutex
	// since has a number for each idle connection, higher for one that became
	// idle later.
	since map[net.Conn]uint64
	last  uint64
}

func newIdleConnections(limit int) *idleConnections {
	return &idleConnections{limit: limit, since: map[net.Conn]uint64{}}
}

// follow is an http.Server's ConnState.
func (i *idleConnections) follow(conn net.Conn, state http.ConnState) {
	i.mu.Lock()
	var surplus net.Conn
	switch state {
	case http.StateNew, http.StateIdle:
		i.last++
		i.since[conn] = i.last
		if len(i.since) > i.limit {
			surplus = i.oldest()
			delete(i.since, surplus)
		}
	default:
		delete(i.since, conn)
	}
	i.mu.Unlock()
	if surplus != nil {
		_ = surplus.Close()
	}
}

func (i *idleConnections) oldest() net.Conn {
	var oldest net.Conn
	for conn, since := range i.since {
		if oldest == nil || since < i.since[oldest] {
			oldest = conn
		}
	}
	return oldest
}
