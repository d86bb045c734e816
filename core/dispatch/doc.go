// Package dispatch brings one dataplane plugin to the desired state of the
// node, and keeps it there.
//
// In go the catalog's changes ([Session.Publish]) and the connection to a
// plugin ([Session.Attach]); out go Apply calls with the services of that
// dataplane alone, and for operators a [Status] and, per service, an [Ack].
// The agent owns one [Session] per dataplane block; admin reads them.
//
// A session is level-triggered. It compares the newest snapshot with what the
// plugin has acknowledged and sends the difference; while an Apply is in
// flight newer snapshots replace each other, and nothing queues. A change is
// forgotten only when the plugin has acknowledged it. After an Apply whose
// outcome is unknown, or with a new plugin process, everything is sent.
package dispatch
