module github.com/patchbay-proxy/patchbay/test/consul

go 1.20

require github.com/hashicorp/consul v1.13.9

exclude (
	github.com/hashicorp/go-msgpack v1.1.5
	github.com/hashicorp/go-msgpack v1.1.6
)
