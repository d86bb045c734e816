package vip

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/state"
)

// FileName of the leases in the data folder.
const FileName = "leases.json"

// FileOptions of a File.
type FileOptions struct {
	// Logger gets what was found damaged; nil for none.
	Logger hclog.Logger
	// Troubles gets what is wrong with the file; nil for none.
	Troubles *state.Troubles
	// Now is the clock; nil for the machine's.
	Now func() time.Time
}

// File keeps the leases of this node alone in a file. A claim costs one
// appended line, whatever the number of leases; Sync puts the lines of many
// claims on disk at once.
type File struct {
	path string // empty for a preview
	log  hclog.Logger
	now  func() time.Time
	// troubles is nil for a preview.
	troubles *state.Troubles

	mu    sync.Mutex
	table *table
	file  *os.File
	// size of the file up to the last whole line, in bytes, and its lines.
	size  int64
	lines int
	dirty bool
	// failing is set while a record can't be made, retryAt is when to try again
	// even if there is none to make.
	failing bool
	retryAt time.Time
}

// OpenFile reads the leases at path, or begins with none when there is no such
// file. Of a damaged file, the lines that are whole count, and for the others
// those of the file before it, which is kept beside it for that; the damaged one
// is kept too, and the log says so. What is lost all the same are leases taken
// since the last start: their services get the address that their name leads
// to, which is mostly the one they had. A file that can't be read at all, or
// that a newer version wrote, is an error, because going on without it could
// move every service.
func OpenFile(path string, options FileOptions) (*File, error) {
	f := &File{path: path, log: options.Logger, now: options.Now, troubles: options.Troubles, table: newTable()}
	if f.log == nil {
		f.log = hclog.NewNullLogger()
	}
	if f.now == nil {
		f.now = time.Now
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading leases: %w", err)
	}
	missing, damage := err != nil, ""
	if missing {
		// Whoever took the file away wants to begin anew.
		_ = os.Remove(path + oldSuffix)
	} else if damage, err = f.read(data); err != nil {
		return nil, fmt.Errorf("reading leases: %s: %w", path, err)
	}
	if err := f.rewrite(); err != nil {
		if _, folder := os.Stat(filepath.Dir(path)); folder != nil {
			return nil, fmt.Errorf("writing leases: %w", err)
		}
		// A full disk must not keep the known leases from use. A new one waits
		// until it can be recorded.
		f.wrote(err)
		if !missing && damage == "" {
			f.resume(int64(len(data)))
		}
	}
	return f, nil
}

// read fills the table from the bytes of a file, and gives what is damaged.
func (f *File) read(data []byte) (damage string, err error) {
	claims, damage, err := decodeJournal(data)
	if err != nil {
		return "", err
	}
	if damage != "" {
		f.salvage(&claims, damage)
	}
	for _, c := range claims {
		f.table.put(c)
	}
	f.table.sortRests()
	return damage, nil
}

// resume goes on with the file as it is, which holds so many bytes.
func (f *File) resume(size int64) {
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return
	}
	f.file, f.size, f.lines, f.dirty = file, size, len(f.table.byAddress), false
}

// oldSuffix marks the file that was there before the last rewrite.
const oldSuffix = ".old"

// salvage puts the claims of the file before in front of those that could be
// read, as if the lines that are lost had not been written, and moves the
// damaged file aside.
func (f *File) salvage(claims *[]claim, damage string) {
	kept, restored := len(*claims), 0
	if data, err := os.ReadFile(f.path + oldSuffix); err == nil {
		if before, _, err := decodeJournal(data); err == nil {
			restored = len(before)
			*claims = append(before, *claims...)
		}
	}
	aside := state.MoveAside(f.path, damage)
	f.troubles.Damaged("leases of VIPs are taken from what could be read and from the file before", aside)
	f.log.Error("leases of VIPs are damaged: what could be read is kept, completed by the file before; a lease that is lost is taken again by its service's name",
		"path", f.path, "reason", damage, "read", kept, "from_before", restored, "moved_to", aside.MovedTo)
}

// Close puts everything on disk.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	err := errors.Join(f.sync(), f.file.Close())
	f.file = nil
	f.path = ""
	return err
}

// Configure implements Store.
func (f *File) Configure(pools []Pool, reserved []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table.configure(pools, reserved)
}

// Claim implements Store.
func (f *File) Claim(pool, service string) (Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now().UTC().Round(0)
	// What has rested long enough needs no record: a reader sees the time.
	f.table.rested(now)
	changed, err := f.table.decide(pool, service, now)
	if err != nil {
		return Lease{}, err
	}
	if err := f.record(changed); err != nil {
		return Lease{}, fmt.Errorf("%w: %w", ErrWaiting, err)
	}
	l, _ := f.table.lease(service)
	return l, nil
}

// Lease implements Store.
func (f *File) Lease(service string) (Lease, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table.lease(service)
}

// Release implements Store.
func (f *File) Release(service string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.record(f.table.release(service, f.now().UTC().Round(0))); err != nil {
		return fmt.Errorf("releasing the lease of %q: %w", service, err)
	}
	return nil
}

// List implements Store.
func (f *File) List() []Lease {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table.rested(f.now())
	return f.table.list()
}

// Preview implements Store.
func (f *File) Preview() Store {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &File{table: f.table.clone(), log: hclog.NewNullLogger(), now: f.now}
}

// record appends claims to the file and brings them into the table: both or
// neither.
func (f *File) record(claims []claim) error {
	if len(claims) == 0 {
		return nil
	}
	if f.path != "" {
		err := f.append(encodeClaims(claims))
		f.wrote(err)
		if err != nil {
			return err
		}
		f.lines += len(claims)
	}
	for _, c := range claims {
		f.table.put(c)
	}
	return nil
}

// retryInterval is how often a file that can't be written is tried again.
const retryInterval = 5 * time.Second

// wrote notes the outcome of a write.
func (f *File) wrote(err error) {
	news := err != nil && !f.failing
	f.failing, f.retryAt = err != nil, f.now().Add(retryInterval)
	f.troubles.Written(f.path, err)
	if news {
		f.log.Error("leases of VIPs can't be written: services that have one keep it, new ones wait", "path", f.path, "error", err)
	}
}

func (f *File) append(data []byte) error {
	if f.file == nil {
		if err := f.rewrite(); err != nil {
			return err
		}
	}
	if _, err := f.file.Write(data); err != nil {
		// Half a line would spoil the next one. If it can't be taken back, the
		// next claim writes the file anew.
		if terr := f.file.Truncate(f.size); terr != nil {
			_ = f.file.Close()
			f.file = nil
		}
		return err
	}
	f.size += int64(len(data))
	f.dirty = true
	return nil
}

// Sync implements Store.
func (f *File) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" {
		return nil
	}
	// Writing may succeed again though nobody has a record to make.
	if f.failing {
		if f.now().Before(f.retryAt) {
			return nil
		}
		err := f.rewrite()
		f.wrote(err)
		return err
	}
	// Lines that later ones have overtaken are cleared away once they are the
	// most.
	if f.lines > 2*len(f.table.byAddress)+1000 {
		return f.rewrite()
	}
	err := f.sync()
	if err != nil {
		f.wrote(err)
	}
	return err
}

func (f *File) sync() error {
	if !f.dirty || f.file == nil {
		return nil
	}
	if err := f.file.Sync(); err != nil {
		return fmt.Errorf("saving leases: %w", err)
	}
	f.dirty = false
	return nil
}

// rewrite replaces the file by one that holds what the table does, and opens
// it for more.
func (f *File) rewrite() error {
	claims := make([]claim, 0, len(f.table.byAddress))
	for _, c := range f.table.byAddress {
		claims = append(claims, c)
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), a.Address.Compare(b.Address))
	})
	data := append(journalHeader(), encodeClaims(claims)...)
	f.keepOld()
	if err := state.Replace(f.path, data); err != nil {
		return err
	}
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file, f.size, f.lines, f.dirty = file, int64(len(data)), len(claims), false
	return nil
}

// keepOld gives the file a second name, under which it outlives its being
// replaced. It is a help for bad days, and no reason to stop if it fails.
func (f *File) keepOld() {
	linked := f.path + oldSuffix + ".new"
	_ = os.Remove(linked)
	if err := os.Link(f.path, linked); err == nil {
		_ = os.Rename(linked, f.path+oldSuffix)
	}
}
