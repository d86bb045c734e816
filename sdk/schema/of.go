package schema

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Of gives the schema of a struct, or of a pointer to one, from the tags of
// its exported fields; nil has a schema without arguments.
//
//	type Config struct {
//		_        struct{}      `description:"Forwards through the kernel."`
//		Mode     string        `name:"mode" default:"auto" enum:"auto,nat,direct" description:"How packets travel."`
//		Interval time.Duration `name:"interval" default:"30s" min:"1s" max:"1h"`
//		Buffer   schema.Size   `name:"buffer" default:"64KiB"`
//		Ports    []uint16      `name:"ports" required:"true"`
//		Token    string        `name:"token" sensitive:"true"`
//		Limit    *int          `name:"limit" deprecated:"use buffer"`
//		Retry    Retry         `name:"retry"`
//	}
//
// Every exported field has a name, or name:"-" to be left out. A field may be
// of any kind of bool, string, integer, float, [time.Duration] or [Size]; a
// type with UnmarshalText is a string; a struct is an object. Slices and maps
// of strings to any of these are lists and maps. A pointer is nil where the
// argument is absent; any other field has its default then, or its zero value.
// A struct field is there with its own defaults, so it can hold a required
// argument only if it is required itself or a pointer.
//
// A default is written as a user would (default:"30s"), that of a list, map or
// object as JSON. Types narrower than 64 bits bring their limits.
func Of(v any) (*Schema, error) {
	if v == nil {
		return &Schema{Arguments: []*Argument{}}, nil
	}
	t := reflect.TypeOf(v)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	c, err := compile(t)
	if err != nil {
		return nil, err
	}
	return c.schema.clone(), nil
}

// compiled is a schema with the fields it was made from; fields[i] belongs to
// schema.Arguments[i].
type compiled struct {
	schema *Schema
	fields []field
}

type field struct {
	index  int
	object *compiled // of an object, and of the objects of a list or map
}

var cache sync.Map // reflect.Type -> *compiled or error

func compile(t reflect.Type) (*compiled, error) {
	if got, ok := cache.Load(t); ok {
		if err, bad := got.(error); bad {
			return nil, err
		}
		return got.(*compiled), nil
	}
	c, err := compileStruct(t, nil)
	if err == nil {
		err = c.schema.Validate()
	}
	if err != nil {
		err = fmt.Errorf("the schema of %v: %w", t, err)
		cache.Store(t, err)
		return nil, err
	}
	cache.Store(t, c)
	return c, nil
}

func compileStruct(t reflect.Type, within []reflect.Type) (*compiled, error) {
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("a schema is made from a struct, not from %v", t)
	}
	if slices.Contains(within, t) {
		return nil, fmt.Errorf("%v holds itself: arguments can't be recursive", t)
	}
	within = append(within, t)
	c := &compiled{schema: &Schema{Arguments: []*Argument{}}}
	var errs []error
	for i := range t.NumField() {
		sf := t.Field(i)
		if sf.Name == "_" {
			c.schema.Description = sf.Tag.Get("description")
		}
		if !sf.IsExported() || sf.Tag.Get("name") == "-" {
			continue
		}
		a, object, err := compileField(sf, within)
		if err != nil {
			errs = append(errs, fmt.Errorf("field %s: %w", sf.Name, err))
			continue
		}
		c.schema.Arguments = append(c.schema.Arguments, a)
		c.fields = append(c.fields, field{index: i, object: object})
	}
	return c, errors.Join(errs...)
}

func compileField(sf reflect.StructField, within []reflect.Type) (*Argument, *compiled, error) {
	tag := sf.Tag
	a := &Argument{
		Name: tag.Get("name"), Description: tag.Get("description"),
		Min: tag.Get("min"), Max: tag.Get("max"), Deprecated: tag.Get("deprecated"),
	}
	if a.Name == "" {
		return nil, nil, errors.New(`it has no tag name; give it one, or name:"-" to leave it out`)
	}
	if enum := tag.Get("enum"); enum != "" {
		a.Enum = strings.Split(enum, ",")
	}
	var err error
	if a.Required, err = boolTag(tag, "required"); err != nil {
		return nil, nil, err
	}
	if a.Sensitive, err = boolTag(tag, "sensitive"); err != nil {
		return nil, nil, err
	}
	t, pointer := sf.Type, sf.Type.Kind() == reflect.Pointer
	if pointer {
		t = t.Elem()
	}
	object, err := a.setType(t, within)
	if err != nil {
		return nil, nil, err
	}
	return a, object, a.setDefault(tag, t, pointer)
}

func boolTag(tag reflect.StructTag, key string) (bool, error) {
	text, ok := tag.Lookup(key)
	if !ok {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("the tag %s must be true or false, not %q", key, text)
	}
	return b, nil
}

// setType sets what follows from a field's type.
func (a *Argument) setType(t reflect.Type, within []reflect.Type) (*compiled, error) {
	element := t
	a.Type = scalarOf(t)
	switch {
	case a.Type != 0:
	case t.Kind() == reflect.Struct:
		a.Type = TypeObject
	case t.Kind() == reflect.Slice:
		a.Type, element = TypeList, t.Elem()
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		a.Type, element = TypeMap, t.Elem()
	default:
		return nil, fmt.Errorf("an argument can't be of the type %v", t)
	}
	if element != t {
		if a.Element = scalarOf(element); a.Element == 0 && element.Kind() == reflect.Struct {
			a.Element = TypeObject
		}
		if a.Element == 0 {
			return nil, fmt.Errorf("a %v can't hold the type %v", a.Type, element)
		}
	}
	if a.Type == TypeObject || a.Element == TypeObject {
		c, err := compileStruct(element, within)
		if err != nil {
			return nil, err
		}
		a.Object = c.schema
		return c, nil
	}
	a.setTypeLimits(element)
	return nil, nil
}

var (
	durationType    = reflect.TypeFor[time.Duration]()
	sizeType        = reflect.TypeFor[Size]()
	unmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// scalarOf gives the type of a scalar, 0 for anything else.
func scalarOf(t reflect.Type) Type {
	switch {
	case t == durationType:
		return TypeDuration
	case t == sizeType:
		return TypeSize
	case takesText(t):
		return TypeString
	}
	switch t.Kind() {
	case reflect.String:
		return TypeString
	case reflect.Bool:
		return TypeBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return TypeInteger
	case reflect.Float32, reflect.Float64:
		return TypeNumber
	}
	return 0
}

func takesText(t reflect.Type) bool { return reflect.PointerTo(t).Implements(unmarshalerType) }

// setTypeLimits narrows an integer to what its Go type can hold.
func (a *Argument) setTypeLimits(t reflect.Type) {
	if scalarOf(t) != TypeInteger {
		return
	}
	bits := t.Bits()
	if reflect.Zero(t).CanUint() {
		a.atLeast("0")
		if bits < 64 {
			a.atMost(strconv.FormatUint(1<<bits-1, 10))
		}
		return
	}
	if bits < 64 {
		a.atLeast(strconv.FormatInt(-1<<(bits-1), 10))
		a.atMost(strconv.FormatInt(1<<(bits-1)-1, 10))
	}
}

// atLeast raises Min; a tag that can't be read is left for Validate to report.
func (a *Argument) atLeast(limit string) {
	if a.Min == "" || intOr(a.Min, math.MaxInt64) < intOr(limit, 0) {
		a.Min = limit
	}
}

func (a *Argument) atMost(limit string) {
	if a.Max == "" || intOr(a.Max, math.MinInt64) > intOr(limit, 0) {
		a.Max = limit
	}
}

func intOr(text string, otherwise int64) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}

func (a *Argument) setDefault(tag reflect.StructTag, t reflect.Type, pointer bool) error {
	text, ok := tag.Lookup("default")
	switch {
	case ok && pointer:
		return errors.New("a pointer is for an argument that may be absent: it can't have a default")
	case ok:
		a.Default = defaultJSON(a.Type, text)
	case a.Type == TypeObject && !pointer && !a.Required:
		a.Default = json.RawMessage("{}")
	}
	if len(a.Default) > 0 && takesText(t) {
		if err := reflect.New(t).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil {
			return fmt.Errorf("the default is wrong: %w", err)
		}
	}
	return nil
}

// defaultJSON turns the text of a tag to JSON in the user's form.
func defaultJSON(t Type, text string) json.RawMessage {
	switch t {
	case TypeString, TypeDuration, TypeSize:
		quoted, err := json.Marshal(text)
		if err != nil { // strings always encode
			return nil
		}
		return quoted
	}
	return json.RawMessage(text)
}

// clone keeps callers from changing what others get from the cache.
func (s *Schema) clone() *Schema {
	if s == nil {
		return nil
	}
	out := &Schema{Description: s.Description, Arguments: make([]*Argument, len(s.Arguments))}
	for i, a := range s.Arguments {
		b := *a
		b.Object, b.Enum, b.Default = a.Object.clone(), slices.Clone(a.Enum), slices.Clone(a.Default)
		out.Arguments[i] = &b
	}
	return out
}
