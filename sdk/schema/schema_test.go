package schema_test

import (
	"encoding/json"
	"errors"
	"flag"
	"math"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

var update = flag.Bool("update", false, "write the golden files anew")

// everything uses each type and each tag.
type everything struct {
	_        struct{}               `description:"Every kind of argument."`
	Mode     string                 `name:"mode" default:"auto" enum:"auto,nat,direct" description:"How packets travel."`
	Verbose  bool                   `name:"verbose" default:"true"`
	Count    int64                  `name:"count" default:"-3" min:"-10" max:"9223372036854775807"`
	Port     uint16                 `name:"port" min:"1"`
	Big      uint64                 `name:"big"`
	Ratio    float64                `name:"ratio" default:"0.5" min:"0" max:"1"`
	Small    float32                `name:"small"`
	Interval time.Duration          `name:"interval" default:"30s" min:"10ms" max:"1h"`
	Buffer   schema.Size            `name:"buffer" default:"64KiB" max:"1GiB"`
	Address  netip.Addr             `name:"address"`
	Token    string                 `name:"token" sensitive:"true"`
	Old      *int                   `name:"old" deprecated:"use count"`
	Names    []string               `name:"names" default:"[\"a\",\"b\"]"`
	Ports    []uint16               `name:"ports"`
	Labels   map[string]string      `name:"labels"`
	Waits    map[string]duration    `name:"waits"`
	Timeouts timeouts               `name:"timeouts" description:"How long to wait."`
	Backup   *target                `name:"backup"`
	Targets  []target               `name:"targets"`
	ByName   map[string]target      `name:"by_name"`
	Prefixes []netip.Prefix         `name:"prefixes"`
	Ignored  func()                 `name:"-"`
	hidden   map[string]interface{} //nolint:unused // shows that unexported fields are left out
}

type duration = time.Duration

type timeouts struct {
	Connect time.Duration  `name:"connect" default:"2s"`
	Idle    *time.Duration `name:"idle"`
}

type target struct {
	Host   string `name:"host" required:"true"`
	Weight uint8  `name:"weight" default:"1"`
	Key    string `name:"key" sensitive:"true" enum:"one,two"`
}

func defaults() everything {
	return everything{
		Mode: "auto", Verbose: true, Count: -3, Ratio: 0.5, Interval: 30 * time.Second, Buffer: 64 << 10,
		Names: []string{"a", "b"}, Timeouts: timeouts{Connect: 2 * time.Second},
	}
}

func diff(want, got any) string {
	return cmp.Diff(want, got, cmpopts.IgnoreUnexported(everything{}), cmpopts.IgnoreFields(everything{}, "Ignored"),
		cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}))
}

func TestGolden(t *testing.T) {
	s, err := schema.Of(&everything{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const file = "testdata/everything.json"
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("schema changed (-want +got), write it with -update:\n%s", d)
	}
	var back schema.Schema
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	if err := back.Validate(); err != nil {
		t.Errorf("what was read back: %v", err)
	}
}

func TestDecode(t *testing.T) {
	idle, old := time.Minute, 7
	cases := []struct {
		name, json string
		want       func(*everything)
	}{
		{"nothing", "", func(*everything) {}},
		{"empty", "{}", func(*everything) {}},
		{"scalars", `{"mode":"nat","verbose":false,"count":9223372036854775807,"port":65535,"big":9223372036854775807,
			"ratio":1e-3,"small":2.5,"interval":10000000,"buffer":1073741824,"address":"2001:db8::1","token":"s"}`,
			func(e *everything) {
				e.Mode, e.Verbose, e.Count, e.Port, e.Big = "nat", false, math.MaxInt64, 65535, math.MaxInt64
				e.Ratio, e.Small, e.Interval, e.Buffer = 1e-3, 2.5, 10*time.Millisecond, 1<<30
				e.Address, e.Token = netip.MustParseAddr("2001:db8::1"), "s"
			}},
		{"pointers", `{"old":7,"timeouts":{"idle":60000000000},"backup":{"host":"h"}}`, func(e *everything) {
			e.Old, e.Timeouts.Idle, e.Backup = &old, &idle, &target{Host: "h", Weight: 1}
		}},
		{"lists and maps", `{"names":[],"ports":[1,2],"labels":{"a":"b"},"waits":{"x":5},"targets":[{"host":"h","weight":0}],
			"by_name":{"n":{"host":"i","key":"two"}},"prefixes":["10.0.0.0/8"]}`, func(e *everything) {
			e.Names, e.Ports, e.Labels = []string{}, []uint16{1, 2}, map[string]string{"a": "b"}
			e.Waits, e.Targets = map[string]time.Duration{"x": 5}, []target{{Host: "h"}}
			e.ByName = map[string]target{"n": {Host: "i", Weight: 1, Key: "two"}}
			e.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}},
		{"white space", " {\n\"count\" :\t1 , \"ports\": [ 1 , 2 ] } ", func(e *everything) { e.Count, e.Ports = 1, []uint16{1, 2} }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want, got := defaults(), everything{Mode: "left from before", Ports: []uint16{9}}
			c.want(&want)
			if err := schema.Decode([]byte(c.json), &got); err != nil {
				t.Fatal(err)
			}
			if d := diff(want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	cases := []struct{ name, json, want string }{
		{"no JSON", `{"mode":`, "the arguments are no valid JSON"},
		{"two values", `{} {}`, "the arguments are no valid JSON"},
		{"no UTF-8", "{\"mode\":\"\xff\"}", "the arguments are no valid UTF-8"},
		{"no object", `[]`, "must be an object, not a list"},
		{"null", `null`, "must be an object, not null"},
		{"unknown", `{"mod":"nat"}`, "mod: unknown argument"},
		{"case", `{"Mode":"nat"}`, "Mode: unknown argument"},
		{"twice", `{"port":1,"port":2}`, "port: given twice"},
		{"left out", `{"-":1}`, "-: unknown argument"},
		{"enum", `{"mode":"x"}`, `mode: must be one of "auto", "nat", "direct", not "x"`},
		{"type", `{"mode":1,"verbose":"true","count":"1","ratio":"1"}`,
			"mode: must be a string, not a number\nverbose: must be true or false, not a string\n" +
				"count: must be a whole number of 64 bits, not a string\nratio: must be a number, not a string"},
		{"null in the wire form", `{"mode":null}`, "mode: must be a string, not null"},
		{"user's form on the wire", `{"interval":"30s","buffer":"1MiB"}`,
			"interval: must be a duration as in \"30s\", not a string\nbuffer: must be a size as in \"64MiB\", not a string"},
		{"fraction", `{"count":1.0}`, "count: must be a whole number, not 1.0"},
		{"exponent", `{"count":1e999999999}`, "count: must be a whole number, not 1e999999999"},
		{"65 bits", `{"count":9223372036854775808}`, "count: 9223372036854775808 doesn't fit a whole number of 64 bits"},
		{"too low", `{"count":-11}`, "count: must be at least -10, not -11"},
		{"narrow", `{"port":65536}`, "port: must be at most 65535, not 65536"},
		{"below zero", `{"big":-1,"interval":-1}`, "big: must be at least 0, not -1\ninterval: -1 is below zero"},
		{"number", `{"ratio":1e400}`, `ratio: "1e400" is too large for a number`},
		{"float32", `{"small":1e300}`, "small: is too large for a number of 32 bits"},
		{"duration range", `{"interval":1}`, "interval: must be at least 10ms, not 1ns"},
		{"size range", `{"buffer":1073741825}`, "buffer: must be at most 1GiB, not 1073741825B"},
		{"text", `{"address":"nope"}`, `address: ParseAddr("nope"): unable to parse IP`},
		{"element", `{"ports":[1,0,70000],"labels":{"a":1}}`,
			"ports.2: must be at most 65535, not 70000\nlabels.a: must be a string, not a number"},
		{"no list", `{"ports":1,"labels":[],"timeouts":1}`,
			"ports: must be a list, not a number\nlabels: must be a map, not a list\ntimeouts: must be an object, not a number"},
		{"nested", `{"timeouts":{"connekt":1},"targets":[{"host":"a"},{}],"by_name":{"x":{"weight":256}},"backup":{}}`,
			"timeouts.connekt: unknown argument\nbackup.host: required, but not set\ntargets.1.host: required, but not set\n" +
				"by_name.x.host: required, but not set\nby_name.x.weight: must be at most 255, not 256"},
		{"sensitive", `{"token":5,"targets":[{"host":"h","key":"secret"}]}`,
			"token: must be a string\ntargets.0.key: must be one of \"one\", \"two\""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := everything{Mode: "before"}
			err := schema.Decode([]byte(c.json), &got)
			if err == nil {
				t.Fatal("accepted")
			}
			if d := cmp.Diff(c.want, err.Error()); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if got.Mode != "before" {
				t.Error("the target was changed")
			}
			var problems schema.Problems
			if !errors.As(err, &problems) {
				t.Errorf("the error is %T", err)
			}
		})
	}
}

func TestProblemsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"x":1`)
	for range 100_000 {
		b.WriteString(`,"` + strings.Repeat("y", 100) + `":1`)
	}
	b.WriteString("}")
	err := schema.Decode([]byte(b.String()), &everything{})
	if err == nil || len(err.Error()) > 20_000 {
		t.Errorf("%d bytes of error", len(err.Error()))
	}
}

func TestDecodeTarget(t *testing.T) {
	for _, v := range []any{nil, everything{}, (*everything)(nil), new(int)} {
		if err := schema.Decode([]byte("{}"), v); err == nil {
			t.Errorf("%T accepted", v)
		}
	}
}

func TestFromUser(t *testing.T) {
	s, err := schema.Of(everything{})
	if err != nil {
		t.Fatal(err)
	}
	wire, err := s.FromUser([]byte(`{"interval":"1m30s","buffer":2048,"mode":null,"backup":null,"targets":[{"host":"h"}],
		"timeouts":{"idle":"5s"},"count":9007199254740993,"waits":{"a":"1ms"}}`))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"buffer":2048,"count":9007199254740993,"interval":90000000000,"mode":"auto","names":["a","b"],` +
		`"ratio":0.5,"targets":[{"host":"h","weight":1}],"timeouts":{"connect":2000000000,"idle":5000000000},` +
		`"verbose":true,"waits":{"a":1000000}}`
	if d := cmp.Diff(want, string(wire)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	var got everything
	if err := schema.Decode(wire, &got); err != nil {
		t.Errorf("the plugin refuses what the core made: %v", err)
	}
	_, err = s.FromUser([]byte(`{"interval":30,"buffer":"1 furlong","timeouts":{"connect":"-1s"}}`))
	const bad = "interval: must be a duration as in \"30s\", not a number\n" +
		"buffer: \"1 furlong\" is no size: write it as in \"512B\", \"64KiB\" or \"1.5GiB\"\n" +
		"timeouts.connect: \"-1s\" is below zero"
	if err == nil || err.Error() != bad {
		t.Errorf("got %v", err)
	}
}

func TestOfRefuses(t *testing.T) {
	type recursive struct {
		Children []recursive `name:"children"`
	}
	cases := []struct {
		name string
		v    any
		want string
	}{
		{"no struct", 1, "not from int"},
		{"no name", struct{ A int }{}, "no tag name"},
		{"bad name", struct {
			A int `name:"camelCase"`
		}{}, "snake_case"},
		{"twice", struct {
			A int `name:"a"`
			B int `name:"a"`
		}{}, "declared twice"},
		{"type", struct {
			A chan int `name:"a"`
		}{}, "can't be of the type chan int"},
		{"list of lists", struct {
			A [][]int `name:"a"`
		}{}, "a list can't hold the type []int"},
		{"list of pointers", struct {
			A []*target `name:"a"`
		}{}, "can't hold"},
		{"key", struct {
			A map[int]string `name:"a"`
		}{}, "can't be of the type"},
		{"recursive", recursive{}, "recursive"},
		{"default", struct {
			A int `name:"a" default:"x"`
		}{}, "the default is no valid JSON"},
		{"default's type", struct {
			A int `name:"a" default:"true"`
		}{}, "the default is wrong"},
		{"default's range", struct {
			A time.Duration `name:"a" default:"1s" min:"2s"`
		}{}, "at least 2s"},
		{"default's enum", struct {
			A string `name:"a" default:"x" enum:"y,z"`
		}{}, "must be one of"},
		{"default's text", struct {
			A netip.Addr `name:"a" default:"x"`
		}{}, "unable to parse IP"},
		{"required default", struct {
			A int `name:"a" default:"1" required:"true"`
		}{}, "a required argument has no default"},
		{"pointer's default", struct {
			A *int `name:"a" default:"1"`
		}{}, "pointer"},
		{"required within", struct {
			A target `name:"a"`
		}{}, "host: required, but not set"},
		{"limit", struct {
			A schema.Size `name:"a" min:"x"`
		}{}, "min: \"x\" is no size"},
		{"limits crossed", struct {
			A int `name:"a" min:"2" max:"1"`
		}{}, "min 2 is above max 1"},
		{"limit of a string", struct {
			A string `name:"a" min:"2"`
		}{}, "min and max are for"},
		{"enum of a number", struct {
			A int `name:"a" enum:"1,2"`
		}{}, "only strings have an enum"},
		{"flag", struct {
			A int `name:"a" required:"yes"`
		}{}, "must be true or false"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for range 2 { // the second answer comes from the cache
				_, err := schema.Of(c.v)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			}
		})
	}
}

func TestReserved(t *testing.T) {
	s, err := schema.Of(struct {
		A string `name:"default"`
		B string `name:"auto_upgrade"`
		C string `name:"mode"`
	}{})
	if err != nil {
		t.Fatal(err)
	}
	err = s.CheckReserved()
	const want = "argument \"default\" belongs to the core: rename it\nargument \"auto_upgrade\" belongs to the core: rename it"
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestValidateForeign(t *testing.T) {
	deep := &schema.Schema{}
	for range 20 {
		deep = &schema.Schema{Arguments: []*schema.Argument{{Name: "a", Type: schema.TypeObject, Object: deep}}}
	}
	wide := &schema.Schema{}
	for range 1001 {
		wide.Arguments = append(wide.Arguments, &schema.Argument{Name: "a", Type: schema.TypeBool})
	}
	one := func(a schema.Argument) *schema.Schema { return &schema.Schema{Arguments: []*schema.Argument{&a}} }
	for name, s := range map[string]*schema.Schema{
		"deep": deep, "wide": wide,
		"nil":              {Arguments: []*schema.Argument{nil}},
		"type":             one(schema.Argument{Name: "a", Type: 77}),
		"no type":          one(schema.Argument{Name: "a"}),
		"no element":       one(schema.Argument{Name: "a", Type: schema.TypeList}),
		"element":          one(schema.Argument{Name: "a", Type: schema.TypeBool, Element: schema.TypeBool}),
		"no object":        one(schema.Argument{Name: "a", Type: schema.TypeObject}),
		"object":           one(schema.Argument{Name: "a", Type: schema.TypeBool, Object: &schema.Schema{}}),
		"default is null":  one(schema.Argument{Name: "a", Type: schema.TypeBool, Default: []byte("null")}),
		"default is blank": one(schema.Argument{Name: "a", Type: schema.TypeBool, Default: []byte(" ")}),
	} {
		if err := s.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestUnits(t *testing.T) {
	for text, want := range map[string]schema.Size{
		"0": 0, "0B": 0, "512": 512, "512B": 512, "64KiB": 64 << 10, "64 MiB": 64 << 20, "1.5GiB": 3 << 29, "1TiB": 1 << 40,
		"10kB": 10_000, "10KB": 10_000, "2MB": 2e6, "9223372036854775807B": math.MaxInt64,
	} {
		got, err := schema.ParseSize(text)
		if err != nil || got != want {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
		if again, err := schema.ParseSize(schema.FormatSize(got)); err != nil || again != got {
			t.Errorf("%s: written %s, read %d, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "B", "-1B", "1e9", "1/2MiB", "0.5B", "8EiB", "9223372036854775808", "1..5MiB", ".", " ",
		"1MiBB", "0x10", strings.Repeat("9", 1000)} {
		if got, err := schema.ParseSize(text); err == nil {
			t.Errorf("%q: accepted as %d", text, got)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 90 * time.Second: "1m30s", 10 * time.Minute: "10m", 2 * time.Hour: "2h",
		90 * time.Minute: "1h30m", time.Hour + time.Second: "1h0m1s", 1500 * time.Millisecond: "1.5s", math.MaxInt64: "2562047h47m16.854775807s",
	} {
		got := schema.FormatDuration(d)
		if got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
		if back, err := schema.ParseDuration(got); err != nil || back != d {
			t.Errorf("%s: read back %v, %v", got, back, err)
		}
	}
	for _, text := range []string{"", "30", "-1s", "1d", "1 s"} {
		if got, err := schema.ParseDuration(text); err == nil {
			t.Errorf("%q: accepted as %v", text, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{``, `{}`, `{"count":1,"ports":[1],"by_name":{"a":{"host":"b"}}}`, `{"interval":"30s"}`,
		`{"a":{"a":{}}}`, "{\"mode\":\"\xff\"}", `{"count":1e999999999}`, `[[[[`, `{"backup":null}`} {
		f.Add([]byte(seed))
	}
	s, err := schema.Of(everything{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got everything
		_ = schema.Decode(data, &got)
		wire, err := s.FromUser(data)
		if err != nil {
			return
		}
		// What the core lets through, the plugin's types may refuse, its
		// schema never.
		again := everything{}
		err = schema.Decode(wire, &again)
		var problems schema.Problems
		if errors.As(err, &problems) {
			for _, p := range problems {
				if name := p.Path[0]; name != "address" && name != "prefixes" && name != "small" {
					t.Errorf("%s was made from %q, and is refused: %v", wire, data, p)
				}
			}
		}
	})
}
