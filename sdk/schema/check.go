package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Problem is one thing that a value has against its schema.
type Problem struct {
	// Path to the argument, such as ["timeouts", "connect"] or ["ports", "2"];
	// empty for the whole.
	Path []string
	// Message says what is wrong; it never holds a sensitive value.
	Message string
}

// Error gives the path and what is wrong there.
func (p Problem) Error() string {
	if len(p.Path) == 0 {
		return p.Message
	}
	return strings.Join(p.Path, ".") + ": " + p.Message
}

// Problems are all that a value has against its schema, in the order in which
// they stand there. [Decode] and [Schema.FromUser] give them as their error.
type Problems []Problem

// Error gives one line per problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// maxProblems bounds what a report on garbage can grow to.
const maxProblems = 100

// FromUser checks JSON in the user's form against the schema and gives it in
// the wire form: defaults filled in, nulls left out, durations in nanoseconds,
// sizes in bytes, keys in order. A size may also be given as a number of bytes.
// Its error is [Problems], all of them at once.
func (s *Schema) FromUser(data []byte) (json.RawMessage, error) {
	c := checker{user: true}
	tree := c.whole(s, data)
	if len(c.problems) > 0 {
		return nil, c.problems
	}
	out, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("encoding the checked arguments: %w", err)
	}
	return out, nil
}

// checker walks JSON along a schema. What it gives is a tree of map[string]any,
// []any, string, bool, int64 and float64 in the wire form.
type checker struct {
	user     bool // the user's form, else the wire form
	hidden   bool // within a sensitive argument
	problems Problems
}

func (c *checker) fail(path []string, format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, Problem{Path: slices.Clone(path), Message: fmt.Sprintf(format, args...)})
	}
}

func (c *checker) whole(s *Schema, data []byte) map[string]any {
	if !utf8.Valid(data) {
		c.fail(nil, "the arguments are no valid UTF-8")
		return nil
	}
	if !json.Valid(data) {
		c.fail(nil, "the arguments are no valid JSON")
		return nil
	}
	return c.object(s, data, nil)
}

// object takes valid JSON.
func (c *checker) object(s *Schema, raw json.RawMessage, path []string) map[string]any {
	given := map[string]json.RawMessage{}
	err := eachMember(raw, func(name string, value json.RawMessage) {
		at := append(path, cut(name))
		if _, twice := given[name]; twice {
			c.fail(at, "given twice")
		} else if s.Argument(name) == nil {
			c.fail(at, "unknown argument")
		}
		given[name] = value
	})
	if err != nil {
		c.fail(path, "%v", err)
		return nil
	}
	out := make(map[string]any, len(s.Arguments))
	for _, a := range s.Arguments {
		if v := c.argument(a, given[a.Name], append(path, a.Name)); v != nil {
			out[a.Name] = v
		}
	}
	return out
}

// argument gives the value of one argument, its default where it is absent, or
// nil.
func (c *checker) argument(a *Argument, raw json.RawMessage, path []string) any {
	if c.user && string(raw) == "null" {
		raw = nil
	}
	switch {
	case raw != nil:
		return c.value(a, raw, path)
	case a.Required:
		c.fail(path, "required, but not set")
	case len(a.Default) > 0:
		d := checker{user: true} // defaults are always in the user's form
		return d.value(a, bytes.TrimSpace(a.Default), path)
	}
	return nil
}

func (c *checker) value(a *Argument, raw json.RawMessage, path []string) any {
	if outer := c.hidden; a.Sensitive && !outer {
		c.hidden = true
		defer func() { c.hidden = outer }()
	}
	switch a.Type {
	case TypeList:
		return c.list(a, raw, path)
	case TypeMap:
		return c.mapping(a, raw, path)
	case TypeObject:
		if kindOf(raw) != "an object" {
			c.fail(path, "must be an object, not %s", kindOf(raw))
			return nil
		}
		return c.object(a.Object, raw, path)
	}
	return c.scalar(a, a.Type, raw, path)
}

func (c *checker) list(a *Argument, raw json.RawMessage, path []string) any {
	var items []json.RawMessage
	if kindOf(raw) != "a list" || json.Unmarshal(raw, &items) != nil {
		c.fail(path, "must be a list, not %s", kindOf(raw))
		return nil
	}
	out := make([]any, 0, len(items))
	for i, item := range items {
		out = append(out, c.element(a, item, append(path, strconv.Itoa(i))))
	}
	return out
}

func (c *checker) mapping(a *Argument, raw json.RawMessage, path []string) any {
	if kindOf(raw) != "an object" {
		c.fail(path, "must be a map, not %s", kindOf(raw))
		return nil
	}
	out := map[string]any{}
	err := eachMember(raw, func(key string, value json.RawMessage) {
		if _, twice := out[key]; twice {
			c.fail(append(path, cut(key)), "given twice")
		}
		out[key] = c.element(a, value, append(path, cut(key)))
	})
	if err != nil {
		c.fail(path, "%v", err)
	}
	return out
}

func (c *checker) element(a *Argument, raw json.RawMessage, path []string) any {
	if a.Element != TypeObject {
		return c.scalar(a, a.Element, raw, path)
	}
	if kindOf(raw) != "an object" {
		c.fail(path, "must be an object, not %s", kindOf(raw))
		return nil
	}
	return c.object(a.Object, raw, path)
}

// scalar reads one value of a scalar type and holds it against enum and limits.
func (c *checker) scalar(a *Argument, t Type, raw json.RawMessage, path []string) any {
	v, err := c.read(t, raw)
	if err != nil {
		if c.hidden {
			err = fmt.Errorf("must be %s", expected[t])
		}
		c.fail(path, "%v", err)
		return nil
	}
	if text, ok := v.(string); ok && len(a.Enum) > 0 && !slices.Contains(a.Enum, text) {
		c.fail(path, "must be one of %s%s", quoted(a.Enum), c.not(strconv.Quote(cut(text))))
		return nil
	}
	lim, err := a.limits(t)
	if err != nil { // only in a schema that nobody validated
		c.fail(path, "the schema is wrong: %v", err)
		return nil
	}
	if lim.min != nil && compare(v, lim.min) < 0 {
		c.fail(path, "must be at least %s%s", a.Min, c.not(written(t, v)))
		return nil
	}
	if lim.max != nil && compare(v, lim.max) > 0 {
		c.fail(path, "must be at most %s%s", a.Max, c.not(written(t, v)))
		return nil
	}
	return v
}

var expected = map[Type]string{
	TypeString: "a string", TypeBool: "true or false", TypeInteger: "a whole number of 64 bits", TypeNumber: "a number",
	TypeDuration: `a duration as in "30s"`, TypeSize: `a size as in "64MiB"`,
}

func (c *checker) read(t Type, raw json.RawMessage) (any, error) {
	kind := kindOf(raw)
	wrong := fmt.Errorf("must be %s, not %s", expected[t], kind)
	switch t {
	case TypeString:
		if kind != "a string" {
			return nil, wrong
		}
		return unquote(raw)
	case TypeBool:
		if kind != "a bool" {
			return nil, wrong
		}
		return raw[0] == 't', nil
	case TypeNumber:
		if kind != "a number" {
			return nil, wrong
		}
		return parseNumber(string(raw))
	case TypeInteger:
		if kind != "a number" {
			return nil, wrong
		}
		return wholeNumber(raw, false)
	case TypeDuration, TypeSize:
		if c.user && kind == "a string" {
			return parseUnit(t, raw)
		}
		// A size is a number of bytes to users too; a duration needs a unit.
		if kind != "a number" || c.user && t == TypeDuration {
			return nil, wrong
		}
		return wholeNumber(raw, true)
	}
	return nil, wrong
}

func parseUnit(t Type, raw json.RawMessage) (any, error) {
	text, err := unquote(raw)
	if err != nil {
		return nil, err
	}
	if t == TypeSize {
		n, err := ParseSize(text)
		return int64(n), err
	}
	d, err := ParseDuration(text)
	return int64(d), err
}

func wholeNumber(raw json.RawMessage, positive bool) (int64, error) {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%s doesn't fit a whole number of 64 bits", cut(string(raw)))
	case err != nil:
		return 0, fmt.Errorf("must be a whole number, not %s", cut(string(raw)))
	case positive && n < 0:
		return 0, fmt.Errorf("%d is below zero", n)
	}
	return n, nil
}

func unquote(raw json.RawMessage) (string, error) {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("is no valid string: %w", err)
	}
	return s, nil
}

// not ends a message with the value, unless that is sensitive.
func (c *checker) not(value string) string {
	if c.hidden {
		return ""
	}
	return ", not " + value
}

// written gives a value as a user would write it.
func written(t Type, v any) string {
	if n, ok := v.(int64); ok {
		switch t {
		case TypeDuration:
			return FormatDuration(time.Duration(n))
		case TypeSize:
			return FormatSize(Size(n))
		}
	}
	return fmt.Sprint(v)
}

// cut keeps garbage from filling a message.
func cut(text string) string {
	if len(text) > 40 {
		return strings.ToValidUTF8(text[:40], "") + "..."
	}
	return text
}

func quoted(values []string) string {
	q := make([]string, len(values))
	for i, v := range values {
		q[i] = strconv.Quote(v)
	}
	return strings.Join(q, ", ")
}

// kindOf names the kind of a valid JSON value.
func kindOf(raw json.RawMessage) string {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a bool"
	case 'n':
		return "null"
	}
	return "a number"
}

// eachMember walks over the members of an object in their order; unlike a map,
// it shows a name that is given twice.
func eachMember(raw json.RawMessage, member func(name string, value json.RawMessage)) error {
	if kindOf(raw) != "an object" {
		return fmt.Errorf("must be an object, not %s", kindOf(raw))
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("reading an object: %w", err)
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return fmt.Errorf("reading a name: %w", err)
		}
		text, ok := name.(string)
		if !ok {
			return errors.New("a name must be a string")
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return fmt.Errorf("reading the value of %q: %w", cut(text), err)
		}
		member(text, value)
	}
	if _, err := dec.Token(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the end of an object: %w", err)
	}
	return nil
}
