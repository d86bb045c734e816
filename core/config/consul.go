package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/patchbay-proxy/patchbay/core/config/selector"
)

// Consul is the source "consul" block. What it leaves empty is for the source
// to fill in from the environment, or by its defaults.
type Consul struct {
	// Address of the agent: host and port, or a URL with http, https or unix.
	Address    string
	Datacenter string
	// Token, or the file that holds it.
	Token, TokenFile string
	// CAFile, CertFile and KeyFile are for HTTPS; ServerName is what the
	// agent's certificate is for.
	CAFile, CertFile, KeyFile, ServerName string
	// Select and Exclude are selectors, as package selector reads them.
	Select, Exclude []string
	DefaultPort     uint16 // 0 for none
	// MaxBlocking is how many queries may wait at once over plain HTTP.
	MaxBlocking int
	// Hold is how long instances that vanish at once are kept.
	Hold  time.Duration
	Range hcl.Range
}

var (
	consulShape = newShape([]string{
		"address", "datacenter", "token", "token_file", "ca_file", "cert_file", "key_file", "server_name",
		"select", "exclude", "default_port", "max_blocking", "hold",
	})
	sourceTypes = []string{"consul"}
)

// decodeSource takes a source block.
func (l *loader) decodeSource(r reader, b *hcl.Block, dir string) {
	if kind := b.Labels[0]; kind != "consul" {
		l.report.errorf(&b.LabelRanges[0], "Unknown source", "There is no source %s: the one there is, is \"consul\".%s",
			quoted(kind), didYouMean(kind, sourceTypes))
		return
	}
	if !l.once("The source \"consul\" block", b.DefRange, b.TypeRange) {
		return
	}
	c := r.content(b.Body, consulShape)
	s := &Consul{Select: []string{"tag:patchbay"}, MaxBlocking: 100, Hold: 15 * time.Second, Range: b.DefRange}
	l.cfg.Consul = s
	if text, ok := r.string(c.attrs["address"]); ok {
		if strings.Contains(text, "@") {
			// A password may stand before it.
			r.masks.add(c.attrs["address"].Expr.Range())
		}
		if _, err := ParseConsulAddress(text, "http"); err != nil {
			r.errorf(rangeP(c.attrs["address"]), "Bad address", `address is that of Consul's agent, such as "127.0.0.1:8500", "https://consul.example:8501" or "unix:///run/consul.sock"%s%s.`,
				r.not(hideUser(text), rangeP(c.attrs["address"])), r.because(err.Error(), rangeP(c.attrs["address"])))
		}
		s.Address = text
	}
	r.setString(&s.Datacenter, c.attrs["datacenter"])
	s.secrets(r, c, dir)
	s.Select = s.selectors(r, c.attrs["select"], s.Select)
	s.Exclude = s.selectors(r, c.attrs["exclude"], nil)
	if a := c.attrs["select"]; a != nil && len(s.Select) == 0 && !isNull(r, a) && s.Select != nil {
		r.errorf(rangeP(a), "Empty list", `Without a selector no service is selected; name some, such as "tag:patchbay", or all: "name:*".`)
	}
	r.setPort(&s.DefaultPort, c.attrs["default_port"])
	r.setInt(&s.MaxBlocking, c.attrs["max_blocking"], 2, 100_000)
	r.setDuration(&s.Hold, c.attrs["hold"], minInterval)
}

// hideUser takes user and password out of a URL for a message.
func hideUser(text string) string {
	if at := strings.LastIndex(text, "@"); at >= 0 {
		return "..." + text[at:]
	}
	return text
}

// secrets takes the token and the files for HTTPS.
func (s *Consul) secrets(r reader, c content, dir string) {
	token := c.attrs["token"]
	if token != nil {
		r.masks.add(token.Expr.Range())
	}
	r.setString(&s.Token, token)
	if strings.ContainsFunc(s.Token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		r.errorf(rangeP(token), "Bad token", "A token has neither spaces nor letters beyond ASCII.")
		s.Token = ""
	}
	for _, f := range []struct {
		into *string
		name string
	}{{&s.TokenFile, "token_file"}, {&s.CAFile, "ca_file"}, {&s.CertFile, "cert_file"}, {&s.KeyFile, "key_file"}} {
		r.setPath(f.into, c.attrs[f.name], absolute(dir))
	}
	r.setString(&s.ServerName, c.attrs["server_name"])
	if s.Token != "" && s.TokenFile != "" {
		r.errorf(rangeP(c.attrs["token_file"]), "Two tokens", "Give token or token_file, not both.")
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		given, missing := "cert_file", "key_file"
		if s.CertFile == "" {
			given, missing = missing, given
		}
		r.errorf(rangeP(c.attrs[given]), "Missing argument", "A certificate and its key belong together: %s is missing.", missing)
	}
}

// selectors reads a list of them.
func (s *Consul) selectors(r reader, a *hcl.Attribute, or []string) []string {
	if a == nil || isNull(r, a) {
		return or
	}
	out := []string{}
	broken := false
	for _, i := range r.strings(a) {
		_, err := selector.Parse(i.text)
		var mistake *selector.Error
		if !errors.As(err, &mistake) {
			out = append(out, i.text)
			continue
		}
		broken = true
		suggestion := ""
		if mistake.Kind != "" {
			suggestion = r.meant(mistake.Kind, &i.at, selector.Kinds)
		}
		r.errorf(&i.at, "Bad selector", "%s can't be used%s.%s", r.shown(i.text, i.argument, &i.at), r.because(mistake.Reason, &i.at), suggestion)
	}
	if broken && len(out) == 0 {
		return nil
	}
	return out
}

// ConsulAddress is the address of a Consul agent in its parts.
type ConsulAddress struct {
	// Scheme is http or https, Host has a port, and Prefix is the path before
	// the API's, without a slash at its end.
	Scheme, Host, Prefix string
	// Socket is the path of a unix socket; empty for TCP.
	Socket string
}

// ParseConsulAddress reads an address as Consul's own programs do. The scheme
// is for addresses that have none; https makes http:// mean HTTPS too, as
// CONSUL_HTTP_SSL does.
func ParseConsulAddress(text, scheme string) (ConsulAddress, error) {
	a := ConsulAddress{Scheme: scheme}
	before, rest, found := strings.Cut(text, "://")
	switch {
	case !found:
		rest = text
	case before == "http":
	case before == "https":
		a.Scheme = before
	case before == "unix":
		if !path.IsAbs(rest) {
			return a, errors.New("the path of a unix socket is absolute, as in unix:///run/consul.sock")
		}
		a.Scheme, a.Host, a.Socket = "http", "localhost", filepath.Clean(rest)
		return a, nil
	default:
		return a, fmt.Errorf("%q is not known: it begins with http, https or unix", before+"://")
	}
	a.Host, a.Prefix, _ = strings.Cut(rest, "/")
	if a.Prefix = strings.TrimSuffix(a.Prefix, "/"); a.Prefix != "" {
		a.Prefix = "/" + a.Prefix
	}
	if strings.Contains(a.Host, "@") {
		return a, errors.New("it holds a user: user and password belong into the variable CONSUL_HTTP_AUTH")
	}
	u, err := url.Parse(a.Scheme + "://" + a.Host)
	switch {
	case err != nil || u.Host != a.Host:
		return a, errors.New("write host:port or a URL")
	case u.Hostname() == "":
		return a, errors.New("the host is missing")
	case u.Port() == "" && strings.HasSuffix(a.Host, ":"):
		return a, errors.New("the port is missing")
	case u.Port() == "":
		port := "8500"
		if found {
			port = map[string]string{"http": "80", "https": "443"}[a.Scheme]
		}
		a.Host = net.JoinHostPort(u.Hostname(), port)
	default:
		if n, err := strconv.ParseUint(u.Port(), 10, 64); err != nil || n == 0 || n > math.MaxUint16 {
			return a, errors.New("a port is a number from 1 to 65535")
		}
	}
	return a, nil
}

// String gives it as a URL.
func (a ConsulAddress) String() string {
	if a.Socket != "" {
		return "unix://" + a.Socket
	}
	return a.Scheme + "://" + a.Host + a.Prefix
}

// Local tells whether the agent is certainly on this host.
func (a ConsulAddress) Local() bool {
	host, _, _ := net.SplitHostPort(a.Host)
	ip := net.ParseIP(host)
	return a.Socket != "" || host == "localhost" || ip != nil && ip.IsLoopback()
}
