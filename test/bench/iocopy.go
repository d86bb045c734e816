package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
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
	go func() { failed <- relayUDP(base) }()
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

// relayUDP is its kind for datagrams: a socket and a goroutine for each client.
func relayUDP(port int) error {
	listener, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(proxyAddr), Port: port})
	if err != nil {
		return err
	}
	sessions := map[netip.AddrPort]*net.UDPConn{}
	for b := make([]byte, 64<<10); ; {
		n, from, err := listener.ReadFromUDPAddrPort(b)
		if err != nil {
			return err
		}
		server := sessions[from]
		if server == nil {
			to := &net.UDPAddr{IP: net.ParseIP(serverAddrs()[len(sessions)%servers]), Port: serverRequest}
			if server, err = net.DialUDP("udp4", nil, to); err != nil {
				return err
			}
			sessions[from] = server
			go answerUDP(listener, server, from)
		}
		if _, err := server.Write(b[:n]); err != nil {
			return err
		}
	}
}

func answerUDP(listener, server *net.UDPConn, client netip.AddrPort) {
	for b := make([]byte, 64<<10); ; {
		n, err := server.Read(b)
		if err != nil {
			return
		}
		// A client that is gone is no matter.
		_, _ = listener.WriteToUDPAddrPort(b[:n], client)
	}
}
