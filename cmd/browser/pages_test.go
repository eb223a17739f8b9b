package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// TestWalkFromOverviewToLockToRunToJobAndBack does it with JavaScript, then without.
func TestWalkFromOverviewToLockToRunToJobAndBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := open(t, s)
	for _, scripts := range []bool{true, false} {
		if _, err := chromedp.Call(b.tab, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !scripts}); err != nil {
			t.Fatal(err)
		}
		b.visit("/")
		b.awaitPage("/")
		if got := read[string](b, `document.getElementById("refresh").nodeName`); (got == "BUTTON") != scripts {
			t.Errorf("with scripts %v: the control of updates is a %s", scripts, got)
		}
		walk := []string{"/locks/bill:1001", runPath(s.run), "/jobs/settle-bills"}
		for _, path := range walk {
			b.follow(path)
		}
		for _, path := range []string{walk[1], walk[0], "/"} {
			b.travel(-1)
			b.awaitPage(path)
		}
	}
}

// travel moves back (-1) or forward (1) in the history. chromedp.NavigateBack waits for a load, and
// a page that the browser has kept is not loaded again.
func (b *browser) travel(by int64) {
	b.t.Helper()
	history, err := chromedp.Call(b.tab, page.GetNavigationHistory, cdp.Empty{})
	if err != nil {
		b.t.Fatal(err)
	}
	entry := page.NavigateToHistoryEntryParams{EntryID: history.Entries[history.CurrentIndex+by].ID}
	if _, err := chromedp.Call(b.tab, page.NavigateToHistoryEntry, entry); err != nil {
		b.t.Fatal(err)
	}
}

func TestLockIsReleasedByKeyboardAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := open(t, s)
	b.visit("/")
	b.awaitPage("/")
	b.press("g")
	b.press("l")
	b.awaitPage("/locks")
	b.tabTo("/locks/bill:1003")
	b.press(kb.Enter)
	b.awaitPage("/locks/bill:1003")
	b.tabTo("/locks/bill:1003/release?token=" + fmt.Sprint(s.shell.Token()))
	b.press(kb.Enter)
	b.awaitPage("/locks/bill:1003/release")
	b.tabUntil("the reason", `document.activeElement.name === "reason"`)
	b.press("the shell hangs")
	b.press(kb.Enter)
	b.await("what was done", `document.querySelector(".banner.good") !== null`)
	select {
	case <-s.shell.Context().Done():
	case <-t.Context().Done():
		t.Error("the holder did not learn of it")
	}
	b.visit("/audit")
	b.await("the audit", `document.getElementById("main").innerText.includes("the shell hangs")`)
}

// TestSelectedRunsAreCanceledByKeyboardAlone also checks that boxes stay checked while the page
// updates itself and its rows move.
func TestSelectedRunsAreCanceledByKeyboardAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, id := range []string{"third", "fourth"} {
		s.Enqueue(s.bills, id, `{"id":1004}`)
	}
	b := open(t, s)
	b.visit("/runs")
	b.awaitPage("/runs")
	for _, id := range []string{"third", "fourth"} {
		b.tabUntil("the box of "+id, fmt.Sprintf(`document.activeElement.value === "settle-bills#%s"`, id))
		b.press(" ")
	}
	b.await("the count", `document.getElementById("selected").innerText === "2 selected"`)

	const checked = `[...document.querySelectorAll("input[data-select]:checked")].map((box) => box.value).sort().join(" ")`
	const want = "settle-bills#fourth settle-bills#third"
	s.Enqueue(s.bills, "zulu", `{"id":1004}`) // above the others
	b.await("the new run", `document.querySelectorAll("tbody tr")[0].innerText.includes("zulu")`)
	if got := read[string](b, checked); got != want {
		t.Errorf("after an update, the boxes of %q are checked, want those of %q", got, want)
	}
	if got := read[string](b, `document.activeElement.value`); got != "settle-bills#fourth" {
		t.Errorf("after an update, the focus is on %q", got)
	}

	b.press("/") // a box takes no text, so the keys of the page work on it
	b.await("the filter", `document.activeElement.name === "q"`)
	b.tabUntil("the act", `document.activeElement.innerText === "Cancel selected"`)
	b.press(kb.Enter)
	b.awaitPage("/runs/cancel")
	b.await("the question", `document.getElementById("main").innerText.includes("2 runs do not run: they end as canceled at once.")`)
	b.tabUntil("the reason", `document.activeElement.name === "reason"`)
	b.press("the wrong bills")
	b.press(kb.Enter)
	b.await("what was done", `document.querySelector(".banner.good")?.innerText.includes("2 runs are canceled.")`)
	for id, want := range map[string]ledger.State{"third": ledger.StateCanceled, "fourth": ledger.StateCanceled, "zulu": ledger.StateDue} {
		run, err := s.Ledger.FindRecord(t.Context(), jobs.RequestRunID("settle-bills", id))
		if err != nil || run.State != want {
			t.Errorf("%s: %+v, %v, want it %s", id, run, err, want)
		}
	}
	b.visit("/audit")
	b.await("the audit", `document.getElementById("main").innerText.includes("the wrong bills")`)
}

// TestAllRunsOfAPageAreSelected does it with JavaScript, then without.
func TestAllRunsOfAPageAreSelected(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := open(t, s)
	const boxes = `[...document.querySelectorAll("input[data-select]")]`
	for _, scripts := range []bool{true, false} {
		if _, err := chromedp.Call(b.tab, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !scripts}); err != nil {
			t.Fatal(err)
		}
		b.visit("/runs")
		b.awaitPage("/runs")
		b.do("select all", chromedp.Click(chromedp.CSS("a[data-select-all]"), chromedp.NodeVisible))
		b.await("all boxes", boxes+`.length === 2 && `+boxes+`.every((box) => box.checked)`)
		if search := read[string](b, "location.search"); (search == "") != scripts {
			t.Errorf("with scripts %v, the address has %q", scripts, search)
		}
		if scripts {
			b.do("select none", chromedp.Click(chromedp.CSS("a[data-select-all]"), chromedp.NodeVisible))
			b.await("no box", `document.getElementById("selected").innerText === "0 selected" && !`+boxes+`.some((box) => box.checked)`)
			continue
		}
		b.do("retry", chromedp.Click(chromedp.CSS("button[formaction]"), chromedp.NodeVisible))
		b.awaitPage("/runs/retry")
		b.await("the question", `document.getElementById("main").innerText.includes("settle-bills#second is skipped: it has not ended")`)
	}
}

// tabTo moves the focus to a link by the Tab key.
func (b *browser) tabTo(target string) {
	b.t.Helper()
	b.tabUntil(target, fmt.Sprintf(`document.activeElement.getAttribute("href") === %q`, target))
}

func (b *browser) tabUntil(what, expression string) {
	b.t.Helper()
	const most = 200
	for range most {
		if read[bool](b, expression) {
			return
		}
		b.press(kb.Tab)
	}
	b.t.Fatalf("Tab does not reach %s", what)
}

func TestPolicyAllowsNothingUnsafe(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, path := range []string{"/", "/timeline", "/nothing", "/static/live.js", "/static/htmx.min.js", "/api/v1/locks"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		policy := response.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe-") || strings.Contains(policy, "*") {
			t.Errorf("%s: the policy is %q", path, policy)
		}
	}
}
