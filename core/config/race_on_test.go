//go:build race

package config

// garbage is the size of the files of TestGarbage in bytes: less where each byte
// takes ten times as long.
const garbage = 1 << 14
