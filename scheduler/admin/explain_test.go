package admin

import (
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

// told formats an explanation as the command line does, one line for each step.
func told(e *Explanation) string {
	var b strings.Builder
	for _, step := range e.Steps {
		b.WriteString(map[bool]string{true: "ok", false: "no"}[step.OK] + " " + step.Name + ": " + step.Text + "\n")
	}
	return b.String() + "=> " + e.Conclusion
}

func TestExplain(t *testing.T) {
	t.Parallel()
	utc := func(text string) time.Time {
		at, err := time.Parse("2006-01-02 15:04:05.999", text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	tick := func(text string, r ledger.Record) *ledger.Record {
		r.Job, r.Tick, r.By, r.Trigger = "nightly", utc(text), "web-1.x7k2m9qa", ledger.TriggerSchedule
		r.ID, r.Created = jobs.TickRunID("nightly", r.Tick), r.Tick.Add(31*time.Millisecond)
		return &r
	}
	attempt := func(worker locks.SessionID, from, to, outcome, failure string) ledger.AttemptRecord {
		a := ledger.AttemptRecord{Number: 1, Worker: worker, Token: 1795000000000001, Started: utc(from), Outcome: outcome, Error: failure}
		if to != "" {
			a.Finished = utc(to)
		}
		return a
	}
	long := tick("2026-11-19 01:00:00", ledger.Record{State: ledger.StateSucceeded, Started: utc("2026-11-19 21:58:00"), Finished: utc("2026-11-20 01:00:09"),
		Attempts: []ledger.AttemptRecord{attempt("web-3.m4t8c2wz", "2026-11-19 21:58:00", "2026-11-20 01:00:09", "succeeded", "")}})
	usual := func(text string) *ledger.Record {
		begin := utc(text)
		return tick(text, ledger.Record{State: ledger.StateSucceeded, Started: begin, Finished: begin.Add(41 * time.Minute)})
	}
	f := &fakes.Fake{
		Listing: locks.Listing{At: utc("2026-11-21 12:00:00")},
		Registered: []ledger.JobRecord{{
			Job: &jobs.Job{Name: "nightly", Schedule: "0 2 * * *", Timezone: "Europe/Berlin", Command: []string{"a"},
				History: jobs.History{Runs: 1000, For: 168 * time.Hour}},
			Cursor: utc("2026-11-21 01:00:00"),
		}},
		Ended: map[string][]*ledger.Record{"nightly": {
			usual("2026-11-16 01:00:00"), usual("2026-11-17 01:00:00"),
			tick("2026-11-18 01:00:00", ledger.Record{State: ledger.StateSkipped, Reason: "paused by ann: the partner is down"}),
			long,
			tick("2026-11-20 01:00:00", ledger.Record{State: ledger.StateSkipped, Reason: "overlap: skip; " + string(long.ID) + " is running"}),
			{Job: "nightly", ID: "nightly@2026-11-01T01:00:00Z..2026-11-10T01:00:00Z", Tick: utc("2026-11-01 01:00:00"), Upto: utc("2026-11-10 01:00:00"),
				State: ledger.StateMissed, Reason: "no worker was up for 10 ticks", By: "web-1.x7k2m9qa", Created: utc("2026-11-11 09:00:00"),
				Finished: utc("2026-11-11 09:00:00")},
			tick("2026-11-15 01:00:00", ledger.Record{State: ledger.StateMissed, Reason: "start_deadline: it was waiting", Waited: utc("2026-11-15 01:00:00.1"),
				Blocker: &ledger.Blocker{Resource: "disk", Session: "web-2.p91qd3f7", Run: "copy#1", Token: 17, Since: utc("2026-11-15 00:10:00")}}),
		}},
		Open: []*ledger.Record{tick("2026-11-21 01:00:00", ledger.Record{State: ledger.StateRetrying, At: utc("2026-11-21 12:05:00"), Fails: 1,
			Attempts: []ledger.AttemptRecord{attempt("web-1.x7k2m9qa", "2026-11-21 01:00:00.05", "2026-11-21 01:00:04", "failed", "exit 1\nmore")}})},
	}
	const due = `ok due: "0 2 * * *" Europe/Berlin: at 02:00, every day` + "\n"
	const decided = "ok decided: by web-1.x7k2m9qa at 02:00:00.031 (+31ms)\n"
	for at, want := range map[string]string{
		"2026-11-20 01:00:00": due + decided +
			"no lock: job:nightly was held by web-3.m4t8c2wz since Thu 2026-11-19 22:58:00, token 1795000000000001\n" +
			"=> skipped (overlap: skip). That run took 3h 2m; usual is 41m.",
		"2026-11-18 01:00:00": due + decided + "no paused: by ann: the partner is down\n=> skipped (paused by ann: the partner is down)",
		"2026-11-15 01:00:00": due + decided +
			"ok waited: from 02:00:00.100 for disk, held by web-2.p91qd3f7 (copy#1) since 01:10:00.000, token 17\n" +
			"no started: start_deadline: it was waiting\n=> missed (start_deadline: it was waiting)",
		"2026-11-05 01:00:00": due + "ok decided: by web-1.x7k2m9qa at Wed 2026-11-11 10:00:00 (+10d 8h)\n" +
			"no recorded: in one line for all ticks from Sun 2026-11-01 02:00:00 to Tue 2026-11-10 02:00:00\n" +
			"no started: no worker was up for 10 ticks\n=> missed (no worker was up for 10 ticks)",
		"2026-11-21 01:00:00": due + decided + "no attempt 1: failed on web-1.x7k2m9qa at 02:00:04.000 after 4s: exit 1\n" +
			"=> retrying: due at 13:05:00.000",
		"2026-11-22 01:00:00": due + "no decided: not yet: it is in the future, in 13h\n=> not due yet",
		"2026-10-31 01:00:00": due + "no recorded: not, or not any more: the last 1000 are kept, for 7d at most; the job may also be newer than the tick\n" +
			"=> unknown: it has no record",
		"2026-11-20 01:30:00": `no due: "0 2 * * *" Europe/Berlin: at 02:00, every day: the next tick is Sat 2026-11-21 02:00:00` +
			"\n=> no tick of its present schedule, and none on record",
		"": due + decided + "no attempt 1: failed on web-1.x7k2m9qa at 02:00:04.000 after 4s: exit 1\n=> retrying: due at 13:05:00.000",
	} {
		var when time.Time
		if at != "" {
			when = utc(at)
		}
		e, err := readerOf(f).Explain(t.Context(), "nightly", when)
		if err != nil {
			t.Fatal(err)
		}
		if got := told(e); got != want {
			t.Errorf("%s:\ngot:\n%s\nwant:\n%s", at, got, want)
		}
	}
	if _, err := readerOf(f).Explain(t.Context(), "nobody", time.Time{}); err == nil {
		t.Error("a job that is not there was explained")
	}
}

func TestARunThatWaitsSaysThatItsQueueIsPaused(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 1, 0, 0, 0, time.UTC)
	f := &fakes.Fake{
		Listing:    locks.Listing{At: at.Add(time.Minute)},
		Registered: []ledger.JobRecord{{Job: &jobs.Job{Name: "j", Schedule: "0 1 * * *", Command: []string{"a"}}, Cursor: at}},
	}
	for state, want := range map[ledger.State][2]string{
		ledger.StateDue:     {"due: its queue is paused", "due: no worker serves its queue night: start one, or add the queue to worker.queues"},
		ledger.StateWaiting: {"waiting: its queue is paused", "waiting for its locks"},
	} {
		f.Open = []*ledger.Record{{ID: jobs.TickRunID("j", at), Job: "j", Tick: at, Created: at, State: state, Queue: "night"}}
		for i, paused := range [][]string{{"day", "night"}, {"day"}} {
			f.PausedQueues = paused
			if e, err := readerOf(f).Explain(t.Context(), "j", at); err != nil || e.Conclusion != want[i] {
				t.Errorf("%s, paused are %v: %+v, %v, want %q", state, paused, e, err, want[i])
			}
		}
	}
}

func TestAJobIsLateWhenItWasSilentForTooLong(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		silence, since time.Duration
		want           bool
	}{{26 * time.Hour, 25 * time.Hour, false}, {26 * time.Hour, 27 * time.Hour, true}, {0, 1000 * time.Hour, false}} {
		record := ledger.JobRecord{Job: &jobs.Job{Name: "j", MaxSilence: test.silence}, Silent: now.Add(-test.since)}
		if got := noted(&listedJob{JobRecord: record, at: now}, new(conditions)).Late; got != test.want {
			t.Errorf("silent for %v of %v: late %v, want %v", test.since, test.silence, got, test.want)
		}
	}
}
