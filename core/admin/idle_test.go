package admin

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// tcpServer serves /metrics and /healthz, and gives its address and its log
// with all levels.
func tcpServer(t *testing.T) (address string, logged func() string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	server := NewServer(&fakeBackend{health: Health{Healthy: true}}, NewMetrics(fullSample).Registry,
		hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: &log}))
	server.ServeHealth(listener)
	t.Cleanup(server.Close)
	return listener.Addr().String(), log.String
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestIdleConnectionsKeepNobodyOut: clients that connect and say nothing, or
// have been answered and stay, do not keep out one that asks.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	address, _ := tcpServer(t)
	for n := range 1000 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if n%100 == 0 {
			fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		}
	}
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		t.Fatalf("with 1000 idle connections: %v", err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("status %d", answer.StatusCode)
	}
}

// TestIdleConnections: beyond the limit the one that has been idle longest goes,
// and one that asks just now never does.
func TestIdleConnections(t *testing.T) {
	i := newIdleConnections(2)
	var ours, theirs [4]net.Conn
	for n := range ours {
		ours[n], theirs[n] = net.Pipe()
		defer ours[n].Close()
		defer theirs[n].Close()
	}
	closed := func(n int) bool {
		_ = theirs[n].SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := theirs[n].Read(make([]byte, 1))
		return err == io.EOF
	}
	i.follow(ours[0], http.StateNew)
	i.follow(ours[1], http.StateNew)
	i.follow(ours[0], http.StateActive) // asks
	i.follow(ours[2], http.StateNew)
	i.follow(ours[3], http.StateNew) // one too many: 1 goes
	i.follow(ours[2], http.StateClosed)
	i.follow(ours[0], http.StateIdle) // 0 and 3
	for n, want := range []bool{false, true, false, false} {
		if closed(n) != want {
			t.Errorf("connection %d: closed is %t", n, !want)
		}
	}
}

// TestMetricsClientThatLeaves: a client that asks again and again and leaves
// before it is answered is no warning, and not a line for each metric.
func TestMetricsClientThatLeaves(t *testing.T) {
	address, logged := tcpServer(t)
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(logged(), "serving /metrics"); {
		if time.Now().After(deadline) {
			t.Fatal("no client left in the middle of an answer")
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // a reset
			t.Fatal(err)
		}
		fmt.Fprint(conn, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 100))
		time.Sleep(5 * time.Millisecond)
		_ = conn.Close()
	}
	time.Sleep(100 * time.Millisecond)
	text := logged()
	if n := strings.Count(text, "serving /metrics"); n > 1 || strings.Contains(text, "[WARN]") {
		t.Errorf("%d lines:\n%s", n, text)
	}
}

// TestMetricsLog: what can't be gathered is a warning, a client that has gone
// is none; of each there is a line a minute, without the socket's names.
func TestMetricsLog(t *testing.T) {
	var log lockedBuffer
	m := newMetricsLog(hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: &log, DisableTime: true}))
	gone := &net.OpError{Op: "write", Net: "unix", Source: &net.UnixAddr{Name: "/run/s.sock.new", Net: "unix"}, Err: io.ErrClosedPipe}
	for range 100 {
		m.Println("error encoding and sending metric family:", gone)
		m.Println("error gathering metrics:", io.ErrUnexpectedEOF)
	}
	want := "[DEBUG] serving /metrics: error=\"error encoding and sending metric family: io: read/write on closed pipe\"\n" +
		"[WARN]  serving /metrics: error=\"error gathering metrics: unexpected EOF\"\n"
	if got := log.String(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}
