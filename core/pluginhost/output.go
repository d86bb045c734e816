package pluginhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// A plugin prints into files, opened for appending, which the core follows: a
// pipe would block or kill a plugin whose core has died. The files are bounded:
// once one is long and has been read it is emptied, while the plugin goes on
// writing at its end, wherever that is.
//
// Standard output is in memory, because its first line is needed even when the
// disk is full; so is standard error, where the disk has no room for it.

const (
	// longestFile is the size at which a file that has been read is emptied,
	// and longestBacklog that at which it is emptied unread, in bytes.
	longestFile    = 4 << 20
	longestBacklog = 64 << 20
	// longestLine is where a line is cut, in bytes.
	longestLine = 16 << 10
	// roomAhead is the room on disk that a file takes at first, in bytes.
	roomAhead = 64 << 10
	// lookWhileBusy is the time between looks at files that grow. Then the
	// kernel says when to look, and lookAnyway is for what it may miss. Where
	// it can't, the time between looks doubles up to lookWhileIdle.
	lookWhileBusy = 5 * time.Millisecond
	lookWhileIdle = time.Second
	lookAnyway    = time.Minute
)

// outputFile is the standard output or standard error of one process.
type outputFile struct {
	// append is the descriptor for the plugin, follow the core's own.
	append, follow *os.File
	offset         int64
	// partial is the line whose end hasn't come; cut is set while the rest of
	// a line that was too long is passed over.
	partial []byte
	cut     bool
}

// openOutput makes the file of a new process. What the process before said is
// kept in path.1.
func openOutput(path string) (*outputFile, error) {
	if err := os.Rename(path, path+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("keeping the output of the process before: %w", err)
	}
	write, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("making a file for the plugin's output: %w", err)
	}
	// What the first lines need is taken now: a disk that is full says so here.
	err = unix.Fallocate(int(write.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, roomAhead)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, errors.Join(fmt.Errorf("room for %s: %w", path, err), write.Close(), os.Remove(path))
	}
	follow, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("following the plugin's output: %w", err), write.Close())
	}
	return &outputFile{append: write, follow: follow}, nil
}

// memoryOutput makes a file that is on no disk; the name is for those who look.
func memoryOutput(name string) (*outputFile, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a file in memory for the plugin's output: %w", err)
	}
	follow := os.NewFile(uintptr(fd), name)
	write, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening a file in memory for the plugin's output: %w", err), follow.Close())
	}
	return &outputFile{append: write, follow: follow}, nil
}

// read hands what is new to take, line by line, and reports whether there was
// anything. It reads no further than the end that it found at first, so that a
// plugin that prints faster than it is read keeps nobody here.
func (f *outputFile) read(take func(line []byte)) (grew bool, err error) {
	info, err := f.follow.Stat()
	if err != nil {
		return false, err
	}
	size := info.Size()
	if size < f.offset { // emptied by someone else
		f.offset = 0
	}
	if size-f.offset > longestBacklog {
		return true, f.empty()
	}
	grew = size > f.offset
	buffer := make([]byte, min(size-f.offset, 64<<10))
	for f.offset < size {
		n, err := f.follow.ReadAt(buffer[:min(size-f.offset, int64(len(buffer)))], f.offset)
		f.offset += int64(n)
		f.lines(buffer[:n], take)
		if errors.Is(err, io.EOF) || err == nil && n == 0 {
			break
		} else if err != nil {
			return grew, err
		}
	}
	if f.offset > longestFile && f.append != nil {
		return grew, f.empty()
	}
	return grew, nil
}

// empty forgets what the file holds. What comes between the look at its size
// and this is lost, which happens only to a plugin that prints a lot.
func (f *outputFile) empty() error {
	f.offset = 0
	return f.follow.Truncate(0)
}

func (f *outputFile) lines(data []byte, take func(line []byte)) {
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		part := data
		if end >= 0 {
			part = data[:end]
		}
		data = data[len(part):]
		if !f.cut {
			f.partial = append(f.partial, part[:min(len(part), longestLine-len(f.partial))]...)
			f.cut = len(f.partial) == longestLine
		}
		if end >= 0 {
			data = data[1:]
			f.flush(take)
		}
	}
}

// flush gives the line so far as a whole one.
func (f *outputFile) flush(take func(line []byte)) {
	if len(f.partial) > 0 {
		take(f.partial)
	}
	f.partial, f.cut = f.partial[:0], false
}

// output follows both files of a process.
type output struct {
	stdout, stderr *outputFile
	log            *lineLog
	// offsets holds how far standard error has been read, for the core that
	// comes after one that was killed; nil when it is in memory.
	offsets *os.File
	// changes is the kernel's word that a file has grown; nil for none.
	changes *os.File

	stop     chan struct{}
	stopOnce sync.Once
	done     chan struct{}
}

// newOutput makes the files, that of standard error in a folder if one is given
// and has room, after reading what an earlier process said that nobody has
// read. Follow starts the following.
func newOutput(dir, name string, logger hclog.Logger, dropped func(lines int)) (_ *output, err error) {
	o := &output{log: newLineLog(logger, dropped), stop: make(chan struct{}), done: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.closeFiles())
		}
	}()
	if o.stdout, err = memoryOutput(name + ".stdout"); err != nil {
		return nil, err
	}
	if dir != "" {
		if err := o.onDisk(filepath.Join(dir, name)); err != nil {
			logger.Warn("the plugin's output is in memory only: what is not logged when the core ends is lost", "error", err)
		}
	}
	if o.stderr == nil {
		if o.stderr, err = memoryOutput(name + ".stderr"); err != nil {
			return nil, err
		}
	}
	o.changes = watchFiles(o.stdout.follow, o.stderr.follow)
	return o, nil
}

// onDisk opens the files that outlive the core.
func (o *output) onDisk(path string) error {
	offsets, err := os.OpenFile(path+".offsets", os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return fmt.Errorf("making a file for the plugin's output: %w", err)
	}
	o.offsets = offsets
	o.catchUp(path)
	stderr, err := openOutput(path + ".stderr")
	if err == nil {
		o.stderr = stderr
		return o.save()
	}
	o.offsets = nil
	return errors.Join(err, offsets.Close())
}

// watchFiles gives a file that can be read when one of the files has changed;
// nil where the machine has no more of the kind.
func watchFiles(files ...*os.File) *os.File {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	changes := os.NewFile(uintptr(fd), "inotify")
	for _, f := range files {
		if _, err := unix.InotifyAddWatch(fd, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.IN_MODIFY); err != nil {
			_ = changes.Close() // the files are looked at in any case
			return nil
		}
	}
	return changes
}

// offsetsForm holds the offset in a fixed width, so that one write replaces it.
const offsetsForm = "%20d\n"

func (o *output) save() error {
	if o.offsets == nil {
		return nil
	}
	_, err := o.offsets.WriteAt(fmt.Appendf(nil, offsetsForm, o.stderr.offset), 0)
	return err
}

// catchUp logs the end of the file of an earlier process. Without an offset
// that can be read there is none.
func (o *output) catchUp(path string) {
	var stderr int64
	if _, err := fmt.Fscanf(o.offsets, offsetsForm, &stderr); err != nil {
		return
	}
	o.catchUpWith(path+".stderr", stderr, o.log.stderr)
}

// longestCatchUp is how much of an earlier file is read at most, in bytes.
const longestCatchUp = 64 << 10

func (o *output) catchUpWith(path string, offset int64, take func([]byte)) {
	file, err := os.Open(path)
	if err != nil {
		return // there is nothing to read
	}
	f := &outputFile{follow: file}
	if info, err := file.Stat(); err == nil && offset >= 0 && offset <= info.Size() {
		f.offset = max(offset, info.Size()-longestCatchUp)
		_, err = f.read(take)
		f.flush(take)
		if err != nil {
			o.log.trouble(err)
		}
	}
	_ = file.Close() // it was only read
}

// follow reads both files until Close; it is run as a goroutine.
func (o *output) follow() {
	defer close(o.done)
	wait := lookWhileBusy
	for !o.stopped() {
		switch {
		case o.look():
			wait = lookWhileBusy
			o.pause(wait)
		case o.changes != nil:
			o.await()
		default:
			o.pause(wait)
			wait = min(2*wait, lookWhileIdle)
		}
	}
	o.look()
	o.stdout.flush(o.log.stdout)
	o.stderr.flush(o.log.stderr)
	o.log.reportDropped(time.Now(), true)
}

func (o *output) stopped() bool {
	select {
	case <-o.stop:
		return true
	default:
		return false
	}
}

// pause waits for a time, or for Close.
func (o *output) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-o.stop:
	case <-timer.C:
	}
}

// await waits until a file has changed, or for Close, which moves the deadline
// into the past after it has closed stop.
func (o *output) await() {
	limit := lookAnyway
	if o.log.unsaid > 0 {
		limit = reportEvery
	}
	err := o.changes.SetReadDeadline(time.Now().Add(limit))
	if o.stopped() {
		return
	}
	var events [4096]byte
	if err == nil {
		_, err = o.changes.Read(events[:])
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		o.pause(lookWhileIdle)
	}
}

func (o *output) look() (busy bool) {
	out, err1 := o.stdout.read(o.log.stdout)
	errs, err2 := o.stderr.read(o.log.stderr)
	var err3 error
	if out || errs {
		err3 = o.save()
	}
	if err := errors.Join(err1, err2, err3); err != nil {
		o.log.trouble(err)
	}
	o.log.reportDropped(time.Now(), false)
	return out || errs
}

// Close reads what is left, once, and lets go of the files. The process should
// have ended.
func (o *output) Close() error {
	o.stopOnce.Do(func() {
		close(o.stop)
		if o.changes != nil {
			_ = o.changes.SetReadDeadline(time.Unix(1, 0)) // at the worst it waits a minute
		}
	})
	<-o.done
	return o.closeFiles()
}

func (o *output) closeFiles() error {
	var errs []error
	for _, f := range []*os.File{o.offsets, o.changes} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	for _, f := range []*outputFile{o.stdout, o.stderr} {
		if f != nil {
			errs = append(errs, f.append.Close(), f.follow.Close())
		}
	}
	return errors.Join(errs...)
}

// handshake is the first line of the standard output, as go-plugin reads it:
// it ends after the line, so that nothing is read twice or waited for.
type handshake struct {
	file *os.File
	// exited ends it for a process that says nothing more; so does ctx.
	exited <-chan struct{}
	ctx    context.Context
	offset int64
	done   bool
}

// longestHandshake is where a line that is none of go-plugin's is cut, in bytes.
const longestHandshake = 4096

// Read waits for the first line.
func (h *handshake) Read(p []byte) (int, error) {
	if h.done || len(p) == 0 {
		return 0, io.EOF
	}
	last := false
	for {
		n, err := h.file.ReadAt(p[:min(len(p), longestHandshake)], h.offset)
		if n > 0 {
			if end := bytes.IndexByte(p[:n], '\n'); end >= 0 {
				n, h.done = end+1, true
			}
			h.offset += int64(n)
			h.done = h.done || h.offset >= longestHandshake
			return n, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if last {
			return 0, io.EOF
		}
		select {
		case <-h.exited:
			last = true // what it printed before its end is still to be read
		case <-h.ctx.Done():
			return 0, io.EOF
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// Close does nothing: the file is the output's.
func (h *handshake) Close() error { return nil }
