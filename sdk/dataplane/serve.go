package dataplane

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// PluginName is the name of the one plugin in the set of go-plugin.
const PluginName = "dataplane"

// EnvHostUID is the environment variable in which a host gives its user id:
// that user and root may connect. Without it, the plugin's own user may.
const EnvHostUID = "PATCHBAY_HOST_UID"

// Handshake is what go-plugin compares before anything else; the version of
// the contract is negotiated by [VersionedPlugins].
var Handshake = plugin.HandshakeConfig{MagicCookieKey: "PATCHBAY_PLUGIN", MagicCookieValue: "patchbay.dataplane"}

// VersionedPlugins are a host's plugin sets by major version of the contract:
// what it dispenses as [PluginName] is a [*Client].
func VersionedPlugins() map[int]plugin.PluginSet {
	return map[int]plugin.PluginSet{ProtocolVersion: {PluginName: &grpcPlugin{}}}
}

// grpcPlugin joins client and server to go-plugin.
type grpcPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	server *Server // nil in a host
}

func (p *grpcPlugin) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	p.server.Register(g)
	return nil
}

func (p *grpcPlugin) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewClient(conn), nil
}

// Serve runs a plugin: it is what main calls, and it returns when the process
// is to exit. The host ends a plugin with Shutdown, or by SIGTERM, which is
// the same as [CloseDetach]; then Serve returns when the dataplane's Close has.
// SIGINT is the host's business and is ignored. A host that disappears changes
// nothing: the plugin carries traffic on, and waits for the next one.
//
// Standard output carries one line for the host; after that it and standard
// error are the plugin's log, and what an author prints ends up in the core's.
//
// Started by hand, a plugin says what it is and exits; with -describe it
// prints its [Description] as JSON.
func Serve(d Dataplane) {
	if os.Getenv(Handshake.MagicCookieKey) != Handshake.MagicCookieValue {
		os.Exit(byHand(d, os.Args[1:], os.Stdout, os.Stderr))
	}
	if err := serve(d, Logger()); err != nil {
		Logger().Error("the plugin ends", "error", err)
		os.Exit(1)
	}
}

// closeTimeout is how long a plugin that is told to end waits for an Apply
// that still runs.
const closeTimeout = 10 * time.Second

func serve(d Dataplane, log hclog.Logger) error {
	uid, err := hostUID()
	if err != nil {
		return err
	}
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	// Notified and not ignored, as programs that the plugin starts would
	// inherit the latter. A broken pipe must not end the process: standard
	// error may be one.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)

	t := &transport{server: NewServer(d, ServerOptions{Logger: log}), ending: make(chan struct{})}
	closed, err := t.start(uid, log)
	if err != nil {
		return err
	}
	select {
	case <-t.server.Ended():
	case <-closed:
		log.Debug("the host has closed the plugin")
	case <-terminate:
		log.Info("terminated: detaching")
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err = t.server.Close(ctx)
	t.stop()
	<-closed
	return err
}

func hostUID() (uint32, error) {
	text := os.Getenv(EnvHostUID)
	if text == "" {
		return uint32(os.Geteuid()), nil
	}
	uid, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s is %q, not a user id", EnvHostUID, text)
	}
	return uint32(uid), nil
}

// transport is go-plugin's server around ours.
type transport struct {
	server *Server
	grpc   *grpc.Server
	ending chan struct{} // closed by stop
	cancel context.CancelFunc
}

// start brings the server up and tells the host where it listens. The channel
// is closed when go-plugin has stopped serving.
//
// go-plugin's test mode is what serves without taking os.Stdout and os.Stderr:
// otherwise it replaces them by pipes that block the whole plugin once its host
// has gone. The one line of the handshake is written here instead.
func (t *transport) start(uid uint32, log hclog.Logger) (<-chan struct{}, error) {
	var ctx context.Context
	ctx, t.cancel = context.WithCancel(context.Background())
	listening, closed := make(chan *plugin.ReattachConfig, 1), make(chan struct{})
	config := &plugin.ServeConfig{
		HandshakeConfig:  Handshake,
		VersionedPlugins: map[int]plugin.PluginSet{ProtocolVersion: {PluginName: &grpcPlugin{server: t.server}}},
		Logger:           log.Named("go-plugin"),
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			options = append(options, GRPCServerOptions()...)
			options = append(options, grpc.Creds(hostCredentials(uid, log)), grpc.ChainStreamInterceptor(t.endStreams))
			t.grpc = grpc.NewServer(options...)
			return t.grpc
		},
		Test: &plugin.ServeTestConfig{Context: ctx, ReattachConfigCh: listening, CloseCh: closed},
	}
	go plugin.Serve(config) // ends with closed, which serve waits for
	select {
	case at := <-listening:
		_, err := fmt.Fprintf(os.Stdout, "%d|%d|%s|%s|%s|\n",
			plugin.CoreProtocolVersion, at.ProtocolVersion, at.Addr.Network(), at.Addr, at.Protocol)
		if err != nil {
			return closed, fmt.Errorf("telling the host where the plugin listens: %w", err)
		}
		return closed, nil
	case <-closed:
		return closed, fmt.Errorf("the plugin can't listen in %q", os.Getenv(plugin.EnvUnixSocketDir))
	}
}

// endStreams ends go-plugin's own streams, which otherwise live as long as
// their host and would hold up the end.
func (t *transport) endStreams(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !strings.HasPrefix(info.FullMethod, "/plugin.") {
		return handler(srv, stream)
	}
	done := make(chan error, 1)
	go func() { done <- handler(srv, stream) }() // ends when the stream does
	select {
	case err := <-done:
		return err
	case <-t.ending:
		return status.Error(codes.Unavailable, "the plugin has ended")
	}
}

// stop lets calls that are being answered, such as Shutdown, have their answer.
func (t *transport) stop() {
	close(t.ending)
	graceful := make(chan struct{})
	go func() { defer close(graceful); t.grpc.GracefulStop() }()
	select {
	case <-graceful:
	case <-time.After(2 * time.Second):
		t.grpc.Stop()
		<-graceful
	}
	t.cancel()
}

// byHand answers a person, and gives the exit status.
func byHand(d Dataplane, args []string, stdout, stderr io.Writer) int {
	about := d.Describe()
	if slices.Contains(args, "-describe") || slices.Contains(args, "--describe") {
		data, err := describeJSON(about)
		if err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		fmt.Fprintf(stdout, "%s\n", data)
		return 0
	}
	fmt.Fprintf(stderr, `This is the dataplane %[1]s, version %[2]s: a plugin of Patchbay.

It is run by "patchbay agent", not by hand. Put it into the agent's plugin_dir as

    patchbay-dataplane-%[1]s_v%[2]s

owned by root or the agent's user and writable by no one else, and add to the configuration

    dataplane %[1]q {}

With -describe it prints what it can do and the arguments it takes, as JSON.
`, about.Name, about.Version)
	return 1
}

// describeJSON gives a description as JSON, the same bytes each time.
func describeJSON(d Description) ([]byte, error) {
	if _, err := encodeDescription(d); err != nil {
		return nil, fmt.Errorf("the plugin describes itself wrongly: %w", err)
	}
	configSchema, err := schema.Of(d.Config)
	if err != nil {
		return nil, err
	}
	optionsSchema, err := schema.Of(d.Options)
	if err != nil {
		return nil, err
	}
	c, p := d.Capabilities, d.Privileges
	c.Protocols, c.Families, c.FrontendKinds = listed(c.Protocols), listed(c.Families), listed(c.FrontendKinds)
	c.Balance, p.Capabilities = listed(c.Balance), listed(p.Capabilities)
	return json.MarshalIndent(struct {
		Name          string         `json:"name"`
		Version       string         `json:"version"`
		Protocol      int            `json:"protocol"`
		Capabilities  Capabilities   `json:"capabilities"`
		Privileges    Privileges     `json:"privileges"`
		ConfigSchema  *schema.Schema `json:"config_schema"`
		OptionsSchema *schema.Schema `json:"options_schema"`
	}{d.Name, d.Version, ProtocolVersion, c, p, configSchema, optionsSchema}, "", "  ")
}

// listed makes an empty list of none, as JSON shows them differently.
func listed[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
