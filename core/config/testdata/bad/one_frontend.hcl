dataplane "userspace" {}

service "web" {
  vip       = "127.96.0.1"
  port      = 80
  node_port = 30080
  external  = ["198.51.100.1"]
  endpoint { address = "127.0.0.1:8080" }
}

service "other" {
  vip  = "127.96.0.1"
  port = 80
  endpoint { address = "127.0.0.1:8081" }
}

service "shares" {
  vip       = service("web")
  port      = 80
  node_port = 30080
  endpoint { address = "127.0.0.1:8082" }
}

service "dns" {
  vip       = "127.96.0.1"
  port      = 80
  protocols = ["udp"]
  endpoint { address = "127.0.0.1:8083" }
}

service "outside" {
  vip      = "127.96.0.2"
  port     = 80
  external = ["198.51.100.1"]
  endpoint { address = "127.0.0.1:8084" }
}
