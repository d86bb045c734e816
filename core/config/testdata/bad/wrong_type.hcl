watch_files   = "yes"
sync_interval = 30
data_dir      = ["/var/lib/patchbay"]

node {
  zone      = 1
  addresses = { a = "10.0.0.5" }
}

dataplane "userspace" {
  default = 1
}

service "web" {
  vip       = 80
  port      = "http"
  protocols = [tcp]
  balance   = round_robin
  affinity  = true
  allow     = [10, null]
  endpoint {
    address = 8080
    weight  = "heavy"
  }
  check {
    tcp  = "maybe"
    rise = 1.5
  }
}
