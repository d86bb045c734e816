# One line, an object over several, a heredoc with a brace at the margin.
dataplane "userspace" { capture = "bind" }

service "web" {
  vip = [
    "127.96.0.1",
  ]
  port = 80
  options = {
    retries = 3
    timeout = "5s",
  }
}
