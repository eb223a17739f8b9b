package guard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/locks"
	"lockstep/locks/guard"
)

// byQuery returns the names in a request's URL.
func byQuery(r *http.Request) []string { return r.URL.Query()["bill"] }

var noContent = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

// send passes a request to a handler and returns its reply. tokens are the values of the token
// headers.
func send(ctx context.Context, h http.Handler, url string, tokens ...string) *http.Response {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	r.Header[http.CanonicalHeaderKey(guard.Header)] = tokens
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func wantProblem(t testing.TB, response *http.Response, want map[string]any) {
	t.Helper()
	body, err := io.ReadAll(response.Body)
	noError(t, err)
	var got map[string]any
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatalf("body %q: %v", body, err)
	}
	if media := response.Header.Get("Content-Type"); media != "application/problem+json" {
		t.Errorf("Content-Type is %q", media)
	}
	if got["status"] != float64(response.StatusCode) {
		t.Errorf("the body has status %v, the response %d", got["status"], response.StatusCode)
	}
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s is %v, want %v, in %s", key, got[key], value, body)
		}
	}
	if _, ok := want["resource"]; !ok && (got["resource"] != nil || got["token"] != nil || got["seen"] != nil) {
		t.Errorf("%s has facts of a stale token", body)
	}
}

func TestOlderTokenGets412(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store guard.Store) {
		h := guard.HTTP(store, byQuery, noContent, guard.HTTPOptions{})
		for _, token := range []string{"1795222978000042", "1795222978000043", "1795222978000043"} {
			if got := send(t.Context(), h, "/?bill=1", token).StatusCode; got != http.StatusNoContent {
				t.Fatalf("token %s is answered %d", token, got)
			}
		}
		response := send(t.Context(), h, "/?bill=2&bill=1", "1795222978000042")
		if response.StatusCode != http.StatusPreconditionFailed {
			t.Errorf("got %d, want 412", response.StatusCode)
		}
		wantProblem(t, response, map[string]any{
			"type": "urn:lockstep:problem:stale-token", "title": "Stale fencing token", "resource": "1",
			"token": "1795222978000042", "seen": "1795222978000043",
			"detail": "1: token 1795222978000042 is stale, 1795222978000043 was seen",
		})
	})
}

func TestMalformedTokenGets400(t *testing.T) {
	t.Parallel()
	h := guard.HTTP(new(guard.Memory), byQuery, noContent, guard.HTTPOptions{AllowMissing: true})
	for _, tokens := range [][]string{
		{""}, {"0"}, {"x"}, {"-1"}, {"+1"}, {"1.0"}, {"1e3"}, {"0x10"}, {" 1"}, {"1 "}, {"1,2"}, {"1", "2"}, {"1", "1"}, {"1_000"},
		{"9007199254740992"}, {"18446744073709551617"}, {strings.Repeat("9", 4000)},
	} {
		response := send(t.Context(), h, "/?bill=1", tokens...)
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("%.40q: got %d, want 400", tokens, response.StatusCode)
		}
		wantProblem(t, response, map[string]any{"type": "about:blank", "title": "Bad Request"})
	}
	wantProblem(t, send(t.Context(), h, "/?bill=", "7"), map[string]any{"status": float64(400)})
	wantProblem(t, send(t.Context(), h, "/?bill=%ff", "7"), map[string]any{"status": float64(400)})
}

func TestMissingTokenGets428UnlessAllowed(t *testing.T) {
	t.Parallel()
	strict := guard.HTTP(new(guard.Memory), byQuery, noContent, guard.HTTPOptions{})
	wantProblem(t, send(t.Context(), strict, "/?bill=1"), map[string]any{
		"status": float64(428), "type": "about:blank", "detail": "request has no Lockstep-Token header",
	})
	allowing := guard.HTTP(new(guard.Memory), byQuery, noContent, guard.HTTPOptions{AllowMissing: true})
	if got := send(t.Context(), allowing, "/?bill=1").StatusCode; got != http.StatusNoContent {
		t.Errorf("got %d, want the handler's 204", got)
	}
}

func TestRequestThatTouchesNothingPasses(t *testing.T) {
	t.Parallel()
	h := guard.HTTP(new(guard.Memory), byQuery, noContent, guard.HTTPOptions{})
	for _, tokens := range [][]string{nil, {"x"}, {"7"}} {
		if got := send(t.Context(), h, "/", tokens...).StatusCode; got != http.StatusNoContent {
			t.Errorf("token %q: got %d, want the handler's 204", tokens, got)
		}
	}
}

type brokenStore struct{ err error }

func (s brokenStore) Check(context.Context, locks.Token, ...string) error { return s.err }

func TestBrokenStoreGets503AndIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	o := guard.HTTPOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	h := guard.HTTP(brokenStore{errors.New("dial db.internal: refused")}, byQuery, noContent, o)
	response := send(t.Context(), h, "/?bill=1", "7")
	if response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("got %d, want 503", response.StatusCode)
	}
	wantProblem(t, response, map[string]any{"detail": "the fencing token could not be checked"})
	if line := log.String(); !strings.Contains(line, "db.internal") || !strings.Contains(line, "token=7") {
		t.Errorf("the log is %q, want the reason and the token", line)
	}

	log.Reset()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	send(gone, guard.HTTP(brokenStore{gone.Err()}, byQuery, noContent, o), "/?bill=1", "7")
	if log.Len() > 0 {
		t.Errorf("a client that has gone is logged: %s", log.String())
	}
}

// visits is a handler that reports the requests inside, and keeps each until it is let go.
type visits struct {
	mu     sync.Mutex
	inside []string                 // guarded by mu
	leave  map[string]chan struct{} // token -> closed to let it go
}

func newVisits(tokens ...string) *visits {
	v := &visits{leave: make(map[string]chan struct{})}
	for _, token := range tokens {
		v.leave[token] = make(chan struct{})
	}
	return v
}

func (v *visits) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	token := r.Header.Get(guard.Header)
	v.mu.Lock()
	v.inside = append(v.inside, token)
	v.mu.Unlock()
	<-v.leave[token]
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.inside {
		if v.inside[i] == token {
			v.inside = append(v.inside[:i], v.inside[i+1:]...)
			return
		}
	}
}

func (v *visits) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return strings.Join(v.inside, " ")
}

func TestNewerRequestWaitsForOlderOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newVisits("10", "11", "12")
		h := guard.HTTP(new(guard.Memory), byQuery, v, guard.HTTPOptions{})
		var running sync.WaitGroup
		status := make([]int, 4)
		request := func(i int, url, token string) {
			running.Go(func() { status[i] = send(t.Context(), h, url, token).StatusCode })
			synctest.Wait()
		}
		inside := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := v.String(); got != want {
				t.Fatalf("inside are %q, want %q", got, want)
			}
		}
		request(0, "/?bill=1&bill=2", "10")
		request(1, "/?bill=2", "10")
		inside("10 10") // one holder may do several things at once
		request(2, "/?bill=1&bill=3", "11")
		inside("10 10") // it waits for the first one
		request(3, "/?bill=4", "12")
		inside("10 10 12") // its resources are free

		// The newer one has shown its token: an older one is refused at once, although the newer
		// one still waits.
		if got := send(t.Context(), h, "/?bill=1", "10").StatusCode; got != http.StatusPreconditionFailed {
			t.Errorf("a late older one is answered %d, want 412", got)
		}
		inside("10 10 12")
		close(v.leave["10"])
		inside("12 11")
		close(v.leave["11"])
		close(v.leave["12"])
		running.Wait()
		for i, got := range status {
			if got != http.StatusOK {
				t.Errorf("request %d is answered %d", i, got)
			}
		}
	})
}

func TestWaitForAnOlderRequestEndsWithTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newVisits("10")
		h := guard.HTTP(new(guard.Memory), byQuery, v, guard.HTTPOptions{Logger: slog.New(slog.DiscardHandler)})
		var running sync.WaitGroup
		running.Go(func() { send(t.Context(), h, "/?bill=1", "10") })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if got := send(ctx, h, "/?bill=1", "11").StatusCode; got != http.StatusServiceUnavailable || time.Since(began) != time.Minute {
			t.Errorf("got %d after %s, want 503 after a minute", got, time.Since(began))
		}
		close(v.leave["10"])
		running.Wait()
	})
}

// TestHandlersNeverGoBack: with a store in memory, the handlers of one process need no guard of
// their own.
func TestHandlersNeverGoBack(t *testing.T) {
	t.Parallel()
	var log []locks.Token // of one handler at a time; the race detector watches
	h := guard.HTTP(new(guard.Memory), byQuery, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		token, err := guard.RequestToken(r)
		if err != nil {
			t.Error(err)
		}
		log = append(log, token)
	}), guard.HTTPOptions{})
	accepted, refused := storm(t, 16, 40, func(token locks.Token) error {
		switch status := send(t.Context(), h, "/?bill=1", token.String()).StatusCode; status {
		case http.StatusOK:
			return nil
		case http.StatusPreconditionFailed:
			return guard.ErrStale
		default:
			return fmt.Errorf("status %d", status)
		}
	})
	checkLog(t, log, accepted, refused)
}

func TestClientLearnsThatItsTokenIsStale(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(guard.HTTP(new(guard.Memory), byQuery, noContent, guard.HTTPOptions{}))
	t.Cleanup(server.Close)
	post := func(token locks.Token) error {
		r, err := http.NewRequestWithContext(within(t), http.MethodPost, server.URL+"?bill=1", nil)
		noError(t, err)
		guard.SetToken(r, 1)
		guard.SetToken(r, token) // it replaces
		response, err := server.Client().Do(r)
		noError(t, err)
		defer response.Body.Close()
		return guard.ResponseError(response)
	}
	noError(t, post(11))
	wantStale(t, post(10), "1", 10, 11)
}

func TestOnlyOurOwn412MeansStale(t *testing.T) {
	t.Parallel()
	const ours = `{"type":"urn:lockstep:problem:stale-token","resource":"a","token":"10","seen":"11"}`
	for _, c := range []struct {
		status            int
		contentType, body string
		stale             bool
	}{
		{412, "application/problem+json", ours, true},
		{412, "application/problem+json; charset=utf-8", ours, true},
		{409, "application/problem+json", ours, false},
		{412, "application/json", ours, false},
		{412, "", ours, false},
		{412, "application/problem+json", strings.Replace(ours, "urn:lockstep", "urn:else", 1), false},
		{412, "application/problem+json", `{"type":"about:blank","title":"Precondition Failed"}`, false},
		{412, "application/problem+json", `{"type":"urn:lockstep:problem:stale-token"}`, false},
		{412, "application/problem+json", `{`, false},
		{412, "application/problem+json", strings.Repeat(" ", 1<<17) + ours, false},
		{412, "text/html", "<h1>If-Match</h1>", false},
	} {
		err := guard.ResponseError(&http.Response{
			StatusCode: c.status, Header: http.Header{"Content-Type": {c.contentType}}, Body: io.NopCloser(strings.NewReader(c.body)),
		})
		if c.stale {
			wantStale(t, err, "a", 10, 11)
		} else if err != nil {
			t.Errorf("%d %s %.60s: got %v, want nil", c.status, c.contentType, c.body, err)
		}
	}
}

func TestHandlerRepliesWithItsOwnCheck(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	guard.WriteError(w, fmt.Errorf("settle for customer 17: %w", &guard.StaleError{Resource: "a", Token: 10, Seen: 11}))
	wantStale(t, guard.ResponseError(w.Result()), "a", 10, 11)
	if body := w.Body.String(); strings.Contains(body, "customer") {
		t.Errorf("%s reveals the error of the handler", body)
	}
}
