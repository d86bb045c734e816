agent {
  log_level  = "dbug"
  log_format = "jsn"
}

dataplane "userspace" {}

service "web" {
  vip          = "127.96.0.1"
  port         = 80
  protocols    = ["tpc", "udp", "icmp"]
  balance      = "Round Robin"
  warning      = "weight"
  prefer       = "zones"
  masquerade   = "allways"
  on_empty     = "rejct"
  on_drain_end = "rest"
  drain        = "30"
  affinity     = "10ms"
}

service "none" {
  vip       = "127.96.0.2"
  port      = 80
  protocols = []
}
