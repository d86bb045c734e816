package main

import "time"

// Config is the body of the dataplane block.
type Config struct {
	_ struct{} `description:"Carries TCP connections in user space, by event loops; needs no privileges on 127.0.0.0/8."`

	Capture        string        `name:"capture" default:"auto" enum:"auto,bind" description:"How traffic gets here. bind listens on the service's own address, with a local route for one that is not on this node; auto is bind."`
	Retries        int           `name:"retries" default:"1" min:"0" max:"16" description:"How many further endpoints are tried when connecting to one fails, before the client notices."`
	ConnectTimeout time.Duration `name:"connect_timeout" default:"2s" min:"100ms" max:"5m" description:"How long one attempt to connect may take."`
	IdleTimeout    time.Duration `name:"idle_timeout" default:"0s" max:"720h" description:"After how long without a byte in either direction a connection is closed; 0s is never."`
	MaxConnections int           `name:"max_connections" default:"0" min:"0" description:"Greatest number of connections of all services at once, more are reset; 0 is as many as descriptors allow, two for each."`
	Keepalive      time.Duration `name:"keepalive" default:"30s" max:"2h" description:"After how long a silence a peer is asked whether it is still there; 0s is never. A change holds from the plugin's next start."`
	Loops          int           `name:"loops" default:"0" min:"0" max:"256" description:"Number of event loops; 0 is one for each core. A change holds from the plugin's next start."`
}

// ServiceOptions are the options of one service.
type ServiceOptions struct {
	_ struct{} `description:"What the dataplane block says for all services, for one."`

	Retries        *int           `name:"retries" min:"0" max:"16" description:"How many further endpoints are tried when connecting to one fails."`
	ConnectTimeout *time.Duration `name:"connect_timeout" min:"100ms" max:"5m" description:"How long one attempt to connect may take."`
	IdleTimeout    *time.Duration `name:"idle_timeout" max:"720h" description:"After how long without a byte in either direction a connection is closed; 0s is never."`
	MaxConnections int            `name:"max_connections" default:"0" min:"0" description:"Greatest number of connections of the service at once, more are reset; 0 is no limit of its own."`
}

// or gives what the service says, else what the block says.
func or[T any](own *T, common T) T {
	if own != nil {
		return *own
	}
	return common
}
