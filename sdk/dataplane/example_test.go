package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// A plugin's own tests make updates from two states.
func ExampleNewUpdate() {
	web := &dataplane.Service{ID: "web"}
	changed := &dataplane.Service{ID: "web", Endpoints: []dataplane.Endpoint{
		{Address: netip.MustParseAddrPort("10.0.3.7:8080"), Weight: 1, State: dataplane.StateActive},
	}}
	db := &dataplane.Service{ID: "db"}

	update := dataplane.NewUpdate(2, []*dataplane.Service{web, db}, []*dataplane.Service{changed})
	for _, s := range update.Upserted() {
		fmt.Println("upserted", s.ID, "with", len(s.Endpoints), "endpoint")
		update.Fail(s.ID, errors.New("no port left"))
	}
	fmt.Println("removed", update.Removed())
	fmt.Println("failed", update.Failed())
	// Output:
	// upserted web with 1 endpoint
	// removed [db]
	// failed map[web:no port left]
}

// A host brings a plugin up to date: a difference where the plugin holds what
// it starts from, else everything.
func ExampleClient_Apply() {
	conn, err := grpc.NewClient("unix:/run/plugin.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer func() { _ = conn.Close() }()
	client := dataplane.NewClient(conn)

	all := []*dataplane.Service{{ID: "db"}, {ID: "web"}}
	change := dataplane.Change{Session: 7, Revision: 42, Base: 41, Upserts: all[1:]}
	result, err := client.Apply(context.Background(), change)
	if errors.Is(err, dataplane.ErrBaseUnknown) {
		change.Full, change.Upserts = true, all
		result, err = client.Apply(context.Background(), change)
	}
	if err != nil {
		fmt.Println("the outcome is unknown, everything must be sent again:", err)
		return
	}
	for id, reason := range result.Failed {
		fmt.Println(id, "is not carried:", reason)
	}
}
