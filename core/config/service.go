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
	"github.com/zclconf/go-cty/cty"

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

// serviceBlock is a service while the files are read: where its arguments
// stand, for the checks that compare services. A place may be in the defaults
// block.
type serviceBlock struct {
	*Service
	vipAt, portAt, nodePortAt, externalAt, dataplaneAt, poolAt, checkAt *hcl.Range
	// ownCheck is set when the check stands in the service's own block.
	ownCheck bool
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

// copy for one service. Slices are replaced, never written to, so sharing them
// is safe.
func (s *serviceBlock) copy() *serviceBlock {
	service, block := *s.Service, *s
	block.Service, block.ownCheck = &service, false
	return &block
}

func (l *loader) decodeService(r reader, b *hcl.Block, template *serviceBlock, seen map[string]hcl.Range) {
	l.report.within = header(b)
	defer func() { l.report.within = "" }()
	c := r.content(b.Body, serviceShape)
	s := template.copy()
	s.Range = b.DefRange
	s.decode(r, c)
	for _, e := range c.blocks {
		if e.Type == "endpoint" {
			s.endpoint(r, e)
		}
	}
	s.Name = b.Labels[0]
	at := b.LabelRanges[0]
	if !serviceName.MatchString(s.Name) {
		r.errorf(&at, "Bad name", "The name of a service has 1 to 253 letters, digits, dots, underscores and hyphens; %s doesn't fit.", shown(s.Name, false))
		return
	}
	if first, twice := seen[s.Name]; twice {
		r.errorf(&at, "Duplicate service", "service %q is already declared at %s.", s.Name, place(first))
		return
	}
	seen[s.Name] = b.DefRange
	l.cfg.Services = append(l.cfg.Services, s.Service)
	l.services = append(l.services, s)
}

// decode takes the arguments and the check of a service or defaults block.
func (s *serviceBlock) decode(r reader, c content) {
	s.vip(r, c.attrs["vip"])
	s.address(r, c)
	s.policy(r, c)
	s.traffic(r, c)
	if a := c.attrs["options"]; a != nil && !isNull(r, a) {
		s.Options = a.Expr
		r.masks.add(a.Expr.Range())
	}
	var check *hcl.Block
	for _, b := range c.blocks {
		if b.Type != "check" {
			continue
		}
		if check != nil {
			r.errorf(&b.TypeRange, "Given twice", "A service has one check; another is at %s.", place(check.DefRange))
			continue
		}
		check = b
		s.check(r, b)
	}
}

// isNull tells whether an options argument is the word null, without
// evaluating anything else.
func isNull(r reader, a *hcl.Attribute) bool {
	if _, diags := hcl.ExprMap(a.Expr); !diags.HasErrors() {
		return false
	}
	v, diags := a.Expr.Value(r.ctx)
	return !diags.HasErrors() && v.IsNull()
}

func (s *serviceBlock) vip(r reader, a *hcl.Attribute) {
	if a == nil {
		return
	}
	if _, diags := hcl.ExprList(a.Expr); diags.HasErrors() {
		if v, diags := a.Expr.Value(r.ctx); !diags.HasErrors() && v.Type().Equals(serviceRefType) && v.IsKnown() && !v.IsNull() {
			v, _ := v.Unmark()
			s.VIPService, s.VIP, s.vipAt = v.EncapsulatedValue().(*serviceRef).name, nil, rangeP(a)
			return
		}
	}
	var families [3]netip.Addr
	vips := r.addresses(a, "A VIP", func(i item, addr netip.Addr) bool {
		why := unusable(addr)
		if addr.Is6() && addr.IsLinkLocalUnicast() {
			why = "is a link-local address"
		}
		if why != "" {
			r.errorf(&i.at, "Unusable VIP", "%s %s; no client can connect to it.", addr, why)
			return false
		}
		f := dataplane.FamilyOf(addr)
		if other := families[f]; other.IsValid() {
			r.errorf(&i.at, "Several VIPs of one family", "A service has one VIP per family; %s comes after %s.", addr, other)
			return false
		}
		families[f] = addr
		return true
	})
	if len(vips) > 0 || !isNullLiteral(r, a) {
		s.VIP, s.VIPService, s.vipAt = vips, "", rangeP(a)
	}
}

func rangeP(a *hcl.Attribute) *hcl.Range { return a.Expr.Range().Ptr() }

// address takes the arguments that say where clients reach the service.
func (s *serviceBlock) address(r reader, c content) {
	if a := c.attrs["port"]; a != nil {
		s.portAt = rangeP(a)
		r.setPort(&s.Port, a)
	}
	if a := c.attrs["node_port"]; a != nil {
		s.nodePortAt = rangeP(a)
		r.setPort(&s.NodePort, a)
	}
	if a := c.attrs["pool"]; a != nil {
		s.poolAt = rangeP(a)
		r.setString(&s.Pool, a)
	}
	if a := c.attrs["dataplane"]; a != nil {
		s.dataplaneAt = rangeP(a)
		r.setString(&s.Dataplane, a)
	}
	if a := c.attrs["external"]; a != nil {
		s.externalAt = rangeP(a)
		s.External = r.addresses(a, "An external address", func(i item, addr netip.Addr) bool {
			why := unusable(addr)
			if why != "" {
				r.errorf(&i.at, "Bad address", "%s %s.", addr, why)
			}
			return why == ""
		})
	}
	if a := c.attrs["protocols"]; a != nil {
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
			r.errorf(&i.at, "Unknown value", "A protocol is %s, not %s.%s", oneOf(protocolWords), shown(i.text, i.outside), didYouMean(i.text, protocolWords))
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
	if b, outside, ok := r.string(c.attrs["balance"]); ok {
		if b != "" && !balancePattern.MatchString(b) {
			r.errorf(rangeP(c.attrs["balance"]), "Unknown value", "balance is a name such as \"round_robin\", not %s.%s",
				shown(b, outside), didYouMean(b, balanceMethods))
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
	a := c.attrs["address"]
	if a == nil || isNullLiteral(r, a) {
		r.errorf(&c.end, "Missing argument", `An endpoint needs address, such as address = "10.0.3.7:5432".`)
	} else if text, outside, ok := r.string(a); ok {
		var why string
		if e.Host, e.Port, why = hostPort(text); why != "" {
			r.errorf(rangeP(a), "Bad address", `address must be a host and a port such as "10.0.3.7:5432", "[fd00::7]:80" or "db.example:5432", not %s: %s.`, shown(text, outside), why)
		}
	}
	// With a mistake too it is kept, so that the service still counts as static.
	s.Endpoints = append(s.Endpoints, e)
}

func isNullLiteral(r reader, a *hcl.Attribute) bool {
	v, diags := a.Expr.Value(r.ctx)
	return !diags.HasErrors() && v.RawEquals(cty.NullVal(cty.DynamicPseudoType))
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
		case unusable(addr) != "":
			return "", 0, addr.String() + " " + unusable(addr)
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

func (s *serviceBlock) check(r reader, b *hcl.Block) {
	check := Check{Interval: 5 * time.Second, Timeout: time.Second, Rise: 2, Fall: 3}
	c := r.content(b.Body, checkShape)
	var tcp bool
	before := len(r.found)
	r.setBool(&tcp, c.attrs["tcp"])
	path, outside, hasPath := r.string(c.attrs["http"])
	if inherited := s.Check; inherited != nil {
		check = *inherited
		if tcp || hasPath {
			check.TCP, check.HTTP = false, ""
		}
	}
	if tcp {
		check.TCP = true
	}
	if hasPath {
		if why := badPath(path); why != "" {
			r.errorf(rangeP(c.attrs["http"]), "Bad path", `http is the path that is asked for, such as "/health", not %s: %s.`, shown(path, outside), why)
		}
		check.HTTP = path
	}
	switch at := b.DefRange; {
	case check.TCP && hasPath:
		r.errorf(rangeP(c.attrs["http"]), "Two kinds of check", "A check has tcp or http, not both.")
	case !check.TCP && check.HTTP == "" && !hasPath && len(r.found) == before:
		r.errorf(&at, "No kind of check", `A check says how: tcp = true, or http = "/health".`)
	}
	r.setDuration(&check.Interval, c.attrs["interval"], minInterval)
	r.setDuration(&check.Timeout, c.attrs["timeout"], time.Millisecond)
	r.setInt(&check.Rise, c.attrs["rise"], 1, 100)
	r.setInt(&check.Fall, c.attrs["fall"], 1, 100)
	s.Check, s.checkAt, s.ownCheck = &check, b.DefRange.Ptr(), true
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
