package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/patchbay-proxy/patchbay/core/admin"
	"github.com/patchbay-proxy/patchbay/core/catalog"
	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/core/source/consul"
)

// Plan implements admin.Backend.
func (a *Agent) Plan(ctx context.Context) (admin.Plan, error) {
	if err := a.changing.acquire(ctx); err != nil {
		return admin.Plan{}, err
	}
	defer a.changing.release()
	next, diagnostics := a.load(ctx)
	plan := admin.Plan{View: a.view().head(), Findings: admin.FindingsOf(diagnostics), Changes: []admin.PlannedChange{}}
	if diagnostics.HasErrors() {
		return plan, nil
	}
	plan.Valid = true
	before := a.inForce()
	plan.Changes = append(plan.Changes, planDataplanes(before, next.bound)...)
	plan.Changes = append(plan.Changes, planSettings(before, next.bound)...)
	policy := policyOf(next.bound, nodeFacts(next.bound))
	services := a.catalog.Plan(policy, a.static.Preview(next.bound.Services))
	plan.Changes = append(plan.Changes, planServices(services)...)
	return plan, nil
}

var planActions = map[catalog.Action]string{catalog.Added: "add", catalog.Changed: "change", catalog.Removed: "remove"}

func planServices(p *catalog.Plan) []admin.PlannedChange {
	leases := map[string]catalog.PlannedLease{}
	for _, l := range p.Leases {
		leases[l.Service] = l
	}
	var out []admin.PlannedChange
	for _, c := range p.Changes {
		shown := admin.PlannedChange{Action: planActions[c.Action], Kind: "service", Name: c.ID}
		for _, f := range c.Fields {
			shown.Details = append(shown.Details, describeField(f.Field, f.Old, f.New))
		}
		if l, ok := leases[c.ID]; ok {
			shown.Details = append(shown.Details, fmt.Sprintf("takes %v from vip_pool %s", l.Addresses, l.Pool))
		}
		if c.Rejected != "" {
			shown.Details = append(shown.Details, "would not be carried: "+c.Rejected)
		}
		out = append(out, shown)
	}
	return out
}

func describeField(name, before, after string) string {
	switch {
	case before == "":
		return fmt.Sprintf("%s: %s", name, after)
	case after == "":
		return fmt.Sprintf("%s: %s, to be gone", name, before)
	}
	return fmt.Sprintf("%s: %s -> %s", name, before, after)
}

func planDataplanes(before, after *config.Config) []admin.PlannedChange {
	var out []admin.PlannedChange
	for i := range after.Dataplanes {
		now := &after.Dataplanes[i]
		old := before.Dataplane(now.Name)
		if old == nil {
			out = append(out, admin.PlannedChange{Action: "add", Kind: "dataplane", Name: now.Name})
			continue
		}
		var details []string
		note := func(field string, old, now any) {
			if o, n := fmt.Sprint(old), fmt.Sprint(now); o != n {
				details = append(details, describeField(field, o, n))
			}
		}
		note("default", old.Default, now.Default)
		note("version", old.Version, now.Version)
		note("sha256", old.SHA256, now.SHA256)
		note("user", old.User, now.User)
		note("capabilities", old.Capabilities, now.Capabilities)
		note("auto_upgrade", old.AutoUpgrade, now.AutoUpgrade)
		// Values may be sensitive: only the names are told.
		details = append(details, changedArguments(old.PluginJSON, now.PluginJSON)...)
		if len(details) > 0 {
			out = append(out, admin.PlannedChange{Action: "change", Kind: "dataplane", Name: now.Name, Details: details})
		}
	}
	for i := range before.Dataplanes {
		if name := before.Dataplanes[i].Name; after.Dataplane(name) == nil {
			out = append(out, admin.PlannedChange{Action: "remove", Kind: "dataplane", Name: name})
		}
	}
	return out
}

// changedArguments names the arguments of a plugin that differ.
func changedArguments(before, after json.RawMessage) []string {
	var old, now map[string]json.RawMessage
	_ = json.Unmarshal(before, &old)
	_ = json.Unmarshal(after, &now)
	names := map[string]bool{}
	for _, m := range []map[string]json.RawMessage{old, now} {
		for name := range m {
			if string(old[name]) != string(now[name]) {
				names[name] = true
			}
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		out = append(out, name+" changes")
	}
	return out
}

func planSettings(before, after *config.Config) []admin.PlannedChange {
	var out []admin.PlannedChange
	note := func(name string, old, now any, late bool) {
		o, n := fmt.Sprint(old), fmt.Sprint(now)
		if o == n {
			return
		}
		details := []string{describeField(name, o, n)}
		if late {
			details = append(details, "takes effect when the agent is started again")
		}
		out = append(out, admin.PlannedChange{Action: "change", Kind: "setting", Name: name, Details: details})
	}
	note("data_dir", before.DataDir, after.DataDir, true)
	note("plugin_dir", before.PluginDir, after.PluginDir, true)
	note("watch_files", before.WatchFiles, after.WatchFiles, false)
	note("sync_interval", before.SyncInterval, after.SyncInterval, true)
	note("agent.log_level", before.Agent.LogLevel, after.Agent.LogLevel, false)
	note("agent.log_format", before.Agent.LogFormat, after.Agent.LogFormat, true)
	note("agent.socket", before.Agent.Socket, after.Agent.Socket, true)
	note("agent.http", before.Agent.HTTP, after.Agent.HTTP, true)
	note("node", before.Node, after.Node, false)
	pools := func(c *config.Config) (out []string) {
		for _, p := range c.Pools {
			out = append(out, fmt.Sprint(p.Name, " ", p.CIDR, " ", p.Store))
		}
		return out
	}
	note("vip_pool", pools(before), pools(after), false)
	if change := planConsul(before.Consul, after.Consul); change != nil {
		out = append(out, *change)
	}
	return out
}

// planConsul tells what becomes of the source "consul"; of its token only that
// it changes.
func planConsul(before, after *config.Consul) *admin.PlannedChange {
	out := &admin.PlannedChange{Kind: "source", Name: consul.Name}
	switch {
	case before == nil && after == nil:
		return nil
	case before == nil:
		out.Action = "add"
		return out
	case after == nil:
		out.Action = "remove"
		return out
	}
	out.Action = "change"
	note := func(field string, old, now any) {
		if o, n := fmt.Sprint(old), fmt.Sprint(now); o != n {
			out.Details = append(out.Details, describeField(field, o, n))
		}
	}
	note("address", before.Address, after.Address)
	note("datacenter", before.Datacenter, after.Datacenter)
	if before.Token != after.Token {
		out.Details = append(out.Details, "token")
	}
	note("token_file", before.TokenFile, after.TokenFile)
	note("ca_file", before.CAFile, after.CAFile)
	note("cert_file", before.CertFile, after.CertFile)
	note("key_file", before.KeyFile, after.KeyFile)
	note("server_name", before.ServerName, after.ServerName)
	note("select", before.Select, after.Select)
	note("exclude", before.Exclude, after.Exclude)
	note("default_port", before.DefaultPort, after.DefaultPort)
	note("max_blocking", before.MaxBlocking, after.MaxBlocking)
	note("hold", before.Hold, after.Hold)
	if len(out.Details) == 0 {
		return nil
	}
	return out
}
