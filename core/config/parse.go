package config

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"
)

// read reads one file and takes it apart; what is wrong with it is reported.
// It gives nil when nothing could be read.
func (l *loader) read(file string) *fileParts {
	text, err := readRegular(file, maxConfigFile)
	if err != nil {
		l.report.src.order[file] = len(l.report.src.order) + 1
		l.unreadable(file, err)
		return nil
	}
	l.report.src.add(file, text)
	parts, diags := parse(text, file, l.report.src, pieceSize)
	l.report.hcl(diags)
	l.incomplete = l.incomplete || diags.HasErrors()
	return parts
}

// isJSON tells the syntax by the file's name.
func isJSON(file string) bool { return strings.HasSuffix(file, ".json") }

// parse takes a file apart. With errors it may still give what could be read,
// so that the rest is checked in the same run, or nil.
func parse(text []byte, file string, src *sources, size int) (parts *fileParts, diags hcl.Diagnostics) {
	defer func() {
		// The library panics on some of its own inconsistencies; a file must
		// never end the agent.
		if p := recover(); p != nil {
			parts, diags = nil, hcl.Diagnostics{{
				Severity: hcl.DiagError,
				Summary:  "Unreadable file",
				Detail:   fmt.Sprintf("The parser gave up on %s.", file),
				Subject:  &hcl.Range{Filename: file},
			}}
		}
	}()
	if d := guardText(text, file); d != nil {
		return nil, hcl.Diagnostics{d}
	}
	if !isJSON(file) {
		return parseNative(text, file, src, size)
	}
	if d := guardJSON(text, file); d != nil {
		return nil, hcl.Diagnostics{d}
	}
	f, diags := hcljson.Parse(text, file)
	if diags.HasErrors() {
		return nil, diags // the remains of broken JSON only mislead
	}
	parts = newFileParts(file, src)
	parts.take(f.Body)
	return parts, diags
}

const (
	// pieceSize is about how much of a file is parsed at a time.
	pieceSize = 64 << 10
	// maxPiece is the most that is parsed at a time, for the library needs
	// some 30 times the memory.
	maxPiece = 4 << 20
)

// parseNative parses a file in pieces that end where a block at the left
// margin does, of about size each. The library makes some 60 bytes of tokens
// and syntax tree of every byte, which for a file of 20 MB is far more than the
// agent needs for everything else; by pieces it is a few MB, for a piece's
// services are read at once and its tree let go.
//
// Where a line that starts with a brace was not the end of a block (in a
// heredoc, say) the piece has a syntax error, for each must be complete in
// itself, and is tried again with more of the file. A file with errors of its
// own is parsed whole in the end, so that its diagnostics are the same as
// without pieces; of one above maxPiece only the first bad piece is reported.
func parseNative(text []byte, file string, src *sources, size int) (*fileParts, hcl.Diagnostics) {
	parts := newFileParts(file, src)
	rest, pos := text, hcl.InitialPos
	for len(rest) > 0 {
		body, end, diags := parsePiece(rest, file, pos, size)
		if body != nil {
			diags = sharedArguments(parts.attrs, body)
		}
		if len(diags) > 0 {
			if len(text) > maxPiece {
				return nil, diags
			}
			parts = newFileParts(file, src)
			whole, diags := parseWhole(text, file, hcl.InitialPos)
			if whole == nil {
				return nil, diags
			}
			parts.take(whole)
			return parts, diags
		}
		parts.take(body)
		pos.Byte += end
		pos.Line += bytes.Count(rest[:end], []byte{'\n'})
		rest = rest[end:]
	}
	return parts, nil
}

// parsePiece parses the first piece of a text and tells where it ends. Without a
// body, the diagnostics are those of the smallest piece that was tried.
func parsePiece(text []byte, file string, pos hcl.Pos, size int) (*hclsyntax.Body, int, hcl.Diagnostics) {
	var failed hcl.Diagnostics
	for end := pieceEnd(text, size); ; end = pieceEnd(text, 2*end) {
		if end > maxPiece {
			if failed == nil {
				failed = hcl.Diagnostics{{
					Severity: hcl.DiagError,
					Summary:  "Block too large",
					Detail:   "From here on no block ends within 4 MiB. This looks like a file of another kind.",
					Subject:  &hcl.Range{Filename: file, Start: pos, End: pos},
				}}
			}
			return nil, 0, failed
		}
		body, diags := parseWhole(text[:end], file, pos)
		if len(diags) == 0 {
			return body.(*hclsyntax.Body), end, nil
		}
		if failed == nil {
			failed = diags
		}
		if end == len(text) {
			return nil, 0, failed
		}
	}
}

// sharedArguments reports what a piece gives that one before it gave too.
func sharedArguments(attrs hcl.Attributes, b *hclsyntax.Body) (diags hcl.Diagnostics) {
	for name, a := range b.Attributes {
		if first, twice := attrs[name]; twice {
			diags = append(diags, &hcl.Diagnostic{
				Severity: hcl.DiagError,
				Summary:  "Given twice",
				Detail:   fmt.Sprintf("%s is already given at %s.", name, place(first.Range)),
				Subject:  &a.NameRange,
			})
		}
	}
	return diags
}

func parseWhole(text []byte, file string, pos hcl.Pos) (hcl.Body, hcl.Diagnostics) {
	if d := guardNative(text, file, pos); d != nil {
		return nil, hcl.Diagnostics{d}
	}
	f, diags := hclsyntax.ParseConfig(text, file, pos)
	return f.Body, diags
}

// pieceEnd is the end of the first line from size on that holds a closing
// brace at the margin and nothing else, or the end of the text.
func pieceEnd(text []byte, size int) int {
	if len(text) <= size {
		return len(text)
	}
	if i := bytes.Index(text[size-1:], []byte("\n}\n")); i >= 0 {
		return size - 1 + i + len("\n}\n")
	}
	return len(text)
}
