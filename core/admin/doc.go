// Package admin is the agent's HTTP API, its metrics and its health.
//
// In go the views of a [Backend] (the agent); out come JSON under /v1/ on a
// unix socket, Prometheus metrics under /metrics and the health under
// /healthz, the last two on TCP as well where the configuration says so. The
// types of the bodies stand in api.go; [Client] speaks them, and the command
// line prints what it gets, so that its JSON is the API's body.
//
// Rules of the bodies: snake_case, times in RFC 3339 and UTC, durations in
// seconds as numbers whose names end in _seconds, lists wrapped together with
// the revision that they belong to, errors as message and hint.
package admin
