package admin

import (
	pq "container/heap" // heap is also a word for memory
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// ErrCursor is returned for a cursor that no page of this list returned.
var ErrCursor = fmt.Errorf("%w: this cursor is none that a list gave as next_cursor", ErrInvalid)

// looksAtMost is how many records a page of a list may read beyond its limit when most runs are not
// in the requested state. The page is then shorter, and its next_cursor leads on.
const looksAtMost = 1000

// pager walks through outstanding runs and then through finished ones. Of each batch it reads the
// entries of an index first, and then the records of those entries that may be listed. A pager
// answers one request; it is not safe for concurrent use.
type pager struct {
	book  Book
	index ledger.Index
	job   string                    // "": all
	may   func(jobs.RunID) bool     // reports whether a run may be listed, judged by its id
	keep  func(*ledger.Record) bool // reports whether a run is listed
	// reads what keep needs for some runs; nil: nothing
	load func(context.Context, []*ledger.Record) error
	// reports that neither an entry nor any that follow it in the index are listed; nil: never
	end func(ledger.OpenEntry) bool

	open  bool     // outstanding runs are still to be listed
	ended bool     // finished runs are listed
	at    position // of the last run that was looked at
	from  *position
	begun bool // heads and rest are set
	heads endedHeap
	// Of a list of all jobs: more is true if some are not in heads yet, and rest is where they
	// begin.
	more  bool
	rest  string
	bound time.Time       // no run of theirs has ended after it; zero: that is unknown
	added map[string]bool // the jobs that are in heads, or were
	width int             // how many of them are added in the next step
	taken *position       // of the last entry that was taken; nil: none was
	// finished runs that ended before since, or after until, are not listed; zero: all are
	since, until time.Time

	ready []item // items read and not yet examined
	done  bool   // nothing follows
}

// item is a run in a list. Its record is nil if the run has left the list since.
type item struct {
	record *ledger.Record
	at     position
}

const (
	mostRead   = 200 // records or entries in one step
	firstRead  = 16  // entries of each history, and histories, in the first step
	sideBySide = 200 // histories in one step
)

// runPager returns the list of runs that match a filter, after a position.
func (r *Reader) runPager(filter RunFilter, after *position) (*pager, error) {
	if err := filter.check(); err != nil {
		return nil, err
	}
	state := ledger.State(filter.State)
	p := &pager{book: r.book, index: ledger.IndexJob, job: filter.Job, open: !state.Final(), ended: state == "" || state.Final(),
		may: func(jobs.RunID) bool { return true }, since: filter.Since, until: filter.Until}
	p.keep, p.load = r.selects(filter)
	switch index := state.Facts().Index; {
	case index == ledger.IndexWorker: // as many as the fleet has slots
		p.index = index
		if filter.Job != "" {
			p.may = func(id jobs.RunID) bool { return id.Job() == filter.Job }
		}
	case filter.Job != "":
	case index != "":
		p.index = index
		if queue := filter.Queue; queue != "" && index == ledger.IndexQueue {
			p.at.Open = queue + "\x00"
			p.end = func(entry ledger.OpenEntry) bool { return !strings.HasPrefix(entry.Position, queue+"\x00") }
		}
	}
	return p.after(after)
}

// tickPager returns the list of the ticks of a filter's job after a position.
func (r *Reader) tickPager(ctx context.Context, filter Filter, after *position) (*pager, error) {
	if filter.Limit < 0 {
		return nil, fmt.Errorf("%w: a limit of %d ticks", ErrInvalid, filter.Limit)
	}
	if err := filter.checkState("tick", Outcomes()...); err != nil {
		return nil, err
	}
	job := filter.Job
	if _, err := r.book.Job(ctx, job); err != nil {
		return nil, err
	}
	isTick := func(id jobs.RunID) bool { return strings.HasPrefix(string(id), job+"@") }
	p := &pager{book: r.book, index: ledger.IndexJob, job: job, open: true, ended: true, may: isTick,
		keep: func(record *ledger.Record) bool { return !record.Tick.IsZero() && filter.keepsTick(record) },
		// a tick is settled after it was due
		since: filter.Since,
		// runs without a tick follow
		end: func(entry ledger.OpenEntry) bool { return !isTick(entry.Run) }}
	p, _ = p.after(after) // a position of another list is useless and harmless
	return p, nil
}

// endedPager returns the list of the finished runs of a job, or, with "", of all jobs.
func (r *Reader) endedPager(job string, keep func(*ledger.Record) bool) *pager {
	return &pager{book: r.book, job: job, ended: true, keep: keep, may: func(jobs.RunID) bool { return true }}
}

func (p *pager) after(after *position) (*pager, error) {
	if after == nil {
		return p, nil
	}
	if !after.Final && (after.Index != p.index || !p.open) || after.Final && !p.ended {
		return p, ErrCursor // of a list with another filter
	}
	p.at, p.from = *after, after
	p.open = !after.Final
	return p, nil
}

// page returns the next page of a list, at most limit items, and the cursor of the page that
// follows, "" after the last one.
func (p *pager) page(ctx context.Context, limit int) (items []item, next string, err error) {
	items, err = p.next(ctx, limit+1, looksAtMost)
	switch {
	case err != nil:
		return nil, "", err
	case len(items) > limit:
		return items[:limit], items[limit-1].at.cursor(), nil
	case !p.done:
		return items, p.at.cursor(), nil
	}
	return items, "", nil
}

// next returns the next runs: at most want of them, or with 0 all. With budget > 0 it stops early
// after it has read that many records, or ten times as many entries, without enough matches; p.at
// is then where it stopped, and p.done is false.
func (p *pager) next(ctx context.Context, want, budget int) ([]item, error) {
	var found []item
	open := make(map[jobs.RunID]int) // outstanding runs found
	records, entries, steps := 0, 0, 0
	for want == 0 || len(found) < want {
		if budget > 0 && (records-len(found) >= budget || entries >= 10*budget) {
			break
		}
		if len(p.ready) == 0 {
			most := mostRead
			if steps++; want > 0 && steps < 3 { // later steps are larger: most runs are not listed
				most = min(want-len(found), mostRead)
			}
			n, err := p.read(ctx, most)
			if err != nil {
				return nil, err
			}
			entries += n
			if n == 0 {
				p.done = true
				break
			}
			continue
		}
		one := p.ready[0]
		p.ready = p.ready[1:]
		p.at = one.at
		if one.record == nil {
			continue
		}
		records++
		if !p.keep(one.record) {
			continue
		}
		if !one.at.Final {
			open[one.record.ID] = len(found)
		} else if i, twice := open[one.record.ID]; twice {
			found[i].record = nil // it ended after it had been read as outstanding
		}
		found = append(found, one)
	}
	return slices.DeleteFunc(found, func(one item) bool { return one.record == nil }), nil
}

// read reads the next entries and their records into p.ready, and returns how many entries it read;
// 0: no more exist.
func (p *pager) read(ctx context.Context, most int) (int, error) {
	if p.open {
		n, err := p.readOpen(ctx, most)
		if err != nil || n > 0 {
			return n, err
		}
		p.open = false
	}
	if !p.ended {
		return 0, nil
	}
	return p.readEnded(ctx, most)
}

func (p *pager) readOpen(ctx context.Context, most int) (int, error) {
	entries, err := p.book.OpenEntries(ctx, p.index, p.job, p.at.Open, most)
	if err != nil {
		return 0, err
	}
	if p.end != nil {
		if i := slices.IndexFunc(entries, p.end); i >= 0 {
			entries = entries[:i]
		}
	}
	var ids []jobs.RunID
	for _, entry := range entries {
		p.ready = append(p.ready, item{at: position{Index: p.index, Open: entry.Position}})
		if p.may(entry.Run) {
			ids = append(ids, entry.Run)
		}
	}
	if len(ids) == 0 {
		return len(entries), nil
	}
	records, err := p.book.OpenRecords(ctx, ids)
	if err != nil {
		return 0, err
	}
	if err := p.loaded(ctx, records); err != nil {
		return 0, err
	}
	for i, entry := range entries {
		if p.may(entry.Run) {
			p.ready[len(p.ready)-len(entries)+i].record, records = records[0], records[1:]
		}
	}
	return len(entries), nil
}

// loaded calls load.
func (p *pager) loaded(ctx context.Context, records []*ledger.Record) error {
	if p.load == nil {
		return nil
	}
	return p.load(ctx, records)
}

func (p *pager) readEnded(ctx context.Context, most int) (int, error) {
	if !p.begun {
		p.begun = true
		if p.job != "" {
			p.add(p.job, mostRead)
		} else {
			p.more, p.added, p.width = true, make(map[string]bool), firstRead
		}
	}
	var entries, asked []ledger.EndedEntry
	for len(entries) < most {
		entry, found, err := p.pop(ctx)
		if err != nil {
			return 0, err
		}
		if !found {
			break
		}
		if entry.At.Before(p.since) { // as all that follow
			p.heads, p.more = nil, false
			break
		}
		entries = append(entries, entry)
		if p.may(entry.Run) {
			asked = append(asked, entry)
		}
	}
	records, err := p.book.EndedRecords(ctx, asked)
	if err != nil {
		return 0, err
	}
	if err := p.loaded(ctx, records); err != nil {
		return 0, err
	}
	for _, entry := range entries {
		one := item{at: endedPosition(entry)}
		if p.may(entry.Run) {
			one.record, records = records[0], records[1:]
		}
		p.ready = append(p.ready, one)
	}
	return len(entries), nil
}

// head is the part of a job's history that was read and not yet taken.
type head struct {
	entries []ledger.EndedEntry
	next    ledger.EndedPage // what follows entries
	// position of the last entry that was read or is listed already; nil: none
	last *position
	all  bool // nothing follows
}

// endedHeap has the head with the first run on top. Heads without entries are above all others, so
// that they are read next.
type endedHeap []*head

func (h endedHeap) Len() int      { return len(h) }
func (h endedHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h endedHeap) Less(i, j int) bool {
	if len(h[i].entries) == 0 || len(h[j].entries) == 0 {
		return len(h[i].entries) == 0 && len(h[j].entries) > 0
	}
	return endedPosition(h[i].entries[0]).compare(endedPosition(h[j].entries[0])) < 0
}
func (h *endedHeap) Push(x any) { *h = append(*h, x.(*head)) }
func (h *endedHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// add adds the history of a job to the list, behind what was taken: runs that have ended since are
// not in this list. most is how many entries are read of it first.
func (p *pager) add(name string, most int) {
	h := &head{next: ledger.EndedPage{Job: name, Until: p.until, Most: most}, last: p.taken}
	if h.last == nil && p.from != nil && p.from.Final {
		h.last = p.from
	}
	if h.last != nil {
		h.next.Until = time.UnixMilli(h.last.At).UTC()
	}
	pq.Push(&p.heads, h)
}

// pop takes the entry that comes next in the merged histories.
func (p *pager) pop(ctx context.Context) (entry ledger.EndedEntry, found bool, err error) {
	for {
		switch {
		case len(p.heads) > 0 && len(p.heads[0].entries) == 0:
			err = p.fill(ctx)
		case p.more && (len(p.heads) == 0 || !p.heads[0].entries[0].At.After(p.bound)):
			err = p.widen(ctx)
		case len(p.heads) == 0:
			return entry, false, nil
		default:
			top := p.heads[0]
			entry, top.entries = top.entries[0], top.entries[1:]
			at := endedPosition(entry)
			p.taken = &at
			if len(top.entries) == 0 && top.all {
				pq.Pop(&p.heads)
			} else {
				pq.Fix(&p.heads, 0)
			}
			return entry, true, nil
		}
		if err != nil {
			return entry, false, err
		}
	}
}

// widen adds the histories that have the next runs to end.
func (p *pager) widen(ctx context.Context) error {
	ended, rest, err := p.book.EndedJobs(ctx, p.rest, p.width)
	if err != nil {
		return err
	}
	p.more, p.rest, p.width = rest != "", rest, min(2*p.width, sideBySide)
	for _, job := range ended {
		p.bound = job.At // the last one's counts
		if !p.added[job.Job] {
			p.added[job.Job] = true
			p.add(job.Job, firstRead)
		}
	}
	p.more = p.more && !p.bound.Before(p.since)
	return nil
}

// fill reads the next entries of the histories with no entries left.
func (p *pager) fill(ctx context.Context) error {
	var empty []*head
	for len(p.heads) > 0 && len(p.heads[0].entries) == 0 && len(empty) < sideBySide {
		empty = append(empty, pq.Pop(&p.heads).(*head))
	}
	pages := make([]ledger.EndedPage, len(empty))
	for i, h := range empty {
		pages[i] = h.next
	}
	parts, err := p.book.EndedEntries(ctx, pages)
	if err != nil {
		return err
	}
	for i, h := range empty {
		part := parts[i]
		h.all = len(part) < h.next.Most
		h.follow(part)
		h.entries = part
		if last := h.last; last != nil { // entries of its millisecond may come before it
			h.entries = slices.DeleteFunc(part, func(entry ledger.EndedEntry) bool { return endedPosition(entry).compare(*last) <= 0 })
		}
		if n := len(h.entries); n > 0 {
			at := endedPosition(h.entries[n-1])
			h.last = &at
		}
		if len(h.entries) > 0 || !h.all {
			pq.Push(&p.heads, h)
		}
	}
	return nil
}

// follow sets what follows a part that was read. It uses the time of the last entry, since runs
// that end in the meantime shift the ranks of all others.
func (h *head) follow(part []ledger.EndedEntry) {
	if len(part) == 0 {
		return
	}
	last := part[len(part)-1].At
	same := 0
	for i := len(part) - 1; i >= 0 && part[i].At.Equal(last); i-- {
		same++
	}
	if same == len(part) && h.next.Until.Equal(last) {
		same += h.next.Skip
	}
	h.next.Until, h.next.Skip, h.next.Most = last, same, min(2*h.next.Most, mostRead)
}
