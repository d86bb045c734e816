package static

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/patchbay-proxy/patchbay/core/config"
)

// maxHeader is how much of an answer's status line and headers is read, in
// bytes.
const maxHeader = 64 << 10

// probe checks one endpoint once. The error says in few and stable words what
// is wrong; the same fault gives the same words.
func (s *Source) probe(ctx context.Context, check *config.Check, host string, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, check.Timeout)
	defer cancel()
	dialer := net.Dialer{KeepAlive: -1}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return explain(err, "no connection", check.Timeout)
	}
	defer conn.Close()
	// A reset in place of the usual end keeps thousands of checks from filling
	// the table of connections that wait for their end.
	_ = conn.(*net.TCPConn).SetLinger(0)
	if check.TCP {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	status, err := s.ask(conn, check.HTTP, net.JoinHostPort(host, strconv.Itoa(int(at.Port()))))
	switch {
	case err != nil && ctx.Err() != nil:
		// A line that the timeout has cut looks like a malformed one.
		return explain(ctx.Err(), "no answer", check.Timeout)
	case err != nil:
		return explain(err, "no answer", check.Timeout)
	case status < 200 || status > 399:
		return fmt.Errorf("status %d", status)
	}
	return nil
}

// ask sends a request and reads the answer's head; the body is left alone. No
// client of net/http: it would keep goroutines and connections for what a check
// never does.
func (s *Source) ask(conn net.Conn, path, host string) (status int, err error) {
	target, err := url.ParseRequestURI(path)
	if err != nil {
		return 0, errors.New("the path of the check is not one")
	}
	request := &http.Request{
		Method: http.MethodGet, URL: target, Host: host, Close: true,
		Header: http.Header{"User-Agent": {s.options.UserAgent}, "Accept": {"*/*"}},
	}
	if err := request.Write(conn); err != nil {
		return 0, err
	}
	limited := &io.LimitedReader{R: conn, N: maxHeader}
	reader := bufio.NewReader(limited)
	// Informational answers come before the one that counts.
	for range 10 {
		response, err := http.ReadResponse(reader, request)
		if err != nil && limited.N <= 0 {
			return 0, fmt.Errorf("its headers are longer than %d bytes", maxHeader)
		}
		if err != nil {
			return 0, err
		}
		if response.StatusCode < 100 || response.StatusCode > 199 || response.StatusCode == http.StatusSwitchingProtocols {
			return response.StatusCode, nil
		}
	}
	return 0, errors.New("only informational answers")
}

// explain puts a network error in words that don't change from one time to the
// next.
func explain(err error, what string, timeout time.Duration) error {
	var number syscall.Errno
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		return fmt.Errorf("%s within %s", what, timeout)
	case errors.As(err, &number):
		return errors.New(number.Error())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("closed without an answer")
	default:
		return fmt.Errorf("not an HTTP answer: %.80s", err)
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// health of a target by its checks.
type health struct {
	// Down is set after fall failures in a row, until rise successes.
	Down   bool   `json:"down,omitempty"`
	Reason string `json:"reason,omitempty"`
	// streak counts results in a row that speak against the state.
	streak int
	// known is set once it was checked, or was in the saved state.
	known bool
}

// result takes in what a check came to, and tells whether the state changed.
func (h *health) result(err error, rise, fall int) (changed bool) {
	// A first failure counts at once: nothing has spoken for the endpoint yet.
	if !h.known && err != nil {
		fall = 1
	}
	first := !h.known
	h.known = true
	if h.Down == (err != nil) {
		h.streak = 0
		// Another fault is news, a fault gone for the moment isn't.
		if err != nil && h.Reason != err.Error() {
			h.Reason = err.Error()
			return true
		}
		return first
	}
	h.streak++
	switch {
	case err != nil && h.streak >= max(fall, 1):
		h.Down, h.Reason, h.streak = true, err.Error(), 0
	case err == nil && h.streak >= max(rise, 1):
		h.Down, h.Reason, h.streak = false, "", 0
	default:
		return first
	}
	return true
}
