//go:build race

package e2e

// With the race detector on, the agent is built with it too.
func init() { raceFlags = []string{"-race"} }
