vip_pool "default" {
  cidr = "127.96.0.0/16"
}

dataplane "userspace" {
  default = true
}

dataplane "other" {}

service "web" {
  vip  = "127.96.0.1"
  port = 80
}

service "web-tls" {
  vip       = "127.96.0.1"
  port      = 443
  dataplane = "other"
}

service "api" {
  port = 80
}

service "api-tls" {
  vip       = service("api")
  port      = 443
  dataplane = "other"
}
