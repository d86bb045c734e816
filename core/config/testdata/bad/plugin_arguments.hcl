dataplane "userspace" {
  capture         = "binding"
  connect_timeout = "2 seconds"
  retries         = -1
  buffer          = "64 parsecs"
  max_connections = 9223372036854775808
  ratio           = "half"
  old_limit       = 5
  ports           = [80, "http", 70000.5, null]
  labels          = { a = "x", b = ["y"] }

  tls {
    certificate = "/etc/cert.pem"
    minimum     = "1.4"
    cipher      = "none"
  }

  backend {
    name   = "one"
    wieght = 1
  }

  backend {
    weight = 200
  }
}

service "web" {
  vip     = "127.96.0.1"
  port    = 80
  options = { retires = 2, timeout = "soon" }
}

service "api" {
  vip     = "127.96.0.1"
  port    = 81
  balance = "least_conections"
  options = "none"
}

service "good" {
  vip     = "127.96.0.1"
  port    = 82
  balance = "maglev"
  options = { retries = 2 }
}
