package config

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// The HCL library reads by recursion and computes numbers of any size, so that
// a file of brackets would overflow the stack, which no recover() can catch,
// and "1e999999999" would fill the memory. The guard refuses such files before
// they are parsed: a quick look at the bytes that passes nearly all, and the
// real tokens of those it doubts.
const (
	maxNesting     = 100  // brackets, quotes and interpolations within each other
	maxOperators   = 1000 // in one expression
	maxNumber      = 400  // characters of a number
	maxExponent    = 3    // digits of a number's exponent
	maxParts       = 8000 // lines of a heredoc, or parts of another text
	maxFor         = 4096 // bytes of a for expression
	quickNesting   = 50
	quickOperators = 500
	quickDigits    = 300
	quickControls  = 100 // template directives in a file
)

const tooComplex = "Too deeply nested"

// guardNative gives a diagnostic for native syntax that is not to be parsed.
func guardNative(src []byte, file string, pos hcl.Pos) *hcl.Diagnostic {
	if !doubtful(src) && !longHeredoc(src) && !mayHaveFor(src) {
		return nil
	}
	tokens, _ := hclsyntax.LexConfig(src, file, pos)
	return guardTokens(tokens)
}

// guardText refuses what isn't text, of which the library would report each
// byte.
func guardText(src []byte, file string) *hcl.Diagnostic {
	at := bytes.IndexByte(src, 0)
	if at < 0 {
		if utf8.Valid(src) {
			return nil
		}
		for at = 0; at < len(src); {
			r, size := utf8.DecodeRune(src[at:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			at += size
		}
	}
	lineStart := bytes.LastIndexByte(src[:at], '\n') + 1
	pos := hcl.Pos{
		Line:   1 + bytes.Count(src[:at], []byte{'\n'}),
		Column: 1 + utf8.RuneCount(src[lineStart:at]),
		Byte:   at,
	}
	return tooMuch(hcl.Range{Filename: file, Start: pos, End: hcl.Pos{Line: pos.Line, Column: pos.Column + 1, Byte: at + 1}},
		"Not a text file", "A configuration file is text in UTF-8; here is a byte that is not.")
}

// longHeredoc tells whether there may be one of more lines than the library
// can join in reasonable time, for it takes the square of their number.
func longHeredoc(src []byte) bool {
	return bytes.Contains(src, []byte("<<")) && bytes.Count(src, []byte{'\n'}) > maxParts/4
}

// doubtful looks at bytes alone, strings and comments not told apart, and errs
// on the side of doubt.
func doubtful(src []byte) bool {
	var open [quickNesting + 1]byte
	depth, operators, digits, controls := 0, 0, 0, 0
	for i, c := range src {
		if c >= '0' && c <= '9' {
			if digits++; digits > quickDigits {
				return true
			}
			if i+1 < len(src) && (src[i+1] == 'e' || src[i+1] == 'E') && longExponent(src[i+2:]) {
				return true
			}
			continue
		}
		if c >= 'a' && c <= 'z' || c == ' ' || c == '"' {
			digits = 0
			continue
		}
		if c != '.' {
			digits = 0
		}
		switch c {
		case '(', '[', '{':
			if c == '{' && i > 0 && src[i-1] == '%' {
				if controls++; controls > quickControls {
					return true
				}
			}
			if c == '[' {
				operators++
			} else {
				operators = 0
			}
			if depth++; depth > quickNesting {
				return true
			}
			open[depth] = c
		case ')', ']', '}':
			if depth > 0 {
				depth--
			}
			if c == '}' {
				operators = 0
			}
		case ',':
			operators = 0
		case '\n':
			if depth == 0 || open[depth] == '{' {
				operators = 0
			}
		case '!', '-', '?', '+', '*', '/', '%', '<', '>', '=', '&', '|', ':', '.':
			if operators++; operators > quickOperators {
				return true
			}
		}
	}
	return false
}

// longExponent looks at what follows the e of a number.
func longExponent(rest []byte) bool {
	if len(rest) > 0 && (rest[0] == '+' || rest[0] == '-') {
		rest = rest[1:]
	}
	n := 0
	for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
		n++
	}
	return n > maxExponent
}

func guardTokens(tokens hclsyntax.Tokens) *hcl.Diagnostic {
	var open []hclsyntax.TokenType
	var parts []int // of the texts that are open
	operators := 0
	var loop forGuard
	for i, t := range tokens {
		if d := loop.next(t, len(open)); d != nil {
			return d
		}
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenOQuote,
			hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			open, parts = append(open, t.Type), append(parts, 0)
			if t.Type == hclsyntax.TokenOBrack || t.Type == hclsyntax.TokenTemplateControl {
				operators++
			}
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenCQuote,
			hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
			if len(open) > 0 {
				open, parts = open[:len(open)-1], parts[:len(parts)-1]
			}
		case hclsyntax.TokenStringLit:
			if len(parts) > 0 {
				if parts[len(parts)-1]++; parts[len(parts)-1] > maxParts {
					return tooMuch(t.Range, "Text too long", "A text in a configuration has at most 8,000 lines. Put it in a file of its own, and write file(\"...\") here.")
				}
			}
		case hclsyntax.TokenComma:
			operators = 0
		case hclsyntax.TokenNewline:
			if len(open) == 0 || open[len(open)-1] == hclsyntax.TokenOBrace {
				operators = 0
			}
		case hclsyntax.TokenNumberLit:
			if hugeNumber(t.Bytes) {
				return tooMuch(t.Range, "Number too large", "A number has at most 400 digits, and an exponent of at most 3.")
			}
		case hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenQuestion, hclsyntax.TokenColon, hclsyntax.TokenPlus,
			hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent, hclsyntax.TokenAnd, hclsyntax.TokenOr,
			hclsyntax.TokenLessThan, hclsyntax.TokenGreaterThan, hclsyntax.TokenLessThanEq, hclsyntax.TokenGreaterThanEq,
			hclsyntax.TokenEqualOp, hclsyntax.TokenNotEqual, hclsyntax.TokenDot:
			operators++
		case hclsyntax.TokenEqual:
			// An argument starts, unless it is within an object or a call.
			if len(open) == 0 || open[len(open)-1] == hclsyntax.TokenOBrace && i > 0 {
				operators = 0
			}
		}
		if len(open) > maxNesting || operators > maxOperators {
			return tooMuch(t.Range, tooComplex, "Nothing in a configuration is nested more than 100 deep or combines more than 1,000 operators in one expression. This looks like a file of another kind.")
		}
	}
	return nil
}

// mayHaveFor looks for the word where a for expression or directive has it:
// after a bracket or a comment, or first on its line.
func mayHaveFor(src []byte) bool {
	word := []byte("for")
	for at := bytes.Index(src, word); at >= 0; {
		before := bytes.TrimRight(src[:at], " \t\r")
		switch {
		case len(before) == 0 || bytes.IndexByte([]byte("[{~\n"), before[len(before)-1]) >= 0 || bytes.HasSuffix(before, []byte("*/")):
			return true
		}
		next := bytes.Index(src[at+len(word):], word)
		if next < 0 {
			break
		}
		at += len(word) + next
	}
	return false
}

// forGuard refuses a for within a for, and a long one: the work and the memory
// that they take is the product of what each goes through, and without bounds
// a few hundred bytes never come to an end.
type forGuard struct {
	before hclsyntax.TokenType // the last token but newlines and comments
	within bool
	start  int
	depth  int // brackets that are open around it, its own included
}

// next takes a token and how many brackets are open before it.
func (g *forGuard) next(t hclsyntax.Token, open int) *hcl.Diagnostic {
	if t.Type == hclsyntax.TokenNewline || t.Type == hclsyntax.TokenComment {
		return nil
	}
	before := g.before
	g.before = t.Type
	control := before == hclsyntax.TokenTemplateControl
	starts := t.Type == hclsyntax.TokenIdent && string(t.Bytes) == "for" &&
		(control || before == hclsyntax.TokenOBrack || before == hclsyntax.TokenOBrace)
	switch {
	case starts && g.within, g.within && t.Range.End.Byte-g.start > maxFor:
		return tooMuch(t.Range, tooComplex, "A for expression holds no other one, and is at most 4 KiB long. Write out what it gives.")
	case starts:
		g.within, g.start, g.depth = true, t.Range.Start.Byte, open
		if control {
			g.depth-- // the directive's own brace ends long before the loop
		}
	case g.within && (open < g.depth || control && string(t.Bytes) == "endfor"):
		g.within = false
	}
	return nil
}

func hugeNumber(literal []byte) bool {
	if len(literal) > maxNumber {
		return true
	}
	e := bytes.IndexAny(literal, "eE")
	return e >= 0 && longExponent(literal[e+1:])
}

func tooMuch(at hcl.Range, summary, detail string) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: detail, Subject: &at}
}

// guardJSON does the same for JSON, whose strings are templates that the
// library parses when they are evaluated.
func guardJSON(src []byte, file string) *hcl.Diagnostic {
	depth, line, lineStart := 0, 1, 0
	at := func(from, to int) hcl.Range {
		return hcl.Range{
			Filename: file,
			Start:    hcl.Pos{Line: line, Column: from - lineStart + 1, Byte: from},
			End:      hcl.Pos{Line: line, Column: to - lineStart + 1, Byte: to},
		}
	}
	for i := 0; i < len(src); i++ {
		switch c := src[i]; c {
		case '\n':
			line, lineStart = line+1, i+1
		case '[', '{':
			if depth++; depth > maxNesting {
				return tooMuch(at(i, i+1), tooComplex, "Nothing in a configuration is nested more than 100 deep. This looks like a file of another kind.")
			}
		case ']', '}':
			if depth > 0 {
				depth--
			}
		case '"':
			end := i + valueLength(src[i:])
			if d := guardTemplate(src[i:end], at(i, min(end, i+20))); d != nil {
				return d
			}
			i = end - 1
		default:
			if c != '-' && (c < '0' || c > '9') {
				continue
			}
			end := i + 1
			for end < len(src) && bytes.IndexByte([]byte("0123456789+-.eE"), src[end]) >= 0 {
				end++
			}
			if hugeNumber(src[i:end]) {
				return tooMuch(at(i, min(end, i+20)), "Number too large", "A number has at most 400 digits, and an exponent of at most 3.")
			}
			i = end - 1
		}
	}
	return nil
}

// guardTemplate looks into one JSON string.
func guardTemplate(literal []byte, at hcl.Range) *hcl.Diagnostic {
	if bytes.IndexByte(literal, '{') < 0 && bytes.IndexByte(literal, '\\') < 0 {
		return nil
	}
	var text string
	if json.Unmarshal(literal, &text) != nil || !doubtful([]byte(text)) && !mayHaveFor([]byte(text)) {
		return nil
	}
	tokens, _ := hclsyntax.LexTemplate([]byte(text), at.Filename, hcl.InitialPos)
	d := guardTokens(tokens)
	if d != nil {
		d.Subject = &at
	}
	return d
}
