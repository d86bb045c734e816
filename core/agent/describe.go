package agent

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/pluginhost"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// PluginDescription is what a plugin says of itself, in the form in which
// `patchbay plugin schema` prints it.
type PluginDescription struct {
	Name          string             `json:"name"`
	Version       string             `json:"version"`
	Path          string             `json:"path"`
	Protocol      int                `json:"protocol"`
	Capabilities  PluginCapabilities `json:"capabilities"`
	Privileges    PluginPrivileges   `json:"privileges"`
	ConfigSchema  *schema.Schema     `json:"config_schema"`
	OptionsSchema *schema.Schema     `json:"options_schema"`
}

// PluginCapabilities is [dataplane.Capabilities] with names for JSON.
type PluginCapabilities struct {
	Protocols          []dataplane.Protocol     `json:"protocols"`
	Families           []dataplane.Family       `json:"families"`
	FrontendKinds      []dataplane.FrontendKind `json:"frontend_kinds"`
	Balance            []string                 `json:"balance"`
	Affinity           bool                     `json:"affinity"`
	Weights            bool                     `json:"weights"`
	Draining           bool                     `json:"draining"`
	Statistics         bool                     `json:"statistics"`
	KeepsClientAddress bool                     `json:"keeps_client_address"`
	RefusesUnusedPorts bool                     `json:"refuses_unused_ports"`
	SourceFilter       bool                     `json:"source_filter"`
	SurvivesProcess    bool                     `json:"survives_process"`
	RepairsFlush       bool                     `json:"repairs_flush"`
	CleansHost         bool                     `json:"cleans_host"`
}

// PluginPrivileges is [dataplane.Privileges] with names for JSON.
type PluginPrivileges struct {
	Capabilities []string `json:"capabilities"`
	Root         bool     `json:"root"`
}

// Abilities names what the plugin can do beyond carrying connections.
func (d *PluginDescription) Abilities() []string {
	var out []string
	for _, a := range []struct {
		can  bool
		name string
	}{
		{d.Capabilities.Affinity, "affinity"},
		{d.Capabilities.Weights, "weights"},
		{d.Capabilities.Draining, "draining"},
		{d.Capabilities.Statistics, "statistics"},
		{d.Capabilities.KeepsClientAddress, "keep the client's address"},
		{d.Capabilities.RefusesUnusedPorts, "refuse unused ports"},
		{d.Capabilities.SourceFilter, "filter by source"},
		{d.Capabilities.SurvivesProcess, "survive its process"},
		{d.Capabilities.RepairsFlush, "repair what others flush"},
		{d.Capabilities.CleansHost, "clean the host"},
	} {
		if a.can {
			out = append(out, a.name)
		}
	}
	return out
}

// Needs names the privileges that the plugin needs.
func (d *PluginDescription) Needs() []string {
	out := d.Privileges.Capabilities
	if d.Privileges.Root {
		out = append([]string{"root"}, out...)
	}
	if len(out) == 0 {
		return []string{"no privileges"}
	}
	return out
}

// DescribePlugin starts a plugin, asks it what it is, and ends it. The
// constraint on its version may be empty.
func DescribePlugin(ctx context.Context, dir, name, constraint string) (*PluginDescription, error) {
	binary, err := chooseBinary(dir, &config.Dataplane{Name: name, Version: constraint})
	if err != nil {
		return nil, err
	}
	var out *PluginDescription
	err = pluginhost.Probe(ctx, binary, pluginhost.ProbeOptions{Logger: hclog.NewNullLogger()},
		func(_ context.Context, process *pluginhost.Process) error {
			d := process.Description()
			out = &PluginDescription{
				Name: d.Name, Version: d.Version, Path: binary.Path, Protocol: d.Protocol,
				Capabilities:  PluginCapabilities(d.Capabilities),
				Privileges:    PluginPrivileges(d.Privileges),
				ConfigSchema:  d.ConfigSchema,
				OptionsSchema: d.OptionsSchema,
			}
			return nil
		})
	return out, err
}
