dataplane "absent" {
  whatever = "anything"
  version  = "nothing"
}

service "web" {
  vip     = "127.96.0.1"
  port    = 80
  options = { retries = 2 }
}
