package config

import (
	"bytes"
	"cmp"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
)

// sources holds the text of the files that were read, for the source lines in
// diagnostics, and where the expressions of each are evaluated.
type sources struct {
	lookupEnv func(string) (string, bool)
	order     map[string]int
	text      map[string][]byte
	contexts  map[string]*hcl.EvalContext

	// included are the files that file() has read, absolute. Load fills it, and
	// so may several Binds at once.
	mu       sync.Mutex
	included map[string]bool
}

func newSources(lookupEnv func(string) (string, bool)) *sources {
	return &sources{
		lookupEnv: lookupEnv,
		order:     map[string]int{},
		text:      map[string][]byte{},
		contexts:  map[string]*hcl.EvalContext{},
		included:  map[string]bool{},
	}
}

func (s *sources) add(file string, text []byte) {
	if _, ok := s.order[file]; !ok {
		s.order[file] = len(s.order) + 1
	}
	s.text[file] = text
	s.contexts[file] = evalContext(filepath.Dir(file), s.lookupEnv, s.include)
}

func (s *sources) include(path string) {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.included[path] = true
}

// withIncluded adds the included files to those that were read.
func (s *sources) withIncluded(files []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	files = slices.Clone(files)
	for _, path := range sortedKeys(s.included) {
		if !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	return files
}

// context in which an expression of that file is evaluated.
func (s *sources) context(file string) *hcl.EvalContext {
	return s.contexts[file]
}

// compare orders ranges by file, in the order in which the files were read,
// then by place; what is in no file comes last.
func (s *sources) compare(a, b *hcl.Range) int {
	switch {
	case a == nil || b == nil:
		return cmp.Compare(boolInt(a == nil), boolInt(b == nil))
	case a.Filename != b.Filename:
		return cmp.Or(cmp.Compare(s.order[a.Filename], s.order[b.Filename]), cmp.Compare(a.Filename, b.Filename))
	}
	return cmp.Compare(a.Start.Byte, b.Start.Byte)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// masks are the byte ranges of each file that are never shown.
type masks map[string][][2]int

func (m masks) add(r hcl.Range) {
	m[r.Filename] = append(m[r.Filename], [2]int{r.Start.Byte, r.End.Byte})
}

// sourceLine is the line on which a range starts, as a part of its file.
type sourceLine struct {
	file       string
	text       []byte
	start, end int // of the line
	from, to   int // of the range within the line
}

func (s *sources) line(r hcl.Range) sourceLine {
	text := s.text[r.Filename]
	l := sourceLine{file: r.Filename, text: text}
	if r.Start.Byte < 0 || r.Start.Byte > len(text) {
		return l
	}
	l.from = r.Start.Byte
	l.start = bytes.LastIndexByte(text[:l.from], '\n') + 1
	l.end = len(text)
	if n := bytes.IndexByte(text[l.from:], '\n'); n >= 0 {
		l.end = l.from + n
	}
	if l.end > l.start && text[l.end-1] == '\r' {
		l.end--
	}
	l.from = min(l.from, l.end)
	l.to = min(max(r.End.Byte, l.from), l.end)
	return l
}

const (
	// A longer line is cut to a window around the range.
	maxLine   = 160
	maxBefore = 60
	masked    = "(sensitive)"
	// secretWindow is how far from the range a line is searched for names of
	// secrets: far enough for what is shown of it.
	secretWindow = 4096
)

// hidden gives the masked parts of the line, in order and without overlap.
func (l sourceLine) hidden(m masks) [][2]int {
	var parts [][2]int
	for _, p := range m[l.file] {
		if p[0] < l.end && p[1] > l.start {
			parts = append(parts, [2]int{max(p[0], l.start), min(p[1], l.end)})
		}
	}
	from, to := max(l.start, l.from-secretWindow), min(l.end, l.from+secretWindow)
	parts = append(parts, secretLooking(l.text[from:to], from)...)
	slices.SortFunc(parts, func(a, b [2]int) int { return cmp.Compare(a[0], b[0]) })
	var joined [][2]int
	for _, p := range parts {
		if n := len(joined); n > 0 && p[0] < joined[n-1][1] {
			joined[n-1][1] = max(joined[n-1][1], p[1])
			continue
		}
		joined = append(joined, p)
	}
	return joined
}

// masked tells whether the range itself touches something hidden.
func (l sourceLine) masked(m masks) bool {
	for _, p := range l.hidden(m) {
		if p[0] < max(l.to, l.from+1) && p[1] > l.from {
			return true
		}
	}
	return false
}

// show gives the line as text, cut and masked, and where the range is in it.
func (l sourceLine) show(m masks) (text string, from, to int) {
	start, end := l.start, l.end
	hidden := l.hidden(m)
	var b strings.Builder
	width := 0
	put := func(s string) {
		b.WriteString(s)
		width += utf8.RuneCountInString(s)
	}
	if end-start > maxLine {
		if l.from-start > maxBefore {
			start = runeStart(l.text, l.from-maxBefore)
			put("...")
		}
		if end-start > maxLine {
			end = runeStart(l.text, start+maxLine)
		}
	}
	from, to = -1, -1
	for at := start; at < end; {
		if at >= l.from && from < 0 {
			from = width
		}
		if at >= l.to && to < 0 {
			to = width
		}
		if len(hidden) > 0 && at >= hidden[0][0] {
			if at < hidden[0][1] {
				put(masked)
				if l.from > at && l.from < hidden[0][1] {
					from = width - len(masked)
				}
				if l.to > at && l.to < hidden[0][1] {
					to = width
				}
				at = hidden[0][1]
			}
			hidden = hidden[1:]
			continue
		}
		r, size := utf8.DecodeRune(l.text[at:])
		put(string(visible(r)))
		at += size
	}
	if from < 0 {
		from = width
	}
	if to < 0 {
		to = width
	}
	if end < l.end {
		put("...")
	}
	return b.String(), from, max(to, from+1)
}

func runeStart(text []byte, at int) int {
	for at > 0 && at < len(text) && !utf8.RuneStart(text[at]) {
		at--
	}
	return at
}

// visible keeps control characters from a terminal.
func visible(r rune) rune {
	switch {
	case r == '\t':
		return ' '
	case r == utf8.RuneError || !unicode.IsPrint(r):
		return '\uFFFD'
	}
	return r
}

// printable is for names that come from outside.
func printable(s string) string { return strings.Map(visible, s) }

// secretName finds arguments whose name says that the value is a secret. It
// guards what no schema has marked, above all lines that can't be parsed.
var secretName = regexp.MustCompile(`(?i)"?[\w-]*(?:passw|passphrase|secret|token|credential|private_?key|api_?key)[\w-]*"?\s*[=:]\s*`)

func secretLooking(line []byte, offset int) [][2]int {
	var parts [][2]int
	for _, m := range secretName.FindAllIndex(line, -1) {
		name := strings.ToLower(strings.TrimRight(string(line[m[0]:m[1]]), " \t\"=:"))
		if strings.HasSuffix(name, "_file") || strings.HasSuffix(name, "_path") {
			continue
		}
		parts = append(parts, [2]int{offset + m[1], offset + m[1] + valueLength(line[m[1]:])})
	}
	return parts
}

// valueLength is where a value on a line ends: a quoted string at its quote,
// anything else at the end of the line.
func valueLength(rest []byte) int {
	if len(rest) > 0 && rest[0] == '"' {
		for i := 1; i < len(rest); i++ {
			switch rest[i] {
			case '\\':
				i++
			case '"':
				return i + 1
			}
		}
		return len(rest)
	}
	return len(rest)
}

var quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\([^)]*\)`)

// hideQuotes takes from a message what it may have quoted of a masked value.
func hideQuotes(detail string) string { return quotedText.ReplaceAllString(detail, masked) }

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}
