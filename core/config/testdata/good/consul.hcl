# A source with every argument, and defaults for what it finds.
source "consul" {
  address      = "https://consul.example:8501/prefix/"
  datacenter   = "dc2"
  token_file   = "consul.token"
  ca_file      = "/etc/consul/ca.pem"
  cert_file    = "/etc/consul/cert.pem"
  key_file     = "/etc/consul/key.pem"
  server_name  = "server.dc2.consul"
  select       = ["tag:patchbay", "name:web-*", "meta:team=shop"]
  exclude      = ["name:*-sidecar-proxy", "meta:private"]
  default_port = 80
  max_blocking = 150
  hold         = "30s"
}

defaults {
  prefer  = "zone"
  drain   = "10s"
  options = { retries = 3 }
}

dataplane "userspace" {}

# It shares the VIP of a service that is discovered.
service "web-admin" {
  vip  = service("web-1")
  port = 9090
}
