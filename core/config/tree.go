package config

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// tree turns a block or an expression into the user's form of a schema's
// arguments: map[string]any, []any, string, bool and json.Number. It reports
// what only the source can tell (unknown names, things given twice, values
// that can't be worked out) and remembers where everything stands, so that
// what the schema says of a value can be shown at its place.
type tree struct {
	reader
	schema *schema.Schema
	whole  hcl.Range
	root   map[string]any
	ranges map[string]hcl.Range
	// broken are the paths at which a value was refused.
	broken map[string]bool
	failed bool
	hidden bool // within a sensitive argument
}

func newTree(r reader, s *schema.Schema, whole hcl.Range) *tree {
	return &tree{
		reader: r, schema: s, whole: whole,
		ranges: map[string]hcl.Range{}, broken: map[string]bool{},
	}
}

func pathKey(path []string) string { return strings.Join(path, "\x00") }

// at is the place of a path, or of what is around it.
func (t *tree) at(path []string) hcl.Range {
	for n := len(path); n > 0; n-- {
		if r, ok := t.ranges[pathKey(path[:n])]; ok {
			return r
		}
	}
	return t.whole
}

func (t *tree) refuse(path []string) {
	t.failed = true
	t.broken[pathKey(path)] = true
}

// below gives a path of its own, for append would share memory between
// siblings.
func below(path []string, name string) []string {
	return append(path[:len(path):len(path)], name)
}

// body takes a block apart; own are names in it that are not the schema's.
func (t *tree) body(body hcl.Body, s *schema.Schema, own, path []string) map[string]any {
	c := t.content(body, t.shapeOf(body, s, own))
	t.hideUnknown(body, s, own)
	out := map[string]any{}
	if len(path) == 0 {
		t.root = out
	}
	for _, a := range s.Arguments {
		at := below(path, a.Name)
		attr := c.attrs[a.Name]
		var blocks hcl.Blocks
		for _, b := range c.blocks {
			if b.Type == a.Name {
				blocks = append(blocks, b)
			}
		}
		if attr != nil {
			t.deprecated(a, attr.NameRange)
			if len(blocks) > 0 {
				t.errorf(&blocks[0].TypeRange, "Given twice", "%s is already given at %s.", a.Name, place(attr.Range))
				t.refuse(at)
			}
			if v, ok := t.value(a, attr.Expr, at); ok {
				out[a.Name] = v
			}
		} else if len(blocks) > 0 {
			t.deprecated(a, blocks[0].TypeRange)
			out[a.Name] = t.blocks(a, blocks, at)
		}
	}
	return out
}

// shapeOf a block with the arguments of a schema. Objects may be blocks in
// native syntax; in JSON a block and an argument look the same.
func (t *tree) shapeOf(body hcl.Body, s *schema.Schema, own []string) *shape {
	names := append([]string{}, own...)
	var blocks []hcl.BlockHeaderSchema
	for _, a := range s.Arguments {
		names = append(names, a.Name)
		if a.Object == nil || isJSON(body.MissingItemRange().Filename) {
			continue
		}
		header := hcl.BlockHeaderSchema{Type: a.Name}
		if a.Type == schema.TypeMap {
			header.LabelNames = []string{"key"}
		}
		blocks = append(blocks, header)
	}
	return newShape(names, blocks...)
}

// hideUnknown masks what a misspelt name was given, where one of the names
// that it may be is sensitive.
func (t *tree) hideUnknown(body hcl.Body, s *schema.Schema, own []string) {
	if !t.hidden && !hasSensitive(s) {
		return
	}
	known := map[string]bool{}
	for _, name := range own {
		known[name] = true
	}
	for _, a := range s.Arguments {
		known[a.Name] = true
	}
	attrs, _ := body.JustAttributes()
	for name, a := range attrs {
		if !known[name] && t.maySensitive(name, s) {
			t.masks.add(a.Expr.Range())
		}
	}
}

// maySensitive tells whether a misspelt name may stand for a sensitive
// argument: unless it is plainly another one, it may.
func (t *tree) maySensitive(name string, s *schema.Schema) bool {
	if t.hidden {
		return true
	}
	if !hasSensitive(s) {
		return false
	}
	names := append([]string{}, coreArguments...)
	for _, a := range s.Arguments {
		names = append(names, a.Name)
	}
	meant := suggest(name, names)
	if meant == "" {
		return true
	}
	a := s.Argument(meant)
	return a != nil && (a.Sensitive || a.Object != nil)
}

func hasSensitive(s *schema.Schema) bool {
	for _, a := range s.Arguments {
		if a.Sensitive || a.Object != nil && hasSensitive(a.Object) {
			return true
		}
	}
	return false
}

func (t *tree) deprecated(a *schema.Argument, at hcl.Range) {
	if a.Deprecated != "" {
		t.warnf(&at, "Deprecated argument", "%s is deprecated: %s.", a.Name, strings.TrimSuffix(a.Deprecated, "."))
	}
}

// sensitive marks what is within an argument; call what it gives at the end.
func (t *tree) sensitive(a *schema.Argument, at hcl.Range) func() {
	outer := t.hidden
	if a.Sensitive {
		t.hidden = true
		t.masks.add(at)
	}
	return func() { t.hidden = outer }
}

// blocks that give an object, a list or a map of objects.
func (t *tree) blocks(a *schema.Argument, blocks hcl.Blocks, path []string) any {
	t.ranges[pathKey(path)] = blocks[0].DefRange
	one := func(b *hcl.Block, at []string) map[string]any {
		bodyRange := b.Body.MissingItemRange()
		defer t.sensitive(a, hcl.RangeBetween(b.DefRange, bodyRange))()
		t.ranges[pathKey(at)] = b.DefRange
		return t.body(b.Body, a.Object, nil, at)
	}
	switch a.Type {
	case schema.TypeList:
		list := make([]any, len(blocks))
		for i, b := range blocks {
			list[i] = one(b, below(path, strconv.Itoa(i)))
		}
		return list
	case schema.TypeMap:
		m := map[string]any{}
		for _, b := range blocks {
			key := b.Labels[0]
			if _, twice := m[key]; twice {
				t.errorf(&b.LabelRanges[0], "Given twice", "%s %q is already given at %s.", a.Name, key, place(t.at(below(path, key))))
				t.failed = true
				continue
			}
			m[key] = one(b, below(path, key))
		}
		return m
	}
	for _, b := range blocks[1:] {
		t.errorf(&b.TypeRange, "Given twice", "There is one %s block; it is at %s.", a.Name, place(blocks[0].DefRange))
		t.failed = true
	}
	return one(blocks[0], path)
}

// value of an argument; false when it is absent or was refused.
func (t *tree) value(a *schema.Argument, expr hcl.Expression, path []string) (any, bool) {
	at := expr.Range()
	if len(path) > 0 {
		t.ranges[pathKey(path)] = at
	}
	defer t.sensitive(a, at)()
	if pairs, diags := hcl.ExprMap(expr); !diags.HasErrors() {
		switch {
		case a.Type == schema.TypeObject:
			return t.object(a.Object, pairs, path), true
		case a.Type == schema.TypeMap:
			return t.mapping(a, pairs, path), true
		case a.Type == schema.TypeList && a.Element == schema.TypeObject && isJSON(at.Filename):
			return []any{t.object(a.Object, pairs, below(path, "0"))}, true
		}
	}
	if items, diags := hcl.ExprList(expr); !diags.HasErrors() && a.Type == schema.TypeList {
		return t.list(a, items, path), true
	}
	v, diags := expr.Value(t.ctx)
	if diags.HasErrors() {
		if t.hidden {
			t.errorf(&at, "Invalid argument", "The value of %s can't be worked out.", t.name(path))
		} else {
			t.evaluation(expr, diags)
		}
		t.refuse(path)
		return nil, false
	}
	return t.plain(a, a.Type, v, path)
}

func (t *tree) list(a *schema.Argument, items []hcl.Expression, path []string) any {
	element := elementOf(a)
	list := make([]any, 0, len(items))
	for i, e := range items {
		v, _ := t.value(element, e, below(path, strconv.Itoa(i)))
		list = append(list, v)
	}
	return list
}

// elementOf is what a list or map holds, as an argument.
func elementOf(a *schema.Argument) *schema.Argument {
	return &schema.Argument{Name: a.Name, Type: a.Element, Object: a.Object, Enum: a.Enum, Min: a.Min, Max: a.Max, Sensitive: a.Sensitive}
}

func (t *tree) mapping(a *schema.Argument, pairs []hcl.KeyValuePair, path []string) any {
	element := elementOf(a)
	m := map[string]any{}
	for _, p := range pairs {
		key, ok := t.key(p.Key, path)
		if !ok {
			continue
		}
		if _, twice := m[key]; twice {
			t.twice(p.Key.Range(), key, path)
			continue
		}
		if v, ok := t.value(element, p.Value, below(path, key)); ok {
			m[key] = v
		}
	}
	return m
}

func (t *tree) object(s *schema.Schema, pairs []hcl.KeyValuePair, path []string) map[string]any {
	out := map[string]any{}
	if len(path) == 0 {
		t.root = out
	}
	seen := map[string]bool{}
	for _, p := range pairs {
		key, ok := t.key(p.Key, path)
		if !ok {
			t.masks.add(p.Value.Range())
			continue
		}
		at := p.Key.Range()
		a := s.Argument(key)
		switch {
		case key == "//" && isJSON(at.Filename): // a comment
		case a == nil:
			if t.maySensitive(key, s) {
				t.masks.add(p.Value.Range())
			}
			t.unknown(at, key, s)
		case seen[key]:
			if a.Sensitive {
				t.masks.add(p.Value.Range())
			}
			t.twice(at, key, path)
		default:
			seen[key] = true
			t.deprecated(a, at)
			if v, ok := t.value(a, p.Value, below(path, key)); ok {
				out[key] = v
			}
		}
	}
	return out
}

func (t *tree) unknown(at hcl.Range, key string, s *schema.Schema) {
	names := make([]string, len(s.Arguments))
	for i, a := range s.Arguments {
		names[i] = a.Name
	}
	t.errorf(&at, "Unknown argument", "There is no argument%s here.%s", t.named(key, &at), t.hint(key, &at, names))
	t.failed = true
}

// name is a path for a message, without what was worked out.
func (t *tree) name(path []string) string {
	s, known := t.schema, 0
	for s != nil && known < len(path) {
		a := s.Argument(path[known])
		if a == nil {
			break
		}
		if known++; a.Type == schema.TypeList && known < len(path) {
			known++ // the number of an item
		}
		s = a.Object
		if a.Type == schema.TypeMap {
			break
		}
	}
	if at := t.at(path); known < len(path) && t.src.computed(&at) {
		path = path[:known]
	}
	return printable(strings.Join(path, "."))
}

func (t *tree) twice(at hcl.Range, key string, path []string) {
	t.errorf(&at, "Given twice", "%s is already given at %s.", printable(key), place(t.at(below(path, key))))
	t.failed = true
}

func (t *tree) key(expr hcl.Expression, path []string) (string, bool) {
	v, ok := t.reader.value(expr)
	if ok && v.Type() == cty.String && !t.src.computed(expr.Range().Ptr()) {
		return v.AsString(), true
	}
	if ok || v.IsKnown() && v.IsNull() {
		t.errorf(expr.Range().Ptr(), "Bad name", "The name of an argument is written out.")
	}
	t.refuse(path)
	return "", false
}

// plain takes a value that has no parts in the source. typ is the type that
// the schema wants.
func (t *tree) plain(a *schema.Argument, typ schema.Type, v cty.Value, path []string) (any, bool) {
	v, _ = v.UnmarkDeep()
	at := t.at(path)
	switch ty := v.Type(); {
	case !v.IsWhollyKnown() || ty.Equals(serviceRefType):
		t.errorf(&at, "Invalid argument", "This is no value for %s.", t.name(path))
		t.refuse(path)
		return nil, false
	case v.IsNull():
		return nil, false
	case ty == cty.String:
		return fromText(typ, v.AsString()), true
	case ty == cty.Bool:
		return v.True(), true
	case ty == cty.Number:
		n, ok := number(v.AsBigFloat())
		if !ok {
			t.errorf(&at, "Number too large", "The number is too large.")
			t.refuse(path)
		}
		return n, ok
	case ty.IsObjectType() || ty.IsMapType():
		return t.plainObject(a, typ, v, path), true
	case ty.IsTupleType() || ty.IsListType() || ty.IsSetType():
		return t.plainList(a, v, path), true
	}
	t.errorf(&at, "Wrong type", "%s can't be %s.", t.name(path), typeName(v))
	t.refuse(path)
	return nil, false
}

func (t *tree) plainObject(a *schema.Argument, typ schema.Type, v cty.Value, path []string) any {
	out := map[string]any{}
	if len(path) == 0 {
		t.root = out
	}
	for it := v.ElementIterator(); it.Next(); {
		k, e := it.Element()
		key := k.AsString()
		inner, innerType := a, a.Element
		if typ == schema.TypeObject {
			if inner = a.Object.Argument(key); inner == nil {
				t.unknown(t.at(path), key, a.Object)
				continue
			}
			t.deprecated(inner, t.at(path))
			innerType = inner.Type
		} else if typ != schema.TypeMap {
			innerType = 0
		}
		at := below(path, key)
		t.inherit(inner, at, path)
		if x, ok := t.plain(inner, innerType, e, at); ok {
			out[key] = x
		}
	}
	return out
}

func (t *tree) plainList(a *schema.Argument, v cty.Value, path []string) any {
	list := []any{}
	for it := v.ElementIterator(); it.Next(); {
		_, e := it.Element()
		at := below(path, strconv.Itoa(len(list)))
		t.inherit(a, at, path)
		x, _ := t.plain(a, a.Element, e, at)
		list = append(list, x)
	}
	return list
}

// inherit says that a part stands where its whole does.
func (t *tree) inherit(a *schema.Argument, path, whole []string) {
	at := t.at(whole)
	t.ranges[pathKey(path)] = at
	if a.Sensitive {
		t.masks.add(at)
	}
}

// fromText takes the number or bool that a string holds, as env() gives it,
// where the schema wants one.
func fromText(typ schema.Type, s string) any {
	switch typ {
	case schema.TypeInteger:
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return n
		}
	case schema.TypeNumber:
		if f, err := strconv.ParseFloat(s, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return f
		}
	case schema.TypeBool:
		if s == "true" || s == "false" {
			return s == "true"
		}
	}
	return s
}

// maxNumberBits keeps a number from being written out at any length.
const maxNumberBits = 4096

// number in the form of JSON, exact where it is whole.
func number(f *big.Float) (json.Number, bool) {
	if f.IsInf() || f.MantExp(nil) > maxNumberBits || f.MantExp(nil) < -maxNumberBits {
		return "", false
	}
	if f.IsInt() {
		return json.Number(f.Text('f', 0)), true
	}
	return json.Number(f.Text('g', 40)), true
}

// leaf finds the argument and the value at a path, where that is a scalar.
func (t *tree) leaf(path []string) (*schema.Argument, any) {
	var a *schema.Argument
	s, value := t.schema, any(t.root)
	for i := 0; i < len(path); i++ {
		if s == nil {
			return nil, nil
		}
		if a = s.Argument(path[i]); a == nil {
			return nil, nil
		}
		value = child(value, path[i])
		s = a.Object
		if a.Type == schema.TypeList || a.Type == schema.TypeMap {
			if i++; i == len(path) {
				return nil, nil
			}
			value = child(value, path[i])
			a = elementOf(a)
		}
	}
	if a == nil || a.Type > schema.TypeSize {
		return nil, nil
	}
	return a, value
}

func child(v any, name string) any {
	switch v := v.(type) {
	case map[string]any:
		return v[name]
	case []any:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(v) {
			return v[i]
		}
	}
	return nil
}
