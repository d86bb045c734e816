package main

import (
	"context"
	"errors"
	"testing"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// An author tests a dataplane with updates of their own making.
func TestApply(t *testing.T) {
	n := &null{services: map[string]*dataplane.Service{}}
	block := &config{}
	if err := schema.Decode([]byte(`{"log_updates":false}`), block); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := n.Configure(ctx, dataplane.Config{Block: block}); err != nil {
		t.Fatal(err)
	}
	web := &dataplane.Service{ID: "web", Options: &options{Comment: "hello"}}
	db := &dataplane.Service{ID: "db", Options: &options{}}
	both := []*dataplane.Service{web, db}
	for _, update := range []*dataplane.Update{
		dataplane.NewUpdate(1, nil, both),
		dataplane.NewUpdate(2, both, both[:1]),
	} {
		if err := n.Apply(ctx, update); err != nil {
			t.Fatal(err)
		}
		if failed := update.Failed(); len(failed) > 0 {
			t.Error(failed)
		}
	}
	if _, detail, err := n.Inspect(ctx, "web"); err != nil || detail.(map[string]any)["comment"] != "hello" {
		t.Errorf("got %v, %v", detail, err)
	}
	if _, _, err := n.Inspect(ctx, "db"); !errors.Is(err, dataplane.ErrUnknownService) {
		t.Errorf("got %v", err)
	}
}
