package pluginhost

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestChoose has files of which some will not do.
func TestChoose(t *testing.T) {
	b := newBench(t)
	one, two, three := b.install("web", "1.0.0"), b.install("web", "2.0.0"), b.install("web", "3.0.0")
	empty, open := b.install("web", "4.0.0"), b.install("web", "5.0.0")
	must(t, os.Truncate(empty, 0))
	must(t, os.Chmod(open, 0o777))
	zeros := strings.Repeat("0", 64)
	tests := []struct {
		name, constraint, sum string
		want                  string
		errs                  []string
	}{
		{name: "those that don't pass give way", want: three},
		{name: "by version", constraint: "< 3", want: two},
		{name: "by sum, though newer ones are there", sum: strings.ToUpper(sumOf(t, one)), want: one},
		{name: "by both", constraint: "~> 2.0", sum: sumOf(t, two), want: two},
		{name: "none of that version", constraint: "~> 9.0", errs: []string{`with a version "~> 9.0": the highest of 4 versions is 4.0.0`}},
		{name: "none with that sum", sum: zeros, errs: []string{
			three + " must not be run: ", "has the sha256 " + sumOf(t, three) + ", and the configuration wants " + zeros,
		}},
		{name: "the sum is another version's", constraint: "1.0.0", sum: sumOf(t, two), errs: []string{one + " must not be run"}},
		{name: "only bad ones", constraint: ">= 4", errs: []string{
			empty + " is no program: it has 0 bytes", "write the file " + open,
		}},
		{name: "no constraint at all", constraint: "soon", errs: []string{`the version "soon" of the dataplane block`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Choose(b.plugins, "web", test.constraint, test.sum)
			if got.Path != test.want || (err == nil) != (len(test.errs) == 0) {
				t.Errorf("chose %q, %v, want %q", got.Path, err, test.want)
			}
			for _, part := range test.errs {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("error %v\nwant it to contain %s", err, part)
				}
			}
		})
	}
	if _, err := Choose(filepath.Join(b.plugins, "none"), "web", "", ""); err == nil {
		t.Error("no error from a folder that isn't there")
	}
}
