package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/jobs"
	"lockstep/scheduler"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/repeats"
	"lockstep/scheduler/worker"
)

// pushes counts the deliveries that a worker pushes, and slows down each pipeline of them.
type pushes struct {
	queue string
	takes time.Duration
	n     atomic.Int64
}

func (p *pushes) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (p *pushes) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (p *pushes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		n := 0
		for _, command := range commands {
			// evalsha, digest, number of keys: two of the queue, and one for each task
			if args := command.Args(); len(args) > 3 && queue.ScriptNames()[fmt.Sprint(args[1])] == "push" && strings.Contains(fmt.Sprint(args[3]), "{"+p.queue+"}") {
				n += args[2].(int) - 2
			}
		}
		if n > 0 {
			p.n.Add(int64(n))
			timer := time.NewTimer(p.takes)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return next(ctx, commands)
	}
}

// slow gives a worker a client of its own, on which pushes are slow and counted.
func (f *fleet) slow(p *pushes) func(*worker.Options) {
	return func(o *worker.Options) {
		options := *f.rdb.Options()
		rdb := redis.NewClient(&options)
		f.Cleanup(func() { _ = rdb.Close() })
		rdb.AddHook(p)
		o.Redis = rdb
	}
}

// ask records runs that become due as in the request, without delivering them.
func (f *fleet) ask(n int, request ledger.Request) []*ledger.Enqueued {
	f.Helper()
	asked := make([]*ledger.Enqueued, n)
	var next atomic.Int64
	var group errgroup.Group
	for range 16 {
		group.Go(func() error {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				one := request
				one.ID = fmt.Sprint(i)
				var err error
				if asked[i], err = f.ledger.Enqueue(f.Context(), one); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		f.Fatal(err)
	}
	return asked
}

// multiply makes n copies of a scheduled run, all due since the same moment. Requesting each of
// them would take a minute on a busy machine.
func (f *fleet) multiply(run jobs.RunID, n int) {
	f.Helper()
	const script = `
		local record, body = redis.call('HGET', KEYS[1], ARGV[1]), redis.call('HGET', KEYS[2], ARGV[1])
		local own, name = 'xrun:' .. ARGV[1], string.match(body, '\31@(.*)$')
		for i = 1, ARGV[2] - 1 do
			local id = ARGV[1] .. i
			local from, to = string.find(record, own, 1, true)
			redis.call('HSET', KEYS[1], id, string.sub(record, 1, from - 1) .. 'xrun:' .. id .. string.sub(record, to + 1))
			redis.call('HSET', KEYS[2], id, body)
			if name then redis.call('HINCRBY', KEYS[5], '#' .. name, 1) end
			redis.call('ZADD', KEYS[3], 1, id)
			redis.call('ZADD', KEYS[4], 0, ARGV[3] .. id)
		end
		redis.call('ZADD', KEYS[3], 1, ARGV[1])
		return redis.call('ZCARD', KEYS[3])`
	open := fmt.Sprintf("%s\x00%016d\x00", run.Job(), 0)
	keys := []string{f.key("run"), f.key("body"), f.key("timer"), f.key("open"), f.key("defs")}
	made, err := redis.NewScript(script).Run(f.Context(), f.rdb, keys, string(run), n, open).Int()
	if err != nil || made != n {
		f.Fatalf("%d runs are scheduled (%v), want %d", made, err, n)
	}
}

// TestRunsThatAreDueAtOnceArePushedOnce: many runs become due at one instant, and pushing them
// takes longer than a push may stay unconfirmed. The sweep repeats no push that its own process
// still has pending, so each run has one delivery, and all of them run.
func TestRunsThatAreDueAtOnceArePushedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		runs  int
		takes time.Duration // a push of some deliveries
	}{
		"20,000 runs":        {20_000, 100 * time.Millisecond},
		"a very slow pusher": {3_000, 700 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) { testDueAtOnce(t, c.runs, c.takes) })
	}
}

func testDueAtOnce(t *testing.T, runs int, takes time.Duration) {
	f := newFleet(t)
	const spare = 200
	var ran atomic.Int64
	job := f.job("j", func(context.Context, *jobs.Run[struct{}]) error { ran.Add(1); return nil },
		func(j *jobs.Job) { j.History.Runs = 10 })
	pushed := &pushes{queue: f.queue, takes: takes}
	var repeated atomic.Int64
	f.start(f.slow(pushed), quiet, func(o *worker.Options) {
		o.Concurrency = 8
		o.OnRepeated = func(_ string, n int) { repeated.Add(int64(n)) }
	})
	// a new lock space grants nothing at first
	f.awaitState(f.enqueue(job, "first"), ledger.StateSucceeded)
	for _, count := range []*atomic.Int64{&ran, &pushed.n, &repeated} {
		count.Store(0)
	}
	began := time.Now()
	f.multiply(f.ask(1, ledger.Request{Job: job, Trigger: ledger.TriggerEnqueue, In: time.Hour})[0].Run, runs)
	defer func() {
		t.Logf("%d of %d runs ran in %v, by %d deliveries, of which %d were repeated", ran.Load(), runs, time.Since(began), pushed.n.Load(), repeated.Load())
	}()
	const bound = 3 * time.Minute // a busy machine is slow, a livelock never ends
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ran.Load() < int64(runs) {
		<-tick.C
		if n := pushed.n.Load(); n > int64(runs+spare) || time.Since(began) > bound {
			t.Fatalf("after %v %d deliveries were pushed for %d runs, want at most %d, and %d had run", time.Since(began), n, runs, runs+spare, ran.Load())
		}
	}
	if n := repeated.Load(); n > 0 {
		t.Errorf("%d deliveries were repeated, want none", n)
	}
	// some are started without a delivery
	if n := pushed.n.Load(); n < int64(runs-spare) {
		t.Errorf("%d deliveries were seen for %d runs: nothing was tested", n, runs)
	}
}

// quiet keeps the lines of single attempts out of the output.
func quiet(o *worker.Options) { o.Logger = slog.New(slog.DiscardHandler) }

var errKilled = errors.New("the worker was killed")

// killed are the connections of a worker that dies, as Redis sees it, when it sends its first
// claim.
type killed struct {
	claim string // the digest of the script
	dead  atomic.Bool
}

type killedConn struct {
	net.Conn
	*killed
}

func (c killedConn) Write(p []byte) (int, error) {
	if strings.Contains(string(p), c.claim) {
		c.dead.Store(true)
	}
	if c.dead.Load() {
		return 0, errors.Join(errKilled, c.Close())
	}
	return c.Conn.Write(p)
}

func (f *fleet) killedByItsFirstClaim() (*killed, func(*worker.Options)) {
	k := new(killed)
	for digest, name := range ledger.ScriptNames() {
		if name == "claim" {
			k.claim = digest
		}
	}
	return k, func(o *worker.Options) {
		options := *f.rdb.Options()
		dial := net.Dialer{}
		options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
			if k.dead.Load() {
				return nil, errKilled
			}
			conn, err := dial.DialContext(ctx, network, address)
			return killedConn{conn, k}, err
		}
		rdb := redis.NewClient(&options)
		f.Cleanup(func() { _ = rdb.Close() })
		o.Redis = rdb
	}
}

// TestWhatAKilledWorkerHadFetchedIsPushedAgainWhenItsSessionEnds: a worker is killed between a
// fetch and the claim, and its parent ends its session. Another worker finds those deliveries at
// once. No look-up helps it here: all deliveries count as confirmed an hour from now.
func TestWhatAKilledWorkerHadFetchedIsPushedAgainWhenItsSessionEnds(t *testing.T) {
	f := newFleet(t)
	var d done
	job := f.job("j", d.handle)
	const runs = 3
	asked := f.ask(runs, ledger.Request{Job: job, Trigger: ledger.TriggerEnqueue})
	dying, dies := f.killedByItsFirstClaim()
	f.start(func(o *worker.Options) { o.Queues, o.Locks.Name = map[string]int{f.queue + "-other": 1}, "survivor" })
	victim := f.start(dies, quiet, func(o *worker.Options) { o.Locks.Name = "victim" })
	id := f.session(victim)
	for _, one := range asked {
		f.pushAndConfirm(one.Due[0])
		if err := f.rdb.ZAddXX(t.Context(), "{"+f.namespace+"}:sent",
			redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: string(one.Run)}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	f.await("the worker to die with what it has fetched", dying.dead.Load)
	left := f.pending()
	ended := time.Now()
	if err := f.ledger.Space().EndSession(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	const bound = patience
	for f.pending() < runs {
		if time.Since(ended) > bound {
			t.Fatalf("%d deliveries are in the queue %v after the session has ended, and %d were left there: want %d", f.pending(), bound, left, runs)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("pushed again %v after the session had ended", time.Since(ended))
	if first := f.first(); !strings.Contains(first, string(asked[0].Run)) {
		t.Errorf("%q is the first in the queue, want %s", first, asked[0].Run)
	}
	f.start(func(o *worker.Options) { o.Locks.Name = "next" })
	for _, one := range asked {
		if record := f.awaitState(one.Run, ledger.StateSucceeded); len(record.Attempts) != 1 || record.Crashes != 0 {
			t.Errorf("%+v, want one attempt", record)
		}
	}
	dying.dead.Store(false) // it may end its session
}

// TestADeliveryIsOnRecordUntilItsClaimIsAnswered: the reply to the claim is lost, and the claim is
// sent again. If the worker died now, the end of its session would bring the delivery back.
func TestADeliveryIsOnRecordUntilItsClaimIsAnswered(t *testing.T) {
	f := newFleet(t)
	var d done
	job := f.job("j", d.handle)
	claim := ""
	for digest, name := range ledger.ScriptNames() {
		if name == "claim" {
			claim = digest
		}
	}
	// Replies are lost at once: the client stops waiting, and the worker sends the claim again.
	const lossy = 500 * time.Millisecond
	var first, blocked atomic.Int64
	answers := make(chan struct{})
	f.start(quiet, f.lossy(func(request string) bool {
		select {
		case <-answers:
			return false
		default:
			return strings.Contains(request, claim)
		}
	}, func() {
		now := time.Now().UnixNano()
		if !first.CompareAndSwap(0, now) && time.Duration(now-first.Load()) > lossy {
			blocked.Add(1)
			<-answers
		}
	}))
	deliveries, err := queue.New(f.rdb, f.namespace)
	if err != nil {
		t.Fatal(err)
	}
	onRecord := func() int {
		fetched, err := deliveries.Fetched(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(fetched)
	}
	run := f.enqueue(job, "1")
	f.await("the claim to be sent again", func() bool { return blocked.Load() > 0 })
	// Records of handled deliveries are removed every 2 s.
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if onRecord() == 0 {
			close(answers)
			t.Fatal("the delivery is on record no more, while its claim is not answered")
		}
	}
	close(answers)
	f.awaitState(run, ledger.StateSucceeded)
	f.await("the record to be removed", func() bool { return onRecord() == 0 })
}

// pending returns how many deliveries are in the queue.
func (f *fleet) pending() int {
	f.Helper()
	n, err := f.rdb.LLen(f.Context(), "asynq:{"+f.queue+"}:pending").Result()
	if err != nil {
		f.Fatal(err)
	}
	return int(n)
}

// first returns the ID of the first delivery in the queue.
func (f *fleet) first() string {
	f.Helper()
	id, err := f.rdb.LIndex(f.Context(), "asynq:{"+f.queue+"}:pending", -1).Result()
	if err != nil {
		f.Fatal(err)
	}
	return id
}

// TestManyLostDeliveriesAreRepeatedInBatches: the queue has lost the deliveries of many runs. All
// that are pushed again are counted. The log has one line for the first batch, and then one every
// 10 seconds at most, which replaces those of other batches and has the number so far.
func TestManyLostDeliveriesAreRepeatedInBatches(t *testing.T) {
	f := newFleet(t)
	const runs = 4000
	var ran sync.Map
	var n atomic.Int64
	job := f.job("j", func(_ context.Context, r *jobs.Run[struct{}]) error {
		if _, twice := ran.LoadOrStore(r.ID(), true); twice {
			t.Errorf("run %s ran twice", r.ID())
		}
		n.Add(1)
		return nil
	}, func(j *jobs.Job) { j.History.Runs = 10 })
	asked := f.ask(runs, ledger.Request{Job: job, Trigger: ledger.TriggerEnqueue})
	var due []ledger.Due
	for _, one := range asked {
		due = append(due, one.Due...)
	}
	for len(due) > 0 {
		some := due[:min(len(due), 500)]
		if err := f.ledger.Confirm(t.Context(), some); err != nil {
			t.Fatal(err)
		}
		due = due[len(some):]
	}
	var (
		log     logged
		mu      sync.Mutex
		batches = make(map[string]int) // by reason; guarded by mu
		counted = make(map[string]int) // deliveries, by reason; guarded by mu
	)
	began := time.Now()
	w := f.start(func(o *worker.Options) {
		o.Concurrency = 16
		o.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		o.OnRepeated = func(reason string, n int) {
			mu.Lock()
			defer mu.Unlock()
			batches[reason]++
			counted[reason] += n
		}
	})
	const bound = 5 * time.Minute // a busy machine is slow, a livelock never ends
	for n.Load() < runs {
		if time.Since(began) > bound {
			t.Fatalf("%d of %d runs whose deliveries were lost have run after %v", n.Load(), runs, bound)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("all had run after %v", time.Since(began))
	w.stop() // it writes the lines that are still counted
	most := 2 + int(time.Since(began)/repeats.Every)
	t.Logf("counted by reason: %v deliveries in %v batches", counted, batches)
	// Some are started without a delivery.
	if n := counted[scheduler.Lost]; n < runs/2 {
		t.Errorf("%d lost deliveries were counted, want most of %d", n, runs)
	}
	lines := make(map[string][]logLine)
	for _, line := range log.about(t, "deliveries are pushed again") {
		lines[line.Reason] = append(lines[line.Reason], line)
	}
	for _, reason := range scheduler.Reasons {
		replaced, last := 0, 0
		for _, line := range lines[reason] {
			replaced, last = replaced+max(line.Repeated, 1), line.SinceStart
		}
		if n := len(lines[reason]); n > most || replaced != batches[reason] || last != counted[reason] {
			t.Errorf("%s: %d lines for %d batches, the last with %d deliveries; want %d lines at most for %d batches, and %d deliveries",
				reason, n, replaced, last, most, batches[reason], counted[reason])
		}
	}
}
