dataplan "userspace" {}

dataplane "userspace" {}

servcie "web" {
  port = 80
}

service "api" {
  vip  = "127.96.0.1"
  port = 80
  endpoints {
    address = "127.0.0.1:8080"
  }
  allow {
  }
}

check = true
logging {
}
