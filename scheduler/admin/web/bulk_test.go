package web

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// requests enqueues runs of the console's job.
func (c *console) requests(n int) {
	c.t.Helper()
	for i := range n {
		c.Enqueue(c.job, fmt.Sprint(i), `{"bill":"b-`+fmt.Sprint(i%2)+`"}`)
	}
}

func TestAllRunsThatAFilterFindsAreCanceledAndRetried(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		const v1 = "/api/v1/"
		c.requests(6)

		found := c.post(v1+"runs/cancel?q=b-1", `{"dry_run": true}`, 200)
		if found["matched"] != 3.0 || found["dry_run"] != true || found["done"] != 0.0 || found["states"].(map[string]any)["due"] != 3.0 {
			t.Errorf("%v, want the three counted", found)
		}
		if got := getList(t, newServerOf(t, c.reader), v1+"runs?state=canceled").Items; len(got) != 0 {
			t.Errorf("the dry run canceled %v", got)
		}
		c.post(v1+"runs/cancel?q=b-1", `{"expect": 2}`, 409)
		done := c.post(v1+"runs/cancel?q=b-1", `{"expect": 3, "reason": "wrong <day>"}`, 200)
		if done["done"] != 3.0 || done["refused"] != 0.0 || done["left"] != 0.0 || done["more"] != false {
			t.Errorf("%v, want three canceled", done)
		}
		run := c.post(v1+"runs/"+url.PathEscape("nightly#1")+"/retry", "", 200)
		if run["state"] != "due" {
			t.Errorf("%v, want a canceled run due again", run)
		}
		// Runs that are outstanding do not match a retry.
		if again := c.post(v1+"runs/retry?job=nightly&since=1h", "", 200); again["done"] != 2.0 || again["states"].(map[string]any)["canceled"] != 2.0 {
			t.Errorf("%v, want the other two due again", again)
		}
		if none := c.post(v1+"runs/retry?job=nightly&since=1h", "", 200); none["matched"] != 0.0 {
			t.Errorf("%v, want no more to match", none)
		}

		acts := getList(t, newServerOf(t, c.reader), v1+"audit")
		if got := strings.Join(acts.names("what"), ", "); got != "retry runs, retry run, cancel runs" {
			t.Errorf("the audit has %s, want one entry for each act", got)
		}
		if got := acts.names("detail")[2]; got != "3 runs: q=b-1" || acts.names("why")[2] != "wrong <day>" {
			t.Errorf("the entry has %q, want the number and the filter", got)
		}
	})
}

// One run that refuses does not keep the others from their act.
func TestARefusalOfOneRunDoesNotAffectTheOthers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		c.requests(12)
		by := admin.Actor{Who: "ann"}
		match := must(c.reader.ToCancel(t.Context(), admin.Filter{Job: "nightly"}))
		for i := range 11 { // after they were found
			if _, err := c.operator.CancelRun(t.Context(), jobs.RequestRunID("nightly", fmt.Sprint(i)), by); err != nil {
				t.Fatal(err)
			}
		}
		outcome := must(c.operator.CancelRuns(t.Context(), match, "job=nightly", by))
		if outcome.Matched != 12 || outcome.Done != 1 || outcome.Refused != 11 || outcome.Left != 0 || len(outcome.Refusals) != 10 {
			t.Errorf("%+v, want one canceled, and ten of eleven refusals", outcome)
		}
		if why := outcome.Refusals[0].Why; !strings.Contains(why, "it has ended (canceled)") {
			t.Errorf("%q, want the reason of the refusal", why)
		}
	})
}

func TestAnActOnAllRunsNeedsAFilterThatCanBeMeant(t *testing.T) {
	t.Parallel()
	c := newConsole(t, redistest.Client(t))
	c.requests(1)
	const v1 = "/api/v1/runs/"
	for path, want := range map[string]int{
		"cancel": 400, "cancel?": 400, "cancel?job=": 400, "cancel?q=%20": 400, "cancel?stat=due": 400, "cancel?state=failed": 400,
		"cancel?state=exploded": 400, "cancel?limit=5&job=nightly": 400, "cancel?job=nightly&job=x": 400, "cancel?job=nobody": 404,
		"cancel?since=soon": 400, "retry?state=succeeded": 400, "retry?state=running": 400, "retry?job=%3Cscript%3E%22%0A%E2%80%AE": 404,
	} {
		c.post(v1+path, "{}", want)
	}
	for body, want := range map[string]int{
		`{"dry_rum": true}`: 400, `{"expect": "1"}`: 400, `{"reason": "` + strings.Repeat("x", 2<<20) + `"}`: 413,
		`{"reason": "` + strings.Repeat("x", jobs.MaxReason+1) + `"}`: 413,
	} {
		c.post(v1+"cancel?job=nightly", body, want)
	}
	// A parameter that a path does not take is refused, so it cannot be meant as a dry run.
	c.post(v1+url.PathEscape("nightly#0")+"/cancel?dry_run=true", "", 400)
	if run, _, err := c.reader.Run(t.Context(), "nightly#0"); err != nil || run.State != ledger.StateDue {
		t.Errorf("%+v, %v, want the run as it was", run, err)
	}
}
