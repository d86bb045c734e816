dataplane "userspace" {}

# café
