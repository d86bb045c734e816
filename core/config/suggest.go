package config

import (
	"fmt"
	"sort"
	"strings"

	"github.com/agext/levenshtein"
)

// suggest gives the candidate that a user most likely meant, or "".
func suggest(given string, candidates []string) string {
	given = strings.ToLower(given)
	best, bestDistance := "", 0
	for _, c := range candidates {
		lower := strings.ToLower(c)
		limit := 1 + len(c)/4 // one slip in a short word, more in a long one
		if limit > 3 {
			limit = 3
		}
		begins := len(given) >= 3 && strings.HasPrefix(lower, given)
		if !begins && max(len(given)-len(lower), len(lower)-len(given)) > 4*limit {
			continue // a letter has up to four bytes
		}
		distance := levenshtein.Distance(given, lower, nil)
		if distance == 2 && transposed(given, lower) {
			distance = 1 // one slip of the fingers
		}
		if begins {
			distance = min(distance, limit)
		}
		if distance > limit || best != "" && distance >= bestDistance {
			continue
		}
		best, bestDistance = c, distance
	}
	return best
}

// transposed tells whether two words differ by two neighbours that changed
// places.
func transposed(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	return i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

// didYouMean is a sentence to add to a message, with a space before it, or "".
func didYouMean(given string, candidates []string) string {
	if s := suggest(given, candidates); s != "" {
		return fmt.Sprintf(" Did you mean %q?", s)
	}
	return ""
}

// oneOf lists candidates for a message.
func oneOf(candidates []string) string {
	const most = 12
	var b strings.Builder
	for i, c := range candidates {
		switch {
		case i == most:
			fmt.Fprintf(&b, " and %d more", len(candidates)-most)
			return b.String()
		case i > 0 && i == len(candidates)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", c)
	}
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
