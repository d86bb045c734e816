dataplane "userspace" {}

service {
  port = 80
}

service "web" "extra" {
  port = 80
}

node "one" {
}
