source "consul" {
  address = "127.0.0.1:8500"
  token   = "hunter2"
}

dns {
  listen = "127.0.0.1:8653"
}

dataplane "userspace" {}
