package config

import (
	"bytes"
	"path/filepath"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// Format gives a file of native syntax in its canonical layout, for
// `patchbay fmt`. The name is for messages. What can't be parsed is given back
// as it is, with the diagnostics; JSON is given back as it is, for it has
// tools of its own.
func Format(name string, src []byte) ([]byte, *Diagnostics) {
	sources := newSources(nil)
	sources.add(name, src)
	r := newReport(sources)
	if isJSON(name) || len(bytes.TrimSpace(src)) == 0 {
		return src, r.finish()
	}
	if diags := parsable(src, name); diags.HasErrors() {
		r.hcl(diags)
		return src, r.finish()
	}
	out, ok := format(src, name)
	if !ok {
		r.errorf(&hcl.Range{Filename: name}, "Not formatted", "%s can't be laid out anew without changing its meaning; it stays as it is.", filepath.Base(name))
		return src, r.finish()
	}
	return out, r.finish()
}

// parsable gives the syntax errors of a file. The expressions in it are not
// evaluated.
func parsable(src []byte, name string) (diags hcl.Diagnostics) {
	defer func() {
		if recover() != nil {
			diags = hcl.Diagnostics{tooMuch(hcl.Range{Filename: name}, "Unreadable file", "The parser gave up.")}
		}
	}()
	if d := guardText(src, name); d != nil {
		return hcl.Diagnostics{d}
	}
	_, diags = parseWhole(src, name, hcl.InitialPos)
	return diags
}

// format is false where the library panics or what it gives has other tokens.
func format(src []byte, name string) (out []byte, ok bool) {
	defer func() {
		if recover() != nil {
			out, ok = nil, false
		}
	}()
	out = hclwrite.Format(src)
	return out, sameTokens(src, out, name)
}

func sameTokens(a, b []byte, name string) bool {
	ta, _ := hclsyntax.LexConfig(a, name, hcl.InitialPos)
	tb, _ := hclsyntax.LexConfig(b, name, hcl.InitialPos)
	if len(ta) != len(tb) {
		return false
	}
	for i := range ta {
		if ta[i].Type != tb[i].Type || !bytes.Equal(bytes.TrimSpace(ta[i].Bytes), bytes.TrimSpace(tb[i].Bytes)) {
			return false
		}
	}
	return true
}
