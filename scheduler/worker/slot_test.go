package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// A lateReply is a hook that keeps the replies to some commands back.
type lateReply struct {
	late func(args string) bool
	come <-chan struct{}
}

func (h *lateReply) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return next(ctx, network, address)
	}
}

func (h *lateReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if h.late(fmt.Sprint(cmd.Args()...)) {
			select {
			case <-h.come:
			case <-ctx.Done():
			}
		}
		return err
	}
}

func (h *lateReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// receive returns the next value, or fails the test.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(time.Minute):
		t.Fatal("nothing came within a minute")
		panic("unreachable")
	}
}

// TestNextRunNeedNotWaitForTheEndOfABriefOne keeps the reply to a finish back until another run has
// begun in the same slot.
func TestNextRunNeedNotWaitForTheEndOfABriefOne(t *testing.T) {
	f := newFleet(t)
	second := make(chan struct{})
	f.job("settle", func(context.Context, *jobs.Run[struct{}]) error { return nil },
		func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:1"} })
	other := f.job("other", func(context.Context, *jobs.Run[struct{}]) error { close(second); return nil })
	hook := &lateReply{late: func(args string) bool {
		return strings.Contains(args, "succeeded") && strings.Contains(args, "settle#1")
	}, come: second}
	f.start(func(o *worker.Options) { o.Concurrency, o.Hook = 1, hook })
	f.enqueue(f.jobs[0], "1")
	f.enqueue(other, "1")
	for _, run := range []jobs.RunID{"settle#1", "other#1"} {
		if record := f.awaitState(run, ledger.StateSucceeded); len(record.Attempts) != 1 {
			t.Errorf("%+v, want one attempt", record)
		}
	}
}

// TestCrashAfterASlotWasGivenAwayLosesNothing kills a worker of one slot between the end of an
// attempt and the reply to its finish, while the next attempt runs in its slot.
func TestCrashAfterASlotWasGivenAwayLosesNothing(t *testing.T) {
	for name, recorded := range map[string]bool{"before the finish": false, "before its reply": true} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			lock := func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:" + j.Name} }
			settle := f.job("settle", func(context.Context, *jobs.Run[struct{}]) error { return nil }, lock)
			var victim atomic.Pointer[string]
			second := make(chan struct{})
			other := f.job("other", func(ctx context.Context, r *jobs.Run[struct{}]) error {
				if r.Worker() != *victim.Load() {
					return nil
				}
				close(second)
				<-ctx.Done()
				return context.Cause(ctx)
			}, lock)
			dying, dies := f.killedByItsFirstClaim()
			dying.claim = "by no request"
			hook := &killedAtAFinish{killed: dying, of: "settle#1", after: second, recorded: recorded}
			w := f.start(dies, func(o *worker.Options) {
				o.Concurrency, o.Hook = 1, hook
				o.DrainTimeout = 100 * time.Millisecond // it is dead by then
			})
			id := f.session(w)
			victim.Store((*string)(&id))
			f.enqueue(settle, "1")
			f.enqueue(other, "1")
			f.await("the worker to die", dying.dead.Load)
			if err := f.ledger.Space().EndSession(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			f.start()
			attempts := map[jobs.RunID]int{"settle#1": 2, "other#1": 2}
			if recorded {
				attempts["settle#1"] = 1
			}
			for run, want := range attempts {
				if record := f.awaitState(run, ledger.StateSucceeded); len(record.Attempts) != want {
					t.Errorf("%+v, want %d attempts", record, want)
				}
			}
			dying.dead.Store(false) // it may end its session
		})
	}
}

// A killedAtAFinish is a hook that kills a worker at the finish of a run, when it was recorded or
// before it is sent.
type killedAtAFinish struct {
	lateReply
	killed   *killed
	of       string
	after    <-chan struct{}
	recorded bool
}

func (h *killedAtAFinish) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := fmt.Sprint(cmd.Args()...)
		if !strings.Contains(args, "succeeded") || !strings.Contains(args, h.of) {
			return next(ctx, cmd)
		}
		select {
		case <-h.after:
		case <-ctx.Done():
		}
		if !h.recorded {
			h.killed.dead.Store(true)
			return next(ctx, cmd)
		}
		if err := next(ctx, cmd); err != nil {
			return err // NOSCRIPT: the script itself follows
		}
		h.killed.dead.Store(true)
		return errKilled
	}
}

// TestLongAttemptKeepsItsSlotUntilItsEndIsRecorded: a run that the end makes due would find no
// other slot soon.
func TestLongAttemptKeepsItsSlotUntilItsEndIsRecorded(t *testing.T) {
	f := newFleet(t)
	sent, come := make(chan struct{}), make(chan struct{})
	long := f.job("long", func(context.Context, *jobs.Run[struct{}]) error {
		time.Sleep(200 * time.Millisecond) // the work
		return nil
	})
	var once sync.Once
	hook := &lateReply{late: func(args string) bool {
		late := strings.Contains(args, "succeeded") && strings.Contains(args, "long#1")
		if late {
			once.Do(func() { close(sent) })
		}
		return late
	}, come: come}
	w := f.start(func(o *worker.Options) { o.Concurrency, o.Hook = 1, hook })
	run := f.enqueue(long, "1")
	receive(t, sent)
	if free := w.FreeSlots(); free != 0 {
		t.Errorf("%d slots are free before the reply, want none", free)
	}
	close(come)
	f.awaitState(run, ledger.StateSucceeded)
	f.await("the slot to be free", func() bool { return w.FreeSlots() == 1 })
}

// TestNoMoreAttemptsRunThanThereAreSlots has many brief runs, of which some wait for each other's
// locks. Then each slot is free, once.
func TestNoMoreAttemptsRunThanThereAreSlots(t *testing.T) {
	f := newFleet(t)
	const slots, runs = 3, 600
	var now, most, done atomic.Int64
	work := func() {
		n := now.Add(1)
		for before := most.Load(); n > before && !most.CompareAndSwap(before, n); before = most.Load() {
		}
	}
	brief := func(context.Context, *jobs.Run[struct{}]) error {
		work()
		time.Sleep(time.Duration(done.Add(1)%3) * time.Millisecond) // the work
		now.Add(-1)
		return nil
	}
	f.job("plain", brief)
	f.job("settle", brief, func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:1"} })
	all := make(chan struct{})
	last := f.job("last", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		work()
		defer now.Add(-1)
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	f.start(func(o *worker.Options) { o.Concurrency = slots })
	for i := range runs {
		f.enqueue(f.jobs[i%2], fmt.Sprint(i))
	}
	f.await("the brief runs to end", func() bool { return done.Load() == runs })
	var waiting []jobs.RunID
	for i := range slots + 2 {
		waiting = append(waiting, f.enqueue(last, fmt.Sprint(i)))
	}
	f.await("the slots to be taken", func() bool { return now.Load() >= slots })
	close(all)
	for _, run := range waiting {
		f.awaitState(run, ledger.StateSucceeded)
	}
	if got := most.Load(); got != slots {
		t.Errorf("up to %d attempts ran, want %d", got, slots)
	}
}

// TestDeliveryFetchedAheadOfItsSlotTakesNoLock has a worker fetch ahead of its only slot, since its
// attempts were brief. Then one of them takes long. The worker begins no other run, and leaves the
// deliveries to another worker: the first one is again the first in its queue.
func TestDeliveryFetchedAheadOfItsSlotTakesNoLock(t *testing.T) {
	f := newFleet(t)
	f.job("brief", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	begun, end := make(chan string, 1), make(chan struct{})
	f.job("long", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		begun <- r.Worker()
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	settled := make(chan string, 10)
	f.job("settle", func(_ context.Context, r *jobs.Run[struct{}]) error { settled <- r.Worker(); return nil },
		func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:1"} })
	one := func(o *worker.Options) { o.Concurrency = 1 }
	w := f.start(one)
	tries := 0 // on a busy machine, not each attempt is brief
	f.await("the worker to fetch ahead", func() bool {
		tries++
		f.awaitState(f.enqueue(f.jobs[0], fmt.Sprint(tries)), ledger.StateSucceeded)
		return w.Ahead() == 1
	})
	due := []ledger.Due{f.ask(1, ledger.Request{Job: f.jobs[1], Trigger: ledger.TriggerEnqueue})[0].Due[0]}
	for _, asked := range f.ask(cap(settled), ledger.Request{Job: f.jobs[2], Trigger: ledger.TriggerEnqueue}) {
		due = append(due, asked.Due[0])
	}
	f.pushAndConfirm(due...) // so they are in the queue when the first one begins
	busy := receive(t, begun)
	f.await("a delivery to go back", func() bool {
		return w.Ahead() == 0 && f.pending() == cap(settled) || len(settled) > 0
	})
	if len(settled) == 0 && !strings.Contains(f.first(), string(due[1].Run)) {
		t.Errorf("%q is the first in the queue, want %s, which was fetched ahead", f.first(), due[1].Run)
	}
	f.start(one)
	for range cap(settled) {
		if at := receive(t, settled); at == busy {
			t.Errorf("%s began a run without a slot", at)
		}
	}
	close(end)
}

// TestPlantedFaultsOfSlotsAreFound breaks the code on purpose. The tests of this file must fail.
func TestPlantedFaultsOfSlotsAreFound(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds the package anew for each fault")
	}
	for name, fault := range map[string]struct{ test, file, from, to string }{
		"a claim ahead of its slot keeps a lock": {"TestDeliveryFetchedAheadOfItsSlotTakesNoLock", "slots.go", "n := min(s.free, len(s.ready))", "n := len(s.ready)"},
		"a finish gives its slot away twice":     {"TestNoMoreAttemptsRunThanThereAreSlots", "slot.go", "s.given = true", "s.given = false"},
		"a long attempt gives its slot away":     {"TestLongAttemptKeepsItsSlotUntilItsEndIsRecorded", "slot.go", "!s.w.pace.brief() ||", ""},
		"a free slot is kept from a delivery":    {"TestRandomCallsOfSlots", "slots.go", "s.seat(some)", "_ = some"},
		"a fetch ahead of its slot takes one":    {"TestRandomCallsOfSlots", "slots.go", "s.inHand++", "s.free--"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, err := os.ReadFile(fault.file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), fault.from); n != 1 {
				t.Fatalf("%s has %q %d times, want it once", fault.file, fault.from, n)
			}
			broken := filepath.Join(t.TempDir(), fault.file)
			if err := os.WriteFile(broken, []byte(strings.Replace(string(source), fault.from, fault.to, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			here, err := filepath.Abs(fault.file)
			if err != nil {
				t.Fatal(err)
			}
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{here: broken}})
			if err != nil {
				t.Fatal(err)
			}
			list := filepath.Join(t.TempDir(), "overlay.json")
			if err := os.WriteFile(list, overlay, 0o600); err != nil {
				t.Fatal(err)
			}
			build := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-overlay", list, "-run", "^"+fault.test+"$", ".")
			// As make build does: the other packages are compiled already.
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			output, err := build.CombinedOutput()
			var failed *exec.ExitError
			if !errors.As(err, &failed) || !strings.Contains(string(output), "--- FAIL") && !strings.Contains(string(output), "panic:") {
				t.Errorf("got %v, want a failed test:\n%s", err, output)
			}
		})
	}
}
