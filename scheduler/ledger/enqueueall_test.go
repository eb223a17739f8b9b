package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
)

// bulky is a job for runs that lock the bill in their args.
func bulky(name string) *jobs.Job {
	job := newJob(name)
	job.Every = 0
	job.Lock.Exclusive = []string{"bill:{bill}"}
	return job
}

// bill returns a request for a run with a bill.
func bill(job *jobs.Job, id string, n int) ledger.Request {
	return ledger.Request{Job: job, ID: id, Args: json.RawMessage(fmt.Sprintf(`{"bill": %d}`, n)), Trigger: ledger.TriggerEnqueue, Named: true}
}

// enqueueAll sends a list that must not be refused as a whole.
func (f *fixture) enqueueAll(list ledger.List) []ledger.Replied {
	f.Helper()
	replies, err := f.EnqueueAll(f.Context(), list)
	if err != nil || len(replies) != len(list.Items) {
		f.Fatalf("%d replies to %d requests, %v", len(replies), len(list.Items), err)
	}
	return replies
}

// recorded returns the outstanding runs, sorted.
func (f *fixture) recorded() []string {
	f.Helper()
	runs, err := f.rdb.HGetAll(f.Context(), f.key("run")).Result()
	if err != nil {
		f.Fatal(err)
	}
	return slices.Sorted(maps.Keys(runs))
}

func (f *fixture) wantRecorded(when string, want ...string) {
	f.Helper()
	if got := f.recorded(); !slices.Equal(got, want) {
		f.Errorf("%s: recorded are %q, want %q", when, got, want)
	}
}

func TestEachRequestOfAListGetsItsOwnReply(t *testing.T) {
	each(t, func(f *fixture) {
		client, a, b := f.session("w"), bulky("a"), bulky("b")
		f.enqueues(f.Ledger, newJob("a"), "there")
		later := bill(b, "later", 3)
		later.In = time.Hour
		replies := f.enqueueAll(ledger.List{Items: []ledger.Request{bill(a, "1", 1), bill(a, "there", 2), later, bill(a, "1", 4), bill(b, "1", 5), bill(b, "later", 6)}})
		for i, want := range []string{"a#1 due false 1", "a#there due true 0", "b#later scheduled false 0", "a#1 due true 0", "b#1 due false 1", "b#later scheduled true 0"} {
			r := replies[i]
			if r.Err != nil {
				f.Errorf("items[%d]: %v", i, r.Err)
			} else if got := fmt.Sprint(r.Run, " ", r.State, " ", r.Exists, " ", len(r.Due)); got != want {
				f.Errorf("items[%d]: got %s, want %s", i, got, want)
			}
		}
		f.wantRecorded("at last", "a#1", "a#there", "b#1", "b#later")
		f.wantDefinitions("at last", 3)

		for _, r := range []ledger.Replied{replies[0], replies[4]} {
			claimed := f.claim(client, r.Due[0], ledger.ClaimGranted)
			if want := map[jobs.RunID]string{"a#1": `{"bill":1}`, "b#1": `{"bill":5}`}[r.Run]; string(claimed.Args) != want {
				f.Errorf("%s has the args %s, want %s", r.Run, claimed.Args, want)
			}
			f.finish(claimed, ledger.OutcomeSuccess, ledger.FinishRecorded)
		}
		again := f.enqueueAll(ledger.List{Items: []ledger.Request{bill(a, "1", 1), bill(b, "2", 2)}, Atomic: true})
		if !again[0].Exists || again[0].State != ledger.StateSucceeded || again[1].Exists {
			f.Errorf("after its end: %+v and %+v, want the first one succeeded, and the second one new", again[0].Enqueued, again[1].Enqueued)
		}
	})
}

// TestABadRequestDoesNotAffectTheOthersOfItsList: unless the list is atomic, in which case nothing
// is recorded. The error names the index.
func TestABadRequestDoesNotAffectTheOthersOfItsList(t *testing.T) {
	each(t, func(f *fixture) {
		n, job, large := 0, bulky("a"), bill(bulky("a"), "large", 1)
		large.Args = json.RawMessage(`{"bill": 1, "x": "` + strings.Repeat("x", jobs.DefaultMaxArgs) + `"}`)
		for name, bad := range map[string]ledger.Request{
			"args without the field of a lock key": {Job: job, ID: "bad", Args: json.RawMessage(`{"no": 1}`), Trigger: ledger.TriggerEnqueue},
			"no JSON":                              {Job: job, ID: "bad", Args: json.RawMessage(`{`), Trigger: ledger.TriggerEnqueue},
			"large args":                           large,
			"an id with a blank":                   bill(job, "a b", 1),
			"refused by the caller":                bill(job, "fine", 1),
		} {
			n++
			items := []ledger.Request{bill(job, fmt.Sprint(n, "-1"), 1), bad, bill(job, fmt.Sprint(n, "-2"), 2)}
			list := ledger.List{Items: items, Atomic: true}
			if name == "refused by the caller" {
				list.Refused = map[int]error{1: errors.New("no such job")}
			}
			before := f.recorded()
			_, err := f.EnqueueAll(f.Context(), list)
			refused, ok := errors.AsType[*ledger.RequestError](err)
			if !ok || refused.Index != 1 || !strings.HasPrefix(err.Error(), "items[1]: ") {
				f.Errorf("%s, atomic: %v, want it to name items[1]", name, err)
			}
			f.wantRecorded(name+", atomic", before...)
			list.Atomic = false
			replies := f.enqueueAll(list)
			if replies[1].Err == nil || replies[1].Enqueued != nil {
				f.Errorf("%s: got %+v, want an error", name, replies[1])
			}
			for _, i := range []int{0, 2} {
				if replies[i].Err != nil || replies[i].Exists {
					f.Errorf("%s: items[%d]: got %+v, want it recorded", name, i, replies[i])
				}
			}
		}
	})
}

func TestAListIsBounded(t *testing.T) {
	large(t, func(f *fixture) {
		f.session("w")
		job := bulky("a")
		items := make([]ledger.Request, ledger.MaxRequests+1)
		for i := range items {
			items[i] = bill(job, fmt.Sprintf("%04d", i), i)
		}
		for _, atomic := range []bool{false, true} {
			_, err := f.EnqueueAll(f.Context(), ledger.List{Items: items, Atomic: atomic})
			if refused, ok := errors.AsType[*ledger.RequestError](err); !ok || refused.Index != 1000 || !errors.Is(err, jobs.ErrTooLarge) {
				f.Errorf("%d requests: %v, want it to name items[1000]", len(items), err)
			}
		}
		f.wantRecorded("after refusals")
		for i := range 40 {
			items[i].Args = json.RawMessage(fmt.Sprintf(`{"bill": %d, "x": %q}`, i, strings.Repeat("x", 120_000)))
		}
		_, err := f.EnqueueAll(f.Context(), ledger.List{Items: items[:40], Atomic: true})
		if refused, ok := errors.AsType[*ledger.RequestError](err); !ok || refused.Index != 8 || !errors.Is(err, jobs.ErrTooLarge) {
			f.Errorf("an atomic list of 4.8 MB: %v, want it to name items[8]", err)
		}
		f.wantRecorded("after refusals")
		for _, r := range f.enqueueAll(ledger.List{Items: items[:40]}) {
			if r.Err != nil || r.Exists {
				f.Fatalf("a list of 4.8 MB: %+v", r)
			}
		}
		for i := range 40 {
			items[i] = bill(job, items[i].ID, i)
		}
		for i, r := range f.enqueueAll(ledger.List{Items: items[:1000], Atomic: true}) {
			if r.Err != nil || r.Exists != (i < 40) {
				f.Fatalf("items[%d] of 1,000: %+v", i, r)
			}
		}
		if got := f.recorded(); len(got) != 1000 {
			f.Errorf("%d runs are recorded, want 1000", len(got))
		}
		f.wantDefinitions("of 1,000", 1)
	})
}

// A damaged definition makes Redis refuse each script that adds a run of it.
func TestARefusedRequestDoesNotAffectOthersOfItsScript(t *testing.T) {
	each(t, func(f *fixture) {
		f.session("w")
		bad, good := bulky("bad"), bulky("good")
		f.enqueues(f.Ledger, newJob("bad"), "1")
		if err := f.rdb.HSet(f.Context(), f.key("defs"), "#"+f.named(bad), "many").Err(); err != nil {
			f.Fatal(err)
		}
		items := []ledger.Request{bill(good, "1", 1), bill(bad, "2", 2), bill(good, "3", 3)}
		if _, err := f.EnqueueAll(f.Context(), ledger.List{Items: items, Atomic: true}); err == nil {
			f.Error("an atomic list with a run that cannot be recorded is recorded")
		}
		f.wantRecorded("atomic", "bad#1")
		replies := f.enqueueAll(ledger.List{Items: items})
		if replies[0].Err != nil || replies[1].Err == nil || replies[2].Err != nil {
			f.Errorf("got %v, %v, %v; want an error for the second one", replies[0].Err, replies[1].Err, replies[2].Err)
		}
		f.wantRecorded("at last", "bad#1", "good#1", "good#3")
	})
}

func (f *fixture) named(job *jobs.Job) string {
	f.Helper()
	definition, _, err := job.Definition()
	if err != nil {
		f.Fatal(err)
	}
	return ledger.NameOf(string(definition))
}

// TestARefusedAtomicListRecordsNothing: whichever key another program has taken.
func TestARefusedAtomicListRecordsNothing(t *testing.T) {
	each(t, func(f *fixture) {
		f.session("w")
		items := []ledger.Request{bill(bulky("a"), "1", 1), bill(bulky("b"), "2", 2), bill(bulky("b"), "3", 2)}
		items[2].In, items[0].Parent = time.Hour, "b#0"
		f.enqueues(f.Ledger, newJob("b"), "0")
		f.refuses(items)
		for i := range 250 {
			items = append(items, bill(bulky("b"), fmt.Sprint("long", i), i))
		}
		f.refuses(items, "lists")
	})
}

// refuses checks that an atomic list is refused, and nothing of it recorded, whichever key has the
// wrong type.
func (f *fixture) refuses(items []ledger.Request, others ...string) {
	f.Helper()
	before := f.dump()
	for _, key := range append(others, "run", "body", "defs", "open", "ready", "push", "timer", "ids", "hist:a", "hist:b", "children") {
		kept := f.rdb.Exists(f.Context(), f.key(key)).Val() == 1
		if kept {
			f.rdb.Rename(f.Context(), f.key(key), f.key("kept"))
		}
		f.rdb.Set(f.Context(), f.key(key), "of another program", 0)
		if _, err := f.EnqueueAll(f.Context(), ledger.List{Items: items, Atomic: true}); err == nil {
			f.Errorf("%s has the wrong type, and the list is recorded", key)
		}
		f.rdb.Del(f.Context(), f.key(key))
		if kept {
			f.rdb.Rename(f.Context(), f.key("kept"), f.key(key))
		}
		if after := f.dump(); after != before {
			f.Errorf("%s had the wrong type, and the refused list has changed\n%s\nto\n%s", key, before, after)
		}
	}
}

// dump returns the keys of runs as a text.
func (f *fixture) dump() string {
	f.Helper()
	var b strings.Builder
	for _, key := range []string{"run", "body", "defs", "children"} {
		fmt.Fprintf(&b, "%s %q\n", key, f.rdb.HGetAll(f.Context(), f.key(key)).Val())
	}
	for _, key := range []string{"open", "ready", "push", "timer", "ids"} {
		fmt.Fprintf(&b, "%s %q\n", key, f.rdb.ZRange(f.Context(), f.key(key), 0, -1).Val())
	}
	return b.String()
}

// loseReply is a hook that loses the reply to a script that was executed.
type loseReply struct{ left atomic.Int32 }

func (*loseReply) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *loseReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && cmd.Name() == "evalsha" && h.left.Add(-1) >= 0 {
			err = context.DeadlineExceeded
			cmd.SetErr(err)
		}
		return err
	}
}

func (*loseReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestAListThatIsSentAgainRecordsNothingTwice: its first reply was lost, or Redis had forgotten the
// script.
func TestAListThatIsSentAgainRecordsNothingTwice(t *testing.T) {
	each(t, func(f *fixture) {
		f.session("w")
		lost := &loseReply{}
		f.rdb.AddHook(lost)
		job := bulky("a")
		var items []ledger.Request
		var want []string
		for i := range 450 { // three scripts
			items, want = append(items, bill(job, fmt.Sprintf("%03d", i), i)), append(want, fmt.Sprintf("a#%03d", i))
		}
		if err := f.rdb.ScriptFlush(f.Context()).Err(); err != nil {
			f.Fatal(err)
		}
		f.enqueueAll(ledger.List{Items: items[:1]})
		lost.left.Store(1)
		for i, r := range f.enqueueAll(ledger.List{Items: items}) {
			if r.Err == nil || r.Enqueued != nil {
				f.Fatalf("items[%d] has the reply %+v, want an error: one reply was lost, and nothing was sent after that", i, r)
			}
		}
		f.wantRecorded("one reply was lost", want[:200]...)
		for i, r := range f.enqueueAll(ledger.List{Items: items}) {
			if r.Err != nil || r.Exists != (i < 200) {
				f.Fatalf("sent again, items[%d] has the reply %+v", i, r)
			}
		}
		f.wantRecorded("at last", want...)
		f.wantDefinitions("at last", 1)
	})
}

// TestAListHasOneEntryInTheAudit that counts its new runs.
func TestAListHasOneEntryInTheAudit(t *testing.T) {
	each(t, func(f *fixture) {
		job := bulky("a")
		var items []ledger.Request
		for i := range 500 {
			items = append(items, bill(job, fmt.Sprint(i), i))
		}
		act := &ledger.Act{Who: "ann", What: "enqueue", On: "a", Apart: "first"}
		f.enqueueAll(ledger.List{Items: items[:10], Atomic: true, Act: act})
		f.enqueueAll(ledger.List{Items: items, Act: act})
		f.enqueueAll(ledger.List{Items: items[:5], Act: &ledger.Act{Who: "ann", What: "enqueue", On: "a", Apart: "second"}})
		entries, err := f.rdb.XRange(f.Context(), f.key("audit"), "-", "+").Result()
		if err != nil || len(entries) != 1 || fmt.Sprint(entries[0].Values["n"]) != "500" {
			f.Errorf("got the entries %v, %v; want one of 500 requests", entries, err)
		}
	})
}

func TestTheRunsOfAListHaveTheirParent(t *testing.T) {
	each(t, func(f *fixture) {
		parent := f.requested("parent")
		var items []ledger.Request
		for i := range 30 {
			request := bill(bulky("a"), fmt.Sprintf("%02d", i), i)
			request.Parent = parent.Run
			items = append(items, request)
		}
		items[7].Parent, items[8].Parent = "", "a#nothing"
		f.makes(parent.Run, "before", nil)
		replies := f.enqueueAll(ledger.List{Items: items})
		first := []jobs.RunID{"j#before"}
		for i, r := range replies {
			want := parent.Run
			if i == 7 || i == 8 {
				want = ""
			} else if len(first) < 20 {
				first = append(first, r.Run)
			}
			if got := f.find(r.Run).Parent; got != want {
				f.Errorf("%s has the parent %q, want %q", r.Run, got, want)
			}
		}
		f.wantChildren(f.find(parent.Run), 29, first...)
	})
}

// countScripts counts the scripts that are sent, and lets the first ones wait.
type countScripts struct {
	scripts atomic.Int32
	wait    chan struct{}
}

func (*countScripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *countScripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			h.scripts.Add(1)
			<-h.wait
		}
		return next(ctx, cmd)
	}
}

func (*countScripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestNoScriptHasTooManyDefinitions sends requests of many jobs with long definitions.
func TestNoScriptHasTooManyDefinitions(t *testing.T) {
	each(t, func(f *fixture) {
		f.enqueues(f.Ledger, newJob("j"), "warm")
		items := make([]ledger.Request, 100)
		for i := range items {
			job := bulky(fmt.Sprint("a", i))
			job.Args = json.RawMessage(fmt.Sprintf(`{"bill": 1, "x": %q}`, strings.Repeat("x", 40_000)))
			items[i] = bill(job, "1", i)
		}
		hook := &countScripts{wait: make(chan struct{})}
		close(hook.wait)
		f.rdb.AddHook(hook)
		for i, r := range f.enqueueAll(ledger.List{Items: items}) {
			if r.Err != nil || r.Exists {
				f.Errorf("items[%d]: %+v", i, r)
			}
		}
		if n := hook.scripts.Load(); n < 4 {
			f.Errorf("%d scripts have 100 definitions of 40 kB, want at most 1 MiB in each", n)
		}
	})
}

// TestRequestsOfManyGoroutinesShareAScript: those that come while one is under way.
func TestRequestsOfManyGoroutinesShareAScript(t *testing.T) {
	each(t, func(f *fixture) {
		const callers = 50
		f.enqueues(f.Ledger, newJob("j"), "warm")
		hook := &countScripts{wait: make(chan struct{})}
		f.rdb.AddHook(hook)
		release := sync.OnceFunc(func() { close(hook.wait) })
		defer release() // also after a failure, so that no goroutine is left
		await := func(what string, holds func() bool) {
			f.Helper()
			for began := time.Now(); !holds(); time.Sleep(time.Millisecond) {
				if time.Since(began) > time.Minute {
					f.Fatalf("not within a minute: %s; %d requests wait", what, f.Waiting())
				}
			}
		}
		job := bulky("a")
		var group sync.WaitGroup
		for i := range callers {
			if i == 1 {
				await("the first one is under way", func() bool { return hook.scripts.Load() > 0 })
			}
			group.Go(func() {
				enqueued, err := f.Enqueue(f.Context(), bill(job, fmt.Sprint(i/2), i))
				if err != nil || enqueued.Run != jobs.RunID(fmt.Sprint("a#", i/2)) {
					f.Errorf("request %d: %+v, %v", i, enqueued, err)
				}
			})
		}
		await("the others wait for the first one", func() bool { return f.Waiting() >= callers-1 })
		gone, leave := context.WithCancelCause(f.Context())
		left := errors.New("left")
		group.Go(func() {
			if _, err := f.Enqueue(gone, bill(job, "gone", 1)); !errors.Is(err, left) {
				f.Errorf("a caller that has left gets %v, want its cause", err)
			}
		})
		await("one more waits", func() bool { return f.Waiting() >= callers })
		leave(left)
		await("that one has left", func() bool { return f.Waiting() < callers })
		release()
		group.Wait()
		if n := hook.scripts.Load(); n > 3 { // perhaps one with the text
			f.Errorf("%d scripts for %d requests, want one, and one for all others", n, callers)
		}
		if got := f.recorded(); len(got) != callers/2+1 {
			f.Errorf("%d runs are recorded, want %d: %q", len(got), callers/2+1, got)
		}
	})
}

// TestRequestsOfManyGoroutinesAreRecordedOnce plays many of them, some for the same run.
func TestRequestsOfManyGoroutinesAreRecordedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb, namespace := server.Client(t), redistest.Namespace(t)
	space, err := locks.NewSpace(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, rdb: rdb, namespace: namespace, Ledger: ledger.New(rdb, space), job: newJob("j")}
	f.session("w")
	var group sync.WaitGroup
	var created atomic.Int32
	job := bulky("a")
	for g := range 16 {
		group.Go(func() {
			for i := range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%10 == 0 {
					cancel() // it may be recorded, or not
				}
				enqueued, err := f.Enqueue(ctx, bill(job, fmt.Sprint(i, "-", g/2), i))
				cancel()
				if err != nil && i%10 != 0 {
					t.Errorf("request %d of %d: %v", i, g, err)
				}
				if err == nil && !enqueued.Exists {
					created.Add(1)
				}
			}
		})
	}
	group.Wait()
	f.wantDefinitions("at last", 1)
	if got := len(f.recorded()); got < 720 || int(created.Load()) > got || got > 800 {
		t.Errorf("%d runs are recorded, and %d requests created one; want 720 to 800", got, created.Load())
	}
}

// TestAnIDThatAClientChoseIsRememberedForSevenDays, and after that it names a new run, once the
// history no longer has the first one.
func TestAnIDThatAClientChoseIsRememberedForSevenDays(t *testing.T) {
	each(t, func(f *fixture) {
		f.enqueueAll(ledger.List{Items: []ledger.Request{bill(bulky("a"), "1", 1)}})
		upto, err := f.rdb.ZScore(f.Context(), f.key("ids"), "a#1").Result()
		if left := time.UnixMilli(int64(upto)).Sub(f.now()); err != nil || left > 7*24*time.Hour || left < 7*24*time.Hour-time.Minute {
			t.Errorf("it is remembered for %s, %v, want 7 days", left, err)
		}
		f.forgetRuns("ids")
		for _, again := range []bool{true, false} {
			if !again {
				f.rdb.ZAdd(f.Context(), f.key("ids"), redis.Z{Score: 1, Member: "a#1"})
			}
			if r := f.enqueueAll(ledger.List{Items: []ledger.Request{bill(bulky("a"), "1", 1)}})[0]; r.Err != nil || r.Exists != again {
				t.Errorf("asked again: %+v, %v, want it to exist: %t", r.Enqueued, r.Err, again)
			}
		}
	})
}
