package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// EndedJob is a job that may have finished runs.
type EndedJob struct {
	Job string
	At  time.Time // none of its runs ended later; zero: that is unknown
}

// endsPlace is a place in the order of the jobs by their last ends. All times are server ms.
type endsPlace struct {
	until int64 // of the last job before it
	skip  int   // how many jobs with that time are before it
	top   int64 // of the first job; later ones have ended since
}

// EndedJobs returns jobs with finished runs, at most this number, the one with the last end first,
// and the place at which the others begin; "": there are none. The place of the first page is "". A
// job that ends another run during the walk may come twice, out of order. So the last runs of all
// jobs are in the histories of the first jobs, however many jobs there are.
//
// The scripts that end runs keep this order, in one sorted set. A build from before it leaves out
// the ends that it records, which [Ledger.IndexEnds] adds. Before the first call of that, EndedJobs
// returns all jobs at once, without times.
func (l *Ledger) EndedJobs(ctx context.Context, place string, most int) (jobs []EndedJob, next string, err error) {
	fail := func(err error) ([]EndedJob, string, error) {
		return nil, "", fmt.Errorf("read which jobs have finished runs: %w", l.space.Explain(err))
	}
	var at endsPlace
	before := 0 // the place
	if place == "" {
		indexed, err := l.rdb.HExists(ctx, l.prefix+"ledger", "ends").Result()
		if err != nil {
			return fail(err)
		}
		if !indexed {
			names, err := l.JobNames(ctx)
			if err != nil {
				return fail(err)
			}
			for _, name := range names {
				jobs = append(jobs, EndedJob{Job: name})
			}
			return jobs, "", nil
		}
	} else {
		if _, err := fmt.Sscanf(place, "%d %d %d", &at.until, &at.skip, &at.top); err != nil {
			return fail(fmt.Errorf("the place %q: %w", place, err))
		}
		later, err := l.rdb.ZCount(ctx, l.prefix+"ends", fmt.Sprintf("(%d", at.until), "+inf").Result()
		if err != nil {
			return fail(err)
		}
		before = int(later) + at.skip
	}
	var risen, below *redis.ZSliceCmd
	most = min(most, openPage)
	err = l.pipeline(ctx, func(pipe redis.Pipeliner) {
		below = pipe.ZRevRangeWithScores(ctx, l.prefix+"ends", int64(before), int64(before+most-1))
		if place != "" { // a job may have risen from behind the place
			risen = pipe.ZRangeByScoreWithScores(ctx, l.prefix+"ends", &redis.ZRangeBy{Min: fmt.Sprintf("(%d", at.top), Max: "+inf", Count: openPage})
		}
	})
	if err != nil {
		return fail(err)
	}
	if risen != nil {
		jobs = at.add(jobs, risen.Val())
	}
	jobs = at.add(jobs, below.Val())
	n := len(below.Val())
	if n < most && (risen == nil || len(risen.Val()) < openPage) {
		return jobs, "", nil
	}
	if n > 0 {
		last := int64(below.Val()[n-1].Score)
		same := n - slices.IndexFunc(below.Val(), func(z redis.Z) bool { return int64(z.Score) == last })
		if last == at.until {
			same += at.skip
		}
		at.until, at.skip = last, same
	}
	return jobs, fmt.Sprint(at.until, at.skip, at.top), nil
}

// add adds members of the order to jobs.
func (p *endsPlace) add(jobs []EndedJob, found []redis.Z) []EndedJob {
	for _, z := range found {
		jobs = append(jobs, EndedJob{member(z), millis(int64(z.Score))})
		p.top = max(p.top, int64(z.Score))
	}
	return jobs
}

// IndexEnds adds to the order of [Ledger.EndedJobs] the ends that a build from before it has
// recorded. size is a recent result of [Ledger.HistorySize], which also explains pause.
func (l *Ledger) IndexEnds(ctx context.Context, size *HistorySize, pause func(context.Context) error) error {
	for some := range slices.Chunk(size.parts, sizePage) {
		ends := make([]redis.Z, len(some))
		for i, part := range some {
			ends[i] = redis.Z{Score: part.last, Member: part.job}
		}
		// the end of a run since is a later one
		if err := l.rdb.ZAddArgs(ctx, l.prefix+"ends", redis.ZAddArgs{GT: true, Members: ends}).Err(); err != nil {
			return fmt.Errorf("index the ends of runs: %w", l.space.Explain(err))
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	if err := l.rdb.HSet(ctx, l.prefix+"ledger", "ends", 1).Err(); err != nil {
		return fmt.Errorf("index the ends of runs: %w", l.space.Explain(err))
	}
	return nil
}
