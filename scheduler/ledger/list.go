package ledger

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/space"
)

const (
	page     = 200  // records per read at most: a read must be short
	openPage = 1000 // members of an index per read
)

// MaxListedArgs is how many bytes of arguments a run has in a list. [Record.Args] of a run with
// more is nil there, and also beside a definition of more than 15 KiB. [Ledger.Find] returns them
// all.
const MaxListedArgs = 1 << 10

// An Index is an order in which [Ledger.OpenEntries] lists outstanding runs, and selects the listed
// runs.
type Index string

// The indexes of outstanding runs. They are the sorted sets of the same names, so each build
// maintains them.
const (
	// IndexJob has all runs: by job, and of each job the latest tick first, then runs without a
	// tick, the last id first.
	IndexJob Index = "open"
	// IndexQueue has the due runs: by queue, and of each queue the run that has been due for
	// longest first.
	IndexQueue Index = "ready"
	// IndexWorker has the running runs: by the session that runs them.
	IndexWorker Index = "busy"
	// IndexTime has the scheduled and retrying runs: the run that becomes due first is the first.
	IndexTime Index = "timer"
)

// OpenEntry is a run's entry in an [Index].
type OpenEntry struct {
	Run      jobs.RunID
	Position string // its position in the index, valid also after the run has ended
}

// OpenEntries returns the entries of an index that follow a position, or the first ones with "": at
// most limit of them, and at most 200. A job other than "" restricts [IndexJob] to that job; it has
// no effect on other indexes. The cost depends only on the limit, not on the number of outstanding
// runs. Read the records with [Ledger.OpenRecords].
func (l *Ledger) OpenEntries(ctx context.Context, index Index, job, after string, limit int) ([]OpenEntry, error) {
	r := space.Read(l.run(ctx, "open", "", string(index), job, after, min(limit, page)))
	var entries []OpenEntry
	for r.More() {
		entries = append(entries, OpenEntry{Run: jobs.RunID(r.Text()), Position: r.Text()})
	}
	if r.Err != nil {
		return nil, fmt.Errorf("read index of outstanding runs: %w", r.Err)
	}
	return entries, nil
}

// OpenRecords returns the records of outstanding runs, in the order of ids; nil for a run that is
// not outstanding. Its arguments are bounded, see [MaxListedArgs].
func (l *Ledger) OpenRecords(ctx context.Context, ids []jobs.RunID) ([]*Record, error) {
	records := make([]*Record, 0, len(ids))
	for len(records) < len(ids) {
		some := ids[len(records):min(len(ids), len(records)+page)]
		r := space.Read(l.run(ctx, "outstanding", "", appendTexts([]any{MaxListedArgs}, some...)...))
		for n := 0; n == 0 || r.More() && n < len(some); n++ { // a reply has one record at least
			record, log, args := r.Text(), r.Text(), r.Text()
			if r.Err != nil {
				break
			}
			if record == "" {
				records = append(records, nil)
				continue
			}
			decoded, items, err := decode(some[n], record, log, args)
			if err != nil { // it must not hide the others
				decoded = unreadable(some[n], StateDue, err)
			}
			decoded.Items = items
			decoded.Parked = decoded.State.Final()
			records = append(records, decoded)
		}
		if r.Err != nil {
			return nil, fmt.Errorf("read outstanding runs: %w", r.Err)
		}
	}
	return records, nil
}

// Outstanding returns the runs that are not finished, of one job or, with "", of all; by job and
// tick. At most limit of them; 0: all. Their arguments are bounded, see [MaxListedArgs]. Lists use
// [Ledger.OpenEntries], which reads one page.
func (l *Ledger) Outstanding(ctx context.Context, job string, limit int) ([]*Record, error) {
	from, to := "-", "+"
	if job != "" {
		from, to = "["+job+"\x00", "("+job+"\x01"
	}
	var records []*Record
	for limit == 0 || len(records) < limit {
		want := page
		if limit > 0 {
			want = min(page, limit-len(records))
		}
		members, err := l.rdb.ZRangeByLex(ctx, l.prefix+"open", &redis.ZRangeBy{Min: from, Max: to, Count: int64(want)}).Result()
		if err != nil {
			return nil, fmt.Errorf("read outstanding runs: %w", l.space.Explain(err))
		}
		if len(members) == 0 {
			break
		}
		from = "(" + members[len(members)-1]
		ids := make([]jobs.RunID, len(members))
		for i, member := range members {
			ids[i] = jobs.RunID(member[strings.LastIndexByte(member, 0)+1:])
		}
		some, err := l.OpenRecords(ctx, ids)
		if err != nil {
			return nil, err
		}
		for _, record := range some {
			if record != nil { // else it has ended, and its entry will vanish
				records = append(records, record)
			}
		}
		if len(members) < want {
			break
		}
	}
	return records, nil
}

// CountOpen returns how many outstanding runs each of some jobs has. It reads no records.
func (l *Ledger) CountOpen(ctx context.Context, names []string) (map[string]int, error) {
	counts := make(map[string]int, len(names))
	for some := range slices.Chunk(names, openPage) {
		replies := make([]*redis.IntCmd, len(some))
		err := l.pipeline(ctx, func(pipe redis.Pipeliner) {
			for i, name := range some {
				replies[i] = pipe.ZLexCount(ctx, l.prefix+"open", "["+name+"\x00", "("+name+"\x01")
			}
		})
		if err != nil {
			return nil, fmt.Errorf("count outstanding runs: %w", err)
		}
		for i, name := range some {
			counts[name] = int(replies[i].Val())
		}
	}
	return counts, nil
}

// CountRunning returns how many runs of each job are running; it omits jobs without one. It reads
// no records.
func (l *Ledger) CountRunning(ctx context.Context) (map[string]int, error) {
	counts := make(map[string]int)
	for from := "-"; ; {
		members, err := l.rdb.ZRangeByLex(ctx, l.prefix+"busy", &redis.ZRangeBy{Min: from, Max: "+", Count: openPage}).Result()
		if err != nil {
			return nil, fmt.Errorf("count running runs: %w", l.space.Explain(err))
		}
		for _, member := range members {
			counts[jobs.RunID(member[strings.LastIndexByte(member, 0)+1:]).Job()]++
		}
		if len(members) < openPage {
			return counts, nil
		}
		from = "(" + members[openPage-1]
	}
}

// EndedEntry is a run's entry in the history of its job.
type EndedEntry struct {
	Job string
	Run jobs.RunID
	At  time.Time // end of the run
}

// CountEnded returns how many runs of a job have ended since an instant and are still kept.
func (l *Ledger) CountEnded(ctx context.Context, job string, since time.Time) (int, error) {
	n, err := l.rdb.ZCount(ctx, l.prefix+"done:"+job, strconv.FormatInt(unixMillis(since), 10), "+inf").Result()
	if err != nil {
		return 0, fmt.Errorf("read history of %s: %w", job, l.space.Explain(err))
	}
	return int(n), nil
}

// EndedPage is a part of a job's history: the runs that ended last are the first; within one
// millisecond, the last id is first.
type EndedPage struct {
	Job   string
	Until time.Time // only runs that did not end after it; zero: all
	Skip  int       // how many of the first to omit
	Most  int       // maximum number, and at most 1,000
}

// EndedEntries returns the entries of parts of histories. It reads all parts together. It reads no
// records; see [Ledger.EndedRecords].
func (l *Ledger) EndedEntries(ctx context.Context, pages []EndedPage) ([][]EndedEntry, error) {
	newer := make([]*redis.IntCmd, len(pages))
	err := l.pipeline(ctx, func(pipe redis.Pipeliner) {
		for i, p := range pages {
			if !p.Until.IsZero() {
				newer[i] = pipe.ZCount(ctx, l.prefix+"done:"+p.Job, "("+strconv.FormatInt(unixMillis(p.Until), 10), "+inf")
			}
		}
	})
	replies := make([]*redis.ZSliceCmd, len(pages))
	if err == nil {
		err = l.pipeline(ctx, func(pipe redis.Pipeliner) {
			for i, p := range pages {
				from := int64(p.Skip)
				if newer[i] != nil {
					from += newer[i].Val()
				}
				replies[i] = pipe.ZRevRangeWithScores(ctx, l.prefix+"done:"+p.Job, from, from+int64(min(p.Most, openPage))-1)
			}
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read histories: %w", err)
	}
	parts := make([][]EndedEntry, len(pages))
	for i, reply := range replies {
		for _, z := range reply.Val() {
			parts[i] = append(parts[i], EndedEntry{Job: pages[i].Job, Run: jobs.RunID(fmt.Sprint(z.Member)), At: millis(int64(z.Score))})
		}
	}
	return parts, nil
}

// EndedRecords returns the records of finished runs, in the order of entries; nil for a run that is
// no longer in the history of its job. Their arguments are bounded, see [MaxListedArgs].
func (l *Ledger) EndedRecords(ctx context.Context, entries []EndedEntry) ([]*Record, error) {
	records := make([]*Record, len(entries))
	left := make(map[string][]int) // job -> positions of the entries that are still to be read
	var names []string
	for i, entry := range entries {
		if left[entry.Job] == nil {
			names = append(names, entry.Job)
		}
		left[entry.Job] = append(left[entry.Job], i)
	}
	for len(names) > 0 {
		steps := make([]step, 0, page)
		asked := names[:min(len(names), page)]
		for _, name := range asked {
			some := left[name][:min(len(left[name]), page)]
			args := []any{MaxListedArgs}
			for _, at := range some {
				args = append(args, string(entries[at].Run))
			}
			steps = append(steps, step{name, args})
		}
		var more []string
		for i, call := range l.runAll(ctx, "history", steps) {
			name := asked[i]
			r := call.Read()
			// a reply has one record at least
			for once := true; once || r.More() && len(left[name]) > 0; once = false {
				at := left[name][0]
				left[name] = left[name][1:]
				if text := r.Text(); text != "" {
					record, err := decodeFinal(entries[at].Run, text)
					if err != nil {
						record = unreadable(entries[at].Run, StateFailed, err)
					}
					records[at] = record
				}
			}
			if r.Err != nil {
				return nil, fmt.Errorf("read history of %s: %w", name, r.Err)
			}
			if len(left[name]) > 0 {
				more = append(more, name)
			}
		}
		names = append(more, names[len(asked):]...)
	}
	return records, nil
}

// History returns the finished runs of a job, including skipped and missed ticks, the last finished
// first. At most limit of them; 0: all that are kept. Their arguments are bounded, see
// [MaxListedArgs].
func (l *Ledger) History(ctx context.Context, job string, limit int) ([]*Record, error) {
	var records []*Record
	for rank := 0; limit == 0 || len(records) < limit; {
		want := page
		if limit > 0 {
			want = min(page, limit-len(records))
		}
		parts, err := l.EndedEntries(ctx, []EndedPage{{Job: job, Skip: rank, Most: want}})
		if err != nil {
			return nil, err
		}
		some, err := l.EndedRecords(ctx, parts[0])
		if err != nil {
			return nil, err
		}
		rank += len(parts[0])
		for _, record := range some {
			if record != nil {
				records = append(records, record)
			}
		}
		if len(parts[0]) < want {
			break
		}
	}
	return records, nil
}
