package schema

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
)

// Decode fills the struct that v points to from JSON in the wire form, by the
// schema of its type; what the JSON leaves out gets its default. Unknown
// arguments, wrong types, values out of range and missing arguments are
// [Problems], all at once, and leave v as it was. Empty data counts as an
// object without members.
func Decode(data []byte, v any) error {
	p := reflect.ValueOf(v)
	if p.Kind() != reflect.Pointer || p.IsNil() || p.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("decoding arguments: the target must be a pointer to a struct, not %T", v)
	}
	c, err := compile(p.Elem().Type())
	if err != nil {
		return err
	}
	if len(data) == 0 {
		data = []byte("{}")
	}
	ch := checker{}
	tree := ch.whole(c.schema, data)
	if len(ch.problems) > 0 {
		return ch.problems
	}
	fresh := reflect.New(p.Elem().Type()).Elem()
	ch.fill(c, tree, fresh, nil)
	if len(ch.problems) > 0 {
		return ch.problems
	}
	p.Elem().Set(fresh)
	return nil
}

// fill sets the fields of a struct from a tree that agrees with the schema.
// Only types with UnmarshalText can still refuse a value.
func (c *checker) fill(from *compiled, tree map[string]any, into reflect.Value, path []string) {
	for i, f := range from.fields {
		a := from.schema.Arguments[i]
		if value, ok := tree[a.Name]; ok {
			outer := c.hidden
			c.hidden = outer || a.Sensitive
			c.set(f, value, into.Field(f.index), append(path, a.Name))
			c.hidden = outer
		}
	}
}

func (c *checker) set(f field, value any, into reflect.Value, path []string) {
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	switch value := value.(type) {
	case map[string]any:
		if into.Kind() == reflect.Struct {
			c.fill(f.object, value, into, path)
			return
		}
		m := reflect.MakeMapWithSize(into.Type(), len(value))
		for key, one := range value {
			element := reflect.New(into.Type().Elem()).Elem()
			c.set(f, one, element, append(path, cut(key)))
			m.SetMapIndex(reflect.ValueOf(key).Convert(into.Type().Key()), element)
		}
		into.Set(m)
	case []any:
		s := reflect.MakeSlice(into.Type(), len(value), len(value))
		for i, one := range value {
			c.set(f, one, s.Index(i), append(path, strconv.Itoa(i)))
		}
		into.Set(s)
	case string:
		c.setString(value, into, path)
	case bool:
		into.SetBool(value)
	case int64:
		if into.CanUint() {
			into.SetUint(uint64(value))
		} else {
			into.SetInt(value)
		}
	case float64:
		if into.OverflowFloat(value) {
			c.fail(path, "is too large for a number of %d bits", into.Type().Bits())
			return
		}
		into.SetFloat(value)
	}
}

func (c *checker) setString(value string, into reflect.Value, path []string) {
	taker, ok := into.Addr().Interface().(encoding.TextUnmarshaler)
	if !ok {
		into.SetString(value)
		return
	}
	if err := taker.UnmarshalText([]byte(value)); err != nil {
		if c.hidden {
			c.fail(path, "is not valid")
			return
		}
		c.fail(path, "%v", err)
	}
}
