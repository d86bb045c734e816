package schema

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes, written "64MiB".
type Size int64

// String gives the size as a user would write it.
func (s Size) String() string { return FormatSize(s) }

// ParseDuration reads a duration as users write it: "30s", "1h30m", "250ms".
// A unit is needed, and nothing is below zero.
func ParseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf(`%q is no duration: write it as in "30s", "10m" or "1h30m"`, cut(text))
	case d < 0:
		return 0, fmt.Errorf("%q is below zero", cut(text))
	}
	return d, nil
}

// FormatDuration writes a duration so that [ParseDuration] reads it back,
// without the zero parts of [time.Duration.String]: "10m", not "10m0s".
func FormatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

type unit struct {
	name  string
	bytes int64
}

// The units of sizes; a name comes before those that end with it.
var units = []unit{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
}

// ParseSize reads a size as users write it: "64MiB", "1.5GiB", "10kB", "512B",
// or a bare number of bytes. What comes to no whole number of bytes, or is
// below zero or above 8 EiB, is an error.
func ParseSize(text string) (Size, error) {
	number, factor := text, int64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(text, u.name); ok {
			number, factor = strings.TrimRight(n, " "), u.bytes
			break
		}
	}
	// The length bounds the work on hostile input; exponents are refused.
	if number == "" || len(number) > 40 || strings.Trim(number, "0123456789.") != "" {
		return 0, fmt.Errorf(`%q is no size: write it as in "512B", "64KiB" or "1.5GiB"`, cut(text))
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, fmt.Errorf(`%q is no size: write it as in "512B", "64KiB" or "1.5GiB"`, cut(text))
	}
	r.Mul(r, new(big.Rat).SetInt64(factor))
	switch {
	case !r.IsInt():
		return 0, fmt.Errorf("%q is no whole number of bytes", text)
	case !r.Num().IsInt64():
		return 0, fmt.Errorf("%q is too large", text)
	}
	return Size(r.Num().Int64()), nil
}

// FormatSize writes a size in the largest binary unit that holds it exactly;
// [ParseSize] reads it back.
func FormatSize(s Size) string {
	if s != 0 {
		for _, u := range units[:4] {
			if int64(s)%u.bytes == 0 {
				return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
			}
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

func parseNumber(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || math.IsInf(f, 0):
		return 0, fmt.Errorf("%q is too large for a number", cut(text))
	case err != nil || math.IsNaN(f):
		return 0, fmt.Errorf("%q is no number", cut(text))
	}
	return f, nil
}
