package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/worker"
)

// console is a server with an operator on a real ledger.
type console struct {
	*stage
	server   *Server
	operator *admin.Operator
	job      *jobs.Job
	queue    string
	header   http.Header // of requests, in addition to the usual ones
}

func newConsole(t *testing.T, rdb *redis.Client) *console {
	t.Helper()
	s := newStage(t, rdb)
	client, err := queue.New(rdb, s.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	c := &console{stage: s, queue: "q-" + s.Namespace}
	if err := client.Own(t.Context(), []string{c.queue}); err != nil {
		t.Fatal(err)
	}
	c.operator = admin.NewOperator(s.Ledger, client, worker.NewPusher(client, s.Ledger).Push, nil, func(err error) { t.Error(err) })
	if c.server, err = New(Options{Reader: s.reader, Operator: c.operator, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	c.job = &jobs.Job{
		Name: "nightly", Schedule: "0 2 * * *", Timezone: "Europe/Berlin", Command: []string{"true"}, Queue: c.queue,
		Overlap: jobs.OverlapSkip, OnMissed: jobs.MissedLast, OnCrash: jobs.CrashRerun, MaxCrashes: 3,
		History: jobs.History{Runs: 100, For: 1000 * time.Hour},
	}
	if _, err := s.Ledger.Register(t.Context(), "config", []*jobs.Job{c.job}); err != nil {
		t.Fatal(err)
	}
	return c
}

// post sends a body and decodes the answer without this package's types.
func (c *console) post(path, body string, want int) map[string]any {
	c.t.Helper()
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Host, r.RemoteAddr = "127.0.0.1:9620", "127.0.0.1:1234"
	w := httptest.NewRecorder()
	c.server.ServeHTTP(w, r)
	var answer map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != want {
		c.t.Fatalf("%s %s: %d, %s (%v), want %d", path, body, w.Code, w.Body, err, want)
	}
	return answer
}

// TestARequestThatAWorkerWillRecordIsAccepted, whatever has cut off its sender: a client must not
// send it again.
func TestARequestThatAWorkerWillRecordIsAccepted(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{context.DeadlineExceeded, locks.ErrStale, jobs.ErrTooLarge} {
		if got := statusOf(fmt.Errorf("%w: %w", ledger.ErrPending, cause)); got != http.StatusAccepted {
			t.Errorf("after %v: got the status %d, want 202", cause, got)
		}
	}
}

// TestAListOfRequestsOverHTTP: each item has its own status, and an atomic list is recorded whole
// or not at all.
func TestAListOfRequestsOverHTTP(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		const enqueue = "/api/v1/enqueue"
		items := func(answer map[string]any) (lines []string) {
			for _, item := range answer["items"].([]any) {
				i := item.(map[string]any)
				lines = append(lines, fmt.Sprintf("%v %v %v %t", i["status"], i["id"], i["state"], i["error"] != nil))
			}
			return lines
		}
		good := `{"job": "nightly", "id": "a", "args": {"a": 1}}, {"job": "nightly", "id": "b", "in": "1h"}, {"job": "nightly", "id": "a"}`
		bad := `{"job": "nobody"}, {"job": "nightly", "id": "a b"}, {"id": "x"}, {"job": "nightly", "in": "5"}, ` +
			`{"job": "nightly", "args": "` + strings.Repeat("x", jobs.DefaultMaxArgs) + `"}, ` +
			`{"job": "nightly", "wat": 1}, {"job": "nightly", "at": "tomorrow"}, {"job": "nightly", "id": 5}, 7, null`
		for _, refused := range []string{
			`{"items": [` + good + `, {"job": "nobody"}], "atomic": true}`,
			`{"items": [` + good + `, {"job": "nightly", "id": "a b"}], "atomic": true}`,
			`{"items": [` + good + `, {"job": "nightly", "id": 5}], "atomic": true}`,
		} {
			r := httptest.NewRequest(http.MethodPost, enqueue, strings.NewReader(refused))
			r.Host, r.RemoteAddr = "127.0.0.1:9620", "127.0.0.1:1234"
			w := httptest.NewRecorder()
			c.server.ServeHTTP(w, r)
			if w.Code < 400 || w.Code >= 500 || !strings.Contains(w.Body.String(), `items[3]: `) {
				t.Errorf("%s: got %d, %s, want it to name items[3]", refused, w.Code, w.Body)
			}
		}
		want := []string{"201 nightly#a due false", "201 nightly#b scheduled false", "200 nightly#a due false", "404 <nil> <nil> true",
			"400 <nil> <nil> true", "400 <nil> <nil> true", "400 <nil> <nil> true", "413 <nil> <nil> true",
			"400 <nil> <nil> true", "400 <nil> <nil> true", "400 <nil> <nil> true", "400 <nil> <nil> true", "400 <nil> <nil> true"}
		if got := items(c.post(enqueue, `{"items": [`+good+`, `+bad+`]}`, 207)); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := items(c.post(enqueue, `{"items": [{"job": "nightly", "id": "b"}, {"job": "nightly", "id": "c"}], "atomic": true}`, 207)); !slices.Equal(got,
			[]string{"200 nightly#b scheduled false", "201 nightly#c due false"}) {
			t.Errorf("atomic: got %q", got)
		}
		if got := items(c.post(enqueue, `{"items": []}`, 207)); len(got) > 0 {
			t.Errorf("an empty list: got %q", got)
		}
		for _, wrong := range []string{`{"job": "nightly", "items": []}`, `{"items": [], "id": "x"}`, `{"job": "nightly", "atomic": true}`,
			`{"items": [{"job": "nightly"]}`, `{"items": {}}`, `{"items": [], "reason": "x"}`, `{"items": [{"job": "nightly"}], "items": [{"job": "nightly"}]}`} {
			c.post(enqueue, wrong, 400)
		}
		c.post(enqueue+"?wait=1s", `{"items": []}`, 400)
		c.post("/api/v1/jobs/nightly/run", `{"items": []}`, 400)
		long := c.post(enqueue, `{"items": [`+strings.Repeat(`{"job": "nightly"},`, 1000)+`{"job": "nightly"}]}`, 413)
		if detail := long["detail"].(string); !strings.Contains(detail, "items[1000]") || !strings.Contains(detail, "1001 requests") {
			t.Errorf("1,001 requests: %s", detail)
		}
		c.post(enqueue, `{"items": [{"job": "nightly", "args": "`+strings.Repeat("x", listMost)+`"}]}`, 413)
		if thousand := items(c.post(enqueue, `{"items": [`+strings.Repeat(`{"job": "nightly"},`, 999)+`{"job": "nightly"}]}`, 207)); len(thousand) != 1000 {
			t.Errorf("1,000 requests: %d replies", len(thousand))
		}
	})
}

func TestWhatPeopleDoOverHTTP(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		const v1 = "/api/v1/"

		if job := c.post(v1+"jobs/nightly/pause", `{"reason": "the partner is down"}`, 200); job["paused"] != "by http 127.0.0.1: the partner is down" {
			t.Errorf("paused %v, want the user and the reason", job["paused"])
		}
		if job := c.post(v1+"jobs/nightly/resume", "", 200); job["paused"] != nil {
			t.Errorf("paused %v, want it to go on", job["paused"])
		}
		c.post(v1+"jobs/nobody/pause", "{}", 404)

		run := c.post(v1+"enqueue", `{"job": "nightly", "id": "x", "args": {"a": 1}}`, 201)
		if run["id"] != "nightly#x" || run["state"] != "due" || run["trigger"] != "enqueue" {
			t.Errorf("%v, want the new run", run)
		}
		if waits, _ := run["waiting_for"].(map[string]any); waits["reason"] != "worker" {
			t.Errorf("%v, want that no worker serves its queue", run)
		}
		c.post(v1+"enqueue", `{"job": "nightly", "id": "x"}`, 200)
		large := strings.Repeat("x", jobs.DefaultMaxArgs)
		if problem := c.post(v1+"enqueue", `{"job": "nightly", "id": "large", "args": {"a": "`+large+`"}}`, 413); !strings.Contains(problem["detail"].(string), "limits.args") {
			t.Errorf("%v, want that it names the limit", problem)
		}
		c.post(v1+"runs/"+url.PathEscape("nightly#large")+"/cancel", "", 404)
		if run := c.post(v1+"enqueue", `{"job": "nightly", "in": "1h"}`, 201); run["state"] != "scheduled" {
			t.Errorf("%v, want it scheduled", run)
		}
		for _, bad := range []string{`{}`, `{"job": "nightly", "in": "5"}`, `{"job": "nightly", "wat": 1}`, `[`, `{} {}`, `{"job": "nightly", "id": "a b"}`} {
			c.post(v1+"enqueue", bad, 400)
		}
		if run := c.post(v1+"jobs/nightly/run", `{"reason": "again", "id": "byhand"}`, 201); run["trigger"] != "hand" {
			t.Errorf("%v, want it made by hand", run)
		}

		id := url.PathEscape("nightly#x")
		c.post(v1+"runs/"+id+"/retry", "", 409)
		if run := c.post(v1+"runs/"+id+"/cancel", `{"reason": "wrong"}`, 200); run["state"] != "canceled" || run["reason"] != "canceled by http 127.0.0.1: wrong" {
			t.Errorf("%v, want it canceled", run)
		}
		c.post(v1+"runs/"+id+"/cancel", "", 409)
		if run := c.post(v1+"runs/"+id+"/retry", "", 200); run["state"] != "due" || run["args"].(map[string]any)["a"] != 1.0 {
			t.Errorf("%v, want it due with its arguments", run)
		}
		c.post(v1+"runs/nightly%23none/retry", "", 404)

		if q := c.post(v1+"queues/"+c.queue+"/pause", "", 200); q["paused"] != true {
			t.Errorf("%v, want it paused", q)
		}
		if q := c.post(v1+"queues/"+c.queue+"/resume", "", 200); q["paused"] != false {
			t.Errorf("%v, want it open", q)
		}
		c.post(v1+"queues/none/pause", "", 404)

		w := c.Open("w", nil)
		c.post(v1+"workers/nobody.12345678/drain", "", 404)
		if _, err := c.operator.DrainWorker(t.Context(), w.Session(), admin.Actor{Who: "ann"}); err != nil {
			t.Error(err)
		}

		acts := getList(t, c.server, v1+"audit?limit=3")
		if got := acts.names("what"); strings.Join(got, ", ") != "drain worker, resume queue, pause queue" || acts.NextCursor == nil {
			t.Fatalf("%q, %v, want the last three and more to come", got, acts.NextCursor)
		}
		rest := getList(t, c.server, v1+"audit?limit=10&cursor="+*acts.NextCursor)
		if got := strings.Join(rest.names("what"), ", "); got != "retry run, cancel run, run job, enqueue, resume job, pause job" {
			t.Errorf("%q, want the rest", got)
		}
	})
}

func TestOtherOriginsChangeNothing(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	for name, change := range map[string]func(r *http.Request){
		"another site":              func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"another origin":            func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
		"a name that points to us":  func(r *http.Request) { r.Host = "evil.example:9620" },
		"the same with its headers": func(r *http.Request) { r.Host = "evil.example"; r.Header.Set("Sec-Fetch-Site", "same-origin") },
	} {
		r := httptest.NewRequest(http.MethodPost, "/api/v1/jobs/nightly/pause", nil)
		r.Host = "127.0.0.1:9620"
		change(r)
		w := httptest.NewRecorder()
		c.server.ServeHTTP(w, r)
		checkProblem(t, w, http.StatusForbidden, map[bool]string{true: "another origin", false: "admin.hosts"}[strings.HasPrefix(name, "another")])
		if record, err := c.Ledger.Job(t.Context(), "nightly"); err != nil || record.Paused != "" {
			t.Errorf("%s: paused %q, %v", name, record.Paused, err)
		}
	}
	checkProblem(t, get(c.server, "/api/v1/jobs/nightly/pause"), http.StatusMethodNotAllowed, "POST")
}

func TestASpanIsReplayedOrSkipped(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		record, err := c.Ledger.Job(t.Context(), "nightly")
		if err != nil {
			t.Fatal(err)
		}
		by := admin.Actor{Who: "ann", Why: "disk was full"}
		from, to := record.Cursor.Add(-72*time.Hour), record.Cursor
		n, err := c.operator.Replay(t.Context(), "nightly", from, to, admin.SameKeys, by)
		if err != nil || n != 3 {
			t.Fatalf("%d, %v, want the three ticks of three days", n, err)
		}
		if n, err = c.operator.Replay(t.Context(), "nightly", from, to, admin.SameKeys, by); err != nil || n != 0 {
			t.Errorf("%d, %v, want those that are outstanding left alone", n, err)
		}
		if n, err = c.operator.Replay(t.Context(), "nightly", from, to, admin.NewKeys, by); err != nil || n != 0 {
			t.Errorf("%d, %v, want outstanding ticks left alone under new keys, too", n, err)
		}
		if _, err = c.operator.Replay(t.Context(), "nightly", from, to.Add(48*time.Hour), admin.SameKeys, by); err == nil || !strings.Contains(err.Error(), "come by themselves") {
			t.Errorf("%v, want ticks to come refused", err)
		}
		if n, err = c.operator.Skip(t.Context(), "nightly", from, to, by); err != nil || n != 3 {
			t.Errorf("%d, %v, want the outstanding ones skipped", n, err)
		}
		ticks, err := c.reader.Ticks(t.Context(), "nightly", 0)
		if err != nil || len(ticks) != 3 {
			t.Fatalf("%v, %v, want three ticks", ticks, err)
		}
		for _, tick := range ticks {
			if tick.Outcome != string(ledger.StateSkipped) || tick.Reason != "skipped by ann: disk was full" {
				t.Errorf("%+v, want it skipped with the user and the reason", tick)
			}
		}
	})
}

func TestLocksAreReleasedOverHTTP(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		client := c.Open("w", nil)
		const path = "/api/v1/locks/bill:1/release"
		hold, err := client.Acquire(t.Context(), locks.Exclusive("bill:1", "bill:2"))
		if err != nil {
			t.Fatal(err)
		}
		body := func(token locks.Token, more string) string {
			return `{"token": "` + token.String() + `", "reason": "it is stuck"` + more + `}`
		}
		for text, want := range map[string]int{
			`{"reason": "it is stuck"}`:                  400,
			`{"token": "x", "reason": "it is stuck"}`:    400,
			`{"token": 5, "reason": "it is stuck"}`:      400, // a client would round a number
			`{"token": "` + hold.Token().String() + `"}`: 400,
			body(hold.Token()+1, ""):                     409,
		} {
			c.post(path, text, want)
		}
		c.post("/api/v1/locks/free/release", body(hold.Token(), ""), 409)
		if hold.Lost() != nil {
			t.Fatal("a refused release ended the hold")
		}

		lock := c.post(path, body(hold.Token(), ""), 200)
		asked := lock["holders"].([]any)[0].(map[string]any)["asked"].(map[string]any)
		if asked["force"] != "take" || asked["by"] != "http 127.0.0.1" || asked["reason"] != "it is stuck" {
			t.Errorf("got %v, want the user and the reason", asked)
		}
		<-hold.Context().Done()
		var revoked *locks.RevokedError
		if !errors.As(hold.Lost(), &revoked) || revoked.Revocation.Reason != "it is stuck" {
			t.Errorf("the holder learnt %v", hold.Lost())
		}
		_ = hold.Release() // its error reports that it was lost

		kept, err := client.Acquire(t.Context(), locks.Exclusive("bill:1"), locks.MinHold(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if err := kept.Release(); err != nil {
			t.Fatal(err)
		}
		c.post(path, body(kept.Token(), ""), 409) // no holder is left to answer
		if lock := c.post(path, body(kept.Token(), `, "force": true`), 200); len(lock["holders"].([]any)) != 0 {
			t.Errorf("got %v, want it free", lock)
		}
		acts := getList(t, c.server, "/api/v1/audit?limit=3")
		if got := strings.Join(acts.names("what"), ", "); got != "release lock, release lock" {
			t.Errorf("the audit has %s", got)
		}
	})
}

func TestAReplayUnderNewKeysIsLinkedWithItsTick(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	record, err := c.Ledger.Job(t.Context(), "nightly")
	if err != nil {
		t.Fatal(err)
	}
	by := admin.Actor{Who: "ann"}
	from, to := record.Cursor.Add(-72*time.Hour), record.Cursor
	if _, err := c.operator.Replay(t.Context(), "nightly", from, to, admin.SameKeys, by); err != nil {
		t.Fatal(err)
	}
	if _, err := c.operator.Skip(t.Context(), "nightly", from, to, by); err != nil {
		t.Fatal(err)
	}
	if n, err := c.operator.Replay(t.Context(), "nightly", from, to, admin.NewKeys, by); err != nil || n != 3 {
		t.Fatalf("%d, %v, want a new run for each of three ticks", n, err)
	}
	ticks, err := c.reader.Ticks(t.Context(), "nightly", 0)
	if err != nil || len(ticks) != 3 {
		t.Fatalf("%v, %v, want three ticks", ticks, err)
	}
	for _, tick := range ticks {
		run, _, err := c.reader.Run(t.Context(), tick.RunID)
		if err != nil || run.LedTo == nil || len(run.LedTo.Runs) != 1 {
			t.Fatalf("%s: got %+v, %v, want the run that repeats it", tick.RunID, run, err)
		}
		replay, _, err := c.reader.Run(t.Context(), run.LedTo.Runs[0])
		if err != nil || jobs.RunID(replay.Parent) != tick.RunID {
			t.Errorf("%s: got %+v, %v, want the parent %s", run.LedTo.Runs[0], replay, err, tick.RunID)
		}
	}
}

// TestAListThatIsTooLongTakesNoMemoryForItsItems counts all allocations, so it runs alone. The body
// itself takes some three times its length while it arrives.
func TestAListThatIsTooLongTakesNoMemoryForItsItems(t *testing.T) {
	const most = 64 << 20
	n := listMost/2 - 10
	body := `{"items":[0` + strings.Repeat(",0", n-1) + `]}`
	r := httptest.NewRequest(http.MethodPost, "/api/v1/enqueue", strings.NewReader(body))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := readBody[order](httptest.NewRecorder(), r, listMost)
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > most {
		t.Errorf("%d items of 2 bytes: %d MiB were allocated, want at most %d", n, taken>>20, most>>20)
	}
	if len(got.Items) > ledger.MaxRequests {
		t.Errorf("%d items are kept, want at most %d", len(got.Items), ledger.MaxRequests)
	}
	if want := fmt.Sprintf("items[1000]: the list has %d requests, and at most 1000 are taken", n); !errors.Is(err, jobs.ErrTooLarge) || !strings.Contains(err.Error(), want) {
		t.Errorf("got the error %v, want %q", err, want)
	}
}

// TestOnlyTheItemsOfAListAreCounted: commas in strings, objects and lists separate no items.
func TestOnlyTheItemsOfAListAreCounted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`null`: 0, `[]`: 0, `[ 0 ]`: 0, `[0,1]`: 1, `[[1,2],{"a":1,"b":[2,3]},4]`: 2, `["a,b","\",","\\\"","]",5]`: 4, `["\u0022,",{"\\":","}]`: 1,
	} {
		if got := commas([]byte(text)); got != want {
			t.Errorf("%s: got %d commas, want %d", text, got, want)
		}
	}
	bad := `{"items":[` + strings.Repeat(`{"job":"a,b","args":[1,2]},`, 999) + `"]"]}`
	var got order
	if err := json.Unmarshal([]byte(bad), &got); err != nil || len(got.Items) != 1000 || got.Items[0].Job != "a,b" || got.Items[999].unread == nil {
		t.Errorf("1000 items with commas: got %d of them, %v, want the last one alone unread", len(got.Items), err)
	}
}

// posts sends a request to the API and returns the reply.
func (c *console) posts(path, body string, want int) string {
	c.t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/api/v1/"+path, strings.NewReader(body))
	r.Host = "127.0.0.1:9620"
	maps.Copy(r.Header, c.header)
	w := httptest.NewRecorder()
	c.server.ServeHTTP(w, r)
	if w.Code != want {
		c.t.Fatalf("%s %s: got %d, %s, want %d", path, body, w.Code, w.Body, want)
	}
	return w.Body.String()
}

func TestARequestMayNameItsParent(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	c.posts("enqueue", `{"job": "nightly", "id": "parent"}`, http.StatusCreated)
	for _, test := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"enqueue", `{"job": "nightly", "id": "child", "parent": "nightly#parent"}`, http.StatusCreated, `"parent":"nightly#parent"`},
		// of another namespace
		{"enqueue", `{"job": "nightly", "id": "alone", "parent": "nightly#nothing"}`, http.StatusCreated, ""},
		{"enqueue", `{"job": "nightly", "parent": "nothing"}`, http.StatusBadRequest, "the body: parent: run id"},
		{"jobs/nightly/run", `{"parent": "nightly#parent"}`, http.StatusBadRequest, "takes args, id and reason"},
	} {
		got := c.posts(test.path, test.body, test.status)
		if !strings.Contains(got, test.want) || test.want == "" && strings.Contains(got, `"parent"`) {
			t.Errorf("%s: got %s, want %q", test.body, got, test.want)
		}
	}

	// The service of an HTTP job passes on the header that it got.
	c.header = http.Header{"Lockstep-Run-Id": {"nightly#parent"}}
	for id, parent := range map[string]string{"by-header": "nightly#parent", "by-body": "nightly#child"} {
		body := `{"job": "nightly", "id": "` + id + `"}`
		if id == "by-body" {
			body = `{"job": "nightly", "id": "by-body", "parent": "nightly#child"}`
		}
		if got := c.posts("enqueue", body, http.StatusCreated); !strings.Contains(got, `"parent":"`+parent+`"`) {
			t.Errorf("%s: got %s, want the parent %s", id, got, parent)
		}
	}
	c.header = http.Header{"Lockstep-Run-Id": {"nothing"}}
	if got := c.posts("enqueue", `{"job": "nightly", "id": "odd"}`, http.StatusBadRequest); !strings.Contains(got, "the header Lockstep-Run-Id: run id") {
		t.Errorf("a malformed header: got %s", got)
	}
}
