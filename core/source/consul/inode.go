package consul

import (
	"io/fs"
	"syscall"
)

// inode of a file, so that one which was replaced within the clock's grain is
// known as another.
func inode(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
