package config

import (
	"net/netip"
	"slices"

	"github.com/hashicorp/hcl/v2"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// poolRange is one range of a vip_pool, and where it stands.
type poolRange struct {
	prefix    netip.Prefix
	pool      string
	block, at hcl.Range
}

// poolIndex finds the ranges around an address without a look at each: two
// ranges share addresses only if one holds the other, and so it is enough to
// ask for the lengths of prefix that there are.
type poolIndex struct {
	ranges []poolRange // in the order of the files
	first  map[netip.Prefix]int
	bits   [3][]int // by family
}

func (x *poolIndex) add(r poolRange) {
	if x.first == nil {
		x.first = map[netip.Prefix]int{}
	}
	if _, twice := x.first[r.prefix]; !twice {
		x.first[r.prefix] = len(x.ranges)
	}
	if bits := &x.bits[dataplane.FamilyOf(r.prefix.Addr())]; !slices.Contains(*bits, r.prefix.Bits()) {
		*bits = append(*bits, r.prefix.Bits())
	}
	x.ranges = append(x.ranges, r)
}

// around gives the ranges that hold an address, of at most that many bits; of
// several that are the same the first. They are numbers in ranges.
func (x *poolIndex) around(a netip.Addr, most int) []int {
	var found []int
	for _, bits := range x.bits[dataplane.FamilyOf(a)] {
		if bits > most {
			continue
		}
		if p, err := a.Prefix(bits); err == nil {
			if i, ok := x.first[p]; ok {
				found = append(found, i)
			}
		}
	}
	slices.Sort(found)
	return found
}

// checkPools reports ranges that share addresses, at the later of the two.
func (l *loader) checkPools() {
	defer func() { l.report.within = "" }()
	for i, r := range l.pools.ranges {
		for _, j := range l.pools.around(r.prefix.Addr(), r.prefix.Bits()) {
			if i == j {
				continue
			}
			later, earlier := l.pools.ranges[max(i, j)], l.pools.ranges[min(i, j)]
			l.report.within = "vip_pool " + quoted(later.pool)
			l.report.errorf(&later.at, "Overlapping pools", "%s overlaps %s of vip_pool %q at %s.",
				l.report.bare(later.prefix, "cidr", &later.at), l.report.bare(earlier.prefix, "its range", &earlier.at), earlier.pool, place(earlier.block))
		}
	}
}
