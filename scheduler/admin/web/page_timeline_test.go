package web

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
)

func TestBarsThatOverlapGetRowsAndCloseOnesAreMerged(t *testing.T) {
	t.Parallel()
	bars := []laneBar{{X: 0, W: 10, n: 1}, {X: 5, W: 10, n: 1}, {X: 20, W: 10, n: 1}, {X: 100, W: 5, n: 1}}
	placed := placeBars(append([]laneBar{}, bars...), 10)
	if len(placed) != 4 || placed[0].Y != 0 || placed[1].Y != 0 || placed[2].Y != 0 || placed[3].Y != 1 {
		t.Errorf("got %+v, want one bar in the second row", placed)
	}
	if placed = placeBars(append([]laneBar{}, bars...), 2); len(placed) != 2 || placed[0].n+placed[1].n != 4 {
		t.Errorf("got %+v, want two bars for all four", placed)
	}
}

// TestManyBarsAreBoundedAndNoneIsLost draws far more entries than a screen can show.
func TestManyBarsAreBoundedAndNoneIsLost(t *testing.T) {
	t.Parallel()
	var bars []laneBar
	for i := range 10_000 {
		bars = append(bars, laneBar{X: float64(i) / 10, W: 3, Kind: "hold", n: 1})
	}
	placed := placeBars(bars, 100)
	n := 0
	for _, bar := range placed {
		n += bar.n
		if bar.X < 0 || bar.X+bar.W > axisWidth+axisLeast || bar.Y >= mostRows {
			t.Fatalf("%+v is outside of the lane", bar)
		}
	}
	if len(placed) > 100 || n != 10_000 {
		t.Errorf("%d bars show %d of 10000 entries, want at most 100", len(placed), n)
	}
	if placed = placeBars(slices.Repeat([]laneBar{{W: axisWidth, n: 1}}, 10), 4); len(placed) != 4 {
		t.Errorf("%d bars show ten entries at the same time, want 4", len(placed))
	}
}

func TestTimelineDrawsWhatHoldsAndWaits(t *testing.T) {
	t.Parallel()
	s := newServer(t, wholeFleet())
	for group, lanes := range map[string][]string{
		"worker": {"web-1.x7k2m9qa", "web-2.p91qd3f7", "shell.00000001"}, "lock": {"bill:1001", "bill:1003", "job:nightly-backup"}, "job": {"nightly-backup", "settle-bills"},
	} {
		w := browse(s, "/timeline?group="+group)
		page := parsePage(t, w.Body.String())
		if w.Code != http.StatusOK || w.Body.Len() > mostPage {
			t.Fatalf("by %s: got %d, %d bytes: %s", group, w.Code, w.Body.Len(), page.text)
		}
		checkSound(t, page)
		for _, lane := range lanes {
			found := false
			for _, h2 := range page.all("h2") {
				found = found || h2.text == lane
			}
			if !found {
				t.Errorf("by %s: no lane is named %s: %s", group, lane, page.text)
			}
		}
	}
	page := parsePage(t, browse(s, "/timeline?since=5m").Body.String())
	for _, want := range []string{"token 1795222978000042", "settle-bills#01K9B7ZK3M5W7QF held bill:1001 (+1) for 4.2s"} {
		if !strings.Contains(page.id("main").text, want) {
			t.Errorf("it does not say %q: %s", want, page.id("main").text)
		}
	}
}

func TestTimelineRefusesAnImpossibleSpan(t *testing.T) {
	t.Parallel()
	s := newServer(t, wholeFleet())
	for query, want := range map[string]string{
		"since=72h": "it must have 5m to 48h", "since=1m": "it must have 5m to 48h", "since=noon": "RFC 3339", "until=x": "RFC 3339", "zone=Mars/Phobos": "Europe/Berlin",
		"group=color": "group",
	} {
		if w := browse(s, "/timeline?"+query); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: got %d, want a page that says %q", query, w.Code, want)
		}
	}
}

func TestTimelineWithTenThousandHoldsIsBounded(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{Listing: locks.Listing{At: fakes.Noon}}
	for i := range 10_000 {
		f.Listing.Holds = append(f.Listing.Holds, locks.HoldRecord{
			ID: locks.HoldID(fmt.Sprintf("s%d.00000001.%d", i%300, i)), Session: locks.SessionID(fmt.Sprintf("s%d.00000001", i%300)), Token: locks.Token(i + 1),
			Since: fakes.Noon.Add(-time.Duration(i) * 300 * time.Millisecond), Names: []string{fmt.Sprintf("bill:%05d-%s", i, strings.Repeat("n", 400))}, LeaseLeft: time.Second,
		})
	}
	s := newServer(t, f)
	for _, group := range []string{"worker", "lock"} {
		w := browse(s, "/timeline?group="+group)
		if w.Code != http.StatusOK || w.Body.Len() > mostPage {
			t.Errorf("by %s: got %d and %d bytes", group, w.Code, w.Body.Len())
		}
		if page := parsePage(t, w.Body.String()); !strings.Contains(page.text, "lanes are not shown") {
			t.Errorf("by %s: it does not say that lanes are left out", group)
		}
	}
}

func TestAnEndThatIsNoReleaseHasAMark(t *testing.T) {
	t.Parallel()
	seen := &timelineSeen{Group: "lock", From: fakes.Noon.Add(-time.Hour), To: fakes.Noon}
	token := locks.Token(7)
	entry := func(ended string, at time.Duration) admin.Entry {
		return admin.Entry{Kind: admin.KindHold, ID: "s.00000001.1", Bundle: []string{"bill:1"}, Token: &token, From: admin.Instant{Time: fakes.Noon.Add(at - time.Minute)},
			To: admin.Instant{Time: fakes.Noon.Add(at)}, Ended: admin.Text(ended)}
	}
	group := admin.EntryGroup{Group: "bill:1", Entries: []admin.Entry{
		entry("released", -50*time.Minute), entry("crashed", -40*time.Minute), entry("expired", -30*time.Minute), entry("revoked", -20*time.Minute)}}
	drawn, merged := drawLane("", group, seen, fakes.Noon, 100)
	var words []string
	for _, mark := range drawn.Marks {
		words = append(words, mark.Sign+" "+mark.Word)
	}
	if got, want := strings.Join(words, ", "), "✗ crashed, ! expired, ⊘ revoked"; got != want || merged != 0 || len(drawn.Bars) != 4 {
		t.Errorf("got %s, %d bars, %d merged; want %s and 4 bars", got, len(drawn.Bars), merged, want)
	}
	if want := "s.00000001.1 held bill:1 for 0s, from 2026-11-21 11:09:00.000 to 11:10:00.000 UTC, released, token 7"; drawn.Bars[0].Title != want {
		t.Errorf("the title is %q, want %q", drawn.Bars[0].Title, want)
	}
}

func TestLockPageShowsWhatHeldItAtATime(t *testing.T) {
	t.Parallel()
	f := wholeFleet()
	f.KeptSince = fakes.Noon.Add(-48 * time.Hour)
	f.Ends = []space.Entry{{
		Position: "1", ID: "web-9.aaaaaaaa.1", Session: "web-9.aaaaaaaa", Token: 17, Since: fakes.Noon.Add(-2 * time.Hour), To: fakes.Noon.Add(-time.Hour),
		Ended: "crashed", Run: "settle-bills#second", Names: []string{"bill:1001", "run:settle-bills#second"},
	}}
	s := newServer(t, f)
	then := parsePage(t, browse(s, "/locks/bill:1001?at=2026-11-21T10:30:00Z").Body.String()).id("past")
	if want := "settle-bills#second hold ✗ crashed 1h ago web-9.aaaaaaaa bill:1001 2026-11-21 10:00 UTC 1h 17"; !strings.Contains(then.text, want) || strings.Contains(then.text, "01K9B7ZK3M5W7QF") {
		t.Errorf("it does not say only %q: %s", want, then.text)
	}
	before := parsePage(t, browse(s, "/locks/bill:1001?at=2026-11-21T09:00:00Z").Body.String()).id("past")
	if want := "Nothing was held or waited for then"; !strings.Contains(before.text, want) {
		t.Errorf("it does not say %q: %s", want, before.text)
	}
	if page := parsePage(t, browse(s, "/timeline?since=6h&group=lock").Body.String()); !strings.Contains(page.text, "crashed✗") && !strings.Contains(page.text, "crashed ✗") {
		t.Errorf("the timeline has no mark for the crash: %s", page.text)
	}
	crawl(t, s)
}
