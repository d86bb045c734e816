package config

import (
	"fmt"
	"strings"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// Refused turns what a plugin has against its block (the answer to
// ValidateConfig) into diagnostics at their places in the files. cfg is one
// that Bind gave with that schema.
func Refused(cfg *Config, name string, ps PluginSchema, found []dataplane.Diagnostic) *Diagnostics {
	r := newReport(cfg.sources)
	block := cfg.Dataplane(name)
	if block == nil || len(found) == 0 {
		return r.finish()
	}
	s := ps.Config
	if s == nil {
		s = &schema.Schema{}
	}
	// The block is taken apart once more for its places alone: what there is to
	// say of that Bind has said. The masks of sensitive values are kept.
	again := newReport(cfg.sources)
	again.masks = r.masks
	t := newTree(again.reader(block.Range.Filename), s, block.Range)
	t.body(block.Body, s, coreArguments, nil)

	r.within = fmt.Sprintf("dataplane %q", name)
	for _, f := range found {
		at := t.at(f.Path)
		summary, detail := f.Summary, f.Detail
		if summary == "" {
			summary = "Refused by the plugin"
		}
		if _, value := t.leaf(f.Path); value != nil && value != "" && r.src.computed(&at) {
			// The plugin doesn't know that the value isn't in the file.
			text := fmt.Sprint(value)
			summary, detail = strings.ReplaceAll(summary, text, masked), strings.ReplaceAll(detail, text, masked)
		}
		if len(f.Path) > 0 && at == block.Range {
			detail = strings.TrimSpace(fmt.Sprintf("%s: %s", strings.Join(f.Path, "."), detail))
		}
		if f.Warning {
			r.warnf(&at, summary, "%s", detail)
		} else {
			r.errorf(&at, summary, "%s", detail)
		}
	}
	return r.finish()
}
