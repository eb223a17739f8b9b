package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/trace"
)

// adopter answers requests and records them.
type adopter struct {
	mu  sync.Mutex
	got []queue.Request
	// nil means that it adopts all.
	answer func(queue.Request) error
	slots  queue.Slots // to which it returns those that come along
}

func (a *adopter) adopt(_ context.Context, some []queue.Request, slots int) []error {
	defer a.slots.Release(slots)
	a.mu.Lock()
	defer a.mu.Unlock()
	errs := make([]error, len(some))
	for i, r := range some {
		a.got = append(a.got, r)
		if a.answer != nil {
			errs[i] = a.answer(r)
		}
	}
	return errs
}

func (a *adopter) all() []queue.Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]queue.Request(nil), a.got...)
}

// serveAdopting runs a server that offers requests to a.
func serveAdopting(t *testing.T, c *queue.Client, q string, a *adopter) {
	t.Helper()
	a.slots = newSlots(1)
	serve(t, c, queue.Options{
		Queues: map[string]int{q: 1}, Adopt: a.adopt, Slots: a.slots,
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
	for name, refusal := range map[string]error{"foreign": queue.ErrForeign, "later": errors.Join(queue.ErrLater, errors.New("why"))} {
		for _, retries := range []int{0, 25} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				rdb := redistest.Client(t)
				client, q := newClient(t, rdb)
				a := &adopter{answer: func(queue.Request) error { return refusal }}
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
					if in := time.Until(now.NextProcessAt); now.Retried != 0 || in > 10*time.Second {
						t.Errorf("round %d: it is counted %d times and comes again in %v; want 0, 10s", round, now.Retried, in)
					}
					if err := inspector.RunTask(q, sent.ID); err != nil { // to skip the delay
						t.Fatal(err)
					}
				}
				eventually(t, "it comes for the third time", func() bool { return len(a.all()) == 3 })
				first := a.all()[0]
				for i, r := range a.all() {
					if r.Again {
						t.Errorf("time %d: it counts as tried", i+1)
					}
					if r.Word == "" || r.Word != first.Word || !r.Since.Equal(first.Since) {
						t.Errorf("time %d: its word is %q since %v, want %q since %v", i+1, r.Word, r.Since, first.Word, first.Since)
					}
				}
			})
		}
	}
}

// TestTaskThatWasPerhapsAdoptedCountsAsTried: asynq's recoverer puts back the tasks of a dead
// worker, and those that a worker has left active, and counts the attempt.
func TestTaskThatWasPerhapsAdoptedCountsAsTried(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ dead, older bool }{"dead": {dead: true}, "no answer": {}, "no answer to an older build": {older: true}} {
		dead, older := c.dead, c.older
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			c, q := newClient(t, rdb)
			began := time.Now()
			sent := enqueueTask(t, rdb, asynq.NewTask("settle", nil), asynq.Queue(q))
			inspector := asynq.NewInspectorFromRedisClient(rdb)
			first := &adopter{answer: func(queue.Request) error { return errors.New("no answer") }, slots: newSlots(1)}
			offered, die := make(chan struct{}), make(chan struct{})
			stop := serve(t, c, queue.Options{
				Queues: map[string]int{q: 1}, Slots: first.slots, Handle: func(context.Context, []ledger.Due) {},
				Adopt: func(ctx context.Context, some []queue.Request, slots int) []error {
					close(offered)
					if dead {
						<-die
					}
					return first.adopt(ctx, some, slots)
				},
			})
			receive(t, offered)
			now, err := inspector.GetTaskInfo(q, sent.ID)
			if err != nil || now.State != asynq.TaskStateActive {
				t.Fatalf("got %+v, %v; want it active", now, err)
			}
			lease := "asynq:{" + q + "}:lease"
			if until := time.Unix(int64(rdb.ZScore(t.Context(), lease, sent.ID).Val()), 0); until.Before(began.Add(25*time.Second)) || until.After(time.Now().Add(31*time.Second)) {
				t.Errorf("its lease ends at %v, want 30s from now", until)
			}
			if !dead {
				if err := stop(); err != nil {
					t.Error(err)
				}
			}
			key := "asynq:{" + q + "}:t:" + sent.ID
			word := rdb.HGet(t.Context(), key, "lockstep:word").Val()
			if older { // it gives no words
				if n := rdb.HDel(t.Context(), key, "lockstep:word").Val(); n != 1 {
					t.Errorf("%d fields were deleted, want its word", n)
				}
				word = ""
			}
			if err := rdb.ZAdd(t.Context(), lease, redis.Z{Score: float64(time.Now().Add(-time.Hour).Unix()), Member: sent.ID}).Err(); err != nil {
				t.Fatal(err)
			}
			a := new(adopter)
			serveAdopting(t, c, q, a) // it recovers tasks at the start and then once a minute
			eventually(t, "it is recovered", func() bool {
				now, err := inspector.GetTaskInfo(q, sent.ID)
				return err == nil && now.State == asynq.TaskStateRetry
			})
			if dead {
				close(die)
				if err := stop(); err != nil {
					t.Error(err)
				}
			}
			if err := inspector.RunTask(q, sent.ID); err != nil { // to skip asynq's delay
				t.Fatal(err)
			}
			eventually(t, "it comes again", func() bool { return len(a.all()) > 0 })
			if got := a.all(); len(got) != 1 || !got[0].Again {
				t.Errorf("got %+v, want it once, as one that has been tried", got)
			} else if r := got[0]; older && (r.Word != "" || !r.Since.IsZero()) || !older && (r.Word == "" || word != fmt.Sprint(r.Since.UnixMilli(), " ", r.Word)) {
				t.Errorf("its word is %q since %v, want %q", r.Word, r.Since, word)
			}
		})
	}
}

// TestAnotherRequestHasAnotherWord: one with the same ID, or the same task when a person runs it
// again.
func TestAnotherRequestHasAnotherWord(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c, q := newClient(t, rdb)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	a := new(adopter)
	serveAdopting(t, c, q, a)
	words := make(map[string]bool)
	for i, act := range []func() error{
		func() error { return nil },
		func() error { return inspector.RunTask(q, "daily") },
		func() error { return inspector.DeleteTask(q, "daily") },
	} {
		if err := act(); err != nil {
			t.Fatal(err)
		}
		if i != 1 {
			enqueueTask(t, rdb, asynq.NewTask("settle", nil), asynq.Queue(q), asynq.TaskID("daily"), asynq.Retention(time.Hour))
		}
		eventually(t, "it is complete", func() bool {
			now, err := inspector.GetTaskInfo(q, "daily")
			return len(a.all()) == i+1 && err == nil && now.State == asynq.TaskStateCompleted
		})
		words[a.all()[i].Word] = true
	}
	for range 20 { // which one fetch takes
		enqueueTask(t, rdb, asynq.NewTask("settle", nil), asynq.Queue(q))
	}
	eventually(t, "all come", func() bool { return len(a.all()) == 23 })
	for _, r := range a.all() {
		words[r.Word] = true
		if at := time.Since(r.Since); len(r.Word) != 26 || r.Again || at < -time.Minute || at > time.Minute {
			t.Errorf("got %+v, want a word of 26 letters since now", r)
		}
	}
	if len(words) != 23 {
		t.Errorf("%d requests have %d words", len(a.all()), len(words))
	}
}

// TestSettledTasksAreAsAsynqLeavesThem ends each kind of task with asynq's own server, and with
// ours.
func TestSettledTasksAreAsAsynqLeavesThem(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t, redistest.Options{}).Client(t)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	for name, options := range map[string][]asynq.Option{
		"plain":                      nil,
		"with a unique lock":         {asynq.Unique(time.Hour)},
		"kept":                       {asynq.Retention(time.Hour)},
		"kept, with a unique lock":   {asynq.Retention(time.Hour), asynq.Unique(time.Hour)},
		"with a deadline and a name": {asynq.Deadline(time.Now().Add(time.Hour)), asynq.TaskID("4711")},
	} {
		t.Run(name, func(t *testing.T) {
			var results []string
			for _, ours := range []bool{false, true} {
				c, q := newClient(t, rdb)
				sent := enqueueTask(t, rdb, asynq.NewTask("settle", []byte(`{"bill": 1}`)), append(options, asynq.Queue(q))...)
				if ours {
					serveAdopting(t, c, q, new(adopter))
				} else {
					server := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 1, Queues: map[string]int{q: 1}, LogLevel: asynq.FatalLevel})
					if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(server.Shutdown)
				}
				eventually(t, "it has ended", func() bool {
					now, err := inspector.GetQueueInfo(q)
					return err == nil && now.ProcessedTotal == 1
				})
				var left []string
				for _, key := range rdb.Keys(t.Context(), "asynq:{"+q+"}:*").Val() {
					if !strings.Contains(key, ":lockstep:") {
						left = append(left, strings.NewReplacer(q, "Q", sent.ID, "ID").Replace(key))
					}
				}
				slices.Sort(left)
				text := fmt.Sprint(left)
				if now, err := inspector.GetTaskInfo(q, sent.ID); err == nil {
					text += fmt.Sprint(now.State, now.Type, string(now.Payload), now.Retention, now.Retried, now.MaxRetry, time.Since(now.CompletedAt) < time.Minute)
					until := rdb.ZScore(t.Context(), "asynq:{"+q+"}:completed", sent.ID).Val()
					text += fmt.Sprint(time.Until(time.Unix(int64(until), 0)).Round(10 * time.Minute))
				}
				day := "asynq:{" + q + "}:processed:" + time.Now().UTC().Format(time.DateOnly)
				text += fmt.Sprint(rdb.TTL(t.Context(), day).Val().Round(24 * time.Hour))
				results = append(results, text)
			}
			if results[0] != results[1] {
				t.Errorf("asynq leaves %s, we leave %s", results[0], results[1])
			}
		})
	}
}

// TestRequestIsWhatItsSenderGave sends a task with everything that a request can have.
func TestRequestIsWhatItsSenderGave(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c, q := newClient(t, rdb)
	a := new(adopter)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	headers := map[string]string{"Traceparent": parent, "tracestate": "a=b", "other": "x"}
	payload := strings.Repeat("\x00\xff\n{}", 50_000)
	enqueueTask(t, rdb, asynq.NewTaskWithHeaders("late: ä", []byte(payload), headers), asynq.Queue(q), asynq.TaskID("a b"), asynq.Deadline(time.Now().Add(-time.Second)))
	enqueueTask(t, rdb, asynq.NewTask("empty", nil), asynq.Queue(q), asynq.Deadline(time.Now().Add(time.Hour)), asynq.Timeout(time.Hour))
	serveAdopting(t, c, q, a)
	eventually(t, "both came", func() bool { return len(a.all()) == 2 })
	for i, want := range []queue.Request{
		{Queue: q, ID: "a b", Type: "late: ä", Payload: []byte(payload), Trace: trace.Parse(parent, "a=b"), Late: true},
		{Queue: q, ID: a.all()[1].ID, Type: "empty"},
	} {
		got := a.all()[i]
		if got.Word == "" || got.Since.IsZero() {
			t.Errorf("task %d has no word", i)
		}
		got.Word, got.Since = "", time.Time{}
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Errorf("task %d: got %.200v, want %.200v", i, got, want)
		}
	}
}

// TestAWrongClockOfAWorkerChangesNoTask: the server's clock decides whether a deadline has passed,
// and when a lease ends.
func TestAWrongClockOfAWorkerChangesNoTask(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			c, q := newClient(t, rdb)
			c.SetClock(func() time.Time { return time.Now().Add(ahead) })
			inTime := enqueueTask(t, rdb, asynq.NewTask("in time", nil), asynq.Queue(q), asynq.Deadline(time.Now().Add(5*time.Minute)))
			late := enqueueTask(t, rdb, asynq.NewTask("late", nil), asynq.Queue(q), asynq.Deadline(time.Now().Add(-5*time.Minute)))
			// It leaves the tasks active.
			a := &adopter{answer: func(queue.Request) error { return errors.New("no answer") }}
			before := rdb.Time(t.Context()).Val()
			serveAdopting(t, c, q, a)
			eventually(t, "both come", func() bool { return len(a.all()) == 2 })
			after := rdb.Time(t.Context()).Val()
			for _, r := range a.all() {
				if want := r.Type == "late"; r.Late != want {
					t.Errorf("%s: late is %t, want %t", r.Type, r.Late, want)
				}
			}
			for _, id := range []string{inTime.ID, late.ID} {
				until := time.Unix(int64(rdb.ZScore(t.Context(), "asynq:{"+q+"}:lease", id).Val()), 0)
				if until.Before(before.Add(29*time.Second)) || until.After(after.Add(31*time.Second)) {
					t.Errorf("a lease that begins at %v ends at %v, want 30s later", before, until)
				}
			}
		})
	}
}

// TestAWorkerThatCanAdoptNothingNowLeavesTheQueue: else it would send all of it to come again
// later.
func TestAWorkerThatCanAdoptNothingNowLeavesTheQueue(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c, q := newClient(t, rdb)
	const tasks = 2000
	for range tasks {
		enqueueTask(t, rdb, asynq.NewTask("settle", nil), asynq.Queue(q))
	}
	a := &adopter{answer: func(queue.Request) error { return queue.ErrLater }}
	began := time.Now()
	serveAdopting(t, c, q, a)
	eventually(t, "some come", func() bool { return len(a.all()) >= 64 })
	pauses := int(time.Since(began)/(250*time.Millisecond)) + 1 // each takes at least this long
	if n := len(a.all()); n > 16*(pauses+1) {
		t.Errorf("%d of %d tasks came in %d pauses, want at most 16 for each", n, tasks, pauses)
	}
}

// TestFewTasksAreTakenWhileAdoptionsTakeLong lets no adoption end, and then all. Their tasks may
// have been adopted, so they would count as tried when their leases end.
func TestFewTasksAreTakenWhileAdoptionsTakeLong(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c, q := newClient(t, rdb)
	const tasks, most = 100, 16
	for range tasks {
		enqueueTask(t, rdb, asynq.NewTask("settle", nil), asynq.Queue(q))
	}
	a := &adopter{}
	a.slots = newSlots(1)
	var began atomic.Int64
	goOn := make(chan struct{})
	serve(t, c, queue.Options{
		Queues: map[string]int{q: 1}, Fetchers: 1, Slots: a.slots, Handle: func(context.Context, []ledger.Due) {},
		Adopt: func(ctx context.Context, some []queue.Request, slots int) []error {
			began.Add(int64(len(some)))
			a.slots.Release(slots)
			select {
			case <-goOn:
			case <-ctx.Done():
			}
			return a.adopt(ctx, some, 0)
		},
	})
	eventually(t, "a second adoption", func() bool { return began.Load() == 2*most })
	time.Sleep(3 * time.Second) // a third one would begin
	if n := began.Load(); n > 2*most {
		t.Errorf("%d tasks were taken while no adoption ended, want %d", n, 2*most)
	}
	close(goOn)
	eventually(t, "all tasks come", func() bool { return len(a.all()) == tasks })
}

// TestAFetchThatIsRefusedLosesNoTask lets Redis refuse the first thing that a fetch writes.
func TestAFetchThatIsRefusedLosesNoTask(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"active", "lease"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			c, q := newClient(t, rdb)
			for range 3 {
				enqueueTask(t, rdb, asynq.NewTask("settle", nil), asynq.Queue(q))
			}
			key := "asynq:{" + q + "}:" + part
			if err := rdb.Set(t.Context(), key, "of another type", 0).Err(); err != nil {
				t.Fatal(err)
			}
			a := &adopter{slots: newSlots(1)}
			log, lines := newLog()
			serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Adopt: a.adopt, Slots: a.slots, Logger: log, Handle: func(context.Context, []ledger.Due) {}})
			eventually(t, "the refusal is logged", func() bool { return lines.count("fetching deliveries failed, will retry") == 1 })
			if err := rdb.Del(t.Context(), key).Err(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "all tasks come", func() bool { return len(a.all()) == 3 })
		})
	}
}

// TestAPanicEndsOneAdoption as it does for a handler of asynq: the task counts as tried, and the
// server continues.
func TestAPanicEndsOneAdoption(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c, q := newClient(t, rdb)
	a := &adopter{answer: func(r queue.Request) error {
		if r.Type == "odd" {
			panic("odd")
		}
		return nil
	}}
	serveAdopting(t, c, q, a)
	odd := enqueueTask(t, rdb, asynq.NewTask("odd", nil), asynq.Queue(q))
	eventually(t, "the odd task comes", func() bool { return len(a.all()) == 1 })
	enqueueTask(t, rdb, asynq.NewTask("settle", nil), asynq.Queue(q))
	eventually(t, "another task comes", func() bool { return len(a.all()) == 2 })
	now, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo(q, odd.ID)
	if err != nil || now.State != asynq.TaskStateActive {
		t.Errorf("got %+v, %v; want it active, for asynq to recover", now, err)
	}
}
