package httpjob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
)

// Options configure an [Executor].
type Options struct {
	// Transport sends the requests. nil means a new transport with its own connections, which uses
	// the proxy that the environment names. Only the context limits the time of a request, because
	// the duration of a job has no general limit.
	Transport http.RoundTripper

	// Output is how many bytes of a response body go to the run's output. 0 means half of what the
	// run keeps of it: see [jobs.Output].
	Output int64
}

// Executor sends the request of a job. It is safe for concurrent use. [Executor.Close] closes idle
// connections.
type Executor struct {
	client *http.Client
	output int64 // see Options.Output
}

// New returns an executor. It opens no connection. It returns an error if Output is negative.
func New(options Options) (*Executor, error) {
	if options.Output < 0 {
		return nil, fmt.Errorf("httpjob: Options.Output %d is negative", options.Output)
	}
	if options.Transport == nil {
		options.Transport = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ExpectContinueTimeout: time.Second,
			IdleConnTimeout:       90 * time.Second,
			MaxIdleConnsPerHost:   16, // jobs often call the same host
			ForceAttemptHTTP2:     true,
		}
	}
	return &Executor{
		client: &http.Client{
			Transport:     options.Transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		output: options.Output,
	}, nil
}

// Close closes the idle connections. Running attempts continue.
func (e *Executor) Close() { e.client.CloseIdleConnections() }

// Execute sends the request of attempt.Job.HTTP once and reads the response to its end. The package
// comment defines success. An error that must not be retried was made with jobs.Permanent, and an
// error with a Retry-After was made with jobs.RetryAfter. Once ctx has ended, its cause precedes
// any error.
func (e *Executor) Execute(ctx context.Context, attempt *jobs.Attempt) error {
	request, err := newRequest(ctx, attempt)
	if err != nil {
		return jobs.Permanent(err)
	}
	err = e.send(request, attempt)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// newRequest returns the request of an attempt. Its errors are permanent: the next attempt would
// fail the same way.
func newRequest(ctx context.Context, attempt *jobs.Attempt) (*http.Request, error) {
	job := attempt.Job.HTTP
	if job == nil {
		return nil, fmt.Errorf("job %s has no http request", attempt.Job.Name)
	}
	method := job.Method
	if method == "" {
		method = http.MethodPost
	}
	var body io.Reader
	if args := bytes.TrimSpace(attempt.Args); len(args) > 0 {
		body = bytes.NewReader(args)
	} else if method != http.MethodGet && method != http.MethodHead {
		body = strings.NewReader("{}")
	}
	request, err := http.NewRequestWithContext(ctx, method, job.URL, body)
	if _, bad := errors.AsType[*url.Error](err); bad {
		// Package net/url quotes the part that it does not accept. That may be part of a secret,
		// which a Redactor does not recognize.
		return nil, errors.New("http request: its url is not a URL once every ${...} in it is replaced (percent-encode a password: / is %2F)")
	}
	if err != nil {
		return nil, fmt.Errorf("http request: %w", err)
	}
	if scheme := request.URL.Scheme; scheme != "http" && scheme != "https" || request.URL.Host == "" {
		// no quote, as above
		return nil, errors.New("http request: once every ${...} in it is replaced, its url does not begin with http://host or https://host")
	}

	header := request.Header
	if body != nil {
		header.Set("Content-Type", "application/json")
	}
	header.Set("User-Agent", "lockstep")
	header.Set("Idempotency-Key", attempt.IdempotencyKey())
	header.Set("Lockstep-Token", attempt.Token.String())
	header.Set("Lockstep-Run-Id", string(attempt.Run))
	header.Set("Lockstep-Attempt", strconv.Itoa(attempt.Number))
	if attempt.TraceParent != "" {
		header.Set("traceparent", attempt.TraceParent)
	}
	if attempt.TraceState != "" {
		header.Set("tracestate", attempt.TraceState)
	}
	for name, value := range job.Headers {
		if strings.ContainsAny(value, "\r\n\x00") {
			return nil, fmt.Errorf("header %s: its value has a line break or a zero byte (does the file of a secret end with a line break?)", name)
		}
		if http.CanonicalHeaderKey(name) == "Host" {
			request.Host = value // net/http ignores a Host in Header
			continue
		}
		header.Set(name, value)
	}
	return request, nil
}

func (e *Executor) send(request *http.Request, attempt *jobs.Attempt) error {
	what := request.Method + " " + request.URL.Host
	response, err := e.client.Do(request)
	if err != nil {
		return fmt.Errorf("%s: %w", what, withoutURL(err))
	}
	defer response.Body.Close()
	if attempt.Note != nil {
		attempt.Note("http.response.status_code", response.StatusCode)
	}
	output := attempt.Output
	if output == nil {
		output = io.Discard
	}
	fmt.Fprintf(output, "%s %s\n", response.Proto, response.Status)
	readErr := copyBody(output, response.Body, e.keeps(attempt), attempt.Redactor)

	code := response.StatusCode
	if code >= 200 && code <= 299 {
		if readErr != nil {
			return fmt.Errorf("%s: %s, but its body was cut off: %w", what, response.Status, readErr)
		}
		return nil
	}
	err = fmt.Errorf("%s: %s", what, response.Status)
	switch {
	case code >= 500, slices.Contains([]int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests}, code):
		if delay, ok := retryAfter(response.Header, time.Now); ok {
			return jobs.RetryAfter(delay, err)
		}
		return err
	case code >= 300 && code <= 399:
		if location, locationErr := response.Location(); locationErr == nil {
			err = fmt.Errorf("%w: redirects are not followed; this one points to %s://%s", err, location.Scheme, location.Host)
		}
	}
	return jobs.Permanent(err)
}

// keeps returns how many bytes of a response body go to the output of an attempt.
func (e *Executor) keeps(attempt *jobs.Attempt) int64 {
	if e.output > 0 {
		return e.output
	}
	return int64(attempt.Job.Output.Size() / 2)
}

// copyBody reads a body to its end, and writes the first bytes of it to output, at most this many.
// It replaces secrets that the server echoes before it cuts the body, because half a secret would
// not be recognized.
func copyBody(output io.Writer, body io.Reader, most int64, redactor *jobs.Redactor) error {
	first := &head{to: output, left: most}
	redacted := redactor.Writer(first)
	_, err := io.Copy(redacted, body)
	_ = redacted.Close() // the text it held back is short, and the error of first is known
	rest := int64(0)
	if errors.Is(err, errFull) {
		rest, err = io.Copy(io.Discard, body)
	}
	if rest += first.omitted; rest > 0 {
		fmt.Fprintf(output, "\n[%d more bytes left out]\n", rest)
	}
	return err
}

// errFull says that a head has reached its limit.
var errFull = errors.New("enough")

// head passes on the first bytes that are written to it, and counts the rest.
type head struct {
	to            io.Writer
	left, omitted int64
}

func (h *head) Write(p []byte) (int, error) {
	n := min(h.left, int64(len(p)))
	h.left -= n
	h.omitted += int64(len(p)) - n
	if _, err := h.to.Write(p[:n]); err != nil {
		return 0, err
	}
	if h.omitted > 0 {
		return int(n), errFull
	}
	return len(p), nil
}

// maxRetryAfter limits the pause that a server may ask for: a wrong unit must not stop a job for
// years.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads the Retry-After header, which has seconds or a date. It compares a date with the
// response's own Date, because the server's clock may differ from ours, and with now only if there
// is no Date.
func retryAfter(header http.Header, now func() time.Time) (time.Duration, bool) {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(text, 10, 64); err == nil {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second, true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	from, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		from = now()
	}
	return min(max(at.Sub(from), 0), maxRetryAfter), true
}

// withoutURL removes the URL from an error of net/http.
func withoutURL(err error) error {
	if urlError, ok := errors.AsType[*url.Error](err); ok {
		return urlError.Err
	}
	return err
}
