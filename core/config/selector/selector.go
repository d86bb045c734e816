// Package selector reads the words that choose services of a catalog, such as
// "tag:patchbay", "name:web-*" and "meta:team=shop", and matches services with
// them.
//
// In go strings of the configuration; package config checks them with [Parse],
// the sources choose by them.
package selector

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Kind is what a selector looks at.
type Kind string

// The kinds.
const (
	Tag  Kind = "tag"
	Name Kind = "name"
	Meta Kind = "meta"
)

// Kinds that there are, for messages.
var Kinds = []string{string(Tag), string(Name), string(Meta)}

// Selector chooses services.
type Selector struct {
	Kind Kind
	// Key of the meta entry; of Meta alone.
	Key string
	// Value is the tag or the meta entry's value, compared as it is, or the
	// pattern of the name, with *, ? and [a-z].
	Value string
	// AnyValue is set for a meta entry that only has to be there.
	AnyValue bool
}

// Error says what is wrong with a selector, in words for the operator.
type Error struct {
	Text, Reason string
	// Kind is set where the word before the colon is not a kind.
	Kind string
}

func (e *Error) Error() string { return fmt.Sprintf("selector %q: %s", e.Text, e.Reason) }

// Parse reads one selector. Its error is an [Error].
func Parse(text string) (Selector, error) {
	kind, value, found := strings.Cut(text, ":")
	s := Selector{Kind: Kind(kind), Value: value}
	fail := func(reason string) (Selector, error) { return Selector{}, &Error{Text: text, Reason: reason} }
	switch {
	case !found:
		return fail("it begins with tag:, name: or meta:, as in \"tag:patchbay\"")
	case value == "":
		return fail("nothing follows the colon")
	}
	switch s.Kind {
	case Tag:
	case Name:
		if _, err := path.Match(value, ""); err != nil || strings.Contains(value, "/") {
			return fail("the pattern can't be read: * stands for any letters, ? for one, [a-z] for one of these")
		}
	case Meta:
		var valued bool
		s.Key, s.Value, valued = strings.Cut(value, "=")
		s.AnyValue = !valued
		if s.Key == "" {
			return fail("the key is missing, as in \"meta:team=shop\"")
		}
	default:
		return Selector{}, &Error{Text: text, Reason: "it begins with tag:, name: or meta:", Kind: kind}
	}
	return s, nil
}

// ParseAll reads several, and gives the first error.
func ParseAll(texts []string) ([]Selector, error) {
	out := make([]Selector, 0, len(texts))
	for _, text := range texts {
		s, err := Parse(text)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// MatchListing tells whether it chooses a service by its name and its tags.
func (s Selector) MatchListing(name string, tags []string) bool {
	switch s.Kind {
	case Tag:
		return slices.Contains(tags, s.Value)
	case Name:
		matched, err := path.Match(s.Value, name)
		return err == nil && matched
	default:
		return false
	}
}

// MatchMeta tells whether it chooses a service by the meta of an instance.
func (s Selector) MatchMeta(meta map[string]string) bool {
	if s.Kind != Meta {
		return false
	}
	value, found := meta[s.Key]
	return found && (s.AnyValue || value == s.Value)
}
