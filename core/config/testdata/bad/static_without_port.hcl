dataplane "userspace" {}

service "web" {
  vip = "127.96.0.1"
  endpoint { address = "127.0.0.1:8080" }
}

service "api" {
  port = 80
  endpoint { address = "127.0.0.1:8080" }
}
