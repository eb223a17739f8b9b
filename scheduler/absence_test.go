package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

func TestTheTicksOfAnAbsenceAreCounted(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		instant, err := time.Parse(time.DateTime, text)
		if err != nil {
			t.Fatal(err)
		}
		return instant
	}
	hourly, daily := jobs.Job{Every: time.Hour}, jobs.Job{Schedule: "0 2 * * *", Timezone: "Europe/Berlin"}
	for name, test := range map[string]struct {
		old        jobs.Job
		from, upto string
		want       string // the id of the line after the name of the job, and the reason
	}{
		"an interval": {hourly, "2026-11-20 10:00:00", "2026-11-21 12:00:00.25", "2026-11-20T11:00:00Z..2026-11-21T12:00:00Z no worker carried it for 26 ticks"},
		"cron text":   {daily, "2026-10-23 00:00:00", "2026-10-26 01:00:00", "2026-10-24T00:00:00Z..2026-10-26T01:00:00Z no worker carried it for 3 ticks"},
		"one tick":    {daily, "2026-11-20 01:00:00", "2026-11-21 12:00:00", "2026-11-21T01:00:00Z no worker carried it"},
		"no tick":     {daily, "2026-11-20 01:00:00", "2026-11-21 00:59:59.999", ""},
		"no trigger":  {jobs.Job{}, "2026-11-20 01:00:00", "2026-11-21 12:00:00", ""},
		"very many of an interval": {jobs.Job{Every: time.Second}, "2025-11-20 00:00:00", "2026-11-20 00:00:00",
			"2025-11-20T00:00:01Z..2026-11-20T00:00:00Z no worker carried it for 31536000 ticks"},
		"very many": {jobs.Job{Schedule: "* * * * *"}, "2025-11-20 00:00:00", "2026-11-20 00:00:30",
			"2025-11-20T00:01:00Z..2026-11-20T00:00:00Z no worker carried it for more than 20000 ticks"},
		"a zone that this build does not know": {jobs.Job{Schedule: "0 2 * * *", Timezone: "Mars/Olympus"}, "2026-11-20 10:00:00.5", "2026-11-21 12:00:00.25",
			"2026-11-20T10:00:01Z..2026-11-21T12:00:00Z no worker carried it; its ticks cannot be computed: "},
		"a time without a second": {jobs.Job{Schedule: "a newer syntax"}, "2026-11-20 10:00:00.5", "2026-11-20 10:00:00.75", ""},
	} {
		t.Run(name, func(t *testing.T) {
			absence := &ledger.Absence{Job: "j", From: at(test.from), Upto: at(test.upto), Old: &test.old}
			trigger, err := Trigger(absence.Old)
			line, counted := absent(absence, trigger, err)
			got := ""
			if line != nil {
				got = line.At.Format(time.RFC3339)
				if !line.Upto.IsZero() {
					got += ".." + line.Upto.Format(time.RFC3339)
				}
				got += " " + line.Reason
				if line.Verdict != ledger.VerdictMissed {
					t.Errorf("the line is %s, want missed", line.Verdict)
				}
			}
			if err != nil {
				if line != nil && !strings.Contains(got, err.Error()) {
					t.Errorf("%q does not name the error %v", got, err)
				}
				got, _, _ = strings.Cut(got, err.Error())
			}
			if got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
			if counted > countMost {
				t.Errorf("%d ticks were counted one by one", counted)
			}
		})
	}
}

// returning has a ledger with jobs that were removed from the config, and makes schedulers that
// carry them again.
type returning struct {
	*testing.T
	rdb       *redis.Client
	namespace string
	ledger    *ledger.Ledger
	cursor    time.Time // of the jobs
}

// newReturning removes definitions whose cursors are 100 s back.
func newReturning(t *testing.T, definitions ...*jobs.Job) *returning {
	t.Helper()
	t.Parallel()
	f := &returning{T: t, rdb: redistest.New(t, redistest.Options{}).Client(t), namespace: redistest.Namespace(t)}
	f.ledger = f.newLedger(f.rdb)
	registered, err := f.ledger.Register(t.Context(), "old", definitions)
	if err != nil {
		t.Fatal(err)
	}
	f.cursor = registered.Now.Truncate(time.Second).Add(-100 * time.Second)
	ago := func(d time.Duration) int64 { return registered.Now.Add(-d).UnixMilli() }
	pipe := f.rdb.Pipeline()
	for _, job := range definitions {
		pipe.HSet(t.Context(), f.key("cursor"), job.Name, f.cursor.UnixMilli())
	}
	// Other workers have been present since the last one that carried them.
	pipe.HSet(t.Context(), f.key("ledger"), "config:old", ago(100*time.Second), "since:other", ago(90*time.Second), "config:other", ago(0))
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *returning) key(name string) string { return "{" + f.namespace + "}:" + name }

func (f *returning) newLedger(rdb *redis.Client) *ledger.Ledger {
	f.Helper()
	space, err := locks.NewSpace(rdb, f.namespace)
	if err != nil {
		f.Fatal(err)
	}
	return ledger.New(rdb, space)
}

// scheduler returns that of a worker which is about to register definitions.
func (f *returning) scheduler(l *ledger.Ledger, definitions ...*jobs.Job) *Scheduler {
	f.Helper()
	s, err := New(Options{
		Ledger: l, Jobs: definitions, Session: func() locks.SessionID { return "w.12345678" },
		Deliver: func(context.Context, []ledger.Due) { f.Error("a run is due") },
		Logger:  slog.New(slog.NewTextHandler(f.Output(), nil)),
	})
	if err != nil {
		f.Fatal(err)
	}
	s.begin(s.set, s.set.definitions)
	return s
}

// deploys does the steps of a scheduler until nothing is left.
func (f *returning) deploys(s *Scheduler) {
	f.Helper()
	var now serverTime
	for until := time.Now().Add(20 * time.Second); ; {
		wait := s.deploy(f.Context(), &now)
		if wait == time.Hour {
			return
		}
		if !sleep(f.Context(), wait) || time.Now().After(until) {
			f.Fatalf("the deploy does not end; %d absences are left", len(s.absences))
		}
	}
}

// wantLine checks that the history of a job is one line for the ticks by an interval while it was
// absent, and that no run was made. upto is the cursor with which the job began anew.
func (f *returning) wantLine(job string, every time.Duration, upto time.Time) {
	f.Helper()
	history, err := f.ledger.History(f.Context(), job, 0)
	if err != nil {
		f.Fatal(err)
	}
	if len(history) != 1 {
		f.Fatalf("the history of %s has %d records, want one line", job, len(history))
	}
	first, last := f.cursor.Truncate(every).Add(every), upto.Truncate(every)
	ticks := int(last.Sub(first)/every) + 1
	line, reason := history[0], fmt.Sprintf("no worker carried it for %d ticks", ticks)
	if line.State != ledger.StateMissed || line.Reason != reason || !line.Tick.Equal(first) || !line.Upto.Equal(last) || line.By != "w.12345678" {
		f.Errorf("%+v, want it missed from %v to %v: %s", line, first, last, reason)
	}
	if id := jobs.TickRunID(job, first) + jobs.RunID(".."+last.Format(time.RFC3339)); line.ID != id {
		f.Errorf("the line is called %s, want %s", line.ID, id)
	}
	if runs, err := f.ledger.Outstanding(f.Context(), job, 0); err != nil || len(runs) != 0 {
		f.Errorf("%d runs are outstanding, %v, want none", len(runs), err)
	}
}

// anew returns the cursor with which a job began anew.
func (f *returning) anew(s *Scheduler, job string) time.Time {
	f.Helper()
	one := s.set.alarms.byName[job]
	if one == nil || !one.cursor.After(f.cursor.Add(time.Minute)) {
		f.Fatalf("the job %s does not begin anew: %+v", job, one)
	}
	return one.cursor
}

func returningJob(name string, every time.Duration) *jobs.Job {
	job := unservedJob(name, "default")
	job.Every = every
	return job
}

// TestAJobThatReturnsHasALineForItsAbsence counts by the trigger that the job had, also when it has
// another one now.
func TestAJobThatReturnsHasALineForItsAbsence(t *testing.T) {
	changed := returningJob("j", 0)
	changed.Schedule = "0 2 * * *"
	for name, job := range map[string]*jobs.Job{"as it was": returningJob("j", 2*time.Second), "with another trigger": changed} {
		t.Run(name, func(t *testing.T) {
			f := newReturning(t, returningJob("j", 2*time.Second))
			s := f.scheduler(f.ledger, job)
			f.deploys(s)
			f.wantLine("j", 2*time.Second, f.anew(s, "j"))
			again := f.scheduler(f.newLedger(f.rdb), job)
			f.deploys(again)
			f.wantLine("j", 2*time.Second, f.anew(s, "j"))
		})
	}
}

// TestTwoWorkersWithAJobThatReturnsWriteOneLine: both learn of the absence before either settles
// it.
func TestTwoWorkersWithAJobThatReturnsWriteOneLine(t *testing.T) {
	job := returningJob("j", 2*time.Second)
	f := newReturning(t, job)
	a, b := f.scheduler(f.ledger, job), f.scheduler(f.newLedger(f.rdb), job)
	for _, s := range []*Scheduler{a, b} {
		if !s.register(t.Context(), new(serverTime)) || len(s.absences) != 1 {
			t.Fatalf("%d absences after the registration, want one", len(s.absences))
		}
	}
	f.deploys(a)
	f.deploys(b)
	f.wantLine("j", 2*time.Second, f.anew(a, "j"))
}

// TestTheNextRegistrationSettlesTheAbsence that a worker left when it died right after its own.
func TestTheNextRegistrationSettlesTheAbsence(t *testing.T) {
	job := returningJob("j", 2*time.Second)
	f := newReturning(t, job)
	dies := f.scheduler(f.ledger, job)
	if !dies.register(t.Context(), new(serverTime)) {
		t.Fatal("it is not registered")
	}
	anew := f.anew(dies, "j")
	f.deploys(f.scheduler(f.newLedger(f.rdb), job))
	f.wantLine("j", 2*time.Second, anew)
}

// lostReplies is a hook that loses the first replies to commands that a pipeline has carried out.
type lostReplies struct{ left atomic.Int64 }

func (l *lostReplies) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (l *lostReplies) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (l *lostReplies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		err := next(ctx, commands)
		for _, command := range commands {
			if command.Err() == nil && l.left.Add(-1) >= 0 {
				err = errors.New("the connection is lost")
				command.SetErr(err)
			}
		}
		return err
	}
}

// TestALineWhoseReplyIsLostIsWrittenOnce, and the call is repeated until it has a reply.
func TestALineWhoseReplyIsLostIsWrittenOnce(t *testing.T) {
	job := returningJob("j", 2*time.Second)
	f := newReturning(t, job)
	lost := new(lostReplies)
	lost.left.Store(2) // that of the call which writes the line, and that of its repetition
	f.rdb.AddHook(lost)
	s := f.scheduler(f.ledger, job)
	f.deploys(s)
	if lost.left.Load() > 0 {
		t.Fatal("no reply was lost")
	}
	f.wantLine("j", 2*time.Second, f.anew(s, "j"))
}

// TestManyJobsThatReturnTogetherAllHaveTheirLines, except one with a broken history, which holds up
// no other.
func TestManyJobsThatReturnTogetherAllHaveTheirLines(t *testing.T) {
	var definitions []*jobs.Job
	for i := range 2*settleStep + 10 {
		definitions = append(definitions, returningJob(fmt.Sprintf("j%03d", i), 2*time.Second))
	}
	f := newReturning(t, definitions...)
	if err := f.rdb.Set(t.Context(), f.key("done:j007"), "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s := f.scheduler(f.ledger, definitions...)
	var now serverTime
	if !s.register(t.Context(), &now) || s.registering != nil {
		t.Fatal("they are not registered")
	}
	began := time.Now()
	for until := began.Add(20 * time.Second); len(s.absences) != 1; {
		if time.Now().After(until) {
			t.Fatalf("%d absences are left, want one", len(s.absences))
		}
		if !sleep(t.Context(), min(s.deploy(t.Context(), &now), time.Second)) {
			t.Fatal("the test is over")
		}
	}
	t.Logf("%d jobs had their lines %v after their registration", len(definitions)-1, time.Since(began).Round(time.Millisecond))
	for _, job := range definitions {
		if job.Name != "j007" {
			f.wantLine(job.Name, 2*time.Second, f.anew(s, job.Name))
		}
	}
	if err := f.rdb.Del(t.Context(), f.key("done:j007")).Err(); err != nil {
		t.Fatal(err)
	}
	f.deploys(s)
	f.wantLine("j007", 2*time.Second, f.anew(s, "j007"))
}
