package web

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/worker"
)

// fill fills in the form of a page with its hidden and preset values, and with others.
func fill(t *testing.T, page *element, others map[string]string) url.Values {
	t.Helper()
	values := make(url.Values)
	forms := page.id("main").all("form")
	if len(forms) != 1 {
		t.Fatalf("the page has %d forms: %s", len(forms), page.text)
	}
	for _, input := range forms[0].all("input") {
		if input.attr["type"] != "checkbox" {
			values.Add(input.attr["name"], input.attr["value"])
		}
	}
	for _, area := range forms[0].all("textarea") {
		values.Set(area.attr["name"], area.text)
	}
	for name, value := range others {
		values.Set(name, value)
	}
	return values
}

// submit sends a form as a browser does, and returns the page that follows.
func (c *console) submit(path string, values url.Values, want int) *element {
	c.t.Helper()
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(values.Encode()))
	r.Host, r.RemoteAddr = "127.0.0.1:9620", "127.0.0.1:1234"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "text/html")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	w := httptest.NewRecorder()
	c.server.ServeHTTP(w, r)
	if w.Code != want {
		c.t.Fatalf("%s: got %d, want %d: %s", path, w.Code, want, w.Body)
	}
	page := parsePage(c.t, w.Body.String())
	checkSound(c.t, page)
	return page
}

func (c *console) says(page *element, wants ...string) {
	c.t.Helper()
	for _, want := range wants {
		if !strings.Contains(page.id("main").text, want) {
			c.t.Errorf("the page does not say %q: %s", want, page.id("main").text)
		}
	}
}

func (c *console) ask(path string) *element {
	c.t.Helper()
	w := browse(c.server, path)
	if w.Code != http.StatusOK {
		c.t.Fatalf("%s: got %d: %s", path, w.Code, w.Body)
	}
	return parsePage(c.t, w.Body.String())
}

func (c *console) paused() bool {
	c.t.Helper()
	job, err := c.reader.Job(c.t.Context(), "nightly")
	if err != nil {
		c.t.Fatal(err)
	}
	return job.Paused != ""
}

func TestAPageAsksBeforeItActs(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	const path = "/jobs/nightly/pause"
	if page := c.ask("/jobs/nightly"); !strings.Contains(page.text, "Pause") {
		t.Error("the page of a job has no button to pause it")
	}
	page := c.ask(path)
	c.says(page, "Its ticks are skipped from now on; the next one is", "0 runs of it are running")
	c.says(c.submit(path, fill(t, page, nil), 400), "Give a reason")
	foreign := httptest.NewRequest(http.MethodPost, path, strings.NewReader(fill(t, page, map[string]string{"reason": "x"}).Encode()))
	foreign.Host = "127.0.0.1:9620"
	foreign.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	foreign.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	c.server.ServeHTTP(w, foreign)
	checkProblem(t, w, http.StatusForbidden, "another origin")
	c.says(c.submit(path, url.Values{"reason": {"x"}, "seen": {"x"}, "more": {"x"}}, 400), "the form has the field")
	c.submit(path, url.Values{"reason": {strings.Repeat("x", 2<<20)}}, http.StatusRequestEntityTooLarge)
	if c.paused() {
		t.Fatal("a refused form paused the job")
	}
	c.says(c.submit(path, fill(t, page, map[string]string{"reason": "the partner is down"}), 200), "The job is paused.")
	if !c.paused() {
		t.Fatal("the job is not paused")
	}
	c.says(c.submit("/jobs/nightly/resume", fill(t, c.ask("/jobs/nightly/resume"), map[string]string{"reason": "it is back"}), 200), "The job is resumed.")
	c.says(c.ask("/audit"), "pause job", "the partner is down", "resume job", "it is back")
}

func TestAnActOnSomethingThatHasChangedIsNotDone(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	drawn := c.ask("/jobs/nightly/resume")
	c.post("/api/v1/jobs/nightly/pause", `{"reason": "another user"}`, 200)
	page := c.submit("/jobs/nightly/resume", fill(t, drawn, map[string]string{"reason": "x"}), 409)
	c.says(page, "It has changed since the page was drawn. Nothing was done.", "another user")
	if !c.paused() {
		t.Error("the job was resumed")
	}
	c.post("/api/v1/enqueue", `{"job": "nightly", "id": "a"}`, 201)
	drawn = c.ask("/runs/nightly%23a/cancel")
	c.says(drawn, "It is due and does not run: it ends as canceled at once.")
	c.says(c.submit("/runs/nightly%23a/cancel", fill(t, drawn, map[string]string{"reason": "x"}), 200), "The run is canceled.")
	c.says(c.submit("/runs/nightly%23a/cancel", fill(t, drawn, map[string]string{"reason": "x"}), 409), "it has ended: it is canceled")
	c.says(c.submit("/runs/nightly%23a/retry", fill(t, c.ask("/runs/nightly%23a/retry"), map[string]string{"reason": "x"}), 200), "The run is due again.")
}

func TestRunNowShowsTheLocksBeforeItSendsAnything(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	const path = "/jobs/nightly/run"
	page := c.ask(path)
	c.says(c.submit(path, fill(t, page, map[string]string{"args": "{"}), 200), "The args are not JSON.")
	page = c.submit(path, fill(t, page, map[string]string{"args": `{"a": 1}`, "id": "x"}), 200)
	c.says(page, "It locks job:nightly (exclusive).", "becomes due in the queue")
	if runs := getList(t, c.server, "/api/v1/runs"); len(runs.Items) != 0 {
		t.Fatalf("the question made a run: %v", runs.Items)
	}
	changed := c.submit(path, fill(t, page, map[string]string{"args": `{"a": 2}`, "reason": "r"}), 409)
	c.says(changed, "It has changed since the page was drawn.")
	c.says(c.submit(path, url.Values{"args": {"{"}, "seen": {""}, "reason": {"r"}}, 200), "The args are not JSON.")
	c.says(c.submit(path, fill(t, page, map[string]string{"args": `{"a": 1}`, "reason": "r"}), 200), "The run is made: nightly#x")
	c.says(c.ask("/runs/nightly%23x"), `"a": 1`)
}

func TestTheFormOfARunHidesSecretArgs(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	job := *c.job
	job.Name, job.Args, job.SecretArgs = "sync", json.RawMessage(`{"password":"hush","user":"ann"}`), []string{"password"}
	if _, err := c.Ledger.Register(t.Context(), "config", []*jobs.Job{c.job, &job}); err != nil {
		t.Fatal(err)
	}
	const path = "/jobs/sync/run"
	values := fill(t, c.ask(path), map[string]string{"id": "x"})
	if args := values.Get("args"); strings.Contains(args, "hush") || !strings.Contains(args, jobs.Hidden) {
		t.Errorf("the form has the args %s, want the password hidden", args)
	}
	page := c.submit(path, values, 200)
	c.says(c.submit(path, fill(t, page, map[string]string{"reason": "r"}), 200), "The run is made: sync#x")
	if record, _, err := c.Ledger.Find(t.Context(), "sync#x"); err != nil || !strings.Contains(string(record.Args), "hush") {
		t.Errorf("the run is %+v (%v), want the args of the job", record, err)
	}
	values.Set("args", `{"password":"(hidden)","user":"bob"}`)
	if page := c.submit(path, values, 200); strings.Contains(page.id("main").text, "becomes due") {
		t.Errorf("hidden args that were changed are taken: %s", page.text)
	}
}

func TestReleasingALockNamesWhatComesNext(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	client := c.Open("shell", nil)
	hold, err := client.Acquire(t.Context(), locks.Exclusive("bill:1"), locks.Info([]byte(`{"command":["sleep","9"]}`)))
	if err != nil {
		t.Fatal(err)
	}
	const path = "/locks/bill:1/release"
	w := browse(c.server, path+"?token=5")
	if page := parsePage(t, w.Body.String()); w.Code != http.StatusConflict || !strings.Contains(page.text, "now it is held by sleep 9") {
		t.Errorf("with another token: got %d: %s", w.Code, page.text)
	}
	page := c.ask(path + "?token=" + hold.Token().String())
	c.says(page, "It is held by sleep 9", "No request waits for bill:1: it becomes free.")
	c.says(c.submit(path, fill(t, page, map[string]string{"reason": "it is stuck"}), 200), "The holder is asked to release the lock.")
	<-hold.Context().Done()
	_ = hold.Release() // its error reports that it was lost
}

func TestPagesThatCannotActHaveNoButtons(t *testing.T) {
	t.Parallel()
	s := newServer(t, wholeFleet())
	for _, path := range []string{"/jobs/nightly-backup", "/runs/settle-bills%23second", "/locks/bill:1001", "/workers/web-1.x7k2m9qa"} {
		page := parsePage(t, browse(s, path).Body.String())
		page.each(func(e *element) {
			if e.attr["class"] == "acts" || e.attr["method"] == "post" {
				t.Errorf("%s has a button: %s", path, e.text)
			}
		})
	}
	for _, path := range []string{"/jobs/nightly-backup/pause", "/runs/settle-bills%23second/cancel", "/locks/bill:1001/release?token=1"} {
		if w := browse(s, path); w.Code != http.StatusNotFound {
			t.Errorf("%s: got %d", path, w.Code)
		}
	}
}

func TestPagesOfAViewerHaveNoButtons(t *testing.T) {
	t.Parallel()
	c, _ := newRoled(t, false)
	c.Open("web-1", &worker.Card{Host: "web-1", State: "ready", Slots: 1, Queues: map[string]int{c.queue: 1}})
	workers, err := c.reader.Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.requests(1)
	for path, least := range map[string]Role{
		"/jobs/nightly": RoleOperator, "/runs": RoleOperator, "/runs?job=nightly&group=error": RoleOperator, "/workers/" + string(workers[0].ID): RoleAdmin,
	} {
		for _, role := range roles {
			page := parsePage(t, c.sends(role, http.MethodGet, path, "", nil).Body.String())
			buttons := false
			page.each(func(e *element) {
				buttons = buttons || e.attr["class"] == "acts" || e.attr["method"] == "post" || e.attr["type"] == "checkbox"
			})
			if want := role.May(least); buttons != want {
				t.Errorf("%s of a %s: buttons %t, want %t", path, role, buttons, want)
			}
		}
	}
}
