package config

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/hcl/v2"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// The blocks of a file and their arguments.
var (
	named = []string{"name"}

	rootShape = newShape(
		[]string{"data_dir", "plugin_dir", "watch_files", "sync_interval"},
		hcl.BlockHeaderSchema{Type: "agent"},
		hcl.BlockHeaderSchema{Type: "node"},
		hcl.BlockHeaderSchema{Type: "defaults"},
		hcl.BlockHeaderSchema{Type: "vip_pool", LabelNames: named},
		hcl.BlockHeaderSchema{Type: "dataplane", LabelNames: named},
		hcl.BlockHeaderSchema{Type: "service", LabelNames: named},
		hcl.BlockHeaderSchema{Type: "source", LabelNames: []string{"type"}},
		hcl.BlockHeaderSchema{Type: "dns"},
	)
	agentShape = newShape([]string{"log_level", "log_format", "socket", "http", "user", "group"})
	nodeShape  = newShape([]string{"zone", "addresses", "local_networks"})
	poolShape  = newShape([]string{"cidr", "store"})

	// coreArguments of a dataplane block; all others are the plugin's.
	coreArguments = []string{"default", "version", "sha256", "user", "capabilities", "auto_upgrade"}
	coreShape     = newShape(coreArguments)
)

// minInterval is the shortest time between two rounds of anything.
const minInterval = 100 * time.Millisecond

// fileParts is what one file holds: its services read, all else as parsed.
type fileParts struct {
	file     string
	report   *report
	attrs    hcl.Attributes
	blocks   hcl.Blocks
	services []*serviceBlock
}

func newFileParts(file string, src *sources) *fileParts {
	return &fileParts{file: file, report: newReport(src), attrs: hcl.Attributes{}}
}

// take adds the contents of a body, which is the file or a piece of it.
func (p *fileParts) take(body hcl.Body) {
	c := p.report.content(body, rootShape)
	r := p.report.reader(p.file)
	maps.Copy(p.attrs, c.attrs)
	for _, b := range c.blocks {
		if b.Type == "service" {
			p.services = append(p.services, readService(r, b))
		} else {
			p.blocks = append(p.blocks, b)
		}
	}
}

// decode fills the Config from the files. The defaults block applies to
// services of every file, so services come last.
func (l *loader) decode(parts []*fileParts) {
	l.defined, l.declared = map[string]hcl.Range{}, map[string]int{}
	defaults := newServiceBlock()
	for _, p := range parts {
		r := l.report.reader(p.file)
		l.decodeRoot(r, p.attrs, filepath.Dir(p.file))
		for _, block := range p.blocks {
			l.decodeBlock(r, block, p.file, defaults)
		}
	}
	if l.cfg.Consul != nil {
		l.cfg.Defaults = defaults.Service
	}
	l.serviceAt = map[string]hcl.Range{}
	for _, p := range parts {
		l.report.join(p.report)
		for _, s := range p.services {
			l.addService(s, defaults)
		}
	}
}

func (l *loader) decodeRoot(r reader, attrs hcl.Attributes, dir string) {
	once := func(name string) *hcl.Attribute {
		a := attrs[name]
		if a == nil || !l.once(name, a.Range, a.NameRange) {
			return nil
		}
		return a
	}
	if a := once("data_dir"); a != nil {
		r.setPath(&l.cfg.DataDir, a, absolute(dir))
	}
	if a := once("plugin_dir"); a != nil {
		r.setPath(&l.cfg.PluginDir, a, absolute(dir))
	}
	r.setBool(&l.cfg.WatchFiles, once("watch_files"))
	r.setDuration(&l.cfg.SyncInterval, once("sync_interval"), minInterval)
}

func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// once tells whether something is given for the first time, and reports it
// otherwise, naming both places.
func (l *loader) once(what string, at, name hcl.Range) bool {
	first, twice := l.defined[what]
	if !twice {
		l.defined[what] = at
		return true
	}
	l.report.errorf(&name, "Given twice", "%s is already given at %s.", what, place(first))
	return false
}

// place names a position for a message.
func place(r hcl.Range) string { return fmt.Sprintf("%s:%d", printable(r.Filename), r.Start.Line) }

func (l *loader) decodeBlock(r reader, b *hcl.Block, file string, defaults *serviceBlock) {
	defer func() { l.report.within = "" }()
	l.report.within = header(b)
	l.declared[b.Type]++
	switch b.Type {
	case "agent", "node", "defaults":
		if !l.once("The "+b.Type+" block", b.DefRange, b.TypeRange) {
			// It does not count, and what else is wrong with it is said.
			agent, node := l.cfg.Agent, l.cfg.Node
			defer func() { l.cfg.Agent, l.cfg.Node = agent, node }()
			defaults = newServiceBlock()
		}
	}
	switch b.Type {
	case "agent":
		l.decodeAgent(r, b, filepath.Dir(file))
	case "node":
		l.decodeNode(r, b)
	case "defaults":
		defaults.decode(r, l.report.content(b.Body, defaultsShape))
		defaults.inheritCheck(l.report, newServiceBlock())
	case "vip_pool":
		l.decodePool(r, b)
	case "dataplane":
		l.decodeDataplane(r, b)
	case "source":
		l.decodeSource(r, b, filepath.Dir(file))
	case "dns":
		l.notYet(b)
	}
}

// header is a block as messages name it.
func header(b *hcl.Block) string {
	if len(b.Labels) == 0 {
		return b.Type
	}
	return b.Type + " " + strconv.Quote(clip(b.Labels[0], 80))
}

func (l *loader) notYet(b *hcl.Block) {
	l.report.errorf(&b.DefRange, "Not yet in this version",
		"This version of Patchbay has no %s block.", header(b))
}

func (l *loader) decodeAgent(r reader, b *hcl.Block, dir string) {
	c, agent := r.content(b.Body, agentShape), &l.cfg.Agent
	if s, ok := r.enum(c.attrs["log_level"], "trace", "debug", "info", "warn", "error"); ok {
		agent.LogLevel = s
	}
	if s, ok := r.enum(c.attrs["log_format"], "text", "json"); ok {
		agent.LogFormat = s
	}
	if a := c.attrs["socket"]; r.setPath(&agent.Socket, a, absolute(dir)) {
		l.defined["agent.socket"] = a.Expr.Range()
	}
	if s, ok := r.string(c.attrs["http"]); ok && s != "" {
		if err := checkListen(s); err != "" {
			r.errorf(c.attrs["http"].Expr.Range().Ptr(), "Bad address",
				`http must be an address and port such as "127.0.0.1:9100" or ":9100"%s%s.`, r.not(s, rangeP(c.attrs["http"])), r.because(err, rangeP(c.attrs["http"])))
		} else {
			agent.HTTP = s
		}
	}
	r.setString(&agent.User, c.attrs["user"])
	r.setString(&agent.Group, c.attrs["group"])
}

// checkListen says what is wrong with an address to listen on. Port 0 takes
// any free port.
func checkListen(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "the port is missing"
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "a port is a number from 0 to 65535"
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" && !isHostName(host) {
		return "the host is neither an IP address nor a name"
	}
	return ""
}

func (l *loader) decodeNode(r reader, b *hcl.Block) {
	c, node := r.content(b.Body, nodeShape), &l.cfg.Node
	r.setString(&node.Zone, c.attrs["zone"])
	node.Addresses = r.addresses(c.attrs["addresses"], "A node's address", func(i item, a netip.Addr) bool {
		why := Unusable(a)
		if a.IsLoopback() {
			why = "is a loopback address, on which node frontends never listen"
		}
		if why != "" {
			r.errorf(&i.at, "Bad address", "%s %s.", r.bare(a, i.argument, &i.at), why)
		}
		return why == ""
	})
	node.LocalNetworks = r.prefixes(c.attrs["local_networks"], "A local network")
}

var (
	// serviceName is what the contract with the dataplanes allows as an id.
	serviceName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,253}$`)
	poolName    = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)
	// dataplaneName becomes part of a file name, before "_v".
	dataplaneName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
)

// name gives a block's label if it is a proper name not yet taken.
func (l *loader) name(b *hcl.Block, pattern *regexp.Regexp, rule string) (string, bool) {
	name, at := b.Labels[0], b.LabelRanges[0]
	if !pattern.MatchString(name) {
		l.report.errorf(&at, "Bad name", "The name of a %s has %s; %s doesn't fit.", b.Type, rule, quoted(name))
		return "", false
	}
	what := b.Type + " " + strconv.Quote(name)
	if first, twice := l.defined[what]; twice {
		l.report.errorf(&at, "Duplicate "+b.Type, "%s is already declared at %s.", what, place(first))
		return "", false
	}
	l.defined[what] = b.DefRange
	return name, true
}

func (l *loader) decodePool(r reader, b *hcl.Block) {
	name, ok := l.name(b, poolName, "1 to 63 letters, digits, dots, underscores and hyphens")
	c := r.content(b.Body, poolShape)
	pool := Pool{Name: name, Store: "file", Range: b.DefRange}
	for _, i := range r.strings(c.attrs["cidr"]) {
		if p, ok := r.prefix(i, "A pool's range", false); ok {
			l.poolRange(&pool, i, p)
		}
	}
	if a := c.attrs["cidr"]; a == nil {
		r.errorf(&c.end, "Missing argument", `A vip_pool needs cidr, such as cidr = ["10.96.0.0/16"].`)
	} else if items, _ := hcl.ExprList(a.Expr); len(pool.CIDR) == 0 && items != nil && len(items) == 0 {
		r.errorf(a.Expr.Range().Ptr(), "Empty list", "A vip_pool needs a range of addresses.")
	}
	if s, ok := r.enum(c.attrs["store"], "file", "consul"); ok && s == "consul" {
		r.errorf(c.attrs["store"].Expr.Range().Ptr(), "Not yet in this version",
			`This version of Patchbay keeps leases in a file of the node; write store = "file" or leave it out.`)
	}
	if ok {
		l.cfg.Pools = append(l.cfg.Pools, pool)
	}
}

// poolRange adds a range to a pool if it can be one.
func (l *loader) poolRange(pool *Pool, i item, p netip.Prefix) {
	family := dataplane.FamilyOf(p.Addr())
	for _, other := range pool.CIDR {
		if dataplane.FamilyOf(other.Addr()) == family {
			l.report.errorf(&i.at, "Several ranges of one family",
				"A pool has one range per family; %s comes after %s. Make a second vip_pool of it.", l.report.bare(p, i.argument, &i.at), l.report.bare(other, i.argument, &i.at))
			return
		}
	}
	if why := unfitForPool(p); why != "" {
		l.report.errorf(&i.at, "Unusable range", "%s %s.", l.report.bare(p, i.argument, &i.at), why)
		return
	}
	pool.CIDR = append(pool.CIDR, p)
	l.pools.add(poolRange{prefix: p, pool: pool.Name, block: pool.Range, at: i.at})
	l.nodeNetworks(i, p)
}

var (
	multicastV4 = netip.MustParsePrefix("224.0.0.0/4")
	multicastV6 = netip.MustParsePrefix("ff00::/8")
	linkLocalV4 = netip.MustParsePrefix("169.254.0.0/16")
	linkLocalV6 = netip.MustParsePrefix("fe80::/10")
)

func unfitForPool(p netip.Prefix) string {
	switch {
	case p.Bits() == 0:
		return "is every address there is"
	case p.Overlaps(reservedV4):
		return "overlaps the reserved range 240.0.0.0/4, from which Consul takes addresses too"
	case p.Overlaps(multicastV4) || p.Overlaps(multicastV6):
		return "overlaps the multicast addresses"
	case p.Overlaps(zeroNet) || p.Contains(netip.IPv6Unspecified()):
		return "holds the unspecified address"
	case p.Overlaps(linkLocalV6) || p.Overlaps(linkLocalV4):
		return "overlaps the link-local addresses"
	case p.Addr().Is4() && p.Bits() < 8, p.Addr().Is6() && p.Bits() < 32:
		return "is too large to be a range of VIPs"
	}
	return ""
}

// nodeNetworks reports a range that shares addresses with the node's own
// networks.
func (l *loader) nodeNetworks(i item, p netip.Prefix) {
	if p.Addr().IsLoopback() {
		return
	}
	if l.networks == nil {
		networks, err := l.opts.Networks()
		if err != nil {
			l.report.warnf(&i.at, "Unknown networks", "Whether %s overlaps the node's own networks can't be told: %v.", l.report.bare(p, i.argument, &i.at), err)
		}
		l.networks = append([]Network{}, networks...)
	}
	for _, n := range l.networks {
		if n.Prefix.Overlaps(p) && !n.Prefix.Addr().IsLoopback() {
			l.report.errorf(&i.at, "Pool overlaps the node's network",
				"%s overlaps %s, the network of this node's %s. Take a range that nothing else uses.", l.report.bare(p, i.argument, &i.at), n.Prefix.Masked(), n.Interface)
		}
	}
}

func (l *loader) decodeDataplane(r reader, b *hcl.Block) {
	name, ok := l.name(b, dataplaneName, "1 to 63 small letters, digits, underscores and hyphens, a letter first")
	dp := Dataplane{Name: name, Body: b.Body, Range: b.DefRange}
	c, _, diags := b.Body.PartialContent(coreShape.schema)
	hideUnbound(l.report, b.Body) // only the plugin's schema knows what is sensitive
	r.hcl(diags)
	r.setBool(&dp.Default, c.Attributes["default"])
	r.setBool(&dp.AutoUpgrade, c.Attributes["auto_upgrade"])
	r.setString(&dp.User, c.Attributes["user"])
	dp.Version = r.version(c.Attributes["version"])
	dp.SHA256 = r.sha256(c.Attributes["sha256"])
	dp.Capabilities = r.capabilities(c.Attributes["capabilities"])
	if !ok {
		dp.Name = b.Labels[0]
		l.cfg.spare.dataplanes = append(l.cfg.spare.dataplanes, dp)
		return
	}
	l.cfg.Dataplanes = append(l.cfg.Dataplanes, dp)
}

func (r reader) version(a *hcl.Attribute) string {
	s, ok := r.string(a)
	if !ok || s == "" {
		return ""
	}
	if _, err := version.NewConstraint(s); err != nil {
		r.errorf(a.Expr.Range().Ptr(), "Bad version", `version must be a constraint such as "~> 1.0" or ">= 1.2, < 2.0"%s.`, r.not(s, rangeP(a)))
		return ""
	}
	return s
}

func (r reader) sha256(a *hcl.Attribute) string {
	s, ok := r.string(a)
	if !ok || s == "" {
		return ""
	}
	if sum, err := hex.DecodeString(s); err != nil || len(sum) != 32 {
		r.errorf(a.Expr.Range().Ptr(), "Bad checksum", "sha256 must be 64 hexadecimal digits, as sha256sum prints them.")
		return ""
	}
	return strings.ToLower(s)
}

// kernelCapabilities are the names of capabilities(7).
var kernelCapabilities = strings.Fields(`
	CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_AUDIT_WRITE CAP_BLOCK_SUSPEND CAP_BPF CAP_CHECKPOINT_RESTORE CAP_CHOWN
	CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_IPC_LOCK CAP_IPC_OWNER CAP_KILL CAP_LEASE
	CAP_LINUX_IMMUTABLE CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_MKNOD CAP_NET_ADMIN CAP_NET_BIND_SERVICE CAP_NET_BROADCAST
	CAP_NET_RAW CAP_PERFMON CAP_SETFCAP CAP_SETGID CAP_SETPCAP CAP_SETUID CAP_SYSLOG CAP_SYS_ADMIN CAP_SYS_BOOT
	CAP_SYS_CHROOT CAP_SYS_MODULE CAP_SYS_NICE CAP_SYS_PACCT CAP_SYS_PTRACE CAP_SYS_RAWIO CAP_SYS_RESOURCE CAP_SYS_TIME
	CAP_SYS_TTY_CONFIG CAP_WAKE_ALARM`)

func (r reader) capabilities(a *hcl.Attribute) []string {
	var names []string
	for _, i := range r.strings(a) {
		switch {
		case !slices.Contains(kernelCapabilities, i.text):
			r.errorf(&i.at, "Unknown capability", "%s is no capability of the kernel.%s",
				r.shown(i.text, i.argument, &i.at), r.meant(capabilityName(i.text), &i.at, kernelCapabilities))
		case !slices.Contains(names, i.text):
			names = append(names, i.text)
		}
	}
	if a != nil && names == nil {
		names = []string{} // an empty list allows none, unlike an absent one
	}
	return names
}

// capabilityName gives what is written short its full name.
func capabilityName(s string) string {
	s = strings.ToUpper(s)
	if !strings.HasPrefix(s, "CAP_") {
		return "CAP_" + s
	}
	return s
}
