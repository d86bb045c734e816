dataplane "userspace" {}

service "web" {
  vip  = "127.96.0.1"
  port = 80
}

service "api" {
  vip  = "127.96.0.2"
  port = 80
}

service "web" {
  vip  = "127.96.0.3"
  port = 81
}
