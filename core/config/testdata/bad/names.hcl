dataplane "userspace" {}

service "web server" {
  port = 80
}

service "" {
  port = 80
}

service "straße" {
  port = 80
}
