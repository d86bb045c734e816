//go:build !race

package config

// garbage is the size of most files of TestGarbage in bytes; some are of eight
// times that.
const garbage = 1 << 17
