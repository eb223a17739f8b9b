package admin

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

func TestTheNextTicksOfAllJobsComeInTheirOrder(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{}
	f.Listing.At = fakes.Noon.Add(time.Second)
	for name, every := range map[string]time.Duration{"a": 20 * time.Minute, "b": 10 * time.Minute, "c": time.Hour} {
		f.Registered = append(f.Registered, ledger.JobRecord{Job: &jobs.Job{Name: name, Every: every, Queue: "q-" + name}})
	}
	f.Registered = append(f.Registered, ledger.JobRecord{Job: &jobs.Job{Name: "never", Schedule: "0 0 30 2 *"}}, ledger.JobRecord{Job: &jobs.Job{Name: "none"}})
	slices.SortFunc(f.Registered, func(x, y ledger.JobRecord) int { return len(x.Job.Name) - len(y.Job.Name) })
	for i := range f.Registered {
		if f.Registered[i].Job.Name == "c" {
			f.Registered[i].Paused = "by ann"
		}
	}
	r := readerOf(f)
	show := func(ticks []NextTick) (shown []string) {
		for _, tick := range ticks {
			shown = append(shown, fmt.Sprintf("%s %s%s", tick.Job, tick.Tick.Format("15:04"), map[bool]string{true: " paused"}[tick.Paused]))
		}
		return shown
	}
	read := func(pairs ...string) Filter {
		filter, err := r.ReadNextFilter(t.Context(), func(name string) string {
			if i := slices.Index(pairs, name); i >= 0 {
				return pairs[i+1]
			}
			return ""
		})
		if err != nil {
			t.Fatal(err)
		}
		return filter
	}
	hour := []string{"b 12:10", "a 12:20", "b 12:20", "b 12:30", "a 12:40", "b 12:40", "b 12:50", "a 13:00", "b 13:00", "c 13:00 paused"}
	for _, test := range []struct {
		filter Filter
		want   []string
	}{
		{read("until", "1h"), hour},
		{read("until", "2026-11-21T12:20:00Z"), hour[:1]},
		{read("until", "25m", "job", "a"), []string{"a 12:20"}},
		{read("until", "1h", "queue", "q-c"), []string{"c 13:00 paused"}},
	} {
		ticks := must(r.NextUntil(t.Context(), test.filter))
		if got := show(ticks); !slices.Equal(got, test.want) {
			t.Errorf("%+v: got %q, want %q", test.filter, got, test.want)
		}
		for limit := 1; limit < 4; limit++ {
			test.filter.Limit = limit
			var paged []NextTick
			for cursor := ""; ; {
				some, next, err := r.NextPage(t.Context(), test.filter, cursor)
				if err != nil || len(some) > limit {
					t.Fatalf("%d ticks, %v, want at most %d", len(some), err, limit)
				}
				paged = append(paged, some...)
				if cursor = next; next == "" {
					break
				}
			}
			if got := show(paged); !slices.Equal(got, test.want) {
				t.Errorf("%+v: pages of %d have %q, want %q", test.filter, limit, got, test.want)
			}
		}
	}
	// a cursor of yesterday begins with what is next now
	old, _, err := r.NextPage(t.Context(), Filter{Limit: 2}, "2026-11-20T12:00:00Z b")
	if got := show(old); err != nil || !slices.Equal(got, hour[:2]) {
		t.Errorf("got %q, %v, want %q", got, err, hour[:2])
	}
	if _, _, err := r.NextPage(t.Context(), Filter{Limit: 2}, "junk"); !errors.Is(err, ErrCursor) {
		t.Errorf("%v, want the cursor refused", err)
	}
	if _, err := r.NextUntil(t.Context(), Filter{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v, want an endless list refused", err)
	}
}
