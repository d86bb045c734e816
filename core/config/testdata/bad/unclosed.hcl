dataplane "userspace" {}

service "web" {
  port = 80
