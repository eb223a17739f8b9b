package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// everySecond adds a job with a tick every second that does nothing.
func (f *fleet) everySecond(name string) *jobs.Job {
	return f.job(name, func(context.Context, *jobs.Run[struct{}]) error { return nil }, func(j *jobs.Job) { j.Every = time.Second })
}

// ticks returns the decided ticks of a job, in their order.
func (f *fleet) ticks(job *jobs.Job) []*ledger.Record {
	f.Helper()
	history, err := f.ledger.History(f.Context(), job.Name, 0)
	if err != nil {
		f.Fatal(err)
	}
	slices.SortFunc(history, func(a, b *ledger.Record) int { return a.Tick.Compare(b.Tick) })
	return history
}

// turns waits for two ticks of a job that changes from every second to every three seconds, and
// checks all of its ticks.
func (f *fleet) turns(job *jobs.Job) {
	f.Helper()
	f.await("the new trigger to be active", func() bool {
		record, err := f.ledger.Job(f.Context(), job.Name)
		return err == nil && record.Job.Every == 3*time.Second
	})
	began := time.Now()
	f.await("two ticks by the new trigger", func() bool {
		n := 0
		for _, record := range f.ticks(job) {
			if record.Tick.After(began.Add(2 * time.Second)) {
				n++
			}
		}
		return n >= 2
	})
	history := f.ticks(job)
	since := -1 // the first tick by the new trigger
	for i, record := range history {
		if i > 0 && record.Tick.Sub(history[i-1].Tick) != time.Second && since < 0 {
			since = i
		}
		if since >= 0 && (record.Tick.Unix()%3 != 0 || i > since && record.Tick.Sub(history[i-1].Tick) != 3*time.Second) {
			f.Errorf("tick %v after %v, want one each three seconds", record.Tick, history[i-1].Tick)
		}
		if record.State != ledger.StateSucceeded {
			f.Errorf("tick %v %s (%s), want it to have run", record.Tick, record.State, record.Reason)
		}
	}
	if since < 0 {
		f.Fatal("no tick by the new trigger")
	}
	if gap := history[since].Tick.Sub(history[since-1].Tick); gap > 3*time.Second {
		f.Errorf("%v between the last tick by the old trigger and the first by the new one", gap)
	}
}

// TestARollingDeployLosesAndDoublesNoTick starts a worker with a new trigger beside one with the
// old, and then ends it.
func TestARollingDeployLosesAndDoublesNoTick(t *testing.T) {
	f := newFleet(t)
	job := f.everySecond("tick")
	old := f.start()
	f.await("two ticks by the old trigger", func() bool { return len(f.ticks(job)) >= 2 })
	changed := *job
	changed.Every = 3 * time.Second
	f.start(func(o *worker.Options) { o.Jobs = []*jobs.Job{&changed} })
	f.await("the old worker to show as drifted", func() bool { return f.card(old.ID()).Drifted == 1 })
	f.turns(job)
}

func TestAReloadedTriggerLosesAndDoublesNoTick(t *testing.T) {
	f := newFleet(t)
	job := f.everySecond("tick")
	w := f.start()
	f.await("two ticks by the old trigger", func() bool { return len(f.ticks(job)) >= 2 })
	changed := *job
	changed.Every = 3 * time.Second
	if err := w.SetJobs(t.Context(), []*jobs.Job{&changed}, nil, "two"); err != nil {
		t.Fatal(err)
	}
	f.turns(job)
	if card := f.card(f.session(w)); card.Drifted != 0 || card.Config != "two" {
		t.Errorf("%+v, want the new config and nothing drifted", card)
	}
}

// One of two workers reloads; the other one has the old trigger until the end.
func TestAReloadBesideAWorkerWithTheOldConfigLosesAndDoublesNoTick(t *testing.T) {
	f := newFleet(t)
	job, stays := f.everySecond("tick"), f.everySecond("stays")
	old, w := f.start(), f.start()
	f.await("two ticks by the old trigger", func() bool { return len(f.ticks(job)) >= 2 })
	changed := *job
	changed.Every = 3 * time.Second
	if err := w.SetJobs(t.Context(), []*jobs.Job{&changed, stays}, nil, "two"); err != nil {
		t.Fatal(err)
	}
	f.await("the other worker to show as drifted", func() bool { return f.card(old.ID()).Drifted == 1 })
	f.turns(job)
	if card := f.card(f.session(w)); card.Drifted != 0 {
		t.Errorf("%+v, want nothing drifted where it was reloaded", card)
	}

	// After its own reload the other one agrees.
	if err := old.SetJobs(t.Context(), []*jobs.Job{&changed, stays}, nil, "two"); err != nil {
		t.Fatal(err)
	}
	f.await("nobody to be drifted", func() bool { return f.card(old.ID()).Drifted == 0 })
	records := f.ticks(stays)
	for i := 1; i < len(records); i++ {
		if gap := records[i].Tick.Sub(records[i-1].Tick); gap != time.Second {
			t.Errorf("%v between two ticks of the job that stays", gap)
		}
	}
}

// The new config carries what a reload does not change, as the old one did: else another worker's
// older definition would come back.
func TestAReloadCarriesWhatItDoesNotChange(t *testing.T) {
	f := newFleet(t)
	stays, changes := f.everySecond("stays"), f.everySecond("changes")
	before := *stays
	before.Description = "of another worker, and older"
	if _, err := f.ledger.Register(t.Context(), "other", []*jobs.Job{&before}); err != nil {
		t.Fatal(err)
	}
	w := f.start()
	f.await("ticks", func() bool { return len(f.ticks(stays)) > 0 })
	changed := *changes
	changed.Description = "new"
	if err := w.SetJobs(t.Context(), []*jobs.Job{stays, &changed}, nil, "two"); err != nil {
		t.Fatal(err)
	}
	f.await("the reload", func() bool {
		record, err := f.ledger.Job(t.Context(), "changes")
		return err == nil && record.Job.Description == "new"
	})
	digest, _, err := ledger.Digest(f.jobs)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.rdb.HSet(t.Context(), "{"+f.namespace+"}:ledger", "config:"+digest, time.Now().Add(-time.Hour).UnixMilli()).Err(); err != nil {
		t.Fatal(err)
	}
	registered, err := f.ledger.Register(t.Context(), "other", []*jobs.Job{&before})
	if err != nil {
		t.Fatal(err)
	}
	if got := registered.Jobs["stays"].Standing; got != ledger.StandingDrifted {
		t.Errorf("the older definition is %s, want %s", got, ledger.StandingDrifted)
	}
}

// A bad config is taken back within a minute: the older definition decides again soon, and misses
// nothing.
func TestAReloadIsTakenBack(t *testing.T) {
	f := newFleet(t)
	job := f.everySecond("j")
	w := f.start()
	f.await("ticks", func() bool { return len(f.ticks(job)) > 0 })
	mistake := *job
	mistake.Description = "a mistake"
	active := func() string {
		record, err := f.ledger.Job(t.Context(), "j")
		if err != nil {
			t.Fatal(err)
		}
		return record.Job.Description
	}
	for _, version := range []*jobs.Job{&mistake, job} {
		if err := w.SetJobs(t.Context(), []*jobs.Job{version}, nil, version.Description); err != nil {
			t.Fatal(err)
		}
		f.await("definition "+version.Description, func() bool { return active() == version.Description })
	}
	seen := len(f.ticks(job))
	f.await("more ticks", func() bool { return len(f.ticks(job)) > seen+1 })
	records := f.ticks(job)
	for i := 1; i < len(records); i++ {
		if gap := records[i].Tick.Sub(records[i-1].Tick); gap != time.Second {
			t.Errorf("%v between two ticks", gap)
		}
	}
}

// card returns the card of a worker.
func (f *fleet) card(id locks.SessionID) (card worker.Card) {
	f.Helper()
	sessions, _, err := f.ledger.Space().Sessions(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	for _, session := range sessions {
		if session.ID == id {
			if err := json.Unmarshal(session.Card, &card); err != nil {
				f.Fatal(err)
			}
		}
	}
	return card
}

// TestManyChangedTriggersDelayNoTick changes the triggers of 2,000 jobs over a slow network, which
// took twenty seconds with one round trip for each.
func TestManyChangedTriggersDelayNoTick(t *testing.T) {
	const many = 2000
	for name, rolling := range map[string]bool{"by a reload": false, "by a worker that comes": true} {
		t.Run(name, func(t *testing.T) {
			server := redistest.New(t, redistest.Options{})
			f := newFleetOn(t, server.Client(t))
			proxy := server.Proxy(t)
			proxy.Set(redistest.Faults{RequestDelay: 5 * time.Millisecond, ReplyDelay: 5 * time.Millisecond})
			far := func(o *worker.Options) { o.Redis, o.Logger = proxy.Client(t), slog.New(slog.DiscardHandler) }

			stays, turns := f.everySecond("stays"), f.everySecond("turns")
			for i := range many {
				f.jobs = append(f.jobs, &jobs.Job{Name: fmt.Sprint("job", i), Command: []string{"true"}, Queue: f.queue, Every: 24 * time.Hour,
					Overlap: jobs.OverlapQueue, MaxQueued: 1, OnMissed: jobs.MissedAll, OnCrash: jobs.CrashRerun, MaxCrashes: 3,
					History: jobs.History{Runs: 10, For: time.Hour}})
			}
			w := f.start(far)
			f.await("two ticks by the old triggers", func() bool { return len(f.ticks(turns)) >= 2 && len(f.ticks(stays)) >= 2 })
			changed := []*jobs.Job{stays}
			for _, job := range f.jobs[1:] {
				next := *job
				next.Every *= 2
				changed = append(changed, &next)
			}
			began := time.Now()
			if rolling {
				f.start(far, func(o *worker.Options) { o.Jobs = changed })
			} else if err := w.SetJobs(t.Context(), changed, nil, "two"); err != nil {
				t.Fatal(err)
			}
			f.await("all triggers to have changed", func() bool {
				records, err := f.ledger.Jobs(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return !slices.ContainsFunc(records, func(r ledger.JobRecord) bool { return r.Job.Name != stays.Name && r.Job.Every == f.old(r.Job.Name) })
			})
			took := time.Since(began)
			f.await("two ticks by the new trigger", func() bool {
				ticks := f.ticks(turns)
				return ticks[len(ticks)-1].Tick.After(began.Add(took + 4*time.Second))
			})
			for _, job := range []*jobs.Job{stays, turns} {
				var worst time.Duration
				for _, tick := range f.ticks(job) {
					if worst = max(worst, tick.Created.Sub(tick.Tick)); tick.State == ledger.StateMissed {
						t.Errorf("%s was missed: %s", tick.ID, tick.Reason)
					}
				}
				t.Logf("%d triggers changed in %s; the ticks of %s were %s late at most", many+1, took.Round(time.Millisecond), job.Name, worst)
				// ticks that wait for triggers are late by as much as these take
				if worst > max(3*time.Second, took/2) {
					t.Errorf("a tick of %s was decided %s late while triggers changed, want at most 1 s on a quiet machine", job.Name, worst)
				}
			}
		})
	}
}

// old returns how often a job ran by its first definition.
func (f *fleet) old(name string) time.Duration {
	i := slices.IndexFunc(f.jobs, func(job *jobs.Job) bool { return job.Name == name })
	return f.jobs[i].Every
}
