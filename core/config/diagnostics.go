package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// maxDiagnostics is how many diagnostics are kept; of the rest only the number
// is told, so that a file of garbage doesn't fill a terminal or a log.
const maxDiagnostics = 50

// Diagnostics are what is wrong with a configuration, or doubtful, in the
// order of the files. A nil *Diagnostics has none.
type Diagnostics struct {
	items []Diagnostic
	// omittedErrors and omittedWarnings were beyond maxDiagnostics.
	omittedErrors, omittedWarnings int
}

// Diagnostic is one mistake, or one warning. Its JSON is what
// `patchbay validate -format=json` writes.
type Diagnostic struct {
	Severity string `json:"severity"` // error, warning
	Summary  string `json:"summary"`
	Detail   string `json:"detail"`
	// Within is the block where it is, such as `service "web"`; may be empty.
	Within string `json:"within,omitempty"`
	// File, Line and Column, counted from 1; empty and 0 where it is in no
	// file, or in a file as a whole.
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	// SourceLine with sensitive values masked; long lines are cut.
	SourceLine string `json:"source_line,omitempty"`

	// order of the file among those that were read, and the place in it.
	order, byte int
	// mark is the part of SourceLine that is meant, in runes.
	markStart, markEnd int
}

const (
	severityError   = "error"
	severityWarning = "warning"
)

// HasErrors tells whether the configuration can't be used.
func (d *Diagnostics) HasErrors() bool {
	return d != nil && (d.omittedErrors > 0 || slices.ContainsFunc(d.items, func(i Diagnostic) bool {
		return i.Severity == severityError
	}))
}

// Len is the number of diagnostics, errors and warnings.
func (d *Diagnostics) Len() int {
	if d == nil {
		return 0
	}
	return len(d.items) + d.omittedErrors + d.omittedWarnings
}

// All gives the diagnostics; Omitted tells how many more there were.
func (d *Diagnostics) All() []Diagnostic {
	if d == nil {
		return nil
	}
	return d.items
}

// Omitted is the number of diagnostics that All leaves out.
func (d *Diagnostics) Omitted() int {
	if d == nil {
		return 0
	}
	return d.omittedErrors + d.omittedWarnings
}

// Append adds the diagnostics of other, such as those of Bind to those of
// Load; what both say is said once.
func (d *Diagnostics) Append(other *Diagnostics) {
	if other == nil {
		return
	}
	for _, item := range other.items {
		if !slices.Contains(d.items, item) {
			d.add(item)
		}
	}
	slices.SortStableFunc(d.items, func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.byte, b.byte))
	})
	d.omittedErrors += other.omittedErrors
	d.omittedWarnings += other.omittedWarnings
}

func (d *Diagnostics) add(item Diagnostic) {
	switch {
	case len(d.items) < maxDiagnostics:
		d.items = append(d.items, item)
	case item.Severity == severityError:
		d.omittedErrors++
	default:
		d.omittedWarnings++
	}
}

// Error gives the errors on one line each, without source lines; it makes
// *Diagnostics an error, which only one that HasErrors should be used as.
func (d *Diagnostics) Error() string {
	var lines []string
	for _, i := range d.All() {
		if i.Severity == severityError {
			lines = append(lines, i.String())
		}
	}
	if d != nil && d.omittedErrors > 0 {
		lines = append(lines, fmt.Sprintf("and %d more errors", d.omittedErrors))
	}
	return strings.Join(lines, "\n")
}

// String gives the diagnostic on one line, without its source line.
func (i Diagnostic) String() string {
	var b strings.Builder
	if i.File != "" {
		b.WriteString(i.position() + ": ")
	}
	b.WriteString(i.Summary)
	if i.Detail != "" {
		b.WriteString(": " + i.Detail)
	}
	return b.String()
}

func (i Diagnostic) position() string {
	if i.Line == 0 {
		return printable(i.File)
	}
	return fmt.Sprintf("%s:%d", printable(i.File), i.Line)
}

// WriteText writes the diagnostics for people; with colour for a terminal.
func (d *Diagnostics) WriteText(w io.Writer, colour bool) error {
	p := painter(colour)
	var b strings.Builder
	for n, i := range d.All() {
		if n > 0 {
			b.WriteByte('\n')
		}
		i.writeText(&b, p)
	}
	if d.Omitted() > 0 {
		fmt.Fprintf(&b, "\nand %d more errors, %d more warnings\n", d.omittedErrors, d.omittedWarnings)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (i Diagnostic) writeText(b *strings.Builder, p painter) {
	kind, colour := "Error", red
	if i.Severity == severityWarning {
		kind, colour = "Warning", yellow
	}
	fmt.Fprintf(b, "%s %s\n", p.paint(kind+":", colour), p.paint(i.Summary, bold))
	if i.File != "" {
		b.WriteString("  on " + i.position())
		if i.Within != "" {
			b.WriteString(", in " + i.Within)
		}
		b.WriteString(":\n")
	}
	if i.SourceLine != "" {
		number := fmt.Sprintf("%5d: ", i.Line)
		fmt.Fprintf(b, "%s%s\n", number, i.SourceLine)
		if i.markEnd > i.markStart {
			fmt.Fprintf(b, "%s%s\n", strings.Repeat(" ", len(number)+i.markStart),
				p.paint(strings.Repeat("^", i.markEnd-i.markStart), colour))
		}
	}
	if i.Detail != "" {
		b.WriteString("  " + strings.ReplaceAll(i.Detail, "\n", "\n  ") + "\n")
	}
}

// painter colours text for a terminal, or leaves it alone.
type painter bool

const (
	bold   = "1"
	red    = "1;31"
	yellow = "1;33"
)

func (p painter) paint(text, colour string) string {
	if !p {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// MarshalJSON gives {"diagnostics": [...], "omitted": n}.
func (d *Diagnostics) MarshalJSON() ([]byte, error) {
	items := d.All()
	if items == nil {
		items = []Diagnostic{}
	}
	return json.Marshal(struct {
		Diagnostics []Diagnostic `json:"diagnostics"`
		Omitted     int          `json:"omitted"`
	}{items, d.Omitted()})
}

// WriteJSON writes what MarshalJSON gives, indented, and a newline.
func (d *Diagnostics) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(d)
}

// report collects what a Load or a Bind finds.
type report struct {
	src   *sources
	masks masks
	// within is the block that is being read, for the diagnostics it brings.
	within string
	found  []finding
	// dropped counts the errors, and warnings, beyond all measure.
	dropped, droppedWarnings int
}

type finding struct {
	severity        hcl.DiagnosticSeverity
	summary, detail string
	subject         *hcl.Range
	within          string
	// foreign findings are of the HCL library, which knows of no secrets.
	foreign bool
}

const (
	// maxFound keeps what is found from filling the memory.
	maxFound = 10_000
	// maxHints is how many findings may have a suggestion, which takes a
	// comparison with every name that there is.
	maxHints = 4 * maxDiagnostics
)

// full tells that there is more than anyone reads, and no suggestion is worth
// its time.
func (r *report) full() bool { return len(r.found) >= maxHints }

// count of all that was found.
func (r *report) count() int { return len(r.found) + r.dropped + r.droppedWarnings }

func newReport(src *sources) *report { return &report{src: src, masks: masks{}} }

func (r *report) errorf(at *hcl.Range, summary, format string, args ...any) {
	r.add(hcl.DiagError, at, summary, fmt.Sprintf(format, args...))
}

func (r *report) warnf(at *hcl.Range, summary, format string, args ...any) {
	r.add(hcl.DiagWarning, at, summary, fmt.Sprintf(format, args...))
}

func (r *report) add(severity hcl.DiagnosticSeverity, at *hcl.Range, summary, detail string) {
	r.put(finding{severity: severity, summary: summary, detail: detail, subject: at, within: r.within})
}

func (r *report) put(f finding) {
	switch {
	case len(r.found) < maxFound:
		if rest, ok := strings.CutPrefix(f.detail, "the value of "); ok {
			f.detail = "The value of " + rest
		}
		r.found = append(r.found, f)
	case f.severity == hcl.DiagWarning:
		r.droppedWarnings++
	default:
		r.dropped++
	}
}

// hcl takes over what the HCL library found.
func (r *report) hcl(diags hcl.Diagnostics) {
	for n, d := range diags {
		if n >= maxHints {
			r.dropped += len(diags) - n
			return
		}
		r.put(finding{severity: d.Severity, summary: d.Summary, detail: d.Detail, subject: d.Subject, within: r.within, foreign: true})
	}
}

// join takes over what another report has found.
func (r *report) join(other *report) {
	for _, f := range other.found {
		r.put(f)
	}
	r.dropped += other.dropped
	r.droppedWarnings += other.droppedWarnings
	for file, ranges := range other.masks {
		r.masks[file] = append(r.masks[file], ranges...)
	}
}

// finish puts the findings into the order of the files, says each once, and
// fetches the source lines.
func (r *report) finish() *Diagnostics {
	slices.SortStableFunc(r.found, func(a, b finding) int {
		return r.src.compare(a.subject, b.subject)
	})
	d := &Diagnostics{omittedErrors: r.dropped, omittedWarnings: r.droppedWarnings}
	type key struct {
		severity              hcl.DiagnosticSeverity
		summary, detail, file string
		start, end            int
		inFile                bool
	}
	seen := make(map[key]bool, len(r.found))
	for _, f := range r.found {
		k := key{severity: f.severity, summary: f.summary, detail: f.detail}
		if f.subject != nil {
			k.file, k.start, k.end, k.inFile = f.subject.Filename, f.subject.Start.Byte, f.subject.End.Byte, true
		}
		if seen[k] {
			continue
		}
		seen[k] = true
		if len(d.items) >= maxDiagnostics { // no source line for what is not shown
			d.add(Diagnostic{Severity: severityName(f.severity)})
			continue
		}
		d.add(r.render(f))
	}
	return d
}

func severityName(s hcl.DiagnosticSeverity) string {
	if s == hcl.DiagWarning {
		return severityWarning
	}
	return severityError
}

func (r *report) render(f finding) Diagnostic {
	i := Diagnostic{
		Severity: severityName(f.severity),
		Summary:  f.summary,
		Detail:   strings.ToValidUTF8(clip(f.detail, 2000), "?"),
		Within:   printable(f.within),
	}
	if f.subject == nil {
		i.order = math.MaxInt
		return i
	}
	i.File = f.subject.Filename
	i.order, i.byte = r.src.order[i.File], f.subject.Start.Byte
	if f.subject.Start.Line == 0 {
		return i
	}
	i.Line, i.Column = f.subject.Start.Line, f.subject.Start.Column
	line := r.src.line(*f.subject)
	if f.foreign && line.masked(r.masks) {
		i.Detail = hideQuotes(i.Detail)
	}
	i.SourceLine, i.markStart, i.markEnd = line.show(r.masks)
	return i
}
