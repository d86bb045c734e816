vip_pool "lan" {
  cidr = ["192.0.2.128/25"]
}

vip_pool "containers" {
  cidr = ["172.16.0.0/12", "2001:db8::/32"]
}

vip_pool "loopback" {
  cidr = ["127.96.0.0/16"]
}

dataplane "userspace" {}
