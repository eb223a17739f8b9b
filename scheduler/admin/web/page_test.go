package web

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

// element is one element of a page: its attributes, and its text with single spaces.
type element struct {
	name  string
	attr  map[string]string
	text  string
	inner []*element
}

// parsePage parses a page. It fails the test when tags are not closed in order.
func parsePage(t *testing.T, page string) *element {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict = false
	d.AutoClose = xml.HTMLAutoClose
	d.Entity = xml.HTMLEntity
	root := &element{name: "root"}
	open := []*element{root}
	space := func(name string) { // a browser separates these elements
		if slices.Contains([]string{"dt", "dd", "td", "th", "tr", "li", "p", "h1", "h2", "caption", "div"}, name) {
			for _, e := range open {
				e.text += " "
			}
		}
	}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the page cannot be parsed: %v\n%s", err, page)
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := &element{name: token.Name.Local, attr: make(map[string]string)}
			for _, a := range token.Attr {
				e.attr[a.Name.Local] = a.Value
			}
			last := open[len(open)-1]
			last.inner = append(last.inner, e)
			space(e.name)
			open = append(open, e)
		case xml.EndElement:
			open = open[:len(open)-1]
			space(token.Name.Local)
		case xml.CharData:
			for _, e := range open {
				e.text += string(token)
			}
		}
	}
	root.each(func(e *element) { e.text = strings.Join(strings.Fields(e.text), " ") })
	return root
}

func (e *element) each(f func(*element)) {
	f(e)
	for _, inner := range e.inner {
		inner.each(f)
	}
}

func (e *element) all(name string) []*element {
	var found []*element
	e.each(func(e *element) {
		if e.name == name {
			found = append(found, e)
		}
	})
	return found
}

func (e *element) id(id string) *element {
	var found *element
	e.each(func(e *element) {
		if e.attr["id"] == id {
			found = e
		}
	})
	return found
}

func getPage(t *testing.T, h http.Handler, status int) *element {
	t.Helper()
	w := get(h, "/")
	if w.Code != status || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("got %d, %s, want %d: %s", w.Code, w.Header().Get("Content-Type"), status, w.Body)
	}
	return parsePage(t, w.Body.String())
}

func TestPageShowsHoldersAndWaiters(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	s, err := New(Options{Reader: readerOf(f), Worker: func() string { return "web-1.x7k2m9qa" }})
	if err != nil {
		t.Fatal(err)
	}
	page := getPage(t, s, http.StatusOK)
	for id, wants := range map[string][]string{
		"main": {"As of 12:00:00 UTC by Redis’ clock · served by web-1.x7k2m9qa", "Workers ready 1 of 2", "Slots busy 3 of 10",
			"Waiting for locks 3", "Runs not started 2", "Jobs 3"},
		"workers": {
			"web-1.x7k2m9qa ✓ ready 2 of 8 slots busy host web-1, pid 4711 · since 2026-11-21 09:00 UTC · queues critical=6 default=3 · " +
				"version 1.0.0 · config 9f2c1e · lease 12s left",
			"nightly-backup@2026-11-21T01:00:00Z job:nightly-backup 3m 2s 1795222800123456",
			"settle-bills#alone run:settle-bills#alone 1s 1795222979000001",
			"web-2.p91qd3f7 ↓ draining 1 of 2 slots busy",
			"settle-bills#01K9B7ZK3M5W7QF bill:1001 bill:1002 4.2s 1795222978000042",
			"web-3.m4t8c2wz ✗ gone", "lease over Its lease is over; what it held is passed on.",
		},
		"others": {"shell.00000001 ./settle.sh --all host web-1, pid 99 bill:1003 1s 1795222979000000 9s"},
		"waits": {
			"settle-bills#offered bill:2001 nothing: its turn has come 9s",
			"settle-bills#second bill:1001 bill:1003 settle-bills#01K9B7ZK3M5W7QF on web-2.p91qd3f7 shell.00000001.1 on shell.00000001 2s",
			"shell.00000002 make it bill:1003 shell.00000001.1 on shell.00000001 behind settle-bills#second, which waits too 1s",
		},
		"next":    {"warm-cache every 15 minutes in 15m", "nightly-backup at 02:00, every day, Europe/Berlin in 13h"},
		"pending": {"↻ retrying settle-bills#third no <b>bank</b> today due in 5s", "◐ waiting settle-bills#second made 2s ago"},
		"runs": {
			"✓ succeeded nightly-backup@2026-11-20T01:00:00Z web-1.x7k2m9qa 1d 10h ago 41m 1",
			"✗ failed nightly-backup@2026-11-18T01:00:00Z",
		},
	} {
		section := page.id(id)
		if section == nil {
			t.Errorf("there is no #%s", id)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(section.text, want) {
				t.Errorf("#%s does not say %q:\n%s", id, want, section.text)
			}
		}
	}
	if title := page.all("title")[0].text; title != "3 running, 3 waits · lockstep" {
		t.Errorf("the title is %q", title)
	}
	if page.id("runs") != nil && strings.Contains(page.id("runs").text, "skipped") {
		t.Error("a skipped tick is among the runs")
	}
	links := make(map[string]bool)
	for _, a := range page.all("a") {
		links[a.attr["href"]] = true
	}
	if want := "/runs/settle-bills%23second"; !links[want] {
		t.Errorf("no link goes to %s: %v", want, links)
	}
}

// TestPageIsSound checks the requirements of a browser, a screen reader and the page's content
// policy.
func TestPageIsSound(t *testing.T) {
	t.Parallel()
	broken := fakes.Fleet()
	broken.Fail("connection refused")
	for name, test := range map[string]struct {
		f      *fakes.Fake
		status int
	}{"full": {fakes.Fleet(), 200}, "empty": {&fakes.Fake{Listing: locks.Listing{At: fakes.Noon}}, 200}, "broken": {broken, 503}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page := getPage(t, newServer(t, test.f), test.status)
			checkSound(t, page)
		})
	}
}

// checkSound checks the requirements of a browser, a screen reader and the content policy.
func checkSound(t *testing.T, page *element) {
	t.Helper()
	ids := make(map[string]bool)
	page.each(func(e *element) {
		if id := e.attr["id"]; id != "" {
			if ids[id] {
				t.Errorf("two elements are #%s", id)
			}
			ids[id] = true
		}
		for name := range e.attr {
			if strings.HasPrefix(name, "on") || name == "style" {
				t.Errorf("<%s> has an inline %s, which the policy forbids", e.name, name)
			}
		}
	})
	page.each(func(e *element) {
		if ref := e.attr["aria-labelledby"]; ref != "" && !ids[ref] {
			t.Errorf("<%s> is labelled by #%s, which is not there", e.name, ref)
		}
		for _, name := range []string{"src", "href"} {
			ref, has := e.attr[name]
			if has && !strings.HasPrefix(ref, "/") && !strings.HasPrefix(ref, "#") {
				t.Errorf("<%s> goes to %q, somewhere else", e.name, ref)
			}
		}
	})
	// htmx 4.0.1 can rebuild an element that has no id and contains one as an element of HTML.
	// Such a picture is empty.
	for _, picture := range page.all("svg") {
		picture.each(func(e *element) {
			if id := e.attr["id"]; id != "" && picture.attr["id"] == "" {
				t.Errorf("#%s is in an <svg> without an id", id)
			}
		})
	}
	for name, want := range map[string]int{"html": 1, "head": 1, "header": 1, "nav": 1, "main": 1, "footer": 1, "style": 0} {
		if got := len(page.all(name)); got != want {
			t.Errorf("there are %d <%s>, want %d", got, name, want)
		}
	}
	if got := len(page.all("head")[0].all("title")); got != 1 {
		t.Errorf("the head has %d titles", got)
	}
	for _, script := range page.all("script") {
		if script.attr["src"] == "" || script.text != "" {
			t.Error("there is an inline script")
		}
	}
	if lang := page.all("html")[0].attr["lang"]; lang != "en" {
		t.Errorf("the language is %q", lang)
	}
	for _, table := range page.all("table") {
		if len(table.all("caption")) != 1 {
			t.Error("a table has no caption")
		}
		columns := len(table.all("thead")[0].all("th"))
		for _, body := range table.all("tbody") {
			for _, row := range body.all("tr") {
				cells := 0
				for _, cell := range row.inner {
					span := 1
					if text := cell.attr["colspan"]; text != "" {
						_, _ = fmt.Sscan(text, &span)
					}
					cells += span
				}
				if cells != columns {
					t.Errorf("a row has %d cells under %d headers: %s", cells, columns, row.text)
				}
			}
		}
	}
	for _, th := range page.all("th") {
		if !slices.Contains([]string{"col", "row", "rowgroup"}, th.attr["scope"]) {
			t.Errorf("a header has the scope %q: %s", th.attr["scope"], th.text)
		}
	}
	for _, e := range page.all("time") {
		if _, err := time.Parse(time.RFC3339, e.attr["datetime"]); err != nil || e.attr["title"] == "" || e.text == "" {
			t.Errorf("<time datetime=%q title=%q>%s: %v", e.attr["datetime"], e.attr["title"], e.text, err)
		}
	}
}

func TestThePageOfARunShowsItsDefinition(t *testing.T) {
	t.Parallel()
	f := wholeFleet()
	const run = "/runs/settle-bills%23second"
	f.Owned = map[jobs.RunID]*jobs.Job{"settle-bills#second": {Name: "settle-bills", Command: []string{"./settle.sh", "<old>"}, Queue: "low",
		Args: []byte(`{"currency":"<EUR>"}`), Timeout: time.Hour, Env: map[string]string{"TOKEN": "hush"}}}
	body := browse(newServer(t, f), run).Body.String()
	_, shown, _ := strings.Cut(body, `id="definition"`)
	for _, want := range []string{"another definition than the active one", "./settle.sh &lt;old&gt;", "<code>low</code>", "1h", "u003cEUR", `href="/jobs/settle-bills"`} {
		if !strings.Contains(shown, want) {
			t.Errorf("the definition lacks %q: %s", want, shown)
		}
	}
	if strings.Contains(body, "hush") {
		t.Error("the page has the env")
	}
	active := &jobs.Job{Name: "settle-bills", Command: []string{"./settle.sh"}}
	hash, err := ledger.Hash(active)
	if err != nil {
		t.Fatal(err)
	}
	f.Owned["settle-bills#second"] = active
	f.Registered = append(f.Registered, ledger.JobRecord{Job: active, Hash: hash})
	f.Registered = slices.DeleteFunc(f.Registered, func(r ledger.JobRecord) bool { return r.Job.Name == active.Name && r.Hash == "" })
	if body := browse(newServer(t, f), run).Body.String(); !strings.Contains(body, "made with the active definition") {
		t.Errorf("the page of a run with the active definition: %s", body)
	}
	const finished = "/runs/nightly-backup%402026-11-20T01:00:00Z"
	if body := browse(newServer(t, f), finished).Body.String(); !strings.Contains(body, "The definition of this run is not kept any more.") {
		t.Errorf("the page of a finished run without a definition: %s", body)
	}
	f.Owned["nightly-backup@2026-11-20T01:00:00Z"] = &jobs.Job{Name: "nightly-backup", Command: []string{"./old.sh"}, Env: map[string]string{"TOKEN": "hush"}}
	body = browse(newServer(t, f), finished).Body.String()
	if !strings.Contains(body, "another definition than the active one") || !strings.Contains(body, "./old.sh") || strings.Contains(body, "hush") {
		t.Errorf("the page of a finished run: %s", body)
	}
}

func TestThePageOfARunLinksItsParentAndItsChildren(t *testing.T) {
	t.Parallel()
	f := wholeFleet()
	children := ledger.Children{All: 25}
	for i := range 20 {
		children.First = append(children.First, jobs.RequestRunID("warm-cache", fmt.Sprintf("c%02d", i)))
	}
	f.Offspring = map[jobs.RunID]ledger.Children{"settle-bills#second": children}
	f.Open = append(f.Open, &ledger.Record{
		ID: "warm-cache#c00", Job: "warm-cache", Queue: "default", Trigger: ledger.TriggerEnqueue, State: ledger.StateDue,
		Created: fakes.Noon, Parent: "settle-bills#second",
	})
	s := newServer(t, f)
	body := browse(s, "/runs/settle-bills%23second").Body.String()
	led := parsePage(t, body).id("led")
	if led == nil || len(led.all("a")) != 20 || led.all("a")[19].attr["href"] != "/runs/warm-cache%23c19" {
		t.Errorf("got %+v, want links to 20 runs", led)
	}
	if !strings.Contains(body, "5 later runs are not listed") {
		t.Errorf("the others are not counted: %s", body)
	}
	body = browse(s, "/runs/warm-cache%23c00").Body.String()
	if !strings.Contains(body, "<dt>From</dt>") || !strings.Contains(body, `href="/runs/settle-bills%23second"`) || strings.Contains(body, `id="led"`) {
		t.Errorf("the child does not name its parent: %s", body)
	}
	got := get(s, "/api/v1/runs/settle-bills%23second").Body.String()
	if !strings.Contains(got, `"led_to":{"runs":["warm-cache#c00",`) || !strings.Contains(got, `"more":5}`) || strings.Contains(got, `"parent"`) {
		t.Errorf("the parent: got %s", got)
	}
	got = get(s, "/api/v1/runs/warm-cache%23c00").Body.String()
	if !strings.Contains(got, `"parent":"settle-bills#second"`) || strings.Contains(got, "led_to") {
		t.Errorf("the child: got %s", got)
	}
}

func TestAQueueShowsHowFastItsRunsComeAndBegin(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Flowing = map[string]ledger.Flow{"critical": {In: 12.34, Out: 0}}
	s := newServer(t, f)
	for path, wants := range map[string][]string{
		"/api/v1/queues/critical": {`"in_per_minute":12.3,"out_per_minute":0,`},
		// no worker serves it
		"/api/v1/queues/default": {`"in_per_minute":null,"out_per_minute":null,`},
		"/queues": {`data-label="In">12.3/min</td>`, `data-label="Out">0/min</td>`,
			`data-label="In"><span class="none">–</span></td>`, `data-label="Out"><span class="none">–</span></td>`},
	} {
		body := browse(s, path).Body.String()
		for _, want := range wants {
			if strings.Count(body, want) != 1 {
				t.Errorf("%s: got %s, want %s once", path, body, want)
			}
		}
	}
}

func TestEmptyPageSaysSo(t *testing.T) {
	t.Parallel()
	page := getPage(t, newServer(t, &fakes.Fake{}), http.StatusOK)
	for _, want := range []string{"No worker is running. lockstep start", "No request waits for a lock.", "No job has a schedule.", "Nothing is due.", "No run has finished yet."} {
		if !strings.Contains(page.text, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if page.id("others") != nil {
		t.Error("it has other holders")
	}
}

func TestTextsCannotBecomeMarkup(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	const evil = `<script>alert("1")</script>`
	f.Open[3].Attempts[0].Error = evil
	f.Ended["nightly-backup"][0].Reason = evil
	f.Listing.Holds[2].Names = []string{evil}
	f.Listing.Holds[2].Info = []byte(`{"command":"<script>alert(1)</script>"}`)
	f.Live[0].Card = []byte(strings.Replace(fakes.Web2Card, "web-2", "<script>", 1))
	page := get(newServer(t, f), "/").Body.String()
	if n := strings.Count(page, "<script"); n != 2 {
		t.Errorf("there are %d scripts, want only htmx and our own", n)
	}
	if n := len(parsePage(t, page).all("script")); n != 2 {
		t.Errorf("there are %d scripts, want only htmx and our own", n)
	}
}

func TestLongListsAreCutAndCounted(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{Listing: locks.Listing{At: fakes.Noon}, Ended: map[string][]*ledger.Record{}}
	f.Live = []locks.SessionRecord{{ID: "web-1.x7k2m9qa", Card: []byte(fakes.Web1Card), LeaseLeft: time.Second}}
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("bill:%04d", i)
	}
	for i := range 1500 {
		held := names
		if i%10 > 0 { // more would take a slow machine longer than a page may take
			held = names[:5]
		}
		f.Listing.Holds = append(f.Listing.Holds, locks.HoldRecord{
			ID: locks.HoldID(fmt.Sprintf("web-1.x7k2m9qa.%d", i)), Session: "web-1.x7k2m9qa", Names: held, Since: fakes.Noon,
		})
		f.Listing.Waits = append(f.Listing.Waits, locks.WaitRecord{
			Request: locks.HoldID(fmt.Sprintf("+a#%d", i)), Ticket: uint64(i), State: space.Waiting, Names: names[:5], Since: fakes.Noon,
		})
		f.Open = append(f.Open, &ledger.Record{ID: jobs.RunID(fmt.Sprintf("a#%d", i)), Job: "a", State: ledger.StateDue, Created: fakes.Noon})
		name := fmt.Sprintf("job-%04d", i)
		f.Registered = append(f.Registered, ledger.JobRecord{Job: &jobs.Job{Name: name, Every: time.Minute}, Cursor: fakes.Noon})
		f.Ended[name] = []*ledger.Record{{ID: jobs.RequestRunID(name, "1"), Job: name, State: ledger.StateSucceeded, Finished: fakes.Noon.Add(-time.Duration(i) * time.Second)}}
	}
	w := get(newServer(t, f), "/")
	page := parsePage(t, w.Body.String())
	for _, want := range []string{
		"1470 holds are not shown", "1475 waits are not shown", "1488 jobs have a later tick", "10 of 1000 or more, first those due for longest",
		"and 996 more", "Waiting for locks 1500", "Runs not started 1000 or more",
	} {
		if !strings.Contains(page.text, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if n := w.Body.Len(); n > mostPage {
		t.Errorf("the page has %d bytes", n)
	}
	if n := f.HistoryCount.Load(); n > 50 {
		t.Errorf("%d histories were read for 25 runs", n)
	}
}

func TestAPartOfTheJobsReadsOnlyItsOwnHistories(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{Ended: map[string][]*ledger.Record{}}
	for i := range 1000 {
		name := fmt.Sprintf("job-%04d", i)
		f.Registered = append(f.Registered, ledger.JobRecord{Job: &jobs.Job{Name: name, Every: time.Minute}, Cursor: fakes.Noon})
		f.Ended[name] = []*ledger.Record{{ID: jobs.RequestRunID(name, "1"), Job: name, State: ledger.StateSucceeded, Finished: fakes.Noon}}
	}
	for _, one := range []struct {
		path      string
		histories int64
	}{
		{"/api/v1/jobs?limit=50", 50}, {"/jobs?limit=50&q=job-01", 50}, {"/config", 0},
		{"/jobs?limit=50&state=succeeded", 500}, // one step of the list
	} {
		f.HistoryCount.Store(0)
		if w := get(newServer(t, f), one.path); w.Code != http.StatusOK {
			t.Errorf("%s: %d: %s", one.path, w.Code, w.Body)
		}
		if n := f.HistoryCount.Load(); n != one.histories {
			t.Errorf("%s: %d histories were read, want %d", one.path, n, one.histories)
		}
	}
}

func TestPageInAnOutageShowsTheLastOverview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakes.Fleet()
		s := newServer(t, f)
		f.Fail("dial unix: <connection refused>")
		page := getPage(t, s, http.StatusServiceUnavailable)
		if !strings.Contains(page.id("main").text, "Redis cannot be read. Nothing has been read since this process started.") ||
			!strings.Contains(page.text, "dial unix: <connection refused>") {
			t.Errorf("before anything was seen it says: %s", page.text)
		}
		f.Recover()
		time.Sleep(2 * keepAtLast)
		if page = getPage(t, s, http.StatusOK); strings.Contains(page.text, "cannot be read") {
			t.Errorf("after the outage it says: %s", page.text)
		}
		f.Fail("connection refused")
		time.Sleep(2 * keepAtLast)
		page = getPage(t, s, http.StatusServiceUnavailable)
		for _, want := range []string{"The data below was last read at 12:00:00 UTC", "connection refused", "nightly-backup@2026-11-21T01:00:00Z"} {
			if !strings.Contains(page.text, want) {
				t.Errorf("in the outage it does not say %q: %s", want, page.text)
			}
		}
		alerts := 0
		page.each(func(e *element) {
			if e.attr["role"] == "alert" {
				alerts++
			}
		})
		if alerts != 1 {
			t.Errorf("there are %d alerts, want 1", alerts)
		}
	})
}

func TestEveryStateHasABadgeOfItsOwn(t *testing.T) {
	t.Parallel()
	seen := make(map[badge]ledger.State)
	for _, facts := range ledger.States() {
		b := newBadge(facts.State)
		if b.Word != string(facts.State) || b.Kind == "" {
			t.Errorf("%s is shown as %+v", facts.State, b)
		}
		b.Word, b.Kind = "", ""
		if other, taken := seen[b]; taken && !facts.Tick {
			t.Errorf("%s has the sign of %s", facts.State, other)
		}
		seen[b] = facts.State
	}
	if b := newBadge("something new"); b.Word != "something new" || b.Sign == "" {
		t.Errorf("an unknown state is shown as %+v", b)
	}
}

func TestADisputedQueueHasABannerAndAMetric(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Live[1].Card = []byte(strings.Replace(fakes.Web1Card, `"state"`, `"disputed":{"critical":"thief"},"state"`, 1))
	s, err := New(Options{Reader: readerOf(f), Worker: func() string { return "web-1.x7k2m9qa" }})
	if err != nil {
		t.Fatal(err)
	}
	if page := getPage(t, s, http.StatusOK); !strings.Contains(page.id("main").text, "Queues belong to another namespace while workers serve them: critical (thief)") {
		t.Errorf("the page says: %s", page.id("main").text)
	}
	if body := get(s, "/metrics").Body.String(); !strings.Contains(body, "\nlockstep_queues_disputed 1\n") {
		t.Error("no lockstep_queues_disputed 1 in the metrics")
	}
}

// On a narrow screen each cell has its label at its left. The rule that makes room for it must have
// a higher specificity than every rule that sets the padding of a cell, including one in the last
// row; otherwise the label covers the text.
func TestRuleThatMakesRoomForLabelsWeighsMost(t *testing.T) {
	t.Parallel()
	css, err := os.ReadFile("page/page.css")
	if err != nil {
		t.Fatal(err)
	}
	_, narrow, found := strings.Cut(string(css), "@media (max-width: 44rem) {")
	weights := make(map[string]int) // highest specificity of a selector, by the declaration
	for _, rule := range regexp.MustCompile(`(?s)([^{}]+)\{([^{}]*)\}`).FindAllStringSubmatch(narrow, -1) {
		for declaration := range strings.SplitSeq(rule[2], ";") {
			for selector := range strings.SplitSeq(regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(rule[1], ""), ",") {
				classes := strings.Count(selector, ":") + strings.Count(selector, "[") + strings.Count(selector, ".")
				elements := len(regexp.MustCompile(`(^|[\s>+~])[a-z]`).FindAllString(selector, -1))
				weights[strings.TrimSpace(declaration)] = max(weights[strings.TrimSpace(declaration)], 100*classes+elements)
			}
		}
	}
	room, other := weights["padding-left: 7rem"], weights["padding: 0.1875rem 0"]
	if !found || other == 0 || room <= other {
		t.Errorf("the room for labels weighs %d, the padding of cells %d", room, other)
	}
}

// TestPagesDoNotWaitForAllJobs: they say so, and show what does not depend on all jobs. The API
// waits.
func TestPagesDoNotWaitForAllJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakes.Fleet()
		f.JobsTake = 60 * time.Millisecond
		for i := range 3000 { // seven reads
			f.Registered = append(f.Registered, ledger.JobRecord{Job: &jobs.Job{Name: fmt.Sprintf("many-%04d", i), Every: time.Minute}, Cursor: fakes.Noon})
		}
		const reading = "All jobs are being read, which takes a moment for very many: 1500 of 3003 so far."
		for path, also := range map[string]string{"/": "2 of 8 slots busy", "/jobs": "Jobs", "/jobs/next": "Next ticks", "/config": "web-1.x7k2m9qa"} {
			s := newServer(t, f)
			began := time.Now()
			w := get(s, path)
			page := parsePage(t, w.Body.String())
			if took := time.Since(began); w.Code != http.StatusOK || took > 180*time.Millisecond {
				t.Errorf("%s: status %d after %v, want 200 after 180ms", path, w.Code, took)
			}
			if !strings.Contains(page.text, reading) || !strings.Contains(page.text, also) {
				t.Errorf("%s: it does not say %q and %q: %s", path, reading, also, page.text)
			}
			for range 3 {
				time.Sleep(keepAtLast)
				page = parsePage(t, get(s, path).Body.String())
			}
			if strings.Contains(page.text, "being read") || !strings.Contains(page.text, also) {
				t.Errorf("%s: once all are read, it says %s", path, page.text)
			}
		}
		for _, path := range []string{"/api/v1/overview", "/api/v1/jobs", "/api/v1/jobs/next"} {
			if w := get(newServer(t, f), path); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "many-0") {
				t.Errorf("%s: status %d, %.300s, want an answer about all jobs", path, w.Code, w.Body)
			}
		}
	})
}
