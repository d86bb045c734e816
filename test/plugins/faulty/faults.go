package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// faults by word, with their values.
type faults map[string]string

// known faults: whether a value belongs to them, and when they strike.
var known = map[string]struct{ value bool }{
	// At the start, so by the file's name or the file beside it.
	"crash_at_start": {},            // exit 3 before the handshake
	"hang_at_start":  {},            // no handshake, ever
	"garbage":        {},            // a handshake that is none
	"protocol_2":     {},            // a handshake for another version of the contract
	"crash_after":    {value: true}, // exit 3 after this time, counted from the start or from Configure
	// In Describe.
	"spam_stdout":   {}, // print to standard output without end, at about 10 MB a second; also from Configure and Apply on
	"hang_describe": {},
	"wrong_name":    {},
	"wrong_version": {},
	"bad_schema":    {}, // declare an argument of the core's
	// In Validate.
	"slow_validate": {value: true}, // take this time
	// In Configure.
	"hang_configure": {},
	"fail_configure": {},
	"adopted":        {value: true}, // claim to have found so many services
	// In Apply.
	"hang_apply":        {},
	"slow_apply":        {value: true}, // take this time
	"die_in_apply":      {},            // exit 9 in the middle, every time
	"die_once_in_apply": {},            // the same once; the state folder remembers it
	"panic_in_apply":    {},
	"fail_apply":        {},            // an error for the whole
	"fail_service":      {value: true}, // an error for these ids, by commas
	"refuse_base":       {},            // refuse each Apply that follows one that succeeded
	// In Close.
	"hang_close": {}, // neither Shutdown nor SIGTERM ends it
	"fail_close": {},
}

func parseFaults(words []string) (faults, error) {
	out := faults{}
	for _, text := range words {
		word, value, hasValue := strings.Cut(text, "=")
		kind, ok := known[word]
		if !ok {
			return out, fmt.Errorf("%q is no fault: use one of %q", word, slices.Sorted(maps.Keys(known)))
		}
		if hasValue != kind.value {
			return out, fmt.Errorf("fault %q: it takes a value is %t", text, kind.value)
		}
		if word == "crash_after" || word == "slow_apply" || word == "slow_validate" {
			if _, err := schema.ParseDuration(value); err != nil {
				return out, fmt.Errorf("fault %q: %w", text, err)
			}
		}
		out[word] = value
	}
	return out, nil
}

// duration of a fault that parseFaults has accepted.
func duration(value string) time.Duration {
	d, err := schema.ParseDuration(value)
	if err != nil {
		return 0
	}
	return d
}

// misbehaveAtStart does what must come before Serve.
func (f *faulty) misbehaveAtStart() {
	if os.Getenv(dataplane.Handshake.MagicCookieKey) == "" {
		return // run by hand
	}
	if _, ok := f.has("crash_at_start"); ok {
		os.Exit(3)
	}
	if _, ok := f.has("garbage"); ok {
		fmt.Println("hello, world")
	}
	if _, ok := f.has("protocol_2"); ok {
		fmt.Println("1|2|unix|/nowhere|grpc|")
	}
	for _, word := range []string{"hang_at_start", "garbage", "protocol_2"} {
		f.hangIf(word)
	}
	f.crashLater()
}

// hangIf never returns where the fault is.
func (f *faulty) hangIf(word string) {
	if _, ok := f.has(word); ok {
		for {
			time.Sleep(time.Hour)
		}
	}
}

func (f *faulty) crashLater() {
	if value, ok := f.has("crash_after"); ok {
		time.AfterFunc(duration(value), func() { os.Exit(3) })
	}
}

// spamIf prints until the process ends.
func (f *faulty) spamIf() {
	if _, ok := f.has("spam_stdout"); !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spamming {
		return
	}
	f.spamming = true
	go func() {
		lines := strings.Repeat(strings.Repeat("spam ", 20)+"\n", 500) // 50 kB
		for {
			_, _ = os.Stdout.WriteString(lines)
			time.Sleep(5 * time.Millisecond)
		}
	}()
}

// journal writes a line into the state folder.
func (f *faulty) journal(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stateDir == "" {
		return
	}
	file, err := os.OpenFile(filepath.Join(f.stateDir, "journal"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(file, format+"\n", args...)
		_ = file.Close()
	}
	if err != nil {
		dataplane.Logger().Error("the journal can't be written", "error", err)
	}
}

// firstTime is true once for each word and state folder.
func (f *faulty) firstTime(word string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := os.OpenFile(filepath.Join(f.stateDir, word), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	_ = file.Close()
	return true
}
