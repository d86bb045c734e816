package schema_test

import (
	"fmt"
	"time"

	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

type proxyConfig struct {
	Mode    string        `name:"mode" default:"auto" enum:"auto,fast" description:"How to forward."`
	Timeout time.Duration `name:"timeout" default:"2s" min:"10ms"`
	Buffer  schema.Size   `name:"buffer" default:"64KiB"`
	Ports   []uint16      `name:"ports" required:"true"`
}

func ExampleOf() {
	s, err := schema.Of(&proxyConfig{})
	if err != nil {
		panic(err)
	}
	for _, a := range s.Arguments {
		fmt.Println(a.Name, a.Type, string(a.Default))
	}
	// Output:
	// mode string "auto"
	// timeout duration "2s"
	// buffer size "64KiB"
	// ports list
}

func ExampleDecode() {
	var c proxyConfig
	if err := schema.Decode([]byte(`{"ports":[80,443],"timeout":5000000000}`), &c); err != nil {
		panic(err)
	}
	fmt.Println(c.Mode, c.Timeout, c.Buffer, c.Ports)

	fmt.Println(schema.Decode([]byte(`{"prots":[80],"mode":"slow"}`), &c))
	// Output:
	// auto 5s 64KiB [80 443]
	// prots: unknown argument
	// mode: must be one of "auto", "fast", not "slow"
	// ports: required, but not set
}

func ExampleSchema_FromUser() {
	s, err := schema.Of(&proxyConfig{})
	if err != nil {
		panic(err)
	}
	wire, err := s.FromUser([]byte(`{"ports":[80],"timeout":"1m30s","buffer":"1MiB","mode":null}`))
	fmt.Println(string(wire), err)
	// Output:
	// {"buffer":1048576,"mode":"auto","ports":[80],"timeout":90000000000} <nil>
}
