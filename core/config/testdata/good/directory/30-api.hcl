service "api" {
  vip  = service("web")
  port = 81
}
