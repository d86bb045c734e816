package dispatch

import (
	"context"

	"github.com/patchbay-proxy/patchbay/core/catalog"
)

// Session keeps one dataplane plugin at the newest snapshot. All methods may
// be called from any goroutine.
type Session struct{}

// New makes a session; nothing is sent before Run and Attach.
func New(options Options) *Session { return &Session{} }

// Run sends until ctx ends, and then returns nil. It returns an error that
// wraps [dataplane.ErrStaleSession] when a newer core has taken the plugin
// over: the session is then of no more use.
func (s *Session) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Publish takes in the newest state. It never blocks. Changes must come in
// the order of their snapshots; the first need not name ids.
func (s *Session) Publish(change catalog.Change) {}

// Attach gives the session a plugin that has just been configured and found
// that many services of ours in place. It takes the place of the one before.
func (s *Session) Attach(plugin Applier, adopted int) {}

// Detach takes the plugin away, if it is the one attached; an Apply in flight
// is given up.
func (s *Session) Detach(plugin Applier) {}

// Release says that every source has been read.
func (s *Session) Release() {}

// SetHold stops the session from sending, or lets it go on.
func (s *Session) SetHold(hold bool) {}

// Status tells how the session stands.
func (s *Session) Status() Status { return Status{} }

// Acknowledged tells what the plugin has said of one service.
func (s *Session) Acknowledged(id string) Ack { return Ack{} }
