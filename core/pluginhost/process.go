package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	version "github.com/hashicorp/go-version"
	"google.golang.org/grpc"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// Deadlines of the calls that the host makes itself.
const (
	startTimeout    = 10 * time.Second
	describeTimeout = 5 * time.Second
	shutdownTimeout = 5 * time.Second
	// exitTimeout is how long a plugin may take to exit after Shutdown, and
	// terminateTimeout after SIGTERM.
	exitTimeout      = 5 * time.Second
	terminateTimeout = 3 * time.Second
)

// Process is one running plugin.
type Process struct {
	image       *image
	child       *child
	conn        *grpc.ClientConn
	client      *dataplane.Client
	description *dataplane.HostDescription
	output      *output
	runtimeDir  string
	log         hclog.Logger

	done chan struct{}
	// ack and failed tell the supervisor what Acknowledged and Fail were told.
	ackOnce sync.Once
	ack     chan struct{}
	failed  chan error
}

// launchOptions are what a launch needs beside the image.
type launchOptions struct {
	runtimeDir string
	// stateDir tells the next core whose process it is; empty for one that is
	// started for a few questions.
	stateDir string
	// logDir is where output goes; empty for nowhere but the log.
	logDir string
	logger hclog.Logger
	// started is told of the process before anything is asked of it; nil for
	// nobody.
	started func(pid int, runtimeDir string)
	dropped func(lines int)
}

// launch starts a plugin and asks what it is. When ctx ends before that, or
// anything fails, nothing is left of it.
func launch(ctx context.Context, i *image, options launchOptions) (_ *Process, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("it did not get ready in time"))
	defer cancel()
	p := &Process{
		image: i, log: options.logger, done: make(chan struct{}),
		ack: make(chan struct{}), failed: make(chan error, 1),
	}
	defer func() {
		if err != nil {
			err = p.abort(ctx, err)
		}
	}()
	if p.runtimeDir, err = makeRuntimeDir(options.runtimeDir, options.stateDir); err != nil {
		return nil, &machineError{err}
	}
	output, err := newOutput(options.logDir, i.Name, options.logger, options.dropped)
	if err != nil {
		return nil, &machineError{err}
	}
	p.output = output
	go output.follow()
	if err := p.connect(ctx, options); err != nil {
		return nil, err
	}
	if err := p.describe(ctx); err != nil {
		return nil, err
	}
	go p.cleanUpAfter()
	return p, nil
}

// connect starts the process and reads where it listens; go-plugin negotiates
// the protocol. The connection is ours: go-plugin's would ask the plugin to
// end when it is closed, and can't be closed when it was never made.
func (p *Process) connect(ctx context.Context, options launchOptions) error {
	addr, err := p.negotiate(ctx, options)
	if err != nil {
		return err
	}
	dialer := func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, addr.Network(), addr.String())
	}
	dialOptions := append(dataplane.GRPCDialOptions(),
		grpc.WithTransportCredentials(dataplane.PeerCredentials(p.PID)),
		grpc.WithContextDialer(dialer),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
	)
	if p.conn, err = grpc.NewClient("passthrough:///"+p.image.Name, dialOptions...); err != nil {
		return fmt.Errorf("connecting to the plugin: %w", err)
	}
	p.client = dataplane.NewClient(p.conn)
	return nil
}

// describe asks the plugin what it is, which must be what its file's name says.
func (p *Process) describe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	d, err := p.client.Describe(ctx)
	if err != nil {
		return err
	}
	p.description = d
	if d.Name != p.image.Name {
		return fmt.Errorf("the file's name says that it is the dataplane %q, the plugin that it is %q", p.image.Name, d.Name)
	}
	v, err := version.NewSemver(d.Version)
	if err != nil || !v.Equal(p.image.Version) {
		return fmt.Errorf("the file's name says version %s, the plugin %q", p.image.Version.Original(), d.Version)
	}
	if d.Protocol != dataplane.ProtocolVersion {
		return fmt.Errorf("the plugin speaks version %d of the protocol, and this core version %d", d.Protocol, dataplane.ProtocolVersion)
	}
	return nil
}

// abort undoes a launch that failed, and adds to its error what is known of the
// process.
func (p *Process) abort(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if p.child != nil {
		if p.child.waitFor(50*time.Millisecond) && p.child.ownEnd() {
			err = fmt.Errorf("it %s: %w", p.child.fate(), err)
		}
		p.child.kill()
		<-p.child.exited
	}
	left := p.cleanUp()
	if words := p.lastWords(); words != "" {
		err = fmt.Errorf("%w; it printed %s", err, words)
	}
	return errors.Join(err, left)
}

// lastWords gives what the process printed last, once the output is closed.
func (p *Process) lastWords() string {
	if p.output == nil {
		return ""
	}
	if words := p.output.log.lastWords(); words != "" {
		return strconv.Quote(words)
	}
	return ""
}

// cleanUpAfter waits for the end of a process that was launched. It is the
// owner of what the process used.
func (p *Process) cleanUpAfter() {
	defer close(p.done)
	<-p.child.exited
	if err := p.cleanUp(); err != nil {
		p.log.Warn("something of the plugin's process is left", "error", err)
	}
}

func (p *Process) cleanUp() error {
	var errs []error
	if p.conn != nil {
		errs = append(errs, p.conn.Close())
	}
	if p.output != nil {
		errs = append(errs, p.output.Close())
	}
	if p.runtimeDir != "" {
		errs = append(errs, os.RemoveAll(p.runtimeDir))
	}
	return errors.Join(errs...)
}

// stop ends the process in the mode DETACH: it is asked, then told, then
// killed. It returns when the process is gone.
func (p *Process) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := p.client.Shutdown(ctx, dataplane.CloseDetach)
	patience := exitTimeout
	if err != nil {
		patience = time.Second // it may be on its way out already
	}
	if !p.child.waitFor(patience) {
		p.log.Warn("the plugin does not end when asked, sending SIGTERM", "error", err)
		p.child.signal(syscall.SIGTERM)
	}
	if !p.child.waitFor(terminateTimeout) {
		p.log.Warn("the plugin does not end on SIGTERM, killing it", "pid", p.PID())
		p.child.kill()
	}
	<-p.done
}

// kill ends the process at once, and returns when it is gone.
func (p *Process) kill() {
	p.child.kill()
	<-p.done
}

// Client calls the plugin.
func (p *Process) Client() *dataplane.Client { return p.client }

// Description is what the plugin said of itself; never nil.
func (p *Process) Description() *dataplane.HostDescription { return p.description }

// Binary that it was started from.
func (p *Process) Binary() Binary { return p.image.Binary }

// PID of the process.
func (p *Process) PID() int { return p.child.pid }

// Started is when the process was started.
func (p *Process) Started() time.Time { return p.child.started }

// Done is closed when the process has ended, has been reaped, and has left
// nothing behind.
func (p *Process) Done() <-chan struct{} { return p.done }

// Acknowledged says that the plugin has acknowledged an Apply: this version
// works. Calls after the first do nothing.
func (p *Process) Acknowledged() { p.ackOnce.Do(func() { close(p.ack) }) }

// Fail ends the process as one that crashed, for the reason given; for a
// plugin that hangs. It returns at once.
func (p *Process) Fail(reason error) {
	select {
	case p.failed <- reason:
	default: // it has failed already
	}
}

// end gives the reason why the process has ended, once done is closed.
func (p *Process) end() error {
	if words := p.lastWords(); words != "" {
		return fmt.Errorf("it %s; it printed %s", p.child.fate(), words)
	}
	return errors.New("it " + p.child.fate())
}
