package static

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
)

// answer reads a request and writes text.
func answer(text string) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, text)
		}
	}
}

func hang(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func reset(c net.Conn) {
	_, _ = c.Read(make([]byte, 1))
	_ = c.(*net.TCPConn).SetLinger(0)
}

// endless writes the same again and again.
func endless(head, more string) func(net.Conn) {
	return func(c net.Conn) {
		_, err := io.WriteString(c, head)
		for err == nil {
			_, err = io.WriteString(c, more)
		}
	}
}

// TestProbe: what each kind of server comes to.
func TestProbe(t *testing.T) {
	const long, short = 20 * time.Second, 50 * time.Millisecond
	tcp, get := "", "/health"
	for _, test := range []struct {
		name    string
		path    string
		timeout time.Duration
		handle  func(net.Conn)
		want    string
	}{
		{"tcp: accepts", tcp, long, func(net.Conn) {}, ""},
		{"tcp: accepts and never answers", tcp, long, hang, ""},
		{"200", get, long, answer("HTTP/1.1 200 OK\r\n\r\n"), ""},
		{"204", get, long, answer("HTTP/1.0 204 No Content\r\n\r\n"), ""},
		{"301 is well, and not followed", get, long, answer("HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\n\r\n"), ""},
		{"399", get, long, answer("HTTP/1.1 399 Odd\r\n\r\n"), ""},
		{"400", get, long, answer("HTTP/1.1 400 Bad\r\n\r\n"), "status 400"},
		{"500", get, long, answer("HTTP/1.1 500 Broken\r\n\r\n"), "status 500"},
		{"101", get, long, answer("HTTP/1.1 101 Switching Protocols\r\n\r\n"), "status 101"},
		{"103, then 200", get, long, answer("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), ""},
		{"103 without end", get, long, endless("", "HTTP/1.1 103 Early Hints\r\n\r\n"), "not an HTTP answer: only informational answers"},
		{"a body without end", get, long, endless("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("x", 4096)), ""},
		{"headers without end", get, long, endless("HTTP/1.1 200 OK\r\n", "X: y\r\n"), "not an HTTP answer: its headers are longer than 65536 bytes"},
		{"one line without end", get, long, endless("HTTP/1.1 200 ", strings.Repeat("x", 4096)), "not an HTTP answer: its headers are longer than 65536 bytes"},
		{"accepts and never answers", get, short, hang, "no answer within 50ms"},
		{"slow headers", get, short, func(c net.Conn) {
			for _, b := range []byte("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 1000)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		}, "no answer within 50ms"},
		{"resets", get, long, reset, "connection reset by peer"},
		{"closes", get, long, answer(""), "closed without an answer"},
		{"another protocol", get, long, answer("SSH-2.0-x\r\n\r\n"), `not an HTTP answer: malformed HTTP response "SSH-2.0-x"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			address, _ := serve(t, test.handle)
			at := netip.MustParseAddrPort(address)
			check := &config.Check{TCP: test.path == "", HTTP: test.path, Timeout: test.timeout}
			got := ""
			if err := New(Options{}).probe(t.Context(), check, at.Addr().String(), at); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("the check says %q, want %q", got, test.want)
			}
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		address, stop := serve(t, hang)
		stop()
		for _, check := range []*config.Check{{TCP: true, Timeout: long}, {HTTP: "/", Timeout: long}} {
			err := New(Options{}).probe(t.Context(), check, "x", netip.MustParseAddrPort(address))
			if err == nil || err.Error() != "connection refused" {
				t.Errorf("the check says %v, want %q", err, "connection refused")
			}
		}
	})
	t.Run("called off", func(t *testing.T) {
		address, _ := serve(t, hang)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		start := time.Now()
		err := New(Options{}).probe(ctx, &config.Check{HTTP: "/", Timeout: time.Hour}, "x", netip.MustParseAddrPort(address))
		if err == nil || time.Since(start) > 30*time.Second {
			t.Errorf("the check says %v", err)
		}
	})
}

// TestRequest: what a server is asked.
func TestRequest(t *testing.T) {
	asked := make(chan *http.Request, 1)
	address, _ := serve(t, func(c net.Conn) {
		if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			asked <- r
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		}
	})
	at := netip.MustParseAddrPort(address)
	err := New(Options{UserAgent: "patchbay/1"}).probe(t.Context(), &config.Check{HTTP: "/health?deep=1", Timeout: 20 * time.Second}, "web.internal", at)
	if err != nil {
		t.Fatal(err)
	}
	r := <-asked
	if got, want := fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Host, " ", r.UserAgent(), " ", r.Close),
		fmt.Sprintf("GET /health?deep=1 web.internal:%d patchbay/1 true", at.Port()); got != want {
		t.Errorf("asked %q, want %q", got, want)
	}
}

// TestRiseAndFall is the table of results against the health they come to; "+"
// is a success, "-" a failure.
func TestRiseAndFall(t *testing.T) {
	for _, test := range []struct {
		name       string
		start      health
		rise, fall int
		results    string
		want       string // u or d after each
	}{
		{"a new one falls at once", health{}, 2, 3, "-+-++", "dddduuuu"[:5]},
		{"a new one that has succeeded falls after three", health{}, 2, 3, "+---", "uuud"},
		{"a success in between counts anew", health{}, 2, 3, "+--+---", "uuuuuud"},
		{"one that was up needs three", health{known: true}, 2, 3, "---", "uud"},
		{"one that was down needs two", health{known: true, Down: true}, 2, 3, "+-++---", "ddd" + "u" + "uud"},
		{"zero counts as one", health{known: true}, 0, 0, "-+-", "dud"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h, got := test.start, ""
			for _, r := range test.results {
				var err error
				if r == '-' {
					err = errors.New("x")
				}
				h.result(err, test.rise, test.fall)
				got += map[bool]string{false: "u", true: "d"}[h.Down]
			}
			if got != test.want {
				t.Errorf("after %s it was %s, want %s", test.results, got, test.want)
			}
		})
	}
}

// TestChecksAreBounded: never more at once than allowed, however many
// endpoints there are; and all get their turn.
func TestChecksAreBounded(t *testing.T) {
	const slots, endpoints = 4, 200
	var now, most atomic.Int32
	s := newScheduler(slots)
	seen := make([]atomic.Int32, endpoints)
	ctx, cancel := context.WithCancel(t.Context())
	for i := range endpoints {
		s.add(&task{index: -1, run: func(context.Context) time.Duration {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Millisecond)
			seen[i].Add(1)
			now.Add(-1)
			return time.Millisecond
		}}, 0)
	}
	done := make(chan struct{})
	go func() { s.run(ctx); close(done) }()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		all := true
		for i := range seen {
			all = all && seen[i].Load() >= 2
		}
		if all {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("not every endpoint was checked twice")
		}
	}
	cancel()
	<-done
	if now.Load() != 0 || most.Load() != slots {
		t.Errorf("%d run still, at most %d ran at once, want 0 and %d", now.Load(), most.Load(), slots)
	}
}

func TestRemovedTaskIsNotRun(t *testing.T) {
	s := newScheduler(1)
	running, finish := make(chan struct{}), make(chan struct{})
	var runs atomic.Int32
	first := &task{index: -1, run: func(context.Context) time.Duration {
		runs.Add(1)
		close(running)
		<-finish
		return 0
	}}
	second := &task{index: -1, run: func(context.Context) time.Duration { t.Error("a removed task was run"); return time.Hour }}
	last := make(chan struct{})
	s.add(first, 0)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.run(ctx); close(done) }()
	<-running
	s.add(second, 0)
	s.remove(first)
	s.remove(second)
	s.add(&task{index: -1, run: func(context.Context) time.Duration { close(last); return time.Hour }}, 0)
	close(finish)
	<-last
	cancel()
	<-done
	if runs.Load() != 1 {
		t.Errorf("the first task ran %d times", runs.Load())
	}
}
