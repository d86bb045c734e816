package main

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
)

// runIOCopy is the proxy that one writes in an afternoon: two goroutines with
// io.Copy for each connection.
func runIOCopy(port string) error {
	base, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for listen, server := range map[int]int{base: serverRequest, base + 2: serverBulk} {
		l, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", proxyAddr, listen))
		if err != nil {
			return err
		}
		go func() {
			var next atomic.Uint64
			for {
				c, err := l.Accept()
				if err != nil {
					failed <- err
					return
				}
				to := fmt.Sprintf("%s:%d", serverAddrs()[next.Add(1)%servers], server)
				go carry(c.(*net.TCPConn), to)
			}
		}()
	}
	return <-failed
}

func carry(client *net.TCPConn, to string) {
	defer client.Close()
	c, err := net.Dial("tcp4", to)
	if err != nil {
		return
	}
	server := c.(*net.TCPConn)
	defer server.Close()
	done := make(chan struct{})
	go func() {
		// A broken connection ends both directions; there is nobody to tell.
		_, _ = io.Copy(server, client)
		_ = server.CloseWrite()
		close(done)
	}()
	_, _ = io.Copy(client, server)
	_ = client.CloseWrite()
	<-done
}
