package loop

import (
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestSelf: a socket that has met itself is recognised. It happens when a
// connect to a port of this host that nobody listens on gets this very port as
// its own.
func TestSelf(t *testing.T) {
	for _, ip := range []string{"127.8.4.1", "::1"} {
		k := &system{}
		to, err := newSockaddr(freeAddress(t, ip))
		if err != nil {
			t.Fatal(err)
		}
		fd, errno := k.socket(to.family)
		if errno != 0 {
			t.Fatal(errno)
		}
		defer k.close(fd)
		if errno := bindTo(int(fd), &to); errno != 0 {
			t.Fatal(errno)
		}
		if errno := k.connect(fd, &to); errno != 0 && errno != unix.EINPROGRESS {
			t.Fatal(errno)
		}
		if !k.self(fd) {
			t.Errorf("%s: not recognised", ip)
		}
		p := newPeer(t, ip, echo)
		if to, err = newSockaddr(p.address); err != nil {
			t.Fatal(err)
		}
		other, errno := k.socket(to.family)
		if errno != 0 {
			t.Fatal(errno)
		}
		defer k.close(other)
		if errno := k.connect(other, &to); errno != 0 && errno != unix.EINPROGRESS {
			t.Fatal(errno)
		}
		if k.self(other) {
			t.Errorf("%s: an ordinary connection is taken for one with itself", ip)
		}
	}
}

func TestSockaddr(t *testing.T) {
	for _, a := range []string{"127.0.0.1:80", "255.254.253.252:65535", "[::1]:1", "[2001:db8::5]:4660"} {
		want := netip.MustParseAddrPort(a)
		s, err := newSockaddr(want)
		if err != nil {
			t.Fatal(err)
		}
		var as unix.RawSockaddrAny
		if s.family == unix.AF_INET {
			*(*unix.RawSockaddrInet4)(unsafe.Pointer(&as)) = s.in4
		} else {
			*(*unix.RawSockaddrInet6)(unsafe.Pointer(&as)) = s.in6
		}
		if got := addressOf(&as); got != want {
			t.Errorf("%s became %s", want, got)
		}
	}
	if _, err := newSockaddr(netip.MustParseAddrPort("[fe80::1%no-such-interface]:80")); err == nil {
		t.Error("a zone that is no interface was accepted")
	}
}
