package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"

	"lockstep/locks"
)

// Header carries a fencing token, in decimal. HTTP jobs of lockstep send it by themselves.
const Header = "Lockstep-Token"

// ErrMissing means that a request carries no token.
var ErrMissing = errors.New("request has no " + Header + " header")

// SetToken adds a token to a request.
func SetToken(r *http.Request, token locks.Token) { r.Header.Set(Header, token.String()) }

// RequestToken returns the token of a request, for a handler that passes it to another guard. The
// error is [ErrMissing], or [ErrInvalid] if the header is not a token or occurs several times.
func RequestToken(r *http.Request) (locks.Token, error) {
	values := r.Header.Values(Header)
	switch len(values) {
	case 0:
		return 0, ErrMissing
	case 1:
	default:
		return 0, fmt.Errorf("%w: %d %s headers", ErrInvalid, len(values), Header)
	}
	token, err := locks.ParseToken(values[0])
	if err != nil {
		return 0, fmt.Errorf("%w: %s header: %w", ErrInvalid, Header, err)
	}
	if token == 0 {
		return 0, fmt.Errorf("%w: %s header: the token is 0, which no hold has", ErrInvalid, Header)
	}
	return token, nil
}

// HTTPOptions are the settings of [HTTP].
type HTTPOptions struct {
	// AllowMissing lets requests without a token pass unchecked, while clients learn to send one.
	// By default they get status 428.
	AllowMissing bool

	// Logger reports failures of the store, for which the client gets a 503 without the reason.
	// Default: slog.Default.
	Logger *slog.Logger
}

// Handler is what [HTTP] returns.
type Handler struct {
	store     Store
	resources func(*http.Request) []string
	next      http.Handler
	o         HTTPOptions
	gate      gate
}

// HTTP guards a handler: next sees a request only if no higher token was seen for the resources
// that it touches. resources names them; a request for which it returns none passes unchecked.
// Return names for requests that read, too, so that a holder shuts out older ones before it decides
// by what it reads.
//
//	412  a higher token was seen, with the members resource, token and seen
//	428  no token (see [HTTPOptions.AllowMissing])
//	400  the token is not a positive decimal number below 2^53, or there are several; or a name of a
//	     resource is invalid
//	503  the store failed, or the request ended while it waited
//
// The replies are application/problem+json (RFC 9457). Tokens in them are strings.
//
// Requests with different tokens for one resource do not overlap in next: a newer one waits until
// next has returned from the older ones that were let in before it, as a transaction waits for a
// row. So for effects in this process alone, nothing else is needed. Handlers with effects in a
// database that several processes write to must read the token with [RequestToken] and check it
// there again: a request may be stopped between this check and its write.
func HTTP(store Store, resources func(*http.Request) []string, next http.Handler, o HTTPOptions) *Handler {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Handler{store: store, resources: resources, next: next, o: o}
}

// ServeHTTP checks the token of r, and passes r on or refuses it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resources := h.resources(r)
	if len(resources) == 0 {
		h.next.ServeHTTP(w, r)
		return
	}
	token, err := RequestToken(r)
	if errors.Is(err, ErrMissing) && h.o.AllowMissing {
		h.next.ServeHTTP(w, r)
		return
	}
	if err != nil {
		WriteError(w, err)
		return
	}
	// Enter before the check, so that a newer request, which is checked later, finds this one and
	// waits for it.
	pass := h.gate.enter(token, resources)
	defer h.gate.leave(pass)
	err = h.store.Check(r.Context(), token, resources...)
	if err == nil {
		err = h.gate.wait(r.Context(), pass)
	}
	if err != nil {
		// A client that has disconnected needs no log line.
		if status(err) == http.StatusServiceUnavailable && !errors.Is(r.Context().Err(), context.Canceled) {
			h.o.Logger.ErrorContext(r.Context(), "fencing token could not be checked", "token", token, "error", err)
		}
		WriteError(w, err)
		return
	}
	h.next.ServeHTTP(w, r)
}

// staleType distinguishes this package's 412 from one for If-Match. It is a URN, because no page
// describes it.
const staleType = "urn:lockstep:problem:stale-token"

// problem is a body of RFC 9457.
type problem struct {
	Type     string       `json:"type"`
	Title    string       `json:"title"`
	Status   int          `json:"status"`
	Detail   string       `json:"detail"`
	Resource string       `json:"resource,omitempty"` // this and the next two for staleType only
	Token    *locks.Token `json:"token,omitempty"`
	Seen     *locks.Token `json:"seen,omitempty"`
}

func status(err error) int {
	switch {
	case errors.Is(err, ErrStale):
		return http.StatusPreconditionFailed
	case errors.Is(err, ErrMissing):
		return http.StatusPreconditionRequired
	case errors.Is(err, ErrInvalid):
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

// WriteError replies with the error of a check, as [HTTP] does, for a handler that finds the token
// stale in its own transaction. For an error of another package the client gets only a 503.
func WriteError(w http.ResponseWriter, err error) {
	p := problem{Type: "about:blank", Status: status(err), Detail: err.Error()}
	p.Title = http.StatusText(p.Status)
	var stale *StaleError
	switch {
	case errors.As(err, &stale):
		p.Type, p.Title, p.Detail = staleType, "Stale fencing token", stale.Error()
		p.Resource, p.Token, p.Seen = stale.Resource, &stale.Token, &stale.Seen
	case p.Status == http.StatusServiceUnavailable:
		p.Detail = "the fencing token could not be checked"
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic("guard: a problem is plain data: " + err.Error())
	}
	w.Header().Set("Content-Type", problemType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // a client that has disconnected is not an error here
}

const (
	problemType = "application/problem+json"
	maxProblem  = 64 << 10 // bytes; replies of HTTP have a few hundred
)

// ResponseError returns a [*StaleError] if a response of [HTTP] reports one, and nil for any other
// response, whatever its status. It reads the body only of a 412 that is a problem, and never
// closes it.
func ResponseError(response *http.Response) error {
	if response.StatusCode != http.StatusPreconditionFailed {
		return nil
	}
	if media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || media != problemType {
		return nil
	}
	var p problem
	if err := json.NewDecoder(io.LimitReader(response.Body, maxProblem)).Decode(&p); err != nil {
		// Not from HTTP, which writes complete, small ones. The status still shows that it was
		// refused.
		return nil
	}
	if p.Type != staleType || p.Token == nil || p.Seen == nil {
		return nil
	}
	return &StaleError{p.Resource, *p.Token, *p.Seen}
}
