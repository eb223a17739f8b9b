package cmd

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/cmd/top"
	"lockstep/configs"
	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/worker"
)

func TestTopActsAsTheCommandsDo(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := redistest.New(t, redistest.Options{}).Client(t)
	stage := fakes.NewStage(t, rdb)
	conn, err := newConnection(rdb, configs.Settings{Redis: configs.Redis{Namespace: stage.Namespace}}, nil)
	must(t, err)
	job := &jobs.Job{Name: "settle", Handler: "h", Queue: "default", History: jobs.History{Runs: 10, For: time.Hour}}
	_, err = stage.Ledger.Register(ctx, "config", []*jobs.Job{job})
	must(t, err)
	web := stage.Open("web-1", &worker.Card{Host: "web-1", State: "ready", Slots: 2, Queues: map[string]int{"default": 1}})
	due := stage.Enqueue(job, "1", "null")
	stage.Begin(web, due)
	shell := stage.Open("shell", nil)
	hold, err := shell.TryAcquire(ctx, locks.Exclusive("bill:1"))
	must(t, err)
	holder := top.Target{Lock: "bill:1", Token: hold.Token()}

	f := fleetOf{conn}
	seen, err := f.See(ctx)
	must(t, err)
	if len(seen.Snapshot.Holders) != 2 || len(seen.Overview.Workers) != 1 {
		t.Errorf("seen: %+v, want two holds and a worker", seen.Overview)
	}
	detail, err := f.Run(ctx, due.Run)
	must(t, err)
	if detail.Run.ID != due.Run || detail.At.IsZero() || detail.Snapshot == nil {
		t.Errorf("a run is shown as %+v", detail)
	}
	events, err := f.Follow(due.Run).Next(ctx)
	must(t, err)
	if len(events) != 1 || events[0].Kind != admin.FollowAttempt || events[0].Worker != web.Session() {
		t.Errorf("a run is followed as %+v, want that its attempt runs", events)
	}

	act := func(verb top.Verb, on top.Target, why, effect, said string) {
		t.Helper()
		a, err := f.Prepare(ctx, verb, on)
		if err != nil {
			t.Errorf("%s: %v", verb, err)
			return
		}
		if !strings.Contains(a.Effect, effect) {
			t.Errorf("%s does %q, want %q", verb, a.Effect, effect)
		}
		got, err := a.Do(ctx, why)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, said) {
			t.Errorf("%s: %q, want %q", verb, got, said)
		}
	}
	run, job1 := top.Target{Run: due.Run}, top.Target{Job: "settle"}
	act(top.Retry, run, "", "run settle#1, which is running, runs again under its ID", "it is running")
	act(top.Cancel, run, "wrong day", "run settle#1, which is running, ends and is not retried", "settle#1 is asked to stop")
	act(top.PauseJob, job1, "holidays", "settle skips its ticks", "settle is paused")
	act(top.PauseJob, job1, "again", "settle skips its ticks", "settle is already paused")
	act(top.ResumeJob, job1, "", "settle runs its ticks again", "settle is resumed")
	act(top.Drain, top.Target{Worker: web.Session()}, "upgrade", "which has 1 run in progress, exits", "is asked to drain")
	act(top.Release, holder, "", "this ends the work of "+string(shell.Session()), "give a reason")
	act(top.Force, holder, "stuck", "two holders at the same time", "bill:1 is taken from "+string(shell.Session())+"; until ")
	if _, err := f.Prepare(ctx, top.Release, holder); err == nil || !strings.Contains(err.Error(), "bill:1 is not held (any more)") {
		t.Errorf("a release of an old hold: %v", err)
	}
	if _, err := f.Prepare(ctx, top.Cancel, top.Target{Run: "settle#2"}); err == nil || !strings.Contains(err.Error(), `no run "settle#2"`) {
		t.Errorf("a cancellation of no run: %v", err)
	}
	asked := map[top.Verb]string{}
	for _, verb := range []top.Verb{top.Cancel, top.Retry, top.PauseJob, top.Drain} {
		a, err := f.Prepare(ctx, verb, top.Target{Run: due.Run, Job: "settle", Worker: web.Session()})
		must(t, err)
		asked[verb] = fmt.Sprint(a.Asks, a.Reason)
	}
	if want := "map[cancel:true false drain:true false pause job:false false retry:false false]"; fmt.Sprint(asked) != want {
		t.Errorf("acts ask and need reasons: %v, want %s", asked, want)
	}

	acts, err := conn.reader.Audit(ctx, admin.Filter{})
	must(t, err)
	var got []string
	for _, a := range acts {
		if a.Who != whoAmI() {
			t.Errorf("the audit names %s, want %s", a.Who, whoAmI())
		}
		got = append(got, fmt.Sprintf("%s %s: %s", a.What, strings.TrimSuffix(a.On, string(web.Session())), a.Why))
	}
	want := []string{"release lock bill:1: stuck", "drain worker : upgrade", "resume job settle: ", "pause job settle: holidays", "cancel run settle#1: wrong day"}
	if !slices.Equal(got, want) {
		t.Errorf("the audit has\n%q\nwant\n%q", got, want)
	}
}
