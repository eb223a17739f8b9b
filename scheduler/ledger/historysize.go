package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	sizePage    = 500 // histories that are read together
	sizeSamples = 4   // how many runs of each history are measured
	timeSamples = 16  // how many runs of each history are read, to learn their ages
	purgeMost   = 200 // runs that one script removes
	purgeCalls  = 20  // such scripts in one round trip

	// Redis' use of memory for an entry, besides its ID, which is in each key, and its text:
	// approximately, with jemalloc on 64 bits. A kept definition has two entries in defs.
	histOverhead, outputOverhead, madeOverhead = 168, 64, 300
)

// HistorySize is how much memory the finished runs of a namespace use, and each job's part of it.
// It is estimated from samples.
type HistorySize struct {
	Jobs  int   // with finished runs
	Runs  int   // finished runs
	Bytes int64 // approximately, of Redis' memory

	parts []historyPart
	stale []string // jobs that keep definitions which no finished run of them has
}

// historyPart is the history of one job.
type historyPart struct {
	job   string
	runs  int
	bytes int64
	last  float64 // server ms of its last end
}

// HistorySize estimates how much memory the finished runs of all jobs use. It reads many histories
// together and calls pause after each round trip, so that it takes a small part of Redis' time; it
// ends when pause returns an error. It reads few records: the cost depends on the number of jobs,
// not of runs.
func (l *Ledger) HistorySize(ctx context.Context, pause func(context.Context) error) (*HistorySize, error) {
	size := new(HistorySize)
	for at := uint64(0); ; {
		// each job has a cursor
		pairs, next, err := l.rdb.HScan(ctx, l.prefix+"cursor", at, "", sizePage).Result()
		if err != nil {
			return nil, fmt.Errorf("read the size of histories: %w", l.space.Explain(err))
		}
		var names []string
		for i := 0; i < len(pairs); i += 2 {
			names = append(names, pairs[i])
		}
		for some := range slices.Chunk(names, sizePage) {
			if err := l.addSizes(ctx, size, some); err != nil {
				return nil, fmt.Errorf("read the size of histories: %w", err)
			}
			if err := pause(ctx); err != nil {
				return nil, err
			}
		}
		if at = next; at == 0 {
			return size, nil
		}
	}
}

// addSizes adds the sizes of some jobs' histories.
func (l *Ledger) addSizes(ctx context.Context, size *HistorySize, names []string) error {
	runs, outputs := make([]*redis.IntCmd, len(names)), make([]*redis.IntCmd, len(names))
	made := make([]*redis.ZSliceCmd, len(names))
	err := l.pipeline(ctx, func(pipe redis.Pipeliner) {
		for i, name := range names {
			runs[i], outputs[i] = pipe.ZCard(ctx, l.prefix+"done:"+name), pipe.HLen(ctx, l.prefix+"output:"+name)
			made[i] = pipe.ZRangeWithScores(ctx, l.prefix+"made:"+name, 0, 0)
		}
	})
	if err != nil {
		return err
	}
	var samples []*sizeSample
	err = l.pipeline(ctx, func(pipe redis.Pipeliner) {
		for i, name := range names {
			n, made := int(runs[i].Val()), made[i].Val()
			if n == 0 {
				if len(made) > 0 {
					size.stale = append(size.stale, name)
				}
				continue
			}
			sample := &sizeSample{job: name, runs: n, outputs: int(outputs[i].Val()), made: made}
			sample.last = pipe.ZRevRangeWithScores(ctx, l.prefix+"done:"+name, 0, 0)
			if len(made) > 0 {
				sample.kept, sample.first = pipe.ZCard(ctx, l.prefix+"made:"+name), pipe.ZRangeWithScores(ctx, l.prefix+"done:"+name, 0, 0)
			}
			for k := range min(n, sizeSamples) {
				rank := int64(k) * int64(n-1) / int64(max(1, min(n, sizeSamples)-1))
				sample.ids = append(sample.ids, pipe.ZRange(ctx, l.prefix+"done:"+name, rank, rank))
			}
			samples = append(samples, sample)
		}
	})
	if err != nil {
		return err
	}
	err = l.pipeline(ctx, func(pipe redis.Pipeliner) {
		for _, sample := range samples {
			for _, one := range sample.made {
				sample.text = pipe.HStrLen(ctx, l.prefix+"defs", "@"+member(one))
			}
			for _, id := range sample.ids {
				for _, run := range id.Val() {
					sample.idBytes += int64(len(run))
					sample.records = append(sample.records, pipe.HStrLen(ctx, l.prefix+"hist:"+sample.job, run))
					sample.tails = append(sample.tails, pipe.HStrLen(ctx, l.prefix+"output:"+sample.job, run))
				}
			}
		}
	})
	if err != nil {
		return err
	}
	for _, sample := range samples {
		part := historyPart{job: sample.job, runs: sample.runs, bytes: sample.bytes()}
		for _, z := range sample.last.Val() {
			part.last = z.Score
		}
		size.Jobs, size.Runs, size.Bytes = size.Jobs+1, size.Runs+part.runs, size.Bytes+part.bytes
		size.parts = append(size.parts, part)
		if sample.stale() {
			size.stale = append(size.stale, sample.job)
		}
	}
	return nil
}

// member returns the member of a sorted set.
func member(z redis.Z) string {
	text, _ := z.Member.(string) // it always is one
	return text
}

// sizeSample is the part of one history that is read to estimate its size.
type sizeSample struct {
	job            string
	runs, outputs  int
	last           *redis.ZSliceCmd // its last finished run
	ids            []*redis.StringSliceCmd
	idBytes        int64
	records, tails []*redis.IntCmd

	// The least recently used definition that the job keeps, if any; then also how many it keeps,
	// its oldest finished run, and the length of that definition.
	made  []redis.Z
	kept  *redis.IntCmd
	first *redis.ZSliceCmd
	text  *redis.IntCmd
}

// stale reports whether the job keeps a definition that no finished run of it has.
func (s *sizeSample) stale() bool {
	if len(s.made) == 0 {
		return false
	}
	first := s.first.Val()
	return len(first) == 0 || s.made[0].Score < first[0].Score
}

// bytes estimates how many bytes the whole history uses, from the sampled runs.
func (s *sizeSample) bytes() int64 {
	n := int64(len(s.records))
	if n == 0 {
		return 0 // all of it has vanished in the meantime
	}
	var records, tails, withTail int64
	for i := range s.records {
		records += s.records[i].Val()
		if tail := s.tails[i].Val(); tail > 0 {
			tails, withTail = tails+tail, withTail+1
		}
	}
	id := s.idBytes / n
	bytes := int64(s.runs) * (records/n + 2*id + histOverhead)
	if withTail > 0 {
		bytes += int64(s.outputs) * (tails/withTail + id + outputOverhead)
	}
	if len(s.made) > 0 {
		bytes += s.kept.Val() * (s.text.Val() + madeOverhead)
	}
	return bytes
}

// TrimHistory removes finished runs, those of all jobs that ended first, until the histories use
// about this many bytes. size is a recent result of [Ledger.HistorySize], which also explains
// pause. TrimHistory returns how many runs it removed, and when the oldest remaining run ended.
func (l *Ledger) TrimHistory(ctx context.Context, size *HistorySize, bytes int64, pause func(context.Context) error) (removed int, oldest time.Time, err error) {
	if size.Bytes <= bytes {
		return 0, time.Time{}, nil
	}
	upto, err := l.ageOf(ctx, size, size.Bytes-bytes, pause)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("trim histories: %w", err)
	}
	left := make([]string, len(size.parts))
	for i, part := range size.parts {
		left[i] = part.job
	}
	for len(left) > 0 {
		some := left[:min(len(left), purgeCalls)]
		steps := make([]step, len(some))
		for i, name := range some {
			steps[i] = step{name, []any{unixMillis(upto), purgeMost}}
		}
		var more []string
		for i, call := range l.runAll(ctx, "purge", steps) {
			r := call.Read()
			n := int(r.Number())
			if r.Err != nil {
				// the others are trimmed all the same
				err = errors.Join(err, fmt.Errorf("trim history of %s: %w", some[i], r.Err))
				continue
			}
			if removed += n; n == purgeMost {
				more = append(more, some[i])
			}
		}
		left = append(more, left[len(some):]...)
		if paused := pause(ctx); paused != nil {
			return removed, upto, errors.Join(err, paused)
		}
	}
	return removed, upto, err
}

// ageOf returns an instant; the runs that ended before it use about this many bytes.
func (l *Ledger) ageOf(ctx context.Context, size *HistorySize, bytes int64, pause func(context.Context) error) (time.Time, error) {
	type slice struct { // runs of one job, from one sample to the next
		until time.Time
		bytes int64
	}
	var all []slice
	for some := range slices.Chunk(size.parts, sizePage) {
		ends := make([][]*redis.ZSliceCmd, len(some))
		err := l.pipeline(ctx, func(pipe redis.Pipeliner) {
			for i, part := range some {
				for k := range min(part.runs, timeSamples) {
					rank := int64(k+1)*int64(part.runs)/int64(min(part.runs, timeSamples)) - 1
					ends[i] = append(ends[i], pipe.ZRangeWithScores(ctx, l.prefix+"done:"+part.job, rank, rank))
				}
			}
		})
		if err != nil {
			return time.Time{}, err
		}
		for i, part := range some {
			for _, end := range ends[i] {
				for _, z := range end.Val() {
					all = append(all, slice{millis(int64(z.Score)), part.bytes / int64(len(ends[i]))})
				}
			}
		}
		if err := pause(ctx); err != nil {
			return time.Time{}, err
		}
	}
	slices.SortFunc(all, func(a, b slice) int { return a.until.Compare(b.until) })
	for _, one := range all {
		if bytes -= one.bytes; bytes <= 0 {
			return one.until.Add(time.Millisecond), nil
		}
	}
	if len(all) == 0 {
		return time.Time{}, nil
	}
	return all[len(all)-1].until.Add(time.Millisecond), nil // all of it
}
