package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// PluginSchema is what a plugin says of its configuration.
type PluginSchema struct {
	// Config describes the plugin's arguments in the dataplane block, Options
	// those of a service; nil for none.
	Config, Options *schema.Schema
	// Balance methods that the plugin has; nil where that isn't known.
	Balance []string
}

// Unasked are the dataplanes whose plugin could not be asked, or not everything.
type Unasked struct {
	// Why by the dataplane's name.
	Why map[string]error
	// Strict makes errors of them, not warnings.
	Strict bool
}

// Bind decodes what belongs to the plugins: the rest of each dataplane block
// and each service's options. The schemas are by the dataplane's name; a
// dataplane that has none stays unbound (PluginJSON nil), and is reported with
// the reason that unasked gives.
//
// The Config it gives is a new one, never nil; cfg, which Load gave, stays as
// it was and may be bound again, to the schema of a plugin's next version.
func Bind(cfg *Config, schemas map[string]PluginSchema, unasked Unasked) (*Config, *Diagnostics) {
	bound := *cfg
	bound.Dataplanes = slices.Clone(cfg.Dataplanes)
	bound.Services = slices.Clone(cfg.Services)
	b := &binder{
		report:  newReport(cfg.sources),
		cfg:     &bound,
		schemas: schemas,
		unasked: unasked,
		options: map[optionsKey]json.RawMessage{},
	}
	for i := range bound.Dataplanes {
		b.dataplane(&bound.Dataplanes[i])
	}
	for i := range bound.Services {
		b.service(&bound.Services[i])
	}
	for _, d := range cfg.spare.dataplanes {
		if _, asked := schemas[d.Name]; asked {
			b.dataplane(&d)
		}
	}
	for _, s := range cfg.spare.services {
		b.service(&s)
	}
	if cfg.Defaults != nil {
		// A discovered service without a block has nothing but these.
		b.service(&bound.Defaults)
	}
	bound.Files = cfg.sources.withIncluded(cfg.Files)
	return &bound, b.finish()
}

type binder struct {
	*report
	cfg     *Config
	schemas map[string]PluginSchema
	unasked Unasked
	// options that have been decoded: those of the defaults block serve many
	// services.
	options map[optionsKey]json.RawMessage
}

type optionsKey struct {
	file      string
	at        int
	dataplane string
}

func (b *binder) dataplane(d *Dataplane) {
	b.within = fmt.Sprintf("dataplane %q", d.Name)
	defer func() { b.within = "" }()
	d.PluginJSON = nil
	ps, ok := b.schemas[d.Name]
	if !ok {
		hideUnbound(b.report, d.Body)
		b.notAsked(d, "could not be asked, so its own arguments and its services' options are not checked")
		return
	}
	if b.unasked.Why[d.Name] != nil {
		b.notAsked(d, "did not check its block")
	}
	s := ps.Config
	if s == nil {
		s = &schema.Schema{}
	}
	err := s.Validate()
	if err == nil {
		err = s.CheckReserved()
	}
	if err != nil {
		hideUnbound(b.report, d.Body)
		b.errorf(&d.Range, "Plugin with a wrong schema", "The plugin of dataplane %q describes its arguments wrongly: %v.", d.Name, err)
		return
	}
	t := newTree(b.report.reader(d.Range.Filename), s, d.Range)
	d.PluginJSON = t.wire(t.body(d.Body, s, coreArguments, nil))
}

// notAsked reports what the plugin of a block did not do, and why.
func (b *binder) notAsked(d *Dataplane, what string) {
	detail := fmt.Sprintf("The plugin of dataplane %q %s.", d.Name, what)
	if why := b.unasked.Why[d.Name]; why != nil {
		text := strings.TrimSuffix(strings.Join(strings.Fields(why.Error()), " "), ".")
		detail = fmt.Sprintf("The plugin of dataplane %q %s: %s.", d.Name, what, printable(text))
	}
	severity := hcl.DiagWarning
	if b.unasked.Strict {
		severity = hcl.DiagError
	}
	b.add(severity, &d.Range, "Not checked", detail)
}

// hideUnbound masks all that may belong to a plugin whose schema isn't known.
func hideUnbound(r *report, body hcl.Body) {
	if native, ok := body.(*hclsyntax.Body); ok {
		for _, block := range native.Blocks {
			r.masks.add(block.Body.SrcRange)
		}
	}
	attrs, _ := body.JustAttributes()
	for name, a := range attrs {
		if !coreShape.known[name] {
			r.masks.add(a.Expr.Range())
		}
	}
}

func (b *binder) service(service **Service) {
	s := *service
	d := b.cfg.Dataplane(s.Dataplane)
	if d == nil {
		return // reported by Load
	}
	ps, ok := b.schemas[d.Name]
	if !ok {
		if s.Options != nil {
			b.masks.add(s.Options.Range())
		}
		return
	}
	b.within = fmt.Sprintf("service %q", s.Name)
	if s.Name == "" {
		b.within = "defaults"
	}
	defer func() { b.within = "" }()
	b.balance(s, d.Name, ps.Balance)
	if s.Options == nil {
		return
	}
	at := s.Options.Range()
	key := optionsKey{at.Filename, at.Start.Byte, d.Name}
	data, done := b.options[key]
	if !done {
		data = b.decodeOptions(s.Options, d.Name, ps.Options)
		b.options[key] = data
	}
	changed := *s
	changed.OptionsJSON = data
	*service = &changed
}

func (b *binder) decodeOptions(expr hcl.Expression, dataplane string, s *schema.Schema) json.RawMessage {
	at := expr.Range()
	if s == nil || len(s.Arguments) == 0 {
		b.masks.add(at)
		b.errorf(&at, "No options", "Dataplane %q takes no options.", dataplane)
		return nil
	}
	if err := s.Validate(); err != nil {
		b.masks.add(at)
		b.errorf(&at, "Plugin with a wrong schema", "The plugin of dataplane %q describes its options wrongly: %v.", dataplane, err)
		return nil
	}
	t := newTree(b.report.reader(at.Filename), s, at)
	v, ok := t.value(whole(s), expr, nil)
	if object, isObject := v.(map[string]any); ok && isObject {
		return t.wire(object)
	}
	if ok {
		b.errorf(&at, "Wrong type", "options must be an object, such as { retries = 2 }.")
	}
	return nil
}

// whole makes an argument of a schema, for options are the value of one.
func whole(s *schema.Schema) *schema.Argument {
	return &schema.Argument{Name: "options", Type: schema.TypeObject, Object: s}
}

// balance checks a name that is neither the contract's nor the plugin's. One
// of the contract's that this plugin lacks is left to the core, which refuses
// that service alone.
func (b *binder) balance(s *Service, dataplane string, has []string) {
	if s.Balance == "" || has == nil || slices.Contains(has, s.Balance) || slices.Contains(balanceMethods, s.Balance) {
		return
	}
	at := s.Range
	if s.balanceAt != nil {
		at = *s.balanceAt
	}
	b.errorf(&at, "Unknown value", "Dataplane %q has no balance method%s: use %s.%s",
		dataplane, b.named(s.Balance, s.balanceAt), oneOf(has), b.meant(s.Balance, s.balanceAt, has))
}

// wire gives a user's tree in the form of the wire, or nil with what is wrong
// reported.
func (t *tree) wire(object map[string]any) json.RawMessage {
	if object == nil {
		return nil
	}
	data, err := json.Marshal(object)
	if err != nil {
		t.errorf(&t.whole, "Invalid arguments", "The arguments can't be encoded: %v.", err)
		return nil
	}
	out, err := t.schema.FromUser(data)
	var problems schema.Problems
	if errors.As(err, &problems) {
		for _, p := range problems {
			t.problem(p)
		}
		return nil
	}
	if err != nil {
		t.errorf(&t.whole, "Invalid arguments", "%v.", err)
		return nil
	}
	if t.failed {
		return nil
	}
	return out
}

// problem reports what the schema has against a value, at its place.
func (t *tree) problem(p schema.Problem) {
	for n := range len(p.Path) + 1 {
		if t.broken[pathKey(p.Path[:n])] {
			return // it has been said
		}
	}
	at := t.at(p.Path)
	if p.Message == missing {
		t.errorf(&at, "Missing argument", "The argument %s is required.", t.name(p.Path))
		return
	}
	message := p.Message
	leaf, value := t.leaf(p.Path)
	if computed := t.src.computed(&at); computed && leaf == nil {
		message = hideQuotes(message)
	} else if leaf != nil {
		if computed {
			message = withoutValue(leaf, value, message)
		} else if text, ok := value.(string); ok && !leaf.Sensitive && strings.HasPrefix(message, "must be one of") {
			message += "." + strings.TrimSuffix(t.meant(text, &at, leaf.Enum), ".")
		}
	}
	end := "."
	if strings.HasSuffix(message, "?") || strings.HasSuffix(message, ".") {
		end = ""
	}
	t.errorf(&at, "Invalid argument", "%s: %s%s", t.name(p.Path), message, end)
}

// missing is how the schema says that a required argument is absent.
const missing = "required, but not set"

// withoutValue gives a message that doesn't show a value that was worked out,
// by asking again as if the argument were sensitive.
func withoutValue(leaf *schema.Argument, value any, message string) string {
	hidden := *leaf
	hidden.Name, hidden.Sensitive, hidden.Required, hidden.Default = "value", true, false, nil
	data, err := json.Marshal(map[string]any{"value": value})
	if err != nil {
		return "the value is not valid"
	}
	_, err = (&schema.Schema{Arguments: []*schema.Argument{&hidden}}).FromUser(data)
	var problems schema.Problems
	if errors.As(err, &problems) && len(problems) > 0 {
		return problems[0].Message
	}
	return "the value is not valid"
}
