package ledger_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// commands counts the commands of a client.
type commands struct{ sent atomic.Int64 }

func (c *commands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.sent.Add(1)
		return next(ctx, cmd)
	}
}

func (c *commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.sent.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// outstanding puts entries of runs into the index: for each of these jobs a number of ticks, and a
// number of requests.
func (f *fixture) outstanding(names []string, ticks, requests int) {
	f.Helper()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, name := range names {
		var members []redis.Z
		for i := range ticks {
			at := begin.Add(time.Duration(i) * time.Second)
			members = append(members, redis.Z{Member: fmt.Sprintf("%s\x00%016d\x00%s", name, at.UnixMilli(), jobs.TickRunID(name, at))})
		}
		for i := range requests {
			members = append(members, redis.Z{Member: fmt.Sprintf("%s\x00%016d\x00%s", name, 0, jobs.RequestRunID(name, fmt.Sprint(i)))})
		}
		for some := range slices.Chunk(members, 5000) {
			if err := f.rdb.ZAdd(f.Context(), f.key("open"), some...).Err(); err != nil {
				f.Fatal(err)
			}
		}
	}
}

// TestAPollCostsTheSameHoweverManyRunsAreOutstanding starts a worker in a namespace with 100,000
// outstanding runs.
func TestAPollCostsTheSameHoweverManyRunsAreOutstanding(t *testing.T) {
	t.Parallel()
	f := alone(t)
	w := f.worker("w")
	var counted commands
	w.client.Extension().Redis().AddHook(&counted)
	names := make([]string, 250)
	for i := range names {
		names[i] = fmt.Sprintf("job%03d", i)
	}
	f.outstanding(names, 200, 200)
	f.outstanding([]string{"queue"}, 0, 20_000) // irrelevant to a worker that must remember ticks
	before := counted.sent.Load()
	if _, err := w.Poll(w.Context(), w.client.Session(), "config", 0); err != nil {
		t.Fatal(err)
	}
	// the last of the news, the poll, and its text when Redis does not know it
	if sent := counted.sent.Load() - before; sent > 3 {
		t.Errorf("the first poll took %d commands with 120,000 outstanding runs, want at most 3", sent)
	}
	pages := 0
	_, slowest := f.logged(func() { pages = w.mirror() }, "EVALSHA", "EVAL")
	if known := len(w.KnownOpen()); known != 50_000 {
		t.Errorf("%d runs of ticks are known, want 50000", known)
	}
	if pages > 60 {
		t.Errorf("they were read in %d pages, want about 52", pages)
	}
	t.Logf("%d pages, the slowest %v", pages, slowest)
}

// TestManyChangesInOnePollReadNothingAnew makes more changes between two polls than one reply
// holds.
func TestManyChangesInOnePollReadNothingAnew(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		w := f.worker("w")
		cursor := f.cursor(f.job, 2_500)
		f.tick(f.job, cursor, 1, ledger.VerdictRun)
		w.hear()
		var counted commands
		w.client.Extension().Redis().AddHook(&counted)
		for i := range 24 {
			f.tick(f.job, cursor.Add(time.Duration(1+100*i)*time.Second), 100, ledger.VerdictRun)
		}
		before, polls := counted.sent.Load(), 0
		for more := true; more; polls++ {
			poll, err := w.Poll(w.Context(), w.client.Session(), "config", w.revision)
			if err != nil {
				f.Fatal(err)
			}
			w.revision, more = poll.Revision, poll.More
		}
		if polls != 3 {
			f.Errorf("2,400 changes took %d polls, want 3", polls)
		}
		w.mirror()
		if sent := counted.sent.Load() - before; sent > 3 {
			f.Errorf("they took %d commands, want 3", sent)
		}
		if known := len(w.KnownOpen()); known != 2_401 {
			f.Errorf("%d runs are known, want 2401", known)
		}
	})
}

// TestAWorkerThatMissedNewsReadsWhatIsOutstandingAnew trims news that a worker has not heard.
func TestAWorkerThatMissedNewsReadsWhatIsOutstandingAnew(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		w, other := f.worker("w"), f.worker("other")
		due := w.ticks(5)
		ended := f.claim(other.client, due[0], ledger.ClaimGranted)
		f.finish(ended, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.outstanding([]string{"quiet"}, 1_500, 10)
		pipe := f.rdb.Pipeline() // as many news as a reply holds, and the first ones are lost
		for i := range 1_100 {
			pipe.XAdd(f.Context(), &redis.XAddArgs{Stream: f.key("news"), Values: []any{"r", fmt.Sprintf("other@%d", i), "s", "skipped"}})
		}
		pipe.XTrimMaxLen(f.Context(), f.key("news"), 1_050)
		if _, err := pipe.Exec(f.Context()); err != nil {
			f.Fatal(err)
		}
		if !slices.Contains(w.KnownOpen(), due[0].Run) {
			f.Fatal("it has heard of the end already")
		}
		w.hear()
		w.hear()
		known := w.KnownOpen()
		if slices.Contains(known, due[0].Run) || !slices.Contains(known, due[1].Run) || len(known) != 1_504 {
			f.Errorf("%d runs are known, want the 4 that are left, and 1,500 of the other job", len(known))
		}
	})
}

// TestWhatIsOutstandingIsKnownAlthoughItChangesWhileItIsRead starts and ends runs between and
// during the pages and polls.
func TestWhatIsOutstandingIsKnownAlthoughItChangesWhileItIsRead(t *testing.T) {
	t.Parallel()
	f := alone(t)
	f.job.Overlap = jobs.OverlapAllow
	w := f.worker("w")
	names := make([]string, 300) // pages end in the middle of jobs, and between them
	for i := range names {
		names[i] = fmt.Sprintf("a%03d", i)
	}
	f.outstanding(names, 7, 2)
	ctx, stop := context.WithCancel(f.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			if _, err := w.Mirror(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	var open []jobs.RunID
	cursor := f.cursor(f.job, 2_000)
	for range 300 {
		created := f.tick(f.job, cursor, 4, ledger.VerdictRun)
		cursor = cursor.Add(4 * time.Second)
		for _, due := range created.Due {
			open = append(open, due.Run)
		}
		for range 3 {
			i := rand.IntN(len(open))
			if _, err := f.Cancel(ctx, open[i], f.job, ledger.Act{Who: "ann", What: "cancel run"}); err != nil {
				t.Fatal(err)
			}
			open = slices.Delete(open, i, i+1)
		}
		w.poll()
		if rand.IntN(20) == 0 { // everything is read anew from time to time
			w.ForgetNews()
		}
	}
	stop()
	reading.Wait()
	w.hear()
	want, err := f.rdb.ZRange(f.Context(), f.key("open"), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	var ids []jobs.RunID
	for _, member := range want {
		if parts := strings.Split(member, "\x00"); parts[1] != strings.Repeat("0", 16) {
			ids = append(ids, jobs.RunID(parts[2]))
		}
	}
	slices.Sort(ids)
	if known := w.KnownOpen(); !slices.Equal(known, ids) {
		t.Errorf("%d runs are known, and %d are outstanding", len(known), len(ids))
	}
}
