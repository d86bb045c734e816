package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// newUDPBackend answers each datagram with a name and itself, at an address
// that a TCP backend has, too.
func newUDPBackend(t *testing.T, a netip.AddrPort, name string) {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(a))
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for b := make([]byte, 1500); ; {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				c.WriteToUDPAddrPort([]byte(name+" "+string(b[:n])), from)
			}
		}
	})
	t.Cleanup(func() {
		c.Close()
		done.Wait()
	})
}

// talk sends datagrams over a connected socket until ok is content with what
// comes.
func talk(t *testing.T, c *net.UDPConn, what string, ok func(answer string, err error) bool) {
	t.Helper()
	b := make([]byte, 1500)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		_, err := c.Write([]byte("hello"))
		n := 0
		if err == nil {
			c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			n, err = c.Read(b)
		}
		if ok(string(b[:n]), err) {
			return
		}
	}
	t.Fatalf("never came: %s", what)
}

// TestUDP: one service with both protocols on one port; what the plugin tells
// of it; none and some endpoints.
func TestUDP(t *testing.T) {
	p := newPlug(t, `{"max_udp_sessions": 100}`)
	b := newBackend(t, "127.8.5.40", "b")
	newUDPBackend(t, b.address, "b")
	front := free(t, "127.8.5.41")
	s := service(t, "dns", front, `{"udp_idle_timeout": 300000000}`, b)
	udp := s.Frontends[0]
	udp.Protocol = dataplane.UDP
	s.Frontends = append(s.Frontends, udp)
	p.must(s)
	if c := mustConnect(t, front); c.name != "b" {
		t.Error(c.name)
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(front))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answers := func(answer string, err error) bool { return err == nil && answer == "b hello" }
	talk(t, c, "an answer", answers)

	d := p.inspect("dns")
	if diff := cmp.Diff([]string{front.String()}, d.ListenUDP); diff != "" {
		t.Error(diff)
	}
	if text := d.text(); !strings.Contains(text, fmt.Sprintf("listens on %s for udp\n", front)) {
		t.Errorf("%s", text)
	}
	list, err := p.u.Statistics(context.Background())
	if err != nil || len(list) != 1 || list[0].Connections != 2 || list[0].BytesIn < 5 || list[0].BytesOut < 7 {
		t.Errorf("%+v, %v", list, err)
	}
	// The option holds: the session ends by itself.
	for end := time.Now().Add(patience); p.inspect("dns").Active > 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the session never ended")
		}
	}
	// Without endpoints the kernel refuses, and with one all is well again.
	empty := *s
	empty.Endpoints = nil
	p.must(&empty)
	talk(t, c, "a refusal", func(_ string, err error) bool { return errors.Is(err, syscall.ECONNREFUSED) })
	if d := p.inspect("dns"); len(d.ListenUDP) != 0 || len(d.Listen) != 1 {
		t.Errorf("%+v", d)
	}
	p.must(s)
	talk(t, c, "an answer", answers)
	p.must()
	talk(t, c, "a refusal", func(_ string, err error) bool { return errors.Is(err, syscall.ECONNREFUSED) })
}
