data_dir   = evn("HOME")
plugin_dir = env("NOT_SET")

node {
  zone = env("NOT_SET", "default", "third")
}

dataplane "userspace" {
  version = file("missing.txt")
  sha256  = file("../bad")
}

service "web" {
  vip  = env(VIP)
  port = env("NOT_SET", "70000")
  options = {
    retries = env("NOT_SET")
  }
}
