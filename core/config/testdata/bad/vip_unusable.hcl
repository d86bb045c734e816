vip_pool "default" {
  cidr = ["10.96.0.0/16", "fd00:96::/64"]
}

dataplane "userspace" {}

service "network"     { 
  vip  = "10.96.0.0"
  port = 80
}
service "broadcast"   {
  vip  = "10.96.255.255"
  port = 80
}
service "anycast"     {
  vip  = "fd00:96::"
  port = 80
}
service "unspecified" {
  vip  = ["0.0.0.0", "::"]
  port = 80
}
service "multicast"   {
  vip  = ["224.0.0.1", "ff02::1"]
  port = 80
}
service "reserved"    {
  vip  = ["240.0.0.1"]
  port = 80
}
service "everybody"   {
  vip  = ["255.255.255.255"]
  port = 80
}
service "link-local"  {
  vip  = ["fe80::1"]
  port = 80
}
service "two"         {
  vip  = ["10.96.0.1", "10.96.0.2", "10.96.0.1"]
  port = 80
}
service "outside"     {
  vip  = ["10.69.0.1"]
  port = 80
}
