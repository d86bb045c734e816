//go:build !race

package config

// garbage is the size of the files of TestGarbage in bytes.
const garbage = 1 << 20
