dataplane "userspace" {}

service "both" {
  vip  = "127.96.0.1"
  port = 1
  endpoint { address = "127.0.0.1:8080" }
  check {
    tcp  = true
    http = "/health"
  }
}

service "neither" {
  vip  = "127.96.0.1"
  port = 2
  endpoint { address = "127.0.0.1:8080" }
  check {
    interval = "5s"
  }
}

service "numbers" {
  vip  = "127.96.0.1"
  port = 3
  endpoint { address = "127.0.0.1:8080" }
  check {
    http     = "health check"
    interval = "1ms"
    timeout  = "-1s"
    rise     = 0
    fall     = 1000
  }
}

service "nothing-to-check" {
  vip  = "127.96.0.1"
  port = 4
  check {
    tcp = true
  }
}
