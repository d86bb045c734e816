dataplane "userspace" {}

service "web" {
  port = 1e99999999
}
