package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/admin/web"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/worker"
)

// desk is a real ledger with a job, and an operator.
type desk struct {
	*fakes.Stage
	queue    *queue.Client
	operator *admin.Operator
	job      *jobs.Job
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	rdb := redistest.Client(t)
	d := &desk{Stage: fakes.NewStage(t, rdb)}
	var err error
	if d.queue, err = queue.New(rdb, d.Namespace); err != nil {
		t.Fatal(err)
	}
	d.job = &jobs.Job{
		Name: "nightly", Schedule: "0 2 * * *", Timezone: "Europe/Berlin", Command: []string{"true"}, Queue: "q-" + d.Namespace,
		Overlap: jobs.OverlapSkip, OnMissed: jobs.MissedLast, OnCrash: jobs.CrashRerun, MaxCrashes: 3,
		History: jobs.History{Runs: 100, For: 1000 * time.Hour},
	}
	if err := d.queue.Own(t.Context(), []string{d.job.Queue}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Ledger.Register(t.Context(), "config", []*jobs.Job{d.job}); err != nil {
		t.Fatal(err)
	}
	d.operator = admin.NewOperator(d.Ledger, d.queue, worker.NewPusher(d.queue, d.Ledger).Push, nil, func(err error) { t.Error(err) })
	return d
}

// options are those of a server that has every path.
func (d *desk) options(reader *admin.Reader) web.Options {
	config, reloads := &admin.Config{Places: map[string]string{"nightly": "lockstep.yaml:3", "warm-cache": "lockstep.yaml:5"}}, 0
	problems := []admin.ConfigProblem{{At: "lockstep.yaml:3:5", Code: "unknown-key"}}
	return web.Options{
		Reader: reader.WithQueues(d.queue), Operator: d.operator, Worker: func() string { return "web-1.x" },
		Config: func() *admin.Config { return config },
		Reload: func(context.Context) error {
			if reloads++; reloads > 1 {
				config = &admin.Config{RefusedAt: admin.Instant{Time: fakes.Noon}, Problems: problems}
			}
			return nil
		},
		Check: func(context.Context) (*admin.ConfigCheck, error) {
			return &admin.ConfigCheck{Files: []string{}, Errors: problems, Warnings: []admin.ConfigProblem{},
				Added: []string{}, Changed: []string{}, Removed: []string{}, NeedsRestart: []string{}}, nil
		},
	}
}

// fleet is [fakes.Fleet] with an act and an ended hold.
func fleet() *fakes.Fake {
	f := fakes.Fleet()
	f.Done = []ledger.ActRecord{{ID: "1795222979000-0", At: fakes.Noon, First: fakes.Noon,
		Act: ledger.Act{Who: "ann", What: "pause job", On: "warm-cache", Why: "the shop is closed"}}}
	f.KeptSince = fakes.Noon.Add(-time.Hour)
	f.Ends = []space.Entry{{Position: "1-1", ID: "web-9.00000001.1", Session: "web-9.00000001", Token: 7, Since: fakes.Noon.Add(-time.Hour),
		To: fakes.Noon.Add(-time.Minute), Ended: space.EndCrashed, Names: []string{"bill:1001"}}}
	return f
}

func TestRepliesMatchTheirDocument(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	d, f := newDesk(t), fleet()
	whole := newContract(t, serve(t, d.options(admin.ReaderOf(f, f))), seen)
	whole.reads(t)
	whole.refusesUndeclared(t)
	newContract(t, serve(t, d.options(admin.NewReader(d.Ledger))), seen).acts(t, d)
	outage(t, d, seen)
	signIns(t, d, seen)
	for _, promise := range whole.unseen() {
		t.Errorf("no request of this test shows %q: add one, with a reply that is not an empty list", promise)
	}
}

// reads sends the requests that change nothing.
func (c *contract) reads(t *testing.T) {
	t.Helper()
	read := func(path string) { t.Helper(); c.send(t, http.MethodGet, v1+path, "", http.StatusOK) }
	for _, path := range []string{
		"jobs", "jobs?limit=2", "jobs?q=night&job=nightly-backup&state=succeeded&lock=job:nightly-backup&queue=default", "jobs?error=bank",
		"jobs/nightly-backup", "jobs/settle-bills", "jobs/warm-cache", "jobs/nightly-backup/ticks?limit=2",
		"jobs/nightly-backup/ticks?q=backup&state=failed&worker=web-1&since=2026-11-01T00:00:00Z&until=1m&error=disk",
		"jobs/nightly-backup/explain?at=2026-11-19T01:00:00Z", "jobs/settle-bills/explain?run=settle-bills%23second",
		"jobs/next", "jobs/next?until=24h&job=warm-cache&queue=default&limit=2",
		"runs", "runs?q=second&job=settle-bills&state=waiting&lock=bill:1001&queue=critical", "runs?worker=web-1&since=2000h&until=1m&error=bank",
		"runs/settle-bills%23second/output", "runs/nightly-backup%402026-11-20T01:00:00Z/output?attempt=1",
		"runs/nightly-backup%402026-11-20T01:00:00Z/output?follow=false",
		"locks", "locks?q=bill&job=settle-bills&worker=web-2&lock=bill:1001", "locks/bill:1001", "locks/bill:1003", "locks/free",
		"waits", "waits?q=second&job=settle-bills&state=waiting&worker=web-2&lock=bill:1001&since=1h&until=1s",
		"holds", "holds?since=90m&until=1m&worker=web-2&lock=bill:1001&job=settle-bills", "holds?kind=hold", "holds?kind=wait",
		"workers", "workers?q=web&job=settle-bills&state=draining&worker=web-2&lock=bill:1001&queue=default", "workers/web-2.p91qd3f7",
		"config", "config/jobs", "whoami", "audit", "audit?q=closed&job=warm-cache&worker=web-1&lock=bill:1001&queue=default&since=1h&until=1m",
		"openapi.json", "overview",
	} {
		read(path)
	}
	for _, note := range admin.Notes {
		read("jobs?note=" + url.QueryEscape(note))
	}
	read("runs?group=error")
	for _, by := range admin.Groupings() {
		read("holds?group=" + by)
	}
	c.page(t, "jobs?limit=1", "jobs/nightly-backup/ticks?limit=1", "jobs/next?limit=1", "runs?limit=1", "locks?limit=1", "waits?limit=1",
		"holds?limit=1", "workers?limit=1", "config/jobs?limit=1")
	c.send(t, http.MethodGet, v1+"events", "", http.StatusOK, "Last-Event-ID", "x-1")
	output := v1 + "runs/nightly-backup%402026-11-20T01:00:00Z/output?follow=true"
	c.send(t, http.MethodGet, output, "", http.StatusOK)
	c.send(t, http.MethodGet, output, "", http.StatusNoContent, "Last-Event-ID", "end")
	for path, status := range map[string]int{"jobs?limit=0": 400, "jobs/none": 404, "runs/none/output": 404} {
		c.send(t, http.MethodGet, v1+path, "", status)
	}
}

// page reads the second page of lists.
func (c *contract) page(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		var list struct {
			NextCursor string `json:"next_cursor"`
		}
		decode(t, c.send(t, http.MethodGet, v1+path, "", http.StatusOK), &list)
		c.send(t, http.MethodGet, v1+path+"&cursor="+list.NextCursor, "", http.StatusOK)
	}
}

// refusesUndeclared sends each parameter of the document to each operation that does not declare
// it. An operation that takes one has a parameter that the document lacks.
func (c *contract) refusesUndeclared(t *testing.T) {
	t.Helper()
	declared := make(map[string][]string) // names of parameters by operation
	all := map[string]bool{"fields": true}
	for path, item := range c.document.Paths.PathItems.FromOldest() {
		for method, operation := range item.GetOperations().FromOldest() {
			at := strings.ToUpper(method) + " " + path
			declared[at] = nil
			for _, p := range operation.Parameters {
				all[p.Name] = true
				if p.In == "query" {
					declared[at] = append(declared[at], p.Name)
				}
			}
		}
	}
	for at, names := range declared {
		method, path, _ := strings.Cut(at, " ")
		path = strings.NewReplacer("{", "", "}", "").Replace(path)
		for name := range all {
			if !slices.Contains(names, name) {
				c.send(t, method, path+"?"+name+"=x", "", http.StatusBadRequest)
			}
		}
	}
}

// acts sends the requests that change something, and reads what they have changed.
func (c *contract) acts(t *testing.T, d *desk) {
	t.Helper()
	post := func(path, body string, want int) { t.Helper(); c.send(t, http.MethodPost, v1+path, body, want) }
	post("config/check", "", 200)
	post("config/reload", `{"worker": "web-1.x"}`, 200)
	post("config/reload", "", 422)
	post("config/reload", `{"worker": "other"}`, 409)
	post("jobs/nightly/pause", `{"reason": "the partner is down"}`, 200)
	post("jobs/nightly/resume", "", 200)
	post("enqueue", `{"job": "nightly", "id": "x", "args": {"a": 1}}`, 201)
	post("enqueue", `{"job": "nightly", "id": "x"}`, 200)
	post("enqueue", `{"job": "nightly", "id": "y", "parent": "nightly#x"}`, 201)
	c.send(t, http.MethodPost, v1+"enqueue", `{"job": "nightly", "id": "z"}`, 201, "Lockstep-Run-Id", "nightly#x")
	post("enqueue", `{"job": "nightly", "in": "1h"}`, 201)
	post("enqueue", `{"job": "nightly", "at": "2030-01-01T00:00:00Z"}`, 201)
	post("enqueue", `{"items": [{"job": "nightly", "id": "l1", "args": {"a": 1}, "parent": "nightly#x"}, {"job": "none"}, {"job": "nightly", "id": "x", "in": "1h"}]}`, 207)
	post("enqueue", `{"items": [{"job": "nightly", "at": "2030-01-01T00:00:00Z"}], "atomic": true}`, 207)
	post("enqueue", `{"items": [{"job": "nightly"}, {"job": "none"}], "atomic": true}`, 404)
	post("enqueue", `{"items": [{"job": "nightly", "odd": 1}], "atomic": true}`, 400)
	post("enqueue?wait=1ms", `{"job": "nightly", "id": "waited"}`, 202)
	post("enqueue", `{"job": "nightly", "odd": 1}`, 400)
	post("enqueue", `{"job": "none"}`, 404)
	post("enqueue", `{"job": "nightly", "args": "`+strings.Repeat("x", 1<<20)+`"}`, 413)
	post("jobs/nightly/run", `{"id": "hand", "reason": "again"}`, 201)
	post("jobs/nightly/run", `{"id": "hand"}`, 200)
	decided, err := d.Ledger.Job(t.Context(), "nightly")
	if err != nil {
		t.Fatal(err)
	}
	span := fmt.Sprintf(`{"from": %q, "to": %q, "dry_run": true}`, decided.Cursor.Add(-72*time.Hour).Format(time.RFC3339),
		decided.Cursor.Truncate(time.Second).Format(time.RFC3339))
	post("jobs/nightly/replay", span, 200)
	post("jobs/nightly/skip", span, 200)
	post("runs/cancel?q=waited&job=nightly&state=due", `{"dry_run": true, "expect": 1}`, 200)
	post("runs/cancel?q=waited", `{"expect": 2}`, 409)
	post("runs/cancel?worker=web-1&lock=bill:1&queue=x&since=1h&until=1m&error=disk", "", 200)
	post("runs/retry?job=nightly&since=1h", `{"reason": "the disk was full"}`, 200)
	post("runs/retry?q=none&state=failed&worker=web-1&lock=bill:1&queue=x&until=1m&error=disk", "", 200)
	post("runs/nightly%23x/cancel", `{"reason": "wrong"}`, 200)
	post("runs/nightly%23x/cancel", "", 409)
	post("runs/nightly%23x/retry", "", 200)
	post("queues/"+d.job.Queue+"/pause", `{"reason": "maintenance"}`, 200)
	post("queues/"+d.job.Queue+"/resume", "", 200)

	client := d.Open("w", &worker.Card{Host: "web-1", PID: 4711, State: "ready", Slots: 4,
		Queues: map[string]int{d.job.Queue: 1}, StartedAt: time.Now()})
	held, err := client.Acquire(t.Context(), locks.Exclusive("bill:1"))
	if err != nil {
		t.Fatal(err)
	}
	post("workers/"+url.PathEscape(string(client.Session()))+"/drain", `{"reason": "replace it"}`, 200)
	order := `{"token": "` + held.Token().String() + `", "reason": "it is stuck"`
	post("locks/bill:2/release", order+"}", 409)
	post("locks/bill:1/release", order+`, "force": false}`, 200)
	<-held.Context().Done()
	_ = held.Release() // its error reports that it was lost

	for _, path := range []string{
		"config", "jobs", "jobs/nightly", "runs", "runs/nightly%23x", "locks", "workers", "audit", "queues", "queues/" + d.job.Queue,
	} {
		c.send(t, http.MethodGet, v1+path, "", http.StatusOK)
	}
	c.page(t, "audit?limit=1")
	c.send(t, http.MethodGet, v1+"queues?limit=1&cursor=MA", "", http.StatusOK)
	var list struct{ Items []struct{ ID string } }
	decode(t, c.send(t, http.MethodGet, v1+"runs", "", http.StatusOK), &list)
	for _, run := range list.Items {
		c.send(t, http.MethodGet, v1+"runs/"+url.PathEscape(run.ID), "", http.StatusOK)
	}
}

// refusal is an error reply of Redis.
type refusal string

func (e refusal) Error() string { return string(e) }
func (refusal) RedisError()     {}

// outage reads from a Redis that fails, and from one that refuses.
func outage(t *testing.T, d *desk, seen map[string]bool) {
	t.Helper()
	for status, err := range map[int]error{http.StatusServiceUnavailable: context.DeadlineExceeded, http.StatusInternalServerError: refusal("NOPERM no")} {
		f := fakes.Fleet()
		c := newContract(t, serve(t, d.options(admin.ReaderOf(f, f))), seen)
		f.FailWith(err)
		c.send(t, http.MethodGet, v1+"jobs", "", status)
	}
}

// signIns reads and acts as a viewer, and as a client without a valid token.
func signIns(t *testing.T, d *desk, seen map[string]bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	const token = "a-token-of-a-viewer-that-is-long-enough"
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	signIn, err := web.NewSignIn(web.Auth{Mode: web.AuthToken, User: "ann", ViewerTokenFile: file}, "127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	f := fakes.Fleet()
	o := d.options(admin.ReaderOf(f, f))
	o.SignIn = signIn
	viewer := []string{"Authorization", "Bearer " + token}
	c := newContract(t, serve(t, o), seen, viewer...)
	c.send(t, http.MethodGet, v1+"jobs", "", http.StatusOK, viewer...)
	c.send(t, http.MethodPost, v1+"jobs/nightly/pause", "", http.StatusForbidden, viewer...)
	status := http.StatusUnauthorized
	for status == http.StatusUnauthorized {
		status, _ = c.exchange(t, http.MethodGet, v1+"jobs", "", "Authorization", "Bearer wrong")
	}
	if status != http.StatusTooManyRequests || !seen[problemPromise(http.StatusUnauthorized)] {
		t.Errorf("wrong tokens: got %d at last, want %d after %d", status, http.StatusTooManyRequests, http.StatusUnauthorized)
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}
