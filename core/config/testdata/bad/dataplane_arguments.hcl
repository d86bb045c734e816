dataplane "userspace" {
  defualt      = true
  version      = "one point oh"
  sha256       = "abc"
  capabilities = ["CAP_NET_ADMN", "NET_RAW", "CAP_NET_ADMIN"]
  auto_upgrade = "sometimes"
  retires      = 3
  idle_tmieout = "10s"
}
