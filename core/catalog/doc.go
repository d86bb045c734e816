// Package catalog works out the desired state of this node.
//
// In go what the sources say (it is their [source.Sink]), the policy of the
// configuration, what the dataplanes can carry, and the leases of VIPs; out
// comes a [Snapshot] whenever something has really changed, with the ids that
// changed. It applies health policy, locality, weights and draining, and
// decides conflicts. The agent owns it; dispatch, dns and admin read it:
//
//	cat, err := catalog.New(catalog.Options{Leases: leases, StatePath: ...})
//	cat.Configure(policy)          // before anything else, and on each reload
//	cat.Subscribe(session.Publish) // at any time, once per dataplane
//	go cat.Run(ctx)
//	go src.Run(ctx, cat)           // each source
//	cat.SetCapabilities(name, &description.Capabilities) // once a plugin has described itself
//
// On a reload, Policy.Static carries what the static source will say of the new
// blocks, so that blocks and endpoints come into force in one revision:
//
//	plan := cat.Plan(policy, static.Preview(config.Services)) // changes nothing
//	cat.Configure(policy); static.Set(config.Services)
//
// # How a service comes about
//
// Each service is worked out in three steps, and only when something it depends
// on has changed. The first ([Catalog.judge]) finds its source, policy,
// dataplane and frontends, and takes a lease where it needs one. The second
// ([rivals]) decides who of several may have a frontend. The third
// ([Catalog.finish]) turns instances into endpoints. A change of one endpoint
// costs its service alone: the frontends are found to be as before, and nobody
// else is looked at.
//
// Services depend on each other in two ways only: they share a VIP by name
// (vip = service("web")), or they want the same frontend. Both are followed
// along indexes, never by a walk over all services. Walks over all happen when
// the configuration, a dataplane's capabilities, or the set of unread sources
// changes.
//
// All of it runs under one lock, in the goroutine of Run or of the caller of
// Configure and SetCapabilities; sources only leave their changes in an inbox.
// What depends on time (drain times, waiting for a lease) stands in one heap.
package catalog
