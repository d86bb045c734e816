package config

import (
	"os"
	"regexp"
	"testing"
)

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		name, file, in, want string
		fails                bool
	}{
		{name: "aligns", file: "a.hcl", in: "service \"web\" {\nport=80\n  balance =   \"random\"\n}\n",
			want: "service \"web\" {\n  port    = 80\n  balance = \"random\"\n}\n"},
		{name: "keeps comments", file: "a.hcl", in: "# one\n\n\na=1 // two\n", want: "# one\n\n\na = 1 // two\n"},
		{name: "already right", file: "a.hcl", in: "a = 1\n", want: "a = 1\n"},
		{name: "empty", file: "a.hcl"},
		{name: "JSON is left alone", file: "a.json", in: "{ }", want: "{ }"},
		{name: "syntax error", file: "a.hcl", in: "a = = 1\n", want: "a = = 1\n", fails: true},
		{name: "unclosed", file: "a.hcl", in: "service \"web\" {\nport=80\n", want: "service \"web\" {\nport=80\n", fails: true},
		{name: "not text", file: "a.hcl", in: "a=1\x00", want: "a=1\x00", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, diags := Format(c.file, []byte(c.in))
			if string(got) != c.want || diags.HasErrors() != c.fails {
				t.Errorf("got %q, errors %v %v; want %q", got, diags.HasErrors(), diags.All(), c.want)
			}
		})
	}
}

// TestExamplesOfTheReference holds that the examples in the documentation are
// canonical HCL.
func TestExamplesOfTheReference(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllSubmatch(text, -1)
	if len(examples) < 8 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, e := range examples {
		out, diags := Format("example.hcl", e[1])
		if diags.Len() > 0 || string(out) != string(e[1]) {
			t.Errorf("not canonical:\n%s%v", e[1], diags.All())
		}
	}
}
