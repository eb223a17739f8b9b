package ledger

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// EndedJob is a job that may have finished runs.
type EndedJob struct {
	Job string
	At  time.Time // none of its runs ended later; zero: that is unknown
}

// endsFor is how long the order of jobs by their last ends is trusted after [Ledger.IndexEnds].
const endsFor = 15 * time.Minute

// endsPlace is a place in the order of the jobs by their last ends. All times are server ms.
type endsPlace struct {
	until int64 // of the last job before it
	same  int   // how many jobs with that time were read
	risen int64 // jobs that have ended runs from this time on may have left the rest of the order
}

// EndedJobs returns jobs with finished runs, about this number, the one with the last end first,
// and the place at which the others begin; "": there are none. The place of the first page is "".
// So the last runs of all jobs are in the histories of the first jobs, however many jobs there are.
// A job may come several times. One that ends a run during the walk comes again, out of order: it
// may have left the rest of the order.
//
// The scripts that end runs keep this order, in one sorted set. A build from before it leaves out
// the ends that it records. [Ledger.IndexEnds] adds them, some minutes later. If that has not
// happened for endsFor, EndedJobs returns all jobs at once, without times.
func (l *Ledger) EndedJobs(ctx context.Context, place string, most int) (jobs []EndedJob, next string, err error) {
	fail := func(err error) ([]EndedJob, string, error) {
		return nil, "", fmt.Errorf("read which jobs have finished runs: %w", l.space.Explain(err))
	}
	var at endsPlace
	from := "-inf"
	if place != "" {
		if _, err := fmt.Sscanf(place, "%d %d %d", &at.until, &at.same, &at.risen); err != nil {
			return fail(fmt.Errorf("the place %q: %w", place, err))
		}
		from = strconv.FormatInt(-at.until, 10)
	}
	// Places are times, not ranks: jobs that end runs meanwhile, or are removed, change the ranks
	// of all others. So the jobs of the last time are read again.
	most += at.same
	var clock *redis.TimeCmd
	var indexed *redis.SliceCmd
	var below *redis.ZSliceCmd
	err = l.pipeline(ctx, func(pipe redis.Pipeliner) {
		clock, indexed = pipe.Time(ctx), pipe.HMGet(ctx, l.prefix+"ledger", "ends")
		below = pipe.ZRangeByScoreWithScores(ctx, l.prefix+"ends", &redis.ZRangeBy{Min: from, Max: "+inf", Count: int64(most)})
	})
	if err != nil {
		return fail(err)
	}
	if place == "" {
		if at, err := strconv.ParseInt(textAt(indexed, 0), 10, 64); err != nil || clock.Val().Sub(millis(at)) > endsFor {
			return l.allAsEnded(ctx)
		}
	} else if jobs, err = l.risenSince(ctx, at.risen); err != nil {
		return fail(err)
	}
	for _, z := range below.Val() {
		jobs = append(jobs, endedJob(z))
	}
	n := len(below.Val())
	if n < most {
		return jobs, "", nil
	}
	last := below.Val()[n-1].Score
	at.until, at.risen = -int64(last), unixMillis(clock.Val())
	at.same = n - slices.IndexFunc(below.Val(), func(z redis.Z) bool { return z.Score == last })
	return jobs, fmt.Sprint(at.until, at.same, at.risen), nil
}

// risenSince returns the jobs that have ended runs from a time on (server ms). The caller has read
// the rest of the order before, so no job is missed that leaves it.
func (l *Ledger) risenSince(ctx context.Context, since int64) (jobs []EndedJob, err error) {
	for {
		found, err := l.rdb.ZRangeByScoreWithScores(ctx, l.prefix+"ends", &redis.ZRangeBy{
			Min: "-inf", Max: strconv.FormatInt(-since, 10), Offset: int64(len(jobs)), Count: openPage,
		}).Result()
		if err != nil {
			return nil, err
		}
		for _, z := range found {
			jobs = append(jobs, endedJob(z))
		}
		if len(found) < openPage {
			return jobs, nil
		}
	}
}

func endedJob(z redis.Z) EndedJob { return EndedJob{member(z), millis(-int64(z.Score))} }

// allAsEnded returns all jobs, as if each had finished runs.
func (l *Ledger) allAsEnded(ctx context.Context) (jobs []EndedJob, next string, err error) {
	names, err := l.JobNames(ctx)
	for _, name := range names {
		jobs = append(jobs, EndedJob{Job: name})
	}
	return jobs, "", err
}

// IndexEnds completes the order of [Ledger.EndedJobs]: it adds the ends that a build from before
// the order has recorded, and drops the jobs without finished runs. size is a recent result of
// [Ledger.HistorySize], which also explains pause.
func (l *Ledger) IndexEnds(ctx context.Context, size *HistorySize, pause func(context.Context) error) error {
	if err := l.indexEnds(ctx, size, pause); err != nil {
		return fmt.Errorf("index the ends of runs: %w", l.space.Explain(err))
	}
	return nil
}

func (l *Ledger) indexEnds(ctx context.Context, size *HistorySize, pause func(context.Context) error) error {
	began, err := l.space.Now(ctx)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(size.parts, sizePage) {
		ends := make([]redis.Z, len(some))
		for i, part := range some {
			ends[i] = redis.Z{Score: -part.last, Member: part.job}
		}
		// the end of a run since is a later one
		if err := l.rdb.ZAddArgs(ctx, l.prefix+"ends", redis.ZAddArgs{LT: true, Members: ends}).Err(); err != nil {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	if err := l.dropEnds(ctx, began.Add(-endsFor), pause); err != nil {
		return err
	}
	return l.rdb.HSet(ctx, l.prefix+"ledger", "ends", unixMillis(began)).Err()
}

// dropEnds drops the jobs without finished runs from the order, if their last ends were before a
// time: such a job ends no run while it is looked at.
func (l *Ledger) dropEnds(ctx context.Context, before time.Time, pause func(context.Context) error) error {
	for from := 0; ; {
		names, err := l.rdb.ZRangeByScore(ctx, l.prefix+"ends", &redis.ZRangeBy{
			Min: fmt.Sprintf("(%d", -unixMillis(before)), Max: "+inf", Offset: int64(from), Count: sizePage,
		}).Result()
		if err != nil {
			return err
		}
		kept := make([]*redis.IntCmd, len(names))
		err = l.pipeline(ctx, func(pipe redis.Pipeliner) {
			for i, name := range names {
				kept[i] = pipe.Exists(ctx, l.prefix+"done:"+name)
			}
		})
		if err != nil {
			return err
		}
		var gone []any
		for i, name := range names {
			if kept[i].Val() == 0 {
				gone = append(gone, name)
			}
		}
		if len(gone) > 0 {
			if err := l.rdb.ZRem(ctx, l.prefix+"ends", gone...).Err(); err != nil {
				return err
			}
		}
		if from += len(names) - len(gone); len(names) < sizePage {
			return nil
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}
