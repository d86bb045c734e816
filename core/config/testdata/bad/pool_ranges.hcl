vip_pool "consul" {
  cidr = ["240.0.0.0/16"]
}

vip_pool "everything" {
  cidr = ["0.0.0.0/0", "::/0"]
}

vip_pool "large" {
  cidr = ["10.0.0.0/7", "fd00::/16"]
}

vip_pool "multicast" {
  cidr = ["224.1.0.0/16", "ff05::/64"]
}

vip_pool "link" {
  cidr = ["169.254.0.0/16", "fe80::/64"]
}

vip_pool "bits" {
  cidr = ["10.96.0.1/16", "10.96.0.1", "::ffff:10.0.0.0/104"]
}

vip_pool "two" {
  cidr = ["10.96.0.0/16", "10.97.0.0/16"]
}

vip_pool "overlaps" {
  cidr = ["10.96.128.0/17"]
}

vip_pool "none" {
  cidr = []
}

vip_pool "absent" {
}

vip_pool "bad name" {
  cidr  = ["10.98.0.0/16"]
  store = "consul"
}

vip_pool "store" {
  cidr  = ["10.99.0.0/16"]
  store = "files"
}

dataplane "userspace" {}
