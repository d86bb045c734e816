package config

import (
	"math"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

var (
	serviceArguments = []string{
		"vip", "pool", "port", "protocols", "node_port", "external", "dataplane", "balance", "affinity", "warning", "prefer",
		"allow", "masquerade", "on_empty", "on_drain_end", "drain", "options",
	}
	serviceShape = newShape(serviceArguments,
		hcl.BlockHeaderSchema{Type: "endpoint"}, hcl.BlockHeaderSchema{Type: "check"})
	defaultsShape = newShape(serviceArguments, hcl.BlockHeaderSchema{Type: "check"})
	endpointShape = newShape([]string{"address", "weight", "zone"})
	checkShape    = newShape([]string{"tcp", "http", "interval", "timeout", "rise", "fall"})
)

// serviceBlock is a service or defaults block while the files are read: which
// arguments it has, and where they stand, for the checks that compare services.
// After inherit a place may be in the defaults block.
type serviceBlock struct {
	*Service
	given   map[string]bool
	labelAt hcl.Range

	vipAt, portAt, nodePortAt, externalAt, dataplaneAt, poolAt, checkAt *hcl.Range
	// check is the service's own block, nil for none.
	check *checkBlock
}

// checkBlock is a check before it is joined with that of the defaults.
type checkBlock struct {
	Check
	given map[string]bool
	// broken is set when something about it has been reported.
	broken bool
}

// newServiceBlock has the defaults of everything.
func newServiceBlock() *serviceBlock {
	return &serviceBlock{Service: &Service{
		Protocols:  []dataplane.Protocol{dataplane.TCP},
		Warning:    "use",
		Prefer:     "none",
		Masquerade: dataplane.MasqueradeAuto,
		OnEmpty:    dataplane.EmptyReject,
		OnDrainEnd: dataplane.DrainEndKeep,
		Drain:      30 * time.Second,
	}}
}

// readService takes a service block apart. Names are compared and defaults
// applied later, when all files have been read, so that nothing of what the
// parser made needs to be kept until then.
func readService(r reader, b *hcl.Block) *serviceBlock {
	r.within = header(b)
	defer func() { r.within = "" }()
	c := r.content(b.Body, serviceShape)
	s := newServiceBlock()
	s.Name, s.labelAt, s.Range = b.Labels[0], b.LabelRanges[0], b.DefRange
	s.decode(r, c)
	for _, e := range c.blocks {
		if e.Type == "endpoint" {
			s.endpoint(r, e)
		}
	}
	return s
}

// addService takes a service up whose name is proper and new, with the
// defaults for what it doesn't say.
func (l *loader) addService(s, defaults *serviceBlock) {
	l.report.within = "service " + strconv.Quote(clip(s.Name, 80))
	defer func() { l.report.within = "" }()
	s.inherit(l.report, defaults)
	if !serviceName.MatchString(s.Name) {
		l.report.errorf(&s.labelAt, "Bad name", "The name of a service has 1 to 253 letters, digits, dots, underscores and hyphens; %s doesn't fit.", quoted(s.Name))
		l.addSpare(s)
		return
	}
	if first, twice := l.serviceAt[s.Name]; twice {
		l.report.errorf(&s.labelAt, "Duplicate service", "service %q is already declared at %s.", s.Name, place(first))
		l.addSpare(s)
		return
	}
	l.serviceAt[s.Name] = s.Range
	l.cfg.Services = append(l.cfg.Services, s.Service)
	l.services = append(l.services, s)
	s.given = nil // done with
}

// addSpare takes up a service that doesn't count.
func (l *loader) addSpare(s *serviceBlock) {
	l.spare = append(l.spare, s)
	l.cfg.spare.services = append(l.cfg.spare.services, s.Service)
}

// inherit fills in what the block doesn't say from the defaults block. Slices
// are shared: nobody writes to them.
func (s *serviceBlock) inherit(r *report, d *serviceBlock) {
	take := func(argument string, copyIt func()) {
		if !s.given[argument] && d.given[argument] {
			copyIt()
		}
	}
	take("vip", func() { s.VIP, s.VIPService, s.vipAt = d.VIP, d.VIPService, d.vipAt })
	take("pool", func() { s.Pool, s.poolAt = d.Pool, d.poolAt })
	take("port", func() { s.Port, s.portAt = d.Port, d.portAt })
	take("protocols", func() { s.Protocols = d.Protocols })
	take("node_port", func() { s.NodePort, s.nodePortAt = d.NodePort, d.nodePortAt })
	take("external", func() { s.External, s.externalAt = d.External, d.externalAt })
	take("dataplane", func() { s.Dataplane, s.dataplaneAt = d.Dataplane, d.dataplaneAt })
	take("balance", func() { s.Balance, s.balanceAt = d.Balance, d.balanceAt })
	take("affinity", func() { s.Affinity = d.Affinity })
	take("warning", func() { s.Warning = d.Warning })
	take("prefer", func() { s.Prefer = d.Prefer })
	take("allow", func() { s.Allow = d.Allow })
	take("masquerade", func() { s.Masquerade = d.Masquerade })
	take("on_empty", func() { s.OnEmpty = d.OnEmpty })
	take("on_drain_end", func() { s.OnDrainEnd = d.OnDrainEnd })
	take("drain", func() { s.Drain = d.Drain })
	take("options", func() { s.Options = d.Options })
	s.inheritCheck(r, d)
}

func (s *serviceBlock) inheritCheck(r *report, d *serviceBlock) {
	if s.check == nil {
		s.Check, s.checkAt = d.Check, d.checkAt
		return
	}
	check := s.check.Check
	if d.Check != nil {
		if !check.TCP && check.HTTP == "" {
			check.TCP, check.HTTP = d.Check.TCP, d.Check.HTTP
		}
		take := func(argument string, copyIt func()) {
			if !s.check.given[argument] {
				copyIt()
			}
		}
		take("interval", func() { check.Interval = d.Check.Interval })
		take("timeout", func() { check.Timeout = d.Check.Timeout })
		take("rise", func() { check.Rise = d.Check.Rise })
		take("fall", func() { check.Fall = d.Check.Fall })
	}
	if !check.TCP && check.HTTP == "" && !s.check.broken {
		r.errorf(s.checkAt, "No kind of check", `A check says how: tcp = true, or http = "/health".`)
	}
	s.Check = &check
}

// present lists the arguments that are there and not null.
func present(r reader, c content) map[string]bool {
	given := make(map[string]bool, len(c.attrs))
	for name, a := range c.attrs {
		if !isNull(r, a) {
			given[name] = true
		}
	}
	return given
}

// decode takes the arguments and the check of a service or defaults block.
func (s *serviceBlock) decode(r reader, c content) {
	s.given = present(r, c)
	s.vip(r, c.attrs["vip"])
	s.address(r, c)
	s.policy(r, c)
	s.traffic(r, c)
	if a := c.attrs["options"]; a != nil && s.given["options"] {
		s.Options = a.Expr
		r.masks.add(a.Expr.Range())
	}
	var first *hcl.Block
	for _, b := range c.blocks {
		switch {
		case b.Type != "check":
		case first != nil:
			r.errorf(&b.TypeRange, "Given twice", "A service has one check; another is at %s.", place(first.DefRange))
		default:
			first = b
			s.readCheck(r, b)
		}
	}
}

// isNull tells whether an argument is null. Objects and lists that are written
// out are not evaluated.
func isNull(r reader, a *hcl.Attribute) bool {
	if _, diags := hcl.ExprMap(a.Expr); !diags.HasErrors() {
		return false
	}
	if _, diags := hcl.ExprList(a.Expr); !diags.HasErrors() {
		return false
	}
	v, diags := a.Expr.Value(r.ctx)
	return !diags.HasErrors() && v.IsNull()
}

func (s *serviceBlock) vip(r reader, a *hcl.Attribute) {
	if !s.given["vip"] {
		return
	}
	if _, diags := hcl.ExprList(a.Expr); diags.HasErrors() {
		if v, diags := a.Expr.Value(r.ctx); !diags.HasErrors() && v.Type().Equals(serviceRefType) && v.IsKnown() && !v.IsNull() {
			v, _ := v.Unmark()
			s.VIPService, s.VIP, s.vipAt = v.EncapsulatedValue().(*serviceRef).name, nil, rangeP(a)
			return
		}
	}
	var families [3]*item
	vips := r.addresses(a, "A VIP", func(i item, addr netip.Addr) bool {
		if why := UnusableVIP(addr); why != "" {
			r.errorf(&i.at, "Unusable VIP", "%s %s; no client can connect to it.", r.bare(addr, "vip", &i.at), why)
			return false
		}
		f := dataplane.FamilyOf(addr)
		if other := families[f]; other != nil {
			r.errorf(&i.at, "Several VIPs of one family", "A service has one VIP per family; %s comes after %s.", r.bare(addr, "vip", &i.at), r.bare(other.text, "vip", &other.at))
			return false
		}
		families[f] = &i
		return true
	})
	s.VIP, s.vipAt = vips, rangeP(a)
}

func rangeP(a *hcl.Attribute) *hcl.Range { return a.Expr.Range().Ptr() }

// address takes the arguments that say where clients reach the service.
func (s *serviceBlock) address(r reader, c content) {
	if a := c.attrs["port"]; s.given["port"] {
		s.portAt = rangeP(a)
		r.setPort(&s.Port, a)
	}
	if a := c.attrs["node_port"]; s.given["node_port"] {
		s.nodePortAt = rangeP(a)
		r.setPort(&s.NodePort, a)
	}
	if a := c.attrs["pool"]; s.given["pool"] {
		s.poolAt = rangeP(a)
		r.setString(&s.Pool, a)
	}
	if a := c.attrs["dataplane"]; s.given["dataplane"] {
		s.dataplaneAt = rangeP(a)
		r.setString(&s.Dataplane, a)
	}
	if a := c.attrs["external"]; s.given["external"] {
		s.externalAt = rangeP(a)
		s.External = r.addresses(a, "An external address", func(i item, addr netip.Addr) bool {
			why := Unusable(addr)
			if why != "" {
				r.errorf(&i.at, "Bad address", "%s %s.", r.bare(addr, i.argument, &i.at), why)
			}
			return why == ""
		})
	}
	if a := c.attrs["protocols"]; s.given["protocols"] {
		s.protocols(r, a)
	}
}

var protocolWords = []string{"tcp", "udp", "sctp"}

func (s *serviceBlock) protocols(r reader, a *hcl.Attribute) {
	var protocols []dataplane.Protocol
	items := r.strings(a)
	for _, i := range items {
		var p dataplane.Protocol
		if p.UnmarshalText([]byte(i.text)) != nil {
			r.errorf(&i.at, "Unknown value", "A protocol is %s%s.%s", oneOf(protocolWords), r.not(i.text, &i.at), r.meant(i.text, &i.at, protocolWords))
		} else if !slices.Contains(protocols, p) {
			protocols = append(protocols, p)
		}
	}
	if exprs, diags := hcl.ExprList(a.Expr); !diags.HasErrors() && len(exprs) == 0 {
		r.errorf(rangeP(a), "Empty list", "A service has at least one protocol: %s.", oneOf(protocolWords))
	}
	if len(protocols) > 0 {
		s.Protocols = protocols
	}
}

var balancePattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// policy takes the arguments that say which endpoint a client gets.
func (s *serviceBlock) policy(r reader, c content) {
	if b, ok := r.string(c.attrs["balance"]); ok {
		if b != "" && !balancePattern.MatchString(b) {
			r.errorf(rangeP(c.attrs["balance"]), "Unknown value", "balance is a name such as \"round_robin\"%s.%s",
				r.not(b, rangeP(c.attrs["balance"])), r.meant(b, rangeP(c.attrs["balance"]), balanceMethods))
		} else {
			s.Balance, s.balanceAt = b, rangeP(c.attrs["balance"])
		}
	}
	s.affinity(r, c.attrs["affinity"])
	if w, ok := r.enum(c.attrs["warning"], "use", "weigh", "drop"); ok {
		s.Warning = w
	}
	if p, ok := r.enum(c.attrs["prefer"], "node", "zone", "none"); ok {
		s.Prefer = p
	}
	r.setDuration(&s.Drain, c.attrs["drain"], 0)
}

// affinity is off or lasts at least the second that dataplanes count in.
func (s *serviceBlock) affinity(r reader, a *hcl.Attribute) {
	var d time.Duration = -1
	r.setDuration(&d, a, 0)
	if d > 0 && d < time.Second {
		r.errorf(rangeP(a), "Duration out of range", `affinity must be at least 1s, or "0s" for none.`)
	} else if d >= 0 {
		s.Affinity = d
	}
}

// traffic takes the arguments that say what happens to packets.
func (s *serviceBlock) traffic(r reader, c content) {
	if a := c.attrs["allow"]; a != nil {
		s.Allow = r.prefixes(a, "An allowed source")
	}
	if v, ok := r.enum(c.attrs["masquerade"], "auto", "always", "never"); ok {
		_ = s.Masquerade.UnmarshalText([]byte(v))
	}
	if v, ok := r.enum(c.attrs["on_empty"], "reject", "drop"); ok {
		_ = s.OnEmpty.UnmarshalText([]byte(v))
	}
	if v, ok := r.enum(c.attrs["on_drain_end"], "keep", "reset"); ok {
		_ = s.OnDrainEnd.UnmarshalText([]byte(v))
	}
}

// maxWeight leaves room for the sum over 4,000 endpoints in 32 bits.
const maxWeight = 1_000_000

func (s *serviceBlock) endpoint(r reader, b *hcl.Block) {
	c := r.content(b.Body, endpointShape)
	e := Endpoint{Weight: 1, Range: b.DefRange}
	if n, ok := r.integer(c.attrs["weight"], 0, maxWeight, "Weight out of range"); ok {
		e.Weight = uint32(n)
	}
	r.setString(&e.Zone, c.attrs["zone"])
	a, before := c.attrs["address"], r.count()
	text, ok := r.string(a)
	if ok {
		var why string
		if e.Host, e.Port, why = hostPort(text); why != "" {
			r.errorf(rangeP(a), "Bad address", `address must be a host and a port such as "10.0.3.7:5432", "[fd00::7]:80" or "db.example:5432"%s%s.`, r.not(text, rangeP(a)), r.because(why, rangeP(a)))
		}
	} else if r.count() == before { // absent or null
		r.errorf(&c.end, "Missing argument", `An endpoint needs address, such as address = "10.0.3.7:5432".`)
	}
	// With a mistake too it is kept, so that the service still counts as static.
	s.Endpoints = append(s.Endpoints, e)
}

// hostPort takes the address of an endpoint apart, or says what is wrong.
func hostPort(s string) (host string, port uint16, why string) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		addr := ap.Addr().Unmap()
		switch {
		case ap.Port() == 0:
			return "", 0, "a port is a number from 1 to 65535"
		case addr.Zone() != "":
			return "", 0, "an endpoint's address has no zone"
		case Unusable(addr) != "":
			return "", 0, addr.String() + " " + Unusable(addr)
		}
		return addr.String(), ap.Port(), ""
	}
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		if addr, err := netip.ParseAddr(s); err == nil && addr.Is6() {
			return "", 0, "the port is missing, and an IPv6 address stands in brackets"
		}
		if strings.Contains(s, ":") {
			return "", 0, "an IPv6 address stands in brackets before the port"
		}
		return "", 0, "the port is missing"
	}
	n, err := strconv.ParseUint(text, 10, 64)
	switch {
	case err != nil || n == 0 || n > math.MaxUint16:
		return "", 0, "a port is a number from 1 to 65535"
	case host == "":
		return "", 0, "the host is missing"
	case !isHostName(host):
		return "", 0, "the host is neither an IP address nor a name"
	}
	return host, uint16(n), ""
}

func (s *serviceBlock) readCheck(r reader, b *hcl.Block) {
	c := r.content(b.Body, checkShape)
	check := &checkBlock{
		Check: Check{Interval: 5 * time.Second, Timeout: time.Second, Rise: 2, Fall: 3},
		given: present(r, c),
	}
	before := r.count()
	r.setBool(&check.TCP, c.attrs["tcp"])
	if path, ok := r.string(c.attrs["http"]); ok {
		check.HTTP = path
		if why := badPath(path); why != "" {
			r.errorf(rangeP(c.attrs["http"]), "Bad path", `http is the path that is asked for, such as "/health"%s%s.`, r.not(path, rangeP(c.attrs["http"])), r.because(why, rangeP(c.attrs["http"])))
		}
		if check.TCP {
			r.errorf(rangeP(c.attrs["http"]), "Two kinds of check", "A check has tcp or http, not both.")
		}
	}
	check.broken = r.count() > before
	r.setDuration(&check.Interval, c.attrs["interval"], minInterval)
	r.setDuration(&check.Timeout, c.attrs["timeout"], time.Millisecond)
	r.setInt(&check.Rise, c.attrs["rise"], 1, 100)
	r.setInt(&check.Fall, c.attrs["fall"], 1, 100)
	s.check, s.checkAt = check, b.DefRange.Ptr()
}

func badPath(path string) string {
	switch {
	case !strings.HasPrefix(path, "/"):
		return "it starts with a slash"
	case strings.IndexFunc(path, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '#' }) >= 0:
		return "it has no spaces, control characters or fragment"
	}
	return ""
}
