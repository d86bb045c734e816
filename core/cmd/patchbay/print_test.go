package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-proxy/patchbay/core/admin"
)

// TestPrintService: the policy is on a line each, options of any layout too.
func TestPrintService(t *testing.T) {
	var out bytes.Buffer
	err := printService(&out, admin.ServiceDetail{Policy: admin.ServicePolicy{
		Drain: admin.Seconds(30 * time.Second), OnDrainEnd: "keep",
		Options: json.RawMessage("{\n      \"max_connections\": 0,\n      \"retries\": 2\n}"),
	}})
	if err != nil || !strings.Contains(out.String(), `{"max_connections":0,"retries":2}`) || !strings.Contains(out.String(), "30s") {
		t.Errorf("%s %v", out.String(), err)
	}
}

// TestPrintChanges: one head, however many changes.
func TestPrintChanges(t *testing.T) {
	var out bytes.Buffer
	before := map[string][][]string{}
	for _, state := range []admin.ServiceState{admin.StateWaiting, admin.StateOK, admin.StateDegraded} {
		var err error
		if before, err = printChanges(&out, before, []admin.Service{{ID: "web", State: state}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(out.String(), "SERVICE"); n != 1 || strings.Count(out.String(), "\n") != 4 {
		t.Errorf("%d heads:\n%s", n, out.String())
	}
}

// TestPrintStatus: each reason has a line of its own.
func TestPrintStatus(t *testing.T) {
	var out bytes.Buffer
	if err := printStatus(&out, admin.Status{Health: admin.Health{Reasons: []string{"one", "two"}, Notes: []string{"three"}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"not healthy: one\n", "not healthy: two\n", "three\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}
