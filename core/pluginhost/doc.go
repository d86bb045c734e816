// Package pluginhost finds, verifies, starts, watches and ends the processes
// of dataplane plugins.
//
// In go a folder of plugin files, a name and a version constraint; out come a
// running [Process] with a connection, again and again as long as its
// [Supervisor] runs, and a [Status] for operators. The agent owns one
// supervisor per dataplane block; the command line uses [Find] and [Probe] for
// one-shot questions.
//
// A plugin runs in its own session with a clean environment, no descriptor of
// the core's, and its output in files that the core follows: it can outlive
// the core, and no output of it can block either side. What runs is the very
// file that was verified. The core reaps by itself, so that nothing a plugin
// leaves behind can hold it up.
package pluginhost
