# What is wrong with a second block of a name, or with a block of no proper
# name, is said too.
dataplane "userspace" {
  default = true
}
dataplane "userspace" {
  caputre = "bind"
}
agent {}
agent {
  log_level = "loud"
}
node {}
node {
  addresses = ["127.0.0.1"]
}
defaults {}
defaults {
  prefer = "nobody"
}
service "web" {
  vip  = "10.96.0.1"
  port = 80
  endpoint { address = "10.0.0.1:80" }
}
service "web" {
  vip       = "10.96.0.1"
  dataplane = "usrspace"
  endpoint { address = "10.0.0.1:80" }
}
service "web" {
  vip     = "10.96.0.1"
  port    = 80
  options = { no_such_option = 1 }
  endpoint { address = "10.0.0.1:80" }
}
service "no name" {
  port      = 80
  dataplane = "usrspace"
  pool      = "none"
}
