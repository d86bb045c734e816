package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/state"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

const (
	configuredKind    = "dataplane"
	configuredVersion = 1
)

func configuredPath(dataDir, name string) string {
	return filepath.Join(dataDir, "plugins", name, "configured.json")
}

// configured is what a plugin was configured with last, so that a cleanup can
// configure it in the same way when the configuration is gone.
type configured struct {
	// Config in the form of the wire, without sensitive values.
	Config json.RawMessage `json:"config"`
	// Withheld are the sensitive arguments that were set.
	Withheld      []string       `json:"withheld,omitempty"`
	NodeAddresses []netip.Addr   `json:"node_addresses,omitempty"`
	Pools         []netip.Prefix `json:"pools,omitempty"`
	LocalNetworks []netip.Prefix `json:"local_networks,omitempty"`
}

// remember saves what the plugin of a dataplane is configured with.
func remember(dataDir, name string, of *schema.Schema, h dataplane.HostConfig) error {
	to := configured{NodeAddresses: h.NodeAddresses, Pools: h.Pools, LocalNetworks: h.LocalNetworks}
	to.Config, to.Withheld = withoutSensitive(of, h.ConfigJSON, "")
	slices.Sort(to.Withheld)
	return state.Write(configuredPath(dataDir, name), configuredKind, configuredVersion, to)
}

// recall gives what remember has saved; it is fs.ErrNotExist when there is
// nothing.
func recall(dataDir, name string) (configured, error) {
	var from configured
	err := state.Read(configuredPath(dataDir, name), configuredKind, configuredVersion, &from)
	return from, err
}

// withoutSensitive takes the sensitive values out, and names them. What isn't
// known to be harmless is sensitive.
func withoutSensitive(of *schema.Schema, data json.RawMessage, within string) (json.RawMessage, []string) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(data, &values); err != nil || values == nil {
		return json.RawMessage("{}"), nil
	}
	var withheld []string
	for name, value := range values {
		var argument *schema.Argument
		if of != nil {
			argument = of.Argument(name)
		}
		path := within + name
		var found []string
		switch {
		case argument == nil || argument.Sensitive:
			delete(values, name)
			withheld = append(withheld, path)
			continue
		case argument.Type == schema.TypeObject:
			values[name], found = withoutSensitive(argument.Object, value, path+".")
		case argument.Element == schema.TypeObject:
			// A list with holes is none: it goes as a whole.
			if holdsSensitive(argument.Object) {
				delete(values, name)
				withheld = append(withheld, path)
			}
		}
		withheld = append(withheld, found...)
	}
	out, err := json.Marshal(values)
	if err != nil {
		return json.RawMessage("{}"), append(withheld, strings.TrimSuffix(within, "."))
	}
	return out, withheld
}

func holdsSensitive(of *schema.Schema) bool {
	return of == nil || slices.ContainsFunc(of.Arguments, func(a *schema.Argument) bool {
		return a.Sensitive || a.Object != nil && holdsSensitive(a.Object)
	})
}

// errGiveConfig is what to do when a plugin can't be configured for a cleanup.
var errGiveConfig = errors.New("name the configuration that it ran with by -config")

// cleanupConfig is what to configure a plugin with for a cleanup: by the files
// that were named, else as the agent configured it last, else by the files at
// the default place, else by what it takes when its block is empty.
func cleanupConfig(cfg *config.Config, named bool, name string, description *dataplane.HostDescription) (dataplane.HostConfig, error) {
	h := dataplane.HostConfig{StateDir: stateDir(cfg.DataDir, name)}
	bound, _ := config.Bind(cfg, map[string]config.PluginSchema{name: schemaOf(description)}, config.Unasked{})
	inFile := bound.Dataplane(name)
	if inFile != nil && inFile.PluginJSON == nil {
		inFile = nil // it has mistakes
	}
	fromFile := func() dataplane.HostConfig {
		h.ConfigJSON = inFile.PluginJSON
		h.NodeAddresses, h.LocalNetworks = nodeFacts(bound).Addresses, bound.Node.LocalNetworks
		for _, p := range bound.Pools {
			h.Pools = append(h.Pools, p.CIDR...)
		}
		return h
	}
	if named && inFile != nil {
		return fromFile(), nil
	}
	last, err := recall(cfg.DataDir, name)
	switch {
	case err == nil && len(last.Withheld) == 0:
		h.ConfigJSON, h.NodeAddresses, h.Pools, h.LocalNetworks = last.Config, last.NodeAddresses, last.Pools, last.LocalNetworks
		return h, nil
	case inFile != nil:
		return fromFile(), nil
	case err == nil:
		return h, fmt.Errorf("its block has sensitive arguments, which are not saved (%s): %w", strings.Join(last.Withheld, ", "), errGiveConfig)
	case !errors.Is(err, fs.ErrNotExist):
		return h, fmt.Errorf("what it was configured with is not known (%w): %w", err, errGiveConfig)
	}
	h.ConfigJSON, err = description.ConfigSchema.FromUser([]byte("{}"))
	if err != nil {
		return h, fmt.Errorf("what it was configured with is not known, and its block can't be empty (%w): %w", err, errGiveConfig)
	}
	return h, nil
}

// rememberConfigured saves what a plugin is being configured with, or was.
func (c *carrier) rememberConfigured(of *schema.Schema, h dataplane.HostConfig) {
	if err := remember(c.agent.dataDir, c.name, of, h); err != nil {
		c.log.Warn("what the plugin is configured with can't be saved: a cleanup will need the configuration", "error", err)
	}
}

// everConfigured tells whether there is a record of a plugin.
func (c *carrier) everConfigured() bool {
	_, err := os.Stat(configuredPath(c.agent.dataDir, c.name))
	return err == nil
}
