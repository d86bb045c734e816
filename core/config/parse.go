package config

import (
	"bytes"
	"fmt"
	"maps"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"
)

// fileBody is one parsed file.
type fileBody struct {
	file string
	body hcl.Body
}

// read reads and parses one file; what is wrong with it is reported.
func (l *loader) read(file string) (fileBody, bool) {
	text, err := readRegular(file, maxConfigFile)
	if err != nil {
		l.report.src.order[file] = len(l.report.src.order) + 1
		l.unreadable(file, err)
		return fileBody{}, false
	}
	l.report.src.add(file, text)
	body, diags := parse(text, file)
	l.report.hcl(diags)
	l.incomplete = l.incomplete || diags.HasErrors()
	return fileBody{file: file, body: body}, body != nil
}

// isJSON tells the syntax by the file's name.
func isJSON(file string) bool { return strings.HasSuffix(file, ".json") }

// parse gives the body of a file. With errors it may still give what could be
// read, so that the rest is checked in the same run, or nil.
func parse(text []byte, file string) (body hcl.Body, diags hcl.Diagnostics) {
	defer func() {
		// The library panics on some of its own inconsistencies; a file must
		// never end the agent.
		if p := recover(); p != nil {
			body, diags = nil, hcl.Diagnostics{{
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
	if isJSON(file) {
		if d := guardJSON(text, file); d != nil {
			return nil, hcl.Diagnostics{d}
		}
		f, diags := hcljson.Parse(text, file)
		if diags.HasErrors() {
			return nil, diags // the remains of broken JSON only mislead
		}
		return f.Body, diags
	}
	body, diags = parseNative(text, file, pieceSize)
	return body, diags
}

const (
	// pieceSize is about how much of a file is parsed at a time.
	pieceSize = 64 << 10
	// maxPiece is the most that is parsed at a time, for the library needs
	// some 30 times the memory.
	maxPiece = 4 << 20
)

// parseNative parses a file in pieces that end where a block at the left
// margin does, of about size each. The library makes a token of some 100 bytes of every word and
// keeps all until it is done, which for a file of 20 MB is more memory than the
// agent needs for everything else; by pieces it is a few MB.
//
// Where a line that starts with a brace was not the end of a block (in a
// heredoc, say) the piece has a syntax error, for each must be complete in
// itself, and is tried again with more of the file. A file with errors of its
// own is parsed whole in the end, so that its diagnostics are the same as
// without pieces; of one above maxPiece only the first bad piece is reported.
func parseNative(text []byte, file string, size int) (hcl.Body, hcl.Diagnostics) {
	whole := &hclsyntax.Body{Attributes: hclsyntax.Attributes{}}
	rest, pos := text, hcl.InitialPos
	for first := true; first || len(rest) > 0; first = false {
		body, end, diags := parsePiece(rest, file, pos, size)
		twice := body != nil && shareArgument(whole, body)
		if (body == nil || twice) && len(text) <= maxPiece {
			return parseWhole(text, file, hcl.InitialPos)
		}
		if body == nil {
			return nil, diags
		}
		maps.Copy(whole.Attributes, body.Attributes)
		whole.Blocks = append(whole.Blocks, body.Blocks...)
		if first {
			whole.SrcRange = body.SrcRange
		}
		whole.SrcRange.End, whole.EndRange = body.SrcRange.End, body.EndRange
		pos.Byte += end
		pos.Line += bytes.Count(rest[:end], []byte{'\n'})
		rest = rest[end:]
	}
	return whole, nil
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

func shareArgument(a, b *hclsyntax.Body) bool {
	for name := range b.Attributes {
		if _, twice := a.Attributes[name]; twice {
			return true
		}
	}
	return false
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
