package config

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// Whether a message shows a value is decided here alone, and by how the value
// is written: what stands in the file as a literal is no secret to the reader
// of the file, while what an expression works out may come from the
// environment or from another file. A value that other blocks are compared
// with is asked for by its place too, so nothing has to be carried along.

// shown gives a value for a message in quotes, or tells whose value it is.
func (r *report) shown(value, argument string, at *hcl.Range) string {
	if r.src.computed(at) {
		return "the value of " + argument
	}
	return quoted(value)
}

// bare is the same for an address or a number, without quotes.
func (r *report) bare(value any, argument string, at *hcl.Range) string {
	if r.src.computed(at) {
		return "the value of " + argument
	}
	return fmt.Sprint(value)
}

// not ends a sentence that says what an argument must be.
func (r *report) not(value string, at *hcl.Range) string {
	if r.src.computed(at) {
		return ", not what its expression gives"
	}
	return ", not " + quoted(value)
}

// named puts a name that was written out after what it is the name of.
func (r *report) named(name string, at *hcl.Range) string {
	if r.src.computed(at) {
		return " of that name"
	}
	return " " + quoted(name)
}

// because gives a reason that may quote a value.
func (r *report) because(reason string, at *hcl.Range) string {
	if r.src.computed(at) {
		return ""
	}
	return ": " + reason
}

// meant suggests what a value was meant to be.
func (r *report) meant(value string, at *hcl.Range, candidates []string) string {
	if r.full() || r.src.computed(at) {
		return ""
	}
	return didYouMean(value, candidates)
}

// quoted is for names, which are always written out.
func quoted(s string) string { return strconv.Quote(printable(clip(s, 80))) }

// computed tells whether the expression at a place is more than a literal:
// whether it calls a function or holds a template's interpolation. The call
// service("web") is as good as its argument.
func (s *sources) computed(at *hcl.Range) bool {
	if at == nil {
		return true
	}
	text := s.text[at.Filename]
	if at.Start.Byte < 0 || at.Start.Byte >= at.End.Byte || at.End.Byte > len(text) {
		return true
	}
	text = text[at.Start.Byte:at.End.Byte]
	if isJSON(at.Filename) {
		var v any
		return json.Unmarshal(text, &v) != nil || holdsTemplate(v)
	}
	tokens, _ := hclsyntax.LexExpression(text, at.Filename, at.Start)
	for i, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			return true
		case hclsyntax.TokenOParen:
			if i > 0 && tokens[i-1].Type == hclsyntax.TokenIdent && string(tokens[i-1].Bytes) != "service" {
				return true
			}
		}
	}
	return false
}

// holdsTemplate looks for templates in the strings of a JSON value.
func holdsTemplate(v any) bool {
	switch v := v.(type) {
	case string:
		return strings.Contains(v, "${") || strings.Contains(v, "%{")
	case []any:
		for _, e := range v {
			if holdsTemplate(e) {
				return true
			}
		}
	case map[string]any:
		for k, e := range v {
			if holdsTemplate(k) || holdsTemplate(e) {
				return true
			}
		}
	}
	return false
}
