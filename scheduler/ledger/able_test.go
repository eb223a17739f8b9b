package ledger_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// snapshot reads all keys of a namespace that concern runs and locks.
func (f *fixture) snapshot() map[string]string {
	f.Helper()
	all := make(map[string]string)
	for _, key := range f.rdb.Keys(f.Context(), f.key("*")).Val() {
		switch f.rdb.Type(f.Context(), key).Val() {
		case "hash":
			for field, value := range f.rdb.HGetAll(f.Context(), key).Val() {
				all[key+" "+field] = value
			}
		case "zset":
			if key == f.key("exp") { // renewals move it
				continue
			}
			for _, z := range f.rdb.ZRangeWithScores(f.Context(), key, 0, -1).Val() {
				all[key+" "+fmt.Sprint(z.Member)] = fmt.Sprint(z.Score)
			}
		case "string":
			all[key] = f.rdb.Get(f.Context(), key).Val()
		}
	}
	return all
}

// handled makes a due run of a handler's job, with locks of its own.
func (f *fixture) handled(handler, id string) ledger.Due {
	f.Helper()
	job := newJob("bill")
	job.Command, job.Handler, job.Every = nil, handler, 0
	enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue})
	if err != nil || len(enqueued.Due) != 1 {
		f.Fatalf("%+v, %v", enqueued, err)
	}
	return enqueued.Due[0]
}

// TestAClaimThatItsWorkerCannotDoChangesNothing: no lock is taken, no token issued, and another
// worker can claim the run.
func TestAClaimThatItsWorkerCannotDoChangesNothing(t *testing.T) {
	each(t, func(f *fixture) {
		able := ledger.New(f.rdb, f.Space())
		f.Limit(func(need ledger.Need) bool { return need.Handler() == "known" })
		web := f.session("web")
		due := f.handled("unknown", "a")
		before := f.snapshot()
		a := f.claim(web, due, ledger.ClaimUnable)
		if a.Need.Handler() != "unknown" || a.Need.Keys() != nil {
			t.Errorf("it needs %q, want the handler unknown", a.Need)
		}
		if after := f.snapshot(); !maps.Equal(before, after) {
			t.Errorf("the claim made %v of %v", after, before)
		}

		// Of several, those that the worker can do are granted, even when their definition is new
		// to it.
		claims := []ledger.Claim{{Request: f.request(web), Due: due}}
		for i := range 3 {
			claims = append(claims, ledger.Claim{Request: f.request(web), Due: f.handled("known", fmt.Sprint(i))})
		}
		for i, claimed := range f.ClaimAll(f.Context(), claims, 0) {
			want := ledger.ClaimGranted
			if i == 0 {
				want = ledger.ClaimUnable
				claims[i].Request.Drop()
			}
			if claimed == nil || claimed.Outcome != want {
				t.Errorf("claim %d of several: %+v, want it %s", i, claimed, want)
			}
		}
		if claimed, err := able.Claim(f.Context(), f.request(web), due, 0, nil); err != nil || claimed.Outcome != ledger.ClaimGranted {
			t.Errorf("another worker: %+v, %v, want it granted", claimed, err)
		}
	})
}

// TestDirectClaimGivesWayBehindRunsThatCannotBegin: however many runs in front of the older one are
// set aside, or are put off since their worker crashed.
func TestDirectClaimGivesWayBehindRunsThatCannotBegin(t *testing.T) {
	each(t, func(f *fixture) {
		web := f.session("web")
		for i := range 100 {
			if done, err := f.SetAside(f.Context(), f.handled("h", fmt.Sprint("a", i)), "handler h"); err != nil || !done {
				t.Fatal(done, err)
			}
		}
		dying := f.session("dying")
		for i := range 10 {
			f.claim(dying, f.handled("g", fmt.Sprint("c", i)), ledger.ClaimGranted)
		}
		if back := f.crash(dying); len(back) != 10 {
			t.Fatalf("%d runs are due again, want 10", len(back))
		}
		older := f.handled("g", "older")
		if err := f.Confirm(f.Context(), []ledger.Due{older}); err != nil {
			t.Fatal(err)
		}
		f.nextMillisecond()
		newer := f.handled("g", "newer")
		claimed, err := f.Claim(f.Context(), f.request(web), newer, 0, []string{newer.Queue})
		if err != nil || claimed.Outcome != ledger.ClaimLater {
			t.Errorf("a direct claim before it: %+v, %v, want it to give way", claimed, err)
		}
	})
}

// TestAnotherHandlerOrKeyIsAskedFor changes the definition of a job after its runs were claimed.
func TestAnotherHandlerOrKeyIsAskedFor(t *testing.T) {
	each(t, func(f *fixture) {
		f.Limit(func(need ledger.Need) bool { return need.Handler() == "first" && need.Keys() == nil })
		web := f.session("web")
		f.claim(web, f.handled("first", "a"), ledger.ClaimGranted)
		f.claim(web, f.handled("other", "b"), ledger.ClaimUnable)
		due := f.handled("first", "c")
		definition := f.carried(due.Run)
		newer := "{}\x1f" + definition[:len(definition)-1] + `,"zone":"eu"}`
		if err := f.rdb.HSet(f.Context(), f.key("body"), string(due.Run), newer).Err(); err != nil {
			t.Fatal(err)
		}
		if a := f.claim(web, due, ledger.ClaimUnable); !slices.Equal(a.Need.Keys(), []string{"zone"}) || a.Need.Handler() != "first" {
			t.Errorf("it needs %q, want handler first and key zone", a.Need)
		}
	})
}

// TestRunsThatAreSetAsideArePickedInTheirOrder: they are due without a delivery, delay no direct
// claim, and go to a worker that names the shelf.
func TestRunsThatAreSetAsideArePickedInTheirOrder(t *testing.T) {
	each(t, func(f *fixture) {
		web := f.session("web")
		var aside []ledger.Due
		for i := range 3 {
			aside = append(aside, f.handled("h", fmt.Sprint("a", i)))
		}
		for _, due := range aside {
			for _, want := range []bool{true, false} { // sent again
				if done, err := f.SetAside(f.Context(), due, "handler h"); err != nil || done != want {
					t.Fatalf("%v, %v, want %v", done, err, want)
				}
			}
			f.claim(web, due, ledger.ClaimStale)
			record := f.wantState(due.Run, ledger.StateDue)
			if need, err := f.NeedOf(f.Context(), record); err != nil || need != "handler h" {
				t.Errorf("it needs %q, %v", need, err)
			}
		}
		if sweep, err := f.Sweep(f.Context(), ledger.SweepLimits{Most: 10}); err != nil || len(sweep.Due) != 0 {
			t.Errorf("a sweep pushes %+v, %v, want nothing", sweep.Due, err)
		}

		late := f.handled("g", "late")
		claimed, err := f.Claim(f.Context(), f.request(web), late, 0, []string{late.Queue})
		if err != nil || claimed.Outcome != ledger.ClaimGranted {
			t.Errorf("a direct claim behind them: %+v, %v, want it granted", claimed, err)
		}

		if _, err := f.Cancel(f.Context(), aside[0].Run, f.job, ledger.Act{Who: "ann"}); err != nil {
			t.Fatal(err)
		}
		shelves, _, err := f.Shelves(f.Context(), ledger.Shelf{})
		if want := (ledger.Shelf{Queue: late.Queue, Need: "handler h"}); err != nil || !slices.Equal(shelves, []ledger.Shelf{want}) {
			t.Fatalf("shelves %+v, %v, want %+v", shelves, err, want)
		}
		if asides, err := f.Asides(f.Context()); err != nil || len(asides) != 1 || asides[0].Runs != 2 {
			t.Errorf("%+v, %v, want the two that are left", asides, err)
		}
		for i := 1; i < 3; i++ {
			picked, err := f.Pick(f.Context(), 1, shelves)
			if err != nil || len(picked) != 1 || picked[0].Run != aside[i].Run || picked[0].N <= aside[i].N {
				t.Fatalf("picked %+v, %v, want %s under a new n", picked, err, aside[i].Run)
			}
			f.finish(f.claim(web, picked[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		}
		if picked, err := f.Pick(f.Context(), 10, shelves); err != nil || len(picked) != 0 {
			t.Errorf("picked %+v, %v, want nothing", picked, err)
		}
	})
}

// TestDefinitionsInUseSideBySideAreBothKnown, however many claims of one of them share a reply.
func TestDefinitionsInUseSideBySideAreBothKnown(t *testing.T) {
	each(t, func(f *fixture) {
		f.Limit(func(ledger.Need) bool { return true })
		web := f.session("web")
		f.claim(web, f.handled("one", "first"), ledger.ClaimGranted)
		var claims []ledger.Claim
		for i := range 16 {
			claims = append(claims, ledger.Claim{Request: f.request(web), Due: f.handled("another", fmt.Sprint(i))})
		}
		for i, claimed := range f.ClaimAll(f.Context(), claims, 0) {
			if claimed == nil {
				f.request(web).Drop()
				t.Errorf("claim %d was not answered", i)
			}
		}
		marks := f.Marks("bill")
		if len(marks) != 2 || marks[0] == marks[1] {
			t.Errorf("known definitions %q, want both", marks)
		}
	})
}

// TestRunsThatAreNotDueHoldUpNoPick has thousands of canceled runs that were set aside before a due
// one.
func TestRunsThatAreNotDueHoldUpNoPick(t *testing.T) {
	each(t, func(f *fixture) {
		var gone []redis.Z
		for i := range 1000 {
			gone = append(gone, redis.Z{Member: fmt.Sprintf("default\x00handler h\x00%016d\x00bill#gone%d", i, i)})
		}
		if err := f.rdb.ZAdd(f.Context(), f.key("aside"), gone...).Err(); err != nil {
			t.Fatal(err)
		}
		due := f.handled("h", "due")
		if done, err := f.SetAside(f.Context(), due, "handler h"); err != nil || !done {
			t.Fatalf("%v, %v", done, err)
		}
		shelves, next, err := f.Shelves(f.Context(), ledger.Shelf{})
		if err != nil || len(shelves) != 1 || next != (ledger.Shelf{}) {
			t.Fatalf("shelves %+v, %+v, %v, want one", shelves, next, err)
		}
		picked, err := f.Pick(f.Context(), 1, shelves)
		if err != nil || len(picked) != 1 || picked[0].Run != due.Run {
			t.Errorf("picked %+v, %v, want %s", picked, err, due.Run)
		}
		if n := f.rdb.ZCard(f.Context(), f.key("aside")).Val(); n != 0 {
			t.Errorf("%d entries are left, want none", n)
		}
	})
}

// TestAllPlacesAreFound, however many there are, and what a run in the last one needs.
func TestAllPlacesAreFound(t *testing.T) {
	each(t, func(f *fixture) {
		const want = 210
		var last ledger.Due
		for i := range want {
			last = f.handled("h", fmt.Sprint(i))
			if _, err := f.SetAside(f.Context(), last, ledger.Need(fmt.Sprintf("handler %03d", i))); err != nil {
				t.Fatal(err)
			}
		}
		var found []ledger.Shelf
		for after := (ledger.Shelf{}); ; {
			shelves, next, err := f.Shelves(f.Context(), after)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, shelves...)
			if after = next; after == (ledger.Shelf{}) {
				break
			}
		}
		if len(found) != want || !slices.IsSortedFunc(found, func(a, b ledger.Shelf) int { return strings.Compare(string(a.Need), string(b.Need)) }) {
			t.Errorf("%d shelves, want %d: %+v", len(found), want, found)
		}
		if asides, err := f.Asides(f.Context()); err != nil || len(asides) != want || asides[want-1] != (ledger.Aside{Shelf: found[want-1], Runs: 1}) {
			t.Errorf("%d shelves are counted, %v, want %d with one run each", len(asides), err, want)
		}
		if need, err := f.NeedOf(f.Context(), f.find(last.Run)); err != nil || need != found[want-1].Need {
			t.Errorf("%s needs %q, %v, want %q", last.Run, need, err, found[want-1].Need)
		}
	})
}

// TestWorkersReceiveANoticeOfTheFirstRunThatIsSetAside listens to the message.
func TestWorkersReceiveANoticeOfTheFirstRunThatIsSetAside(t *testing.T) {
	each(t, func(f *fixture) {
		told := make(chan struct{}, 10)
		client, err := locks.Open(f.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: "w", Extension: locks.ExtensionOptions{OnNotice: func(notice string) {
			if notice == ledger.NoticeAside {
				told <- struct{}{}
			}
		}}})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close(f.Context())
		for i := range 3 {
			if _, err := f.SetAside(f.Context(), f.handled("h", fmt.Sprint(i)), "handler h"); err != nil {
				t.Fatal(err)
			}
		}
		<-told
		if _, err := f.SetAside(f.Context(), f.handled("g", "g"), "handler g"); err != nil {
			t.Fatal(err)
		}
		<-told
		if n := len(told); n != 0 {
			t.Errorf("%d more messages, want one for each shelf", n)
		}
	})
}

// TestAnEntryOfARunThatHasMovedPicksNothing has runs that were set aside, and then became due in
// another queue, or in the same one anew. They have deliveries. The entries from before are
// removed, and the runs are picked only in their present shelves.
func TestAnEntryOfARunThatHasMovedPicksNothing(t *testing.T) {
	for name, move := range map[string]func(f *fixture, due ledger.Due) ledger.Due{
		"to another queue": func(f *fixture, due ledger.Due) ledger.Due {
			job := newJob("bill")
			job.Command, job.Handler, job.Every, job.Queue = nil, "h", 0, "new"
			f.carries("config", job, ledger.StandingActive)
			moved, again, err := f.Requeue(f.Context(), []*ledger.Record{f.find(due.Run)})
			if err != nil || len(moved) != 1 || len(again) != 1 {
				f.Fatalf("moved %+v, due %+v, %v", moved, again, err)
			}
			return again[0]
		},
		"after its end": func(f *fixture, due ledger.Due) ledger.Due {
			job := newJob("bill")
			job.Command, job.Handler, job.Every = nil, "h", 0
			if _, err := f.Cancel(f.Context(), due.Run, job, ledger.Act{Who: "ann"}); err != nil {
				f.Fatal(err)
			}
			f.nextMillisecond() // so that it is due since another one
			again, err := f.Reopen(f.Context(), ledger.Reopening{Run: due.Run, Job: job})
			if err != nil || len(again) != 1 {
				f.Fatalf("due %+v, %v", again, err)
			}
			return again[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				web := f.session("web")
				due := f.handled("h", "a")
				if done, err := f.SetAside(f.Context(), due, "handler h"); err != nil || !done {
					f.Fatalf("%v, %v", done, err)
				}
				due = move(f, due)
				old := ledger.Shelf{Queue: "default", Need: "handler h"}
				if picked, err := f.Pick(f.Context(), 1, []ledger.Shelf{old}); err != nil || len(picked) != 0 {
					f.Errorf("picked %+v, %v by its old entry, want nothing", picked, err)
				}
				if n := f.rdb.ZCard(f.Context(), f.key("aside")).Val(); n != 0 {
					f.Errorf("%d entries are left, want none", n)
				}
				present := ledger.Shelf{Queue: due.Queue, Need: "handler h"}
				if done, err := f.SetAside(f.Context(), due, "handler h"); err != nil || !done {
					f.Fatalf("%v, %v, want its delivery to be valid", done, err)
				}
				if shelves, _, err := f.Shelves(f.Context(), ledger.Shelf{}); err != nil || !slices.Equal(shelves, []ledger.Shelf{present}) {
					f.Errorf("shelves %+v, %v, want %+v", shelves, err, present)
				}
				picked, err := f.Pick(f.Context(), 1, []ledger.Shelf{old, present})
				if err != nil || len(picked) != 1 || picked[0].Run != due.Run || picked[0].Queue != due.Queue {
					f.Fatalf("picked %+v, %v, want %s in the queue %s", picked, err, due.Run, due.Queue)
				}
				f.claim(web, picked[0], ledger.ClaimGranted)
			})
		})
	}
}

// TestTheEndOfARunRemovesItFromThoseSetAside, also behind an entry that stays at the head of its
// shelf, and behind other shelves.
func TestTheEndOfARunRemovesItFromThoseSetAside(t *testing.T) {
	each(t, func(f *fixture) {
		asides := func() (all string) {
			f.Helper()
			some, err := f.Asides(f.Context())
			if err != nil {
				f.Fatal(err)
			}
			for _, aside := range some {
				all += fmt.Sprintf("%s: %d ", aside.Need, aside.Runs)
			}
			return all
		}
		for _, need := range []ledger.Need{"handler a", "handler h"} {
			for i := range 3 {
				due := f.handled("h", fmt.Sprint(need.Handler(), i))
				if done, err := f.SetAside(f.Context(), due, need); err != nil || !done {
					t.Fatalf("%v, %v", done, err)
				}
			}
		}
		if got, want := asides(), "handler a: 3 handler h: 3 "; got != want {
			t.Fatalf("set aside: %q, want %q", got, want)
		}
		for _, run := range []jobs.RunID{"bill#a1", "bill#h2"} {
			if _, err := f.Cancel(f.Context(), run, newJob("bill"), ledger.Act{Who: "ann", What: "cancel", On: string(run)}); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := asides(), "handler a: 2 handler h: 2 "; got != want {
			t.Errorf("after two were canceled: %q, want %q", got, want)
		}
	})
}

// TestARunThatCannotBeReadIsListedUntilItIsEnded: the record is damaged while one index entry alone
// leads to the run. The script that removes the entry leaves another one.
func TestARunThatCannotBeReadIsListedUntilItIsEnded(t *testing.T) {
	const need = "handler h"
	for name, test := range map[string]struct {
		before func(f *fixture) jobs.RunID
		remove func(f *fixture, run jobs.RunID) error
	}{
		"waiting, and offered its locks": {
			func(f *fixture) jobs.RunID { return f.blocked(0) },
			func(f *fixture, _ jobs.RunID) error {
				if _, err := f.rdb.ZAdd(f.Context(), f.key("idx"), redis.Z{Member: "@\x00o\x00+j#waits"}).Result(); err != nil {
					return err
				}
				f.sweep()
				return nil
			},
		},
		"waiting for too long": {
			func(f *fixture) jobs.RunID { return f.blocked(time.Millisecond) },
			func(f *fixture, run jobs.RunID) error { _, err := f.Expire(f.Context(), run, f.job); return err },
		},
		"set aside, and listed": {
			func(f *fixture) jobs.RunID { return f.setAside(need) },
			func(f *fixture, _ jobs.RunID) error { _, _, err := f.Shelves(f.Context(), ledger.Shelf{}); return err },
		},
		"set aside, and picked": {
			func(f *fixture) jobs.RunID { return f.setAside(need) },
			func(f *fixture, _ jobs.RunID) error {
				_, err := f.Pick(f.Context(), 1, []ledger.Shelf{{Queue: "default", Need: need}})
				return err
			},
		},
		"scheduled": {
			func(f *fixture) jobs.RunID {
				enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: "later", Trigger: ledger.TriggerEnqueue, In: time.Hour})
				if err != nil {
					f.Fatal(err)
				}
				if err := f.rdb.ZAdd(f.Context(), f.key("timer"), redis.Z{Score: 1, Member: string(enqueued.Run)}).Err(); err != nil {
					f.Fatal(err)
				}
				return enqueued.Run
			},
			func(f *fixture, _ jobs.RunID) error { f.sweep(); return nil }, // its reply is lost
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				f.job.Every = 0
				run := test.before(f)
				if err := f.rdb.HSet(f.Context(), f.key("run"), string(run), "garbage").Err(); err != nil {
					f.Fatal(err)
				}
				if err := test.remove(f, run); err != nil {
					f.Fatal(err)
				}
				sweep, err := f.Sweep(f.Context(), ledger.SweepLimits{Most: 100})
				if err != nil || !slices.Contains(sweep.Broken, run) {
					f.Fatalf("a sweep finds %v, %v, want %s", sweep.Broken, err, run)
				}
				outcome, _, err := f.Refuse(f.Context(), ledger.Refusal{Run: run, Cause: ledger.ErrUnreadable})
				if err != nil || outcome != ledger.RefusalEnded {
					f.Errorf("%s, %v, want it ended", outcome, err)
				}
				f.wantState(run, ledger.StateFailed)
			})
		})
	}
}

// setAside makes a run that was set aside.
func (f *fixture) setAside(need ledger.Need) jobs.RunID {
	f.Helper()
	due := f.handled("h", "aside")
	if done, err := f.SetAside(f.Context(), due, need); err != nil || !done {
		f.Fatalf("%v, %v", done, err)
	}
	return due.Run
}

// blocked makes a run of the fixture's job wait for its locks.
func (f *fixture) blocked(patience time.Duration) jobs.RunID {
	f.Helper()
	web := f.session("web")
	if _, err := web.Acquire(f.Context(), locks.Exclusive("bill:1")); err != nil {
		f.Fatal(err)
	}
	f.job.Lock = jobs.Lock{Exclusive: []string{"bill:1"}, Wait: patience, OnBusy: jobs.BusySkip}
	enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: "waits", Trigger: ledger.TriggerEnqueue})
	if err != nil {
		f.Fatal(err)
	}
	f.claim(web, enqueued.Due[0], ledger.ClaimWaiting)
	return enqueued.Run
}
