package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
)

// early reports whether a script was assembled before main.
var early bool

func TestMain(m *testing.M) {
	early = space.Assembled()
	redistest.Main(m)
}

// TestNoScriptIsAssembledBeforeMain: many processes send none, such as the guard of each command.
func TestNoScriptIsAssembledBeforeMain(t *testing.T) {
	t.Parallel()
	if early {
		t.Error("a package variable assembles a script")
	}
	if ledger.ScriptNames(); !space.Assembled() {
		t.Error("assembled scripts are not noticed")
	}
}

// fixture is a namespace of its own with a ledger in it.
type fixture struct {
	*testing.T
	rdb       *redis.Client
	namespace string
	*ledger.Ledger
	job   *jobs.Job     // "j", every second, overlap queue
	lease time.Duration // of the sessions; 0: the default
}

// each runs a test on redis-server and on miniredis.
func each(t *testing.T, test func(f *fixture)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, withFixture(test))
}

// large runs a test at a size that hurts: see [redistest.Large].
func large(t *testing.T, test func(f *fixture)) {
	t.Helper()
	t.Parallel()
	redistest.Large(t, withFixture(test))
}

func withFixture(test func(f *fixture)) func(t *testing.T, rdb *redis.Client) {
	return func(t *testing.T, rdb *redis.Client) {
		namespace := redistest.Namespace(t)
		space, err := locks.NewSpace(rdb, namespace)
		if err != nil {
			t.Fatal(err)
		}
		// No session renews itself while a test that takes long removes what it has stored: a
		// renewal would begin a grace period of its own.
		test(&fixture{T: t, rdb: rdb, namespace: namespace, Ledger: ledger.New(rdb, space), job: newJob("j"), lease: 10 * time.Minute})
	}
}

// now returns the time of the server.
func (f *fixture) now() time.Time {
	f.Helper()
	now, err := f.rdb.Time(f.Context()).Result()
	if err != nil {
		f.Fatal(err)
	}
	return now
}

// nextMillisecond waits until the server's time is in another millisecond: stored times that are
// taken afterward are later than those before.
func (f *fixture) nextMillisecond() {
	f.Helper()
	for first := f.now().UnixMilli(); f.now().UnixMilli() == first; {
		continue
	}
}

func newJob(name string) *jobs.Job {
	return &jobs.Job{
		Name: name, Every: time.Second, Queue: "default", Command: []string{"true"},
		Overlap: jobs.OverlapQueue, MaxQueued: 10, OnMissed: jobs.MissedAll, OnCrash: jobs.CrashRerun, MaxCrashes: 3,
		Retry: jobs.Retry{Max: 3, Backoff: jobs.BackoffFixed, Initial: time.Second}, History: jobs.History{Runs: 1000, For: time.Hour},
	}
}

// session opens a worker's session.
func (f *fixture) session(name string) *locks.Client {
	f.Helper()
	client, err := locks.Open(f.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: name, Lease: f.lease, Grace: -1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(f.Context()), 10*time.Second)
		defer cancel()
		if err := client.Close(ctx); err != nil {
			f.Error(err)
		}
	})
	return client
}

// older opens a session of a build that can only write format 1. It returns a function that ends
// the session and opens another one.
func (f *fixture) older() (leave func()) {
	f.Helper()
	client := f.session("older")
	meta := f.key("meta")
	if err := f.rdb.HSet(f.Context(), meta, "format", 1, "least_format", 1, "card:"+string(client.Session()), `{"format":1}`).Err(); err != nil {
		f.Fatal(err)
	}
	return func() {
		f.Helper()
		f.end(client)
		f.session("newer") // which raises the format
		if format := f.rdb.HGet(f.Context(), meta, "format").Val(); format != "2" {
			f.Fatalf("format %s is written, want 2", format)
		}
	}
}

// end makes a session end now, as if its lease had expired.
func (f *fixture) end(client *locks.Client) {
	f.Helper()
	err := f.rdb.ZAddXX(f.Context(), f.key("exp"), redis.Z{Score: 1, Member: "s" + string(client.Session())}).Err()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) key(name string) string { return "{" + f.namespace + "}:" + name }

// register makes a definition the active one of its job, if its trigger is that of the one before.
func (f *fixture) register(job *jobs.Job) *ledger.Registered {
	f.Helper()
	registered, err := f.Register(f.Context(), "config", []*jobs.Job{job})
	if err != nil {
		f.Fatal(err)
	}
	return registered
}

// cursor registers the job and sets its cursor back by a number of ticks of one second.
func (f *fixture) cursor(job *jobs.Job, back int) time.Time {
	f.Helper()
	registered := f.register(job)
	cursor := registered.Now.Truncate(time.Second).Add(-time.Duration(back) * time.Second)
	if err := f.rdb.HSet(f.Context(), f.key("cursor"), job.Name, cursor.UnixMilli()).Err(); err != nil {
		f.Fatal(err)
	}
	return cursor
}

// tick creates the next n ticks of one second after a cursor, by the definition as it is now.
func (f *fixture) tick(job *jobs.Job, cursor time.Time, n int, verdict ledger.Verdict) ledger.Created {
	f.Helper()
	f.register(job)
	var ticks []ledger.Tick
	for i := range n {
		ticks = append(ticks, ledger.Tick{At: cursor.Add(time.Duration(i+1) * time.Second), Verdict: verdict})
	}
	created := f.Create(f.Context(), []ledger.Decision{{Job: job, Seen: cursor, Cursor: ticks[n-1].At, Ticks: ticks, By: "me.1"}})[0]
	if created.Err != nil {
		f.Fatal(created.Err)
	}
	return created
}

// run creates one due run of the fixture's job.
func (f *fixture) run() ledger.Due {
	f.Helper()
	created := f.tick(f.job, f.cursor(f.job, 5), 1, ledger.VerdictRun)
	if len(created.Due) != 1 {
		f.Fatalf("created %+v, want one run", created)
	}
	return created.Due[0]
}

// attempt is a claim that was granted.
type attempt struct {
	*ledger.Claimed
	request *locks.Request
	client  *locks.Client
}

func (a attempt) token() locks.Token { return a.Record.Last().Token }

func (f *fixture) request(client *locks.Client) *locks.Request {
	f.Helper()
	request, err := client.Extension().Begin()
	if err != nil {
		f.Fatal(err)
	}
	return request
}

func (f *fixture) claim(client *locks.Client, due ledger.Due, want ledger.ClaimOutcome) attempt {
	f.Helper()
	a := attempt{request: f.request(client), client: client}
	var err error
	if a.Claimed, err = f.Claim(f.Context(), a.request, due, 0, nil); err != nil {
		f.Fatal(err)
	}
	if a.Outcome != want {
		f.Fatalf("claim of %+v: %s, want %s", due, a.Outcome, want)
	}
	if want != ledger.ClaimGranted {
		a.request.Drop()
	}
	return a
}

func (f *fixture) finish(a attempt, outcome ledger.Outcome, want ledger.FinishVerdict) *ledger.Finished {
	f.Helper()
	finished, err := f.Finish(f.Context(), ledger.Finish{
		Run: a.Record.ID, Job: a.Job, Token: a.token(), Hold: a.request.ID(), Outcome: outcome, Pause: time.Millisecond,
		Error: "it said: \"no\"\n", Output: "out of " + string(outcome),
	})
	if err != nil {
		f.Fatal(err)
	}
	if finished.Verdict != want {
		f.Fatalf("finish %s of %s: %s, want %s", outcome, a.Record.ID, finished.Verdict, want)
	}
	return finished
}

func (f *fixture) sweep() *ledger.Sweep {
	f.Helper()
	sweep, err := f.Sweep(f.Context(), ledger.SweepLimits{Most: 100, Unconfirmed: time.Hour})
	if err != nil {
		f.Fatal(err)
	}
	return sweep
}

// crash reports the death of a session's process, as its parent does, and closes the attempts under
// it, as a sweep does.
func (f *fixture) crash(client *locks.Client) []ledger.Due {
	f.Helper()
	if err := f.Died(f.Context(), client.Session()); err != nil {
		f.Fatal(err)
	}
	return f.loseLease(client)
}

// loseLease ends a session and closes the attempts under it, as a sweep does.
func (f *fixture) loseLease(client *locks.Client) []ledger.Due {
	f.Helper()
	f.end(client)
	var due []ledger.Due
	for _, dead := range f.sweep().Dead {
		job, err := f.Definition(f.Context(), dead.Run)
		if err != nil {
			f.Fatal(err)
		}
		closed, err := f.Crash(f.Context(), dead, job)
		if err != nil {
			f.Fatal(err)
		}
		if closed != nil {
			due = append(due, closed.Due...)
		}
	}
	return due
}

// await sweeps until something is due.
func (f *fixture) await() []ledger.Due {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if due := f.sweep().Due; len(due) > 0 {
			return due
		}
	}
	f.Fatal("nothing came due")
	return nil
}

func (f *fixture) find(id jobs.RunID) *ledger.Record {
	f.Helper()
	record, _, err := f.Find(f.Context(), id)
	if err != nil {
		f.Fatal(err)
	}
	return record
}

func (f *fixture) wantState(id jobs.RunID, want ledger.State) *ledger.Record {
	f.Helper()
	record := f.find(id)
	if record.State != want {
		f.Fatalf("run %s is %s (%s), want %s", id, record.State, record.Reason, want)
	}
	return record
}

// wantNothingLeft checks that no key of the lock space or the ledger names a run or a hold any
// more.
func (f *fixture) wantNothingLeft() {
	f.Helper()
	f.wantDefinitions("nothing is left", 0)
	for _, hash := range []string{"own", "wait", "run", "body", "log"} {
		if left, err := f.rdb.HGetAll(f.Context(), f.key(hash)).Result(); err != nil || len(left) > 0 {
			f.Errorf("%s: %q, %v, want nothing", hash, left, err)
		}
	}
	for _, zset := range []string{"hold", "q", "idx", "timer", "ready", "push", "sent", "busy", "open", "late", "ask", "died"} {
		left, err := f.rdb.ZRange(f.Context(), f.key(zset), 0, -1).Result()
		// of sessions
		left = slices.DeleteFunc(left, func(member string) bool { return strings.HasPrefix(member, "~l") })
		if err != nil || len(left) > 0 {
			f.Errorf("%s: %q, %v, want nothing", zset, left, err)
		}
	}
}

func TestATickIsCreatedOnceByTheFirstWorker(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.cursor(f.job, 5)
		first, second := f.tick(f.job, cursor, 2, ledger.VerdictRun), f.tick(f.job, cursor, 2, ledger.VerdictRun)
		if len(first.Due) != 2 || first.Moved {
			f.Errorf("first: %+v, want two runs", first)
		}
		if !second.Moved || len(second.Due) != 0 || !second.Cursor.Equal(first.Cursor) {
			f.Errorf("second: %+v, want it refused, with the cursor at %v", second, first.Cursor)
		}
		records, err := f.Outstanding(f.Context(), "j", 0)
		if err != nil || len(records) != 2 {
			f.Fatalf("%d outstanding runs, %v, want 2", len(records), err)
		}
		if id := jobs.TickRunID("j", cursor.Add(time.Second)); records[0].ID != id || records[0].State != ledger.StateDue {
			f.Errorf("first run is %s, %s, want %s, due", records[0].ID, records[0].State, id)
		}
	})
}

func TestATickThatHasNotComeIsRefusedAndNothingChanges(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.cursor(f.job, 0)
		if created := f.tick(f.job, cursor, 3600, ledger.VerdictRun); !created.Early {
			f.Errorf("%+v, want it refused as early", created)
		}
		record, err := f.Job(f.Context(), "j")
		if err != nil || !record.Cursor.Equal(cursor) {
			f.Errorf("cursor %v, %v, want %v", record.Cursor, err, cursor)
		}
	})
}

func TestNothingIsCreatedOrClaimedInAGraceTime(t *testing.T) {
	each(t, func(f *fixture) {
		client, run, cursor := f.session("w"), f.run(), f.cursor(f.job, 5)
		// As after a loss of data: the grace period ends in an hour, and is first on the timer
		// wheel.
		until := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
		if err := f.rdb.HSet(f.Context(), f.key("meta"), "grace", until).Err(); err != nil {
			f.Fatal(err)
		}
		if err := f.rdb.ZAdd(f.Context(), f.key("exp"), redis.Z{Member: "e"}).Err(); err != nil {
			f.Fatal(err)
		}
		if created := f.tick(f.job, cursor, 1, ledger.VerdictRun); created.Grace < 59*time.Minute {
			f.Errorf("%+v, want it refused for an hour", created)
		}
		if refused := f.claim(client, run, ledger.ClaimLater); len(refused.Due) != 0 {
			f.Errorf("got %+v to push, want the sweep to do it", refused.Due)
		}
		f.claim(client, run, ledger.ClaimStale) // it has the next n
		swept, err := f.Sweep(f.Context(), ledger.SweepLimits{Most: 100})
		if err != nil || len(swept.Due) != 1 {
			f.Fatalf("swept %+v, %v, want the run", swept, err)
		}
		if err := f.rdb.HSet(f.Context(), f.key("meta"), "grace", 1).Err(); err != nil {
			f.Fatal(err)
		}
		f.claim(client, swept.Due[0], ledger.ClaimGranted)
		if created := f.tick(f.job, cursor, 1, ledger.VerdictRun); len(created.Due) != 1 {
			f.Errorf("%+v after the grace time, want a run", created)
		}
	})
}

func TestOverlapSkipsATickWithItsReason(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapSkip
		created := f.tick(f.job, f.cursor(f.job, 5), 2, ledger.VerdictRun)
		if len(created.Due) != 1 {
			f.Fatalf("%d runs are due, want 1", len(created.Due))
		}
		history, err := f.History(f.Context(), "j", 0)
		if err != nil || len(history) != 1 {
			f.Fatalf("history %v, %v, want one entry", history, err)
		}
		want := fmt.Sprintf("overlap: skip; %s is due", created.Due[0].Run)
		if history[0].State != ledger.StateSkipped || history[0].Reason != want {
			f.Errorf("%s (%s), want skipped (%s)", history[0].State, history[0].Reason, want)
		}
	})
}

func TestOverlapQueuesOnlySoMany(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.MaxQueued = 2
		worker := f.session("w")
		cursor := f.cursor(f.job, 9)
		created := f.tick(f.job, cursor, 1, ledger.VerdictRun)
		f.claim(worker, created.Due[0], ledger.ClaimGranted)
		// One runs, which does not count; two may wait.
		if created = f.tick(f.job, created.Cursor, 4, ledger.VerdictRun); len(created.Due) != 2 {
			f.Errorf("%d runs are due, want 2", len(created.Due))
		}
		history, err := f.History(f.Context(), "j", 0)
		if err != nil || len(history) != 2 || !strings.Contains(history[0].Reason, "2 runs wait already") {
			f.Errorf("history %+v, %v, want two skipped for the two that wait", history, err)
		}
	})
}

func TestCaughtUpTicksAreNotSkippedForEachOther(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapSkip
		if created := f.tick(f.job, f.cursor(f.job, 9), 3, ledger.VerdictCatchUp); len(created.Due) != 3 {
			f.Errorf("%d runs are due, want 3", len(created.Due))
		}
	})
}

func TestARunGoesItsWay(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Args = []byte(` {"a": "b\u001f"} `)
		f.job.Lock.Exclusive = []string{"bill:1"}
		due := f.run()
		a := f.claim(f.session("w"), due, ledger.ClaimGranted)
		if string(a.Args) != `{"a":"b\u001f"}` || a.Job.Name != "j" || a.Record.Attempts[0].Number != 1 {
			f.Errorf("claimed %s %s attempt %d", a.Args, a.Job.Name, a.Record.Attempts[0].Number)
		}
		var names []string
		for _, item := range a.Items {
			names = append(names, item.Name)
		}
		slices.Sort(names)
		if want := []string{"bill:1", "job:j", "run:" + string(due.Run)}; !slices.Equal(names, want) {
			f.Errorf("holds %q, want %q", names, want)
		}
		f.wantState(due.Run, ledger.StateRunning)
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		record, output, err := f.Find(f.Context(), due.Run)
		if err != nil {
			f.Fatal(err)
		}
		if record.State != ledger.StateSucceeded || output != "out of succeeded" || record.Finished.Before(record.Started) {
			f.Errorf("%+v, output %q", record, output)
		}
		if len(record.Attempts) != 1 || record.Attempts[0].Outcome != "succeeded" || record.Attempts[0].Token != a.token() {
			f.Errorf("attempts %+v, want the one that succeeded", record.Attempts)
		}
		f.wantNothingLeft()
	})
}

func TestOneOfManyClaimsStartsTheAttempt(t *testing.T) {
	each(t, func(f *fixture) {
		due := f.run()
		a := f.claim(f.session("a"), due, ledger.ClaimGranted)
		b := f.session("b")
		f.claim(b, due, ledger.ClaimStale)
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.claim(b, due, ledger.ClaimStale) // a late copy of the delivery: finished means finished
		f.claim(b, ledger.Due{Run: due.Run, N: due.N + 1}, ledger.ClaimStale)
		f.wantNothingLeft()
	})
}

func TestAClaimSentAgainGetsTheSameReply(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.claim(f.session("a"), f.run(), ledger.ClaimGranted)
		again, err := f.Claim(f.Context(), a.request, ledger.Due{Run: a.Record.ID, N: 1}, 0, nil)
		if err != nil || again.Outcome != ledger.ClaimGranted || (attempt{Claimed: again}).token() != a.token() {
			f.Errorf("%+v, %v, want it granted under token %v", again, err, a.token())
		}
	})
}

func TestAClaimNamesTheCurrentDelivery(t *testing.T) {
	each(t, func(f *fixture) {
		due := f.run()
		again, err := f.Repush(f.Context(), due)
		if err != nil || len(again) != 1 || again[0].N != due.N+1 {
			f.Fatalf("pushed again as %+v, %v, want n %d", again, err, due.N+1)
		}
		if twice, err := f.Repush(f.Context(), due); err != nil || len(twice) != 0 {
			f.Errorf("a delivery was repeated twice: %+v, %v", twice, err)
		}
		w := f.session("w")
		f.claim(w, due, ledger.ClaimStale)
		f.claim(w, again[0], ledger.ClaimGranted)
	})
}

func TestAnEndedSessionClaimsNothing(t *testing.T) {
	each(t, func(f *fixture) {
		due, w := f.run(), f.session("w")
		request := f.request(w)
		f.end(w)
		claimed, err := f.Claim(f.Context(), request, due, 0, nil)
		if err != nil || claimed.Outcome != ledger.ClaimSessionEnded {
			f.Errorf("%+v, %v, want the session dead", claimed, err)
		}
		f.wantState(due.Run, ledger.StateDue)
	})
}

func TestARunThatWaitsIsOfferedItsBundleByTheReleaseOfALibraryLock(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Lock.Exclusive = []string{"bill:1"}
		due, w := f.run(), f.session("w")
		hold, err := w.TryAcquire(f.Context(), locks.Exclusive("bill:1"))
		if err != nil {
			f.Fatal(err)
		}
		a := f.claim(w, due, ledger.ClaimWaiting)
		if a.Busy.Resource != "bill:1" || a.Busy.Hold != hold.ID() {
			f.Errorf("busy %+v, want bill:1 held by %s", a.Busy, hold.ID())
		}
		f.claim(w, due, ledger.ClaimStale) // its delivery is over
		f.wantState(due.Run, ledger.StateWaiting)
		if err := hold.Release(); err != nil {
			f.Fatal(err)
		}
		offered := f.sweep().Due
		if len(offered) != 1 || offered[0].Run != due.Run {
			f.Fatalf("offered %+v, want %s", offered, due.Run)
		}
		if _, err := w.TryAcquire(f.Context(), locks.Exclusive("bill:1")); !errors.Is(err, locks.ErrBusy) {
			f.Errorf("a bundle on offer was given to somebody else: %v", err)
		}
		f.finish(f.claim(w, offered[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

func TestAFinishPassesTheLockToTheNextRunInTheSameStep(t *testing.T) {
	each(t, func(f *fixture) {
		created := f.tick(f.job, f.cursor(f.job, 9), 3, ledger.VerdictRun)
		w := f.session("w")
		a := f.claim(w, created.Due[0], ledger.ClaimGranted)
		f.claim(w, created.Due[1], ledger.ClaimWaiting)
		f.claim(w, created.Due[2], ledger.ClaimWaiting)
		for _, next := range []int{1, 2} {
			finished := f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
			if len(finished.Due) != 1 || finished.Due[0].Run != created.Due[next].Run {
				f.Fatalf("due %+v, want %s", finished.Due, created.Due[next].Run)
			}
			a = f.claim(w, finished.Due[0], ledger.ClaimGranted)
		}
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

func TestTicksOfOneJobBeginInTheirOrder(t *testing.T) {
	each(t, func(f *fixture) {
		created := f.tick(f.job, f.cursor(f.job, 9), 4, ledger.VerdictRun)
		w := f.session("w")
		// The last delivery comes first.
		due := f.claim(w, created.Due[3], ledger.ClaimBehind).Due
		for i := range 3 {
			f.claim(w, created.Due[i], ledger.ClaimStale) // they wait in front of it
		}
		for i := range 4 {
			if len(due) != 1 || due[0].Run != created.Due[i].Run {
				f.Fatalf("due %+v, want %s", due, created.Due[i].Run)
			}
			due = f.finish(f.claim(w, due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded).Due
		}
		f.wantNothingLeft()
	})
}

func TestAnOfferThatLapsesLeavesTheRunItsTicketAndDelivery(t *testing.T) {
	each(t, func(f *fixture) {
		created := f.tick(f.job, f.cursor(f.job, 9), 3, ledger.VerdictRun)
		w := f.session("w")
		a := f.claim(w, created.Due[0], ledger.ClaimGranted)
		f.claim(w, created.Due[1], ledger.ClaimWaiting)
		f.claim(w, created.Due[2], ledger.ClaimWaiting)
		first := f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded).Due[0]
		// No worker takes it: the offer expires, and the next one in line is offered the bundle.
		if err := f.rdb.ZAddXX(f.Context(), f.key("exp"), redis.Z{Score: 1, Member: "o+" + string(first.Run)}).Err(); err != nil {
			f.Fatal(err)
		}
		second := f.sweep().Due
		if len(second) != 1 || second[0].Run != created.Due[2].Run {
			f.Fatalf("offered %+v, want %s", second, created.Due[2].Run)
		}
		// The older ticket beats the younger one's untaken offer, under its old delivery.
		a = f.claim(w, first, ledger.ClaimGranted)
		f.claim(w, second[0], ledger.ClaimWaiting)
		last := f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded).Due
		f.finish(f.claim(w, last[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

func TestAFailedAttemptIsRetriedAfterItsPause(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		a := f.claim(w, f.run(), ledger.ClaimGranted)
		f.finish(a, ledger.OutcomeRetry, ledger.FinishRecorded)
		f.finish(a, ledger.OutcomeRetry, ledger.FinishCounted) // sent again: it counts once
		record := f.wantState(a.Record.ID, ledger.StateRetrying)
		if record.Fails != 1 || record.Attempts[0].Error != "it said: \"no\"\n" || record.At.IsZero() {
			f.Errorf("%+v, want one failure with its error, and the time of the next attempt", record)
		}
		b := f.claim(w, f.await()[0], ledger.ClaimGranted)
		if b.token() <= a.token() || b.Record.Last().Number != 2 || b.Record.Fails != 1 {
			f.Errorf("second attempt %+v, want number 2 with a higher token", b.Record)
		}
		f.finish(b, ledger.OutcomeFailure, ledger.FinishRecorded)
		if record := f.wantState(a.Record.ID, ledger.StateFailed); record.Fails != 2 || len(record.Attempts) != 2 {
			f.Errorf("%+v, want two failed attempts", record)
		}
		f.wantNothingLeft()
	})
}

func TestAHandBackCountsNothing(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		a := f.claim(w, f.run(), ledger.ClaimGranted)
		f.finish(a, ledger.OutcomeHandBack, ledger.FinishRecorded)
		record := f.find(a.Record.ID)
		if record.Fails != 0 || record.Crashes != 0 || len(record.Attempts) != 1 || record.State != ledger.StateScheduled {
			f.Errorf("%+v, want it scheduled with nothing counted", record)
		}
		f.finish(f.claim(w, f.await()[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

func TestACrashIsNotARetry(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.claim(f.session("a"), f.run(), ledger.ClaimGranted)
		b := f.session("b")
		due := f.crash(a.client)
		if len(due) != 1 {
			f.Fatalf("due after the crash: %+v, want the run", due)
		}
		next := f.claim(b, due[0], ledger.ClaimGranted)
		if next.token() <= a.token() {
			f.Errorf("token %v after %v, want it to grow", next.token(), a.token())
		}
		if record := f.find(a.Record.ID); record.Crashes != 1 || record.Fails != 0 || record.Attempts[0].Outcome != "crashed" {
			f.Errorf("%+v, want one crash and no failure", record)
		}
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishFenced) // the first worker was only paused
		f.finish(next, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.finish(a, ledger.OutcomeFailure, ledger.FinishFenced)
		f.wantNothingLeft()
	})
}

func TestASuccessAfterTheCountedCrashStandsUntilAnotherAttemptBegins(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.claim(f.session("a"), f.run(), ledger.ClaimGranted)
		due := f.crash(a.client)
		f.finish(a, ledger.OutcomeFailure, ledger.FinishCounted)
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		record := f.wantState(a.Record.ID, ledger.StateSucceeded)
		if record.Reason == "" || len(record.Attempts) != 1 {
			f.Errorf("%+v, want the late success marked, and no attempt counted twice", record)
		}
		f.claim(f.session("b"), due[0], ledger.ClaimStale)
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

func TestPlainClaimsPassNoWaiterThatMustNotBePassed(t *testing.T) {
	each(t, func(f *fixture) {
		client := f.session("w")
		hold, err := client.TryAcquire(f.Context(), locks.Exclusive("bill:1"))
		if err != nil {
			f.Fatal(err)
		}
		claim := func(ids ...string) []ledger.Claim {
			claims := make([]ledger.Claim, len(ids))
			for i, id := range ids {
				claims[i] = ledger.Claim{Request: f.request(client), Due: f.billed(id, "bill:2")}
			}
			return claims
		}
		first, err := f.ClaimSound(f.Context(), f.request(client), f.billed("first", "bill:1", "bill:2"), 0, nil)
		if err != nil || first.Outcome != ledger.ClaimWaiting {
			f.Fatalf("the first: %+v, %v, want it to wait", first, err)
		}
		for _, claims := range [][]ledger.Claim{claim("alone"), claim("together", "beside")} {
			for i, claimed := range f.ClaimAll(f.Context(), claims, 0) {
				if claimed == nil || claimed.Outcome != ledger.ClaimWaiting {
					f.Errorf("%s: %+v, want it to wait behind the first", claims[i].Due.Run, claimed)
				}
			}
		}
		if err := hold.Release(); err != nil {
			f.Error(err)
		}
	})
}

func TestALateSuccessFreesNoOtherLocks(t *testing.T) {
	each(t, func(f *fixture) {
		dead, other := f.session("dead"), f.session("other")
		late, together := f.billed("late", "bill:1"), f.billed("together", "bill:2")
		attempts := []attempt{f.claim(dead, late, ledger.ClaimGranted), f.claim(dead, together, ledger.ClaimGranted)}
		f.end(dead)
		// which reaps what is due
		hold, err := other.TryAcquire(f.Context(), locks.Exclusive("bill:1", "bill:2"))
		if err != nil {
			f.Fatal(err)
		}
		finishes := make([]ledger.Finish, len(attempts))
		for i, a := range attempts {
			finishes[i] = ledger.Finish{Run: a.Record.ID, Job: a.Job, Token: a.token(), Hold: a.request.ID(), Outcome: ledger.OutcomeSuccess}
		}
		if finished, err := f.Finish(f.Context(), finishes[0]); err != nil || finished.Verdict != ledger.FinishRecorded {
			f.Errorf("the late success: %+v, %v, want it recorded", finished, err)
		}
		for _, finished := range f.FinishAll(f.Context(), finishes) {
			if finished == nil || finished.Verdict != ledger.FinishRecorded {
				f.Errorf("together: %+v, want it recorded", finished)
			}
		}
		for _, bill := range hold.Names() {
			if owner := f.rdb.HGet(f.Context(), f.key("own"), bill).Val(); owner != "x"+string(hold.ID()) {
				f.Errorf("%s is %q, want it held by %s", bill, owner, hold.ID())
			}
		}
	})
}

func TestAPoisonJobEndsAfterMaxCrashes(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.MaxCrashes = 2
		a := f.claim(f.session("a"), f.run(), ledger.ClaimGranted)
		a = f.claim(f.session("b"), f.crash(a.client)[0], ledger.ClaimGranted)
		if due := f.crash(a.client); len(due) != 0 {
			f.Errorf("due after the last crash: %+v", due)
		}
		if record := f.wantState(a.Record.ID, ledger.StateFailed); record.Crashes != 2 || !strings.Contains(record.Reason, "max_crashes") {
			f.Errorf("%+v, want it failed by its crashes", record)
		}
		f.wantNothingLeft()
	})
}

func TestAnAttemptUnderALiveSessionIsNotClosed(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.claim(f.session("a"), f.run(), ledger.ClaimGranted)
		closed, err := f.Crash(f.Context(), ledger.Dead{Run: a.Record.ID, Token: a.token(), Job: "j"}, f.job)
		if err != nil || closed != nil {
			f.Errorf("%+v, %v, want nothing", closed, err)
		}
		f.wantState(a.Record.ID, ledger.StateRunning)
	})
}

func TestAnAbandonedRunIsLost(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.OnCrash = jobs.CrashAbandon
		a := f.claim(f.session("a"), f.run(), ledger.ClaimGranted)
		if due := f.crash(a.client); len(due) != 0 {
			f.Errorf("due: %+v, want nothing", due)
		}
		f.wantState(a.Record.ID, ledger.StateLost)
		f.wantNothingLeft()
	})
}

func TestAnUnconfirmedPushIsRepeated(t *testing.T) {
	each(t, func(f *fixture) {
		due := f.run()
		at := func(unconfirmed time.Duration) *ledger.Sweep {
			sweep, err := f.Sweep(f.Context(), ledger.SweepLimits{Most: 10, Unconfirmed: unconfirmed})
			if err != nil {
				f.Fatal(err)
			}
			return sweep
		}
		if sweep := at(time.Hour); len(sweep.Due) != 0 {
			f.Fatalf("repeated at once: %+v", sweep.Due)
		}
		sweep := at(0)
		repeated := sweep.Due
		if len(repeated) != 1 || repeated[0].N != due.N+1 || sweep.Repeated != 1 {
			f.Fatalf("repeated %+v (%d), want n %d", repeated, sweep.Repeated, due.N+1)
		}
		if err := f.Confirm(f.Context(), []ledger.Due{due, repeated[0]}); err != nil {
			f.Fatal(err)
		}
		if sweep := at(0); len(sweep.Due) != 0 {
			f.Errorf("due %+v, want nothing: it is confirmed", sweep.Due)
		}
		sent, err := f.Sent(f.Context(), 10, 0)
		if err != nil {
			f.Fatal(err)
		}
		if sent.All != 1 || len(sent.LookUp) != 1 || sent.LookUp[0] != repeated[0] {
			f.Errorf("to look up %+v, want only %+v", sent, repeated[0])
		}
		if sent, err := f.Sent(f.Context(), 10, time.Hour); err != nil || len(sent.LookUp) != 0 {
			f.Errorf("to look up at once: %+v, %v", sent, err)
		}
	})
}

// TestASweepRepeatsNoPushThatItsProcessStillHas: a push that waits in the sweeping process keeps
// its n, whatever its age, and counts as unconfirmed from then on.
func TestASweepRepeatsNoPushThatItsProcessStillHas(t *testing.T) {
	each(t, func(f *fixture) {
		waits, lost := f.billed("a", "bill:1"), f.billed("b", "bill:2")
		aged := redis.Z{Score: 1, Member: string(waits.Run)}
		if err := f.rdb.ZAddXX(f.Context(), f.key("push"), aged, redis.Z{Score: 1, Member: string(lost.Run)}).Err(); err != nil {
			f.Fatal(err)
		}
		sweep := func(room int) []ledger.Due {
			f.Helper()
			sweep, err := f.Sweep(f.Context(), ledger.SweepLimits{Most: 10, Unconfirmed: time.Hour, Room: func() int { return room },
				Pending: func(d ledger.Due) bool { return d == waits }})
			if err != nil {
				f.Fatal(err)
			}
			return sweep.Due
		}
		if due := sweep(0); len(due) != 0 {
			f.Fatalf("due %+v, want nothing: there is no room", due)
		}
		if due := sweep(10); len(due) != 1 || due[0].Run != lost.Run || due[0].N != lost.N+1 {
			f.Fatalf("due %+v, want %s under n %d alone", due, lost.Run, lost.N+1)
		}
		if score := f.rdb.ZScore(f.Context(), f.key("push"), string(waits.Run)).Val(); score == 1 {
			f.Errorf("its push still counts as unconfirmed for long: the next sweep would list it again")
		}
		f.claim(f.session("a"), waits, ledger.ClaimGranted)
	})
}

func TestARequestAskedForTwiceIsOneRun(t *testing.T) {
	each(t, func(f *fixture) {
		ask := func() *ledger.Enqueued {
			f.Helper()
			enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: "x", Trigger: ledger.TriggerEnqueue, Named: true})
			if err != nil {
				f.Fatal(err)
			}
			return enqueued
		}
		first := ask()
		if first.Run != "j#x" || first.Exists || len(first.Due) != 1 {
			f.Fatalf("%+v, want run j#x due", first)
		}
		if again := ask(); !again.Exists || again.State != ledger.StateDue || len(again.Due) != 0 {
			f.Errorf("%+v, want it there, due", again)
		}
		f.finish(f.claim(f.session("w"), first.Due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		if again := ask(); !again.Exists || again.State != ledger.StateSucceeded {
			f.Errorf("%+v, want it there, succeeded", again)
		}
		for _, key := range []string{"hist:j", "done:j"} { // as if the history were full of others
			if err := f.rdb.Del(f.Context(), f.key(key)).Err(); err != nil {
				f.Fatal(err)
			}
		}
		if again := ask(); !again.Exists || again.State != "" {
			f.Errorf("%+v, want the id remembered", again)
		}
	})
}

func TestARequestForLaterIsNotDueBefore(t *testing.T) {
	each(t, func(f *fixture) {
		enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: "x", Trigger: ledger.TriggerEnqueue, In: 50 * time.Millisecond})
		if err != nil || enqueued.State != ledger.StateScheduled || len(enqueued.Due) != 0 {
			f.Fatalf("%+v, %v, want it scheduled", enqueued, err)
		}
		at := f.find(enqueued.Run).At
		due := f.await()
		if now := f.sweep().Now; now.Before(at) || due[0].Run != enqueued.Run {
			f.Errorf("%+v came due at %v, want not before %v", due, now, at)
		}
	})
}

func TestARequestWithoutWhatItsLocksNeedIsRefused(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Lock.Exclusive = []string{"bill:{id}"}
		_, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: "x", Args: []byte(`{"no":1}`), Trigger: ledger.TriggerEnqueue})
		if err == nil || !strings.Contains(err.Error(), "bill:{id}") || !strings.Contains(err.Error(), `id`) {
			f.Errorf("%v, want the key and the field named", err)
		}
		f.wantNothingLeft()
	})
}

func TestATickWithoutWhatItsLocksNeedFailsForGood(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Lock.Exclusive = []string{"bill:{id}"}
		created := f.tick(f.job, f.cursor(f.job, 5), 1, ledger.VerdictRun)
		if len(created.Due) != 0 {
			f.Fatalf("due %+v, want nothing", created.Due)
		}
		history, err := f.History(f.Context(), "j", 0)
		if err != nil || len(history) != 1 || history[0].State != ledger.StateFailed || !strings.Contains(history[0].Reason, "bill:{id}") {
			f.Errorf("history %+v, %v, want it failed with the key named", history, err)
		}
	})
}

func TestAHistoryKeepsItsBounds(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.History.Runs = 3
		cursor := f.cursor(f.job, 50)
		for range 10 {
			cursor = f.tick(f.job, cursor, 1, ledger.VerdictMissed).Cursor
		}
		history, err := f.History(f.Context(), "j", 0)
		if err != nil || len(history) != 3 || !history[0].Tick.Equal(cursor) {
			f.Errorf("%d kept, the newest %v, %v, want 3 up to %v", len(history), history[0].Tick, err, cursor)
		}
	})
}

// longDue makes a due run older than all that are made now: due times have a resolution of 1 ms.
func (f *fixture) longDue(run jobs.RunID, queue string) {
	f.Helper()
	since := f.find(run).DueSince
	member := func(at time.Time) string { return fmt.Sprintf("%s\x00%016d\x00%s", queue, at.UnixMilli(), run) }
	f.rdb.ZRem(f.Context(), f.key("ready"), member(since))
	f.rdb.ZAdd(f.Context(), f.key("ready"), redis.Z{Member: member(since.Add(-time.Second))})
}

func TestTheRunThatHasBeenDueForLongestGoesFirst(t *testing.T) {
	each(t, func(f *fixture) {
		older := f.run()
		enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: newJob("other"), ID: "x", Trigger: ledger.TriggerEnqueue})
		if err != nil {
			f.Fatal(err)
		}
		f.longDue(older.Run, "default")
		w := f.session("w")
		direct := func(before ...string) ledger.ClaimOutcome {
			request := f.request(w)
			claimed, err := f.Claim(f.Context(), request, enqueued.Due[0], 0, before)
			if err != nil {
				f.Fatal(err)
			}
			if claimed.Outcome != ledger.ClaimGranted {
				request.Drop()
			}
			return claimed.Outcome
		}
		if got := direct("default"); got != ledger.ClaimLater {
			f.Errorf("%s, want %s", got, ledger.ClaimLater)
		}
		if got := direct("another"); got != ledger.ClaimStale {
			f.Errorf("%s, want %s: the refused claim gave the run its next delivery", got, ledger.ClaimStale)
		}
		enqueued.Due[0].N++
		if got := direct("another"); got != ledger.ClaimGranted {
			f.Errorf("%s, want %s", got, ledger.ClaimGranted)
		}
	})
}

// TestAClaimThatGivesWayToAnotherQueueNamesItsRun: the delivery of that run may not be the next one
// that is fetched. In the same queue it is.
func TestAClaimThatGivesWayToAnotherQueueNamesItsRun(t *testing.T) {
	for queue, named := range map[string]bool{"low": true, "default": false} {
		t.Run(queue, func(t *testing.T) {
			each(t, func(f *fixture) {
				slow := newJob("slow")
				slow.Queue = queue
				older, err := f.Enqueue(f.Context(), ledger.Request{Job: slow, ID: "1", Trigger: ledger.TriggerEnqueue})
				if err != nil {
					f.Fatal(err)
				}
				if err := f.Confirm(f.Context(), older.Due); err != nil {
					f.Fatal(err)
				}
				f.longDue(older.Run, queue)
				younger, err := f.Enqueue(f.Context(), ledger.Request{Job: newJob("other"), ID: "1", Trigger: ledger.TriggerEnqueue})
				if err != nil {
					f.Fatal(err)
				}
				request := f.request(f.session("w"))
				defer request.Drop()
				claimed, err := f.Claim(f.Context(), request, younger.Due[0], 0, []string{"default", "low"})
				if err != nil || claimed.Outcome != ledger.ClaimLater || (claimed.First != nil) != named {
					f.Fatalf("%+v, %v, want it to give way, and the first run named: %v", claimed, err, named)
				}
				if named && *claimed.First != older.Due[0] {
					f.Errorf("%+v goes first, want %+v", *claimed.First, older.Due[0])
				}
			})
		})
	}
}

// TestAClaimThatGivesWayNamesTheRunThatHasWaited: that run was offered its lock, and its delivery
// is at the end of a backlog in the same queue.
func TestAClaimThatGivesWayNamesTheRunThatHasWaited(t *testing.T) {
	each(t, func(f *fixture) {
		hold, err := f.session("web").Acquire(f.Context(), locks.Exclusive("bill:1"))
		if err != nil {
			f.Fatal(err)
		}
		bill := newJob("bill")
		bill.Lock = jobs.Lock{Exclusive: []string{"bill:1"}}
		older, err := f.Enqueue(f.Context(), ledger.Request{Job: bill, ID: "1", Trigger: ledger.TriggerEnqueue})
		if err != nil {
			f.Fatal(err)
		}
		w := f.session("w")
		f.claim(w, older.Due[0], ledger.ClaimWaiting)
		if err := hold.Release(); err != nil {
			f.Fatal(err)
		}
		swept, err := f.Sweep(f.Context(), ledger.SweepLimits{Most: 100, Unconfirmed: time.Hour})
		if err != nil || len(swept.Due) != 1 || !swept.Due[0].Offered {
			f.Fatalf("%+v, %v, want the run that was offered its lock", swept, err)
		}
		if err := f.Confirm(f.Context(), swept.Due); err != nil {
			f.Fatal(err)
		}
		f.longDue(older.Run, bill.Queue)
		younger, err := f.Enqueue(f.Context(), ledger.Request{Job: newJob("other"), ID: "1", Trigger: ledger.TriggerEnqueue})
		if err != nil {
			f.Fatal(err)
		}
		f.givesWay(w, younger.Due[0], older.Run, bill.Queue)
	})
}

// givesWay checks that a claim, which asks for older runs in some queues, gives way to a run.
func (f *fixture) givesWay(w *locks.Client, due ledger.Due, to jobs.RunID, queues ...string) {
	f.Helper()
	request := f.request(w)
	defer request.Drop()
	claimed, err := f.Claim(f.Context(), request, due, 0, queues)
	if err != nil || claimed.Outcome != ledger.ClaimLater || claimed.First == nil || claimed.First.Run != to {
		f.Errorf("%+v, %v, want it to give way to %s", claimed, err, to)
	}
}

// TestAClaimGivesWayToTheOldestRunOfItsQueues: whatever their order.
func TestAClaimGivesWayToTheOldestRunOfItsQueues(t *testing.T) {
	each(t, func(f *fixture) {
		for _, queue := range []string{"low", "high"} {
			job := newJob(queue)
			job.Queue = queue
			older, err := f.Enqueue(f.Context(), ledger.Request{Job: job, ID: "1", Trigger: ledger.TriggerEnqueue})
			if err != nil {
				f.Fatal(err)
			}
			if err := f.Confirm(f.Context(), older.Due); err != nil {
				f.Fatal(err)
			}
			f.nextTime()
		}
		younger, err := f.Enqueue(f.Context(), ledger.Request{Job: newJob("other"), ID: "1", Trigger: ledger.TriggerEnqueue})
		if err != nil {
			f.Fatal(err)
		}
		w, due := f.session("w"), younger.Due[0]
		f.givesWay(w, due, "low#1", "default", "high", "low")
		due.N++ // the claim that gave way has another delivery
		f.givesWay(w, due, "low#1", "low", "high", "default")
	})
}

func TestDutyPassesOnWhenItsHolderEnds(t *testing.T) {
	each(t, func(f *fixture) {
		a, b := f.session("a"), f.session("b")
		poll := func(c *locks.Client) bool {
			f.Helper()
			poll, err := f.Poll(f.Context(), c.Session(), "config", 0)
			if err != nil {
				f.Fatal(err)
			}
			return poll.Duty
		}
		if !poll(a) || poll(b) || !poll(a) {
			f.Error("want duty with the first that asks")
		}
		f.end(a)
		if !poll(b) {
			f.Error("want duty to pass on")
		}
	})
}

func TestAPollReportsMovedCursors(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		cursor := f.cursor(f.job, 5)
		before, err := f.Poll(f.Context(), w.Session(), "config", 0)
		if err != nil {
			f.Fatal(err)
		}
		created := f.tick(f.job, cursor, 1, ledger.VerdictRun)
		after, err := f.Poll(f.Context(), w.Session(), "config", before.Revision)
		if err != nil || len(after.Moved) != 1 || !after.Moved["j"].Cursor.Equal(created.Cursor) {
			f.Errorf("%+v, %v, want j at %v", after, err, created.Cursor)
		}
		if again, err := f.Poll(f.Context(), w.Session(), "config", after.Revision); err != nil || len(again.Moved) != 0 {
			f.Errorf("%+v, %v, want nothing new", again, err)
		}
	})
}

// billed enqueues a run that needs these bills.
func (f *fixture) billed(id string, bills ...string) ledger.Due {
	f.Helper()
	job := newJob("billed")
	job.Every, job.Lock.Exclusive = 0, bills
	enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue})
	if err != nil {
		f.Fatal(err)
	}
	return enqueued.Due[0]
}

func TestAStandingOfferIsTakenWhateverHasGrownOldSince(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		take := func(bill string) *locks.Hold {
			f.Helper()
			hold, err := w.TryAcquire(f.Context(), locks.Exclusive(bill))
			if err != nil {
				f.Fatal(err)
			}
			return hold
		}
		wait := func(due ledger.Due, patience time.Duration) {
			f.Helper()
			request := f.request(w)
			defer request.Drop()
			claimed, err := f.Claim(f.Context(), request, due, patience, nil)
			if err != nil || claimed.Outcome != ledger.ClaimWaiting {
				f.Fatalf("claim of %s: %+v, %v, want it to wait", due.Run, claimed, err)
			}
		}
		x, y := take("x"), take("y")
		a, b := f.billed("a", "x", "y"), f.billed("b", "x", "z")
		wait(a, 0) // no other may pass it
		wait(b, 0)
		for _, hold := range []*locks.Hold{x, y} {
			if err := hold.Release(); err != nil {
				f.Fatal(err)
			}
		}
		a = f.sweep().Due[0] // its offer lapses, and b is offered x and z
		if err := f.rdb.ZAddXX(f.Context(), f.key("exp"), redis.Z{Score: 1, Member: "o+" + string(a.Run)}).Err(); err != nil {
			f.Fatal(err)
		}
		b = f.sweep().Due[0]
		take("y")
		// back to its place, in front of b, which has been offered its bundle all the same
		wait(a, 0)
		f.claim(w, b, ledger.ClaimGranted)
	})
}

func TestAFinishIsRecordedWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb, namespace := server.Client(t), redistest.Namespace(t)
	space, err := locks.NewSpace(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, rdb: rdb, namespace: namespace, Ledger: ledger.New(rdb, space), job: newJob("j")}
	w := f.session("w")
	created := f.tick(f.job, f.cursor(f.job, 9), 1, ledger.VerdictRun)
	a := f.claim(w, created.Due[0], ledger.ClaimGranted)
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	tick := created.Cursor.Add(time.Second)
	refused := f.Create(t.Context(), []ledger.Decision{{
		Job: f.job, Seen: created.Cursor, Cursor: tick, Ticks: []ledger.Tick{{At: tick, Verdict: ledger.VerdictRun}},
	}})[0]
	if refused.Err == nil || !strings.Contains(refused.Err.Error(), "OOM") {
		t.Errorf("a tick with full memory: %+v, want it refused", refused)
	}
	f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	f.wantState(a.Record.ID, ledger.StateSucceeded)
	f.wantNothingLeft()
	if again := f.tick(f.job, created.Cursor, 1, ledger.VerdictRun); len(again.Due) != 1 {
		t.Errorf("%+v, want the refused tick to have changed nothing", again)
	}
}

// TestASuspectIsClaimedOnlyOnRequest: a run that has crashed before is detected before anything
// is taken for it.
func TestASuspectIsClaimedOnlyOnRequest(t *testing.T) {
	each(t, func(f *fixture) {
		a, b := f.session("a"), f.session("b")
		due := f.run()
		first, err := f.ClaimSound(f.Context(), f.request(a), due, 0, nil)
		if err != nil || first.Outcome != ledger.ClaimGranted {
			f.Fatalf("claim of a run that has never crashed: %+v, %v, want it granted", first, err)
		}
		again := f.crash(a)
		if len(again) != 1 {
			f.Fatalf("after the crash %+v are due, want the run", again)
		}
		// No other run waits until it finds a place.
		other, err := f.Enqueue(f.Context(), ledger.Request{Job: newJob("other"), ID: "x", Trigger: ledger.TriggerEnqueue})
		if err != nil {
			f.Fatal(err)
		}
		if ready, err := f.rdb.ZRange(f.Context(), f.key("ready"), 0, 0).Result(); err != nil || !strings.HasSuffix(ready[0], string(due.Run)) {
			f.Fatalf("due for longest is %q, %v; want the run that crashed", ready, err)
		}
		younger, err := f.ClaimSound(f.Context(), f.request(b), other.Due[0], 0, []string{"default"})
		if err != nil || younger.Outcome != ledger.ClaimGranted {
			f.Fatalf("direct claim of a run that is due since later: %+v, %v, want it granted", younger, err)
		}
		request := f.request(b)
		for range 2 {
			refused, err := f.ClaimSound(f.Context(), request, again[0], 0, nil)
			if err != nil || refused.Outcome != ledger.ClaimCrashed || refused.Crashes != 1 || !refused.Suspected {
				f.Fatalf("claim of a run that has crashed: %+v, %v, want it refused", refused, err)
			}
		}
		second, err := f.Claim(f.Context(), request, again[0], 0, nil)
		if err != nil || second.Outcome != ledger.ClaimGranted || second.Record.Last().Number != 2 {
			f.Fatalf("claim under the same request by the worker that takes it: %+v, %v, want the second attempt", second, err)
		}
		if sent, err := f.ClaimSound(f.Context(), request, again[0], 0, nil); err != nil || sent.Outcome != ledger.ClaimGranted {
			f.Fatalf("a late copy of the refused claim: %+v, %v, want the attempt that runs", sent, err)
		}
	})
}
