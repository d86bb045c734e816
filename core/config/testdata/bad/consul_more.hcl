source "consul" {
  address = "http://admin:hunter2@127.0.0.1:8500"
  select  = []
  token   = "hunter2 and more"
  key_file = "key.pem"
}

dataplane "userspace" {}
