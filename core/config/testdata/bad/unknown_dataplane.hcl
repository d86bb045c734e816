vip_pool "default" {
  cidr = "127.96.0.0/16"
}

dataplane "userspace" {}

service "web" {
  port      = 80
  dataplane = "userspcae"
  pool      = "defualt"
}

service "api" {
  port      = 80
  dataplane = "ipvs"
  pool      = "blue"
}
