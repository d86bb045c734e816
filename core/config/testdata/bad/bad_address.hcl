node {
  addresses      = ["10.0.0.256", "127.0.0.1", "10.0.0.5/24"]
  local_networks = ["10.1.0.1/16", "10.0.0.0/33"]
}

agent {
  http = "localhost"
}

dataplane "userspace" {}

service "web" {
  vip      = ["10.96.0", "10.96.0.1:80"]
  port     = 80
  external = ["0.0.0.0", "fe80::1%eth0"]
  allow    = ["10.0.0.0/8", "10.1.2.3/16", "everyone"]

  endpoint { address = "10.0.0.256:80" }
  endpoint { address = "10.0.0.1" }
  endpoint { address = "fd00::1:80" }
  endpoint { address = "fd00::1" }
  endpoint { address = "[fd00::1]" }
  endpoint { address = "[fd00::1]:0" }
  endpoint { address = "0.0.0.0:80" }
  endpoint { address = "host name:80" }
  endpoint { address = ":80" }
  endpoint { address = "db.example:70000" }
  endpoint {}
}
