package admin

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// metricsLogEvery is how often at most the page of metrics logs a line: a
// client that has gone away is an error for each metric that it does not get.
const metricsLogEvery = time.Minute

// metricsLog is where promhttp tells its errors. A client that goes away is no
// fault of ours; metrics that can't be gathered are.
type metricsLog struct {
	log hclog.Logger

	mu   sync.Mutex
	next map[hclog.Level]time.Time
	left map[hclog.Level]int // lines left out
}

func newMetricsLog(logger hclog.Logger) *metricsLog {
	return &metricsLog{log: logger, next: map[hclog.Level]time.Time{}, left: map[hclog.Level]int{}}
}

// Println implements promhttp.Logger.
func (m *metricsLog) Println(words ...any) {
	level := hclog.Warn
	for i, word := range words {
		err, ok := word.(error)
		if !ok {
			continue
		}
		// Its text names both ends, and ours by a name that the socket had
		// for a moment.
		if failed, ok := errors.AsType[*net.OpError](err); ok {
			level, words[i] = hclog.Debug, failed.Err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Before(m.next[level]) {
		m.left[level]++
		return
	}
	args := []any{"error", strings.TrimSpace(fmt.Sprintln(words...))}
	if n := m.left[level]; n > 0 {
		args = append(args, "more_since_the_last_line", n)
	}
	m.next[level], m.left[level] = now.Add(metricsLogEvery), 0
	m.log.Log(level, "serving /metrics", args...)
}
