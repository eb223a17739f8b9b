package ledger_test

import (
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// drop makes a job with its cursor some ticks back appear to have been removed from the config:
// other workers were present and did not carry it. It returns the cursor.
func (f *fixture) drop(job *jobs.Job, back int) time.Time {
	f.Helper()
	cursor := f.cursor(job, back)
	f.left("config", 100*time.Second)
	f.present("other", 90*time.Second, 0)
	return cursor
}

// settles writes the line of an absence of the fixture's job, and returns whether this call did.
func (f *fixture) settles(absence *ledger.Absence) bool {
	f.Helper()
	first := absence.From.Add(time.Second)
	settled := f.Settle(f.Context(), []ledger.Settlement{{Absence: absence, By: "w.12345678",
		Line: &ledger.Tick{At: first, Upto: first.Add(9 * time.Second), Verdict: ledger.VerdictMissed, Reason: "no worker carried it"}}})[0]
	if settled.Err != nil {
		f.Fatal(settled.Err)
	}
	return settled.Written
}

// missed returns the lines of missed ticks in the history of job "j".
func (f *fixture) missed() (lines []*ledger.Record) {
	f.Helper()
	history, err := f.History(f.Context(), "j", 0)
	if err != nil {
		f.Fatal(err)
	}
	for _, record := range history {
		if record.State == ledger.StateMissed {
			lines = append(lines, record)
		}
	}
	return lines
}

// TestAJobThatReturnsHasAnAbsenceUntilItIsSettled, however the job went, and with another trigger
// than before. Every worker that registers it learns of the absence, and one line is written.
func TestAJobThatReturnsHasAnAbsenceUntilItIsSettled(t *testing.T) {
	for name, retired := range map[string]bool{"after it was removed": false, "after a week without a worker": true} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				var cursor time.Time
				if retired {
					cursor = f.cursor(f.job, 5000)
					f.left("config", 8*24*time.Hour)
				} else {
					cursor = f.drop(f.job, 5000)
				}
				daily := newJob("j")
				daily.Every, daily.Schedule, daily.Timezone = 0, "0 2 * * *", "Europe/Berlin"
				first := f.carries("back", daily, ledger.StandingActive)
				second := f.carries("second", daily, ledger.StandingActive)
				for _, registered := range []ledger.RegisteredJob{first, second} {
					a := registered.Absence
					if a == nil {
						t.Fatal("a worker that registers it learns of no absence")
					}
					if a.Job != "j" || !a.From.Equal(cursor) || !a.Upto.Equal(first.Cursor) || a.Old.Every != time.Second || a.Old.Schedule != "" {
						t.Errorf("%+v with the trigger %+v, want it from %v to %v, with one tick each second", a, a.Old, cursor, first.Cursor)
					}
				}
				written := []bool{f.settles(first.Absence), f.settles(second.Absence), f.settles(first.Absence)}
				if !written[0] || written[1] || written[2] {
					t.Errorf("written: %v, want the first call to write the line, and no other one", written)
				}
				if again := f.carries("third", daily, ledger.StandingActive); again.Absence != nil {
					t.Errorf("it has the absence %+v after it was settled", again.Absence)
				}
				lines, from := f.missed(), cursor.Add(time.Second)
				if len(lines) != 1 {
					t.Fatalf("%d lines for missed ticks, want one", len(lines))
				}
				id := jobs.TickRunID("j", from) + jobs.RunID(".."+from.Add(9*time.Second).Format(time.RFC3339))
				if l := lines[0]; l.ID != id || !l.Tick.Equal(from) || !l.Upto.Equal(from.Add(9*time.Second)) || l.By != "w.12345678" ||
					l.Reason != "no worker carried it" || l.Trigger != ledger.TriggerSchedule {
					t.Errorf("the line %+v, want %s", l, id)
				}
				if runs, err := f.Outstanding(f.Context(), "j", 0); err != nil || len(runs) != 0 {
					t.Errorf("%d outstanding runs, %v, want none", len(runs), err)
				}
			})
		})
	}
}

// TestAnAbsenceWithoutALineBelongsToTheNextOne: the worker that made it died before it wrote the
// line, and no worker carried the job again.
func TestAnAbsenceWithoutALineBelongsToTheNextOne(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.drop(f.job, 5000)
		before := f.carries("back", f.job, ledger.StandingActive)
		f.left("back", 80*time.Second)
		for now := before.Cursor; !now.After(before.Cursor); now = f.now().Truncate(time.Millisecond) {
			continue // the absences differ by a millisecond at least
		}
		after := f.carries("later", f.job, ledger.StandingActive)
		if a := after.Absence; a == nil || !a.From.Equal(cursor) || !a.Upto.Equal(after.Cursor) || a.Upto.Before(before.Cursor) {
			t.Fatalf("%+v, want one absence from %v to %v", a, cursor, after.Cursor)
		}
		if f.settles(before.Absence) {
			t.Error("the absence that was replaced got a line of its own")
		}
		if !f.settles(after.Absence) {
			t.Error("the absence got no line")
		}
	})
}

func TestOnlyAJobThatReturnsWithATriggerHasAnAbsence(t *testing.T) {
	each(t, func(f *fixture) {
		if got := f.carries("config", f.job, ledger.StandingActive); got.Absence != nil {
			t.Errorf("a new job: %+v", got.Absence)
		}
		f.left("config", time.Hour) // the whole fleet was down
		if got := f.carries("config", f.job, ledger.StandingActive); got.Absence != nil {
			t.Errorf("a job that continues where it stopped: %+v", got.Absence)
		}
		silent := newJob("silent")
		silent.Every, silent.Timezone = 0, "Europe/Berlin"
		f.drop(silent, 5)
		if got := f.carries("back", silent, ledger.StandingActive); got.Absence != nil {
			t.Errorf("a job without a trigger: %+v", got.Absence)
		}
	})
}

// TestTheAbsenceOfAForgottenJobHasNoLine, also when a build that knows no absences has forgotten
// the job and left the entry.
func TestTheAbsenceOfAForgottenJobHasNoLine(t *testing.T) {
	for name, older := range map[string]bool{"by this build": false, "by an older build": true} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				f.drop(f.job, 5000)
				absence := f.carries("back", f.job, ledger.StandingActive).Absence
				entry := f.rdb.HGet(f.Context(), f.key("facts"), "mj").Val()
				if absence == nil || entry == "" {
					t.Fatalf("absence %+v, stored as %q", absence, entry)
				}
				f.left("back", 50*time.Second)
				if err := f.Forget(f.Context(), "j", ledger.Act{Who: "ann", What: "forget job", On: "j"}); err != nil {
					t.Fatal(err)
				}
				if left := f.rdb.HGet(f.Context(), f.key("facts"), "mj").Val(); left != "" {
					t.Errorf("the entry %q is left", left)
				}
				if older {
					f.rdb.HSet(f.Context(), f.key("facts"), "mj", entry)
				} else if f.settles(absence) {
					t.Error("a worker that still knew the absence has written a line")
				}
				if got := f.carries("again", f.job, ledger.StandingActive); got.Absence != nil {
					t.Errorf("it returns with the absence %+v", got.Absence)
				}
				if f.settles(absence) || len(f.missed()) != 0 {
					t.Errorf("%d lines for ticks of a forgotten job", len(f.missed()))
				}
			})
		})
	}
}

// TestALossOfDataMakesNoAbsence: after a loss of everything one line records what was lost. After
// the return to an older state, a worker that carried the job since then knows a later cursor, so
// the job continues there.
func TestALossOfDataMakesNoAbsence(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.worker("w")
		f.drop(f.job, 5000)
		facts, cursor := f.rdb.HGetAll(f.Context(), f.key("facts")).Val(), f.rdb.HGet(f.Context(), f.key("cursor"), "j").Val()
		absence := w.carries("back", f.job, ledger.StandingActive).Absence
		if absence == nil || !w.settles(absence) {
			t.Fatalf("the absence %+v is not settled", absence)
		}

		pipe := f.rdb.TxPipeline()
		pipe.Del(f.Context(), f.key("facts"))
		pipe.HSet(f.Context(), f.key("facts"), facts)
		pipe.HSet(f.Context(), f.key("cursor"), "j", cursor)
		pipe.HDel(f.Context(), f.key("ledger"), "config:back", "since:back")
		if _, err := pipe.Exec(f.Context()); err != nil {
			t.Fatal(err)
		}
		f.grace(w)
		if got := w.carries("back", f.job, ledger.StandingActive); got.Absence != nil || !got.Cursor.Equal(absence.Upto) {
			t.Errorf("cursor %v, absence %+v, want it to continue at %v", got.Cursor, got.Absence, absence.Upto)
		}

		f.goOn()
		f.left("back", 100*time.Second)
		pending := w.carries("config", f.job, ledger.StandingActive).Absence
		if pending == nil {
			t.Fatal("it returned once more, without an absence")
		}
		f.lose(w)
		w.say()
		if f.settles(pending) || len(f.missed()) != 0 {
			t.Errorf("%d lines for missed ticks, want the line for what was lost alone", len(f.missed()))
		}
		if got := w.carries("config", f.job, ledger.StandingActive); got.Absence != nil {
			t.Errorf("it has the absence %+v", got.Absence)
		}
	})
}

// TestAnAbsenceStaysUntilItsLineCanBeWritten: a key of the history has the wrong type. Other jobs'
// lines are written.
func TestAnAbsenceStaysUntilItsLineCanBeWritten(t *testing.T) {
	each(t, func(f *fixture) {
		f.drop(f.job, 5000)
		absence := f.carries("back", f.job, ledger.StandingActive).Absence
		if err := f.rdb.Set(f.Context(), f.key("done:j"), "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
		f.drop(newJob("k"), 5000)
		other := f.carries("back", newJob("k"), ledger.StandingActive).Absence
		if absence == nil || other == nil {
			t.Fatal("no absence")
		}
		line := &ledger.Tick{At: absence.From.Add(time.Second), Verdict: ledger.VerdictMissed, Reason: "no worker carried it"}
		settled := f.Settle(f.Context(), []ledger.Settlement{{Absence: absence, Line: line}, {Absence: other, Line: line}})
		if settled[0].Err == nil || settled[0].Written || settled[1].Err != nil || !settled[1].Written {
			t.Errorf("%+v, want an error of the first alone", settled)
		}
		if f.carries("back", f.job, ledger.StandingActive).Absence == nil {
			t.Error("the absence was removed, although it has no line")
		}
		f.rdb.Del(f.Context(), f.key("done:j"))
		if !f.settles(absence) {
			t.Error("the line is not written")
		}
	})
}

// TestAnAbsenceWithoutTicksIsForgotten, and so is one that another program wrote.
func TestAnAbsenceWithoutTicksIsForgotten(t *testing.T) {
	each(t, func(f *fixture) {
		f.drop(f.job, 5000)
		absence := f.carries("back", f.job, ledger.StandingActive).Absence
		for _, entry := range []string{"", "x", "x\x1ey\x1ez", "1\x1e2"} {
			if entry != "" {
				f.rdb.HSet(f.Context(), f.key("facts"), "mj", entry)
				absence = f.carries("back", f.job, ledger.StandingActive).Absence
				if absence == nil || !absence.From.IsZero() || absence.Old.Scheduled() {
					t.Errorf("%q is read as %+v, want nothing known of it", entry, absence)
				}
			}
			settled := f.Settle(f.Context(), []ledger.Settlement{{Absence: absence}})[0]
			if settled.Err != nil || settled.Written {
				t.Errorf("%q: %+v, want no line", entry, settled)
			}
			if got := f.carries("back", f.job, ledger.StandingActive); got.Absence != nil {
				t.Errorf("%q: %+v is left", entry, got.Absence)
			}
		}
		if lines := f.missed(); len(lines) != 0 {
			t.Errorf("%d lines, want none", len(lines))
		}
	})
}

// TestALineDoesNotReplaceTheRecordOfItsTick: a person has replayed the only tick of an absence.
func TestALineDoesNotReplaceTheRecordOfItsTick(t *testing.T) {
	each(t, func(f *fixture) {
		f.drop(f.job, 5000)
		absence := f.carries("back", f.job, ledger.StandingActive).Absence
		tick := absence.From.Add(time.Second)
		run := jobs.TickRunID("j", tick)
		if _, err := f.Reopen(f.Context(), ledger.Reopening{Run: run, Tick: tick, Job: f.job, Any: true}); err != nil {
			t.Fatal(err)
		}
		settled := f.Settle(f.Context(), []ledger.Settlement{{Absence: absence, Line: &ledger.Tick{At: tick, Verdict: ledger.VerdictMissed}}})[0]
		if settled.Err != nil {
			t.Fatal(settled.Err)
		}
		f.wantState(run, ledger.StateDue)
		if lines := f.missed(); len(lines) != 0 {
			t.Errorf("%+v beside the run", lines[0])
		}
	})
}
