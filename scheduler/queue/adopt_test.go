package queue_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

// adopter answers requests and records them.
type adopter struct {
	mu  sync.Mutex
	got []queue.Request
	// nil means that it adopts all.
	answer func(queue.Request) error
}

func (a *adopter) adopt(_ context.Context, r queue.Request) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got = append(a.got, r)
	if a.answer == nil {
		return nil
	}
	return a.answer(r)
}

func (a *adopter) all() []queue.Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]queue.Request(nil), a.got...)
}

// serveAdopting runs a server that offers requests to a.
func serveAdopting(t *testing.T, c *queue.Client, q string, a *adopter) {
	t.Helper()
	serve(t, c, queue.Options{
		Queues: map[string]int{q: 1}, Adopt: a.adopt, Slots: newSlots(1),
		Handle: func(_ context.Context, some []ledger.Due) { t.Errorf("a delivery: %+v", some) },
	})
}

func enqueueTask(t *testing.T, rdb redis.UniversalClient, task *asynq.Task, options ...asynq.Option) *asynq.TaskInfo {
	t.Helper()
	sent, err := asynq.NewClientFromRedisClient(rdb).Enqueue(task, options...)
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

func TestAdoptedTaskIsEnded(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]asynq.Option{
		"plain":              nil,
		"named":              {asynq.TaskID("4711")},
		"without retries":    {asynq.MaxRetry(0)},
		"with a unique lock": {asynq.Unique(time.Hour)},
		"kept when complete": {asynq.Retention(time.Hour)},
		"with a timeout":     {asynq.Timeout(time.Hour), asynq.Deadline(time.Now().Add(time.Hour))},
		"for later":          {asynq.ProcessIn(10 * time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			c, q := newClient(t, rdb)
			a := new(adopter)
			serveAdopting(t, c, q, a)
			sent := enqueueTask(t, rdb, asynq.NewTask("settle", []byte(`{"bill": 1}`)), append(options, asynq.Queue(q))...)
			inspector := asynq.NewInspectorFromRedisClient(rdb)
			eventually(t, "the task has ended", func() bool {
				now, err := inspector.GetTaskInfo(q, sent.ID)
				return errors.Is(err, asynq.ErrTaskNotFound) || err == nil && now.State == asynq.TaskStateCompleted
			})
			got := a.all()
			if len(got) != 1 || got[0].Queue != q || got[0].ID != sent.ID || got[0].Type != "settle" ||
				string(got[0].Payload) != `{"bill": 1}` || got[0].Again {
				t.Errorf("got %+v, want the task once", got)
			}
			if name == "with a unique lock" {
				// it is released for the next attempt
				enqueueTask(t, rdb, asynq.NewTask("settle", []byte(`{"bill": 1}`)), append(options, asynq.Queue(q))...)
			}
		})
	}
}

func TestTaskThatIsNotAdoptedComesAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err     error
		counted bool
	}{
		"foreign":  {queue.ErrForeign, false},
		"later":    {errors.Join(queue.ErrLater, errors.New("why")), false},
		"in doubt": {errors.New("no answer"), true},
	} {
		for _, retries := range []int{0, 25} {
			if retries == 0 && c.counted {
				continue // asynq archives it
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				rdb := redistest.Client(t)
				client, q := newClient(t, rdb)
				a := &adopter{answer: func(queue.Request) error { return c.err }}
				serveAdopting(t, client, q, a)
				sent := enqueueTask(t, rdb, asynq.NewTask("settle", nil), asynq.Queue(q), asynq.MaxRetry(retries))
				inspector := asynq.NewInspectorFromRedisClient(rdb)
				for round := range 2 {
					var now *asynq.TaskInfo
					eventually(t, "the task is back", func() (back bool) {
						var err error
						now, err = inspector.GetTaskInfo(q, sent.ID)
						return err == nil && now.State == asynq.TaskStateRetry
					})
					want := 0
					if c.counted {
						want = round + 1
					}
					if in := time.Until(now.NextProcessAt); now.Retried != want || in > 10*time.Second {
						t.Errorf("round %d: it is counted %d times and comes again in %v; want %d, 10s", round, now.Retried, in, want)
					}
					if err := inspector.RunTask(q, sent.ID); err != nil { // to skip the delay
						t.Fatal(err)
					}
				}
				eventually(t, "it comes for the third time", func() bool { return len(a.all()) == 3 })
				for i, r := range a.all() {
					if r.Again != (c.counted && i > 0) {
						t.Errorf("time %d: again is %v", i+1, r.Again)
					}
				}
			})
		}
	}
}

// TestTaskOfADeadWorkerCountsAsTried: asynq's recoverer puts a dead worker's tasks back and
// counts the attempt.
func TestTaskOfADeadWorkerCountsAsTried(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c, q := newClient(t, rdb)
	sent := enqueueTask(t, rdb, asynq.NewTask("settle", nil), asynq.Queue(q))
	// The state that a fetch leaves when its server dies: the task is active, and its lease
	// expires.
	key := "asynq:{" + q + "}:"
	err := errors.Join(
		rdb.LMove(t.Context(), key+"pending", key+"active", "RIGHT", "LEFT").Err(),
		rdb.HSet(t.Context(), key+"t:"+sent.ID, "state", "active").Err(),
		rdb.ZAdd(t.Context(), key+"lease", redis.Z{Score: float64(time.Now().Add(-time.Hour).Unix()), Member: sent.ID}).Err(),
	)
	if err != nil {
		t.Fatal(err)
	}
	a := new(adopter)
	serveAdopting(t, c, q, a) // it recovers tasks at the start and then once a minute
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	eventually(t, "it is recovered", func() bool {
		now, err := inspector.GetTaskInfo(q, sent.ID)
		return err == nil && now.State == asynq.TaskStateRetry
	})
	if err := inspector.RunTask(q, sent.ID); err != nil { // to skip asynq's delay
		t.Fatal(err)
	}
	eventually(t, "it comes again", func() bool { return len(a.all()) > 0 })
	if got := a.all(); len(got) != 1 || !got[0].Again {
		t.Errorf("got %+v, want it once, as one that has been tried", got)
	}
}
