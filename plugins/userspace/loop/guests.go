package loop

import (
	"net/netip"
	"sync"
)

// guests counts a service's connections by the client's address, where they are
// limited. It holds no more addresses than there are connections.
type guests struct {
	mu     sync.Mutex
	counts map[[16]byte]int
}

// enter counts a connection, unless the client has so many already.
func (g *guests) enter(client netip.Addr, most int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := client.As16()
	if g.counts[key] >= most {
		return false
	}
	if g.counts == nil {
		g.counts = map[[16]byte]int{}
	}
	g.counts[key]++
	return true
}

func (g *guests) leave(client netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := client.As16()
	if n := g.counts[key]; n > 1 {
		g.counts[key] = n - 1
	} else {
		delete(g.counts, key)
	}
}
