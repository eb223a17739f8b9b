package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

// fetched returns the runs that a session has in hand, the first one first.
func fetched(t testing.TB, c *queue.Client, session string) []string {
	t.Helper()
	all, err := c.Fetched(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	runs := []string{}
	for _, f := range all {
		for _, d := range f.Deliveries {
			if f.Session == session {
				runs = append(runs, fmt.Sprintf("%s#%d in %s", d.Run, d.N, d.Queue))
			}
		}
	}
	return runs
}

// TestFetchedDeliveriesAreOnRecordUntilTheyAreHandled: the record names the session, and a delivery
// in hand is alive.
func TestFetchedDeliveriesAreOnRecordUntilTheyAreHandled(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c, q := newClient(t, rdb)
		got, handled := make(chan ledger.Due), make(chan struct{})
		var want []string
		var deliveries []ledger.Due
		for i := range 3 {
			deliveries = append(deliveries, ledger.Due{Run: jobs.RunID(fmt.Sprint("run", i)), N: 7, Queue: q})
			want = append(want, fmt.Sprintf("run%d#7 in %s", i, q))
		}
		push(t, c, deliveries...)
		stop := serve(t, c, queue.Options{
			Queues: map[string]int{q: 1}, Fetchers: 1, Session: func() string { return "w.1" },
			Handle: func(ctx context.Context, some []ledger.Due) {
				for _, d := range some {
					select {
					case got <- d:
					case <-ctx.Done():
					}
				}
				select {
				case <-handled:
				case <-ctx.Done():
				}
			},
		})
		for range deliveries {
			receive(t, got)
		}
		if runs := fetched(t, c, "w.1"); !slices.Equal(runs, want) {
			t.Errorf("in hand: %q, want %q", runs, want)
		}
		if runs := fetched(t, c, "w.2"); len(runs) != 0 {
			t.Errorf("in hand of another session: %q", runs)
		}
		for _, d := range deliveries {
			if !alive(t, c, d) {
				t.Errorf("%s is in hand, want it alive", d.Run)
			}
		}
		close(handled)
		eventually(t, "no record of what was handled", func() bool { return len(fetched(t, c, "w.1")) == 0 })
		for _, d := range deliveries {
			if alive(t, c, d) {
				t.Errorf("%s was handled, want it not alive", d.Run)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// errLost is the error of a command of which the reply is lost.
var errLost = errors.New("the reply is lost")

// losesOne is a hook of a client that loses the reply to the first fetch with deliveries.
type losesOne struct {
	lost *atomic.Bool
}

func (losesOne) DialHook(next redis.DialHook) redis.DialHook { return next }

func (losesOne) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l losesOne) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		script, is := cmd.(*redis.Cmd)
		if !is || !strings.Contains(fmt.Sprint(cmd.Args()...), "}:lockstep:fetched:") {
			return err
		}
		if reply, ok := script.Val().([]any); ok && len(reply) > 1 && l.lost.CompareAndSwap(false, true) {
			script.SetErr(errLost)
			return errLost
		}
		return err
	}
}

// TestAFetchWithoutAReplyLeavesNoRecord, so the next look finds that its deliveries are lost.
func TestAFetchWithoutAReplyLeavesNoRecord(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		options := *rdb.Options()
		losing := redis.NewClient(&options)
		t.Cleanup(func() {
			if err := losing.Close(); err != nil {
				t.Error(err)
			}
		})
		var lost atomic.Bool
		losing.AddHook(losesOne{&lost})
		c, q := newClient(t, losing)
		serve(t, c, queue.Options{
			Queues: map[string]int{q: 1}, Session: func() string { return "w.1" },
			Handle: func(_ context.Context, some []ledger.Due) { t.Errorf("handled %+v", some) },
		})
		d := ledger.Due{Run: "r", N: 1, Queue: q}
		push(t, c, d)
		eventually(t, "a fetch is lost", lost.Load)
		eventually(t, "no record of it", func() bool { return len(fetched(t, c, "w.1")) == 0 })
		if alive(t, c, d) {
			t.Error("it is alive, and no worker has it")
		}
	})
}

// TestRecordOfAFetchOutlivesItsWorkerUntilItIsForgotten: a dead worker's deliveries count as in
// hand for only ten seconds, but remain on record.
func TestRecordOfAFetchOutlivesItsWorkerUntilItIsForgotten(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	namespace, q := redistest.Namespace(t), redistest.Namespace(t)
	c, err := queue.New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Own(t.Context(), []string{q}); err != nil {
		t.Fatal(err)
	}
	key := "asynq:{" + q + "}:lockstep:fetched:" + namespace
	record := func(ago time.Duration, run string) {
		now := time.Now().Add(-ago).UnixMilli()
		if err := rdb.HSet(t.Context(), key, "dead.1\x00"+run, fmt.Sprintf("%d\x1f%s:%s#1", now, namespace, run)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	record(time.Second, "young")
	record(time.Minute, "old")
	for run, want := range map[jobs.RunID]bool{"young": true, "old": false} {
		if got := alive(t, c, ledger.Due{Run: run, N: 1, Queue: q}); got != want {
			t.Errorf("%s: alive is %v, want %v", run, got, want)
		}
	}
	if runs := fetched(t, c, "dead.1"); len(runs) != 2 {
		t.Errorf("on record: %q, want both", runs)
	}
	all, err := c.Fetched(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	record(0, "later") // the session has not noticed its end
	if err := c.Forget(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	if runs := fetched(t, c, "dead.1"); len(runs) != 1 {
		t.Errorf("on record: %q, want the later one alone", runs)
	}
}
