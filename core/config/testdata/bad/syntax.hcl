dataplane "userspace" {}

service "web" {
  port = 
}

service "api" {
  port = 80
  vip  = ["127.96.0.1"
}
