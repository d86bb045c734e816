package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// descriptorChild makes the test binary run runDescriptorChild.
const descriptorChild = "PATCHBAY_TEST_DESCRIPTORS"

// TestDescriptorsRunOut runs the engine in a process of its own that may open
// few descriptors: new connections are refused, counted and reported once,
// established ones go on, nothing spins, and afterwards all is well again.
func TestDescriptorsRunOut(t *testing.T) {
	for _, how := range []string{"budget", "accept", "helpless"} {
		t.Run(how, func(t *testing.T) {
			p := newPeer(t, "127.8.3.1", echo)
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), descriptorChild+"="+how+" "+p.address.String())
			out, err := c.CombinedOutput()
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}

func runDescriptorChild() int {
	var how, backend string
	if _, err := fmt.Sscan(os.Getenv(descriptorChild), &how, &backend); err != nil {
		fmt.Println(err)
		return 2
	}
	scene := descriptorScene
	if strings.HasPrefix(how, "udp") {
		scene = udpDescriptorScene
	}
	if err := scene(how, netip.MustParseAddrPort(backend)); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// descriptorScene is played in a process of its own. The clients live in it
// too; so they are made before descriptors run out, or count.
func descriptorScene(how string, backend netip.AddrPort) error {
	limit := syscall.Rlimit{Cur: 128, Max: 128}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	var reports atomic.Int64
	e, err := New(Options{Loops: 2, Pressure: func(uint64) { reports.Add(1) }})
	if err != nil {
		return err
	}
	defer func() {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		e.Close(gone)
	}()
	l, err := net.Listen("tcp", "127.8.3.2:0")
	if err != nil {
		return err
	}
	front := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	if errs := e.Update([]Service{{ID: "web", Listen: []netip.AddrPort{front}, Endpoints: []Endpoint{{Address: backend, Weight: 1}}}}, nil); errs != nil {
		return fmt.Errorf("%v", errs)
	}
	connect := func() (net.Conn, error) {
		c, err := net.Dial("tcp", front.String())
		if err != nil {
			return nil, err
		}
		c.SetDeadline(time.Now().Add(patience))
		return c, exchange(c, "hello")
	}
	established, err := connect()
	if err != nil {
		return fmt.Errorf("the first connection: %w", err)
	}
	// Use up what there is: by connections as far as the engine lets them, or
	// by others, so that accept itself finds nothing.
	var waste []io.Closer
	if how == "helpless" {
		e.onLoopsInTest(func(l *loop) { // the descriptor in reserve is lost
			l.kernel.close(l.reserve)
			l.reserve = -1
		})
	}
	switch how {
	case "budget":
		for {
			c, err := connect()
			if err != nil {
				if c != nil {
					c.Close()
				}
				break
			}
			waste = append(waste, c)
		}
	case "accept", "helpless":
		e.shared.room.Store(1 << 30)
		var clients []int
		for range 8 { // sockets that connect when nothing else is left
			fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			clients = append(clients, fd)
		}
		for {
			f, err := os.Open("/dev/null")
			if err != nil {
				break
			}
			waste = append(waste, f)
		}
		to := &syscall.SockaddrInet4{Port: int(front.Port()), Addr: front.Addr().As4()}
		for _, fd := range clients {
			if err := syscall.Connect(fd, to); err != nil {
				return fmt.Errorf("connecting: %w", err)
			}
			if how == "helpless" {
				continue // it waits in the queue
			}
			tv := syscall.Timeval{Sec: int64(patience / time.Second)}
			syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &tv)
			if n, err := syscall.Read(fd, make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				return fmt.Errorf("a client without a descriptor for it: %d, %v", n, err)
			}
		}
		if how == "helpless" {
			defer func() {
				for _, fd := range clients {
					syscall.Close(fd)
				}
			}()
			break
		}
		for _, fd := range clients {
			syscall.Close(fd)
		}
	}
	for range 100 {
		if err := exchange(established, "still here"); err != nil {
			return fmt.Errorf("the established connection: %w", err)
		}
	}
	s, _ := e.Service("web")
	if how != "helpless" && s.Refused.Descriptors == 0 {
		return fmt.Errorf("nothing was counted as refused: %+v", s)
	}
	// Neither loop is busy: over a second of nothing they use next to nothing.
	used := cpuTime()
	time.Sleep(time.Second)
	if used = cpuTime() - used; used > 500*time.Millisecond {
		return fmt.Errorf("the loops spin: %s of processor time in a quiet second", used)
	}
	for _, c := range waste {
		c.Close()
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := connect()
		if c != nil {
			c.Close()
		}
		if err == nil {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("after descriptors are free again: %w", err)
		}
	}
	if how == "helpless" {
		// Who waited is served after all.
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			s, _ := e.Service("web")
			if s.Active == 1+8 {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("those who waited in the queue were not served: %+v", s)
			}
		}
		var lost atomic.Int64
		e.onLoopsInTest(func(l *loop) {
			if l.paused {
				lost.Add(1)
			}
		})
		if lost.Load() > 0 {
			return fmt.Errorf("%d loops are still paused", lost.Load())
		}
		return nil
	}
	if n := reports.Load(); n != 1 {
		return fmt.Errorf("%d reports", n)
	}
	return nil
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
