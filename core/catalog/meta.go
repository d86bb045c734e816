package catalog

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// metaPrefix begins the keys of a service's meta that are policy.
const metaPrefix = "patchbay-"

// metaArguments says how each argument of a service block is read from meta:
// said tells whether the block says it itself, in which case the file wins, and
// read sets it. A block whose argument equals the default counts as silent.
var metaArguments = map[string]struct {
	said func(policy, defaults *config.Service) bool
	read func(policy *config.Service, value string) error
}{
	"port": {func(p, d *config.Service) bool { return p.Port != d.Port }, func(p *config.Service, v string) (err error) {
		p.Port, err = readPort(v)
		return err
	}},
	"vip": {func(p, _ *config.Service) bool { return len(p.VIP) > 0 || p.VIPService != "" }, func(p *config.Service, v string) (err error) {
		p.VIP, err = readVIPs(v)
		return err
	}},
	"pool": {func(p, d *config.Service) bool { return p.Pool != d.Pool }, func(p *config.Service, v string) error {
		p.Pool = v
		return nil
	}},
	"protocols": {func(p, d *config.Service) bool { return !slices.Equal(p.Protocols, d.Protocols) }, func(p *config.Service, v string) (err error) {
		p.Protocols, err = readList(v, func(s string) (dataplane.Protocol, error) { return readName[dataplane.Protocol](s) })
		return err
	}},
	"node-port": {func(p, d *config.Service) bool { return p.NodePort != d.NodePort }, func(p *config.Service, v string) (err error) {
		p.NodePort, err = readPort(v)
		return err
	}},
	"external": {func(p, d *config.Service) bool { return !slices.Equal(p.External, d.External) }, func(p *config.Service, v string) (err error) {
		p.External, err = readList(v, func(s string) (netip.Addr, error) { return readAddress(s, config.Unusable) })
		return err
	}},
	"dataplane": {func(p, d *config.Service) bool { return p.Dataplane != d.Dataplane }, func(p *config.Service, v string) error {
		p.Dataplane = v
		return nil
	}},
	"balance": {func(p, d *config.Service) bool { return p.Balance != d.Balance }, func(p *config.Service, v string) error {
		p.Balance = v
		return nil
	}},
	"affinity": {func(p, d *config.Service) bool { return p.Affinity != d.Affinity }, func(p *config.Service, v string) (err error) {
		p.Affinity, err = readDuration(v)
		return err
	}},
	"warning": {func(p, d *config.Service) bool { return p.Warning != d.Warning }, func(p *config.Service, v string) (err error) {
		p.Warning, err = readWord(v, warningUse, warningWeigh, warningDrop)
		return err
	}},
	"prefer": {func(p, d *config.Service) bool { return p.Prefer != d.Prefer }, func(p *config.Service, v string) (err error) {
		p.Prefer, err = readWord(v, preferNode, preferZone, preferNone)
		return err
	}},
	"allow": {func(p, d *config.Service) bool { return !slices.Equal(p.Allow, d.Allow) }, func(p *config.Service, v string) (err error) {
		p.Allow, err = readList(v, netip.ParsePrefix)
		return err
	}},
	"masquerade": {func(p, d *config.Service) bool { return p.Masquerade != d.Masquerade }, func(p *config.Service, v string) (err error) {
		p.Masquerade, err = readName[dataplane.Masquerade](v)
		return err
	}},
	"on-empty": {func(p, d *config.Service) bool { return p.OnEmpty != d.OnEmpty }, func(p *config.Service, v string) (err error) {
		p.OnEmpty, err = readName[dataplane.EmptyAction](v)
		return err
	}},
	"on-drain-end": {func(p, d *config.Service) bool { return p.OnDrainEnd != d.OnDrainEnd }, func(p *config.Service, v string) (err error) {
		p.OnDrainEnd, err = readName[dataplane.DrainEndAction](v)
		return err
	}},
	"drain": {func(p, d *config.Service) bool { return p.Drain != d.Drain }, func(p *config.Service, v string) (err error) {
		p.Drain, err = readDuration(v)
		return err
	}},
}

// essential are the arguments without which a service would be somewhere else
// than it says, or open to others: it is refused when one can't be used. With
// any other it does without.
var essential = map[string]bool{
	"port": true, "vip": true, "protocols": true, "node-port": true, "external": true, "allow": true,
}

// applyMeta lets meta speak where the policy doesn't differ from the defaults.
func applyMeta(policy, defaults *config.Service, meta map[string]string) (notes []string, refused string) {
	file := *policy
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		name, ours := strings.CutPrefix(key, metaPrefix)
		if !ours {
			continue
		}
		argument, known := metaArguments[name]
		if !known {
			notes = append(notes, fmt.Sprintf("meta %s is not known and has no effect", key))
			continue
		}
		if argument.said(&file, defaults) {
			continue
		}
		tried := *policy
		if err := argument.read(&tried, strings.TrimSpace(meta[key])); err != nil {
			why := fmt.Sprintf("meta %s = %.60q can't be used: %v", key, meta[key], err)
			if essential[name] {
				return notes, why
			}
			notes = append(notes, why)
			continue
		}
		*policy = tried
	}
	return notes, ""
}

func readPort(v string) (uint16, error) {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("a port is a number from 1 to 65535")
	}
	return uint16(n), nil
}

// readAddress reads an address as a file would: what is refused there is
// refused here.
func readAddress(v string, unusable func(netip.Addr) string) (netip.Addr, error) {
	a, err := netip.ParseAddr(v)
	if err != nil {
		return a, fmt.Errorf("%.60q is not an IP address", v)
	}
	a = a.Unmap()
	if why := unusable(a); why != "" {
		return a, fmt.Errorf("%s %s", a, why)
	}
	return a, nil
}

func readVIPs(v string) ([]netip.Addr, error) {
	vips, err := readList(v, func(s string) (netip.Addr, error) { return readAddress(s, config.UnusableVIP) })
	if err != nil {
		return nil, err
	}
	for i, a := range vips {
		for _, other := range vips[:i] {
			if dataplane.FamilyOf(a) == dataplane.FamilyOf(other) {
				return nil, fmt.Errorf("a service has one VIP per family; %s comes after %s", a, other)
			}
		}
	}
	return vips, nil
}

func readDuration(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("a duration is written as in 30s or 5m")
	}
	return d, nil
}

func readWord(v string, words ...string) (string, error) {
	if !slices.Contains(words, v) {
		return "", fmt.Errorf("use one of %s", strings.Join(words, ", "))
	}
	return v, nil
}

func readList[T any](v string, parse func(string) (T, error)) ([]T, error) {
	var out []T
	for part := range strings.SplitSeq(v, ",") {
		item, err := parse(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if reflect.ValueOf(item).IsZero() {
			return nil, fmt.Errorf("an item is empty")
		}
		out = append(out, item)
	}
	return out, nil
}

func readName[T any, P interface {
	*T
	UnmarshalText([]byte) error
}](v string) (T, error) {
	var out T
	err := P(&out).UnmarshalText([]byte(v))
	return out, err
}
