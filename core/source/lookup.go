package source

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"
)

// Resolver looks host names up; net.DefaultResolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// LookupTimeout is how long one look-up may take.
const LookupTimeout = 5 * time.Second

// Lookup looks a host name up once. It gives the addresses in order, without
// doubles, or why there are none, in words for people.
func Lookup(ctx context.Context, resolver Resolver, name string) (addresses []netip.Addr, failure string) {
	ctx, cancel := context.WithTimeout(ctx, LookupTimeout)
	defer cancel()
	found, err := resolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return nil, explainLookup(err)
	}
	if addresses = CleanAddresses(found); len(addresses) == 0 {
		return nil, "it has no address"
	}
	return addresses, ""
}

// CleanAddresses gives the valid addresses in order, without doubles; mapped
// ones as IPv4.
func CleanAddresses(in []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range in {
		if a.IsValid() {
			out = append(out, a.Unmap())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

func explainLookup(err error) string {
	var e *net.DNSError
	switch {
	case errors.As(err, &e) && e.IsNotFound:
		return "no such host"
	case errors.As(err, &e) && e.IsTimeout, errors.Is(err, context.DeadlineExceeded):
		return "the name servers don't answer"
	case errors.As(err, &e):
		return e.Err
	default:
		return err.Error()
	}
}
