dataplane "userspace" {}

service "zero" {
  vip  = "127.96.0.1"
  port = 0
  endpoint {
    address = "127.0.0.1:0"
  }
}

service "large" {
  vip       = "127.96.0.2"
  port      = 70000
  node_port = -1
  endpoint {
    address = "127.0.0.1:70000"
  }
}

service "fraction" {
  vip  = "127.96.0.3"
  port = 80.5
}

service "huge" {
  vip  = "127.96.0.4"
  port = 18446744073709551696
}
