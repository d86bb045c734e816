package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

// Both ends of a plugin's socket ask the kernel who the other one is. The data
// never leaves the machine, so there is nothing to encrypt.

// PeerCredentials are the transport credentials of a host: the process that
// listens on the socket must be the plugin, whose process id the function
// gives; it is asked at each connection. Use with
// [grpc.WithTransportCredentials].
func PeerCredentials(pid func() int) credentials.TransportCredentials {
	return &peerCredentials{check: func(peer *unix.Ucred) error {
		if want := pid(); int(peer.Pid) != want {
			return fmt.Errorf("the socket belongs to process %d, not to the plugin, which is %d", peer.Pid, want)
		}
		return nil
	}}
}

// hostCredentials are those of a plugin: only the host's user, or root, may
// connect.
func hostCredentials(uid uint32, log hclog.Logger) credentials.TransportCredentials {
	return &peerCredentials{check: func(peer *unix.Ucred) error {
		if slices.Contains([]uint32{0, uid}, peer.Uid) {
			return nil
		}
		log.Warn("refused a connection", "uid", peer.Uid, "pid", peer.Pid)
		return fmt.Errorf("user id %d may not use this plugin", peer.Uid)
	}}
}

// PeerInfo is what gRPC's peer package gives of a connection.
type PeerInfo struct {
	credentials.CommonAuthInfo
	// PID and UID of the other end when the connection was made.
	PID int
	UID int
}

// AuthType is the name of the way: SO_PEERCRED.
func (PeerInfo) AuthType() string { return "peercred" }

type peerCredentials struct {
	check func(peer *unix.Ucred) error
}

func (c *peerCredentials) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c.handshake(conn)
}

func (c *peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c.handshake(conn)
}

func (c *peerCredentials) handshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	peer, err := peerOf(conn)
	if err == nil {
		err = c.check(peer)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("checking the other end of the socket: %w", err)
	}
	return conn, PeerInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		PID:            int(peer.Pid), UID: int(peer.Uid),
	}, nil
}

func peerOf(conn net.Conn) (peer *unix.Ucred, err error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("it is no unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(controlErr, err)
}

func (c *peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "peercred"}
}

func (c *peerCredentials) Clone() credentials.TransportCredentials {
	return &peerCredentials{check: c.check}
}

func (c *peerCredentials) OverrideServerName(string) error { return nil }
