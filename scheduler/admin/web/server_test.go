package web

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

func newServer(t *testing.T, f *fakes.Fake) *Server {
	t.Helper()
	return newServerOf(t, readerOf(f))
}

func newServerOf(t *testing.T, reader *admin.Reader) *Server {
	t.Helper()
	s, err := New(Options{Reader: reader, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func request(h http.Handler, method, target string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	r.Host = "127.0.0.1:9620"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func get(h http.Handler, target string) *httptest.ResponseRecorder {
	return request(h, http.MethodGet, target)
}

// listed is a list, decoded without this package's types.
type listed struct {
	Items      []map[string]any `json:"items"`
	NextCursor *string          `json:"next_cursor"`
}

func getList(t *testing.T, h http.Handler, target string) listed {
	t.Helper()
	w := get(h, target)
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%s: got %d, %s: %s", target, w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	var l listed
	if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	return l
}

// names returns one field of each item.
func (l listed) names(field string) []string {
	names := []string{}
	for _, item := range l.Items {
		names = append(names, fmt.Sprint(item[field]))
	}
	return names
}

func TestListsAreAnsweredWithTheirShapes(t *testing.T) {
	t.Parallel()
	s := newServer(t, fakes.Fleet())
	for path, test := range map[string]struct {
		field string
		want  []string
	}{
		"/api/v1/jobs": {"job", []string{"nightly-backup", "settle-bills", "warm-cache"}},
		"/api/v1/jobs/nightly-backup/ticks": {"outcome",
			[]string{"pending", "succeeded", "skipped", "failed", "missed"}},
		"/api/v1/runs?job=settle-bills&state=running": {"id", []string{"settle-bills#01K9B7ZK3M5W7QF"}},
		"/api/v1/locks": {"lock",
			[]string{"bill:1001", "bill:1002", "bill:1003", "bill:2001", "job:nightly-backup", "run:settle-bills#alone"}},
		"/api/v1/waits":   {"wait_id", []string{"+settle-bills#offered", "+settle-bills#second", "shell.00000002.1"}},
		"/api/v1/workers": {"id", []string{"web-1.x7k2m9qa", "web-2.p91qd3f7", "web-3.m4t8c2wz"}},
	} {
		l := getList(t, s, path)
		if got := l.names(test.field); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", path, got, test.want)
		}
		if l.NextCursor != nil {
			t.Errorf("%s: there is a next cursor %q after the last item", path, *l.NextCursor)
		}
	}
}

func TestEmptyListsAreListsNotNull(t *testing.T) {
	t.Parallel()
	s := newServer(t, &fakes.Fake{})
	for _, name := range []string{"jobs", "runs", "locks", "waits", "workers"} {
		got := get(s, "/api/v1/"+name).Body.String()
		if want := `{"items":[],"next_cursor":null}` + "\n"; got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestObjectsAreFoundByTheirEscapedIDs(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Open = append(f.Open, &ledger.Record{ID: "settle-bills#a/b", Job: "settle-bills", State: ledger.StateDue})
	s := newServer(t, f)
	for path, want := range map[string]string{
		"/api/v1/jobs/warm-cache": `{"job":"warm-cache",`,
		"/api/v1/runs/" + url.PathEscape("settle-bills#01K9B7ZK3M5W7QF"):                    `{"id":"settle-bills#01K9B7ZK3M5W7QF",`,
		"/api/v1/runs/" + url.PathEscape("nightly-backup@2026-11-20T01:00:00Z"):             `{"id":"nightly-backup@2026-11-20T01:00:00Z",`,
		"/api/v1/runs/" + url.PathEscape("settle-bills#a/b"):                                `{"id":"settle-bills#a/b",`,
		"/api/v1/runs/" + url.PathEscape("nightly-backup@2026-11-20T01:00:00Z") + "/output": "dumped\n",
		"/api/v1/locks/bill:1001":        `{"lock":"bill:1001","mode":"exclusive","limit":null,"holders":[{"worker":"web-2.p91qd3f7"`,
		"/api/v1/locks/free":             `{"lock":"free","mode":"exclusive","limit":null,"holders":[],"waits":[]}`,
		"/api/v1/workers/web-2.p91qd3f7": `{"id":"web-2.p91qd3f7",`,
	} {
		w := get(s, path)
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), want) {
			t.Errorf("%s: got %d: %s, want it to begin with %s", path, w.Code, w.Body, want)
		}
	}
	output := get(s, "/api/v1/runs/settle-bills%23second/output")
	if got := output.Header().Get("Content-Type"); output.Code != http.StatusOK || output.Body.Len() != 0 || !strings.HasPrefix(got, "text/plain") {
		t.Errorf("output of a run without any: got %d, %s, %q", output.Code, got, output.Body)
	}
}

// TestPagesGiveEveryItemOnce follows next_cursor through every list, for several sizes of a page.
func TestPagesGiveEveryItemOnce(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.AddHistory("warm-cache", 600)
	for i := range 30 { // that ended at the same moment
		f.Ended["settle-bills"] = append(f.Ended["settle-bills"], &ledger.Record{
			ID: jobs.RequestRunID("settle-bills", fmt.Sprint(i)), Job: "settle-bills", State: ledger.StateFailed, Created: fakes.Noon, Finished: fakes.Noon,
		})
	}
	s := newServer(t, f)
	for _, path := range []string{
		"jobs?", "jobs/nightly-backup/ticks?", "runs?", "runs?state=failed&", "runs?job=warm-cache&", "locks?", "waits?", "workers?",
	} {
		path = "/api/v1/" + path
		whole, err := json.Marshal(getList(t, s, path+"limit=1000").Items)
		if err != nil {
			t.Fatal(err)
		}
		for _, limit := range []int{1, 2, 7} {
			var items []map[string]any
			for cursor, pages := "", 0; ; pages++ {
				l := getList(t, s, fmt.Sprintf("%slimit=%d&cursor=%s", path, limit, cursor))
				if len(l.Items) > limit {
					t.Fatalf("%s: a page of %d items, want at most %d", path, len(l.Items), limit)
				}
				items = append(items, l.Items...)
				if l.NextCursor == nil {
					break
				}
				if cursor = *l.NextCursor; pages > 1000 {
					t.Fatalf("%s: it has no end", path)
				}
			}
			got, err := json.Marshal(items)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(whole) {
				t.Errorf("%s by %d:\ngot:  %s\nwant: %s", path, limit, got, whole)
			}
		}
	}
}

func TestJobsAreFoundByTheirNotes(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Registered = []ledger.JobRecord{
		{Job: &jobs.Job{Name: "calm", Queue: "day", Command: []string{"a"}}},
		{Job: &jobs.Job{Name: "drifted", Queue: "day", Command: []string{"a"}}, Drifted: true},
		{Job: &jobs.Job{Name: "late", Queue: "day", Command: []string{"a"}, MaxSilence: time.Hour}, Silent: fakes.Noon.Add(-2 * time.Hour)},
		{Job: &jobs.Job{Name: "night", Queue: "night", Command: []string{"a"}}},
		{Job: &jobs.Job{Name: "off", Queue: "day", Command: []string{"a"}, Paused: true}},
	}
	f.Registered = append(f.Registered, ledger.JobRecord{Job: &jobs.Job{Name: "orphan", Queue: "dusk", Command: []string{"a"}}})
	f.PausedQueues = []string{"night"}
	f.Live = fakes.Crew(worker.Card{State: "ready", Queues: map[string]int{"day": 1, "night": 1}}).Live
	s := newServer(t, f)
	for note, want := range map[string]string{
		"": "calm drifted late night off orphan", "late": "late", "paused": "off", "queue%20paused": "night", "drifted": "drifted",
		"no%20worker%20serves%20its%20queue": "orphan",
	} {
		var names []string
		for _, item := range getList(t, s, "/api/v1/jobs?note="+note).Items {
			names = append(names, item["job"].(string))
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("note %q: got %q, want %q", note, got, want)
		}
	}
	page := getPage(t, s, http.StatusOK)
	if got := page.id("noted"); got == nil || strings.Contains(got.text, "calm") {
		t.Fatalf("%+v, want the jobs to look at on the page", got)
	}
	for _, want := range []string{"drifted ≠ drifted", "late ! late", "night ⊘ queue paused", "off ‖ paused by its definition", "orphan ∅ no worker serves its queue"} {
		if got := page.id("noted").text; !strings.Contains(got, want) {
			t.Errorf("the page says %q, want %q", got, want)
		}
	}
}

func TestListsAreFilteredByTheirParameters(t *testing.T) {
	t.Parallel()
	s := newServer(t, fakes.Fleet())
	for path, test := range map[string]struct {
		field string
		want  []string
	}{
		"jobs?queue=critical&q=BILL":                   {"job", []string{"settle-bills"}},
		"jobs?job=warm-cache":                          {"job", []string{"warm-cache"}},
		"jobs/nightly-backup/ticks?state=missed":       {"tick", []string{"2026-11-17T01:00:00Z"}},
		"runs?worker=web-1&error=bank":                 {"id", []string{"settle-bills#third"}},
		"runs?q=%23second&lock=bill%3A1001":            {"id", []string{"settle-bills#second"}},
		"runs?since=10s&until=1s":                      {"id", []string{"settle-bills#second", "settle-bills#01K9B7ZK3M5W7QF"}},
		"runs?q=%3Cscript%3E%22%27%2F%0A%E2%80%AE":     {"id", []string{}},
		"runs?until=2026-11-21T00:00:00Z&state=failed": {"id", []string{"nightly-backup@2026-11-18T01:00:00Z"}},
		"runs?group=error&state=retrying":              {"error", []string{"no <b>bank</b> today"}},
		"locks?worker=shell":                           {"lock", []string{"bill:1003"}},
		"waits?job=settle-bills&state=waiting":         {"wait_id", []string{"+settle-bills#second"}},
		"workers?lock=bill:1001":                       {"id", []string{"web-2.p91qd3f7"}},
		"audit?q=x&since=1h":                           {"id", []string{}},
	} {
		if got := getList(t, s, "/api/v1/"+path).names(test.field); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", path, got, test.want)
		}
	}
}

func TestBadParametersAreNamed(t *testing.T) {
	t.Parallel()
	s := newServer(t, fakes.Fleet())
	for target, want := range map[string]string{
		"/api/v1/runs?limit=0":                "limit",
		"/api/v1/runs?limit=1001":             "limit",
		"/api/v1/runs?limit=ten":              "limit",
		"/api/v1/runs?stat=failed":            "stat",
		"/api/v1/runs?state=exploded":         "exploded",
		"/api/v1/jobs?note=odd":               "odd",
		"/api/v1/runs?job=a&job=b":            "job",
		"/api/v1/runs?cursor=%21":             "cursor",
		"/api/v1/runs?cursor=bm90IGEgcGxhY2U": "cursor",
		"/api/v1/runs?a;b":                    "query",
		"/api/v1/locks?state=held":            "state",
		"/api/v1/runs?since=yesterday":        "since",
		"/api/v1/runs?until=-5m":              "until",
		"/api/v1/runs?since=1m&until=2m":      "before until",
		"/api/v1/runs?group=job":              "grouped by error",
		"/api/v1/audit?state=done":            "state",
		"/api/v1/workers?state=busy":          "busy",
		"/api/v1/waits?state=held":            "held",
		"/api/v1/jobs?state=running":          "running",
		"/api/v1/jobs/warm-cache/ticks?job=a": "job",
		"/api/v1/jobs/warm-cache?limit=1":     "limit",
		"/api/v1/runs/a%23b/output?limit=1":   "limit",
	} {
		checkProblem(t, get(s, target), http.StatusBadRequest, want)
	}
}

// checkProblem checks an answer against RFC 9457.
func checkProblem(t *testing.T, w *httptest.ResponseRecorder, status int, detail string) {
	t.Helper()
	var problem struct {
		Type, Title, Detail, Instance string
		Status                        int
	}
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
		t.Errorf("got %d: %s: %v", w.Code, w.Body, err)
		return
	}
	if w.Code != status || problem.Status != status || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s: got %d (%d in the body), %s; want the problem %d", problem.Instance, w.Code, problem.Status,
			w.Header().Get("Content-Type"), status)
	}
	if problem.Type != "about:blank" || problem.Title != http.StatusText(status) || !strings.Contains(problem.Detail, detail) {
		t.Errorf("got %+v, want a detail with %q", problem, detail)
	}
}

func TestMissingObjectsAreAProblem404(t *testing.T) {
	t.Parallel()
	s := newServer(t, fakes.Fleet())
	for target, detail := range map[string]string{
		"/nothing":                      "this path does not exist",
		"/api/v1/":                      "this path does not exist",
		"/api/v1/hold":                  "this path does not exist",
		"/api/v2/runs":                  "this path does not exist",
		"/static/page.html":             "this path does not exist",
		"/static/nothing":               "this path does not exist",
		"/api/v1/runs/settle-bills%23x": "settle-bills#x",
		"/api/v1/runs/x/output":         "run x",
		"/api/v1/jobs/nobody":           "job nobody",
		"/api/v1/jobs/nobody/ticks":     "job nobody",
		"/api/v1/runs?job=nobody":       "job nobody",
		"/api/v1/workers/nobody":        "worker nobody",
	} {
		checkProblem(t, get(s, target), http.StatusNotFound, detail)
	}
}

func TestNothingCanBeChanged(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	s := newServer(t, f)
	for _, target := range []string{"/", "/livez", "/readyz", "/static/page.css", "/api/v1/runs", "/api/v1/runs/a%23b", "/api/v1/jobs/a/ticks"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
			w := request(s, method, target)
			checkProblem(t, w, http.StatusMethodNotAllowed, "GET and HEAD")
			if got := w.Header().Get("Allow"); got != "GET, HEAD" {
				t.Errorf("%s %s: Allow is %q", method, target, got)
			}
		}
	}
	checkProblem(t, request(s, http.MethodPost, "/nothing"), http.StatusNotFound, "this path does not exist")
	if n := f.ReadCount.Load(); n != 0 {
		t.Errorf("refused requests cost %d reads", n)
	}
}

func TestHeadHasTheHeadersAndNoBody(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(newServer(t, fakes.Fleet()))
	defer server.Close()
	for _, path := range []string{"/", "/livez", "/api/v1/runs", "/static/page.css", "/nothing"} {
		head, err := server.Client().Head(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(head.Body)
		_ = head.Body.Close()
		if err != nil || len(body) > 0 {
			t.Errorf("%s: HEAD has a body of %d bytes and %v", path, len(body), err)
		}
		full, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, full.Body)
		_ = full.Body.Close()
		if head.StatusCode != full.StatusCode || head.Header.Get("Content-Type") != full.Header.Get("Content-Type") {
			t.Errorf("%s: HEAD says %d %s, GET %d %s", path, head.StatusCode, head.Header.Get("Content-Type"),
				full.StatusCode, full.Header.Get("Content-Type"))
		}
	}
}

func TestEveryAnswerIsGuarded(t *testing.T) {
	t.Parallel()
	s := newServer(t, fakes.Fleet())
	for _, path := range []string{"/", "/livez", "/api/v1/runs", "/static/live.js", "/nothing"} {
		h := get(s, path).Header()
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
		policy := h.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
			t.Errorf("%s: the policy is %q", path, policy)
		}
		if got := h.Get("Cache-Control"); got != "no-store" && !strings.HasPrefix(path, "/static/") {
			t.Errorf("%s: Cache-Control is %q", path, got)
		}
	}
}

func TestProbesDoNotAskRedis(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Fail("connection refused")
	unready := errors.New("the worker drains")
	s, err := New(Options{Reader: readerOf(f), Unready: func() error { return unready }})
	if err != nil {
		t.Fatal(err)
	}
	if w := get(s, "/livez"); w.Code != http.StatusOK {
		t.Errorf("/livez: got %d", w.Code)
	}
	if w := get(s, "/readyz"); w.Code != http.StatusServiceUnavailable || w.Body.String() != "not ready: the worker drains\n" {
		t.Errorf("/readyz of a worker that is not ready: got %d: %s", w.Code, w.Body)
	}
	unready = fmt.Errorf("%w: dial 10.0.0.7:6379: connection refused", worker.ErrRedis)
	if w := get(s, "/readyz"); w.Code != http.StatusServiceUnavailable || w.Body.String() != "not ready: redis is not usable; the log has the reason\n" {
		t.Errorf("/readyz of a worker whose Redis is not usable: got %d: %s", w.Code, w.Body)
	}
	unready = nil
	if w := get(s, "/readyz"); w.Code != http.StatusOK || w.Body.String() != "ready\n" {
		t.Errorf("/readyz of a worker that is ready: got %d: %s", w.Code, w.Body)
	}
	if n := f.ReadCount.Load(); n != 0 {
		t.Errorf("the probes cost %d reads", n)
	}
}

func TestOutageIsAProblem503(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Fail("connection refused")
	s := newServer(t, f)
	for _, path := range []string{"jobs", "jobs/a", "jobs/a/ticks", "runs", "runs/a%23b", "runs/a%23b/output", "locks", "locks/a", "waits", "workers", "workers/a"} {
		w := get(s, "/api/v1/"+path)
		checkProblem(t, w, http.StatusServiceUnavailable, "Redis cannot be read: connection refused")
		if w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: nobody says when to come back", path)
		}
	}
}

func TestManyReadersCostOneReadASecond(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	s := newServer(t, f)
	paths := []string{"/", "/api/v1/jobs", "/api/v1/runs", "/api/v1/locks", "/api/v1/waits", "/api/v1/workers", "/api/v1/runs/settle-bills%23second"}
	for _, path := range paths {
		get(s, path)
	}
	once := f.ReadCount.Load()
	began := time.Now()
	var readers sync.WaitGroup
	for range 20 {
		readers.Go(func() {
			for _, path := range paths {
				if w := get(s, path); w.Code != http.StatusOK {
					t.Errorf("%s: got %d", path, w.Code)
				}
			}
		})
	}
	readers.Wait()
	// Readers share what is read for a second.
	if n, most := f.ReadCount.Load(), 3+int64(time.Since(began)/time.Second); n > most*once {
		t.Errorf("20 readers cost %d reads; one costs %d", n, once)
	}
}

func TestStaticFilesAreSentOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t, &fakes.Fake{})
	for name, contentType := range map[string]string{
		"page.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8", "htmx.min.js": "text/javascript; charset=utf-8",
		"icon.svg": "image/svg+xml",
	} {
		first := get(s, "/static/"+name)
		if first.Code != http.StatusOK || first.Body.Len() == 0 || first.Header().Get("Content-Type") != contentType {
			t.Errorf("%s: got %d, %d bytes, %s", name, first.Code, first.Body.Len(), first.Header().Get("Content-Type"))
		}
		again := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:9620/static/"+name, nil)
		again.Header.Set("If-None-Match", first.Header().Get("ETag"))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, again)
		if w.Code != http.StatusNotModified || w.Body.Len() > 0 {
			t.Errorf("%s again: got %d and %d bytes, want 304", name, w.Code, w.Body.Len())
		}
	}
}

// The package's doc has the version and the origin of the file.
func TestHTMXIsAsReleased(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"htmx.min.js":  "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
		"htmx.LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
	} {
		body, err := files.ReadFile("page/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(body)); got != want {
			t.Errorf("%s has the SHA-256 %s, want %s", name, got, want)
		}
	}
}

func TestReaderIsRequired(t *testing.T) {
	t.Parallel()
	if _, err := New(Options{}); err == nil {
		t.Error("a server without a reader was made")
	}
}

// A permanent refusal of Redis is not an outage: a client that retried would do so forever.
func TestRefusalsOfRedisAreNoOutage(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	s := newServer(t, f)
	for text, want := range map[string]int{
		"NOPERM this user has no permissions to run the 'evalsha' command": 500, "WRONGTYPE Operation against a key": 500,
		"LOADING Redis is loading the dataset in memory": 503, "OOM command not allowed": 503, "READONLY You can't write": 503,
	} {
		var err error = replied(text)
		f.FailWith(err)
		s.read = newShare()
		for _, path := range []string{"/api/v1/jobs", "/"} {
			w := get(s, path)
			if w.Code != want || (w.Header().Get("Retry-After") != "") != (want == 503) {
				t.Errorf("%s, %s: got %d, Retry-After %q, want %d", path, text, w.Code, w.Header().Get("Retry-After"), want)
			}
		}
		if w := get(s, "/api/v1/jobs"); want == 500 && !strings.Contains(w.Body.String(), "lockstep doctor") {
			t.Errorf("%s: the answer names no remedy: %s", text, w.Body)
		}
	}
}

// replied is an error reply of Redis.
type replied string

func (r replied) Error() string { return string(r) }
func (replied) RedisError()     {}

func TestBrowsersGetProblemsAsPages(t *testing.T) {
	t.Parallel()
	s := newServer(t, fakes.Fleet())
	for _, test := range []struct{ host, path, want string }{
		{"127.0.0.1:9620", "/nothing", "this path does not exist"}, {"evil.example", "/", "admin.hosts"}, {"<b>.example", "/", "&lt;b&gt;.example"},
	} {
		w := askedUnder(s, test.host, test.path, func(r *http.Request) { r.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8") })
		if w.Code < 400 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s of %s: got %d, %s, %s, want a page that says %s", test.path, test.host, w.Code, w.Header().Get("Content-Type"), w.Body, test.want)
		}
	}
	w := askedUnder(s, "evil.example", "/api/v1/jobs", func(r *http.Request) { r.Header.Set("Accept", "text/html") })
	checkProblem(t, w, http.StatusForbidden, "admin.hosts")
}

func TestLargeBodiesAreRefusedAsSuch(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:9620/api/v1/enqueue",
		strings.NewReader(`{"job": "nightly", "args": "`+strings.Repeat("x", bodyMost)+`"}`))
	w := httptest.NewRecorder()
	c.server.ServeHTTP(w, r)
	checkProblem(t, w, http.StatusRequestEntityTooLarge, "too large")
}
