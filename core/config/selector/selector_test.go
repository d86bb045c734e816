package selector

import (
	"errors"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		selector, name string
		tags           []string
		meta           map[string]string
		want           bool
	}{
		{selector: "tag:patchbay", tags: []string{"a", "patchbay"}, want: true},
		{selector: "tag:patchbay", tags: []string{"patchbay2"}},
		{selector: "tag:urlprefix-:80/*", tags: []string{"urlprefix-:80/*"}, want: true},
		{selector: "name:web-*", name: "web-1", want: true},
		{selector: "name:web-*", name: "web"},
		{selector: "name:*", name: "a.b-c", want: true},
		{selector: "name:web-?", name: "web-1", want: true},
		{selector: "name:[a-c]x", name: "bx", want: true},
		{selector: "name:patchbay", tags: []string{"patchbay"}},
		{selector: "meta:team=shop", meta: map[string]string{"team": "shop"}, want: true},
		{selector: "meta:team=shop", meta: map[string]string{"team": "shops"}},
		{selector: "meta:team", meta: map[string]string{"team": ""}, want: true},
		{selector: "meta:team=", meta: map[string]string{"team": "shop"}},
		{selector: "meta:a=b=c", meta: map[string]string{"a": "b=c"}, want: true},
	} {
		s, err := Parse(c.selector)
		if err != nil {
			t.Errorf("%s: %v", c.selector, err)
			continue
		}
		if got := s.MatchListing(c.name, c.tags) || s.MatchMeta(c.meta); got != c.want {
			t.Errorf("%s chooses %q with tags %q and meta %q: %v, want %v", c.selector, c.name, c.tags, c.meta, got, c.want)
		}
	}
}

func TestParseMistakes(t *testing.T) {
	for _, text := range []string{"", "patchbay", "tag:", ":x", "tags:x", "name:[a", "name:a/b", "meta:", "meta:=x"} {
		_, err := Parse(text)
		var mistake *Error
		if !errors.As(err, &mistake) || mistake.Reason == "" {
			t.Errorf("%q: error %v, want one that says what is wrong", text, err)
		}
	}
}

// FuzzParse holds that no text makes a selector that can't be used.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"tag:patchbay", "name:web-*", "meta:a=b", "name:[", "x:y"} {
		f.Add(seed, "web")
	}
	f.Fuzz(func(_ *testing.T, text, name string) {
		if s, err := Parse(text); err == nil {
			s.MatchListing(name, []string{name})
			s.MatchMeta(map[string]string{name: text})
		}
	})
}
