// Demo shows the main job on one machine: small backends, the agent with the
// top level's config.hcl and the userspace dataplane, and traffic that follows
// when a backend goes away and comes back.
//
// `make demo` runs it, without root and without Consul. It goes on until
// Ctrl-C; with -once, or DEMO_ONCE=1, it makes one round and ends with 0 when
// every request was answered and traffic did follow. It reads config.hcl and
// never writes it; with -consul (`make demo-consul`) the backends are registered
// in a Consul that it starts, kills and starts again. All that it makes is in a
// temporary folder, which it removes.
package main
