vip_pool "default" {
  cidr = "127.96.0.0/16"
}

dataplane "userspace" {}

service "web" {
  port = 80
  endpoint { address = "127.0.0.1:8080" }
}

service "web-too" {
  vip  = service("web")
  port = 80
  endpoint { address = "127.0.0.1:8081" }
}
