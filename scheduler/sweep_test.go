package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

// trips is a hook that counts round trips.
type trips struct{ n atomic.Int64 }

func (h *trips) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.n.Add(1)
		return next(ctx, cmd)
	}
}

func (h *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.n.Add(1)
		return next(ctx, cmds)
	}
}

// sweepFixture has a scheduler that only sweeps, when a test calls it, and a client beside it.
type sweepFixture struct {
	*testing.T
	*Scheduler
	trips     trips // of the scheduler
	rdb       *redis.Client
	namespace string
	client    *locks.Client
	ledger    *ledger.Ledger // of the client

	delivered []jobs.RunID
	first     int64 // round trips before the first delivery
}

// newSweeper returns a fixture whose scheduler uses Redis with these rights, "" for all.
func newSweeper(t *testing.T, rights string) *sweepFixture {
	t.Helper()
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	f := &sweepFixture{T: t, rdb: server.Client(t), namespace: redistest.Namespace(t)}
	f.client = f.session("client")
	f.ledger = ledger.New(f.rdb, f.client.Space())
	rdb := server.Client(t)
	if rights != "" {
		if err := f.rdb.Do(t.Context(), "ACL", "SETUSER", "w", "on", "nopass", "+@all", "&*", "~{"+f.namespace+"}:[^h]*",
			"~{"+f.namespace+"}:ho*", rights).Err(); err != nil {
			t.Fatal(err)
		}
		options := *rdb.Options()
		options.Username, options.Password = "w", "any"
		rdb = redis.NewClient(&options)
		t.Cleanup(func() { _ = rdb.Close() })
	}
	rdb.AddHook(&f.trips)
	space, err := locks.NewSpace(rdb, f.namespace)
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.New(rdb, f.namespace)
	if err != nil {
		t.Fatal(err)
	}
	l := ledger.New(rdb, space)
	f.Scheduler, err = New(Options{
		Ledger: l, Queue: q, Pushes: roomy{}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Deliver: func(_ context.Context, due []ledger.Due) {
			if f.delivered == nil {
				f.first = f.trips.n.Load()
			}
			for _, d := range due {
				f.delivered = append(f.delivered, d.Run)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// roomy has room for the runs of any sweep here.
type roomy struct{}

func (roomy) Room() int               { return 2000 }
func (roomy) Pending(ledger.Due) bool { return false }

func (f *sweepFixture) session(name string) *locks.Client {
	f.Helper()
	client, err := locks.Open(f.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: name, Grace: -1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(f.Context()), 10*time.Second)
		defer cancel()
		_ = client.Close(ctx) // some sessions were ended before
	})
	return client
}

func (f *sweepFixture) enqueue(job *jobs.Job, id string, in time.Duration) *ledger.Enqueued {
	f.Helper()
	enqueued, err := f.ledger.Enqueue(f.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue, In: in})
	if err != nil {
		f.Fatal(err)
	}
	return enqueued
}

func (f *sweepFixture) claim(client *locks.Client, due ledger.Due, want ledger.ClaimOutcome) {
	f.Helper()
	request, err := client.Extension().Begin()
	if err != nil {
		f.Fatal(err)
	}
	claimed, err := f.ledger.Claim(f.Context(), request, due, 0, nil)
	if err != nil || claimed.Outcome != want {
		f.Fatalf("claim of %s: %+v, %v, want it %s", due.Run, claimed, err, want)
	}
	if want != ledger.ClaimGranted {
		request.Drop()
	}
}

// waits makes a run wait for a lock that is held, for a millisecond at most.
func (f *sweepFixture) waits(name, id string) jobs.RunID {
	f.Helper()
	job := unservedJob(name, "q")
	job.Lock = jobs.Lock{Exclusive: []string{"bill"}, Wait: time.Millisecond, OnBusy: jobs.BusySkip}
	enqueued := f.enqueue(job, id, 0)
	f.claim(f.client, enqueued.Due[0], ledger.ClaimWaiting)
	return enqueued.Run
}

// until sweeps until a run is in a state.
func (f *sweepFixture) until(run jobs.RunID, want ledger.State) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 10*time.Second)
	defer cancel()
	for {
		f.sweep(ctx)
		record, _, err := f.ledger.Find(ctx, run)
		if err != nil {
			f.Fatal(err)
		}
		if record.State == want {
			return
		}
	}
}

// TestASweepDeliversAtOnceAndClosesInFewRoundTrips: the host of 100 runs has died, another run has
// become due, and 100 runs have waited for too long.
func TestASweepDeliversAtOnceAndClosesInFewRoundTrips(t *testing.T) {
	f := newSweeper(t, "")
	f.sweep(t.Context()) // loads the script
	gone := f.session("gone")
	var dead, late []jobs.RunID
	for i := range 100 {
		enqueued := f.enqueue(unservedJob("settle", "q"), fmt.Sprint(i), 0)
		f.claim(gone, enqueued.Due[0], ledger.ClaimGranted)
		dead = append(dead, enqueued.Run)
	}
	if _, err := f.client.Acquire(t.Context(), locks.Exclusive("bill")); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		late = append(late, f.waits("waits", fmt.Sprint(i)))
	}
	soon := f.enqueue(unservedJob("settle", "q"), "soon", time.Hour).Run
	if err := f.rdb.ZAdd(t.Context(), "{"+f.namespace+"}:timer", redis.Z{Score: 1, Member: string(soon)}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := gone.Space().EndSession(t.Context(), gone.Session()); err != nil {
		t.Fatal(err)
	}
	before := f.trips.n.Load()
	f.sweep(t.Context())
	took, first := f.trips.n.Load()-before, f.first-before
	t.Logf("a sweep that closed 200 runs made %d round trips, the first delivery came after %d", took, first)
	if len(f.delivered) == 0 || f.delivered[0] != soon || first > 1 {
		t.Errorf("delivered %v, after %d round trips, want %s after the first", f.delivered, first, soon)
	}
	if took > 20 {
		t.Errorf("%d round trips, want 20 at most", took)
	}
	for _, run := range dead {
		if !slices.Contains(f.delivered, run) {
			t.Errorf("%s, of a host that died, is not delivered", run)
		}
	}
	f.until(late[len(late)-1], ledger.StateSkipped)
}

// TestARunWhoseExpiryIsRefusedHoldsUpNoOther: a key of its job's history has the wrong type, or the
// worker has no right to it. A sweep tries the run again after a minute.
func TestARunWhoseExpiryIsRefusedHoldsUpNoOther(t *testing.T) {
	for name, rights := range map[string]string{"wrong type": "", "no right": "~*hist:good"} {
		t.Run(name, func(t *testing.T) {
			f := newSweeper(t, rights)
			if _, err := f.client.Acquire(t.Context(), locks.Exclusive("bill")); err != nil {
				t.Fatal(err)
			}
			var refused []jobs.RunID
			for i := range 3 {
				refused = append(refused, f.waits("bad", fmt.Sprint(i)))
			}
			good := f.waits("good", "x")
			if rights == "" {
				if err := f.rdb.Set(t.Context(), "{"+f.namespace+"}:hist:bad", "x", 0).Err(); err != nil {
					t.Fatal(err)
				}
			}
			f.until(good, ledger.StateSkipped)
			now := time.Now()
			for _, run := range refused {
				at, err := f.rdb.ZScore(t.Context(), "{"+f.namespace+"}:late", string(run)).Result()
				if left := time.UnixMilli(int64(at)).Sub(now); err != nil || left < refusedPause/2 {
					t.Errorf("%s is tried again in %s, %v, want a pause", run, left, err)
				}
			}
		})
	}
}

// cut is a hook that lets one script through, and fails the others.
type cut struct{ sent atomic.Bool }

func (h *cut) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *cut) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		script := strings.HasPrefix(cmd.Name(), "eval")
		if script && h.sent.Load() {
			cmd.SetErr(context.DeadlineExceeded)
			return context.DeadlineExceeded
		}
		err := next(ctx, cmd)
		if script {
			h.sent.Store(err == nil)
		}
		return err
	}
}

func (h *cut) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestTheWorkerOnDutyRecordsTheListOfADeadSender, and leaves the list of another one, which is
// perhaps alive.
func TestTheWorkerOnDutyRecordsTheListOfADeadSender(t *testing.T) {
	f := newSweeper(t, "")
	rdb := redis.NewClient(&redis.Options{Network: f.rdb.Options().Network, Addr: f.rdb.Options().Addr})
	defer func() { _ = rdb.Close() }()
	rdb.AddHook(&cut{})
	list := ledger.List{Atomic: true}
	for i := range 250 {
		list.Items = append(list.Items, ledger.Request{Job: unservedJob("j", "q"), ID: fmt.Sprint(i), Trigger: ledger.TriggerEnqueue})
	}
	space, err := locks.NewSpace(rdb, f.namespace)
	if err != nil {
		t.Fatal(err)
	}
	if replies, err := ledger.New(rdb, space).EnqueueAll(t.Context(), list); err != nil || !errors.Is(replies[249].Err, ledger.ErrPending) {
		t.Fatalf("the sender has not died: %v", err)
	}
	lists := "{" + f.namespace + "}:lists"
	staged, err := f.rdb.HGetAll(t.Context(), lists).Result()
	if err != nil || len(staged) != 2 {
		t.Fatalf("lists has %d fields, %v, want 2", len(staged), err)
	}
	for field, text := range staged {
		if strings.HasPrefix(field, "l:") {
			f.rdb.HSet(t.Context(), lists, "l:left", text, "n:left", fmt.Sprint(time.Now().Add(-2*listsLeast).UnixMilli(), " 0"))
		}
	}
	f.duty.Store(true)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	var looks sync.WaitGroup
	looks.Go(func() { f.lists(ctx) })
	for ctx.Err() == nil && f.rdb.HExists(ctx, lists, "l:left").Val() {
		runtime.Gosched()
	}
	stop()
	looks.Wait()
	if len(f.delivered) != 250 {
		t.Errorf("%d runs are delivered, want 250", len(f.delivered))
	}
	if n := f.rdb.HLen(t.Context(), "{"+f.namespace+"}:run").Val(); n != 250 {
		t.Errorf("%d runs are recorded, want 250", n)
	}
	if n := f.rdb.HLen(t.Context(), lists).Val(); n != 2 {
		t.Errorf("lists has %d fields, want those of the living sender's list", n)
	}
}

// TestALargeBacklogIsLookedUpWithinItsTime adds up looks that take longer than the pause between
// them.
func TestALargeBacklogIsLookedUpWithinItsTime(t *testing.T) {
	for _, every := range []time.Duration{dutyEvery, 700 * time.Millisecond, 3 * time.Second} {
		const all = 1_000_000
		looked := 0
		for passed := every; passed <= lookUpPass; passed += every {
			looked += lookUpMost(all, every)
		}
		// the last look may begin just before the end
		if looked < all-lookUpMost(all, every) {
			t.Errorf("with a look every %s, %d of %d are looked up in %s", every, looked, all, lookUpPass)
		}
	}
}
