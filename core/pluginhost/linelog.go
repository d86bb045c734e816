package pluginhost

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/hashicorp/go-hclog"
)

// Limits of what a plugin may put into the core's log.
const (
	linesPerSecond = 100
	linesAtOnce    = 500
	// reportEvery is how often the log says that lines were dropped.
	reportEvery = 10 * time.Second
	// tailLines is how many of the last lines are kept, to explain an end.
	tailLines = 5
	// tailLine is how much of each is kept, in bytes.
	tailLine = 500
)

// lineLog puts lines that a plugin printed into the core's log: hclog's JSON
// as what it says, anything else as text. Lines beyond the limits are counted.
type lineLog struct {
	logger  hclog.Logger
	dropped func(lines int)

	// Used by the following goroutine alone.
	tokens    float64
	refilled  time.Time
	unsaid    int // dropped lines that the log doesn't know of
	reported  time.Time
	panicking bool
	troubled  bool

	mu   sync.Mutex
	tail []string
}

func newLineLog(logger hclog.Logger, dropped func(lines int)) *lineLog {
	return &lineLog{logger: logger, dropped: dropped, tokens: linesAtOnce, refilled: time.Now()}
}

func (l *lineLog) stdout(line []byte) {
	if isHandshake(line) {
		return
	}
	l.line(line)
}

func (l *lineLog) stderr(line []byte) { l.line(line) }

// isHandshake tells go-plugin's own line, such as 1|1|unix|/path|grpc|.
func isHandshake(line []byte) bool {
	return strings.Count(string(line[:min(len(line), 200)]), "|") >= 4 && strings.Contains(string(line), "|unix|")
}

func (l *lineLog) line(line []byte) {
	if !l.allowed(time.Now()) {
		l.unsaid++
		l.dropped(1)
		return
	}
	if len(line) > 0 && line[0] == '{' && l.json(line) {
		return
	}
	l.text(string(line))
}

// allowed takes a token, if there is one.
func (l *lineLog) allowed(now time.Time) bool {
	l.tokens = min(linesAtOnce, l.tokens+now.Sub(l.refilled).Seconds()*linesPerSecond)
	l.refilled = now
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}

// reportDropped says how many lines were dropped, once in a while or at last.
func (l *lineLog) reportDropped(now time.Time, last bool) {
	if l.unsaid == 0 || !last && now.Sub(l.reported) < reportEvery {
		return
	}
	l.logger.Warn("the plugin prints too much, lines were dropped", "lines", l.unsaid)
	l.unsaid, l.reported = 0, now
}

// trouble says once that the output can't be followed.
func (l *lineLog) trouble(err error) {
	if !l.troubled {
		l.troubled = true
		l.logger.Error("the plugin's output can't be followed", "error", err)
	}
}

// json logs a line of hclog's, and tells whether it was one.
func (l *lineLog) json(line []byte) bool {
	var fields map[string]any
	if json.Unmarshal(line, &fields) != nil {
		return false
	}
	message, ok := fields["@message"].(string)
	if !ok {
		return false
	}
	text, _ := fields["@level"].(string)
	level := hclog.LevelFromString(text)
	if level == hclog.NoLevel {
		level = hclog.Info
	}
	if module, ok := fields["@module"].(string); ok && module != "" {
		fields["module"] = module
	}
	var args []any
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if !strings.HasPrefix(key, "@") {
			args = append(args, plain(key), value(fields[key]))
		}
	}
	if level >= hclog.Warn {
		l.remember(message)
	}
	l.logger.Log(level, plain(message), args...)
	return true
}

func value(v any) any {
	if text, ok := v.(string); ok {
		return plain(text)
	}
	return v
}

// text logs a line that has no form, with the level that it seems to have. A
// panic goes on to the end.
func (l *lineLog) text(line string) {
	level, rest := hclog.Info, line
	for _, name := range []string{"TRACE", "DEBUG", "INFO", "WARN", "ERROR"} {
		if after, ok := strings.CutPrefix(line, "["+name+"]"); ok {
			level, rest = hclog.LevelFromString(name), strings.TrimSpace(after)
		}
	}
	if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
		l.startPanic()
	}
	if l.panicking {
		level = hclog.Error
	}
	l.remember(line)
	l.logger.Log(level, plain(rest))
}

func (l *lineLog) startPanic() {
	l.panicking = true
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = nil
}

// remember keeps a line for the explanation of an end.
func (l *lineLog) remember(line string) {
	line = plain(line[:min(len(line), tailLine)])
	l.mu.Lock()
	defer l.mu.Unlock()
	// The first lines of a panic say more than the last ones.
	if l.panicking && len(l.tail) == tailLines {
		return
	}
	l.tail = append(l.tail, line)
	if len(l.tail) > tailLines {
		l.tail = l.tail[1:]
	}
}

// lastWords gives what was printed last, for an error; empty for nothing.
func (l *lineLog) lastWords() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.tail, " / ")
}

// plain takes out what could move a reader's terminal or forge a line.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, text)
}
