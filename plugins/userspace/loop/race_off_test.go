//go:build !race

package loop

// raceEnabled makes long single-threaded tests shorter.
const raceEnabled = false
