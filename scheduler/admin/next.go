package admin

import (
	"cmp"
	pq "container/heap" // heap is also a word for memory
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"lockstep/scheduler"
	"lockstep/scheduler/cronspec"
	"lockstep/scheduler/ledger"
)

// NextFilters are the names of the filters of future ticks, as [RunFilters] are those of runs.
var NextFilters = []string{"job", "queue", "until"}

// ReadNextFilter is [Reader.ReadFilter] for future ticks: a duration is from now on.
func (r *Reader) ReadNextFilter(ctx context.Context, value func(name string) string) (Filter, error) {
	f := Filter{Job: value("job"), Queue: value("queue")}
	until, err := r.readTime(ctx, "until", value("until"), 1)
	f.Until = until
	return f, err
}

// nextHeap has the schedule with the next tick on top.
type nextHeap []*upcoming

// upcoming is the future of one job.
type upcoming struct {
	record  ledger.JobRecord
	trigger *cronspec.Schedule
	at      time.Time // its next tick that is not listed yet
}

func (h nextHeap) Len() int      { return len(h) }
func (h nextHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h nextHeap) Less(i, j int) bool {
	return cmp.Or(h[i].at.Compare(h[j].at), cmp.Compare(h[i].record.Job.Name, h[j].record.Job.Name)) < 0
}
func (h *nextHeap) Push(x any) { *h = append(*h, x.(*upcoming)) }
func (h *nextHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// NextPage returns the next ticks of the jobs that a filter selects, before its Until, the soonest
// first, and the cursor of those that follow, "" after the last one. The cursor of the first page
// is "". A page has at most filter.Limit ticks, which must not be 0.
func (r *Reader) NextPage(ctx context.Context, filter Filter, cursor string) (ticks []NextTick, next string, err error) {
	last, lastJob, err := readNextCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	var records []ledger.JobRecord
	if filter.Job == "" {
		records, err = r.book.Jobs(ctx)
	} else {
		records = make([]ledger.JobRecord, 1)
		records[0], err = r.book.Job(ctx, filter.Job)
	}
	if err != nil {
		return nil, "", err
	}
	now, err := r.now(ctx)
	if err != nil {
		return nil, "", err
	}
	coming := make(nextHeap, 0, len(records))
	for _, record := range records {
		trigger, err := scheduler.Trigger(record.Job)
		if err != nil || trigger == nil || filter.Queue != "" && record.Job.Queue != filter.Queue {
			continue
		}
		from := last
		if record.Job.Name > lastJob { // its tick at that time was not listed
			from = last.Add(-time.Nanosecond)
		}
		one := &upcoming{record: record, trigger: trigger}
		if one.at = trigger.Next(later(from, later(record.Cursor, now))); !one.at.IsZero() {
			coming = append(coming, one)
		}
	}
	pq.Init(&coming)
	ticks = []NextTick{}
	for len(coming) > 0 {
		first := coming[0]
		if !filter.Until.IsZero() && !first.at.Before(filter.Until) {
			break
		}
		if len(ticks) == filter.Limit {
			end := ticks[len(ticks)-1]
			return ticks, end.Tick.String() + " " + end.Job, nil
		}
		name := first.record.Job.Name
		ticks = append(ticks, NextTick{Job: name, Tick: TickTime{first.at}, In: Seconds(first.at.Sub(now)),
			Paused: first.record.Paused != "" || first.record.Job.Paused})
		if first.at = first.trigger.Next(first.at); first.at.IsZero() {
			pq.Pop(&coming)
		} else {
			pq.Fix(&coming, 0)
		}
	}
	return ticks, "", nil
}

// readNextCursor reads the last tick of a page, and its job.
func readNextCursor(cursor string) (at time.Time, job string, err error) {
	if cursor == "" {
		return at, "", nil
	}
	text, job, ok := strings.Cut(cursor, " ")
	if at, err = time.Parse(time.RFC3339, text); err != nil || !ok {
		return at, "", ErrCursor
	}
	return at, job, nil
}

// NextUntil returns all ticks of [Reader.NextPage], or the first filter.Limit of them.
func (r *Reader) NextUntil(ctx context.Context, filter Filter) ([]NextTick, error) {
	if filter.Until.IsZero() && filter.Limit == 0 {
		return nil, fmt.Errorf("%w: all future ticks; give an end, or a limit", ErrInvalid)
	}
	most := filter.Limit
	var ticks []NextTick
	for cursor := ""; ; {
		if filter.Limit = looksAtMost; most > 0 {
			filter.Limit = min(looksAtMost, most-len(ticks))
		}
		some, next, err := r.NextPage(ctx, filter, cursor)
		if err != nil {
			return nil, err
		}
		if ticks = slices.Concat(ticks, some); next == "" || most > 0 && len(ticks) >= most {
			return ticks, nil
		}
		cursor = next
	}
}
