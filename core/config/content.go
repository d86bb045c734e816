package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// shape is what may stand in a block: arguments and the blocks within, by the
// labels that those have.
type shape struct {
	schema *hcl.BodySchema
	known  map[string]bool // both, for the fast way
	labels map[string]int
}

func newShape(arguments []string, blocks ...hcl.BlockHeaderSchema) *shape {
	s := &shape{schema: &hcl.BodySchema{Blocks: blocks}, known: map[string]bool{}, labels: map[string]int{}}
	for _, a := range arguments {
		s.schema.Attributes = append(s.schema.Attributes, hcl.AttributeSchema{Name: a})
		s.known[a] = true
	}
	for _, b := range blocks {
		s.labels[b.Type] = len(b.LabelNames)
	}
	return s
}

// content is a body that has been taken apart.
type content struct {
	attrs  hcl.Attributes
	blocks hcl.Blocks
	end    hcl.Range // where a missing argument would stand
}

// content takes a body apart and reports what doesn't belong there.
//
// The library's own way builds six maps for every block; with 200,000 endpoint
// blocks that takes longer than parsing them. A native body in which every
// name is known is therefore read directly.
func (r *report) content(body hcl.Body, s *shape) content {
	if native, ok := body.(*hclsyntax.Body); ok && s.fits(native) {
		c := content{end: native.MissingItemRange()}
		if len(native.Attributes) > 0 {
			c.attrs = make(hcl.Attributes, len(native.Attributes))
			for name, a := range native.Attributes {
				c.attrs[name] = a.AsHCLAttribute()
			}
		}
		for _, b := range native.Blocks {
			c.blocks = append(c.blocks, b.AsHCLBlock())
		}
		return c
	}
	if native, ok := body.(*hclsyntax.Body); ok {
		var left int
		body, left = s.cut(native, max(0, maxHints-len(r.found)))
		r.dropped += left
	}
	got, diags := body.Content(s.schema)
	if !r.full() && len(diags) > 0 {
		diags = s.reword(diags, body)
	}
	r.hcl(diags)
	return content{attrs: got.Attributes, blocks: got.Blocks, end: got.MissingItemRange}
}

// cut leaves out what is unknown beyond a number, and counts it. The library
// would compare each with all that is known.
func (s *shape) cut(body *hclsyntax.Body, most int) (*hclsyntax.Body, int) {
	var unknown []hcl.Pos
	for name, a := range body.Attributes {
		if !s.known[name] {
			unknown = append(unknown, a.NameRange.Start)
		}
	}
	for _, b := range body.Blocks {
		if _, ok := s.labels[b.Type]; !ok {
			unknown = append(unknown, b.TypeRange.Start)
		}
	}
	if len(unknown) <= most {
		return body, 0
	}
	slices.SortFunc(unknown, func(a, b hcl.Pos) int { return cmp.Compare(a.Byte, b.Byte) })
	out := make(map[int]bool, len(unknown)-most)
	for _, p := range unknown[most:] {
		out[p.Byte] = true
	}
	rest := *body
	rest.Attributes, rest.Blocks = hclsyntax.Attributes{}, nil
	for name, a := range body.Attributes {
		if !out[a.NameRange.Start.Byte] {
			rest.Attributes[name] = a
		}
	}
	for _, b := range body.Blocks {
		if !out[b.TypeRange.Start.Byte] {
			rest.Blocks = append(rest.Blocks, b)
		}
	}
	return &rest, len(out)
}

func (s *shape) fits(body *hclsyntax.Body) bool {
	for name := range body.Attributes {
		if !s.known[name] {
			return false
		}
	}
	for _, b := range body.Blocks {
		if labels, ok := s.labels[b.Type]; !ok || labels != len(b.Labels) {
			return false
		}
	}
	return true
}

// names of all that the shape has.
func (s *shape) names() []string {
	var names []string
	for _, a := range s.schema.Attributes {
		names = append(names, a.Name)
	}
	for _, b := range s.schema.Blocks {
		names = append(names, b.Type)
	}
	return names
}

// belongs says in which other blocks there is an argument of that name.
func belongs(name string) string {
	var blocks []string
	for _, b := range []struct {
		name  string
		shape *shape
	}{{"agent", agentShape}, {"node", nodeShape}, {"vip_pool", poolShape}, {"service", serviceShape}, {"endpoint", endpointShape}, {"check", checkShape}, {"source \"consul\"", consulShape}} {
		if _, isBlock := b.shape.labels[name]; isBlock || b.shape.known[name] {
			blocks = append(blocks, b.name)
		}
	}
	if rootShape.known[name] {
		return " It belongs at the top level of a file."
	}
	if len(blocks) == 0 {
		return ""
	}
	return " It belongs in a block " + strings.Join(blocks, " or ") + "."
}

// reword gives unknown names one wording in both syntaxes, and a suggestion
// from arguments and blocks alike.
func (s *shape) reword(diags hcl.Diagnostics, body hcl.Body) hcl.Diagnostics {
	unknown := map[hcl.Pos]string{}
	if native, ok := body.(*hclsyntax.Body); ok {
		for name, a := range native.Attributes {
			unknown[a.NameRange.Start] = name
		}
		for _, b := range native.Blocks {
			unknown[b.TypeRange.Start] = b.Type
		}
	} else if attrs, _ := body.JustAttributes(); attrs != nil {
		for name, a := range attrs {
			unknown[a.NameRange.Start] = name
		}
	}
	for _, d := range diags[:min(len(diags), maxHints)] {
		if d.Subject == nil {
			continue
		}
		if block, ok := strings.CutPrefix(d.Summary, "Missing name for "); ok {
			d.Detail = "A " + block + " block has a name: write " + block + " \"name\" { ... }"
		} else if block, ok := strings.CutPrefix(d.Summary, "Missing type for "); ok {
			d.Detail = "A " + block + " block says of what kind it is: write " + block + " \"consul\" { ... }"
		} else if block, ok := strings.CutPrefix(d.Summary, "Extraneous label for "); ok && s.labels[block] == 0 {
			d.Detail = "There is one " + block + " block, without a name."
		} else if ok {
			d.Detail = "A " + block + " block has one name."
		}
		name, ok := unknown[d.Subject.Start]
		if !ok {
			continue
		}
		hint := belongs(name)
		if hint == "" {
			hint = didYouMean(name, s.names())
		}
		if s.known[name] {
			hint = " It is an argument: write " + name + " = ..."
		} else if _, isBlock := s.labels[name]; isBlock {
			hint = " It is a block: write " + name + " { ... }"
		}
		switch d.Summary {
		case "Unsupported argument", "Extraneous JSON object property":
			d.Summary, d.Detail = "Unknown argument", "There is no argument \""+printable(clip(name, 80))+"\" here."+hint
		case "Unsupported block type":
			d.Summary, d.Detail = "Unknown block", "There is no block \""+printable(clip(name, 80))+"\" here."+hint
		}
	}
	return diags
}
