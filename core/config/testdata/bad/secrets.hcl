dataplane "userspace" {
  token   = ["hunter2-in-a-list"]
  tokn    = "hunter2-misspelt"
  retries = env("RETRIES")
  mode    = file("mode.txt")
  capture = env("CAPTURE")

  tls {
    certificate = "/etc/cert.pem"
    key         = hunter2-without-quotes
  }

  auth = { user = "me", pasword = "hunter2-in-an-object", password = 5 }
}

service "web" {
  vip      = "127.96.0.1"
  port     = env("CAPTURE")
  prefer   = env("CAPTURE")
  affinity = env("CAPTURE")
  allow    = [env("CAPTURE")]
  options  = { retires = 1, secret = ["hunter2-in-options"] }
  endpoint { address = env("CAPTURE") }
}
