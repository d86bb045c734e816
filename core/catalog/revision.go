package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/state"
)

// revisionBlock is how many revisions are reserved by one write, so that
// counting up costs no disk.
const revisionBlock = 10_000

// revisions counts up, over restarts too: a revision that once stood for one
// content never stands for another.
type revisions struct {
	path string
	log  hclog.Logger
	// last that was given out, and the highest that may be without a write.
	last, reserved uint64
}

type savedRevision struct {
	// Reserved is the highest revision that may have been given out.
	Reserved uint64 `json:"reserved"`
}

func (r *revisions) load(path string, now func() time.Time, log hclog.Logger, troubles *state.Troubles) error {
	r.path, r.log = path, log
	if path == "" {
		r.reserved = ^uint64(0)
		return nil
	}
	var saved savedRevision
	err := state.Read(path, "catalog", 1, &saved)
	damaged := (*state.DamagedError)(nil)
	switch {
	case errors.As(err, &damaged):
		// The clock in microseconds is above every count.
		saved.Reserved = uint64(now().UnixMicro())
		troubles.Damaged("the revision goes on from the clock", damaged)
		log.Warn("the revision goes on from the clock", "reason", damaged)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("loading the catalog's revision: %w", err)
	}
	r.last, r.reserved = saved.Reserved, saved.Reserved
	return nil
}

// next gives a revision above all before.
func (r *revisions) next() uint64 {
	if r.last >= r.reserved {
		r.reserved = r.last + revisionBlock
		if err := state.Write(r.path, "catalog", 1, savedRevision{Reserved: r.reserved}); err != nil {
			// Going on is right: a plugin gets the whole state from a new core.
			r.log.Error("the revision can't be saved; it may begin below after a restart", "error", err)
		}
	}
	r.last++
	return r.last
}
