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
	if d := guardNative(text, file); d != nil {
		return nil, hcl.Diagnostics{d}
	}
	if len(text) > 2*pieceSize {
		if body := parsePieces(text, file); body != nil {
			return body, nil
		}
	}
	f, diags := hclsyntax.ParseConfig(text, file, hcl.InitialPos)
	return f.Body, diags
}

// pieceSize is about how much of a large file is parsed at a time.
const pieceSize = 64 << 10

// parsePieces parses a large file in pieces that end where a block at the left
// margin does. The library makes a token of some 100 bytes of every word and
// keeps all until the file is done, which for 20 MB is more memory than the
// agent needs for everything else; by pieces it is a few MB.
//
// Where a line that starts with a brace was not the end of a block (in a
// heredoc, say) a piece has a syntax error, for each must be complete in
// itself; then nil is given and the file is to be parsed whole, as it is when
// it has errors of its own, so that the diagnostics are the same.
func parsePieces(text []byte, file string) *hclsyntax.Body {
	whole := &hclsyntax.Body{Attributes: hclsyntax.Attributes{}}
	pos := hcl.InitialPos
	for len(text) > 0 {
		piece := text[:pieceEnd(text)]
		f, diags := hclsyntax.ParseConfig(piece, file, pos)
		if len(diags) > 0 {
			return nil
		}
		body := f.Body.(*hclsyntax.Body)
		for name := range body.Attributes {
			if _, twice := whole.Attributes[name]; twice {
				return nil
			}
		}
		maps.Copy(whole.Attributes, body.Attributes)
		whole.Blocks = append(whole.Blocks, body.Blocks...)
		if pos.Byte == 0 {
			whole.SrcRange = body.SrcRange
		}
		whole.SrcRange.End, whole.EndRange = body.SrcRange.End, body.EndRange
		pos.Byte += len(piece)
		pos.Line += bytes.Count(piece, []byte{'\n'})
		text = text[len(piece):]
	}
	return whole
}

// pieceEnd is the end of the first line from pieceSize on that starts with a
// closing brace and holds nothing else, or the end of the text.
func pieceEnd(text []byte) int {
	if len(text) <= pieceSize {
		return len(text)
	}
	if i := bytes.Index(text[pieceSize:], []byte("\n}\n")); i >= 0 {
		return pieceSize + i + len("\n}\n")
	}
	return len(text)
}
