package admin

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

// filtering reads a filter from pairs of names and values.
func filtering(t *testing.T, r *Reader, pairs ...string) Filter {
	t.Helper()
	filter, err := r.ReadFilter(t.Context(), func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	})
	if err != nil {
		t.Fatalf("%q: %v", pairs, err)
	}
	return filter
}

func TestRunsAreFoundByEachFilter(t *testing.T) {
	t.Parallel()
	const (
		running  = "settle-bills#01K9B7ZK3M5W7QF"
		waiting  = "settle-bills#second"
		retrying = "settle-bills#third"
		night21  = "nightly-backup@2026-11-21T01:00:00Z"
		night20  = "nightly-backup@2026-11-20T01:00:00Z"
		night18  = "nightly-backup@2026-11-18T01:00:00Z"
		mail     = "settle-bills#mail"
	)
	f := fakes.Fleet()
	f.Open[1].Items = []locks.Item{{Name: "bill:1001"}, {Name: "bill:1002"}, {Name: "run:" + running}}
	f.Ended["settle-bills"] = []*ledger.Record{{
		ID: mail, Job: "settle-bills", Queue: "critical", Trigger: ledger.TriggerEnqueue, State: ledger.StateFailed, Finished: fakes.Noon.Add(-30 * time.Minute),
		Args: []byte(`{"bill_ids":[77],"to":{"Mail":"Ann@Example.org"},"n":12345678901234567890,"text":"<script>\u202e"}`),
		Attempts: []ledger.AttemptRecord{{Worker: "web-2.p91qd3f7", Outcome: "failed", Error: "Connection refused\nby 10.0.0.1",
			Finished: fakes.Noon.Add(-30 * time.Minute)}},
	}}
	r := readerOf(f)
	for _, test := range []struct {
		filter []string
		want   []string
	}{
		{[]string{"worker", "web-1.x7k2m9qa"}, []string{night21, retrying, night20, night18}},
		{[]string{"worker", "web-2"}, []string{running, mail}},
		{[]string{"worker", "web"}, nil},
		{[]string{"queue", "critical", "state", "failed"}, []string{mail}},
		{[]string{"error", "connection REFUSED"}, []string{mail}},
		{[]string{"error", "bank"}, []string{retrying}},
		// The bundle of the first is known by its definition.
		{[]string{"lock", "bill:1001"}, []string{waiting, running}},
		{[]string{"lock", "bill:77"}, []string{mail}},
		{[]string{"lock", "job:nightly-backup", "since", "12h"}, []string{night21}},
		{[]string{"since", "1h"}, []string{retrying, waiting, running, mail}},
		{[]string{"since", "2026-11-20T01:00:00Z", "until", "2026-11-21T00:00:00Z"}, []string{night20}},
		{[]string{"until", "2026-11-18T01:41:00Z"}, nil},
		{[]string{"until", "2026-11-18T01:41:00.001Z"}, []string{night18}},
		{[]string{"q", "bill:1002"}, []string{running}},
		{[]string{"q", "SECOND"}, []string{waiting}},
		{[]string{"q", "ann@example"}, []string{mail}},
		{[]string{"q", "12345678901234567890"}, []string{mail}},
		{[]string{"q", "<script>"}, []string{mail}},
		{[]string{"q", "\u202e"}, []string{mail}},
		{[]string{"q", "mail"}, []string{mail}}, // its id; the name of a field is not a value
		{[]string{"q", "bill_ids"}, nil},
		{[]string{"q", night20}, []string{night20}},
		{[]string{"q", night20, "state", "failed"}, nil},
		{[]string{"q", "web-9"}, []string{night21}},
	} {
		t.Run(fmt.Sprint(test.filter), func(t *testing.T) {
			t.Parallel()
			filter := filtering(t, r, test.filter...)
			runs, err := r.Runs(t.Context(), filter)
			if err != nil {
				t.Fatal(err)
			}
			if got := idsOf(runs); !slices.Equal(got, test.want) && len(got)+len(test.want) > 0 {
				t.Errorf("got %q, want %q", got, test.want)
			}
			var paged []string
			filter.Limit = 1
			for cursor, next := "", ""; ; cursor = next {
				if runs, next, err = r.RunPage(t.Context(), filter, cursor); err != nil {
					t.Fatal(err)
				}
				if paged = append(paged, idsOf(runs)...); next == "" {
					break
				}
			}
			if !slices.Equal(paged, test.want) && len(paged)+len(test.want) > 0 {
				t.Errorf("pages of 1 have %q, want %q", paged, test.want)
			}
		})
	}
}

// The end of a long history is read only as far as since reaches, and from until on.
func TestTimesBoundWhatIsReadOfAHistory(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{Ended: map[string][]*ledger.Record{}, Registered: []ledger.JobRecord{{Job: &jobs.Job{Name: "busy"}}}}
	f.Listing.At = fakes.Noon
	f.AddHistory("busy", 5000) // one each minute
	r := readerOf(f)
	filter := filtering(t, r, "since", "72h", "until", "71h", "state", "skipped")
	runs, err := r.Runs(t.Context(), filter)
	if err != nil || len(runs) != 59 { // one of them succeeded
		t.Fatalf("%d runs, %v, want 59", len(runs), err)
	}
	if n := f.RecordCount.Load(); n > 300 {
		t.Errorf("%d records were read, want at most 300 of 5000", n)
	}
}

func TestEachListTakesItsFilters(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Done = []ledger.ActRecord{
		{ID: "1795262399000-0", At: fakes.Noon.Add(-time.Second), Act: ledger.Act{Who: "ann", What: "pause queue", On: "settle-bills"}},
		{ID: "1795262398000-0", At: fakes.Noon.Add(-2 * time.Second), Act: ledger.Act{Who: "bob", What: "cancel run", On: "settle-bills#x", Why: "a < b"}},
		{ID: "1795258800000-0", At: fakes.Noon.Add(-time.Hour), Act: ledger.Act{Who: "bob", What: "pause job", On: "settle-bills"}},
		{ID: "1795258700000-0", At: fakes.Noon.Add(-time.Hour - 100*time.Second), Act: ledger.Act{Who: "ann", What: "drain worker", On: "web-1.x7k2m9qa"}},
		{ID: "1795258600000-0", At: fakes.Noon.Add(-time.Hour - 200*time.Second), Act: ledger.Act{Who: "ann", What: "release lock", On: "bill:1"}},
	}
	r := readerOf(f)
	for _, test := range []struct {
		list   string
		filter []string
		want   string
	}{
		{"jobs", []string{"q", "bill:{"}, "[settle-bills]"},
		{"jobs", []string{"q", "DUMP the"}, "[nightly-backup]"},
		{"jobs", []string{"queue", "default", "state", "succeeded"}, "[nightly-backup]"},
		{"jobs", []string{"lock", "job:warm-cache"}, "[warm-cache]"},
		{"jobs", []string{"job", "nightly"}, "[]"},
		{"jobs", []string{"error", "x"}, "[]"},
		{"ticks", []string{"state", "pending"}, "[2026-11-21T01:00:00Z]"},
		{"ticks", []string{"since", "2026-11-19T01:00:00Z", "until", "2026-11-20T01:00:00Z"}, "[2026-11-19T01:00:00Z]"},
		{"ticks", []string{"error", "OVERLAP"}, "[2026-11-19T01:00:00Z]"},
		{"ticks", []string{"worker", "web-9"}, "[2026-11-21T01:00:00Z]"},
		{"ticks", []string{"q", "web-1", "state", "missed"}, "[2026-11-17T01:00:00Z]"},
		{"locks", []string{"job", "settle-bills"}, "[bill:1001 bill:1002 bill:1003 bill:2001 run:settle-bills#alone]"},
		{"locks", []string{"worker", "shell"}, "[bill:1003]"},
		{"locks", []string{"lock", "bill:1002"}, "[bill:1002]"},
		{"locks", []string{"q", "settle.sh"}, "[bill:1003]"},
		{"waits", []string{"lock", "bill:1003"}, "[+settle-bills#second shell.00000002.1]"},
		{"waits", []string{"state", "offered"}, "[+settle-bills#offered]"},
		{"waits", []string{"until", "5s"}, "[+settle-bills#offered]"},
		{"waits", []string{"worker", "shell.00000002"}, "[shell.00000002.1]"},
		{"waits", []string{"q", "make it"}, "[shell.00000002.1]"},
		{"workers", []string{"state", "gone"}, "[web-3.m4t8c2wz]"},
		{"workers", []string{"queue", "critical", "state", "ready"}, "[web-1.x7k2m9qa]"},
		{"workers", []string{"lock", "bill:1001"}, "[web-2.p91qd3f7]"},
		{"workers", []string{"job", "nightly-backup"}, "[web-1.x7k2m9qa]"},
		{"workers", []string{"q", "9F2C1E", "worker", "web-2"}, "[web-2.p91qd3f7]"},
		{"audit", []string{"job", "settle-bills"}, "[cancel run pause job]"},
		{"audit", []string{"queue", "settle-bills"}, "[pause queue]"},
		{"audit", []string{"worker", "web-1"}, "[drain worker]"},
		{"audit", []string{"lock", "bill:1"}, "[release lock]"},
		{"audit", []string{"q", "A < B"}, "[cancel run]"},
		{"audit", []string{"q", "bob", "since", "30m"}, "[cancel run]"},
		{"audit", []string{"until", "1h"}, "[drain worker release lock]"},
	} {
		t.Run(fmt.Sprint(test.list, test.filter), func(t *testing.T) {
			t.Parallel()
			filter := filtering(t, r, test.filter...)
			names, err := listOf(t, r, test.list, filter)
			if got := fmt.Sprint(names); err != nil || got != test.want {
				t.Errorf("got %s, %v, want %s", got, err, test.want)
			}
		})
	}
	for _, list := range []string{"runs", "jobs", "ticks", "waits", "workers"} {
		if _, err := listOf(t, r, list, Filter{State: "exploded"}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want the state refused", list, err)
		}
	}
}

// listOf returns what identifies the entries of a list.
func listOf(t *testing.T, r *Reader, list string, filter Filter) (names []string, err error) {
	t.Helper()
	snapshot, err := r.Snapshot(t.Context())
	if err != nil {
		return nil, err
	}
	switch list {
	case "runs":
		runs, err := r.Runs(t.Context(), filter)
		return idsOf(runs), err
	case "jobs":
		all, err := r.Jobs(t.Context(), filter, "")
		for _, job := range all {
			names = append(names, job.Name)
		}
		return names, err
	case "ticks":
		filter.Job = "nightly-backup"
		ticks, err := r.TicksOf(t.Context(), filter)
		for _, tick := range ticks {
			names = append(names, tick.Tick.String())
		}
		return names, err
	case "locks":
		for _, lock := range filter.Locks(snapshot.Locks()) {
			names = append(names, lock.Name)
		}
	case "waits":
		waits, err := filter.Waits(snapshot.Waits)
		for _, wait := range waits {
			names = append(names, string(wait.ID))
		}
		return names, err
	case "workers":
		workers, err := filter.Workers(snapshot)
		for _, worker := range workers {
			names = append(names, string(worker.ID))
		}
		return names, err
	case "audit":
		acts, err := r.Audit(t.Context(), filter)
		for _, act := range acts {
			names = append(names, act.What)
		}
		return names, err
	}
	return names, nil
}

func TestAPageOfTheAuditLooksAtABoundedNumberOfOthers(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{}
	const n = 3000
	for i := range n {
		at := fakes.Noon.Add(-time.Duration(i) * time.Second)
		f.Done = append(f.Done, ledger.ActRecord{ID: fmt.Sprintf("%d-0", at.UnixMilli()), At: at, Act: ledger.Act{Who: "ann", What: "enqueue", On: "a"}})
	}
	f.Done[n-1].Who = "bob"
	r := readerOf(f)
	filter, cursor, pages, found := Filter{Query: "bob", Limit: 10}, "", 0, 0
	for {
		acts, next, err := r.AuditPage(t.Context(), filter, cursor)
		if err != nil {
			t.Fatal(err)
		}
		pages, found = pages+1, found+len(acts)
		if next == "" {
			break
		}
		if cursor = next; pages > n {
			t.Fatal("it has no end")
		}
	}
	if found != 1 || pages < 3 {
		t.Errorf("%d acts in %d pages, want one, and no page that looks at more than 1,010", found, pages)
	}
}

func TestTimesOfAFilterAreChecked(t *testing.T) {
	t.Parallel()
	r := readerOf(fakes.Fleet())
	for _, since := range []string{"yesterday", "-1h", "5", "2026-11-21", "2026-11-21T12:00:00Z"} {
		_, err := r.ReadFilter(t.Context(), func(name string) string {
			return map[string]string{"since": since, "until": "2026-11-21T12:00:00Z"}[name]
		})
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("since %q: %v, want it refused", since, err)
		}
	}
}

func TestRunsAreGroupedByTheirError(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{Ended: map[string][]*ledger.Record{}}
	f.Listing.At = fakes.Noon
	for j := range 12 {
		name := fmt.Sprintf("job-%02d", j)
		f.Registered = append(f.Registered, ledger.JobRecord{Job: &jobs.Job{Name: name}})
		for i := range 100 {
			at := fakes.Noon.Add(-time.Duration(12*i+j) * time.Second)
			record := &ledger.Record{ID: jobs.RequestRunID(name, fmt.Sprint(i)), Job: name, State: ledger.StateFailed, Finished: at}
			switch {
			case i%2 == 0:
				record.Attempts = []ledger.AttemptRecord{{Outcome: "failed", Error: "exit status 3\nline two " + name, Finished: at}}
			case i == 1:
				record.Reason = "refused by " + name
			}
			f.Ended[name] = append(f.Ended[name], record)
		}
	}
	r := readerOf(f)
	groups, err := r.RunErrors(t.Context(), filtering(t, r, "state", "failed", "since", "1h"))
	if err != nil || len(groups) != 14 {
		t.Fatalf("%+v, %v, want 14 groups", groups, err)
	}
	names, _, _ := f.ScanJobs(t.Context(), 0)
	want := ErrorGroup{Error: "exit status 3", Runs: 600, Jobs: names[:10], MoreJobs: 2, LastRun: "job-00#0", LastAt: Instant{fakes.Noon}}
	if fmt.Sprintf("%+v", groups[0]) != fmt.Sprintf("%+v", want) {
		t.Errorf("got %+v first, want %+v", groups[0], want)
	}
	if groups[1].Error != "" || groups[1].Runs != 588 || groups[2].Error != "refused by job-00" || groups[2].Runs != 1 {
		t.Errorf("got %+v and %+v next", groups[1], groups[2])
	}
	total, pages := 0, 0
	for cursor := ""; ; pages++ {
		part, next, err := r.RunErrorPage(t.Context(), Filter{State: "failed", Limit: 2}, cursor)
		if err != nil || len(part) > 2 {
			t.Fatalf("%+v, %v, want at most two groups", part, err)
		}
		for _, group := range part {
			total += group.Runs
		}
		if cursor = next; next == "" {
			break
		}
	}
	if total != 1200 || pages == 0 {
		t.Errorf("the parts count %d runs, want each of 1200 once", total)
	}
	if _, err := r.RunErrors(t.Context(), Filter{Job: "nobody"}); !errors.Is(err, ledger.ErrUnknown) {
		t.Errorf("%v, want the job unknown", err)
	}
}

// TestFiltersOfRealRuns finds an outstanding run by the bundle that the ledger has for it, and in
// the index of its queue.
func TestFiltersOfRealRuns(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		s := newStage(t, rdb)
		for i, queue := range []string{"b", "a", "c", "b"} {
			job := &jobs.Job{Name: fmt.Sprintf("j%d", i), Command: []string{"true"}, Queue: queue, Lock: jobs.Lock{Exclusive: []string{"bill:{id}"}}}
			s.Enqueue(job, "x", fmt.Sprintf(`{"id":%d}`, i))
		}
		for _, test := range []struct {
			filter Filter
			want   []string
		}{
			{Filter{State: "due", Queue: "b"}, []string{"j0#x", "j3#x"}},
			{Filter{State: "due", Queue: "d"}, []string{}},
			{Filter{Lock: "bill:2"}, []string{"j2#x"}},
			{Filter{Query: "BILL:1"}, []string{"j1#x"}},
			{Filter{Until: time.Now().Add(-time.Hour)}, []string{}},
		} {
			runs := must(s.reader.Runs(t.Context(), test.filter))
			if got := idsOf(runs); !slices.Equal(got, test.want) {
				t.Errorf("%+v: got %q, want %q", test.filter, got, test.want)
			}
			test.filter.Limit = 1
			var paged []string
			for cursor, next := "", ""; ; cursor = next {
				page, more, err := s.reader.RunPage(t.Context(), test.filter, cursor)
				if err != nil {
					t.Fatal(err)
				}
				if paged, next = append(paged, idsOf(page)...), more; next == "" {
					break
				}
			}
			if !slices.Equal(paged, test.want) && len(paged)+len(test.want) > 0 {
				t.Errorf("%+v: pages of 1 have %q, want %q", test.filter, paged, test.want)
			}
		}
	})
}
