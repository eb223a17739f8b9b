package httpjob_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lockstep/jobs"
	httpjob "lockstep/jobs/http"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, handler http.HandlerFunc) string {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func attemptOf(url string) (*jobs.Attempt, *jobs.Tail) {
	output := jobs.NewTail(0)
	return &jobs.Attempt{
		Job:    &jobs.Job{Name: "warm-cache", HTTP: &jobs.HTTP{Method: "POST", URL: url}},
		Run:    "warm-cache#1",
		Number: 1,
		Output: output,
	}, output
}

func execute(t *testing.T, ctx context.Context, attempt *jobs.Attempt) error {
	t.Helper()
	e, err := httpjob.New(httpjob.Options{Output: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	return e.Execute(ctx, attempt)
}

func TestRequestCarriesTheAttempt(t *testing.T) {
	t.Parallel()
	type seen struct {
		method, path, host, body string
		header                   http.Header
	}
	for _, test := range []struct {
		name   string
		change func(*jobs.Attempt)
		want   seen
	}{
		{
			"all", func(a *jobs.Attempt) {
				a.Job.HTTP.Method, a.Job.HTTP.Headers = "PUT", map[string]string{"Authorization": "Bearer s3cret", "host": "shop.internal"}
				a.Run, a.Number, a.Token, a.Args = "warm-cache@2026-11-21T01:00:00Z", 3, 1795222800123456, json.RawMessage(`{"a": [1]}`)
				a.TraceParent, a.TraceState = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1"
			},
			seen{"PUT", "/warm?x=1", "shop.internal", `{"a": [1]}`, http.Header{
				"Authorization": {"Bearer s3cret"}, "Content-Type": {"application/json"}, "User-Agent": {"lockstep"},
				"Idempotency-Key": {"warm-cache@2026-11-21T01:00:00Z"}, "Lockstep-Run-Id": {"warm-cache@2026-11-21T01:00:00Z"},
				"Lockstep-Token": {"1795222800123456"}, "Lockstep-Attempt": {"3"},
				"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "Tracestate": {"vendor=1"},
			}},
		},
		{
			"no args, own headers", func(a *jobs.Attempt) {
				a.Job.HTTP.Method, a.Job.HTTP.Headers = "", map[string]string{"content-type": "text/x-own", "User-Agent": "own", "Idempotency-Key": "own"}
			},
			seen{"POST", "/warm?x=1", "", `{}`, http.Header{
				"Content-Type": {"text/x-own"}, "User-Agent": {"own"}, "Idempotency-Key": {"own"},
				"Lockstep-Run-Id": {"warm-cache#1"}, "Lockstep-Token": {"0"}, "Lockstep-Attempt": {"1"}, "Traceparent": nil, "Tracestate": nil,
			}},
		},
		{
			"GET without args", func(a *jobs.Attempt) { a.Job.HTTP.Method = "GET" },
			seen{"GET", "/warm?x=1", "", "", http.Header{"Content-Type": nil, "Idempotency-Key": {"warm-cache#1"}}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			requests := make(chan seen, 1)
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				requests <- seen{r.Method, r.URL.RequestURI(), r.Host, string(body), r.Header}
			})
			attempt, _ := attemptOf(url + "/warm?x=1")
			test.change(attempt)
			if err := execute(t, t.Context(), attempt); err != nil {
				t.Fatal(err)
			}
			got := <-requests
			if got.method != test.want.method || got.path != test.want.path || got.body != test.want.body || test.want.host != "" && got.host != test.want.host {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
			for name, want := range test.want.header {
				if fmt.Sprint(got.header[name]) != fmt.Sprint(want) {
					t.Errorf("header %s is %q, want %q", name, got.header[name], want)
				}
			}
		})
	}
}

func TestStatusDecides(t *testing.T) {
	t.Parallel()
	const permanent, again = true, false
	// a server with a clock that is years behind
	date := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		status    int
		header    http.Header
		fails     bool
		permanent bool
		delay     time.Duration // -1: none
	}{
		{200, nil, false, again, -1},
		{201, nil, false, again, -1},
		{204, nil, false, again, -1},
		{299, nil, false, again, -1},
		{301, http.Header{"Location": {"https://elsewhere.example/path?secret=1"}}, true, permanent, -1},
		{302, http.Header{"Location": {"/elsewhere"}}, true, permanent, -1},
		{304, nil, true, permanent, -1},
		{307, http.Header{"Location": {"/elsewhere"}}, true, permanent, -1},
		{400, http.Header{"Retry-After": {"1"}}, true, permanent, -1},
		{401, nil, true, permanent, -1},
		{404, nil, true, permanent, -1},
		{409, nil, true, permanent, -1},
		{408, nil, true, again, -1},
		{425, nil, true, again, -1},
		{429, http.Header{"Retry-After": {"120"}}, true, again, 2 * time.Minute},
		{429, http.Header{"Retry-After": {"99999999999999"}}, true, again, 24 * time.Hour},
		{429, http.Header{"Retry-After": {"-5"}}, true, again, -1},
		{429, http.Header{"Retry-After": {"soon"}}, true, again, -1},
		{500, nil, true, again, -1},
		{502, nil, true, again, -1},
		{503, http.Header{"Retry-After": {"0"}}, true, again, 0},
		{503, http.Header{"Date": {date.Format(http.TimeFormat)}, "Retry-After": {date.Add(90 * time.Second).Format(http.TimeFormat)}}, true, again, 90 * time.Second},
		{503, http.Header{"Date": {date.Format(http.TimeFormat)}, "Retry-After": {date.Add(-time.Hour).Format(http.TimeFormat)}}, true, again, 0},
		{599, nil, true, again, -1},
	} {
		var calls atomic.Int32
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			for name, values := range test.header {
				w.Header()[name] = values
			}
			w.WriteHeader(test.status)
		})
		attempt, output := attemptOf(url + "/path?secret=1")
		err := execute(t, t.Context(), attempt)
		delay, ok := jobs.RetryDelay(err)
		if !ok {
			delay = -1
		}
		if (err != nil) != test.fails || jobs.IsPermanent(err) != test.permanent || delay != test.delay {
			t.Errorf("%d %v: got %v, permanent %v, delay %v; want permanent %v, delay %v", test.status, test.header, err, jobs.IsPermanent(err), delay, test.permanent, test.delay)
		}
		if err != nil && (!strings.Contains(err.Error(), fmt.Sprint(test.status)) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%d: error %q; want the status in it and no URL", test.status, err)
		}
		if calls.Load() != 1 || !strings.HasPrefix(output.String(), fmt.Sprintf("HTTP/1.1 %d", test.status)) {
			t.Errorf("%d: %d calls, output %q; want 1 call and the status line", test.status, calls.Load(), output)
		}
	}
}

func TestRedirectErrorNamesItsTarget(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://elsewhere.example/path?secret=1", http.StatusMovedPermanently)
	})
	attempt, _ := attemptOf(url)
	err := execute(t, t.Context(), attempt)
	if want := "301 Moved Permanently: redirects are not followed; this one points to https://elsewhere.example"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestFirstPartOfTheBodyIsKept(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		"":                            "HTTP/1.1 200 OK\n",
		"0123456789":                  "HTTP/1.1 200 OK\n0123456789",
		"0123456789ab":                "HTTP/1.1 200 OK\n0123456789\n[2 more bytes left out]\n",
		strings.Repeat("x", 10+1<<20): "HTTP/1.1 200 OK\nxxxxxxxxxx\n[1048576 more bytes left out]\n",
	} {
		url := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, body) })
		attempt, output := attemptOf(url)
		if err := execute(t, t.Context(), attempt); err != nil || output.String() != want {
			t.Errorf("%d bytes: got %v and %q, want %q", len(body), err, output, want)
		}
	}
}

func TestHalfOfWhatTheJobKeepsIsOfTheBody(t *testing.T) {
	t.Parallel()
	e, err := httpjob.New(httpjob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 100<<10)) })
	for keep, want := range map[int]int{0: 8 << 10, 64 << 10: 32 << 10} {
		attempt, _ := attemptOf(url)
		output := jobs.NewTail(jobs.MaxTail)
		attempt.Job.Output.Keep, attempt.Output = keep, output
		if err := e.Execute(t.Context(), attempt); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(output.String(), "x"); got != want {
			t.Errorf("with output.keep %d: %d bytes of the body are kept, want %d", keep, got, want)
		}
	}
}

// A body that ends, or is cut, in the middle of an echoed secret reveals no part of it.
func TestEchoedSecretIsReplacedBeforeTheBodyIsCut(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-5f0c81"
	for before := range 12 {
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("-", before)+r.Header.Get("Authorization")+" and more")
		})
		attempt, output := attemptOf(url)
		attempt.Job.HTTP.Headers = map[string]string{"Authorization": secret}
		attempt.Redactor = jobs.NewRedactor([]jobs.Secret{{Reference: "${T}", Value: secret}})
		if err := execute(t, t.Context(), attempt); err != nil {
			t.Fatal(err)
		}
		want := "HTTP/1.1 200 OK\n" + (strings.Repeat("-", before) + "${T} and more")[:10]
		if got := output.String(); !strings.HasPrefix(got, want+"\n[") {
			t.Errorf("%d bytes before it: got %q, want %q", before, got, want)
		}
	}
}

func TestNetworkErrorsAreRetried(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := "http://" + listener.Addr().String() + "/?secret=1"
	listener.Close()
	for name, url := range map[string]string{
		"refused": refused,
		"hung up": serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }) + "/?secret=1",
		"broken off": serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "not a hundred bytes")
		}) + "/?secret=1",
	} {
		attempt, _ := attemptOf(url)
		err := execute(t, t.Context(), attempt)
		if err == nil || jobs.IsPermanent(err) || strings.Contains(err.Error(), "secret") || !strings.HasPrefix(err.Error(), "POST 127.0.0.1:") {
			t.Errorf("%s: got %v (permanent %v), want a retryable error with method and host", name, err, jobs.IsPermanent(err))
		}
	}
}

func TestInvalidRequestIsNotRetried(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		change func(*jobs.Job)
		want   string
	}{
		{func(j *jobs.Job) { j.HTTP = nil }, "job warm-cache has no http request"},
		{func(j *jobs.Job) { j.HTTP.Method = "A B" }, "invalid method"},
		{func(j *jobs.Job) { j.HTTP.URL = "http://h/%zz?secret=1" }, "its url is not a URL"},
		{func(j *jobs.Job) { j.HTTP.URL = "ftp://h/secret" }, "its url does not begin with http://host or https://host"},
		{func(j *jobs.Job) { j.HTTP.URL = "/secret" }, "its url does not begin with http://host or https://host"},
		// Parts of a password with a /, a ?, a # or a %, and of a URL that is all secret.
		{func(j *jobs.Job) { j.HTTP.URL = "http://svc:secret/Zz9@h/run" }, "its url is not a URL"},
		{func(j *jobs.Job) { j.HTTP.URL = "http://svc:secret?Zz9@h/run" }, "its url is not a URL"},
		{func(j *jobs.Job) { j.HTTP.URL = "http://svc:secret#Zz9@h/run" }, "its url is not a URL"},
		{func(j *jobs.Job) { j.HTTP.URL = "http://svc:a%secret@h/run" }, "its url is not a URL"},
		{func(j *jobs.Job) { j.HTTP.URL = "http://h:secret/run" }, "its url is not a URL"},
		{func(j *jobs.Job) { j.HTTP.URL = "secret:Zz9" }, "its url does not begin with http://host or https://host"},
		{func(j *jobs.Job) { j.HTTP.Headers = map[string]string{"Authorization": "Bearer secret\n"} }, "header Authorization: its value has a line break"},
	} {
		attempt, _ := attemptOf("http://127.0.0.1:1")
		test.change(attempt.Job)
		err := execute(t, t.Context(), attempt)
		if err == nil || !jobs.IsPermanent(err) || !strings.Contains(err.Error(), test.want) || strings.Contains(strings.ReplaceAll(err.Error(), "file of a secret", ""), "secret") {
			t.Errorf("got %v (permanent %v), want %q and no secret", err, jobs.IsPermanent(err), test.want)
		}
	}
	if _, err := httpjob.New(httpjob.Options{Output: -1}); err == nil {
		t.Error("New accepted a negative Output")
	}
}

func TestEndOfContextEndsTheRequest(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(http.ResponseWriter){
		"before the answer": func(http.ResponseWriter) {},
		"within the body": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "half of it")
			_ = http.NewResponseController(w).Flush()
		},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		hungUp := make(chan struct{})
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			defer close(hungUp)
			// net/http detects a closed connection only after the body
			_, _ = io.Copy(io.Discard, r.Body)
			answer(w)
			cancel(jobs.ErrTimeout)
			<-r.Context().Done()
		})
		attempt, _ := attemptOf(url)
		if err := execute(t, ctx, attempt); !errors.Is(err, jobs.ErrTimeout) || jobs.IsPermanent(err) {
			t.Errorf("%s: got %v, want the cause of the context", name, err)
		}
		<-hungUp
	}
}
