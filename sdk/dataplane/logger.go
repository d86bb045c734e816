package dataplane

import (
	"os"
	"sync"

	"github.com/hashicorp/go-hclog"
)

// EnvLogLevel is the environment variable with which a host sets a plugin's
// log level: trace, debug, info, warn or error; info without it.
const EnvLogLevel = "PATCHBAY_LOG_LEVEL"

// Logger is the log of a plugin: lines of JSON on standard error, which the
// core follows and puts into its own log under the plugin's name. Use the keys
// service, endpoint, dataplane and revision for what they name.
func Logger() hclog.Logger { return logger() }

var logger = sync.OnceValue(func() hclog.Logger {
	level := hclog.LevelFromString(os.Getenv(EnvLogLevel))
	if level == hclog.NoLevel {
		level = hclog.Info
	}
	return hclog.New(&hclog.LoggerOptions{Level: level, Output: os.Stderr, JSONFormat: true})
})
