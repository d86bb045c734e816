data_dri = "/var/lib/patchbay"
sync_intervall = "30s"

dataplane "userspace" {}

service "web" {
  vip   = "127.96.0.1"
  port  = 80
  blance = "round_robin"
  wieght = 3
  endpoint {
    address = "127.0.0.1:8080"
    weigth  = 3
  }
  check {
    http      = "/health"
    intervall = "5s"
  }
}
