dataplane "userspace" {}

vip_pool "six" {
  cidr = ["fd00:96::/64"]
}

service "v6" {
  port = 80
  endpoint { address = "10.0.3.7:80" }
  endpoint { address = "[fd00::7]:80" }
  endpoint { address = "db.example:80" }
}

service "v4" {
  vip  = ["198.51.100.7"]
  port = 80
  endpoint {
    address = "[fd00::7]:80"
  }
}

service "shared" {
  vip  = service("v6")
  port = 81
  endpoint { address = "10.0.3.7:80" }
}

service "both" {
  vip      = ["198.51.100.8"]
  external = ["fd00:97::1"]
  port     = 80
  endpoint { address = "[fd00::7]:80" }
}
