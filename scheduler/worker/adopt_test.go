package worker_test

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
	"google.golang.org/protobuf/encoding/protowire"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// done counts the runs of a job.
type done struct {
	mu   sync.Mutex
	runs []string // in order: their ids
}

func (d *done) handle(_ context.Context, r *jobs.Run[struct{}]) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs = append(d.runs, string(r.ID()))
	return nil
}

func (d *done) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.runs)
}

func (f *fleet) send(taskType, payload string, options ...asynq.Option) *asynq.TaskInfo {
	f.Helper()
	task := asynq.NewTask(taskType, []byte(payload))
	sent, err := asynq.NewClientFromRedisClient(f.rdb).Enqueue(task, append(options, asynq.Queue(f.queue))...)
	if err != nil {
		f.Fatal(err)
	}
	return sent
}

// gone waits until asynq has ended a task.
func (f *fleet) gone(id string) {
	f.Helper()
	inspector := asynq.NewInspectorFromRedisClient(f.rdb)
	f.await("task "+id+" to end", func() bool {
		_, err := inspector.GetTaskInfo(f.queue, id)
		return errors.Is(err, asynq.ErrTaskNotFound)
	})
}

// recover starts a worker that recovers an active task, and counts it as tried.
func (f *fleet) recover(id string) {
	f.Helper()
	inspector := asynq.NewInspectorFromRedisClient(f.rdb)
	lease := "asynq:{" + f.queue + "}:lease"
	if err := f.rdb.ZAdd(f.Context(), lease, redis.Z{Score: float64(time.Now().Add(-time.Hour).Unix()), Member: id}).Err(); err != nil {
		f.Fatal(err)
	}
	f.start()
	f.await("asynq to recover the task", func() bool {
		now, err := inspector.GetTaskInfo(f.queue, id)
		return err == nil && now.State == asynq.TaskStateRetry && now.Retried == 1
	})
	if err := inspector.RunTask(f.queue, id); err != nil { // do not wait for asynq's pause
		f.Fatal(err)
	}
}

func (f *fleet) adopted(job, id string) jobs.RunID {
	return jobs.RequestRunID(job, f.queue+"/"+id)
}

// becomes waits until a run exists and reaches a state.
func (f *fleet) becomes(run jobs.RunID, want ledger.State) *ledger.Record {
	f.Helper()
	f.await("a run "+string(run), func() bool {
		_, _, err := f.ledger.Find(f.Context(), run)
		if err != nil && !errors.Is(err, ledger.ErrUnknown) {
			f.Fatal(err)
		}
		return err == nil
	})
	return f.awaitState(run, want)
}

// noSecond checks that a task has made no run besides its first one.
func (f *fleet) noSecond(job, id string) {
	f.Helper()
	if record, _, err := f.ledger.Find(f.Context(), f.adopted(job, id+"~2")); !errors.Is(err, ledger.ErrUnknown) {
		f.Errorf("got %+v, %v; want no second run", record, err)
	}
}

func TestTaskOfAPlainClientBecomesARun(t *testing.T) {
	f := newFleet(t)
	var d done
	f.job("settle", d.handle)
	f.start()
	f.start()
	var want []string
	for i := range 20 {
		sent := f.send("settle", "{}", asynq.TaskID(fmt.Sprint("bill-", i)))
		want = append(want, string(f.adopted("settle", sent.ID)))
	}
	for i, run := range want {
		record := f.becomes(jobs.RunID(run), ledger.StateSucceeded)
		if len(record.Attempts) != 1 || record.Trigger != ledger.TriggerEnqueue || record.Queue != f.queue {
			t.Errorf("%+v, want one attempt in the queue that it came by", record)
		}
		f.gone(fmt.Sprint("bill-", i))
	}
	got := d.all()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got runs %v, want %v", got, want)
	}

	// The same id after its run's end is a new request, even if asynq kept the task for a while.
	f.send("settle", "{}", asynq.TaskID("bill-7"))
	f.becomes(f.adopted("settle", "bill-7~2"), ledger.StateSucceeded)
	// Input that cannot become a valid run becomes a failed run.
	sent := f.send("settle", "hello")
	failed := f.becomes(f.adopted("settle", sent.ID), ledger.StateFailed)
	if !strings.Contains(failed.Reason, "not JSON") {
		t.Errorf("it failed because %q", failed.Reason)
	}
	// And a task of an unknown type stays.
	other := f.send("mail:send", "hello")
	f.await("the foreign task to go back", func() bool {
		now, err := asynq.NewInspectorFromRedisClient(f.rdb).GetTaskInfo(f.queue, other.ID)
		return err == nil && now.State == asynq.TaskStateRetry && now.Retried == 0
	})
	if n := len(d.all()); n != 21 {
		t.Errorf("%d attempts in all, want 21", n)
	}
}

// TestAdoptedRunWithoutASlotGoesToAnotherWorker has the only slot of a worker taken for long, while
// the worker still fetches ahead of it. The worker then continues with all of its slots.
func TestAdoptedRunWithoutASlotGoesToAnotherWorker(t *testing.T) {
	f := newFleet(t)
	begun, end := make(chan string, 1), make(chan struct{})
	f.job("long", func(context.Context, *jobs.Run[struct{}]) error {
		begun <- ""
		<-end
		return nil
	})
	settled := make(chan string, 20)
	f.job("settle", func(_ context.Context, r *jobs.Run[struct{}]) error { settled <- r.Worker(); return nil })
	one := func(o *worker.Options) { o.Concurrency = 1 }
	w := f.start(one)
	var busy string
	// On a busy machine, not each attempt is brief.
	f.await("the worker to fetch ahead", func() bool {
		f.send("settle", "{}")
		busy = receive(t, settled)
		return w.Ahead() == 1
	})
	f.send("long", "{}")
	for range 10 {
		f.send("settle", "{}")
	}
	receive(t, begun)
	other := f.start(one)
	for range 10 {
		if at := receive(t, settled); at == busy {
			t.Errorf("%s began a run without a slot", at)
		}
	}
	other.stop()
	close(end)
	for range 10 {
		f.send("settle", "{}")
	}
	for range 10 {
		if at := receive(t, settled); at != busy {
			t.Errorf("%s began a run after it had stopped", at)
		}
	}
}

// TestAnAdoptionThatTakesLongKeepsNoSlot holds the reply to an adoption back until a delivery has
// run in the only slot.
func TestAnAdoptionThatTakesLongKeepsNoSlot(t *testing.T) {
	f := newFleet(t)
	var d done
	f.job("settle", d.handle)
	run := f.adopted("settle", "4711")
	var lost atomic.Bool
	sent, reply := make(chan struct{}), make(chan struct{})
	adopts := func(request string) bool { // a claim names no job
		return strings.Contains(request, "\r\nsettle\r\n") && strings.Contains(request, "\r\n"+string(run)+"\r\n") && !lost.Load()
	}
	wasSent := sync.OnceFunc(func() { close(sent) })
	f.start(f.lossy(adopts, func() {
		lost.Store(true)
		wasSent()
		<-reply
	}), func(o *worker.Options) { o.Concurrency = 1 })
	goOn := sync.OnceFunc(func() { close(reply) })
	defer goOn()
	f.send("settle", "{}", asynq.TaskID("4711"))
	receive(t, sent)
	f.awaitState(f.enqueue(f.jobs[0], "x"), ledger.StateSucceeded)
	goOn()
	f.becomes(run, ledger.StateSucceeded)
	f.gone("4711")
	f.noSecond("settle", "4711")
}

// TestTaskWhileItsRunIsOutstandingExistsAlready: asynq forgot the first task of the id as soon as
// it was adopted.
func TestTaskWhileItsRunIsOutstandingExistsAlready(t *testing.T) {
	f := newFleet(t)
	begun, end := make(chan struct{}, 10), make(chan struct{})
	f.job("settle", func(context.Context, *jobs.Run[struct{}]) error {
		begun <- struct{}{}
		<-end
		return nil
	})
	f.start()
	f.send("settle", "{}", asynq.TaskID("4711"))
	<-begun
	f.gone("4711")
	f.send("settle", "{}", asynq.TaskID("4711"))
	f.gone("4711")
	close(end)
	f.becomes(f.adopted("settle", "4711"), ledger.StateSucceeded)
	f.noSecond("settle", "4711")
	if len(begun) > 0 {
		t.Error("it ran twice")
	}
}

// TestLostReplyToAnAdoptionMakesNoSecondRun loses the first replies, to an adoption alone and to
// several together, and the runs end before the adoptions are sent again.
func TestLostReplyToAnAdoptionMakesNoSecondRun(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n, " together"), func(t *testing.T) {
			f := newFleet(t)
			var d done
			f.job("settle", d.handle)
			var want []string
			for i := range n { // before the worker, so that it fetches them together
				f.send("settle", "{}", asynq.TaskID(fmt.Sprint(i)))
				want = append(want, string(f.adopted("settle", fmt.Sprint(i))))
			}
			var lost atomic.Int32
			adopts := func(request string) bool { // a claim names no job
				return strings.Contains(request, "\r\nsettle\r\n") && lost.Load() < 2 &&
					!slices.ContainsFunc(want, func(run string) bool { return !strings.Contains(request, "\r\n"+run+"\r\n") })
			}
			f.start(f.lossy(adopts, func() {
				for _, run := range want {
					f.awaitState(jobs.RunID(run), ledger.StateSucceeded) // the sweep delivers it
				}
				lost.Add(1)
			}))
			for i := range n {
				f.gone(fmt.Sprint(i))
			}
			if n := lost.Load(); n != 2 {
				t.Errorf("%d answers were lost, want 2: nothing was tested", n)
			}
			got := d.all()
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("got runs %v, want %v once", got, want)
			}
			for i := range n {
				f.noSecond("settle", fmt.Sprint(i))
			}
		})
	}
}

// TestLostAckMakesNoSecondRun: asynq keeps a task active if it could not record the end, and
// recovers it when its lease is over. By then its run has long ended.
func TestLostAckMakesNoSecondRun(t *testing.T) {
	f := newFleet(t)
	var d done
	f.job("settle", d.handle)
	var lost atomic.Int32
	first := f.start(f.broken(func(cmd redis.Cmder, send func() error) error {
		// Only the script that ends tasks has their IDs and the number of processed ones.
		processed := slices.ContainsFunc(cmd.Args(), func(arg any) bool { return strings.Contains(fmt.Sprint(arg), "}:processed:") })
		if !says(cmd, "4711") || !processed {
			return send()
		}
		lost.Add(1)
		return errLost
	}))
	f.send("settle", "{}", asynq.TaskID("4711"))
	f.becomes(f.adopted("settle", "4711"), ledger.StateSucceeded)
	f.await("the ack to be lost", func() bool { return lost.Load() > 0 })
	first.stop()

	f.recover("4711")
	f.gone("4711")
	if got := d.all(); len(got) != 1 {
		t.Errorf("got runs %v, want one", got)
	}
	f.send("settle", "{}", asynq.TaskID("4711")) // and this one is new
	f.becomes(f.adopted("settle", "4711~2"), ledger.StateSucceeded)
}

// TestAReusedIDWhoseFirstTakeWasLostBecomesARun: the reply to the fetch of a second request is
// lost, so asynq recovers it and counts it as tried, while the run of the first one is remembered.
func TestAReusedIDWhoseFirstTakeWasLostBecomesARun(t *testing.T) {
	f := newFleet(t)
	var d done
	f.job("settle", d.handle)
	var second, lost atomic.Bool
	first := f.start(f.broken(func(cmd redis.Cmder, send func() error) error {
		err := send()
		script, is := cmd.(*redis.Cmd)
		if !is || !second.Load() || !says(cmd, "asynq:{"+f.queue+"}:pending") {
			return err
		}
		if reply, ok := script.Val().([]any); ok && slices.Contains(reply, any("daily")) && lost.CompareAndSwap(false, true) {
			return errLost
		}
		return err
	}))
	f.send("settle", "{}", asynq.TaskID("daily"))
	f.becomes(f.adopted("settle", "daily"), ledger.StateSucceeded)
	f.gone("daily")
	second.Store(true)
	f.send("settle", "{}", asynq.TaskID("daily"))
	f.await("the fetch to be lost", lost.Load)
	first.stop()
	f.recover("daily")
	f.becomes(f.adopted("settle", "daily~2"), ledger.StateSucceeded)
	f.gone("daily")
	if got := d.all(); len(got) != 2 {
		t.Errorf("got runs %v, want one for each request", got)
	}
}

// TestATaskThatAPersonRunsAgainIsANewRequest: asynq keeps the task when it is complete, also one
// that it has recovered, and counted as tried.
func TestATaskThatAPersonRunsAgainIsANewRequest(t *testing.T) {
	for name, retried := range map[string]uint64{"first": 0, "recovered": 1} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			var d done
			f.job("settle", d.handle)
			sent := f.send("settle", "{}", asynq.TaskID("4711"), asynq.Retention(time.Hour))
			key := "asynq:{" + f.queue + "}:t:" + sent.ID
			message := f.rdb.HGet(t.Context(), key, "msg").Val()
			message += string(protowire.AppendVarint(protowire.AppendTag(nil, 6, protowire.VarintType), retried))
			if err := f.rdb.HSet(t.Context(), key, "msg", message).Err(); err != nil {
				t.Fatal(err)
			}
			f.start()
			inspector := asynq.NewInspectorFromRedisClient(f.rdb)
			f.becomes(f.adopted("settle", "4711"), ledger.StateSucceeded)
			f.await("the task to be complete", func() bool {
				now, err := inspector.GetTaskInfo(f.queue, sent.ID)
				return err == nil && now.State == asynq.TaskStateCompleted
			})
			if err := inspector.RunTask(f.queue, sent.ID); err != nil {
				t.Fatal(err)
			}
			f.becomes(f.adopted("settle", "4711~2"), ledger.StateSucceeded)
		})
	}
}

// TestOptionsOfAPlainClientDoNotBindTheRun shows that a task ends when it is adopted, and with it
// its timeout, its deadline and its other options.
func TestOptionsOfAPlainClientDoNotBindTheRun(t *testing.T) {
	f := newFleet(t)
	const timeout = time.Second
	var deadline time.Time
	var d done
	f.job("settle", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		timer := time.NewTimer(max(timeout, time.Until(deadline)) + timeout/5)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		return d.handle(ctx, r)
	})
	f.start(func(o *worker.Options) { o.Concurrency = 8 })
	// A worker on a busy machine adopts all of them before that.
	deadline = time.Now().Add(15 * time.Second)
	sets := [][]asynq.Option{
		{asynq.Timeout(timeout)}, {asynq.MaxRetry(0)}, {asynq.Retention(time.Minute)}, {asynq.Unique(time.Minute)},
		{asynq.ProcessIn(50 * time.Millisecond)}, {asynq.Deadline(deadline)},
	}
	for i, options := range sets {
		f.send("settle", "{}", append(options, asynq.TaskID(fmt.Sprint(i)))...)
	}
	for i := range sets {
		if record := f.becomes(f.adopted("settle", fmt.Sprint(i)), ledger.StateSucceeded); len(record.Attempts) != 1 {
			t.Errorf("%+v, want one attempt", record)
		}
	}
	if got := d.all(); len(got) != len(sets) {
		t.Errorf("got runs %v, want %d", got, len(sets))
	}
}

// TestDriftedWorkerAdoptsByTheActiveDefinition sends a request during the rollout of a new config.
func TestDriftedWorkerAdoptsByTheActiveDefinition(t *testing.T) {
	f := newFleet(t)
	var d done
	old := f.job("settle", d.handle)
	var ran atomic.Value
	w := f.start(func(o *worker.Options) {
		o.Expand = func(job *jobs.Job) (*jobs.Job, []jobs.Secret, error) {
			ran.Store(job.Description)
			return job, nil, nil
		}
	})
	f.await("the old definition to be registered", func() bool { _, err := f.ledger.Job(f.Context(), "settle"); return err == nil })
	changed := *old
	changed.Description = "of the next config"
	if _, err := f.ledger.Register(f.Context(), "next config", []*jobs.Job{&changed}); err != nil {
		t.Fatal(err)
	}
	f.await("the worker to show as drifted", func() bool { return f.card(w.ID()).Drifted == 1 })
	sent := f.send("settle", "{}")
	run := f.adopted("settle", sent.ID)
	f.gone(sent.ID)
	f.becomes(run, ledger.StateSucceeded)
	if got := ran.Load(); got != changed.Description {
		t.Errorf("it ran by the definition %q, want %q", got, changed.Description)
	}
}
