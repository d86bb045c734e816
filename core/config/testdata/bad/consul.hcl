source "consul" {
  address      = "consul.example:http"
  datacentre   = "dc1"
  token        = "hunter2"
  token_file   = "consul.token"
  cert_file    = "cert.pem"
  select       = ["patchbay", "tags:web", "name:[a", "meta:=x", 7]
  exclude      = "tag:"
  default_port = 70000
  max_blocking = 1
  hold         = "soon"
}

source "consul" {}

source "consol" {}

source {}

source "nomad" {
  address = "127.0.0.1:4646"
}

dataplane "userspace" {}

service "web" {
  default_port = 80
}
