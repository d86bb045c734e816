package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	patchbay "github.com/patchbay-proxy/patchbay/core/config"
)

// client asks one Consul agent. The library makes the requests; the transport
// below it bounds replies, carries the token that counts at the moment, and
// notes what the library leaves out.
type client struct {
	api       *api.Client
	transport *transport
	// where is the address, as it is shown.
	where string
	// local is set where the agent is on this host.
	local bool
	// datacenter that is asked; empty for the agent's own.
	datacenter string
}

// newClient makes a client from the settings and, for what they leave out, the
// variables CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN and so on.
func newClient(settings *Settings, maxBody int64, log hclog.Logger) (*client, error) {
	config := api.DefaultConfigWithLogger(log)
	if settings.Address != "" {
		config.Address = settings.Address
	}
	at, err := patchbay.ParseConsulAddress(config.Address, config.Scheme)
	if err != nil {
		return nil, fmt.Errorf("the address of Consul can't be used: %w", err)
	}
	t := &transport{maxBody: maxBody, socket: at.Socket, tls: settings.TLS, tlsConfig: config.TLSConfig}
	t.secret = secretSource{token: settings.Token, file: settings.TokenFile}
	if t.secret.token == "" && t.secret.file == "" {
		t.secret = secretSource{token: config.Token, file: config.TokenFile}
	}
	if err := t.refresh(); err != nil {
		return nil, err
	}
	// The library's own idea of address, token and TLS is replaced by ours.
	config.Scheme, config.Address, config.PathPrefix = at.Scheme, at.Host, at.Prefix
	config.Token, config.TokenFile = "", ""
	config.TLSConfig = api.TLSConfig{}
	config.HttpClient = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	made, err := api.NewClient(config)
	if err != nil {
		return nil, errors.New(t.hide(err.Error()))
	}
	return &client{api: made, transport: t, where: at.String(), local: at.Local(), datacenter: settings.Datacenter}, nil
}

// question is how to ask.
type question struct {
	// index to wait beyond; 0 to be answered at once.
	index uint64
	// wait is how long Consul may hold the question back.
	wait time.Duration
	// cached allows an answer from the agent's cache.
	cached bool
	// consistent wants one that the servers have agreed on.
	consistent bool
}

// reply is what came with an answer.
type reply struct {
	index uint64
	// filtered is set where ACLs have kept something back.
	filtered bool
	// direct is set for an answer that neither waited nor came from a cache.
	direct bool
	// age of an answer from a cache that is cut off from the servers.
	age   time.Duration
	http2 bool
}

// services asks for the listing: the names of all services, with their tags.
func (c *client) services(ctx context.Context, q question) (map[string][]string, reply, error) {
	body, r, err := c.get(ctx, "/v1/catalog/services", q)
	if err != nil {
		return nil, r, err
	}
	listing, err := readListing(body)
	return listing, r, err
}

// service asks for the instances of one service.
func (c *client) service(ctx context.Context, name string, q question, choose selection) (*reading, reply, error) {
	body, r, err := c.get(ctx, "/v1/health/service/"+name, q)
	if err != nil {
		return nil, r, err
	}
	instances, err := readService(name, body, choose)
	return instances, r, err
}

// nodeName asks the agent for the name of its node.
func (c *client) nodeName(ctx context.Context) (string, error) {
	body, _, err := c.get(ctx, "/v1/agent/self", question{})
	var missing *noIndexError
	if err != nil && !errors.As(err, &missing) {
		return "", err
	}
	var self struct{ Config struct{ NodeName string } }
	if err := json.Unmarshal(body, &self); err != nil {
		return "", fmt.Errorf("the agent's word on itself is not as expected: %w", err)
	}
	return self.Config.NodeName, nil
}

// get asks, and gives the body of an answer that is Consul's: JSON, with an
// index.
func (c *client) get(ctx context.Context, path string, q question) (json.RawMessage, reply, error) {
	options := &api.QueryOptions{
		Datacenter: c.datacenter, UseCache: q.cached, RequireConsistent: q.consistent,
		WaitIndex: q.index, WaitTime: q.wait,
	}
	seen := &answer{}
	var body json.RawMessage
	_, err := c.api.Raw().Query(path, &body, options.WithContext(context.WithValue(ctx, answerKey{}, seen)))
	if err != nil {
		return nil, reply{}, c.explain(ctx, err, seen)
	}
	if seen.body.text() != int64(len(bytes.TrimSpace(body))) {
		return nil, reply{}, &unreadableError{fmt.Errorf("the answer of Consul at %s has more than one piece of JSON", c.where)}
	}
	r := reply{
		filtered: seen.header.Get("X-Consul-Results-Filtered-By-ACLs") == "true",
		direct:   q.index == 0 && !q.cached,
		http2:    seen.http2,
	}
	if seconds, err := strconv.ParseUint(seen.header.Get("Age"), 10, 31); err == nil && q.cached {
		r.age = time.Duration(seconds) * time.Second
	}
	r.index, err = strconv.ParseUint(seen.header.Get("X-Consul-Index"), 10, 64)
	if err != nil || r.index == 0 {
		return body, r, &noIndexError{c.where}
	}
	return body, r, nil
}

// noIndexError means that what answers is probably no Consul.
type noIndexError struct{ where string }

func (e *noIndexError) Error() string {
	return fmt.Sprintf("the answer of %s has no X-Consul-Index: it is not Consul's", e.where)
}

// refusedError is an answer with a status other than 200.
type refusedError struct {
	status int
	// after which to ask again, if the answer says so.
	after time.Duration
	text  string
}

func (e *refusedError) Error() string { return e.text }

// concernsAll tells whether an error is likely the same for every question, so
// that there is no use in asking others.
func concernsAll(err error) bool {
	var refused *refusedError
	if errors.As(err, &refused) {
		return refused.status >= 500 || refused.status == http.StatusTooManyRequests || refused.status == http.StatusUnauthorized
	}
	var unreadable *unreadableError
	return !errors.As(err, &unreadable)
}

// unreadableError is an answer that can't be read.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string { return e.err.Error() }
func (e *unreadableError) Unwrap() error { return e.err }

// explain says for people what went wrong. The token is never in it.
func (c *client) explain(ctx context.Context, err error, seen *answer) error {
	var status api.StatusError
	if errors.As(err, &status) {
		text := fmt.Sprintf("Consul at %s answers %d", c.where, status.Code)
		switch status.Code {
		case http.StatusForbidden:
			text = fmt.Sprintf("Consul at %s refuses the token (403)", c.where)
		case http.StatusTooManyRequests:
			text = fmt.Sprintf("Consul at %s has too many requests of this host (429)", c.where)
		}
		if body := printable(status.Body, 200); body != "" && !strings.HasPrefix(body, "<") {
			text += ": " + body
		}
		e := &refusedError{status: status.Code, text: c.transport.hide(text)}
		if seconds, err := strconv.ParseUint(seen.header.Get("Retry-After"), 10, 31); err == nil {
			e.after = time.Duration(seconds) * time.Second
		}
		return e
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	var syntax *json.SyntaxError
	answered := seen.header != nil
	switch {
	case answered && strings.HasPrefix(seen.header.Get("Content-Type"), "text/html"):
		return &unreadableError{fmt.Errorf("%s answers with a web page: it is not Consul's API", c.where)}
	case errors.As(err, &syntax), answered && errors.Is(err, io.ErrUnexpectedEOF), answered && errors.Is(err, io.EOF):
		return &unreadableError{fmt.Errorf("the answer of Consul at %s is cut or is not JSON: %w", c.where, err)}
	case errors.Is(err, errTooLarge):
		return &unreadableError{fmt.Errorf("the answer of Consul at %s has more than %d MiB", c.where, c.transport.maxBody>>20)}
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("Consul at %s does not answer in time", c.where)
	}
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return fmt.Errorf("Consul at %s can't be asked: %s", c.where, c.transport.hide(printable(err.Error(), 300)))
}

// printable makes text from outside fit for a log.
func printable(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..."
	}
	return strings.TrimSpace(text)
}

// answer is what the transport notes of one.
type answer struct {
	header http.Header
	http2  bool
	// body of an answer with status 200.
	body *boundedBody
}

type answerKey struct{}

var errTooLarge = errors.New("the answer is too large")

// transport carries requests to the agent.
type transport struct {
	maxBody   int64
	socket    string
	tls       TLS
	tlsConfig api.TLSConfig
	secret    secretSource

	inner atomic.Pointer[http.Transport]

	mu    sync.Mutex
	token string
	// stamps of the files, as they were read.
	stamps map[string]stamp
}

// secretSource is where the token comes from; the file goes first.
type secretSource struct{ token, file string }

// stamp tells whether a file has changed.
type stamp struct {
	modified time.Time
	size     int64
	inode    uint64
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	t.mu.Lock()
	token := t.token
	t.mu.Unlock()
	request = request.Clone(request.Context())
	request.Header.Del("X-Consul-Token")
	if token != "" {
		request.Header.Set("X-Consul-Token", token)
	}
	request.Header.Set("User-Agent", "patchbay")
	response, err := t.inner.Load().RoundTrip(request)
	if err != nil {
		return nil, err
	}
	seen, ok := request.Context().Value(answerKey{}).(*answer)
	if ok {
		seen.header, seen.http2 = response.Header.Clone(), response.ProtoMajor >= 2
	}
	limit := t.maxBody
	if response.StatusCode != http.StatusOK {
		// An error's text is read whole by the library.
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, 4096), response.Body}
		return response, nil
	}
	body := &boundedBody{ReadCloser: response.Body, left: limit}
	if response.Body = body; ok {
		seen.body = body
	}
	return response, nil
}

// boundedBody fails when more than it may hold is read. The library reads the
// first JSON of it, and then to its end without a look: it counts what there was.
type boundedBody struct {
	io.ReadCloser
	left int64
	// read so far, and where the text begins and ends, space around it aside;
	// end is 0 while there is none.
	read, begin, end int64
}

// jsonSpace is what may stand around JSON.
const jsonSpace = " \t\r\n"

// text gives the length of the body without the space around it, in bytes.
func (b *boundedBody) text() int64 { return b.end - b.begin }

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if text := bytes.TrimRight(p[:n], jsonSpace); len(text) > 0 {
		if b.end == 0 {
			b.begin = b.read + int64(len(text)-len(bytes.TrimLeft(text, jsonSpace)))
		}
		b.end = b.read + int64(len(text))
	}
	b.read += int64(n)
	return n, err
}

// refresh reads the token and the certificates. What can't be read leaves in
// force what was read before.
func (t *transport) refresh() error {
	stamps := t.look()
	token := t.secret.token
	if t.secret.file != "" {
		data, err := os.ReadFile(t.secret.file)
		if err != nil {
			return fmt.Errorf("reading Consul's token: %w", err)
		}
		token = strings.TrimSpace(string(data))
		if token == "" {
			// Who writes the file anew has emptied it before. To ask without a
			// token would be to believe what anybody may see.
			return fmt.Errorf("reading Consul's token: %s is empty", t.secret.file)
		}
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("reading Consul's token: %s does not hold one", t.secret.file)
		}
	}
	inner, err := t.build()
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.token, t.stamps = token, stamps
	t.mu.Unlock()
	if old := t.inner.Swap(inner); old != nil {
		old.CloseIdleConnections()
	}
	return nil
}

func (t *transport) build() (*http.Transport, error) {
	config := t.tlsConfig
	if t.tls.CAFile != "" {
		config.CAFile, config.CAPath = t.tls.CAFile, ""
	}
	if t.tls.CertFile != "" || t.tls.KeyFile != "" {
		config.CertFile, config.KeyFile = t.tls.CertFile, t.tls.KeyFile
	}
	if t.tls.ServerName != "" {
		config.Address = t.tls.ServerName
	}
	tlsConfig, err := api.SetupTLSConfig(&config)
	if err != nil {
		return nil, fmt.Errorf("reading the certificates for Consul: %w", err)
	}
	dialer := &net.Dialer{
		Timeout: 5 * time.Second,
		// A question may wait for minutes: a host that is gone is to be
		// noticed before.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	dial := dialer.DialContext
	if t.socket != "" {
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", t.socket)
		}
	}
	return &http.Transport{
		DialContext:         dial,
		Proxy:               proxyFor(t.socket),
		TLSClientConfig:     tlsConfig,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 5 * time.Second,
		IdleConnTimeout:     90 * time.Second,
		MaxIdleConns:        256, MaxIdleConnsPerHost: 256,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}, nil
}

func proxyFor(socket string) func(*http.Request) (*url.URL, error) {
	if socket != "" {
		return nil
	}
	return http.ProxyFromEnvironment
}

// files that are read again when they change.
func (t *transport) files() []string {
	var out []string
	for _, file := range []string{t.secret.file, t.tls.CAFile, t.tls.CertFile, t.tls.KeyFile, t.tlsConfig.CAFile, t.tlsConfig.CertFile, t.tlsConfig.KeyFile} {
		if file != "" {
			out = append(out, file)
		}
	}
	return out
}

func (t *transport) look() map[string]stamp {
	out := map[string]stamp{}
	for _, file := range t.files() {
		if info, err := os.Stat(file); err == nil {
			out[file] = stamp{info.ModTime(), info.Size(), inode(info)}
		}
	}
	return out
}

// changed tells whether a file is other than when it was read. One that is
// missing now is not: it may be on its way.
func (t *transport) changed() bool {
	now := t.look()
	t.mu.Lock()
	defer t.mu.Unlock()
	for file, s := range now {
		if s != t.stamps[file] {
			return true
		}
	}
	return false
}

// hide takes the token out of a text.
func (t *transport) hide(text string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token == "" {
		return text
	}
	return strings.ReplaceAll(text, t.token, "(token)")
}

// close ends the connections that are not in use.
func (t *transport) close() {
	if inner := t.inner.Load(); inner != nil {
		inner.CloseIdleConnections()
	}
}
