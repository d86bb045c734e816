package config

import (
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// reader turns the expressions of one file into Go values and reports what is
// wrong with them. Its methods give false when there is no usable value:
// because it is absent (nil, or null) or because it was reported.
type reader struct {
	*report
	ctx *hcl.EvalContext
}

func (r *report) reader(file string) reader { return reader{report: r, ctx: r.src.context(file)} }

// value of an expression, without marks.
func (r reader) value(expr hcl.Expression) (v cty.Value, ok bool) {
	v, diags := expr.Value(r.ctx)
	if diags.HasErrors() {
		r.evaluation(expr, diags)
		return v, false
	}
	if v, _ = v.UnmarkDeep(); !v.IsWhollyKnown() {
		// There are no variables, so this is the rest of a syntax error, which
		// has been reported.
		return cty.DynamicVal, false
	}
	return v, !v.IsNull()
}

// evaluation reports why an expression has no value. A bare word is most
// likely a string without its quotes.
func (r reader) evaluation(expr hcl.Expression, diags hcl.Diagnostics) {
	if word := hcl.ExprAsKeyword(expr); word != "" {
		r.errorf(expr.Range().Ptr(), "Missing quotes", "Text stands in quotes: \"%s\".", word)
		return
	}
	computed := r.src.computed(expr.Range().Ptr())
	for _, d := range diags {
		if computed && !functionArgument.MatchString(d.Detail) {
			d.Detail = hideQuotes(d.Detail)
		}
		if d.Summary == "Variables not allowed" {
			d.Detail = "There are no variables in a configuration. Text stands in quotes."
		}
		if d.Summary == "Call to unknown function" {
			d.Detail = "The functions are env, file and service." + calledName(d)
		}
	}
	for _, d := range diags {
		d.Detail = functionArgument.ReplaceAllString(d.Detail, "")
	}
	r.hcl(diags)
}

// functionArgument is what the library puts before a function's own words.
var functionArgument = regexp.MustCompile(`^Invalid value for "\w+" parameter: `)

// calledName suggests a function for the one that was called.
func calledName(d *hcl.Diagnostic) string {
	if call, ok := d.Expression.(*hclsyntax.FunctionCallExpr); ok {
		return didYouMean(call.Name, []string{"env", "file", "service"})
	}
	return ""
}

func (r reader) wrongType(at hcl.Range, name, want string, v cty.Value) {
	r.errorf(&at, "Wrong type", "%s must be %s, not %s.", name, want, typeName(v))
}

func (r reader) string(a *hcl.Attribute) (s string, ok bool) {
	if a == nil {
		return "", false
	}
	v, ok := r.value(a.Expr)
	if !ok {
		return "", false
	}
	if v.Type() != cty.String {
		r.wrongType(a.Expr.Range(), a.Name, "a string", v)
		return "", false
	}
	return v.AsString(), true
}

// setString sets a string that may be empty.
func (r reader) setString(into *string, a *hcl.Attribute) {
	if s, ok := r.string(a); ok {
		*into = s
	}
}

// setPath sets a path, taken from the folder of its file.
func (r reader) setPath(into *string, a *hcl.Attribute, dir string) bool {
	s, ok := r.string(a)
	if !ok {
		return false
	}
	if s == "" || strings.ContainsRune(s, 0) {
		r.errorf(a.Expr.Range().Ptr(), "Bad path", "%s must be the path of a file or folder.", a.Name)
		return false
	}
	*into = resolve(dir, s)
	return true
}

func (r reader) setBool(into *bool, a *hcl.Attribute) {
	if a == nil {
		return
	}
	v, ok := r.value(a.Expr)
	switch {
	case !ok:
	case v.Type() == cty.Bool:
		*into = v.True()
	case v.Type() == cty.String && (v.AsString() == "true" || v.AsString() == "false"):
		*into = v.AsString() == "true" // of env()
	case v.Type() == cty.String:
		r.errorf(a.Expr.Range().Ptr(), "Wrong type", "%s must be true or false%s.", a.Name, r.not(v.AsString(), rangeP(a)))
	default:
		r.wrongType(a.Expr.Range(), a.Name, "true or false", v)
	}
}

// integer gives a whole number between two limits, inclusive.
func (r reader) integer(a *hcl.Attribute, low, high int64, summary string) (int64, bool) {
	if a == nil {
		return 0, false
	}
	v, ok := r.value(a.Expr)
	if !ok {
		return 0, false
	}
	at := a.Expr.Range()
	var n int64
	var text string
	switch v.Type() {
	case cty.Number:
		f := v.AsBigFloat()
		text = r.not("", &at)
		if exact, small := number(f); !r.src.computed(&at) && small {
			text = ", not " + clip(exact.String(), 40)
		} else if !small {
			text = ", not a number of that size"
		}
		i, accuracy := f.Int64()
		n, ok = i, accuracy == big.Exact
	case cty.String: // of env()
		text = r.not(v.AsString(), &at)
		i, err := strconv.ParseInt(v.AsString(), 10, 64)
		n, ok = i, err == nil
	default:
		r.wrongType(at, a.Name, "a whole number", v)
		return 0, false
	}
	if !ok || n < low || n > high {
		r.errorf(&at, summary, "%s must be a whole number from %d to %d%s.", a.Name, low, high, text)
		return 0, false
	}
	return n, true
}

func (r reader) setPort(into *uint16, a *hcl.Attribute) {
	if n, ok := r.integer(a, 1, math.MaxUint16, "Port out of range"); ok {
		*into = uint16(n)
	}
}

func (r reader) setInt(into *int, a *hcl.Attribute, low, high int) {
	if n, ok := r.integer(a, int64(low), int64(high), "Number out of range"); ok {
		*into = int(n)
	}
}

// setDuration sets a time of at least low.
func (r reader) setDuration(into *time.Duration, a *hcl.Attribute, low time.Duration) {
	if a == nil {
		return
	}
	v, ok := r.value(a.Expr)
	if !ok {
		return
	}
	at := a.Expr.Range()
	if v.Type() != cty.String {
		r.errorf(&at, "Wrong type", `%s must be a duration in quotes, such as "30s" or "10m", not %s.`, a.Name, typeName(v))
		return
	}
	d, err := schema.ParseDuration(v.AsString())
	switch {
	case err != nil:
		r.errorf(&at, "Bad duration", `%s must be a duration such as "30s", "10m" or "1h30m"%s.`, a.Name, r.not(v.AsString(), &at))
	case d < low:
		r.errorf(&at, "Duration out of range", "%s must be at least %s.", a.Name, schema.FormatDuration(low))
	default:
		*into = d
	}
}

// enum gives one of the words.
func (r reader) enum(a *hcl.Attribute, words ...string) (string, bool) {
	s, ok := r.string(a)
	if !ok {
		return "", false
	}
	if slices.Contains(words, s) {
		return s, true
	}
	r.errorf(a.Expr.Range().Ptr(), "Unknown value", "%s must be %s%s.%s", a.Name, oneOf(words), r.not(s, rangeP(a)), r.meant(s, rangeP(a), words))
	return "", false
}

// item is one string of a list, with its place.
type item struct {
	text     string
	argument string
	at       hcl.Range
}

// strings gives a list of strings; one string counts as a list of one. Where
// some are no strings those are reported and the others given.
func (r reader) strings(a *hcl.Attribute) []item {
	if a == nil {
		return nil
	}
	exprs, diags := hcl.ExprList(a.Expr)
	if diags.HasErrors() {
		return r.stringsOf(a.Name, a.Expr)
	}
	var items []item
	for _, e := range exprs {
		v, ok := r.value(e)
		switch {
		case ok && v.Type() == cty.String:
			items = append(items, item{v.AsString(), a.Name, e.Range()})
		case ok || v.IsNull() && v.IsKnown():
			r.wrongType(e.Range(), "Each item of "+a.Name, "a string", v)
		}
	}
	return items
}

// stringsOf takes an expression that isn't written as a list.
func (r reader) stringsOf(name string, expr hcl.Expression) []item {
	v, ok := r.value(expr)
	if !ok {
		return nil
	}
	if v.Type() == cty.String {
		return []item{{v.AsString(), name, expr.Range()}}
	}
	if ty := v.Type(); !ty.IsTupleType() && !ty.IsListType() && !ty.IsSetType() {
		r.wrongType(expr.Range(), name, "a list of strings", v)
		return nil
	}
	var items []item
	for it := v.ElementIterator(); it.Next(); {
		_, e := it.Element()
		if e.IsNull() || e.Type() != cty.String {
			r.wrongType(expr.Range(), "Each item of "+name, "a string", e)
			continue
		}
		items = append(items, item{e.AsString(), name, expr.Range()})
	}
	return items
}

// address reads an IP address without a zone.
func (r reader) address(i item, what string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(i.text)
	switch {
	case err != nil:
		hint := ""
		if p, err := netip.ParsePrefix(i.text); err == nil {
			hint = fmt.Sprintf(" Without the length of its prefix: %q.", p.Addr())
		} else if ap, err := netip.ParseAddrPort(i.text); err == nil {
			hint = fmt.Sprintf(" Without the port: %q.", ap.Addr())
		}
		if r.src.computed(&i.at) {
			hint = ""
		}
		r.errorf(&i.at, "Bad address", "%s must be an IP address%s.%s", what, r.not(i.text, &i.at), hint)
		return a, false
	case a.Zone() != "":
		r.errorf(&i.at, "Bad address", "%s can't have a zone%s.", what, r.because(quoted(i.text), &i.at))
		return a, false
	}
	return a.Unmap(), true
}

// addresses reads a list of addresses, each once.
func (r reader) addresses(a *hcl.Attribute, what string, allowed func(item, netip.Addr) bool) []netip.Addr {
	var addrs []netip.Addr
	seen := map[netip.Addr]bool{}
	for _, i := range r.strings(a) {
		addr, ok := r.address(i, what)
		switch {
		case !ok:
		case seen[addr]:
			r.errorf(&i.at, "Duplicate address", "%s is listed twice.", r.bare(addr, i.argument, &i.at))
		case allowed(i, addr):
			seen[addr] = true
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// prefix reads a network in CIDR notation; bare tells that an address alone
// is a network of one.
func (r reader) prefix(i item, what string, bare bool) (netip.Prefix, bool) {
	if bare {
		if a, err := netip.ParseAddr(i.text); err == nil && a.Zone() == "" {
			return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), true
		}
	}
	p, err := netip.ParsePrefix(i.text)
	switch {
	case err != nil:
		r.errorf(&i.at, "Bad network", `%s must be a network such as "10.0.0.0/8" or "fd00::/64"%s.`, what, r.not(i.text, &i.at))
		return p, false
	case p.Addr().Is4In6():
		r.errorf(&i.at, "Bad network", "%s must be written as an IPv4 network.", what)
		return p, false
	case p != p.Masked():
		hint := fmt.Sprintf("Did you mean %q?", p.Masked())
		if r.src.computed(&i.at) {
			hint = ""
		}
		r.errorf(&i.at, "Bad network", "%s has bits set beyond its prefix. %s", what, hint)
		return p, false
	}
	return p, true
}

// prefixes reads a list of networks, each once.
func (r reader) prefixes(a *hcl.Attribute, what string) []netip.Prefix {
	var prefixes []netip.Prefix
	seen := map[netip.Prefix]bool{}
	for _, i := range r.strings(a) {
		if p, ok := r.prefix(i, what, true); ok && !seen[p] {
			seen[p] = true
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}

// balanceMethods of the contract; a dataplane may have others.
var balanceMethods = []string{
	dataplane.BalanceRoundRobin, dataplane.BalanceLeastConnections, dataplane.BalanceRandom,
	dataplane.BalanceSourceHash, dataplane.BalanceMaglev,
}

var (
	reservedV4 = netip.MustParsePrefix("240.0.0.0/4")
	zeroNet    = netip.MustParsePrefix("0.0.0.0/8")
)

// Unusable says why nothing can be reached at an address, such as "is the
// unspecified address"; empty for one that can be used. An IPv4 address is to be
// given as one, not mapped to IPv6.
func Unusable(a netip.Addr) string {
	switch {
	case a.Zone() != "":
		return "has a zone"
	case a.IsUnspecified():
		return "is the unspecified address"
	case a.IsMulticast():
		return "is a multicast address"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is the broadcast address"
	case reservedV4.Contains(a):
		return "is in the reserved range 240.0.0.0/4"
	case zeroNet.Contains(a):
		return "is in the reserved range 0.0.0.0/8"
	}
	return ""
}

// UnusableVIP says why an address can't be a service's VIP, as Unusable does.
func UnusableVIP(a netip.Addr) string {
	why := Unusable(a)
	if why == "" && a.Is6() && a.IsLinkLocalUnicast() {
		why = "is a link-local address"
	}
	return why
}

// host names as DNS has them, and the underscores that people use.
var hostPattern = regexp.MustCompile(`^([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?$`)

// isHostName tells a host name from a mistaken address: the last label of a
// name isn't a number.
func isHostName(s string) bool {
	if len(s) > 253 || !hostPattern.MatchString(s) {
		return false
	}
	labels := strings.Split(strings.TrimSuffix(s, "."), ".")
	return strings.Trim(labels[len(labels)-1], "0123456789") != ""
}
