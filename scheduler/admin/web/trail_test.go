package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
)

// journal is a log with lines that can be read back.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// lines returns the lines with a message, and forgets all.
func (j *journal) lines(t *testing.T, message string) []map[string]any {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := []map[string]any{}
	for text := range strings.Lines(j.text.String()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		if line["msg"] == message {
			lines = append(lines, line)
		}
	}
	j.text.Reset()
	return lines
}

// newJournaled is a console with a server that logs into the journal.
func newJournaled(t *testing.T, rdb *redis.Client) (*console, *journal) {
	t.Helper()
	c, j := newConsole(t, rdb), new(journal)
	var err error
	if c.server, err = New(Options{
		Reader: c.reader, Operator: c.operator, Logger: slog.New(slog.NewJSONHandler(j, nil)), Worker: func() string { return "web-1.x" },
		Config: func() *admin.Config { return &admin.Config{Digest: "9f2c1e"} }, Reload: func(context.Context) error { return nil }, Pass: "the-pass",
	}); err != nil {
		t.Fatal(err)
	}
	return c, j
}

// audit returns the acts as lines of text, the last first.
func (c *console) audit() []string {
	c.t.Helper()
	acts, err := c.reader.Audit(c.t.Context(), admin.Filter{})
	if err != nil {
		c.t.Fatal(err)
	}
	lines := make([]string, len(acts))
	for i, act := range acts {
		lines[i] = fmt.Sprintf("%s: %s %s, %d", act.Who, act.What, act.On, act.Times)
	}
	return lines
}

// Requests for runs are in the audit: the first at once, those that follow as one entry with their
// number.
func TestRequestsForRunsAreCountedInTheAudit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c, log := newJournaled(t, rdb)
		c.post("/api/v1/enqueue", `{"job": "nightly", "id": "a"}`, 201)
		if got := strings.Join(c.audit(), "; "); got != "http 127.0.0.1: enqueue nightly, 1" {
			t.Errorf("after the first request the audit has %s", got)
		}
		for i := range 40 {
			c.post("/api/v1/enqueue", fmt.Sprintf(`{"job": "nightly", "id": "b%d"}`, i), 201)
		}
		// the run exists: nothing is done
		c.post("/api/v1/enqueue", `{"job": "nightly", "id": "a"}`, 200)
		c.post("/api/v1/jobs/nightly/run", `{"reason": "by hand"}`, 201)
		c.post("/api/v1/enqueue", `{"job": "nobody"}`, 404)
		if n := len(c.audit()); n != 2 {
			t.Errorf("%d entries before what was counted is kept, want 2", n)
		}
		c.server.flush(t.Context(), true)
		c.server.flush(t.Context(), true)
		if got := strings.Join(c.audit(), "; "); got != "http 127.0.0.1: enqueue nightly, 41; http 127.0.0.1: run job nightly, 1" {
			t.Errorf("the audit has %s", got)
		}
		var lines []string
		for _, line := range log.lines(t, "action is done") {
			lines = append(lines, fmt.Sprint(line["who"], ", ", line["action"], ", ", line["on"], ", ", line["times"]))
		}
		want := "http 127.0.0.1, enqueue, nightly, <nil>; http 127.0.0.1, run job, nightly, <nil>; http 127.0.0.1, enqueue, nightly, 41"
		if got := strings.Join(lines, "; "); got != want {
			t.Errorf("the log has %s, want %s", got, want)
		}
	})
}

// An outage of Redis loses no count.
func TestCountsThatCannotBeKeptAreCountedOn(t *testing.T) {
	t.Parallel()
	c, _ := newJournaled(t, redistest.Client(t))
	for i := range 10 {
		c.post("/api/v1/enqueue", fmt.Sprintf(`{"job": "nightly", "id": "b%d"}`, i), 201)
	}
	broken, cancel := context.WithCancel(t.Context())
	cancel()
	c.server.flush(broken, true)
	c.post("/api/v1/enqueue", `{"job": "nightly"}`, 201)
	c.server.flush(t.Context(), true)
	if got := strings.Join(c.audit(), "; "); got != "http 127.0.0.1: enqueue nightly, 11" {
		t.Errorf("the audit has %s", got)
	}
}

func TestReloadsAreInTheAudit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c, log := newJournaled(t, rdb)
		for _, actor := range []string{"", "ann@desk", strings.Repeat("x", jobs.MaxUserName+1)} {
			r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:9620"+reloadPath, nil)
			r.RemoteAddr = "127.0.0.1:1234"
			r.Header.Set("Authorization", "Lockstep the-pass")
			r.Header.Set(ActorHeader, actor)
			w := httptest.NewRecorder()
			c.server.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				t.Fatalf("got %d, %s", w.Code, w.Body)
			}
		}
		want := "command line (http 127.0.0.1): reload config web-1.x, 2; ann@desk (http 127.0.0.1): reload config web-1.x, 1"
		if got := strings.Join(c.audit(), "; "); got != want {
			t.Errorf("the audit has %s, want %s", got, want)
		}
		if lines := log.lines(t, "action is done"); len(lines) != 3 || lines[1]["who"] != "ann@desk (http 127.0.0.1)" || lines[1]["action"] != "reload config" {
			t.Errorf("the log has %v", lines)
		}
	})
}

// Each action and each refused action is a line; no number of refusals fills the log.
func TestActionsAndRefusalsAreLogged(t *testing.T) {
	t.Parallel()
	c, log := newJournaled(t, redistest.Client(t))
	for range 3 {
		c.post("/api/v1/jobs/nightly/pause", `{"reason": "the partner is down"}`, 200)
		c.post("/api/v1/jobs/nightly/resume", "", 200)
	}
	done := log.lines(t, "action is done")
	if len(done) != 6 || done[0]["level"] != "INFO" || done[0]["action"] != "pause job" || done[0]["on"] != "nightly" || done[0]["why"] != "the partner is down" {
		t.Errorf("the log has %v, want six actions", done)
	}

	foreign := func(path string) {
		r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:9620"+path, nil)
		r.RemoteAddr = "127.0.0.1:1234"
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		c.server.ServeHTTP(httptest.NewRecorder(), r)
	}
	const run = "/api/v1/runs/nightly%23none/retry"
	for range 50 {
		c.post(run, "", 404)
		foreign(run)
		foreign(reloadPath)
	}
	refused := log.lines(t, "action is refused")
	if len(refused) != 3 || refused[0]["level"] != "WARN" || refused[0]["status"] != 404.0 || refused[0]["on"] != "nightly#none" ||
		refused[1]["status"] != 403.0 || refused[2]["action"] != "reload config" {
		t.Errorf("the log has %v, want one line of each kind", refused)
	}
	c.server.flush(t.Context(), true)
	repeated := log.lines(t, "action is refused")
	if len(repeated) != 3 || repeated[0]["times"] != 49.0 {
		t.Errorf("the log has %v, want the numbers of those that followed", repeated)
	}
	for i := range 1000 {
		c.post(fmt.Sprintf("/api/v1/runs/nightly%%23%d/retry", i), "", 404)
	}
	c.server.flush(t.Context(), true)
	if n := len(log.lines(t, "action is refused")); n > lineKinds+1 || n < lineKinds/2 {
		t.Errorf("a thousand refusals are %d lines, want at most %d", n, lineKinds+1)
	}
}

// Requests that are refused before any lookup are also lines.
func TestRefusedSignInsToActAreLogged(t *testing.T) {
	t.Parallel()
	g, log := newGuarded(t, Auth{Mode: AuthToken, TokenFile: secretFile(t, "0123456789abcdef")}, "127.0.0.1:0"), new(journal)
	g.o.Logger = slog.New(slog.NewJSONHandler(log, nil))
	g.asks(http.MethodPost, "/api/v1/jobs/nightly/pause", bearing("Bearer", "wrong"))
	g.asks(http.MethodGet, "/api/v1/jobs", bearing("Bearer", "wrong"))
	if lines := log.lines(t, "action is refused"); len(lines) != 1 || lines[0]["status"] != 401.0 || lines[0]["who"] != "http 192.0.2.7" ||
		lines[0]["on"] != "/api/v1/jobs/nightly/pause" {
		t.Errorf("the log has %v", lines)
	}
}
