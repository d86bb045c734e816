dataplane "userspace" {}
