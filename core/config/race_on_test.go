//go:build race

package config

// garbage is the size of most files of TestGarbage in bytes; some are of eight
// times that: less where each byte
// takes ten times as long.
const garbage = 1 << 14
