data_dir = "/two"
node {}

service "web" {
  vip  = "127.96.0.2"
  port = 80
}

service "api" {
  vip  = "127.96.0.1"
  port = 80
}
