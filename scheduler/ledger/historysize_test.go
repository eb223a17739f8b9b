package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// finished puts finished runs into the history of a job, which ended one second after the other,
// the last one now. Every third one has an output.
func (f *fixture) finished(name string, runs, size int) {
	f.Helper()
	now := time.Now()
	pipe := f.rdb.Pipeline()
	pipe.HSet(f.Context(), f.key("cursor"), name, now.UnixMilli())
	record := "succeeded" + strings.Repeat("\x1f", 32) + "\x1d" + strings.Repeat("x", size) + "\x1d{}"
	for i := range runs {
		id := fmt.Sprintf("%s#%06d", name, i)
		pipe.HSet(f.Context(), f.key("hist:"+name), id, record)
		pipe.ZAdd(f.Context(), f.key("done:"+name), redis.Z{Member: id, Score: float64(now.Add(-time.Duration(runs-i) * time.Second).UnixMilli())})
		if i%3 == 0 {
			pipe.HSet(f.Context(), f.key("output:"+name), id, strings.Repeat("o", size))
		}
	}
	if _, err := pipe.Exec(f.Context()); err != nil {
		f.Fatal(err)
	}
}

func without(ctx context.Context) error { return ctx.Err() }

// TestTheSizeOfHistoriesIsEstimated compares the estimate with the size that Redis reports for the
// same keys.
func TestTheSizeOfHistoriesIsEstimated(t *testing.T) {
	t.Parallel()
	f := alone(t)
	f.finished("short", 20_000, 100)
	f.finished("long", 3_000, 2_000)
	f.finished("empty", 0, 0)
	var used int64
	for _, key := range []string{"hist:short", "done:short", "output:short", "hist:long", "done:long", "output:long"} {
		bytes, err := f.rdb.MemoryUsage(f.Context(), f.key(key), 0).Result()
		if err != nil {
			t.Fatal(err)
		}
		used += bytes
	}
	size, err := f.HistorySize(f.Context(), without)
	if err != nil {
		t.Fatal(err)
	}
	if size.Jobs != 2 || size.Runs != 23_000 {
		t.Errorf("%d runs of %d jobs were found, want 23000 of 2", size.Runs, size.Jobs)
	}
	t.Logf("estimated %d bytes, and Redis uses %d", size.Bytes, used)
	if ratio := float64(size.Bytes) / float64(used); ratio < 0.7 || ratio > 1.3 {
		t.Errorf("the estimate is %.2f of what Redis uses, want it within 30 %%", ratio)
	}
}

// TestTheOldestRunsOfAllJobsAreRemoved bounds the histories of three jobs together: the remaining
// runs ended later than the removed ones, whatever their job.
func TestTheOldestRunsOfAllJobsAreRemoved(t *testing.T) {
	each(t, func(f *fixture) {
		f.finished("busy", 3_000, 200) // its last 3,000 seconds
		f.finished("rare", 30, 200)    // its last 30
		f.finished("some", 900, 200)
		size, err := f.HistorySize(f.Context(), without)
		if err != nil {
			f.Fatal(err)
		}
		if removed, _, err := f.TrimHistory(f.Context(), size, size.Bytes, without); err != nil || removed != 0 {
			f.Errorf("%d runs were removed of what is as large as it may be, %v", removed, err)
		}
		half := size.Bytes / 2
		removed, upto, err := f.TrimHistory(f.Context(), size, half, without)
		if err != nil {
			f.Fatal(err)
		}
		left := 0
		for _, job := range []string{"busy", "rare", "some"} {
			history, err := f.History(f.Context(), job, 0)
			if err != nil {
				f.Fatal(err)
			}
			left += len(history)
			first, err := f.rdb.ZRangeWithScores(f.Context(), f.key("done:"+job), 0, 0).Result()
			if err != nil || len(first) == 0 || int64(first[0].Score) < upto.UnixMilli() {
				f.Errorf("of %s the first run that is left is %v, want one that ended after %v, %v", job, first, upto, err)
			}
			if tails := f.rdb.HLen(f.Context(), f.key("output:"+job)).Val(); int(tails) > len(history)/3+1 {
				f.Errorf("%d outputs are left of %d runs of %s", tails, len(history), job)
			}
		}
		if left+removed != 3_930 || left < 1_300 || left > 2_000 {
			f.Errorf("%d runs are left and %d removed, want about half of 3930", left, removed)
		}
		size, err = f.HistorySize(f.Context(), without)
		if err != nil || size.Bytes > half || size.Bytes < half*3/4 {
			f.Errorf("%d bytes are left, want at most %d and little less, %v", size.Bytes, half, err)
		}
	})
}

// TestARunThatWasRemovedIsNotMadeAgain: a tick stays decided, and a request's id is remembered,
// without a history.
func TestARunThatWasRemovedIsNotMadeAgain(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		f.job.Overlap = jobs.OverlapAllow
		cursor := f.cursor(f.job, 5)
		tick := f.tick(f.job, cursor, 1, ledger.VerdictRun).Due[0]
		f.finish(f.claim(w, tick, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		request := ledger.Request{Job: f.job, ID: "4711", Named: true, Trigger: ledger.TriggerEnqueue}
		enqueued, err := f.Enqueue(f.Context(), request)
		if err != nil {
			f.Fatal(err)
		}
		f.finish(f.claim(w, enqueued.Due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		size, err := f.HistorySize(f.Context(), without)
		if err != nil {
			f.Fatal(err)
		}
		if removed, _, err := f.TrimHistory(f.Context(), size, 0, without); err != nil || removed != 2 {
			f.Fatalf("%d runs were removed, want both, %v", removed, err)
		}
		if again := f.tick(f.job, cursor, 1, ledger.VerdictRun); !again.Moved {
			f.Errorf("the tick was decided again: %+v", again)
		}
		if again, err := f.Enqueue(f.Context(), request); err != nil || !again.Exists {
			f.Errorf("the request became a run again: %+v, %v", again, err)
		}
	})
}
