# The configuration that `make demo` runs: without root and without Consul, on
# loopback addresses that every Linux host has. Every common setting is here;
# those the demo doesn't need are commented out and show their defaults, or an
# example where there is no default. docs/configuration.md is the full reference.

# Where the agent keeps its state: VIP leases, saved services, plugins' folders.
# A relative path is taken from this file's folder. The demo gives -data-dir.
#data_dir = "/var/lib/patchbay"

# Where the plugins are. The default, when not run as root, is the folder
# "plugins" beside the patchbay program, which is where `make build` puts them.
#plugin_dir = "/usr/lib/patchbay/plugins"

# Reload by itself when this file changes, as `patchbay reload` or SIGHUP does.
# A file with mistakes changes nothing: the running configuration stays.
watch_files = true

# How often a dataplane checks what is in place against what should be.
#sync_interval = "30s"

# The agent itself.
agent {
  log_level = "info" # trace, debug, info, warn or error
  #log_format = "text" # or json

  # The unix socket of the admin API, which `patchbay services` and the other
  # commands ask. The demo gives -socket.
  #socket = "/run/patchbay/patchbay.sock"

  # Who else may ask it.
  #user  = "root"
  #group = "root"

  # A TCP address for /metrics (Prometheus) and /healthz; none by default.
  #http = "127.0.0.1:9100"
}

# The node that the agent runs on.
#node {
#  # The node's zone, for services with prefer = "zone".
#  zone = "eu-1a"
#
#  # Where node_port listens; by default the address of the default route.
#  addresses = ["192.0.2.10"]
#
#  # Networks for which this node is the only gateway, such as a bridge of
#  # containers.
#  local_networks = ["172.17.0.0/16"]
#}

# Services of a Consul catalog; `make demo-consul` shows it. docs/consul.md tells
# about every argument.
#source "consul" {
#  address      = "127.0.0.1:8500"   # also https://..., unix:///...
#  token_file   = "consul.token"     # read again when it changes
#  select       = ["tag:patchbay"]   # tag:, name: (with *) or meta:KEY=VALUE; one is enough
#  exclude      = ["name:*-sidecar-proxy"]
#  default_port = 80                 # for services whose meta says no patchbay-port
#  hold         = "15s"              # how long instances are kept that vanish at once
#}

# Virtual addresses for services that name none. One range per family. These
# are loopback addresses, so that the demo changes nothing on the host; on real
# nodes it is a range that nothing else uses, such as 10.96.0.0/16.
vip_pool "default" {
  cidr = ["127.96.0.0/16"]

  # Where it is written down which service holds which address: in a file of
  # this node.
  #store = "file"
}

# Who carries the traffic. What is not one of the first six arguments belongs
# to the plugin; `patchbay plugin schema userspace` lists all of them.
dataplane "userspace" {
  default = true # for services that name no dataplane; the only one always is

  #version      = "~> 0.1"  # which versions of the plugin may run
  #sha256       = "..."     # the checksum that its file must have
  #user         = "nobody"  # whom it runs as, when the agent is root
  #capabilities = ["CAP_NET_BIND_SERVICE"] # what it may have, at most
  #auto_upgrade = false     # start a newer version as soon as its file is there

  # The plugin's own arguments.
  retries         = 1    # further endpoints to try when one can't be connected to
  connect_timeout = "2s" # for each try
  #capture         = "auto"
  #idle_timeout    = "0s"  # close connections that are silent so long; 0s is never
  #max_lifetime    = "0s"  # reset connections that are so old; 0s is never
  #keepalive       = "30s" # ask a silent peer whether it is still there
  #max_connections = 0     # of all services at once; 0 is what the system allows
  #udp_idle_timeout = "60s" # end UDP sessions that are silent so long
  #max_udp_sessions = 65536 # of all services at once
  #eject_after     = 0     # failures in a row after which an endpoint has a rest; 0 is never
  #eject_for       = "10s" # its first rest, twice as long each time

  # Load balancers in front of this node, whose word about the client is taken:
  # their connections begin with a PROXY protocol header.
  #accept_proxy_protocol = ["10.1.0.0/16"]
}

# What every service has, unless it says otherwise.
defaults {
  drain        = "30s"    # how long an endpoint that leaves keeps its connections
  on_drain_end = "keep"   # keep or reset what is left of them then
  on_empty     = "reject" # what clients meet without a usable endpoint; or drop
  #masquerade   = "auto"   # or always, never
  #warning      = "use"    # endpoints with a warning: use, weigh or drop
  #prefer       = "none"   # endpoints on this node or in its zone first: node, zone
  #allow        = ["10.0.0.0/8"] # who may connect; everybody by default
}

# A web service with three endpoints, of which the first gets half of the
# connections. They must answer a request for /health.
service "web" {
  port    = 8080
  balance = "round_robin" # or least_connections, random, source_hash, maglev

  endpoint {
    address = "127.0.0.1:18081"
    weight  = 2
  }

  endpoint {
    address = "127.0.0.1:18082"
    weight  = 1
  }

  endpoint {
    address = "127.0.0.1:18083"
    weight  = 1
  }

  check {
    http     = "/health"
    interval = "1s" # 5s by default
    timeout  = "1s"
    rise     = 2 # successes in a row that make an endpoint healthy
    fall     = 2 # failures in a row that make it unhealthy; 3 by default
  }
}

# An API with two endpoints; a new connection goes where the fewest are. The
# check only connects.
service "api" {
  port    = 9090
  balance = "least_connections"

  endpoint {
    address = "127.0.0.1:18091"
  }

  endpoint {
    address = "127.0.0.1:18092"
  }

  check {
    tcp      = true
    interval = "1s"
  }
}

# The same endpoints as "api", on the same address as "web": clients see one
# host with two ports.
service "web-api" {
  vip  = service("web")
  port = 9090

  # How often this service tries another endpoint: options are the plugin's.
  options = { retries = 2 }

  endpoint {
    address = "127.0.0.1:18091"
  }

  endpoint {
    address = "127.0.0.1:18092"
  }

  check {
    tcp      = true
    interval = "1s"
  }
}

# Everything else that a service can say.
#service "legacy-db" {
#  vip       = ["10.96.200.1"]   # an address of its own instead of one of the pool
#  pool      = "default"         # or: from which vip_pool
#  port      = 5432
#  protocols = ["tcp"]           # tcp, udp, sctp
#  node_port = 30432             # also on this port of the node's own addresses
#  external  = ["198.51.100.7"]  # also on addresses that others route to this node
#  dataplane = "userspace"
#  affinity  = "10m"             # a client stays with its endpoint
#
#  options = {
#    proxy_protocol             = "v2"  # tell endpoints the client's address
#    max_connections            = 500
#    max_connections_per_client = 20
#    max_lifetime               = "24h"
#    eject_after                = 3
#  }
#
#  endpoint {
#    address = "db1.example:5432" # a host name is resolved again at its TTL
#    weight  = 3                  # 0 takes no new connections
#    zone    = "eu-1a"
#  }
#}
