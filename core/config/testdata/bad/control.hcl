dataplane "userspace" {}

zone = "[31mred[0m"
userÿ = 1
