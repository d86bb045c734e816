data_dir      = "state"
plugin_dir    = "/usr/lib/patchbay/plugins"
watch_files   = true
sync_interval = "1m"

agent {
  log_level  = "debug"
  log_format = "json"
  socket     = "run/patchbay.sock"
  http       = ":9100"
  user       = "patchbay"
  group      = "ops"
}

node {
  zone           = "eu-1a"
  addresses      = ["192.0.2.7", "2001:db8:1::7"]
  local_networks = ["172.17.0.0/16"]
}

vip_pool "default" {
  cidr  = ["10.96.0.0/16", "fd00:96::/64"]
  store = "file"
}

vip_pool "blue" {
  cidr = "10.97.0.0/24"
}

dataplane "userspace" {
  default         = true
  version         = "~> 1.0, != 1.3.0"
  sha256          = "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855"
  user            = "nobody"
  capabilities    = ["CAP_NET_BIND_SERVICE"]
  auto_upgrade    = true
  capture         = "bind"
  connect_timeout = "1500ms"
  buffer          = "128KiB"
  max_connections = 9007199254740993
  ratio           = 0.25
  labels          = { a = "x", "b c" = "y", gone = null }
  ports           = [80, 443]
  token           = null
  retries         = null

  tls {
    certificate = "/etc/cert.pem"
  }

  backend {
    name = "one"
  }

  backend {
    name   = "two"
    weight = 5
  }
}

dataplane "strict" {
  address = "192.0.2.1"
  tls { certificate = "c" }
}

dataplane "other" {}

defaults {
  drain   = "1m"
  balance = "round_robin"
  allow   = ["10.0.0.0/8"]

  check {
    tcp      = true
    interval = "10s"
  }
}

service "web" {
  vip          = ["10.96.200.1", "fd00:96::1"]
  port         = 80
  protocols    = ["tcp", "udp"]
  node_port    = 30080
  external     = ["198.51.100.1"]
  balance      = "least_connections"
  affinity     = "10m"
  warning      = "weigh"
  prefer       = "zone"
  allow        = ["192.0.2.0/24", "2001:db8::1"]
  masquerade   = "never"
  on_empty     = "drop"
  on_drain_end = "reset"
  drain        = "0s"
  options      = { retries = 2, timeout = "1m" }

  endpoint {
    address = "10.0.3.7:8080"
    weight  = 3
    zone    = "eu-1a"
  }

  endpoint {
    address = "[fd00::7]:8080"
    weight  = 0
  }

  endpoint {
    address = "db.example:8080"
  }

  check {
    http = "/health"
    rise = 1
  }
}

service "web-tls" {
  vip  = service("web")
  port = 443

  endpoint {
    address = "10.0.3.7:8443"
  }
}

service "pooled" {
  pool      = "blue"
  port      = 80
  dataplane = "other"

  endpoint {
    address = "10.0.3.7:9090"
  }
}

service "discovered" {
  port    = 81
  options = null
}
