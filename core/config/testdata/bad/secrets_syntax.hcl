dataplane "userspace" {
  token = "hunter2
}
