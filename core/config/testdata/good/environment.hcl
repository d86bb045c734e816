dataplane "userspace" {
  retries = env("RETRIES")
  token   = file("directory/inc/token")
  mode    = env("NOT_SET", "fast")
}

service "web" {
  vip  = "127.96.0.1"
  port = env("PORT")

  endpoint {
    address = "127.0.0.1:${env("PORT")}"
  }
}
