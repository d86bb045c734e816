service "web" {
  vip  = "127.96.0.1"
  port = 80
}
