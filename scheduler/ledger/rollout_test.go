package ledger_test

import (
	"slices"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// carries registers a definition as a worker with this config does.
func (f *fixture) carries(config string, job *jobs.Job, want ledger.Standing) ledger.RegisteredJob {
	f.Helper()
	registered, err := f.Register(f.Context(), config, []*jobs.Job{job})
	if err != nil {
		f.Fatal(err)
	}
	if got := registered.Jobs[job.Name]; got.Standing != want {
		f.Fatalf("with config %s the definition is %s, want %s", config, got.Standing, want)
	}
	return registered.Jobs[job.Name]
}

// left makes all workers with a config appear to have been gone for a while.
func (f *fixture) left(config string, since time.Duration) {
	f.Helper()
	if err := f.rdb.HSet(f.Context(), f.key("ledger"), "config:"+config, f.now().Add(-since).UnixMilli()).Err(); err != nil {
		f.Fatal(err)
	}
	f.nextMillisecond()
}

// decides submits one tick to the ledger by a definition, and returns the reply.
func (f *fixture) decides(job *jobs.Job, cursor time.Time) ledger.Created {
	f.Helper()
	tick := cursor.Add(time.Second)
	created := f.Create(f.Context(), []ledger.Decision{{Job: job, Seen: cursor, Cursor: tick, By: "me.1",
		Ticks: []ledger.Tick{{At: tick, Verdict: ledger.VerdictRun}}}})[0]
	if created.Err != nil {
		f.Fatal(created.Err)
	}
	return created
}

// activates changes the definition of one job, and returns the reply.
func (f *fixture) activates(a ledger.Activation) ledger.Created {
	f.Helper()
	activated := f.Activate(f.Context(), []ledger.Activation{a})[0]
	if activated.Err != nil {
		f.Fatal(activated.Err)
	}
	return activated
}

// versions are definitions of job "j" with the same trigger.
func versions(descriptions ...string) (list []*jobs.Job) {
	for _, d := range descriptions {
		job := newJob("j")
		job.Description, job.Overlap = d, jobs.OverlapAllow
		list = append(list, job)
	}
	return list
}

func TestTheNewestDefinitionDecides(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("one", "two")
		f.job = v[0]
		cursor := f.cursor(f.job, 20)
		f.carries("old", v[0], ledger.StandingActive)
		f.carries("new", v[1], ledger.StandingActive)
		f.carries("old", v[0], ledger.StandingDrifted) // it was there before
		if created := f.decides(v[0], cursor); !created.Inactive || len(created.Due) > 0 {
			f.Errorf("%+v, want the older one refused", created)
		}
		created := f.decides(v[1], cursor)
		a := f.claim(f.session("w"), created.Due[0], ledger.ClaimGranted)
		if a.Job.Description != "two" {
			f.Errorf("the run carries %q, want the newest", a.Job.Description)
		}
		if record, err := f.Job(f.Context(), "j"); err != nil || record.Job.Description != "two" {
			f.Errorf("%+v, %v, want the newest shown", record.Job, err)
		}
	})
}

func TestADefinitionThatNoWorkerCarriesGivesWay(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("one", "two")
		f.job = v[0]
		cursor := f.cursor(f.job, 20)
		f.carries("config", v[0], ledger.StandingActive)
		f.carries("new", v[1], ledger.StandingActive)
		f.left("new", 40*time.Second)
		f.carries("config", v[0], ledger.StandingDrifted)
		f.left("new", 70*time.Second)
		if got := f.carries("config", v[0], ledger.StandingActive).Cursor; !got.Equal(cursor) {
			f.Errorf("cursor %v, want it to stay at %v", got, cursor)
		}
		if created := f.decides(v[0], cursor); len(created.Due) != 1 {
			f.Errorf("%+v, want the one before to decide again", created)
		}
		// it was forgotten, so it is the newest once more
		f.carries("new", v[1], ledger.StandingActive)
		f.carries("config", v[0], ledger.StandingDrifted)
	})
}

func TestAPollKeepsADefinitionCarried(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("one", "two")
		f.job = v[0]
		f.cursor(f.job, 20)
		w := f.session("w")
		f.carries("new", v[1], ledger.StandingActive)
		f.left("new", 70*time.Second)
		poll, err := f.Poll(f.Context(), w.Session(), "new", 0)
		if err != nil {
			f.Fatal(err)
		}
		hash, err := ledger.Hash(v[1])
		if err != nil || poll.Moved["j"].Active != hash {
			f.Errorf("active %q, want %q, %v", poll.Moved["j"].Active, hash, err)
		}
		f.carries("config", v[0], ledger.StandingDrifted)
	})
}

// TestAPollReportsThatDefinitionsWereDropped: a worker that was absent at that time must register
// its definitions again.
func TestAPollReportsThatDefinitionsWereDropped(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("one", "two")
		w := f.session("w")
		dropped := func(when string, carries bool) time.Time {
			f.Helper()
			poll, err := f.Poll(f.Context(), w.Session(), "new", 0)
			if err != nil {
				f.Fatal(err)
			}
			if poll.Carries != carries {
				f.Errorf("%s, a poll says that its session carries definitions: %v", when, poll.Carries)
			}
			return poll.Dropped
		}
		last := time.Time{}
		wants := func(when string, later bool) {
			f.Helper()
			got := dropped(when, true)
			if got.After(last) != later {
				f.Errorf("%s, definitions were dropped at %v, and before at %v", when, got, last)
			}
			last = got
			f.nextMillisecond()
		}
		f.carries("old", v[0], ledger.StandingActive)
		f.carries("other", v[0], ledger.StandingActive)
		f.carries("new", v[1], ledger.StandingActive)
		wants("when two definitions are carried", false)
		f.left("other", 70*time.Second)
		f.carries("old", v[0], ledger.StandingDrifted)
		f.carries("new", v[1], ledger.StandingActive)
		wants("while one config is absent", false)
		f.carries("third", v[0], ledger.StandingDrifted)
		wants("when another config has its definition", true)
		f.left("old", 70*time.Second)
		f.left("third", 70*time.Second)
		f.carries("new", v[1], ledger.StandingActive)
		wants("when a definition gave way", true)
		f.carries("new", v[1], ledger.StandingActive)
		wants("after another registration", false)
		f.end(w)
		if got := dropped("after the end of the session", false); !got.IsZero() {
			f.Errorf("the poll of a session that has ended says %v", got)
		}
	})
}

// A config that is taken back: its definitions are older than those it replaces.
func TestADefinitionThatIsLeftGivesWaySoon(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("one", "two")
		f.job = v[0]
		f.cursor(f.job, 20)
		f.carries("config", v[0], ledger.StandingActive)
		f.carries("new", v[1], ledger.StandingActive)
		w, leaves := f.session("w"), f.session("leaves")
		poll := func(client *locks.Client) {
			if _, err := f.Poll(f.Context(), client.Session(), "new", 0); err != nil {
				f.Fatal(err)
			}
		}
		leave := func(keep time.Duration) {
			if err := f.Leave(f.Context(), leaves.Session(), "", keep); err != nil {
				f.Fatal(err)
			}
		}
		poll(leaves)
		leave(5 * time.Second)
		// not before its worker could have been started again
		f.carries("config", v[0], ledger.StandingDrifted)
		standing := func() ledger.Standing {
			registered, err := f.Register(f.Context(), "config", []*jobs.Job{v[0]})
			if err != nil {
				f.Fatal(err)
			}
			return registered.Jobs["j"].Standing
		}
		began := time.Now()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for standing() != ledger.StandingActive {
			if <-tick.C; time.Since(began) > 30*time.Second {
				f.Fatal("it does not give way")
			}
		}
		// it was forgotten, so it is the newest once more
		f.carries("new", v[1], ledger.StandingActive)

		// Left by one worker, and carried by another.
		poll(leaves)
		poll(w)
		leave(0)
		f.carries("config", v[0], ledger.StandingDrifted)

		// The other one also leaves it.
		if err := f.Leave(f.Context(), w.Session(), "new", 0); err != nil {
			f.Fatal(err)
		}
		f.carries("config", v[0], ledger.StandingActive)

		// A config that was left long ago does not come back when it is left again.
		f.carries("new", v[1], ledger.StandingActive)
		f.left("new", 70*time.Second)
		leave(0)
		f.carries("config", v[0], ledger.StandingActive)
	})
}

// TestADefinitionThatAnOlderBuildMayCarryDoesNotGiveWayAtOnce: workers of older builds do not
// report what they carry.
func TestADefinitionThatAnOlderBuildMayCarryDoesNotGiveWayAtOnce(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("one", "two")
		shows := func(client *locks.Client, card string) {
			if err := client.Extension().SetCard(f.Context(), []byte(card)); err != nil {
				f.Fatal(err)
			}
		}
		leaves := f.session("leaves")
		shows(leaves, `{"host":"h","queues":{"default":1},"picks":true}`)
		comesAndLeaves := func() {
			f.carries("new", v[1], ledger.StandingActive)
			if _, err := f.Poll(f.Context(), leaves.Session(), "new", 0); err != nil {
				f.Fatal(err)
			}
			if err := f.Leave(f.Context(), leaves.Session(), "", 0); err != nil {
				f.Fatal(err)
			}
		}
		f.carries("config", v[0], ledger.StandingActive)
		shows(f.session("locks"), `{"host":"h","pid":1}`)
		shows(f.session("left"), `{"host":"h","queues":{"default":1},"picks":true}`)
		comesAndLeaves()
		f.carries("config", v[0], ledger.StandingActive)

		older := f.session("older")
		shows(older, `{"host":"h","queues":{"default":1},"handlers":[]}`)
		comesAndLeaves()
		f.carries("config", v[0], ledger.StandingDrifted)
		f.left("new", ledger.GoneAfter+time.Second)
		f.carries("config", v[0], ledger.StandingActive)

		f.end(older)
		comesAndLeaves()
		f.carries("config", v[0], ledger.StandingActive)
	})
}

// TestAConfigThatComesAndLeavesBetweenTwoLooksIsNoticed: a worker that registered in between has
// drifted from it.
func TestAConfigThatComesAndLeavesBetweenTwoLooksIsNoticed(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("one", "two")
		f.carries("config", v[0], ledger.StandingActive)
		before, err := f.Carried(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		w := f.session("w")
		f.carries("new", v[1], ledger.StandingActive)
		if _, err := f.Poll(f.Context(), w.Session(), "new", 0); err != nil {
			f.Fatal(err)
		}
		f.carries("config", v[0], ledger.StandingDrifted)
		if err := f.Leave(f.Context(), w.Session(), "", 0); err != nil {
			f.Fatal(err)
		}
		after, err := f.Carried(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		if !slices.ContainsFunc(before, func(one string) bool { return !slices.Contains(after, one) }) {
			f.Errorf("carried were %q and are %q, want an entry to have gone", before, after)
		}
		f.carries("config", v[0], ledger.StandingActive)
	})
}

func TestAFleetThatWasDownContinuesWhereItStopped(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("one", "two")
		f.job = v[0]
		cursor := f.cursor(f.job, 3000)
		f.left("config", 6*24*time.Hour)
		// also with another definition
		if got := f.carries("other", v[1], ledger.StandingActive).Cursor; !got.Equal(cursor) {
			f.Errorf("cursor %v, want it to stay at %v", got, cursor)
		}
	})
}

func TestAJobThatNoWorkerCarriedForAWeekBeginsAnew(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.cursor(f.job, 3000)
		for _, config := range []string{"config", "other"} { // as it was, and then with another one
			f.left("config", 8*24*time.Hour)
			got := f.carries(config, f.job, ledger.StandingActive).Cursor
			if got.Before(cursor.Add(time.Minute)) {
				f.Errorf("cursor %v with config %s, want it to begin now", got, config)
			}
			if err := f.rdb.HSet(f.Context(), f.key("cursor"), f.job.Name, cursor.UnixMilli()).Err(); err != nil {
				f.Fatal(err)
			}
		}
	})
}

func TestAChangedTriggerDecidesUpToNowByTheOldOneFirst(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		cursor := f.cursor(f.job, 20)
		changed := newJob("j")
		changed.Every = 7 * time.Second
		standing := f.carries("new", changed, ledger.StandingChange)
		if standing.Old == nil || standing.Old.Every != time.Second || !standing.Cursor.Equal(cursor) {
			f.Fatalf("%+v, want the old definition and its cursor", standing)
		}
		if created := f.decides(changed, cursor); !created.Inactive {
			f.Errorf("%+v, want it to wait for the change", created)
		}
		// Meanwhile the old one continues.
		if created := f.decides(f.job, cursor); len(created.Due) != 1 {
			f.Fatalf("%+v, want the old one to decide until then", created)
		}
		now := cursor.Add(3500 * time.Millisecond)
		change := ledger.Activation{Job: changed, From: f.job, Seen: cursor.Add(time.Second), Cursor: now}
		created := f.Create(f.Context(), []ledger.Decision{{Job: f.job, Seen: cursor.Add(time.Second), Cursor: cursor.Add(3 * time.Second), By: "me.1",
			Ticks: []ledger.Tick{{At: cursor.Add(2 * time.Second), Verdict: ledger.VerdictRun}, {At: cursor.Add(3 * time.Second), Verdict: ledger.VerdictRun}}}})[0]
		if created.Err != nil || len(created.Due) != 2 {
			f.Fatalf("%+v, want the ticks of the old trigger", created)
		}
		if activated := f.activates(change); !activated.Moved || !activated.Cursor.Equal(created.Cursor) {
			f.Errorf("%+v, want a change refused that leaves out ticks", activated)
		}
		change.Seen = created.Cursor
		if activated := f.activates(change); !activated.Cursor.Equal(now) {
			f.Errorf("%+v, want the definition active from %v", activated, now)
		}
		if again := f.activates(change); !again.Moved {
			f.Errorf("%+v, want the second change refused", again)
		}
		a := f.claim(f.session("w"), created.Due[0], ledger.ClaimGranted)
		if a.Job.Every != time.Second {
			f.Errorf("a tick of the old trigger carries %v", a.Job.Every)
		}
		if standing := f.carries("new", changed, ledger.StandingActive); !standing.Cursor.Equal(now) {
			f.Errorf("cursor %v, want %v", standing.Cursor, now)
		}
		if created := f.decides(f.job, now); !created.Inactive {
			f.Errorf("%+v, want the old one refused", created)
		}
		if created := f.decides(changed, now); len(created.Due) != 1 {
			f.Errorf("%+v, want the new one to go on", created)
		}
	})
}

func TestAnUnknownDefinitionIsNotActivated(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.cursor(f.job, 20)
		changed := newJob("j")
		changed.Every = 7 * time.Second
		if activated := f.activates(ledger.Activation{Job: changed, From: f.job, Seen: cursor, Cursor: cursor}); !activated.Inactive {
			f.Errorf("%+v, want it refused", activated)
		}
	})
}

func TestAJobShowsThatAnotherDefinitionOfItIsCarried(t *testing.T) {
	each(t, func(f *fixture) {
		v := versions("one", "two")
		wants := func(want bool) {
			f.Helper()
			all, err := f.Jobs(f.Context())
			if err != nil || len(all) != 1 || all[0].Drifted != want {
				f.Errorf("%+v, %v, want drifted %v", all, err, want)
			}
			if one, err := f.Job(f.Context(), "j"); err != nil || one.Drifted != want {
				f.Errorf("%+v, %v, want drifted %v", one, err, want)
			}
		}
		f.carries("old", v[0], ledger.StandingActive)
		wants(false)
		f.carries("new", v[1], ledger.StandingActive)
		wants(true)
		f.left("old", 20*time.Second)
		wants(false)
	})
}
