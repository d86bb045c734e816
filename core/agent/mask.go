package agent

import (
	"encoding/json"
	"errors"

	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// maskedOptions gives the options of a service without what must not be shown.
func (v *view) maskedOptions(s *catalog.Service) json.RawMessage {
	if len(s.Desired.OptionsJSON) == 0 {
		return nil
	}
	c, ok := v.carriers[s.Dataplane]
	if !ok || c.description == nil {
		return json.RawMessage(`"not shown: the plugin is not there to say what is sensitive"`)
	}
	return masked(c.description.OptionsSchema, s.Desired.OptionsJSON)
}

// masked puts a placeholder in the place of every sensitive value.
func masked(of *schema.Schema, data json.RawMessage) json.RawMessage {
	var values map[string]json.RawMessage
	if of == nil || json.Unmarshal(data, &values) != nil {
		return json.RawMessage(`"not shown"`)
	}
	for name, value := range values {
		argument := of.Argument(name)
		switch {
		case argument == nil || argument.Sensitive:
			values[name] = json.RawMessage(`"(sensitive)"`)
		case argument.Type == schema.TypeObject:
			values[name] = masked(argument.Object, value)
		case argument.Element == schema.TypeObject:
			values[name] = maskedElements(argument.Object, value)
		}
	}
	out, err := json.Marshal(values)
	if err != nil {
		return json.RawMessage(`"not shown"`)
	}
	return out
}

// maskedElements masks the objects of a list or of a map.
func maskedElements(of *schema.Schema, data json.RawMessage) json.RawMessage {
	var list []json.RawMessage
	var byName map[string]json.RawMessage
	var out []byte
	var err error
	switch {
	case json.Unmarshal(data, &list) == nil:
		for i := range list {
			list[i] = masked(of, list[i])
		}
		out, err = json.Marshal(list)
	case json.Unmarshal(data, &byName) == nil:
		for name := range byName {
			byName[name] = masked(of, byName[name])
		}
		out, err = json.Marshal(byName)
	default:
		err = errors.New("neither a list nor a map")
	}
	if err != nil {
		return json.RawMessage(`"not shown"`)
	}
	return out
}
