package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// states returns the states of the first runs of the console's job.
func (c *console) states(n int) string {
	c.t.Helper()
	var states []string
	for i := range n {
		record, err := c.Ledger.FindRecord(c.t.Context(), jobs.RequestRunID("nightly", fmt.Sprint(i)))
		if err != nil {
			c.t.Fatal(err)
		}
		states = append(states, string(record.State))
	}
	return strings.Join(states, " ")
}

// bulkActs returns the details of the acts on many runs that the audit has, the last one first.
func (c *console) bulkActs() string {
	c.t.Helper()
	acts, err := c.reader.Audit(c.t.Context(), admin.Filter{})
	if err != nil {
		c.t.Fatal(err)
	}
	var details []string
	for _, act := range acts {
		if strings.HasSuffix(act.What, " runs") {
			details = append(details, fmt.Sprintf("%s on %s: %s (%s)", act.What, act.On, act.Detail, act.Why))
		}
	}
	return strings.Join(details, "; ")
}

func selection(ids ...string) url.Values { return url.Values{"run": ids, "from": {"job=nightly"}} }

func TestSelectedRunsAreCanceledAndRetried(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		c.requests(5)
		c.post("/api/v1/runs/nightly%233/cancel", "", 200)
		web := c.Open("web-1", &worker.Card{Host: "web-1", State: "ready", Slots: 1, Queues: map[string]int{c.queue: 1}})
		_, hold := c.Begin(web, c.Enqueue(c.job, "busy", "null"))

		page := c.ask("/runs?job=nightly")
		var boxes []string
		for _, input := range page.all("input") {
			if input.attr["type"] == "checkbox" && input.attr["name"] == "run" && input.attr["aria-label"] == "Select "+input.attr["value"] {
				boxes = append(boxes, input.attr["value"])
			}
		}
		if len(boxes) != 6 || !slices.Contains(boxes, "nightly#busy") {
			t.Errorf("the list has boxes for %v, want one for each run", boxes)
		}

		const cancel, retry = "/runs/cancel", "/runs/retry"
		asked := c.submit(cancel, selection("nightly#0", "nightly#1", "nightly#busy", "nightly#3", "nightly#never"), 200)
		c.says(asked, "2 runs do not run: they end as canceled at once.", "1 run is running: its worker is asked to stop it.", "By state: 2 due, 1 running.",
			"By name: nightly#0, nightly#1, nightly#busy.", "nightly#3 is skipped: it has ended (canceled).", "nightly#never is skipped: it is not known (any more).", "Cancel 3 runs")
		c.says(c.submit(cancel, fill(t, asked, nil), 400), "Give a reason")
		if got := c.states(4); got != "due due due canceled" {
			t.Errorf("the question made them %s", got)
		}
		done := c.submit(cancel, fill(t, asked, map[string]string{"reason": "wrong <day>"}), 200)
		c.says(done, "✓ 2 runs are canceled, 1 running run is asked to stop.")
		if back := done.id("main").all("a")[0].attr["href"]; back != "/runs?job=nightly" {
			t.Errorf("Back leads to %s, want the list with its filter", back)
		}
		if got := c.states(5); got != "canceled canceled due canceled due" {
			t.Errorf("they are %s, want only the selected ones canceled", got)
		}

		asked = c.submit(retry, selection("nightly#0", "nightly#1", "nightly#2"), 200)
		c.says(asked, "2 runs become due again, under their ids", "nightly#2 is skipped: it has not ended: it is due.")
		c.says(c.submit(retry, fill(t, asked, map[string]string{"reason": "the right day"}), 200), "2 runs are due again.")
		if got := c.states(5); got != "due due due canceled due" {
			t.Errorf("they are %s, want the selected ones due", got)
		}
		want := "retry runs on nightly: 2 runs: selected: nightly#0 nightly#1 nightly#2 (the right day); " +
			"cancel runs on nightly: 3 runs: selected: nightly#0 nightly#1 nightly#busy nightly#3 nightly#never (wrong <day>)"
		if got := c.bulkActs(); got != want {
			t.Errorf("the audit has %s, want %s", got, want)
		}
		if err := hold.Release(); err != nil {
			t.Error(err)
		}
	})
}

func TestRunsThatHaveChangedSinceThePageAreLeftAsTheyAre(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	c.requests(5)
	const path = "/runs/cancel"
	reason := map[string]string{"reason": "x"}
	end := func(i int) { c.post(fmt.Sprintf("/api/v1/runs/nightly%%23%d/cancel", i), "", 200) }

	drawn := c.submit(path, selection("nightly#0", "nightly#1"), 200)
	end(0)
	again := c.submit(path, fill(t, drawn, reason), 409)
	c.says(again, "The runs have changed since the page was drawn: there were 2, and now there are 1. Nothing was done.", "nightly#0 is skipped: it has ended (canceled).")
	if got := c.states(2); got != "canceled due" {
		t.Fatalf("they are %s, want nothing done", got)
	}
	c.says(c.submit(path, fill(t, again, reason), 200), "1 run is canceled.")

	// Runs that are made after the page was drawn do not match. Those that have ended refuse the
	// act, unless the form allows fewer.
	drawn = c.ask(path + "?job=nightly&since=1h")
	c.says(drawn, "3 runs do not run", "By name: nightly#4, nightly#3, nightly#2.")
	for asked := must(c.reader.Now(t.Context())); !must(c.reader.Now(t.Context())).After(asked.Add(time.Millisecond)); {
	} // the page is about all runs up to its millisecond
	c.Enqueue(c.job, "later", "null")
	end(2)
	again = c.submit(path, fill(t, drawn, reason), 409)
	c.says(again, "there were 3, and now there are 2. Nothing was done.")
	c.post("/api/v1/runs/nightly%232/retry", "", 200)
	end(3)
	c.says(c.submit(path, fill(t, again, reason), 409), "others match now, or some have started or ended. Nothing was done.")
	if got := c.states(5); got != "canceled canceled due canceled due" {
		t.Fatalf("they are %s, want nothing done", got)
	}
	end(4)
	c.says(c.submit(path, fill(t, again, map[string]string{"reason": "x", "fewer": "yes"}), 200), "1 run is canceled.")
	if run, err := c.Ledger.FindRecord(t.Context(), "nightly#later"); err != nil || run.State != ledger.StateDue {
		t.Errorf("%+v, %v, want the run that was made later as it was", run, err)
	}
	c.says(c.submit(path, fill(t, again, reason), 409), "there were 2, and now there are 0. Nothing was done.", "No run is left to act on.")
	if got := strings.Count(c.bulkActs(), "cancel runs"); got != 2 {
		t.Errorf("the audit has %d acts, want the two that were done: %s", got, c.bulkActs())
	}
}

func TestTheNumberOfManyRunsIsTyped(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	c.requests(admin.BulkTyped + 1)
	const path = "/runs/cancel"
	drawn := c.ask(path + "?job=nightly")
	c.says(drawn, "101 runs do not run", "; 91 more follow.", "Type their number, 101, to continue", "Cancel 101 runs")
	for _, number := range []string{"", "100", "y"} {
		c.says(c.submit(path, fill(t, drawn, map[string]string{"reason": "x", "number": number}), 400), "Type the number of the runs to continue. Nothing was done.")
	}
	if got := c.states(3); got != "due due due" {
		t.Fatalf("they are %s, want nothing done", got)
	}
	c.says(c.submit(path, fill(t, drawn, map[string]string{"reason": "x", "number": " 101 "}), 200), "101 runs are canceled.")
	drawn = c.ask("/runs/retry?state=canceled&q=nightly%231")
	if page := drawn.id("main").text; strings.Contains(page, "Type their number") {
		t.Errorf("a few runs ask for their number: %s", page)
	}
}

func TestRunsThatRefuseAreNamedWithTheirReasons(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	c.requests(1)
	ghost := *c.job
	ghost.Name = "ghost" // no worker carries it, so its runs cannot be retried
	c.Enqueue(&ghost, "a", "null")
	for _, id := range []string{"nightly%230", "ghost%23a"} {
		c.post("/api/v1/runs/"+id+"/cancel", "", 200)
	}
	asked := c.submit("/runs/retry", url.Values{"run": {"nightly#0", "ghost#a"}}, 200)
	done := c.submit("/runs/retry", fill(t, asked, map[string]string{"reason": "x"}), 200)
	c.says(done, "! 1 run is due again.", "1 run has refused.", "ghost#a: job ghost")
	if got := c.bulkActs(); got != "retry runs on runs: 2 runs: selected: nightly#0 ghost#a (x)" {
		t.Errorf("the audit has %s", got)
	}
	words := strings.Join(outcomeWords(&admin.Bulk{Left: 2, More: true, Refusals: []admin.Refusal{{RunID: "a#b", Why: "no reply"}}}), " ")
	if want := "2 runs are left, because of an error. Repeat the act for them. a#b: no reply More runs may match: repeat the act for them."; words != want {
		t.Errorf("got %q, want %q", words, want)
	}
}

func TestAnActOnManyRunsNeedsAFormThatCanBeMeant(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	c.requests(1)
	many := make([]string, pageRows+1)
	for i := range many {
		many[i] = fmt.Sprintf("nightly#%d", i)
	}
	c.says(c.submit("/runs/cancel", selection(many...), 400), "51 runs are selected; a page has at most 50")
	c.says(c.submit("/runs/cancel", url.Values{"from": {"%"}}, 200), "No run is selected, and no filter is given.")
	c.says(c.ask("/runs/retry"), "No run is selected")
	c.says(c.ask("/runs/cancel?job=nightly&q=nowhere"), "No run is left to act on.")
	c.says(c.submit("/runs/cancel", url.Values{"job": {"nightly"}, "dry_run": {"true"}}, 400), "the form has the field")
	for path, want := range map[string]int{
		"/runs/cancel?state=failed": 400, "/runs/cancel?state=odd": 400, "/runs/cancel?stat=due": 400, "/runs/cancel?job=nightly&job=x": 400,
		"/runs/cancel?since=soon&job=nightly": 400, "/runs/cancel?job=nobody": 404, "/runs/retry?state=succeeded": 400, "/runs?select=all": 400,
	} {
		if w := browse(c.server, path); w.Code != want {
			t.Errorf("%s: got %d, want %d", path, w.Code, want)
		}
	}
	// A typed number in an address confirms nothing.
	if page := c.ask("/runs/cancel?job=nightly&number=1&fewer=yes"); page.id("main").all("form") == nil {
		t.Errorf("the page has no form: %s", page.text)
	}
	if got := c.states(1); got != "due" {
		t.Errorf("the run is %s", got)
	}
}

func TestAListOffersTheActsThatItsFilterAllows(t *testing.T) {
	t.Parallel()
	f := wholeFleet()
	s, err := New(Options{Reader: readerOf(f), Operator: admin.NewOperator(nil, nil, nil, nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/runs": "", "/runs?limit=3": "", "/runs?job=nightly-backup": "/runs/cancel?job=nightly-backup /runs/retry?job=nightly-backup",
		"/runs?state=failed&since=90000h": "/runs/retry?since=90000h&state=failed", "/runs?state=waiting": "/runs/cancel?state=waiting",
		"/runs?state=succeeded": "", "/runs?group=error&q=a": "/runs/cancel?q=a /runs/retry?q=a",
	} {
		page := parsePage(t, browse(s, path).Body.String())
		checkSound(t, page)
		var links []string
		for _, a := range page.id("main").all("a") {
			if strings.HasSuffix(a.text, " all that match") {
				links = append(links, a.attr["href"])
			}
		}
		if got := strings.Join(links, " "); got != want {
			t.Errorf("%s offers %q, want %q", path, got, want)
		}
	}
	checked := func(path string) (checked, boxes int, again string) {
		page := parsePage(t, browse(s, path).Body.String())
		for _, input := range page.all("input") {
			if input.attr["name"] == "run" {
				boxes++
				if _, is := input.attr["checked"]; is {
					checked++
				}
			}
		}
		return checked, boxes, page.id("refresh").attr["href"]
	}
	if n, boxes, _ := checked("/runs?job=settle-bills"); n != 0 || boxes < 3 {
		t.Errorf("%d of %d boxes are checked, want none of some", n, boxes)
	}
	if n, boxes, again := checked("/runs?job=settle-bills&select=page"); n != boxes || boxes < 3 || again != "/runs?job=settle-bills" {
		t.Errorf("%d of %d boxes are checked, and the page is loaded again from %s, want all, and none for new rows", n, boxes, again)
	}
}

func TestAListWithBoxesIsBounded(t *testing.T) {
	t.Parallel()
	f := new(fakes.Fake)
	for i := range 2 * pageRows {
		id := jobs.RunID(fmt.Sprintf("job-%04d#%s", i, strings.Repeat("x", 200)))
		f.Open = append(f.Open, &ledger.Record{ID: id, Job: id.Job(), State: ledger.StateDue, Created: fakes.Noon.Add(-time.Hour), Reason: strings.Repeat("r", 1024)})
	}
	s, err := New(Options{Reader: readerOf(f), Operator: admin.NewOperator(nil, nil, nil, nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	if w := browse(s, "/runs"); w.Code != http.StatusOK || w.Body.Len() > mostPage {
		t.Errorf("the list: got %d and %d bytes", w.Code, w.Body.Len())
	}
	ids := make([]string, pageRows)
	for i := range ids {
		ids[i] = string(f.Open[i].ID)
	}
	r := httptest.NewRequest(http.MethodPost, "/runs/cancel", strings.NewReader(selection(ids...).Encode()))
	r.Host = "127.0.0.1:9620"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	if s.ServeHTTP(w, r); w.Code != http.StatusOK || w.Body.Len() > mostPage || !strings.Contains(w.Body.String(), "Cancel 50 runs") {
		t.Errorf("the question: got %d and %d bytes: %.300s", w.Code, w.Body.Len(), w.Body)
	}
}
