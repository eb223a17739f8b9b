package space

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// readPast reads all that is kept, the first end first, page by page.
func (r *rig) readPast(t testing.TB) (all []Entry) {
	t.Helper()
	s := On(r.rdb, r.keys)
	for from, begun := "", false; !begun || from != ""; begun = true {
		page, err := s.Past(r.ctx, from, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		all, from = append(all, page.Entries...), page.Next
	}
	slices.Reverse(all)
	return all
}

// ending describes an entry in one line.
func ending(e Entry) string {
	text := fmt.Sprint(e.ID, " ", e.Ended, " ", strings.Join(e.Names, ","))
	if e.Wait {
		text = "wait " + text
	}
	if e.Run != "" {
		text += " run " + e.Run
	}
	if by := e.Blocker; by != nil {
		text += fmt.Sprint(" by ", by.Name, " ", by.ID, " ", by.Run)
	}
	return text
}

func TestEndsOfHoldsAndWaitsAreKeptWithTheirCause(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		start := time.Now()
		for _, s := range []string{"a.x", "b.x", "c.x", "d.x"} {
			r.open(t, s, 60_000)
		}
		info := func(run string) string { return `{"job":"bills","run":"` + run + `"}` }
		one := ask("a.x", "a.x.1", 0, 1000, "xbill:1", "xrun:bills#1")
		one.info = info("bills#1")
		r.do(t, "acquire", one.args()...)
		r.acquire(t, "b.x", "b.x.1", 0, 1000, "xbill:1", "sdesk")
		r.acquire(t, "c.x", "c.x.1", 0, 1000, "xbill:1")
		r.do(t, "release", "c.x.1") // canceled
		r.do(t, "release", "a.x.1") // grants to b.x.1
		r.acquire(t, "d.x", "d.x.1", 0, 1000, "xbill:1")
		r.do(t, "close", "b.x", "crashed") // grants to d.x.1
		token := r.do(t, "holders", "bill:1", "", 10)[3]
		record, _ := Holds.Parse(token)
		r.do(t, "revoke", "bill:1", record.Token, "f", "{}", "")
		limited := ask("d.x", "d.x.2", 0, 1000, "xbill:2")
		limited.limits = modelLimits{least: 60_000}
		r.do(t, "acquire", limited.args()...)
		r.do(t, "close", "d.x", "") // rests
		got := make([]string, 0, 8)
		all := r.readPast(t)
		for _, e := range all {
			got = append(got, ending(e))
			if e.To.Before(e.Since) || e.To.Before(start.Add(-time.Minute)) || e.Wait != (e.Token == 0) || e.Session != SessionOf(e.ID) {
				t.Errorf("%+v", e)
			}
		}
		want := []string{
			"wait c.x.1 canceled bill:1 by bill:1 a.x.1 bills#1",
			"a.x.1 released bill:1,run:bills#1 run bills#1",
			"wait b.x.1 granted bill:1,desk by bill:1 a.x.1 bills#1",
			"b.x.1 crashed bill:1,desk",
			"wait d.x.1 granted bill:1 by bill:1 b.x.1 ",
			"d.x.1 revoked bill:1",
			"d.x.2 released bill:2",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if last := all[len(all)-1]; last.RestsUntil.Sub(last.Since) < 59*time.Second {
			t.Errorf("it rests until %s, want a minute after %s", last.RestsUntil, last.Since)
		}
		since, err := On(rdb, r.keys).PastSince(r.ctx)
		if err != nil || since.Before(start.Add(-time.Minute)) || since.After(all[0].To) {
			t.Errorf("kept since %s, %v", since, err)
		}
	})
}

func TestAWideBundleIsKeptWhole(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		r.open(t, "s", 60_000)
		var items, names []string
		for i := range MaxBundle {
			names = append(names, fmt.Sprintf("a-rather-long-name-of-a-bill:%04d", i))
			items = append(items, "x"+names[i])
		}
		r.acquire(t, "s", "s.1", 0, 0, items...)
		r.acquire(t, "s", "s.2", 0, 0, "xsmall")
		r.do(t, "release", "s.1")
		r.do(t, "release", "s.2")
		all := r.readPast(t)
		if len(all) != 2 || !slices.Equal(all[0].Names, names) || all[1].ID != "s.2" {
			t.Fatalf("got %d entries, the first with %d names", len(all), len(all[0].Names))
		}
		for _, element := range rdb.LRange(r.ctx, r.keys[8], 0, -1).Val() {
			if len(element) > 140 {
				t.Fatalf("an element has %d bytes", len(element))
			}
		}
		// A page ends in the midst of neither.
		s := On(rdb, r.keys)
		page, err := s.Past(r.ctx, all[1].Position, time.Time{})
		if err != nil || len(page.Entries) != 1 || len(page.Entries[0].Names) != MaxBundle || page.Next != "" {
			t.Errorf("got %d entries behind the last one, %v", len(page.Entries), err)
		}
	})
}

// TestManyLongEndsAtOnceAreKeptWhole releases as many holds as one script may, with the longest
// infos and names. Their entries are more elements than Lua unpacks at once.
func TestManyLongEndsAtOnceAreKeptWhole(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		r.open(t, "s", 60_000)
		const holds, names = 200, 5
		info := `"` + strings.Repeat("i", 4<<10-2) + `"`
		members, counts, bundles := []any{holds}, []any{}, []any{}
		for i := range holds {
			asked := ask("s", fmt.Sprint("s.", i), 0, 0)
			asked.info = info
			for j := range names {
				name := fmt.Sprintf("bill:%04d:%d:%s", i, j, strings.Repeat("n", MaxName-len("bill:0000:0:")))
				asked.items, bundles = append(asked.items, "x"+name), append(bundles, name)
			}
			granted := r.do(t, "acquire", asked.args()...)
			if granted[0] != "granted" {
				t.Fatalf("got %q, want a grant", granted)
			}
			members = append(members, Holds.Text(&StoredHold{
				Session: "s\x00" + asked.id, Token: granted[1], Since: granted[2], Info: info, Items: strings.Join(asked.items, "\x1f"),
			}))
			counts = append(counts, names)
		}
		if got := r.do(t, "release.all", slices.Concat(members, counts, bundles)...); got[0] != strings.Repeat("1", holds) {
			t.Fatalf("got %q", got)
		}
		if n := rdb.LLen(r.ctx, r.keys[8]).Val(); n < 9000 {
			t.Errorf("%d elements are too few for this test", n)
		}
		all := r.readPast(t)
		if len(all) != holds {
			t.Fatalf("got %d entries, want %d", len(all), holds)
		}
		for i, e := range all {
			if e.ID != HoldID(fmt.Sprint("s.", i)) || string(e.Info) != info || len(e.Names) != names || e.Names[4] != bundles[names*i+4] {
				t.Fatalf("entry %d is of %s, with an info of %d bytes and %d names", i, e.ID, len(e.Info), len(e.Names))
			}
		}
	})
}

// endsLua ends as many holds of typical runs as ARGV[1] says.
const endsLua = `
for i = 1, tonumber(ARGV[1]) do
  local run = 'settle-bills#01K9B7ZK3M5W7' .. format('%06d', i)
  keepEnd(ms, 'hr', 'web-2.p91qd3f7\0web-2.p91qd3f7.' .. i .. '\31' .. micros .. '\31' .. ms .. '\31\31\31{"job":"settle-bills","run":"' .. run ..
    '"}\31xaccount:7\31xbill:1001\31xrun:' .. run)
end
return {call('LLEN', ENDINGS)}
`

func TestAnEntryTakes150BytesAtMost(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	r := newRig(t, rdb)
	const n = 20_000
	for range n / 1000 {
		r.do(t, endsLua, 1000)
	}
	wantSmallElements(t, rdb, r.keys[8])
	if e := r.readPast(t)[n-1]; e.Run != "settle-bills#01K9B7ZK3M5W7001000" || !slices.Equal(e.Names, []string{"account:7", "bill:1001", "run:" + e.Run}) {
		t.Errorf("got %+v", e)
	}

	// Those of wide bundles are parts of a record.
	if err := rdb.LTrim(r.ctx, r.keys[8], -1, -1).Err(); err != nil {
		t.Fatal(err)
	}
	r.open(t, "s", 60_000)
	var items []string
	for i := range MaxBundle {
		items = append(items, fmt.Sprintf("xbill:%04d", i))
	}
	for i := range 100 {
		hold := fmt.Sprint("s.", i)
		r.acquire(t, "s", hold, 0, 0, items...)
		r.do(t, "release", hold)
	}
	wantSmallElements(t, rdb, r.keys[8])
}

// wantSmallElements checks that the elements of a list take 150 bytes of memory at most, on
// average.
func wantSmallElements(t *testing.T, rdb *redis.Client, past string) {
	t.Helper()
	bytes, err := rdb.MemoryUsage(t.Context(), past, 0).Result()
	if err != nil {
		t.Fatal(err)
	}
	n := rdb.LLen(t.Context(), past).Val()
	t.Logf("%d elements take %.1f bytes each", n, float64(bytes)/float64(n))
	if bytes > 150*n {
		t.Errorf("%d elements take %d bytes, more than 150 each", n, bytes)
	}
}

func TestWhatIsKeptIsBounded(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		length := func() int64 { return rdb.LLen(r.ctx, r.keys[8]).Val() }
		open := func(session, keep string, replaces int) {
			t.Helper()
			if got := r.do(t, "open", session, 60_000, "{}", "space", 0, keep, replaces); got[0] != "open" {
				t.Fatalf("open: %q", got)
			}
		}
		ends := func(n int) {
			t.Helper()
			for range n / 100 {
				r.do(t, endsLua, 100)
			}
		}
		renew := func(keep string) {
			t.Helper()
			if got := r.do(t, "renew", "first", 60_000, "space", "1", 0, 0, keep); got[0] != "ok" {
				t.Fatalf("renew: %q", got)
			}
		}
		rdb.Del(r.ctx, r.keys[8])
		open("first", "3600000 1000", 0)
		ends(3000)
		renew("3600000 1000")
		// one end in a hundred looks at the bounds
		if n := length(); n < 1000 || n > 1100 {
			t.Errorf("%d entries are kept, want 1000 and up to 100 more", n)
		}
		open("second", "3600000 5000", 0) // changes nothing
		renew("3600000 2000")
		ends(1000)
		renew("3600000 2000")
		if n := length(); n > 1100 {
			t.Errorf("%d entries are kept after a client without bounds of its own, want those of the first", n)
		}
		open("third", "60000 500", 1)
		renew("3600000 2000")
		if n := length(); n < 500 || n > 600 {
			t.Errorf("%d entries are kept with new bounds, want 500", n)
		}
		open("fourth", "1 500", 1)
		time.Sleep(20 * time.Millisecond) // until all entries are older than that
		renew("3600000 2000")
		if n := length(); n > 100 {
			t.Errorf("%d entries are kept longer than a millisecond", n)
		}
		open("fifth", "0 0", 1)
		if n := rdb.Exists(r.ctx, r.keys[8]).Val(); n != 0 {
			t.Error("the history is turned off, and its key exists")
		}
		ends(100)
		if since, err := On(rdb, r.keys).PastSince(r.ctx); err != nil || !since.IsZero() || length() != 0 {
			t.Errorf("the history is turned off, and kept since %s, %v", since, err)
		}
		open("sixth", "60000 500", 1)
		ends(100)
		if n := len(r.readPast(t)); n != 100 {
			t.Errorf("%d entries are kept after the history was turned on again, want 100", n)
		}
	})
}

// TestPositionsOutliveTheRemovalOfOldEnds reads on from a position after older ends were removed,
// and after all were, with it.
func TestPositionsOutliveTheRemovalOfOldEnds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		s := On(rdb, r.keys)
		bounds := func(keep string) {
			t.Helper()
			if got := r.do(t, "open", "s"+keep, 60_000, "{}", "space", 0, keep, 1); got[0] != "open" {
				t.Fatalf("open: %q", got)
			}
		}
		bounds("3600000 5000")
		const n = 2500
		for range n / 100 {
			r.do(t, endsLua, 100)
		}
		first, err := s.Past(r.ctx, "", time.Time{})
		if err != nil || len(first.Entries) != pastPage || first.Next == "" {
			t.Fatalf("got %+v, %v", first, err)
		}
		bounds("3600000 1100")
		second, err := s.Past(r.ctx, first.Next, time.Time{})
		// the elements before them were removed
		if err != nil || len(second.Entries) != 100 || second.Next != "" {
			t.Fatalf("got %d entries, %v", len(second.Entries), err)
		}
		for i, e := range slices.Concat(first.Entries, second.Entries) {
			if want := int64(n - i); Int(e.Position) != want {
				t.Fatalf("entry %d has position %s, want %d", i, e.Position, want)
			}
		}
		bounds("3600000 1")
		for _, from := range []string{first.Next, "1", fmt.Sprint(n + 1_000_000)} {
			page, err := s.Past(r.ctx, from, time.Time{})
			if want := from == fmt.Sprint(n+1_000_000); err != nil || page.Next != "" || (len(page.Entries) == 1) != want {
				t.Errorf("from %s: got %d entries and %q, %v", from, len(page.Entries), page.Next, err)
			}
		}
	})
}

// TestClockThatIsSetBackHidesNoEnds has an end that the server's clock dates before the one that
// came before it.
func TestClockThatIsSetBackHidesNoEnds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		since := time.UnixMilli(1_750_000_000_000)
		for i, after := range []time.Duration{-2 * time.Minute, time.Second, -10 * time.Second, 2 * time.Second} {
			end := fmt.Sprintf("keepEnd('%d', 'hr', '\\0s.%d\\031%d\\031%d\\031\\031\\031\\031xbill')", since.Add(after).UnixMilli(), i, i+1, since.UnixMilli())
			r.do(t, end+" return {}")
		}
		page, err := On(rdb, r.keys).Past(r.ctx, "", since)
		if err != nil || len(page.Entries) != 2 || page.Entries[0].ID != "s.3" || page.Entries[1].ID != "s.1" || page.Next != "" {
			t.Errorf("got %+v, %v, want s.3 and s.1", page, err)
		}
	})
}

func TestNoPartOfARemovedEndIsKept(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		r.open(t, "s", 60_000)
		var items []string
		for i := range 100 {
			items = append(items, fmt.Sprintf("xa-rather-long-name-of-a-bill:%04d", i))
		}
		for i := range 20 {
			r.acquire(t, "s", fmt.Sprint("s.", i), 0, 0, items...)
			r.do(t, "release", fmt.Sprint("s.", i))
		}
		parts := int(rdb.LLen(r.ctx, r.keys[8]).Val()-1) / 20
		for most := 10 * parts; most > 9*parts; most-- {
			r.do(t, "open", fmt.Sprint("s", most), 60_000, "{}", "space", 0, fmt.Sprint("3600000 ", most), 1)
			if element := rdb.LIndex(r.ctx, r.keys[8], 0).Val(); element == "" || element[0] == '\x1f' {
				t.Fatalf("with %d elements, the first one is %.20q", most, element)
			}
		}
		r.do(t, "open", "least", 60_000, "{}", "space", 0, "3600000 1", 1)
		if element := rdb.LIndex(r.ctx, r.keys[8], 0).Val(); element == "" || element[0] == '\x1f' || rdb.LLen(r.ctx, r.keys[8]).Val() != int64(parts) {
			t.Errorf("with one element, the first one is %.20q", element)
		}
		if all := r.readPast(t); len(all) != 1 || len(all[0].Names) != 100 {
			t.Errorf("got %d ends, the first with %d names", len(all), len(all[0].Names))
		}
	})
}

func TestStreamOfAnEarlierBuildIsRemoved(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		stream := strings.TrimSuffix(r.keys[8], "endings") + "past"
		if err := rdb.XAdd(r.ctx, &redis.XAddArgs{Stream: stream, Values: []string{"b", ""}}).Err(); err != nil {
			t.Fatal(err)
		}
		// entries were kept for an hour
		if err := rdb.LSet(r.ctx, r.keys[8], 0, time.Now().Add(-time.Hour).UnixMilli()).Err(); err != nil {
			t.Fatal(err)
		}
		r.do(t, "open", "s", 60_000, "{}", "space", 0, "7200000 100", 0)
		if rdb.Exists(r.ctx, stream).Val() != 0 {
			t.Errorf("%s exists", stream)
		}
		// Until now, sessions of that build may have ended holds.
		if since, err := On(rdb, r.keys).PastSince(r.ctx); err != nil || time.Since(since) > time.Minute {
			t.Errorf("kept since %s, %v", since, err)
		}
	})
}

func TestNothingThatIsKeptMakesAReleaseFail(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		r.open(t, "s", 60_000)
		rdb.Del(r.ctx, r.keys[8])
		rdb.Set(r.ctx, r.keys[8], "another program's", 0)
		for i, items := range [][]string{{"xa"}, {"sb"}} {
			id := fmt.Sprint("s.", i)
			r.acquire(t, "s", id, 0, 0, items...)
			if got := r.do(t, "release", id); got[0] != "released" {
				t.Errorf("release: %q", got)
			}
		}
		if got := r.do(t, "renew", "s", 60_000, "space", "1", 0, 0, "60000 100"); got[0] != "ok" {
			t.Errorf("renew: %q", got)
		}
		if got := r.do(t, "open", "t", 60_000, "{}", "space", 0, "60000 100", 1); got[0] != "open" {
			t.Errorf("open: %q", got)
		}
	})
}

func TestBoundsOfWhatIsKeptAreChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		keep Keep
		want string
	}{
		{Keep{}, "172800000 100000"}, {Keep{For: time.Hour}, "3600000 100000"}, {Keep{Entries: 5}, "172800000 5"}, {Keep{Entries: -1}, "0 0"},
		{Keep{For: -time.Hour}, ""}, {Keep{For: MostKeepFor + 1}, ""}, {Keep{Entries: MostKeepEntries + 1}, ""},
	} {
		got, err := c.keep.Text()
		if got != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: got %q, %v, want %q", c.keep, got, err, c.want)
		}
	}
}
