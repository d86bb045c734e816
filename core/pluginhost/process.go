package pluginhost

import (
	"time"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// Process is one running plugin.
type Process struct{}

// Client calls the plugin.
func (p *Process) Client() *dataplane.Client { return nil }

// Description is what the plugin said of itself; never nil.
func (p *Process) Description() *dataplane.HostDescription { return nil }

// Binary that it was started from.
func (p *Process) Binary() Binary { return Binary{} }

// PID of the process.
func (p *Process) PID() int { return 0 }

// Started is when the process was started.
func (p *Process) Started() time.Time { return time.Time{} }

// Done is closed when the process has ended and has been reaped.
func (p *Process) Done() <-chan struct{} { return nil }

// Acknowledged says that the plugin has acknowledged an Apply: this version
// works. Calls after the first do nothing.
func (p *Process) Acknowledged() {}

// Fail ends the process as one that crashed, for the reason given; for a
// plugin that hangs.
func (p *Process) Fail(reason error) {}
