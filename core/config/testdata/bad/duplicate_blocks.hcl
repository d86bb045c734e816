vip_pool "default" {
  cidr = ["127.96.0.0/16"]
}

vip_pool "default" {
  cidr = ["127.97.0.0/16"]
}

dataplane "userspace" {}
dataplane "userspace" {}

node {}
node {}

agent {}
agent {}

defaults {}
defaults {}

service "web" {
  port = 80
  endpoint { address = "127.0.0.1:8080" }
  endpoint { address = "127.0.0.1:8081" }
  endpoint { address = "127.0.0.1:8080" }
  check { tcp = true }
  check { http = "/" }
}
