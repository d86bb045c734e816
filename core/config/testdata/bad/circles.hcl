dataplane "userspace" {}

service "a" {
  vip  = service("b")
  port = 1
}

service "b" {
  vip  = service("c")
  port = 2
}

service "c" {
  vip  = service("a")
  port = 3
}

service "self" {
  vip  = service("self")
  port = 4
}

service "leads-there" {
  vip  = service("a")
  port = 5
}

service "lost" {
  vip  = service("slef")
  port = 6
}

service "listed" {
  vip  = [service("lost")]
  port = 7
}

service "elsewhere" {
  vip  = "127.96.0.9"
  pool = service("lost")
  port = 8
}
