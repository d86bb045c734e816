dataplane "strict" {
  tls {
    minimum = "1.2"
  }
  tls {
    certificate = "/etc/cert.pem"
  }
}

service "web" {
  vip     = "127.96.0.1"
  port    = 80
  options = { retries = 2 }
}
