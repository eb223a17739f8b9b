package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
)

func TestSpansOfTicksAreReplayedAndSkippedOverHTTP(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		const path = "/api/v1/jobs/nightly/"
		record := must(c.Ledger.Job(t.Context(), "nightly"))
		span := func(from, to time.Time, more string) string {
			return fmt.Sprintf(`{"from": %q, "to": %q, "reason": "disk was full"%s}`, from.Format(time.RFC3339), to.Format(time.RFC3339), more)
		}
		from, to := record.Cursor.Add(-72*time.Hour), record.Cursor.Truncate(time.Second)
		if dry := c.post(path+"replay", span(from, to, `, "dry_run": true`), 200); dry["ticks"] != 3.0 || dry["runs"] != 0.0 || dry["dry_run"] != true {
			t.Errorf("%v, want three ticks counted", dry)
		}
		if ticks := must(c.reader.Ticks(t.Context(), "nightly", 0)); len(ticks) != 0 {
			t.Fatalf("the dry run made %+v", ticks)
		}
		if done := c.post(path+"replay", span(from, to, ""), 200); done["runs"] != 3.0 || done["job"] != "nightly" {
			t.Errorf("%v, want three runs", done)
		}
		if dry := c.post(path+"skip", span(from, to, `, "dry_run": true`), 200); dry["ticks"] != 3.0 || dry["runs"] != 0.0 {
			t.Errorf("%v, want three ticks counted", dry)
		}
		if done := c.post(path+"skip", span(from, to, ""), 200); done["runs"] != 3.0 {
			t.Errorf("%v, want the runs that have not started ended", done)
		}
		for body, want := range map[string]int{
			`{}`: 400, `{"from": "yesterday", "to": "today"}`: 400, span(to, from, ""): 400, span(from, to.Add(48*time.Hour), ""): 400,
			span(from.Add(-10*365*24*time.Hour), to, ""): 400, `{"from": 1}`: 400,
		} {
			c.post(path+"replay", body, want)
		}
		c.post(path+"skip", span(from, to, `, "new_keys": true`), 400)
		c.post("/api/v1/jobs/nobody/replay", span(from, to, ""), 404)
		c.post("/api/v1/jobs/%00%22/skip", span(from, to, ""), 404)
		acts := getList(t, newServerOf(t, c.reader), "/api/v1/audit")
		if got := strings.Join(acts.names("what"), ", "); got != "skip ticks, replay ticks" {
			t.Errorf("the audit has %s", got)
		}
	})
}

func TestARequestWaitsForTheEndOfItsRun(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		const path = "/api/v1/enqueue?wait="
		if run := c.post(path+"100ms", `{"job": "nightly", "id": "slow"}`, 202); run["id"] != "nightly#slow" || run["state"] != "due" {
			t.Errorf("%v, want the run as it is", run)
		}
		ended := make(chan error, 1)
		go func() { // ends the run when it exists
			for t.Context().Err() == nil {
				if _, err := c.operator.CancelRun(t.Context(), "nightly#quick", admin.Actor{Who: "ann"}); err == nil {
					ended <- nil
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
			ended <- t.Context().Err()
		}()
		if run := c.post(path+"1m", `{"job": "nightly", "id": "quick"}`, 201); run["state"] != "canceled" {
			t.Errorf("%v, want the run as it ended", run)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if run := c.post(path+"1m", `{"job": "nightly", "id": "quick"}`, 200); run["state"] != "canceled" {
			t.Errorf("%v, want the end of a run that existed", run)
		}
		for _, wait := range []string{"5", "0s", "-1s", "6m", "forever"} {
			c.post(path+wait, `{"job": "nightly", "id": "never"}`, 400)
		}
		c.post("/api/v1/enqueue?wate=1s", `{"job": "nightly", "id": "never"}`, 400)
		if _, _, err := c.reader.Run(t.Context(), "nightly#never"); err == nil {
			t.Error("a refused request made a run")
		}

		// Beyond the bound a request gets its run at once.
		c.server.waiting.Store(waitersMost)
		if run := c.post(path+"1m", `{"job": "nightly", "id": "crowd"}`, 202); run["state"] != "due" {
			t.Errorf("%v, want the run as it is", run)
		}
		if n := c.server.waiting.Load(); n != waitersMost {
			t.Errorf("%d requests are counted, want %d", n, waitersMost)
		}
	})
}

func TestAConfigIsCheckedOverHTTP(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	c.post("/api/v1/config/check", "", 404) // this process has no config
	c.server.o.Worker = func() string { return "web-1.x" }
	checked := &admin.ConfigCheck{Errors: []admin.ConfigProblem{{At: "a.yaml:1:2", Code: "unknown-key", Message: `unknown key "<b>"`}}}
	c.server.o.Check = func(context.Context) (*admin.ConfigCheck, error) { return checked, nil }
	answer := c.post("/api/v1/config/check", "", 200)
	if answer["ok"] != false || answer["worker"] != "web-1.x" || answer["errors"].([]any)[0].(map[string]any)["at"] != "a.yaml:1:2" {
		t.Errorf("%v, want the errors of the worker's files", answer)
	}
	c.post("/api/v1/config/check", `{"worker": "x"}`, 400)
	checkProblem(t, get(c.server, "/api/v1/config/check"), http.StatusMethodNotAllowed, "POST")
	r := httptest.NewRequest(http.MethodPost, "/api/v1/config/check", nil)
	r.Host = "127.0.0.1:9620"
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	c.server.ServeHTTP(w, r)
	checkProblem(t, w, http.StatusForbidden, "another origin")
	if acts := getList(t, c.server, "/api/v1/audit").Items; len(acts) != 0 {
		t.Errorf("the audit has %v, want nothing of a check", acts)
	}
}
