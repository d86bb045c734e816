dataplane "userspace" {}

service "web" {
  vip  = "127.96.0.1"
  port = 80
  endpoint {
    address = "127.0.0.1:8080"
    weight  = -1
  }
  endpoint {
    address = "127.0.0.1:8081"
    weight  = 1000001
  }
  endpoint {
    address = "127.0.0.1:8082"
    weight  = 0.5
  }
}
