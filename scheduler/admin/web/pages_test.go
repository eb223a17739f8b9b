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

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

const mostPage = 200 << 10 // bytes of any page

// browse requests a page as a browser does.
func browse(h http.Handler, target string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.Host = "127.0.0.1:9620"
	r.Header.Set("Accept", "text/html,*/*;q=0.8")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// wholeFleet is [fakes.Fleet] with a record for each run that holds or waits.
func wholeFleet() *fakes.Fake {
	f := fakes.Fleet()
	f.Open = append(f.Open,
		&ledger.Record{
			ID: "settle-bills#alone", Job: "settle-bills", Queue: "critical", Trigger: ledger.TriggerHand, State: ledger.StateRunning,
			Created: fakes.Noon.Add(-2 * time.Second), Started: fakes.Noon.Add(-time.Second), Args: []byte(`{"bill_ids":[]}`),
			Attempts: []ledger.AttemptRecord{{Number: 1, Worker: "web-1.x7k2m9qa", Token: 1795222979000001, Started: fakes.Noon.Add(-time.Second)}},
		},
		&ledger.Record{
			ID: "settle-bills#offered", Job: "settle-bills", Queue: "critical", Trigger: ledger.TriggerEnqueue, State: ledger.StateWaiting,
			Created: fakes.Noon.Add(-9 * time.Second), Args: []byte("null"),
		})
	f.Done = []ledger.ActRecord{
		{ID: "1795222979000-1", At: fakes.Noon, First: fakes.Noon, Act: ledger.Act{Who: "ops (http 10.0.0.7)", What: "pause job", On: "warm-cache", Why: "the cache moves", Times: 1}},
		{ID: "1795222978000-0", At: fakes.Noon, First: fakes.Noon, Act: ledger.Act{Who: "ops", What: "release lock", On: "bill:1001", Detail: "token 17", Times: 2}},
	}
	return f
}

// crawl visits every page that links lead to, from the overview on, and returns their answers by
// path.
func crawl(t *testing.T, h http.Handler) map[string]*httptest.ResponseRecorder {
	t.Helper()
	visited := make(map[string]*httptest.ResponseRecorder)
	from := map[string]string{"/": "the start"}
	for next := []string{"/"}; len(next) > 0; next = next[1:] {
		w := browse(h, next[0])
		visited[next[0]] = w
		if w.Code != http.StatusOK {
			t.Errorf("%s, linked by %s: got %d: %.300s", next[0], from[next[0]], w.Code, w.Body)
			continue
		}
		if n := w.Body.Len(); n > mostPage {
			t.Errorf("%s has %d bytes", next[0], n)
		}
		if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
			continue
		}
		page := parsePage(t, w.Body.String())
		checkSound(t, page)
		links := page.all("a")
		for _, form := range page.all("form") {
			if form.attr["method"] == "get" && len(form.all("input")) == 0 {
				links = append(links, &element{attr: map[string]string{"href": form.attr["action"]}})
			}
		}
		for _, link := range links {
			target, _, _ := strings.Cut(link.attr["href"], "#")
			if target == "" || strings.HasPrefix(target, "/jobs/next?") { // the future has no end
				continue
			}
			if _, known := from[target]; !known {
				from[target] = next[0]
				next = append(next, target)
			}
		}
	}
	return visited
}

func TestEveryLinkOfEveryPageLeadsToAPage(t *testing.T) {
	t.Parallel()
	visited := crawl(t, newServer(t, wholeFleet()))
	for _, path := range []string{
		"/", "/jobs", "/jobs/nightly-backup", "/jobs/settle-bills", "/jobs/warm-cache", "/runs", "/runs?job=nightly-backup",
		"/runs/settle-bills%23second", "/runs/nightly-backup@2026-11-21T01:00:00Z", "/runs/nightly-backup@2026-11-19T01:00:00Z",
		"/locks", "/locks/bill:1001", "/locks/job:nightly-backup", "/workers", "/workers/web-1.x7k2m9qa", "/workers/web-9.aaaaaaaa", "/config", "/audit",
	} {
		if visited[path] == nil {
			t.Errorf("no link leads to %s", path)
		}
	}
}

// TestPagesNameTheirEvents checks what the script needs to follow the events.
func TestPagesNameTheirEvents(t *testing.T) {
	t.Parallel()
	s := newServer(t, wholeFleet())
	for _, path := range []string{
		"/", "/jobs", "/jobs/warm-cache", "/runs", "/runs/settle-bills%23second", "/locks", "/locks/bill:1001", "/timeline", "/workers",
		"/workers/web-1.x7k2m9qa", "/queues", "/config", "/audit", "/jobs/next", "/jobs/warm-cache/explain?at=2026-11-21T12:00:00Z",
	} {
		main := parsePage(t, browse(s, path).Body.String()).id("main")
		if got, want := main.attr["data-events"], "/api/v1/events"; got != want {
			t.Errorf("%s follows %q, want %q", path, got, want)
		}
		for _, section := range strings.Split(main.attr["data-live"], " ") {
			if !slices.Contains(sections, section) {
				t.Errorf("%s shows %q, which no event names", path, section)
			}
		}
	}
}

func TestEmptyPagesSayWhatToDo(t *testing.T) {
	t.Parallel()
	s := newServer(t, &fakes.Fake{Listing: locks.Listing{At: fakes.Noon}})
	crawl(t, s)
	for path, want := range map[string]string{
		"/jobs": "lockstep init", "/runs": "lockstep job run", "/locks": "lockstep lock exec", "/workers": "lockstep start", "/config": "lockstep start",
		"/audit": "Nothing was done by hand", "/locks/nothing": "Nothing holds it now.",
	} {
		if page := parsePage(t, browse(s, path).Body.String()); !strings.Contains(page.text, want) {
			t.Errorf("%s does not say %q: %s", path, want, page.text)
		}
	}
}

func TestForeignTextsAreShownHarmlessly(t *testing.T) {
	t.Parallel()
	const evil = `<script>alert("1")</script>`
	f := wholeFleet()
	names := []string{evil, `a"b'c&d`, "a/b/../c", "line\nbreak", "\u202egnp.exe", "?x=1#y", "%2e%2e", "javascript:alert(1)", "..", strings.Repeat("ü", 256)}
	for i, name := range names {
		hold := locks.HoldRecord{
			ID: locks.HoldID(fmt.Sprintf("shell.00000001.%d", i+10)), Session: "shell.00000001", Token: locks.Token(1795222979000100 + i), Since: fakes.Noon,
			Info: []byte(`{"command":["` + `\u003cscript>alert(1)\u003c/script>` + `"]}`), Names: []string{name}, LeaseLeft: time.Second,
		}
		f.Listing.Holds = append(f.Listing.Holds, hold)
	}
	f.Open[3].Attempts[0].Error = evil
	f.Open[2].Args = []byte(`{"a":"` + evil[:8] + `"}`)
	f.Ended["nightly-backup"][0].Reason = evil
	f.Outputs["nightly-backup@2026-11-20T01:00:00Z"] = "</pre>" + evil
	f.Done[0].Who, f.Done[0].Why, f.Done[1].On = evil, "\u202e"+evil, evil
	f.Live[0].Card = []byte(strings.Replace(fakes.Web2Card, "web-2", "<script>", 1))
	f.Registered[2].Job.Description = evil
	s := newServer(t, f)
	visited := crawl(t, s)
	for path, w := range visited {
		if n := strings.Count(w.Body.String(), "<script"); n != 2 {
			t.Errorf("%s has %d scripts, want only htmx and our own", path, n)
		}
	}
	for _, name := range names {
		if name == ".." || len(name) > 200 {
			continue // a list does not link it
		}
		path := "/locks/" + url.PathEscape(name)
		if visited[path] == nil {
			t.Errorf("no link leads to %s", path)
		} else if page := parsePage(t, visited[path].Body.String()); !strings.Contains(page.all("h1")[0].text, strings.Join(strings.Fields(name), " ")) {
			t.Errorf("%s is titled %q", path, page.all("h1")[0].text)
		}
	}
}

func TestPagesAreBoundedWhateverTheData(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{Listing: locks.Listing{At: fakes.Noon}, Ended: map[string][]*ledger.Record{}, Outputs: map[jobs.RunID]string{}}
	names := make([]string, 200)
	for i := range names {
		names[i] = fmt.Sprintf("%03d-%s", i, strings.Repeat("n", 508))
	}
	id := func(i int) jobs.RunID { return jobs.RunID(fmt.Sprintf("job-%04d#%s", i, strings.Repeat("x", 200))) }
	for i := range 300 {
		session := locks.SessionID(fmt.Sprintf("web-%d.x7k2m9qa", i))
		f.Live = append(f.Live, locks.SessionRecord{ID: session, Card: []byte(fakes.Web1Card), LeaseLeft: time.Second})
		f.Listing.Holds = append(f.Listing.Holds, locks.HoldRecord{
			ID: locks.HoldID(fmt.Sprintf("%s.%d", session, i)), Session: session, Names: names, Since: fakes.Noon, Token: 7,
			Info: []byte(fmt.Sprintf(`{"job":"a","run":%q}`, id(i))),
		})
		f.Listing.Waits = append(f.Listing.Waits, locks.WaitRecord{
			Request: locks.HoldID(fmt.Sprintf("+%d", i)), Ticket: uint64(i), State: space.Waiting, Names: names[:5], Since: fakes.Noon,
		})
		name := fmt.Sprintf("job-%04d", i)
		attempts := slices.Repeat([]ledger.AttemptRecord{{
			Number: 1, Worker: session, Token: 7, Started: fakes.Noon.Add(-time.Second), Finished: fakes.Noon, Outcome: "failed", Error: strings.Repeat("e", 1024),
		}}, 100)
		for k := range attempts {
			attempts[k].Number = k + 1
		}
		f.Open = append(f.Open, &ledger.Record{ID: id(i), Job: name, State: ledger.StateDue, Created: fakes.Noon.Add(-time.Hour), Queue: "default", Attempts: attempts, Args: []byte(`"` + strings.Repeat("a", 128<<10) + `"`)})
		f.Registered = append(f.Registered, ledger.JobRecord{
			Job:    &jobs.Job{Name: name, Every: time.Minute, Description: strings.Repeat("d", 5000), Queue: "default", Command: []string{strings.Repeat("c", 5000)}},
			Cursor: fakes.Noon, Paused: strings.Repeat("p", 1024), Drifted: true,
		})
		for k := range 60 {
			f.Ended[name] = append(f.Ended[name], &ledger.Record{
				ID: jobs.TickRunID(name, fakes.Noon.Add(-time.Duration(k)*time.Minute)), Job: name, State: ledger.StateFailed, Reason: strings.Repeat("r", 1024), By: session,
				Tick: fakes.Noon.Add(-time.Duration(k) * time.Minute), Started: fakes.Noon.Add(-time.Hour), Finished: fakes.Noon.Add(-time.Duration(k) * time.Minute),
			})
		}
		f.Done = append(f.Done, ledger.ActRecord{ID: fmt.Sprintf("%d-0", 9000-i), At: fakes.Noon, First: fakes.Noon, Act: ledger.Act{
			Who: strings.Repeat("w", 300), What: "cancel run", On: string(id(i)), Why: strings.Repeat("y", 1024), Detail: strings.Repeat("d", 1024), Times: 1,
		}})
	}
	f.Outputs[id(0)] = strings.Repeat("o\n", 1<<20)
	s := newServer(t, f)
	for _, path := range []string{
		"/", "/jobs?limit=50", "/jobs/job-0000?limit=50", "/runs?limit=50", "/runs?state=failed&limit=50", "/runs/" + url.PathEscape(string(id(0))),
		"/locks?limit=50", "/locks/" + names[0], "/workers?limit=50", "/workers/web-0.x7k2m9qa", "/config", "/audit?limit=50", "/timeline?group=lock", "/timeline?group=job",
	} {
		w := browse(s, path)
		for tries := 1; w.Code == http.StatusServiceUnavailable && tries < 20; tries++ {
			w = browse(s, path) // a busy machine may not have read this much in time
		}
		if w.Code != http.StatusOK || w.Body.Len() > mostPage {
			t.Errorf("%s: got %d and %d bytes", path, w.Code, w.Body.Len())
		}
		checkSound(t, parsePage(t, w.Body.String()))
	}
}

func TestListsContinueAtTheirNextLink(t *testing.T) {
	t.Parallel()
	s := newServer(t, wholeFleet())
	for _, path := range []string{"/jobs", "/runs", "/locks", "/workers", "/audit", "/jobs/nightly-backup"} {
		all := parsePage(t, browse(s, path).Body.String())
		var rows, parts []string
		keys := func(page *element) (keys []string) {
			for _, row := range page.all("tr") {
				if key := row.attr["id"]; key != "" {
					keys = append(keys, key)
				}
			}
			return keys
		}
		rows = keys(all)
		target, seen := path+"?limit=1", 0
		for ; target != "" && seen < 30; seen++ {
			page := parsePage(t, browse(s, target).Body.String())
			for _, key := range keys(page) {
				if !slices.Contains(parts, key) {
					parts = append(parts, key)
				}
			}
			target = ""
			for _, a := range page.all("a") {
				if a.attr["rel"] == "next" {
					target = a.attr["href"]
				}
			}
		}
		slices.Sort(rows)
		rows = slices.Compact(rows) // a running run is in two lists
		slices.Sort(parts)
		if len(rows) < 2 || !slices.Equal(rows, parts) || seen < 2 {
			t.Errorf("%s: by one row at a time, %d parts list %v, want %v", path, seen, parts, rows)
		}
	}
}

func TestUnknownThingsHaveAPageThatNamesThem(t *testing.T) {
	t.Parallel()
	s := newServer(t, wholeFleet())
	for path, want := range map[string]string{
		"/jobs/nobody": "job nobody", "/runs/a%23b": "a#b", "/workers/nobody": "worker nobody", "/nothing": "this path does not exist",
		"/jobs/nobody/explain": "job nobody", "/runs?job=nobody": "job nobody",
	} {
		w := browse(s, path)
		page := parsePage(t, w.Body.String())
		if w.Code != http.StatusNotFound || !strings.Contains(page.id("main").text, want) || len(page.all("nav")) != 1 {
			t.Errorf("%s: got %d: %s", path, w.Code, page.text)
		}
	}
	for path, want := range map[string]string{
		"/runs?state=odd": "no run has the state", "/jobs?stat=due": "unknown parameter", "/runs?limit=51": "at most 50", "/runs?cursor=!": "cursor",
		"/jobs/warm-cache/explain?at=noon": "RFC 3339", "/locks?cursor=AA&cursor=BB": "given 2 times",
	} {
		w := browse(s, path)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: got %d, want a page that says %q: %s", path, w.Code, want, parsePage(t, w.Body.String()).text)
		}
	}
}

func TestPagesInAnOutageSaySo(t *testing.T) {
	t.Parallel()
	f := wholeFleet()
	f.Fail("connection refused")
	s := newServer(t, f)
	for _, path := range []string{"/jobs", "/jobs/a", "/runs", "/runs/a%23b", "/locks", "/locks/a", "/workers", "/workers/a", "/config", "/audit"} {
		w := browse(s, path)
		page := parsePage(t, w.Body.String())
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(page.id("main").text, "Redis cannot be read: connection refused") {
			t.Errorf("%s: got %d: %s", path, w.Code, page.text)
		}
		checkSound(t, page)
	}
}

func TestLockPageSaysWhatItsReleaseDoes(t *testing.T) {
	t.Parallel()
	s := newServer(t, wholeFleet())
	for path, want := range map[string]string{
		"/locks/bill:1001": "1 request waits for bill:1001; none of them can start after this release alone",
		"/locks/bill:1003": "2 requests wait for bill:1003; none",
		"/locks/bill:1002": "No request waits for bill:1002: it becomes free.",
	} {
		if page := parsePage(t, browse(s, path).Body.String()); !strings.Contains(page.id("holders").text, want) {
			t.Errorf("%s does not say %q: %s", path, want, page.id("holders").text)
		}
	}
	f := wholeFleet()
	f.Listing.Waits[0].Names = []string{"bill:1001", "run:settle-bills#second"}
	page := parsePage(t, browse(newServer(t, f), "/locks/bill:1001").Body.String())
	if want := "1 request waits for bill:1001; the next is settle-bills#second."; !strings.Contains(page.id("holders").text, want) {
		t.Errorf("it does not say %q: %s", want, page.id("holders").text)
	}
}

func TestJobPageShowsWhatIsUsual(t *testing.T) {
	t.Parallel()
	f := wholeFleet()
	for i := range 9 {
		f.Ended["nightly-backup"] = append(f.Ended["nightly-backup"], &ledger.Record{
			ID: jobs.RequestRunID("nightly-backup", fmt.Sprint(i)), Job: "nightly-backup", State: ledger.StateSucceeded,
			Started: fakes.Noon.Add(-time.Hour), Finished: fakes.Noon.Add(-time.Hour + time.Duration(i+1)*time.Second),
		})
	}
	page := parsePage(t, browse(newServer(t, f), "/jobs/nightly-backup").Body.String())
	for _, want := range []string{
		"Usually 5s (p50); 95 % take at most 41m (p95). From the last 10 successful runs.", "2026-11-22T01:00:00Z", "Sun 2026-11-22 02:00:00 CET",
	} {
		if !strings.Contains(page.text, want) {
			t.Errorf("it does not say %q: %s", want, page.text)
		}
	}
	f.Open[0].Attempts[1].Started = fakes.Noon.Add(-time.Hour)
	for _, path := range []string{"/jobs/nightly-backup", "/runs/nightly-backup@2026-11-21T01:00:00Z"} {
		page = parsePage(t, browse(newServer(t, f), path).Body.String())
		if want := "runs for 1h, unusually long: 95 % of the last 10 successful runs took at most 41m"; !strings.Contains(page.text, want) {
			t.Errorf("%s does not say %q: %s", path, want, page.text)
		}
	}
}

func TestRunPageTellsItsStory(t *testing.T) {
	t.Parallel()
	page := parsePage(t, browse(newServer(t, wholeFleet()), "/runs/nightly-backup@2026-11-21T01:00:00Z").Body.String())
	for _, want := range []string{
		"● running nightly-backup", "for the tick 2026-11-21T01:00:00Z", "1 ✗ crashed", "web-9.aaaaaaaa", "2 ● running web-1.x7k2m9qa 3m 2s ago 3m 2s so far 1795222800123456",
		"Holds job:nightly-backup for 3m 2s", "✗ no attempt 1", "⇒ so running", "The output is kept when the attempt ends.",
	} {
		if !strings.Contains(page.id("main").text, want) {
			t.Errorf("it does not say %q: %s", want, page.id("main").text)
		}
	}
	if n := len(page.id("attempts").all("svg")[0].all("title")); n < 3 {
		t.Errorf("the axis has %d bars", n)
	}
}

func TestListsAreFilteredByTheirAddress(t *testing.T) {
	t.Parallel()
	s := newServer(t, wholeFleet())
	for path, wants := range map[string][2]string{ // what is listed, and what is not
		"/runs?state=running":       {"settle-bills#alone", "settle-bills#second"},
		"/runs?q=THIRD":             {"settle-bills#third", "settle-bills#second"},
		"/runs?group=error":         {"no <b>bank</b> today", "settle-bills#alone"},
		"/jobs?q=warm":              {"warm-cache", "nightly-backup"},
		"/locks?q=bill":             {"bill:1001", "job:nightly-backup"},
		"/workers?state=draining":   {"web-2.p91qd3f7", "web-3.m4t8c2wz"},
		"/audit?q=cache":            {"pause job", "release lock"},
		"/jobs/next?job=warm-cache": {"warm-cache", "nightly-backup"},
	} {
		w := browse(s, path)
		page := parsePage(t, w.Body.String())
		checkSound(t, page)
		tables := page.id("main").all("table")
		if w.Code != http.StatusOK || len(tables) != 1 {
			t.Errorf("%s: got %d with %d tables: %s", path, w.Code, len(tables), page.text)
			continue
		}
		if text := tables[0].text; !strings.Contains(text, wants[0]) || strings.Contains(text, wants[1]) {
			t.Errorf("%s: want %q and not %q in: %s", path, wants[0], wants[1], text)
		}
		if _, query, _ := strings.Cut(path, "?"); !strings.Contains(w.Body.String(), `value="`+query[strings.Index(query, "=")+1:]) && !strings.Contains(w.Body.String(), " selected") {
			t.Errorf("%s: its form does not show the filter", path)
		}
		if none := parsePage(t, browse(s, strings.Split(path, "?")[0]+"?q=nowhere").Body.String()); path != "/jobs/next?job=warm-cache" && !strings.Contains(none.text, "atches the filter") {
			t.Errorf("%s: an empty list does not name the filter: %s", path, none.text)
		}
	}
	if page := parsePage(t, browse(s, "/queues").Body.String()); !strings.Contains(page.text, "critical ‖ paused by another tool") || !strings.Contains(page.text, "2 pending, 0 active") {
		t.Errorf("the queues: %s", page.text)
	}
}
