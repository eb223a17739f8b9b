package admin

import (
	"cmp"
	pq "container/heap" // heap is also a word for memory
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
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
type nextHeap []upcoming

// upcoming is the future of one job.
type upcoming struct {
	job *listedJob
	at  time.Time // its next tick that is not listed yet
}

func (h nextHeap) Len() int      { return len(h) }
func (h nextHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h nextHeap) Less(i, j int) bool {
	return cmp.Or(h[i].at.Compare(h[j].at), cmp.Compare(h[i].job.Job.Name, h[j].job.Job.Name)) < 0
}
func (h *nextHeap) Push(x any) { *h = append(*h, x.(upcoming)) }
func (h *nextHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// take takes the first tick, and puts the one that follows in its job in its place.
func (h *nextHeap) take(now time.Time) NextTick {
	first := &(*h)[0]
	tick := nextTick(first.job, first.at, now)
	if first.at = first.job.after(first.at); first.at.IsZero() {
		pq.Pop(h)
	} else {
		pq.Fix(h, 0)
	}
	return tick
}

func nextTick(job *listedJob, at, now time.Time) NextTick {
	return NextTick{Job: job.Job.Name, Tick: TickTime{at}, In: Seconds(at.Sub(now)), Paused: job.Paused != "" || job.Job.Paused}
}

// NextPage returns the next ticks of the jobs that a filter selects, before its Until, the soonest
// first, and the cursor of those that follow, "" after the last one. The cursor of the first page
// is "". A page has at most filter.Limit ticks, which must not be 0.
func (r *Reader) NextPage(ctx context.Context, filter Filter, cursor string) (ticks []NextTick, next string, err error) {
	last, lastJob, err := readNextCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	all, now, err := r.listed(ctx, filter.Job)
	if err != nil {
		return nil, "", err
	}
	coming := make(nextHeap, 0, len(all))
	for i := range all {
		job := &all[i]
		if filter.Queue != "" && job.Job.Queue != filter.Queue {
			continue
		}
		from := last
		if job.Job.Name > lastJob { // its tick at that time was not listed
			from = last.Add(-time.Nanosecond)
		}
		if at := job.after(later(from, later(job.Cursor, now))); !at.IsZero() {
			coming = append(coming, upcoming{job, at})
		}
	}
	pq.Init(&coming)
	ticks = []NextTick{}
	for len(coming) > 0 && (filter.Until.IsZero() || coming[0].at.Before(filter.Until)) {
		if len(ticks) == filter.Limit {
			end := ticks[len(ticks)-1]
			return ticks, end.Tick.String() + " " + end.Job, nil
		}
		ticks = append(ticks, coming.take(now))
	}
	return ticks, "", nil
}

// listed returns a job, or, with "", all of them, and the server's time.
func (r *Reader) listed(ctx context.Context, job string) (list []listedJob, now time.Time, err error) {
	if job == "" {
		all, err := r.all(ctx)
		if err != nil {
			return nil, now, err
		}
		now, err = r.now(ctx)
		return all.jobs, now, err
	}
	if now, err = r.now(ctx); err != nil {
		return nil, now, err
	}
	record, err := r.book.Job(ctx, job)
	if err != nil {
		return nil, now, err
	}
	return []listedJob{newListed(record, now, nil)}, now, nil
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
