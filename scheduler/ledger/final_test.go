package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// An endedRun is a run that has ended, with its attempts as their workers know them.
type endedRun struct {
	run      jobs.RunID
	job      *jobs.Job
	attempts []attempt
}

// An ending is a way in which a run ends.
type ending struct {
	name     string
	end      func(f *fixture, id string) endedRun
	state    ledger.State
	outcomes []string // of its attempts
	plain    bool     // its only attempt succeeded
}

func endings() []ending {
	begin := func(f *fixture, due ...ledger.Due) attempt {
		f.Helper()
		if len(due) != 1 {
			f.Fatalf("%v are due, want one run", due)
		}
		return f.claim(f.session("w"), due[0], ledger.ClaimGranted)
	}
	first := func(f *fixture, id string) attempt {
		f.Helper()
		return begin(f, f.enqueues(f.Ledger, f.job, id))
	}
	cancel := func(f *fixture, run jobs.RunID) {
		f.Helper()
		if _, err := f.Cancel(f.Context(), run, f.job, ledger.Act{Who: "ann"}); err != nil {
			f.Fatal(err)
		}
	}
	reopen := func(f *fixture, run jobs.RunID) []ledger.Due {
		f.Helper()
		due, err := f.Reopen(f.Context(), ledger.Reopening{Run: run, Job: f.job, Any: true})
		if err != nil {
			f.Fatal(err)
		}
		return due
	}
	ended := func(f *fixture, attempts ...attempt) endedRun {
		return endedRun{attempts[0].Record.ID, f.job, attempts}
	}
	finish := func(a attempt) ledger.Finish {
		return ledger.Finish{Run: a.Record.ID, Job: a.Job, Token: a.token(), Hold: a.request.ID(), Outcome: ledger.OutcomeSuccess}
	}
	// ticking returns a fixture with a job that has ticks, one due run of it, and that run's tick.
	ticking := func(f *fixture, name string) (*fixture, ledger.Due, time.Time) {
		own := *f
		own.job = newJob(name)
		due := own.run()
		tick, _ := due.Run.Tick()
		return &own, due, tick
	}
	return []ending{
		{"succeeded without output", func(f *fixture, id string) endedRun {
			a := first(f, id)
			for range 2 { // the first reply is lost
				finished, err := f.Finish(f.Context(), finish(a))
				if err != nil || finished.Verdict != ledger.FinishRecorded {
					f.Fatalf("finish: %+v, %v", finished, err)
				}
			}
			return ended(f, a)
		}, ledger.StateSucceeded, []string{"succeeded"}, true},
		{"succeeded with output", func(f *fixture, id string) endedRun {
			a := first(f, id)
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
			return ended(f, a)
		}, ledger.StateSucceeded, []string{"succeeded"}, true},
		{"succeeded together with another", func(f *fixture, id string) endedRun {
			a, b := first(f, id), first(f, id+"-too")
			for _, finished := range f.FinishAll(f.Context(), []ledger.Finish{finish(b), finish(a)}) {
				if finished == nil || finished.Verdict != ledger.FinishRecorded {
					f.Fatalf("finish: %+v", finished)
				}
			}
			return ended(f, a)
		}, ledger.StateSucceeded, []string{"succeeded"}, true},
		{"succeeded while another run waited for its lock", func(f *fixture, id string) endedRun {
			a := begin(f, f.billed(id, "bill"))
			waiter := f.billed(id+"-too", "bill")
			f.claim(a.client, waiter, ledger.ClaimWaiting)
			next := f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded).Due
			f.finish(begin(f, next...), ledger.OutcomeSuccess, ledger.FinishRecorded)
			return endedRun{a.Record.ID, a.Job, []attempt{a}}
		}, ledger.StateSucceeded, []string{"succeeded"}, true},
		{"succeeded although it was asked to stop", func(f *fixture, id string) endedRun {
			a := first(f, id)
			cancel(f, a.Record.ID)
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
			return ended(f, a)
		}, ledger.StateSucceeded, []string{"succeeded"}, true},
		{"succeeded as a tick", func(f *fixture, id string) endedRun {
			f, due, _ := ticking(f, "ticks-"+id)
			a := begin(f, due)
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
			return ended(f, a)
		}, ledger.StateSucceeded, []string{"succeeded"}, true},
		{"succeeded late", func(f *fixture, id string) endedRun {
			a := first(f, id)
			f.loseLease(a.client)
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
			return ended(f, a)
		}, ledger.StateSucceeded, []string{"lost lease"}, false},
		{"crashed, then succeeded", func(f *fixture, id string) endedRun {
			a := first(f, id)
			b := begin(f, f.crash(a.client)...)
			f.finish(b, ledger.OutcomeSuccess, ledger.FinishRecorded)
			return ended(f, a, b)
		}, ledger.StateSucceeded, []string{"crashed", "succeeded"}, false},
		{"failed, then succeeded", func(f *fixture, id string) endedRun {
			a := first(f, id)
			f.finish(a, ledger.OutcomeRetry, ledger.FinishRecorded)
			b := begin(f, f.await()...)
			f.finish(b, ledger.OutcomeSuccess, ledger.FinishRecorded)
			return ended(f, a, b)
		}, ledger.StateSucceeded, []string{"failed", "succeeded"}, false},
		{"handed back, then succeeded", func(f *fixture, id string) endedRun {
			a := first(f, id)
			f.finish(a, ledger.OutcomeHandBack, ledger.FinishRecorded)
			b := begin(f, f.await()...)
			f.finish(b, ledger.OutcomeSuccess, ledger.FinishRecorded)
			return ended(f, a, b)
		}, ledger.StateSucceeded, []string{"handed back", "succeeded"}, false},
		{"failed", func(f *fixture, id string) endedRun {
			a := first(f, id)
			f.finish(a, ledger.OutcomeFailure, ledger.FinishRecorded)
			return ended(f, a)
		}, ledger.StateFailed, []string{"failed"}, false},
		{"refused", func(f *fixture, id string) endedRun {
			due := f.enqueues(f.Ledger, f.job, id)
			outcome, _, err := f.Refuse(f.Context(), ledger.Refusal{Run: due.Run, N: due.N, Cause: errors.New("no")})
			if err != nil || outcome != ledger.RefusalEnded {
				f.Fatalf("%v, %v, want it ended", outcome, err)
			}
			return endedRun{due.Run, f.job, nil}
		}, ledger.StateFailed, nil, false},
		{"canceled before its start", func(f *fixture, id string) endedRun {
			due := f.enqueues(f.Ledger, f.job, id)
			cancel(f, due.Run)
			return endedRun{due.Run, f.job, nil}
		}, ledger.StateCanceled, nil, false},
		{"canceled", func(f *fixture, id string) endedRun {
			a := first(f, id)
			cancel(f, a.Record.ID)
			f.finish(a, ledger.OutcomeCanceled, ledger.FinishRecorded)
			return ended(f, a)
		}, ledger.StateCanceled, []string{"canceled"}, false},
		{"skipped", func(f *fixture, id string) endedRun {
			f, due, tick := ticking(f, "skips-"+id)
			if n, _, err := f.Skip(f.Context(), f.job, tick, tick, ledger.Act{Who: "ann"}); err != nil || n != 1 {
				f.Fatalf("skipped %d, %v", n, err)
			}
			return endedRun{due.Run, f.job, nil}
		}, ledger.StateSkipped, nil, false},
		{"skipped when its tick came", func(f *fixture, id string) endedRun {
			own := *f
			own.job = newJob("overlaps-" + id)
			own.job.Overlap = jobs.OverlapSkip
			created := own.tick(own.job, own.cursor(own.job, 5), 2, ledger.VerdictRun)
			own.finish(begin(&own, created.Due...), ledger.OutcomeSuccess, ledger.FinishRecorded)
			return endedRun{jobs.TickRunID(own.job.Name, created.Cursor), own.job, nil}
		}, ledger.StateSkipped, nil, false},
		{"succeeded, then reopened", func(f *fixture, id string) endedRun {
			a := first(f, id)
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
			b := begin(f, reopen(f, a.Record.ID)...)
			f.finish(b, ledger.OutcomeSuccess, ledger.FinishRecorded)
			return ended(f, a, b)
		}, ledger.StateSucceeded, []string{"succeeded", "succeeded"}, false},
		{"succeeded, then reopened and canceled", func(f *fixture, id string) endedRun {
			a := first(f, id)
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
			reopen(f, a.Record.ID)
			cancel(f, a.Record.ID)
			return ended(f, a)
		}, ledger.StateCanceled, []string{"succeeded"}, false},
	}
}

// stored returns the parts of a final record: fields, log and arguments.
func (f *fixture) stored(run jobs.RunID) (fields []string, log string) {
	f.Helper()
	text, err := f.rdb.HGet(f.Context(), f.key("hist:"+run.Job()), string(run)).Result()
	if err != nil {
		f.Fatal(err)
	}
	parts := strings.Split(text, "\x1d")
	if len(parts) != 3 {
		f.Fatalf("the final record of %s is %q", run, text)
	}
	return strings.Split(parts[0], us), parts[1]
}

// TestFinalRecordsAreReadAsTheirRunsEnded ends runs in all ways, in format 1 beside a session of an
// older build, and in format 2. Whatever the stored text omits, the record that is read has all
// attempts, and so has the run when it is reopened.
func TestFinalRecordsAreReadAsTheirRunsEnded(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		leave := f.older()
		want := make(map[jobs.RunID]*ledger.Record)
		var all []endedRun
		for _, format := range []string{"1", "2"} {
			if format == "2" {
				leave()
			}
			for i, e := range endings() {
				name := fmt.Sprintf("format %s, %s", format, e.name)
				run := e.end(f, fmt.Sprintf("%s-%d", format, i))
				record := f.wantState(run.run, e.state)
				f.wantAttempts(name, record, run.attempts, e.outcomes)
				fields, log := f.stored(run.run)
				session := ""
				if len(run.attempts) > 0 {
					session = string(run.attempts[0].request.Session())
				}
				switch {
				case format == "2" && e.plain && (log != "@"+session || fields[len(fields)-1] == ""):
					f.Errorf("%s: stored are the fields %q with the log %q, want neither empty fields at the end nor more than a session",
						name, fields, log)
				case (format == "1" || !e.plain) && log != "" && !strings.HasPrefix(log, `{"attempt":1,"worker":"`+session+`"`):
					f.Errorf("%s: the log is %q, want all of it", name, log)
				case format == "1" && len(fields) != itemsRun:
					f.Errorf("%s: %d fields are stored, want all %d", name, len(fields), itemsRun)
				}
				want[run.run], all = record, append(all, run)
			}
			for _, run := range all {
				if got := f.find(run.run); !reflect.DeepEqual(got, want[run.run]) {
					f.Errorf("in format %s, %s is read as %+v, want %+v", format, run.run, got, want[run.run])
				}
				listed := f.history(run.job.Name)
				if i := slices.IndexFunc(listed, func(r *ledger.Record) bool { return r.ID == run.run }); i < 0 || !reflect.DeepEqual(listed[i], want[run.run]) {
					f.Errorf("in format %s, %s is listed otherwise than %+v", format, run.run, want[run.run])
				}
			}
		}
		for _, run := range all {
			record := want[run.run]
			due, err := f.Reopen(f.Context(), ledger.Reopening{Run: run.run, Tick: record.Tick, Job: run.job, Any: true})
			if err != nil || len(due) != 1 {
				f.Errorf("reopen %s: %v, %v", run.run, due, err)
				continue
			}
			if got := f.find(run.run).Attempts; !slices.Equal(got, record.Attempts) {
				f.Errorf("%s was reopened with the attempts %+v, want %+v", run.run, got, record.Attempts)
			}
			a := f.claim(f.session("w"), due[0], ledger.ClaimGranted)
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
			got := f.wantState(run.run, ledger.StateSucceeded).Attempts
			if n := len(record.Attempts); len(got) != n+1 || !slices.Equal(got[:n], record.Attempts) || got[n].Token != a.token() {
				f.Errorf("%s has succeeded once more with the attempts %+v, want one after %+v", run.run, got, record.Attempts)
			}
		}
		f.wantNothingLeft()
	})
}

// wantAttempts compares the attempts in a final record with those that were made.
func (f *fixture) wantAttempts(name string, record *ledger.Record, attempts []attempt, outcomes []string) {
	f.Helper()
	want := make([]ledger.AttemptRecord, len(attempts))
	for i, a := range attempts {
		started := a.Record.Last().Started
		want[i] = ledger.AttemptRecord{Number: i + 1, Worker: a.request.Session(), Token: a.token(), Started: started, First: started,
			Outcome: outcomes[i], Times: 1}
		if i < len(record.Attempts) {
			got := record.Attempts[i]
			want[i].Finished = got.Finished
			if outcomes[i] != "succeeded" {
				want[i].Error = got.Error
			}
			if got.Finished.Before(started) || got.Finished.After(record.Finished) {
				f.Errorf("%s: attempt %d ran from %v to %v, and the run ended at %v", name, i+1, started, got.Finished, record.Finished)
			}
		}
	}
	if !slices.Equal(record.Attempts, want) {
		f.Errorf("%s: the attempts are %+v, want %+v", name, record.Attempts, want)
	}
	if last := record.Last(); record.State == ledger.StateSucceeded && last.Outcome == "succeeded" && last.Finished != record.Finished {
		f.Errorf("%s: the last attempt ended at %v, and the run at %v", name, last.Finished, record.Finished)
	}
	if len(attempts) > 0 && record.Started != want[0].Started {
		f.Errorf("%s: the run started at %v, want %v", name, record.Started, want[0].Started)
	}
}

// TestAFinishedRunWithoutOutputIsSmall ends runs as a client enqueues them: with a generated id,
// and a small argument. Most of a large history consists of such runs.
func TestAFinishedRunWithoutOutputIsSmall(t *testing.T) {
	t.Parallel()
	const runs, text, memory = 2 * ledger.MaxTogether, 220, 500
	rdb, namespace := redistest.Client(t), redistest.Namespace(t)
	space, err := locks.NewSpace(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, rdb: rdb, namespace: namespace, Ledger: ledger.New(rdb, space), job: newJob("mail")}
	f.job.Overlap = jobs.OverlapAllow
	w := f.session("worker-12")
	for range runs / ledger.MaxTogether {
		var finishes []ledger.Finish
		for i := range ledger.MaxTogether {
			enqueued, err := f.Enqueue(t.Context(), ledger.Request{Job: f.job, ID: jobs.NewRunName(time.Now()), Trigger: ledger.TriggerEnqueue,
				Args: fmt.Appendf(nil, `{"record":%d}`, i)})
			if err != nil {
				t.Fatal(err)
			}
			a := f.claim(w, enqueued.Due[0], ledger.ClaimGranted)
			finishes = append(finishes, ledger.Finish{Run: a.Record.ID, Job: a.Job, Token: a.token(), Hold: a.request.ID(), Outcome: ledger.OutcomeSuccess})
		}
		for _, finished := range f.FinishAll(t.Context(), finishes) {
			if finished == nil || finished.Verdict != ledger.FinishRecorded {
				t.Fatalf("finish: %+v", finished)
			}
		}
	}
	records, err := rdb.HVals(t.Context(), f.key("hist:mail")).Result()
	if err != nil || len(records) != runs {
		t.Fatalf("%d records, %v, want %d", len(records), err, runs)
	}
	longest := slices.MaxFunc(records, func(a, b string) int { return len(a) - len(b) })
	var used int64
	for _, key := range []string{"hist:mail", "done:mail"} {
		bytes, err := rdb.MemoryUsage(t.Context(), f.key(key), 0).Result()
		if err != nil {
			t.Fatal(err)
		}
		used += bytes
	}
	if t.Logf("%d bytes of memory for a run", used/runs); len(longest) > text || used > memory*runs {
		t.Errorf("a final record has %d bytes, and a finished run uses %d in all, want at most %d and %d: %q",
			len(longest), used/runs, text, memory, longest)
	}
}

// recordsOf returns the records of all runs in a namespace: outstanding runs and those in the
// histories of some jobs.
func recordsOf(ctx context.Context, rdb *redis.Client, namespace string, jobNames ...string) (map[jobs.RunID]*ledger.Record, error) {
	var open, logs *redis.MapStringStringCmd
	histories := make([]*redis.MapStringStringCmd, len(jobNames))
	_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		open, logs = pipe.HGetAll(ctx, "{"+namespace+"}:run"), pipe.HGetAll(ctx, "{"+namespace+"}:log")
		for i, name := range jobNames {
			histories[i] = pipe.HGetAll(ctx, "{"+namespace+"}:hist:"+name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	records := make(map[jobs.RunID]*ledger.Record)
	add := func(id string, record *ledger.Record, failed error) {
		if records[jobs.RunID(id)] != nil {
			err = errors.Join(err, fmt.Errorf("%s is outstanding and has ended", id))
		}
		err = errors.Join(err, failed)
		records[jobs.RunID(id)] = record
	}
	for id, text := range open.Val() {
		record, failed := ledger.DecodeOpen(jobs.RunID(id), text, logs.Val()[id])
		add(id, record, failed)
	}
	for _, history := range histories {
		for id, text := range history.Val() {
			record, failed := ledger.DecodeFinal(jobs.RunID(id), text)
			add(id, record, failed)
		}
	}
	return records, err
}

// wrongRecords compares the records of all runs before and after a step of a random history. It
// returns what is wrong, or "". A closed attempt never changes, except for what is learned of it
// later. The end of a run closes the attempt that was running and adds none. A run that is reopened
// keeps its attempts.
func wrongRecords(before, after map[jobs.RunID]*ledger.Record) string {
	same := func(a, b ledger.AttemptRecord) bool {
		a.Cleared, b.Cleared, a.Confirmed, b.Confirmed = false, false, false, false
		return a == b
	}
	for id, is := range after {
		was := before[id]
		if was == nil {
			if len(is.Attempts) > 0 {
				return fmt.Sprintf("%s is new, and has the attempts %+v", id, is.Attempts)
			}
			continue
		}
		closed, running := was.Attempts, was.State == ledger.StateRunning
		if running {
			closed = closed[:len(closed)-1]
		}
		if len(is.Attempts) < len(was.Attempts) || !slices.EqualFunc(is.Attempts[:len(closed)], closed, same) {
			return fmt.Sprintf("the attempts of %s were %+v and are %+v", id, was.Attempts, is.Attempts)
		}
		if running {
			a, b := was.Attempts[len(closed)], is.Attempts[len(closed)]
			if a.Number != b.Number || a.Worker != b.Worker || a.Token != b.Token || !a.Started.Equal(b.Started) {
				return fmt.Sprintf("the running attempt of %s was %+v and is %+v", id, a, b)
			}
			if is.State.Final() && !b.Finished.Equal(is.Finished) || is.State == ledger.StateSucceeded && b.Outcome != "succeeded" {
				return fmt.Sprintf("%s is %s since %v, and its last attempt is %+v", id, is.State, is.Finished, b)
			}
		}
		if (is.State.Final() || was.State.Final()) && len(is.Attempts) != len(was.Attempts) {
			return fmt.Sprintf("%s was %s with the attempts %+v, and is %s with %+v", id, was.State, was.Attempts, is.State, is.Attempts)
		}
		if was.Job != is.Job || was.Trigger != is.Trigger || !was.Tick.Equal(is.Tick) || !was.Created.Equal(is.Created) || was.By != is.By ||
			!was.Started.IsZero() && !was.Started.Equal(is.Started) {
			return fmt.Sprintf("%s was %+v and is %+v", id, was, is)
		}
		ends := !was.State.Final() && is.State.Final()
		if ends && (was.Queue != is.Queue || was.Stop != "" && was.Stop != is.Stop ||
			was.Blocker != nil && (is.Blocker == nil || *was.Blocker != *is.Blocker || !was.Waited.Equal(is.Waited))) {
			return fmt.Sprintf("%s was %+v and has ended as %+v", id, was, is)
		}
	}
	for id, was := range before {
		if after[id] == nil && !was.State.Final() {
			return fmt.Sprintf("%s was %s and has no record", id, was.State)
		}
	}
	return ""
}

// TestFaultsInFinalRecordsAreFound plants faults in the scripts that shorten final records or
// expand them. Random histories must show that the records differ from what happened.
func TestFaultsInFinalRecordsAreFound(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	for what, fault := range map[string][2]string{
		"earlier attempts are omitted":                  {"if name and log == plainLog(run, run[R_SESSION]) then", "if name and log ~= '' then"},
		"earlier attempts are omitted in the fast path": {"if byname and past == ''", "if byname or past == ''"},
		"another session is stored":                     {"log = '@' .. run[R_SESSION]", "log = '@' .. run[R_QUEUE]"},
		"another session is stored by the fast path":    {"log = '@' .. session", "log = '@' .. job"},
		"fields that are not empty are omitted":         {"record = string.match(record, '^(.-)\\31*$')", "record = concat(run, US, 1, R_FINISHED)"},
		"fields are omitted by the fast path":           {"rest = match(rest, '^(.-)\\31*$')", "rest = ''"},
		"a reopened run has another start": {
			"run[R_FIRST], run[R_FINISHED], 'succeeded', 'null')", "run[R_CREATED], run[R_FINISHED], 'succeeded', 'null')",
		},
		"a reopened run has another end":     {"run[R_FIRST], run[R_FINISHED], 'succeeded', 'null')", "run[R_FIRST], ms, 'succeeded', 'null')"},
		"a reopened run has another session": {"plainLog(run, sub(log, 2))", "plainLog(run, sub(log, 3))"},
		"a reopened run has no log":          {"log = plainLog(run, sub(log, 2)) end", "log = '' end"},
		"a reopened run keeps a short log":   {"if sub(log, 1, 1) == '@' then log = plainLog(run, sub(log, 2)) end", ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for seed := range historiesFor(what, 40) {
				if wrong := playFaulty(t, server, seed, fault[0], fault[1]); wrong != "" {
					t.Logf("found in history %d: %s", seed, wrong)
					return
				}
			}
			t.Error("no history shows it")
		})
	}
}

// TestRecordsOfEarlierBuildsAreRead: their final records also have the hold, the session and the
// start of the last attempt, and the bundle.
func TestRecordsOfEarlierBuildsAreRead(t *testing.T) {
	each(t, func(f *fixture) {
		f.older() // so that the rest of the record is whole
		client := f.session("w")
		for name, outcome := range map[string]ledger.Outcome{"fast": ledger.OutcomeSuccess, "slow": ledger.OutcomeFailure} {
			a := f.claim(client, f.billed(name, "bill:"+name), ledger.ClaimGranted)
			run := a.Record.ID
			f.finish(a, outcome, ledger.FinishRecorded)
			record := f.find(run)
			fields, log := f.stored(run)
			if short := strings.Join(fields, us); len(fields) != itemsRun || strings.Contains(short, string(client.Session())) || strings.Contains(short, "bill:") {
				t.Fatalf("%s: the record is %q, want %d fields without the session and the bundle", name, short, itemsRun)
			}
			fields[9], fields[10], fields[12] = string(a.request.ID()), string(client.Session()), fmt.Sprint(a.Record.Last().Started.UnixMilli())
			long := strings.Join(append(fields, "xbill:"+name, "xrun:"+string(run)), us) + "\x1d" + log + "\x1d{}"
			if err := f.rdb.HSet(f.Context(), f.key("hist:billed"), string(run), long).Err(); err != nil {
				t.Fatal(err)
			}
			got := f.find(run)
			if got.Args = record.Args; !reflect.DeepEqual(got, record) {
				t.Errorf("%s: a record of an earlier build is read as %+v, want %+v", name, got, record)
			}
			again, err := f.Reopen(f.Context(), ledger.Reopening{Run: run, Job: a.Job, Any: true})
			if err != nil || len(again) != 1 {
				t.Fatalf("%s: done again: %v, %v", name, again, err)
			}
			f.finish(f.claim(client, again[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
			if got := f.wantState(run, ledger.StateSucceeded); len(got.Attempts) != 2 {
				t.Errorf("%s: %+v, want two attempts", name, got)
			}
		}
		f.wantNothingLeft()
	})
}
