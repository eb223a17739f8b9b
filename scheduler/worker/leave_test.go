package worker_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// TestADefinitionThatLeavesInOrderGivesWayAtOnce starts and drains a worker with a newer
// definition, while a run keeps that worker busy. The worker with the older one decides the ticks
// again.
func TestADefinitionThatLeavesInOrderGivesWayAtOnce(t *testing.T) {
	f := newFleet(t)
	release := make(chan struct{})
	blocks := f.job("blocks", func(context.Context, *jobs.Run[struct{}]) error { <-release; return nil })
	job := f.everySecond("tick")
	f.start(func(o *worker.Options) { o.Queues = map[string]int{f.queue: 1} })
	f.await("a tick", func() bool { return len(f.ticks(job)) >= 1 })
	newer := *job
	newer.Description = "newer"
	canary := f.start(func(o *worker.Options) {
		o.Jobs, o.DrainTimeout = []*jobs.Job{&newer, blocks}, time.Minute
	})
	active := func() string {
		record, err := f.ledger.Job(t.Context(), "tick")
		if err != nil {
			t.Fatal(err)
		}
		return record.Job.Description
	}
	f.await("the newer definition to be active", func() bool { return active() == "newer" })
	f.await("ticks by it", func() bool { return len(f.ticks(job)) >= 3 })
	var held []jobs.RunID
	for i := range 8 { // more than one worker has slots for
		held = append(held, f.enqueue(blocks, string(rune('a'+i))))
	}
	f.await("them to run", func() bool {
		record, _, err := f.ledger.Find(t.Context(), held[len(held)-1])
		return err == nil && record.State == ledger.StateRunning
	})
	began := time.Now()
	stopped := make(chan struct{})
	go func() { canary.stop(); close(stopped) }()
	f.await("the older definition to be active", func() bool { return active() == "" })
	took := time.Since(began)
	select {
	case <-stopped:
		t.Error("the worker ended, want it to drain meanwhile")
	default:
	}
	close(release)
	<-stopped
	seen := len(f.ticks(job))
	f.await("more ticks", func() bool { return len(f.ticks(job)) > seen+1 })
	records := f.ticks(job)
	for i, record := range records {
		if i > 0 && record.Tick.Sub(records[i-1].Tick) != time.Second || record.State != ledger.StateSucceeded {
			t.Errorf("tick %v %s (%s), after %v", record.Tick, record.State, record.Reason, records[max(0, i-1)].Tick)
		}
	}
	t.Logf("the older definition was active %v after the drain had begun", took)
	if took > ledger.GoneAfter/2 {
		t.Errorf("it took %v, want a moment", took)
	}
}

// hash returns the name under which Redis knows a script of the ledger.
func hash(script string) string {
	for hash, name := range ledger.ScriptNames() {
		if name == script {
			return hash
		}
	}
	return ""
}

// TestAWorkerLeavesWhatItHasJustRegistered drains a worker while it gets no reply to a registration
// that Redis has carried out, or before its first poll with the new config. The worker with the
// older definition decides the ticks again.
func TestAWorkerLeavesWhatItHasJustRegistered(t *testing.T) {
	for name, test := range map[string]struct {
		reload bool
		fails  string // the script
	}{"at the start": {false, "register"}, "in a reload": {true, "register"}, "before the first poll": {true, "poll"}} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			job := f.everySecond("j")
			f.start()
			newer := *job
			newer.Description = "newer"
			digest, _, err := ledger.Digest([]*jobs.Job{&newer})
			if err != nil {
				t.Fatal(err)
			}
			fails := func(request string) bool {
				return strings.Contains(request, hash(test.fails)) && strings.Contains(request, digest)
			}
			loses := f.lossy(fails, func() {})
			if test.fails == "poll" {
				loses = func(o *worker.Options) {
					options := *f.rdb.Options()
					options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
						conn, err := new(net.Dialer).DialContext(ctx, network, address)
						return &watchedConn{conn, func(request string) error {
							if fails(request) {
								return errLost
							}
							return nil
						}}, err
					}
					rdb := redis.NewClient(&options)
					f.Cleanup(func() { _ = rdb.Close() })
					o.Redis = rdb
				}
			}
			var w *running
			if test.reload {
				w = f.start(loses)
				if err := w.SetJobs(t.Context(), []*jobs.Job{&newer}, nil, "two"); err != nil {
					t.Fatal(err)
				}
			} else {
				w = f.launch(loses, func(o *worker.Options) { o.Jobs = []*jobs.Job{&newer} })
			}
			f.await("the newer definition to be active", func() bool { return f.active("j") == "newer" })
			w.stop()
			f.await("the older definition to be active", func() bool { return f.active("j") == "" })
		})
	}
}

// TestADrainingWorkerLeavesWhatItHasReasserted: Redis loses all data while a worker with a newer
// definition drains. That worker re-asserts its definitions, which Redis needs for their cursors,
// but does not carry them any more.
func TestADrainingWorkerLeavesWhatItHasReasserted(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	f := newFleetOn(t, server.Client(t))
	release := make(chan struct{})
	blocks := f.job("blocks", func(context.Context, *jobs.Run[struct{}]) error { <-release; return nil })
	job := f.everySecond("j")
	f.start(func(o *worker.Options) { o.Jobs, o.Queues = []*jobs.Job{job}, map[string]int{f.queue + "-other": 1} })
	newer := *job
	newer.Description = "newer"
	carried := []*jobs.Job{&newer, blocks}
	digest, _, err := ledger.Digest(carried)
	if err != nil {
		t.Fatal(err)
	}
	canary := f.start(func(o *worker.Options) { o.Jobs, o.DrainTimeout = carried, time.Minute })
	f.awaitState(f.enqueue(blocks, "a"), ledger.StateRunning)
	stopped := make(chan struct{})
	go func() { canary.stop(); close(stopped) }()
	f.await("the older definition to be active", func() bool { return f.active("j") == "" })

	if err := f.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	active := func(description string) func() bool {
		return func() bool {
			record, err := f.ledger.Job(t.Context(), "j")
			return err == nil && record.Job != nil && record.Job.Description == description
		}
	}
	f.await("the newer definition to be re-asserted", func() bool { return strings.Contains(f.carriers("j"), digest) })
	f.await("the older definition to be active again", active(""))
	select {
	case <-stopped:
		t.Error("the worker ended, want it to drain meanwhile")
	default:
	}
	close(release)
	<-stopped
}

// TestAWorkerReassertsMoreEndsThanOneRenewalHasTimeFor: Redis loses all data after so many ends
// that the worker asserts the older ones beside its work.
func TestAWorkerReassertsMoreEndsThanOneRenewalHasTimeFor(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	f := newFleetOn(t, server.Client(t))
	var ended atomic.Int64
	job := f.job("quick", func(context.Context, *jobs.Run[struct{}]) error { ended.Add(1); return nil })
	f.start()
	const many = 350
	asked := f.ask(many, ledger.Request{Job: job, Trigger: ledger.TriggerEnqueue})
	f.await("the runs to end", func() bool { return ended.Load() == many })
	for _, run := range asked {
		f.awaitState(run.Run, ledger.StateSucceeded)
	}
	if err := f.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for _, run := range asked {
		f.await("the end of "+string(run.Run)+" to be asserted", func() bool {
			record, _, err := f.ledger.Find(t.Context(), run.Run)
			return err == nil && record.State == ledger.StateSucceeded
		})
	}
	if ran := ended.Load(); ran > many {
		t.Errorf("%d runs have run %d times", many, ran)
	}
}

// TestDutyPassesToAWorkerWithoutDrift starts a worker with a newer definition beside the one that
// has duty.
func TestDutyPassesToAWorkerWithoutDrift(t *testing.T) {
	f := newFleet(t)
	job := f.everySecond("tick")
	old := f.start()
	duty := func() locks.SessionID {
		return locks.SessionID(f.rdb.HGet(t.Context(), f.key("ledger"), "duty").Val())
	}
	f.await("the first worker to have duty", func() bool { return duty() == old.ID() })
	newer := *job
	newer.Description = "newer"
	w := f.start(func(o *worker.Options) { o.Jobs = []*jobs.Job{&newer} })
	f.await("the worker without drift to have duty", func() bool { return duty() == w.ID() })
	f.await("ticks", func() bool { return len(f.ticks(job)) >= 3 })
	if got := duty(); got != w.ID() {
		t.Errorf("%s has duty, want %s to keep it", got, w.ID())
	}
}

// TestADriftedWorkerRegistersOnce counts the calls of a drifted worker, and then checks that it
// still takes over.
func TestADriftedWorkerRegistersOnce(t *testing.T) {
	server := redistest.New(t, redistest.Options{Config: []string{"slowlog-log-slower-than 0", "slowlog-max-len 100000"}})
	f := newFleetOn(t, server.Client(t))
	job := f.everySecond("tick")
	old := f.start()
	f.await("a tick", func() bool { return len(f.ticks(job)) >= 1 })
	newer := *job
	newer.Description = "newer"
	w := f.start(func(o *worker.Options) { o.Jobs = []*jobs.Job{&newer} })
	f.await("the older worker to have drifted", func() bool { return f.card(old.ID()).Drifted == 1 })
	register := hash("register")
	calls := func() (n int) {
		for _, entry := range f.rdb.SlowLogGet(t.Context(), -1).Val() {
			if len(entry.Args) > 1 && entry.Args[1] == register {
				n++
			}
		}
		return n
	}
	// more than two of the pauses after which it once registered again and again
	const drifted = 12 * time.Second
	before, until := calls(), time.Now().Add(drifted)
	f.await("some time to pass", func() bool { return time.Now().After(until) })
	if n := calls() - before; n > 1 {
		t.Errorf("it registered %d times in %v, want once at most", n, drifted)
	}
	w.stop()
	f.await("it to be active again", func() bool { return f.card(old.ID()).Drifted == 0 })
}

// TestRunsOfARenamedQueueMove has a run that was due in a queue that no worker serves any more.
func TestRunsOfARenamedQueueMove(t *testing.T) {
	f := newFleet(t)
	job := f.everySecond("tick")
	renamed := *job
	renamed.Queue = f.queue + "-new"
	before := *job
	before.Overlap = jobs.OverlapSkip
	registered, err := f.ledger.Register(t.Context(), "old", []*jobs.Job{&before})
	if err != nil {
		t.Fatal(err)
	}
	tick := registered.Now.Truncate(time.Second)
	f.damage("cursor", "tick", func(string) string { return fmt.Sprint(tick.Add(-time.Second).UnixMilli()) })
	created := f.ledger.Create(t.Context(), []ledger.Decision{{Job: &before, Seen: tick.Add(-time.Second), Cursor: tick, By: "me.1",
		Ticks: []ledger.Tick{{At: tick, Verdict: ledger.VerdictRun}}}})[0]
	if created.Err != nil || len(created.Due) != 1 {
		t.Fatalf("%+v, want one run", created)
	}
	f.pushAndConfirm(created.Due[0])
	f.start(func(o *worker.Options) {
		o.Jobs, o.Queues = []*jobs.Job{&renamed}, map[string]int{renamed.Queue: 1}
	})
	if record := f.awaitState(created.Due[0].Run, ledger.StateSucceeded); record.Queue != renamed.Queue || len(record.Attempts) != 1 {
		t.Errorf("%+v, want it to have run in the queue %s", record, renamed.Queue)
	}
}

// TestAdoptedRunsStayInTheQueueOfTheirSender has an adopted run that is due in a queue that no
// worker serves at the time, beside a run of a renamed queue.
func TestAdoptedRunsStayInTheQueueOfTheirSender(t *testing.T) {
	f := newFleet(t)
	job := f.job("settle", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	chosen := f.queue + "-chosen"
	client, err := locks.Open(t.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: "before", Lease: time.Minute, Grace: -1})
	if err != nil {
		t.Fatal(err)
	}
	adopted, err := f.ledger.Adopt(t.Context(), ledger.Adoption{Job: job, Queue: chosen, ID: "bill", Payload: []byte("{}"),
		Session: client.Session(), Giving: "g"})
	if err != nil || len(adopted.Due) != 1 {
		t.Fatalf("%+v, %v, want a run that is due", adopted, err)
	}
	f.pushAndConfirm(adopted.Due[0])
	if err := client.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := *job
	before.Queue = chosen
	moves := f.enqueue(&before, "moves")

	f.start()
	if record := f.awaitState(moves, ledger.StateSucceeded); record.Queue != f.queue {
		t.Errorf("%+v, want it to have run in the queue %s", record, f.queue)
	}
	if record, _, err := f.ledger.Find(t.Context(), adopted.Run); err != nil || record.State != ledger.StateDue || record.Queue != chosen {
		t.Errorf("%+v, %v, want it to be due in the queue %s", record, err, chosen)
	}
	f.start(func(o *worker.Options) { o.Queues = map[string]int{chosen: 1} })
	if record := f.awaitState(adopted.Run, ledger.StateSucceeded); record.Queue != chosen {
		t.Errorf("%+v, want it to have run in the queue %s", record, chosen)
	}
}
