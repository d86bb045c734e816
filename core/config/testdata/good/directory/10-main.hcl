data_dir = "data"

dataplane "userspace" {
  token = file("inc/token")
}
