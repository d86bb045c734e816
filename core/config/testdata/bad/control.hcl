dataplane "userspace" {}

zona = "[31mred[0m"
