package notify

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"lockstep/jobs"
)

// Target is where messages go: a webhook or a service.
type Target struct {
	Name string
	// Exactly one of URL, that of a service in shoutrrr's notation, and Webhook. Both have ${...}.
	URL     string
	Webhook string
	// A file with the key that signs requests to the webhook; "": they are not signed.
	SecretFile string
	On         []jobs.Event
}

// Kind describes the target to people: webhook, or the name of its service.
func (t *Target) Kind() string {
	if t.Webhook != "" {
		return "webhook"
	}
	scheme, _, _ := strings.Cut(t.URL, "://")
	return scheme
}

// Address returns the address in a form that may be shown. A service's URL consists of secrets.
func (t *Target) Address() string {
	if t.Webhook != "" {
		return jobs.SafeURL(t.Webhook)
	}
	return t.Kind() + "://" + jobs.Hidden
}

// RequestLimit is how long one request may take.
const RequestLimit = 10 * time.Second

const replyMost = 4 << 10 // bytes of a reply that are read

// Reply is the reply of a target.
type Reply struct {
	Status int    // of HTTP; 0 for a service, which replied with a success
	Text   string // the beginning of the body, redacted
}

// requestError is why a request failed, without secrets.
type requestError struct {
	reason string
	after  time.Duration // the target asked to wait this long; 0: it did not
}

func (e *requestError) Error() string { return e.reason }

// Client sends to targets. It is safe for concurrent use.
type Client struct {
	expand     func(text string) (string, []jobs.Secret, error)
	readSecret func(path string) (string, error)

	http *http.Client
	// hanging has a place for each request of a service that may still run after its time.
	hanging chan struct{}

	mu       sync.Mutex
	services map[string]known // by target; guarded by mu
}

// hangingMost is how many requests to services may run, including those that ignore their limit.
const hangingMost = 32

// NewClient returns a client with its own connections. expand replaces every ${...} in a text, and
// returns the values; readSecret returns the text of a secret file.
func NewClient(expand func(string) (string, []jobs.Secret, error), readSecret func(string) (string, error)) *Client {
	transport := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: RequestLimit}).DialContext,
		TLSHandshakeTimeout:    RequestLimit,
		IdleConnTimeout:        30 * time.Second,
		MaxIdleConnsPerHost:    1,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	}
	return &Client{
		expand: expand, readSecret: readSecret, hanging: make(chan struct{}, hangingMost), services: make(map[string]known),
		http: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// send sends one request. now is the time of its signature. The error has no secret.
func (c *Client) send(ctx context.Context, t *Target, event *event, now time.Time) (*Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestLimit)
	defer cancel()
	address, secrets, err := c.expand(t.URL + t.Webhook)
	if err != nil {
		return nil, fmt.Errorf("its address: %w", err)
	}
	if t.Webhook == "" {
		return c.toService(ctx, t.Name, address, secrets, event.text())
	}
	return c.toWebhook(ctx, t, address, secrets, event.body(), now)
}

func (c *Client) toWebhook(ctx context.Context, t *Target, address string, secrets []jobs.Secret, body []byte, now time.Time) (*Reply, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(string(body)))
	if err != nil || request.URL.Host == "" || request.URL.Scheme != "http" && request.URL.Scheme != "https" {
		// no quote: it may be a part of a secret
		return nil, errors.New("its webhook is not a URL such as https://host/path once every ${...} in it is replaced")
	}
	request.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	request.Header.Set("User-Agent", "lockstep")
	if t.SecretFile != "" {
		key, err := c.readSecret(t.SecretFile)
		if err != nil {
			return nil, fmt.Errorf("secret_file %s: %w", t.SecretFile, err)
		}
		if key == "" {
			return nil, fmt.Errorf("secret_file %s is empty", t.SecretFile)
		}
		secrets = append(secrets, jobs.Secret{Reference: jobs.Hidden, Value: key})
		request.Header.Set(SignatureHeader, Sign([]byte(key), body, now))
	}
	redact := jobs.NewRedactor(secrets)
	response, err := c.http.Do(request)
	if err != nil {
		return nil, &requestError{reason: redact.Text(why(ctx, err))}
	}
	defer response.Body.Close()
	head, err := io.ReadAll(io.LimitReader(response.Body, replyMost))
	reply := &Reply{Status: response.StatusCode, Text: redact.Text(printable(head))}
	switch {
	case response.StatusCode >= 300 && response.StatusCode < 400:
		return reply, &requestError{reason: fmt.Sprintf("it replied with a redirect (status %d), which is not followed: write the address that it points to", reply.Status)}
	case response.StatusCode < 200 || response.StatusCode >= 300:
		reason := fmt.Sprintf("it replied with status %d", reply.Status)
		if line, _, _ := strings.Cut(reply.Text, "\n"); line != "" {
			reason += ": " + jobs.Cut(line, 200)
		}
		return reply, &requestError{reason, retryAfter(response)}
	case err != nil:
		return reply, &requestError{reason: redact.Text(why(ctx, err))}
	}
	return reply, nil
}

// why returns the reason of a failed request, without its address, which may have a secret.
func why(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return fmt.Sprintf("no reply within %s", RequestLimit)
	}
	if inner, ok := errors.AsType[*url.Error](err); ok {
		err = inner.Err
	}
	return err.Error()
}

// retryAfter returns the pause in seconds that a reply asks for, at most an hour.
func retryAfter(response *http.Response) time.Duration {
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(min(seconds, 3600))*time.Second, pauseMost)
}

// printable replaces what a terminal or a log should not print.
func printable(text []byte) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) && r != '\n' {
			return ' '
		}
		return r
	}, string(text))
}

// SignatureHeader is the header with the signature of a request.
const SignatureHeader = "Lockstep-Signature"

// Sign returns the signature of a body that is sent at a time.
func Sign(key, body []byte, now time.Time) string {
	at := strconv.FormatInt(now.Unix(), 10)
	return "t=" + at + ",v1=" + hex.EncodeToString(digest(key, at, body))
}

func digest(key []byte, at string, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(at + "."))
	mac.Write(body)
	return mac.Sum(nil)
}

// ErrSignature means that a request was not signed with this key, or too long ago.
var ErrSignature = errors.New("the signature is wrong")

// Verify checks the [SignatureHeader] of a request with this body. now is the receiver's time, and
// tolerance how far the time of the signature may be off; five minutes suit most.
func Verify(key, body []byte, signature string, now time.Time, tolerance time.Duration) error {
	at, mac, _ := strings.Cut(strings.TrimPrefix(signature, "t="), ",v1=")
	seconds, err := strconv.ParseInt(at, 10, 64)
	got, wrong := hex.DecodeString(mac)
	if err != nil || wrong != nil || subtle.ConstantTimeCompare(got, digest(key, at, body)) != 1 {
		return ErrSignature
	}
	if off := now.Sub(time.Unix(seconds, 0)).Abs(); off > tolerance {
		return fmt.Errorf("%w: it was made %s from now", ErrSignature, off.Round(time.Second))
	}
	return nil
}
