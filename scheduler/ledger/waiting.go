package ledger

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
)

// readyMember is the entry of a due run in the index of due runs, as pad and due of scripts/ledger.lua make it.
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

// DueQueue is what [Ledger.DueQueues] reads of one queue.
type DueQueue struct {
	Name   string
	Due    int       // runs that are due
	Oldest []*Record // some of them, those due for longest first; without their arguments
}

// DueQueues returns the queues that have due runs, by name: at most so many queues, and of each at most so many records.
func (l *Ledger) DueQueues(ctx context.Context, queues, records int) ([]DueQueue, error) {
	ready := l.prefix + "ready"
	var found []DueQueue
	for from := "-"; len(found) < queues; {
		next, err := l.rdb.ZRangeByLex(ctx, ready, &redis.ZRangeBy{Min: from, Max: "+", Count: 1}).Result()
		if err != nil {
			return nil, fmt.Errorf("read queues with due runs: %w", err)
		}
		if len(next) == 0 {
			break
		}
		name, _, _ := strings.Cut(next[0], "\x00")
		from = "(" + name + "\x01"
		found = append(found, DueQueue{Name: name})
	}
	if len(found) == 0 {
		return nil, nil
	}
	counts, members := make([]*redis.IntCmd, len(found)), make([]*redis.StringSliceCmd, len(found))
	_, err := l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range found {
			from, to := "["+found[i].Name+"\x00", "("+found[i].Name+"\x01"
			counts[i] = pipe.ZLexCount(ctx, ready, from, to)
			members[i] = pipe.ZRangeByLex(ctx, ready, &redis.ZRangeBy{Min: from, Max: to, Count: int64(records)})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read due runs: %w", err)
	}
	for i := range found {
		found[i].Due = int(counts[i].Val())
		if found[i].Oldest, err = l.due(ctx, members[i].Val()); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// due reads the records of entries in the index of due runs, without their arguments. It passes by those that are due no
// more, or that cannot be read.
func (l *Ledger) due(ctx context.Context, members []string) ([]*Record, error) {
	var ids []string
	for _, member := range members {
		ids = append(ids, member[strings.LastIndexByte(member, 0)+1:])
	}
	if len(ids) == 0 {
		return nil, nil
	}
	var records, logs *redis.SliceCmd
	_, err := l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		records, logs = pipe.HMGet(ctx, l.prefix+"run", ids...), pipe.HMGet(ctx, l.prefix+"log", ids...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read due runs: %w", err)
	}
	var due []*Record
	for i, id := range ids {
		text, _ := records.Val()[i].(string)
		log, _ := logs.Val()[i].(string)
		if record, _, err := decode(jobs.RunID(id), text, log, ""); err == nil && record.State == DueNow {
			due = append(due, record)
		}
	}
	return due, nil
}

// Handlers returns the handlers of the active definitions of some jobs, by job; jobs without one are left out.
func (l *Ledger) Handlers(ctx context.Context, names []string) (map[string]string, error) {
	handlers := make(map[string]string)
	if len(names) == 0 {
		return handlers, nil
	}
	definitions, err := l.rdb.HMGet(ctx, l.prefix+"def", names...).Result()
	if err != nil {
		return nil, fmt.Errorf("read definitions: %w", err)
	}
	for i, name := range names {
		text, _ := definitions[i].(string)
		if job, err := jobs.ReadJob(text); err == nil && job.Handler != "" {
			handlers[name] = job.Handler
		}
	}
	return handlers, nil
}
