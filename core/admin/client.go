package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"syscall"
	"time"
)

// Client speaks to an agent through its socket.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient makes a client for the agent at a socket. Close frees it.
func NewClient(socket string) *Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return &Client{socket: socket, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
		DisableCompression: true,
	}}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Watch makes a list wait until its index differs from Index, at most for
// Wait. The zero value doesn't wait.
type Watch struct {
	Index uint64
	Wait  time.Duration
}

func (w Watch) query() url.Values {
	if w.Wait == 0 {
		return nil
	}
	return url.Values{"index": {strconv.FormatUint(w.Index, 10)}, "wait": {w.Wait.String()}}
}

// Version of the agent.
func (c *Client) Version(ctx context.Context) (Version, error) {
	return get[Version](ctx, c, "/v1/version", nil)
}

// Status of the agent.
func (c *Client) Status(ctx context.Context, watch Watch) (Status, error) {
	return get[Status](ctx, c, "/v1/status", watch.query())
}

// Services lists all services.
func (c *Client) Services(ctx context.Context, watch Watch) (ServiceList, error) {
	return get[ServiceList](ctx, c, "/v1/services", watch.query())
}

// Service tells all of one service.
func (c *Client) Service(ctx context.Context, id string) (ServiceDetail, error) {
	return get[ServiceDetail](ctx, c, "/v1/services/"+url.PathEscape(id), nil)
}

// Endpoints lists the endpoints of one service, of all where id is empty.
func (c *Client) Endpoints(ctx context.Context, id string) (EndpointList, error) {
	path := "/v1/endpoints"
	if id != "" {
		path = "/v1/services/" + url.PathEscape(id) + "/endpoints"
	}
	return get[EndpointList](ctx, c, path, nil)
}

// Plugins lists the dataplanes' plugins.
func (c *Client) Plugins(ctx context.Context) (PluginList, error) {
	return get[PluginList](ctx, c, "/v1/plugins", nil)
}

// Explain tells what becomes of a connection to an address.
func (c *Client) Explain(ctx context.Context, address netip.AddrPort) (Explanation, error) {
	return get[Explanation](ctx, c, "/v1/explain", url.Values{"address": {address.String()}})
}

// Plan tells what a reload would change.
func (c *Client) Plan(ctx context.Context) (Plan, error) {
	return get[Plan](ctx, c, "/v1/plan", nil)
}

// ReloadAccepting loads the configuration anew, and makes the sources believe
// what they hold back because it takes too much away.
func (c *Client) ReloadAccepting(ctx context.Context) (Reload, error) {
	return do[Reload](ctx, c, http.MethodPost, "/v1/reload?accept_empty=true")
}

// Reload loads the configuration anew.
func (c *Client) Reload(ctx context.Context) (Reload, error) {
	return do[Reload](ctx, c, http.MethodPost, "/v1/reload")
}

// Leases lists the leases of VIPs.
func (c *Client) Leases(ctx context.Context) (LeaseList, error) {
	return get[LeaseList](ctx, c, "/v1/vip/leases", nil)
}

// ReleaseLease gives back the lease that a service holds.
func (c *Client) ReleaseLease(ctx context.Context, service string) (LeaseList, error) {
	return do[LeaseList](ctx, c, http.MethodDelete, "/v1/vip/leases/"+url.PathEscape(service))
}

// Health of the agent; an unhealthy one is no error.
func (c *Client) Health(ctx context.Context) (Health, error) {
	return get[Health](ctx, c, "/healthz", nil)
}

func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return do[T](ctx, c, http.MethodGet, path)
}

func do[T any](ctx context.Context, c *Client, method, path string) (T, error) {
	var body T
	if c.socket == "" {
		return body, &Error{
			Message: "no socket of an agent is known, because the home folder isn't",
			Hint:    "name the agent's socket with -socket or PATCHBAY_SOCKET",
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://patchbay"+path, nil)
	if err != nil {
		return body, err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return body, c.connectError(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return body, fmt.Errorf("reading the agent's answer: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		var told errorBody
		if json.Unmarshal(data, &told) == nil && told.Error != nil {
			told.Error.Status = answer.StatusCode
			return body, told.Error
		}
		if path != "/healthz" {
			return body, &Error{Status: answer.StatusCode, Message: "the agent answers " + answer.Status}
		}
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return body, fmt.Errorf("understanding the agent's answer: %w", err)
	}
	return body, nil
}

// connectError says which socket was tried, and what may be wrong.
func (c *Client) connectError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return &Error{
			Message: "no agent answers on " + c.socket,
			Hint:    "is it running? Start it with `patchbay agent`, or name its socket with -socket or PATCHBAY_SOCKET",
		}
	case errors.Is(err, fs.ErrPermission):
		return &Error{
			Message: "you may not use the agent's socket " + c.socket,
			Hint:    "run as root, or let your group in with agent { group = ... }",
		}
	}
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		err = urlErr.Err
	}
	return fmt.Errorf("asking the agent on %s: %w", c.socket, err)
}
