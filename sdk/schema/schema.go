// Package schema describes the arguments that a dataplane plugin takes, in its
// block of the configuration and in the options of a service.
//
// An author writes a struct with tags; [Of] gives its [Schema], which travels
// to the core, and [Decode] fills the struct from the JSON that the core sends.
// The core checks what a user wrote with [Schema.FromUser], which knows the
// same rules, so that a plugin is never told what its schema forbids.
//
// Values have two forms. The user's form is what stands in a configuration
// file: durations "30s", sizes "64MiB", null for an absent argument. The wire
// form has durations in nanoseconds, sizes in bytes, defaults filled in and no
// null. Whole numbers are exact to 64 bits in both.
package schema

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// Schema describes the arguments of a block, of options, or of an object
// within them.
type Schema struct {
	Description string `json:"description,omitempty"`
	// Arguments in the order in which the author declared them.
	Arguments []*Argument `json:"arguments"`
}

// Argument is one argument of a [Schema].
type Argument struct {
	// Name in snake_case.
	Name string `json:"name"`
	Type Type   `json:"type"`
	// Element is what a list or a map holds: a scalar or TypeObject. Limits and
	// Enum of a list or map are those of its elements.
	Element Type `json:"element,omitempty"`
	// Object describes an object, and the objects of a list or map.
	Object   *Schema `json:"object,omitempty"`
	Required bool    `json:"required,omitempty"`
	// Default in the user's form; empty when an absent argument stays absent.
	Default     json.RawMessage `json:"default,omitempty"`
	Description string          `json:"description,omitempty"`
	// Enum lists the only strings allowed; empty for any.
	Enum []string `json:"enum,omitempty"`
	// Min and Max are inclusive limits of integers, numbers, durations and
	// sizes, as the user would write them; empty for none.
	Min string `json:"min,omitempty"`
	Max string `json:"max,omitempty"`
	// Sensitive values are never shown, logged or stored.
	Sensitive bool `json:"sensitive,omitempty"`
	// Deprecated says what to use instead; empty when nothing is wrong with
	// the argument.
	Deprecated string `json:"deprecated,omitempty"`
}

// Type of an argument's value.
type Type uint8

// The types.
const (
	TypeString Type = iota + 1
	TypeBool
	// TypeInteger is a whole number of 64 bits, signed.
	TypeInteger
	TypeNumber
	// TypeDuration is never negative; see [ParseDuration].
	TypeDuration
	// TypeSize is a number of bytes, never negative; see [ParseSize].
	TypeSize
	TypeList
	TypeMap
	TypeObject
)

var typeNames = []string{
	TypeString: "string", TypeBool: "bool", TypeInteger: "integer", TypeNumber: "number", TypeDuration: "duration",
	TypeSize: "size", TypeList: "list", TypeMap: "map", TypeObject: "object",
}

// String gives the name of the type.
func (t Type) String() string {
	if t.known() {
		return typeNames[t]
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// MarshalText gives the name of the type.
func (t Type) MarshalText() ([]byte, error) {
	if !t.known() {
		return nil, fmt.Errorf("unknown type %d", uint8(t))
	}
	return []byte(typeNames[t]), nil
}

// UnmarshalText takes the name of a type.
func (t *Type) UnmarshalText(text []byte) error {
	i := slices.Index(typeNames, string(text))
	if i < 1 {
		return fmt.Errorf("unknown type %q: use one of %q", text, typeNames[1:])
	}
	*t = Type(i)
	return nil
}

func (t Type) known() bool { return t >= TypeString && int(t) < len(typeNames) }

func (t Type) scalar() bool { return t >= TypeString && t <= TypeSize }

// Argument gives the argument of that name, or nil.
func (s *Schema) Argument(name string) *Argument {
	for _, a := range s.Arguments {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// reserved are the core's own arguments in a dataplane block.
var reserved = []string{"auto_upgrade", "capabilities", "default", "sha256", "user", "version"}

// Reserved tells whether a name is one of the core's own arguments in a
// dataplane block, which a plugin may not declare there.
func Reserved(name string) bool { return slices.Contains(reserved, name) }

// CheckReserved gives an error that names the arguments of the schema that
// belong to the core; it applies to the schema of a dataplane block, not to
// that of options.
func (s *Schema) CheckReserved() error {
	var errs []error
	for _, a := range s.Arguments {
		if Reserved(a.Name) {
			errs = append(errs, fmt.Errorf("argument %q belongs to the core: rename it", a.Name))
		}
	}
	return errors.Join(errs...)
}

// Bounds of what a schema may be, so that one from the wire can't exhaust its
// reader.
const (
	maxDepth     = 16
	maxArguments = 1000
)

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// Validate gives every mistake of the schema itself: names, types, defaults
// that the schema forbids, limits that can't be read. What [Of] gives is valid.
func (s *Schema) Validate() error {
	count := 0
	return s.validate("", 0, &count)
}

func (s *Schema) validate(prefix string, depth int, count *int) error {
	if depth > maxDepth {
		return fmt.Errorf("%sobjects are nested more than %d deep", prefix, maxDepth)
	}
	if *count += len(s.Arguments); *count > maxArguments {
		return fmt.Errorf("%sthe schema has more than %d arguments", prefix, maxArguments)
	}
	var errs []error
	seen := make(map[string]bool, len(s.Arguments))
	for _, a := range s.Arguments {
		if a == nil {
			errs = append(errs, fmt.Errorf("%san argument is missing", prefix))
			continue
		}
		if seen[a.Name] {
			errs = append(errs, fmt.Errorf("%sargument %q is declared twice", prefix, a.Name))
		}
		seen[a.Name] = true
		if err := a.validate(depth, count); err != nil {
			errs = append(errs, fmt.Errorf("%sargument %q: %w", prefix, a.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (a *Argument) validate(depth int, count *int) error {
	if !namePattern.MatchString(a.Name) {
		return errors.New("the name must be snake_case, at most 63 characters")
	}
	value := a.Type
	switch {
	case !a.Type.known():
		return fmt.Errorf("unknown type %d", uint8(a.Type))
	case a.Type == TypeList || a.Type == TypeMap:
		if value = a.Element; !value.scalar() && value != TypeObject {
			return fmt.Errorf("a %v holds scalars or objects, not %v", a.Type, a.Element)
		}
	case a.Element != 0:
		return fmt.Errorf("a %v has no elements", a.Type)
	}
	if (value == TypeObject) != (a.Object != nil) {
		return errors.New("an object, and nothing else, has arguments of its own")
	}
	if a.Object != nil {
		if err := a.Object.validate("in the object: ", depth+1, count); err != nil {
			return err
		}
	}
	if len(a.Enum) > 0 && value != TypeString {
		return fmt.Errorf("only strings have an enum, not %v", value)
	}
	if err := a.validateLimits(value); err != nil {
		return err
	}
	return a.validateDefault()
}

func (a *Argument) validateLimits(value Type) error {
	var lim limits
	var err error
	switch {
	case a.Min == "" && a.Max == "":
		return nil
	case value != TypeInteger && value != TypeNumber && value != TypeDuration && value != TypeSize:
		return fmt.Errorf("min and max are for integers, numbers, durations and sizes, not for %v", value)
	}
	if lim, err = a.limits(value); err != nil {
		return err
	}
	if lim.min != nil && lim.max != nil && compare(lim.min, lim.max) > 0 {
		return fmt.Errorf("min %s is above max %s", a.Min, a.Max)
	}
	return nil
}

func (a *Argument) validateDefault() error {
	if len(a.Default) == 0 {
		return nil
	}
	if a.Required {
		return errors.New("a required argument has no default")
	}
	if !json.Valid(a.Default) {
		return errors.New("the default is no valid JSON")
	}
	c := checker{user: true}
	if v := c.value(a, bytes.TrimSpace(a.Default), nil); v == nil && len(c.problems) == 0 {
		return errors.New("the default can't be null")
	}
	if len(c.problems) > 0 {
		return fmt.Errorf("the default is wrong: %w", c.problems)
	}
	return nil
}

// limits in the wire form: int64 or float64, nil for none.
type limits struct{ min, max any }

func (a *Argument) limits(value Type) (limits, error) {
	lo, err := parseLimit(value, a.Min)
	if err != nil {
		return limits{}, fmt.Errorf("min: %w", err)
	}
	hi, err := parseLimit(value, a.Max)
	if err != nil {
		return limits{}, fmt.Errorf("max: %w", err)
	}
	return limits{min: lo, max: hi}, nil
}

func parseLimit(value Type, text string) (any, error) {
	if text == "" {
		return nil, nil
	}
	switch value {
	case TypeInteger:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no whole number of 64 bits", cut(text))
		}
		return n, nil
	case TypeDuration:
		d, err := ParseDuration(text)
		return int64(d), err
	case TypeSize:
		n, err := ParseSize(text)
		return int64(n), err
	default:
		f, err := parseNumber(text)
		return f, err
	}
}

// compare two values of the same type, int64 or float64.
func compare(a, b any) int {
	if x, ok := a.(int64); ok {
		y, _ := b.(int64)
		return cmp.Compare(x, y)
	}
	x, _ := a.(float64)
	y, _ := b.(float64)
	return cmp.Compare(x, y)
}
