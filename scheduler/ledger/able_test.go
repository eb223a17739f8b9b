package ledger_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// snapshot reads all keys of a namespace that have to do with runs and locks.
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
	enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.ByRequest})
	if err != nil || len(enqueued.Due) != 1 {
		f.Fatalf("%+v, %v", enqueued, err)
	}
	return enqueued.Due[0]
}

// TestAClaimThatItsWorkerCannotDoChangesNothing: no lock is taken, no token issued, and the run can be claimed by another.
func TestAClaimThatItsWorkerCannotDoChangesNothing(t *testing.T) {
	each(t, func(f *fixture) {
		able := ledger.New(f.rdb, f.Space())
		f.Limit(func(need ledger.Need) bool { return need.Handler() == "known" })
		web := f.session("web")
		due := f.handled("unknown", "a")
		before := f.snapshot()
		a := f.claim(web, due, ledger.Unable)
		if a.Need.Handler() != "unknown" || a.Need.Keys() != nil {
			t.Errorf("it needs %q, want the handler unknown", a.Need)
		}
		if after := f.snapshot(); !maps.Equal(before, after) {
			t.Errorf("the claim made %v of %v", after, before)
		}

		// Of several, those are granted that the worker can do, also when their marks are not known yet.
		for round := range 2 {
			claims := []ledger.Claim{{Request: f.request(web), Due: due}}
			for i := range 3 {
				claims = append(claims, ledger.Claim{Request: f.request(web), Due: f.handled("known", fmt.Sprintf("%d-%d", round, i))})
			}
			for i, claimed := range f.ClaimAll(f.Context(), claims, 0) {
				switch {
				case i == 0 && (claimed == nil || claimed.Outcome != ledger.Unable):
					t.Errorf("round %d: %+v, want it declined", round, claimed)
				case i > 0 && round == 0 && claimed != nil:
					t.Errorf("round 0: %+v, want it to be sent again, since the definition is new here", claimed)
				case i > 0 && round == 1 && (claimed == nil || claimed.Outcome != ledger.Granted):
					t.Errorf("round 1: %+v, want it granted", claimed)
				}
				if i == 0 {
					claims[i].Request.Drop()
				} else if claimed == nil {
					claimed, err := f.Claim(f.Context(), claims[i].Request, claims[i].Due, 0, nil)
					if err != nil || claimed.Outcome != ledger.Granted {
						t.Errorf("sent again: %+v, %v, want it granted", claimed, err)
					}
				}
			}
		}
		if claimed, err := able.Claim(f.Context(), f.request(web), due, 0, nil); err != nil || claimed.Outcome != ledger.Granted {
			t.Errorf("another worker: %+v, %v, want it granted", claimed, err)
		}
	})
}

// TestAnotherHandlerOrKeyIsAskedFor changes the definition of a job whose runs were claimed before.
func TestAnotherHandlerOrKeyIsAskedFor(t *testing.T) {
	each(t, func(f *fixture) {
		f.Limit(func(need ledger.Need) bool { return need.Handler() == "first" && need.Keys() == nil })
		web := f.session("web")
		f.claim(web, f.handled("first", "a"), ledger.Granted)
		f.claim(web, f.handled("other", "b"), ledger.Unable)
		due := f.handled("first", "c")
		body := f.rdb.HGet(f.Context(), f.key("body"), string(due.Run)).Val()
		newer := body[:len(body)-1] + `,"zone":"eu"}`
		if err := f.rdb.HSet(f.Context(), f.key("body"), string(due.Run), newer).Err(); err != nil {
			t.Fatal(err)
		}
		if a := f.claim(web, due, ledger.Unable); !slices.Equal(a.Need.Keys(), []string{"zone"}) || a.Need.Handler() != "first" {
			t.Errorf("it needs %q, want handler first and key zone", a.Need)
		}
	})
}

// TestRunsThatAreSetAsideArePickedInTheirOrder: they are due without a delivery, hold up no direct claim, and go to a
// worker that names the place.
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
			f.claim(web, due, ledger.Stale)
			record := f.wantState(due.Run, ledger.DueNow)
			if need, err := f.NeedOf(f.Context(), record); err != nil || need != "handler h" {
				t.Errorf("it needs %q, %v", need, err)
			}
		}
		if sweep, err := f.Sweep(f.Context(), ledger.SweepLimits{Most: 10}); err != nil || len(sweep.Due) != 0 {
			t.Errorf("a sweep pushes %+v, %v, want nothing", sweep.Due, err)
		}

		late := f.handled("g", "late")
		claimed, err := f.Claim(f.Context(), f.request(web), late, 0, []string{late.Queue})
		if err != nil || claimed.Outcome != ledger.Granted {
			t.Errorf("a direct claim behind them: %+v, %v, want it granted", claimed, err)
		}

		if _, err := f.Cancel(f.Context(), aside[0].Run, f.job, ledger.Act{Who: "ann"}); err != nil {
			t.Fatal(err)
		}
		places, err := f.Places(f.Context())
		if want := (ledger.Place{Queue: late.Queue, Need: "handler h"}); err != nil || !slices.Equal(places, []ledger.Place{want}) {
			t.Fatalf("places %+v, %v, want %+v", places, err, want)
		}
		if asides, err := f.Asides(f.Context()); err != nil || len(asides) != 1 || asides[0].Runs != 2 {
			t.Errorf("%+v, %v, want the two that are left", asides, err)
		}
		for i := 1; i < 3; i++ {
			picked, err := f.Pick(f.Context(), 1, places)
			if err != nil || len(picked) != 1 || picked[0].Run != aside[i].Run || picked[0].N <= aside[i].N {
				t.Fatalf("picked %+v, %v, want %s under a new n", picked, err, aside[i].Run)
			}
			f.finish(f.claim(web, picked[0], ledger.Granted), ledger.Success, ledger.Recorded)
		}
		if picked, err := f.Pick(f.Context(), 10, places); err != nil || len(picked) != 0 {
			t.Errorf("picked %+v, %v, want nothing", picked, err)
		}
	})
}

// TestWorkersAreToldOfTheFirstRunThatIsSetAside listens to the message.
func TestWorkersAreToldOfTheFirstRunThatIsSetAside(t *testing.T) {
	each(t, func(f *fixture) {
		told := make(chan struct{}, 10)
		client, err := locks.Open(f.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: "w", OnNotice: func(notice string) {
			if notice == ledger.NoticeAside {
				told <- struct{}{}
			}
		}})
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
			t.Errorf("%d more messages, want one for each place", n)
		}
	})
}
