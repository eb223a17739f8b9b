package main

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/admin/web"
)

// front passes the requests of a browser on to a server and counts them. A test can change what
// comes back, or cut the connections.
type front struct {
	http *httptest.Server

	to      atomic.Pointer[web.Server]
	down    atomic.Bool
	rewrite atomic.Pointer[func(page string) string]

	pages   atomic.Int64 // requests for pages so far
	follows atomic.Int64 // requests for events so far
	streams atomic.Int64 // of events, open ones
}

// newFront puts a front before a site: from now on the site's address is that of the front.
func newFront(t *testing.T, s *site) *front {
	t.Helper()
	f := &front{}
	f.to.Store(s.server)
	f.http = httptest.NewServer(f)
	t.Cleanup(func() {
		f.http.CloseClientConnections()
		f.http.Close()
	})
	s.url = f.http.URL
	return f
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.down.Load() {
		panic(http.ErrAbortHandler) // closes the connection
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/static/"):
		f.to.Load().ServeHTTP(w, r)
		return
	case r.URL.Path == "/api/v1/events":
		f.follows.Add(1)
		f.streams.Add(1)
		defer f.streams.Add(-1)
		f.to.Load().ServeHTTP(w, r)
		return
	}
	f.pages.Add(1)
	reply := httptest.NewRecorder()
	f.to.Load().ServeHTTP(reply, r)
	body := reply.Body.String()
	if rewrite := f.rewrite.Load(); rewrite != nil {
		body = (*rewrite)(body)
	}
	maps.Copy(w.Header(), reply.Header())
	w.WriteHeader(reply.Code)
	_, _ = w.Write([]byte(body)) // the browser may have closed the page
}

// cut ends the open connections, and all later ones until mend.
func (f *front) cut() {
	f.down.Store(true)
	f.http.CloseClientConnections()
}

func (f *front) mend() { f.down.Store(false) }

// openLive opens a browser that shows a site through a front.
func openLive(t *testing.T) (*site, *front, *browser) {
	t.Helper()
	s := newSite(t)
	f := newFront(t, s)
	b := open(t, s)
	b.onEveryPage(`window.forbidden = []; document.addEventListener("securitypolicyviolation", (e) => forbidden.push(e.violatedDirective + " " + e.blockedURI))`)
	return s, f, b
}

// checkPolicy fails the test if the page has tried what its policy forbids, such as an inline
// style.
func (b *browser) checkPolicy() {
	b.t.Helper()
	if forbidden := read[[]string](b, `forbidden`); len(forbidden) > 0 {
		b.t.Errorf("the policy forbids what the page does: %q", forbidden)
	}
}

// onEveryPage runs a script before those of each page that is visited from now on.
func (b *browser) onEveryPage(script string) {
	b.t.Helper()
	if _, err := chromedp.Call(b.tab, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script}); err != nil {
		b.t.Fatal(err)
	}
}

// A tab without a window is never hidden, so the tests say that it is.
const (
	hide = `Object.defineProperty(document, "hidden", {configurable: true, get: () => true}); document.dispatchEvent(new Event("visibilitychange")); true`
	show = `delete document.hidden; document.dispatchEvent(new Event("visibilitychange")); true`
)

// take makes a client of the lock library hold a lock.
func (s *site) take(t *testing.T, client *locks.Client, name string) *locks.Hold {
	t.Helper()
	hold, err := client.Acquire(t.Context(), locks.Exclusive(name))
	if err != nil {
		t.Fatal(err)
	}
	return hold
}

func release(t *testing.T, holds ...*locks.Hold) {
	t.Helper()
	for _, hold := range holds {
		if err := hold.Release(); err != nil {
			t.Fatal(err)
		}
	}
}

// lists is true in the page of locks while it lists a lock.
func lists(name string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#locks tbody a")].some((a) => a.textContent.trim() === %q)`, name)
}

// awaitAge waits until the page says that it is at least this old. It changes its age with each of
// its ticks, so it has then had so many occasions to ask for something.
func (b *browser) awaitAge(seconds int) {
	b.t.Helper()
	b.await(fmt.Sprintf("the age of %d s", seconds), fmt.Sprintf(`parseInt(document.querySelector(".age").textContent.replace("updated ", "")) >= %d`, seconds))
}

// awaitCount waits until a number that the front counts has a property.
func (b *browser) awaitCount(what string, n *atomic.Int64, holds func(int64) bool) {
	b.t.Helper()
	for !holds(n.Load()) {
		select {
		case <-b.tab.Done():
			b.t.Fatalf("%s: the number is %d", what, n.Load())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func isZero(n int64) bool { return n == 0 }
func isOne(n int64) bool  { return n == 1 }

func TestOpenPageShowsAChange(t *testing.T) {
	t.Parallel()
	s, f, b := openLive(t)
	client := s.Open("other", nil)
	b.visit("/locks")
	b.awaitCount("the stream of events", &f.streams, isOne)
	b.await("the row of a lock", lists("bill:1001"))
	hold := s.take(t, client, "bill:2001")
	from := time.Now()
	b.await("the row of a new lock", lists("bill:2001"))
	// usually below two; without events it would be up to five, and a busy machine is slow
	if took := time.Since(from); took > 10*time.Second {
		t.Errorf("the page shows a new lock after %s", took)
	} else {
		t.Logf("the page shows a new lock after %s", took)
	}
	release(t, hold)
	b.await("the row is removed", "!"+lists("bill:2001"))
}

var rowOfLocks = regexp.MustCompile(`(?s)<tr role="row" id="k[^"]*">.*?</tr>`)

// reversed returns the page with its rows in the opposite order.
func reversed(page string) string {
	rows := rowOfLocks.FindAllString(page, -1)
	return rowOfLocks.ReplaceAllStringFunc(page, func(string) string {
		last := rows[len(rows)-1]
		rows = rows[:len(rows)-1]
		return last
	})
}

func TestRefreshMovesNothingUnderThePerson(t *testing.T) {
	t.Parallel()
	s, f, b := openLive(t)
	client := s.Open("many", nil)
	var holds []*locks.Hold
	for i := range 40 {
		holds = append(holds, s.take(t, client, fmt.Sprintf("bill:%d", 3000+i)))
	}
	withDetails := func(page string) string {
		return strings.Replace(page, `<section id="locks"`, `<details id="more"><summary>More</summary><p>is here</p></details><section id="locks"`, 1)
	}
	f.rewrite.Store(&withDetails)
	b.visit("/locks")
	b.await("the rows", `document.querySelectorAll("#locks tbody tr").length === 42`)
	b.do("type", chromedp.SendKeys(chromedp.CSS("[data-search]"), "bill"))
	b.do("open the details", chromedp.Click(chromedp.CSS("summary")))
	at := read[[]float64](b, `(() => {
		window.link = [...document.querySelectorAll("#locks tbody a")].find((a) => a.textContent.trim() === "bill:3020");
		window.row = link.closest("tr");
		link.focus();
		link.scrollIntoView({block: "center"});
		const place = row.getBoundingClientRect();
		window.before = place.top;
		return [place.left + 5, place.top + place.height / 2];
	})()`)
	b.do("point", chromedp.MouseEvent(chromedp.MouseMoved, at[0], at[1]))
	b.await("the pointer is over the row", `row.matches(":hover")`)
	check := func(when string) {
		t.Helper()
		for _, wrong := range read[[]string](b, fmt.Sprintf(`(() => {
			const wrong = [];
			if (!row.isConnected) wrong.push("its row is another element");
			if (document.activeElement !== link) wrong.push("the focus is at " + document.activeElement.outerHTML.slice(0, 80));
			const now = row.getBoundingClientRect().top;
			if (Math.abs(now - before) > 1) wrong.push("the row moved from " + before + " to " + now);
			if (!row.contains(document.elementFromPoint(%v, %v))) wrong.push("another row is under the pointer");
			if (document.querySelector("[data-search]").value !== "bill") wrong.push("the text in the field is lost");
			if (!document.getElementById("more").open) wrong.push("the details are closed");
			return wrong;
		})()`, at[0], at[1])) {
			t.Errorf("%s: %s", when, wrong)
		}
	}
	check("at first")

	for i := range 5 {
		s.take(t, client, fmt.Sprintf("bill:000%d", i))
	}
	release(t, holds[3], holds[5], holds[30])
	b.await("rows came and went", fmt.Sprintf(`%s && %s && !(%s) && !(%s)`, lists("bill:0000"), lists("bill:0004"), lists("bill:3003"), lists("bill:3030")))
	check("after rows came and went")

	backwards := func(page string) string { return reversed(withDetails(page)) }
	f.rewrite.Store(&backwards)
	b.await("the opposite order", `document.querySelector("#locks tbody a").textContent.trim() === "bill:3039"`)
	check("in the opposite order")
	b.checkPolicy()
}

// A row above it is removed, so all later ones move.
func TestFocusStaysWithItsRowOnTheOverview(t *testing.T) {
	t.Parallel()
	s, _, b := openLive(t)
	client := s.Open("other", nil)
	s.take(t, client, "bill:2001")
	s.take(t, client, "bill:2002")
	link := func(name string) string {
		return fmt.Sprintf(`document.querySelector('#others a[href="/locks/%s"]')`, name)
	}
	b.visit("/")
	b.await("the rows", link("bill:1003")+" && "+link("bill:2002")+" !== null")
	read[bool](b, `window.row = `+link("bill:2002")+`.closest("tr"); `+link("bill:2002")+`.focus(); true`)
	release(t, s.shell)
	b.await("the first row is removed", link("bill:1003")+" === null")
	if !read[bool](b, `row.isConnected && document.activeElement === `+link("bill:2002")+` && row.contains(document.activeElement)`) {
		t.Errorf("the focus is at %s", read[string](b, `document.activeElement.outerHTML.slice(0, 80)`))
	}
}

func TestSelectedTextStaysAsItIs(t *testing.T) {
	t.Parallel()
	s, f, b := openLive(t)
	client := s.Open("other", nil)
	b.visit("/locks")
	b.await("the row of a lock", lists("bill:1001"))
	selected := read[string](b, `getSelection().selectAllChildren(document.querySelector("#locks tbody a")); String(getSelection())`)
	b.awaitAge(3) // a request that had begun before is over
	asked := f.pages.Load()
	s.take(t, client, "bill:0001")
	b.awaitAge(8)
	if now := read[string](b, `String(getSelection())`); now != selected || selected == "" || f.pages.Load() != asked {
		t.Errorf("%q was selected, now %q, after %d requests", selected, now, f.pages.Load()-asked)
	}
	read[bool](b, `getSelection().removeAllRanges(); true`)
	b.await("the new row", lists("bill:0001"))
}

func TestHiddenTabAsksForNothing(t *testing.T) {
	t.Parallel()
	s, f, b := openLive(t)
	client := s.Open("other", nil)
	b.visit("/locks")
	b.awaitCount("the stream of events", &f.streams, isOne)
	read[bool](b, hide)
	b.awaitCount("the stream of events ends", &f.streams, isZero)
	asked, followed := f.pages.Load(), f.follows.Load()
	s.take(t, client, "bill:2001")
	b.awaitAge(7)
	if pages, follows := f.pages.Load()-asked, f.follows.Load()-followed; pages > 0 || follows > 0 {
		t.Errorf("a hidden tab asks for %d pages and %d streams of events", pages, follows)
	}
	read[bool](b, show)
	b.await("the new row", lists("bill:2001"))
	b.awaitCount("the stream of events", &f.streams, isOne)
}

func TestTabThatOpensHiddenAsksForNothing(t *testing.T) {
	t.Parallel()
	_, f, b := openLive(t)
	b.onEveryPage(hide)
	b.visit("/locks")
	b.awaitAge(7)
	if pages, follows := f.pages.Load(), f.follows.Load(); pages != 1 || follows > 0 {
		t.Errorf("a tab in the background asks for %d pages and %d streams of events", pages, follows)
	}
	read[bool](b, show)
	b.awaitCount("the stream of events", &f.streams, isOne)
	b.awaitCount("the page", &f.pages, func(n int64) bool { return n > 1 })
}

func TestPauseStopsThePageAndResumeContinues(t *testing.T) {
	t.Parallel()
	s, f, b := openLive(t)
	client := s.Open("other", nil)
	b.visit("/locks")
	b.awaitCount("the stream of events", &f.streams, isOne)
	b.do("pause", chromedp.Click(chromedp.CSS("#refresh")))
	b.awaitCount("the stream of events ends", &f.streams, isZero)
	asked, followed := f.pages.Load(), f.follows.Load()
	s.take(t, client, "bill:2001")
	b.awaitAge(7)
	if pages, follows := f.pages.Load()-asked, f.follows.Load()-followed; pages > 0 || follows > 0 || read[bool](b, lists("bill:2001")) {
		t.Errorf("a page that pauses asks for %d pages and %d streams of events", pages, follows)
	}
	b.do("resume", chromedp.Click(chromedp.CSS("#refresh")))
	b.await("the new row", lists("bill:2001"))
	b.awaitCount("the stream of events", &f.streams, isOne)
}

func TestDataStaysWhileTheServerIsUnreachable(t *testing.T) {
	t.Parallel()
	s, f, b := openLive(t)
	client := s.Open("other", nil)
	b.visit("/locks")
	b.await("the row of a lock", lists("bill:1001"))
	f.cut()
	b.await("the banner", `document.getElementById("unreachable")?.innerText.includes("does not respond")`)
	if !read[bool](b, lists("bill:1001")) {
		t.Error("the data was removed")
	}
	f.mend()
	s.take(t, client, "bill:2001")
	b.await("the banner goes", `!document.getElementById("unreachable") && `+lists("bill:2001"))
}

func TestDataStaysWhileRedisIsUnreachable(t *testing.T) {
	t.Parallel()
	s, f, b := openLive(t)
	broken := &fakes.Fake{}
	broken.Fail("connection refused")
	unreadable, err := web.New(web.Options{Reader: admin.ReaderOf(broken, broken), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b.visit("/locks")
	b.await("the row of a lock", lists("bill:1001"))
	title := read[string](b, "document.title")
	f.to.Store(unreadable)
	b.await("the banner", `document.getElementById("unreachable")?.innerText.includes("Redis cannot be read")`)
	if !read[bool](b, lists("bill:1001")) || read[string](b, "document.title") != title {
		t.Error("the data was removed")
	}
	f.to.Store(s.server)
	b.await("the banner goes", `!document.getElementById("unreachable")`)

	// nor may a reply that is no page of lockstep, such as that of a proxy, replace the data
	foreign := func(string) string { return "<html><body><h1>Bad Gateway</h1></body></html>" }
	f.rewrite.Store(&foreign)
	b.await("the banner", `document.getElementById("unreachable")?.innerText.includes("does not respond")`)
	if !read[bool](b, lists("bill:1001")) {
		t.Error("the data was removed")
	}
	f.rewrite.Store(nil)
	b.await("the banner goes", `!document.getElementById("unreachable")`)
	b.checkPolicy()
}

func TestTimelineMorphs(t *testing.T) {
	t.Parallel()
	s, _, b := openLive(t)
	client := s.Open("other", nil)
	b.visit("/timeline?group=lock&since=5m")
	bar := fmt.Sprintf(`document.querySelector('svg.lane a[href=%q]')`, "/locks/bill:1003")
	b.await("a bar", bar+` !== null`)
	read[bool](b, fmt.Sprintf(`window.bar = %s; window.first = bar.querySelector("rect").getAttribute("x"); bar.focus(); true`, bar))
	s.take(t, client, "aaa:1")
	s.take(t, client, "zzz:1")
	b.await("new lanes", `["aaa:1", "zzz:1"].every((name) => [...document.querySelectorAll("h2.lane")].some((h) => h.textContent.trim() === name))`)
	b.await("the bar moves", `document.querySelector(":focus rect")?.getAttribute("x") !== first`)
	for _, wrong := range read[[]string](b, `(() => {
		const wrong = [];
		if (document.activeElement !== bar || !bar.isConnected) wrong.push("the focus is at " + document.activeElement.outerHTML.slice(0, 80));
		for (const lane of document.querySelectorAll("svg.lane")) {
			if (lane.viewBox?.baseVal.width !== 1000) wrong.push("a lane is no picture: " + lane.outerHTML.slice(0, 80));
			for (const part of lane.querySelectorAll("*")) {
				if (!(part instanceof SVGElement)) wrong.push("it is no part of a picture: " + part.outerHTML.slice(0, 80));
			}
		}
		return wrong;
	})()`) {
		t.Error(wrong)
	}
	b.checkPolicy()
}

func TestPageOfAnActStaysAsItIs(t *testing.T) {
	t.Parallel()
	_, f, b := openLive(t)
	b.visit("/jobs/settle-bills/pause")
	b.awaitPage("/jobs/settle-bills/pause")
	b.tabUntil("the reason", `document.activeElement.name === "reason"`)
	b.press("the month is closed")
	// a script that refreshed the page would have a control, and would ask in this time
	wait := func(p *runtime.EvaluateParams) { p.AwaitPromise = new(true) }
	read[bool](b, `new Promise((done) => setTimeout(() => done(true), 2000))`, wait)
	if got := read[string](b, `document.activeElement.value`); got != "the month is closed" || f.pages.Load() != 1 || f.follows.Load() > 0 || read[bool](b, `document.getElementById("refresh") !== null`) {
		t.Errorf("the field has %q after %d requests and %d streams", got, f.pages.Load(), f.follows.Load())
	}
	b.press(kb.Enter)
	b.await("what was done", `document.querySelector(".banner.good") !== null`)
}

func TestBackAndForwardAfterRefreshes(t *testing.T) {
	t.Parallel()
	s, f, b := openLive(t)
	client := s.Open("other", nil)
	b.visit("/locks")
	b.await("the row of a lock", lists("bill:1003"))
	s.take(t, client, "bill:2001")
	b.await("a refresh", lists("bill:2001"))
	b.follow("/locks/bill:1003")
	asked := f.pages.Load()
	b.awaitCount("a refresh", &f.pages, func(n int64) bool { return n > asked })
	b.travel(-1)
	b.awaitPage("/locks")
	b.await("the row of a lock", lists("bill:2001"))
	b.travel(1)
	b.awaitPage("/locks/bill:1003")
	b.await("the holder", `document.getElementById("holders").innerText.includes("shell")`)
	if state := read[bool](b, `history.state === null`); !state {
		t.Error("something is kept in the history beside the address")
	}
}

// An expression of the developer tools is free of the page's policy, so this tests htmx alone.
func TestPagesEvaluateNoText(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := open(t, s)
	b.visit("/")
	b.awaitPage("/")
	wait := func(p *runtime.EvaluateParams) { p.AwaitPromise = new(true) }
	got := read[[]string](b, `(async () => {
		const evil = "document.body.className = 'evaluated'";
		const button = document.createElement("button");
		button.setAttribute("hx-on:click", evil);
		button.setAttribute("hx-get", "js:" + evil);
		document.getElementById("main").append(button);
		htmx.process(button);
		button.click();
		await htmx.ajax("GET", "js:" + evil, {source: button}).catch(() => {});
		return [document.body.className, button.hasAttribute("data-htmx-powered") ? "bound" : ""];
	})()`, wait)
	if !slices.Equal(got, []string{"", ""}) {
		t.Errorf("got %q, want no effect of the attributes", got)
	}
}
