package ledger

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/space"
)

// readyMember is the entry of a due run in the index of due runs, as pad and due of
// scripts/lib/run.lua make it.
func readyMember(record *Record) string {
	return fmt.Sprintf("%s\x00%016d\x00%s", record.Queue, unixMillis(record.DueSince), record.ID)
}

// Ahead returns how many runs of its queue have been due for longer than a run.
func (l *Ledger) Ahead(ctx context.Context, record *Record) (int, error) {
	n, err := l.rdb.ZLexCount(ctx, l.prefix+"ready", "["+record.Queue+"\x00", "("+readyMember(record)).Result()
	if err != nil {
		return 0, fmt.Errorf("count due runs of queue %s: %w", record.Queue, err)
	}
	return int(n), nil
}

// DueQueue is the result of [Ledger.DueQueues] for one queue.
type DueQueue struct {
	Name   string
	Due    int       // number of due runs
	Oldest []*Record // some of them, those due for longest first; without their arguments
}

// DueQueues returns the queues that have due runs, by name: at most this many queues, and of each
// at most this many records.
func (l *Ledger) DueQueues(ctx context.Context, queues, records int) ([]DueQueue, error) {
	names, err := l.DueNames(ctx, "", queues)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	found := make([]DueQueue, len(names))
	counts, members := make([]*redis.IntCmd, len(names)), make([]*redis.StringSliceCmd, len(names))
	err = l.pipeline(ctx, func(pipe redis.Pipeliner) {
		for i, name := range names {
			counts[i], members[i] = l.dueOf(ctx, pipe, name, "", records)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read due runs: %w", err)
	}
	for i, name := range names {
		found[i] = DueQueue{Name: name, Due: int(counts[i].Val())}
		if found[i].Oldest, err = l.due(ctx, members[i].Val()); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// DueNames returns the names of queues that have due runs: those that follow a name, or with "" the
// first ones, at most this number.
func (l *Ledger) DueNames(ctx context.Context, after string, most int) (names []string, err error) {
	from := "-"
	if after != "" {
		from = "(" + after + "\x01"
	}
	for len(names) < most {
		next, err := l.rdb.ZRangeByLex(ctx, l.prefix+"ready", &redis.ZRangeBy{Min: from, Max: "+", Count: 1}).Result()
		if err != nil {
			return nil, fmt.Errorf("read queues with due runs: %w", err)
		}
		if len(next) == 0 {
			break
		}
		name, _, _ := strings.Cut(next[0], "\x00")
		from = "(" + name + "\x01"
		names = append(names, name)
	}
	return names, nil
}

// dueOf counts the due runs of a queue, and reads entries of them that follow a position, or with
// "" the first ones.
func (l *Ledger) dueOf(ctx context.Context, pipe redis.Pipeliner, queue, after string, most int) (*redis.IntCmd, *redis.StringSliceCmd) {
	first, last := "["+queue+"\x00", "("+queue+"\x01"
	from := first
	if after != "" {
		from = "(" + after
	}
	ready := l.prefix + "ready"
	return pipe.ZLexCount(ctx, ready, first, last), pipe.ZRangeByLex(ctx, ready, &redis.ZRangeBy{Min: from, Max: last, Count: int64(most)})
}

// A RunPage is some runs of a queue, without their arguments.
type RunPage struct {
	Runs []*Record
	Next string // where to continue; "" after the last run
	All  int    // the due runs of the queue, for [Ledger.DueRuns]
}

// DueRuns returns due runs of a queue that follow a position, or with "" those due for longest, at
// most this number. It skips runs with unreadable records.
func (l *Ledger) DueRuns(ctx context.Context, queue, after string, most int) (page RunPage, err error) {
	var count *redis.IntCmd
	var members *redis.StringSliceCmd
	err = l.pipeline(ctx, func(pipe redis.Pipeliner) {
		count, members = l.dueOf(ctx, pipe, queue, after, most)
	})
	if err != nil {
		return page, fmt.Errorf("read due runs of queue %s: %w", queue, err)
	}
	found := members.Val()
	if page.All = int(count.Val()); len(found) == most {
		page.Next = found[most-1]
	}
	page.Runs, err = l.due(ctx, found)
	return page, err
}

// WaitingRuns returns runs of a queue that wait for their locks, as [Ledger.DueRuns] does: those
// that have waited for longest first.
func (l *Ledger) WaitingRuns(ctx context.Context, queue, after string, most int) (page RunPage, err error) {
	r := space.Read(l.run(ctx, "waiting", "", queue, after, most))
	page.Next = r.Text()
	var ids []jobs.RunID
	for r.More() {
		ids = append(ids, jobs.RunID(r.Text()))
	}
	if r.Err != nil {
		return page, fmt.Errorf("read runs that wait in queue %s: %w", queue, r.Err)
	}
	records, err := l.OpenRecords(ctx, ids)
	for _, record := range records {
		if record != nil && record.State == StateWaiting {
			page.Runs = append(page.Runs, record)
		}
	}
	return page, err
}

// due reads the records of entries in the index of due runs, without their arguments. It skips runs
// that are no longer due, or that cannot be read.
func (l *Ledger) due(ctx context.Context, members []string) ([]*Record, error) {
	var ids []string
	for _, member := range members {
		ids = append(ids, member[strings.LastIndexByte(member, 0)+1:])
	}
	if len(ids) == 0 {
		return nil, nil
	}
	var records, logs *redis.SliceCmd
	err := l.pipeline(ctx, func(pipe redis.Pipeliner) {
		records, logs = pipe.HMGet(ctx, l.prefix+"run", ids...), pipe.HMGet(ctx, l.prefix+"log", ids...)
	})
	if err != nil {
		return nil, fmt.Errorf("read due runs: %w", err)
	}
	var due []*Record
	for i, id := range ids {
		text, _ := records.Val()[i].(string)
		log, _ := logs.Val()[i].(string)
		if record, _, err := decode(jobs.RunID(id), text, log, ""); err == nil && record.State == StateDue {
			due = append(due, record)
		}
	}
	return due, nil
}

// ActiveJobs returns the active definitions of some jobs, by job. It omits jobs without a readable
// one.
func (l *Ledger) ActiveJobs(ctx context.Context, names []string) (map[string]*jobs.Job, error) {
	active := make(map[string]*jobs.Job)
	if len(names) == 0 {
		return active, nil
	}
	definitions, err := l.rdb.HMGet(ctx, l.prefix+"def", names...).Result()
	if err != nil {
		return nil, fmt.Errorf("read definitions: %w", err)
	}
	for i, name := range names {
		text, _ := definitions[i].(string)
		if job, err := jobs.ReadJob(text); err == nil {
			active[name] = job
		}
	}
	return active, nil
}
