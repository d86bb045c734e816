dataplane "userspace" {
  default = true
}

dataplane "other" {
  default = true
}

dataplane "Bad_Name" {
}
