package ledger_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

var (
	oldKey = []byte(strings.Repeat("old key ", 4))
	newKey = []byte(strings.Repeat("new key ", 4))
)

// process returns the ledger as another process of the namespace sees it, which has these keys and
// carries these jobs.
func (f *fixture) process(carries []*jobs.Job, list ...[]byte) *ledger.Ledger {
	f.Helper()
	keys, err := jobs.NewKeys(f.namespace, list...)
	if err != nil {
		f.Fatal(err)
	}
	l := ledger.New(f.rdb, f.Space())
	l.Sign(keys, func(name string) *jobs.Job {
		for _, job := range carries {
			if job.Name == name {
				return job
			}
		}
		return nil
	})
	return l
}

// enqueues requests a run, as a process does.
func (f *fixture) enqueues(l *ledger.Ledger, job *jobs.Job, id string) ledger.Due {
	f.Helper()
	enqueued, err := l.Enqueue(f.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue})
	if err != nil || len(enqueued.Due) != 1 {
		f.Fatalf("enqueue %s: %+v, %v", id, enqueued, err)
	}
	return enqueued.Due[0]
}

// registered returns a definition as Redis has it.
func (f *fixture) registered(l *ledger.Ledger, job string) *jobs.Job {
	f.Helper()
	record, err := l.Job(f.Context(), job)
	if err != nil {
		f.Fatal(err)
	}
	return record.Job
}

// verdict claims a run as a worker with this ledger does, and returns why it is refused, or "".
func (f *fixture) verdict(l *ledger.Ledger, due ledger.Due) string {
	f.Helper()
	w := *f
	w.Ledger = l
	client := w.session("w")
	a := w.claim(client, due, ledger.ClaimGranted)
	defer w.finish(a, ledger.OutcomeFailure, ledger.FinishRecorded)
	if a.Refused == nil {
		if len(a.Job.Command) == 0 {
			f.Errorf("%s is not refused, and its definition is lost", due.Run)
		}
		return ""
	}
	var wrong *jobs.SignatureError
	if !errors.As(a.Refused, &wrong) {
		f.Fatalf("refused with %v, want a SignatureError", a.Refused)
	}
	if len(a.Job.Command) > 0 {
		f.Errorf("the definition of a refused run is handed out: %+v", a.Job)
	}
	return wrong.Kind()
}

func TestAWorkerWithAKeyRefusesWhatWasNotSignedWithIt(t *testing.T) {
	each(t, func(f *fixture) {
		evil := newJob("j")
		evil.Command = []string{"evil"}
		worker := f.process([]*jobs.Job{f.job}, newKey)
		if _, err := worker.Register(f.Context(), "c", []*jobs.Job{f.job}); err != nil {
			f.Fatal(err)
		}
		other := newJob("other")
		for name, c := range map[string]struct {
			by   *ledger.Ledger
			job  *jobs.Job
			want string
		}{
			"its own key":                              {worker, f.job, ""},
			"no key":                                   {f.process(nil), evil, "unsigned"},
			"another key":                              {f.process(nil, oldKey), evil, "wrong"},
			"no key, a job of no config":               {f.process(nil), newJob("unknown"), "unsigned"},
			"no key, what the worker carries":          {f.process(nil), f.job, ""},
			"another key, what the worker carries":     {f.process(nil, oldKey), f.job, ""},
			"no key, what is registered and signed":    {f.process(nil), f.registered(f.Ledger, "j"), ""},
			"the key, a job that the worker lacks":     {f.process(nil, newKey), other, ""},
			"the new key, while two keys are accepted": {f.process(nil, newKey, oldKey), other, ""},
		} {
			due := f.enqueues(c.by, c.job, strings.Map(func(r rune) rune {
				if r == ' ' || r == ',' {
					return '-'
				}
				return r
			}, name))
			if got := f.verdict(worker, due); got != c.want {
				t.Errorf("made with %s: refused as %q, want %q", name, got, c.want)
			}
		}
		// A worker without a key runs everything, as before.
		if got := f.verdict(f.process(nil), f.enqueues(f.process(nil), evil, "no-keys")); got != "" {
			t.Errorf("without a key it is refused as %s", got)
		}
	})
}

func TestADefinitionCannotBeMovedToARunOfAnotherJob(t *testing.T) {
	each(t, func(f *fixture) {
		other := newJob("other")
		worker := f.process(nil, newKey)
		for _, job := range []*jobs.Job{f.job, other} { // the worker has seen both
			if got := f.verdict(worker, f.enqueues(worker, job, "before")); got != "" {
				t.Fatalf("refused as %s", got)
			}
		}
		mine, victim := f.enqueues(worker, f.job, "a"), f.enqueues(worker, other, "b")
		body, err := f.rdb.HGet(f.Context(), f.key("body"), string(mine.Run)).Result()
		if err != nil {
			f.Fatal(err)
		}
		if err := f.rdb.HSet(f.Context(), f.key("body"), string(victim.Run), body).Err(); err != nil {
			f.Fatal(err)
		}
		if got := f.verdict(worker, victim); got != "wrong" {
			t.Errorf("refused as %q, want wrong", got)
		}
	})
}

func TestAKeyThatIsIntroducedSignsWhatIsRegisteredAlready(t *testing.T) {
	each(t, func(f *fixture) {
		before := f.register(f.job)
		hash := f.rdb.HGet(f.Context(), f.key("facts"), "vj").Val()
		due := f.enqueues(f.Ledger, f.job, "before") // waits while the key is introduced
		worker := f.process([]*jobs.Job{f.job}, oldKey)
		if worker.Trust(f.registered(worker, "j")) != nil {
			t.Error("a worker does not trust the definition that it carries itself")
		}
		stranger := f.process(nil, oldKey)
		if err := stranger.Trust(f.registered(stranger, "j")); !errors.Is(err, jobs.ErrSignature) {
			t.Errorf("before a worker has signed it: %v, want ErrSignature", err)
		}
		after, err := worker.Register(f.Context(), "config", []*jobs.Job{f.job})
		if err != nil {
			f.Fatal(err)
		}
		if err := stranger.Trust(f.registered(stranger, "j")); err != nil {
			t.Errorf("after a worker has signed it: %v", err)
		}
		if got := after.Jobs["j"]; got.Standing != ledger.StandingActive || !got.Cursor.Equal(before.Jobs["j"].Cursor) {
			t.Errorf("got %+v, want it active as before: %+v", got, before.Jobs["j"])
		}
		if got := f.rdb.HGet(f.Context(), f.key("facts"), "vj").Val(); got != hash {
			t.Errorf("its hash changed from %q to %q", hash, got)
		}
		if got := f.verdict(worker, due); got != "" {
			t.Errorf("the run from before is refused as %s", got)
		}

		// A worker without the key, or a build without keys, leaves the signature.
		f.register(f.job)
		if err := stranger.Trust(f.registered(stranger, "j")); err != nil {
			t.Errorf("after a worker without a key has registered it: %v", err)
		}

		// The key is replaced: first a worker with both, then one with only the new one.
		both, next := f.process(nil, newKey, oldKey), f.process(nil, newKey)
		if err := both.Trust(f.registered(both, "j")); err != nil {
			t.Errorf("with both keys: %v", err)
		}
		if err := next.Trust(f.registered(next, "j")); !errors.Is(err, jobs.ErrSignature) {
			t.Errorf("with the new key alone: %v, want ErrSignature", err)
		}
		if _, err := both.Register(f.Context(), "config", []*jobs.Job{f.job}); err != nil {
			f.Fatal(err)
		}
		for name, l := range map[string]*ledger.Ledger{"both keys": both, "the new key": next} {
			if err := l.Trust(f.registered(l, "j")); err != nil {
				t.Errorf("signed anew, with %s: %v", name, err)
			}
		}
	})
}

func TestWhatWasReadFromRedisIsNotSignedUnverified(t *testing.T) {
	each(t, func(f *fixture) {
		f.register(f.job) // by a client without a key
		l := f.process(nil, newKey)
		client := f.session("w")
		planted := f.registered(l, "j")
		_, err := l.Enqueue(f.Context(), ledger.Request{Job: planted, ID: "x", Trigger: ledger.TriggerHand})
		_, again := l.Reopen(f.Context(), ledger.Reopening{Run: "j#y", Job: planted, Any: true})
		_, adopted := l.Adopt(f.Context(), ledger.Adoption{Job: planted, Queue: "default", ID: "z", Session: client.Session(), Giving: "g"})
		for call, err := range map[string]error{"enqueue": err, "reopen": again, "adopt": adopted} {
			if !errors.Is(err, jobs.ErrSignature) {
				t.Errorf("%s: %v, want ErrSignature", call, err)
			}
		}
		if n := f.rdb.HLen(f.Context(), f.key("body")).Val(); n != 0 {
			t.Errorf("%d runs were made", n)
		}
	})
}

func TestTicksOfAnUntrustedDefinitionFailAndTheNextOneTakesOver(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.cursor(f.job, 5) // by a client without a key
		changed := newJob("j")
		changed.Every = 2 * time.Second
		worker := f.process([]*jobs.Job{changed}, newKey)
		registered, err := worker.Register(f.Context(), "next", []*jobs.Job{changed})
		if err != nil || registered.Jobs["j"].Standing != ledger.StandingChange {
			f.Fatalf("got %+v, %v, want a change", registered, err)
		}
		old, tick := registered.Jobs["j"].Old, cursor.Add(time.Second)
		results := worker.Create(f.Context(), []ledger.Decision{
			{Job: old, Seen: cursor, Cursor: tick, By: "me.1", Ticks: []ledger.Tick{{At: tick, Verdict: ledger.VerdictRun}}},
		})
		results = append(results, worker.Activate(f.Context(), []ledger.Activation{{Job: changed, From: old, Seen: tick, Cursor: tick.Add(time.Second)}})...)
		for i, created := range results {
			if created.Err != nil || created.Inactive || created.Moved || len(created.Due) > 0 {
				t.Errorf("decision %d: %+v", i, created)
			}
		}
		record := f.wantState(jobs.TickRunID("j", tick), ledger.StateFailed)
		if !strings.Contains(record.Reason, "is not signed") {
			t.Errorf("its reason is %q", record.Reason)
		}
		if got := f.registered(worker, "j"); got.Every != changed.Every || worker.Trust(got) != nil {
			t.Errorf("now registered is %+v", got)
		}
	})
}
