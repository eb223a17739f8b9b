package ledger_test

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// began sends attempts that have begun at runs of the queue of the fixture's job.
func (f *fixture) began(n int64) {
	f.Helper()
	if _, err := f.Began(f.Context(), map[string]int64{f.job.Queue: n}); err != nil {
		f.Fatal(err)
	}
}

// pass makes the samples of the queue older.
func (f *fixture) pass(d time.Duration) {
	f.Helper()
	key := f.key("flow:" + f.job.Queue)
	parts := strings.Split(f.rdb.Get(f.Context(), key).Val(), "\x1f")
	for i, sample := range parts[1:] {
		at, rest, _ := strings.Cut(sample, " ")
		ms, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			f.Fatalf("sample %q: %v", sample, err)
		}
		parts[i+1] = strconv.FormatInt(ms-d.Milliseconds(), 10) + " " + rest
	}
	if err := f.rdb.Set(f.Context(), key, strings.Join(parts, "\x1f"), time.Minute).Err(); err != nil {
		f.Fatal(err)
	}
}

// wantFlow checks the flow of the queue, without the milliseconds that the test itself takes.
func (f *fixture) wantFlow(when string, in, out float64) {
	f.Helper()
	flows, err := f.Flows(f.Context(), []string{"other", f.job.Queue})
	if err != nil {
		f.Fatal(err)
	}
	got, is := flows[f.job.Queue]
	near := func(got, want float64) bool { return math.Abs(got-want) <= want/10 }
	if len(flows) != 1 || !is || !near(got.In, in) || !near(got.Out, out) {
		f.Errorf("%s: got %+v, want %v in, %v out", when, flows, in, out)
	}
}

func (f *fixture) wantNoFlow(when string) {
	f.Helper()
	if flows, err := f.Flows(f.Context(), []string{f.job.Queue}); err != nil || len(flows) > 0 {
		f.Errorf("%s: got %+v, %v, want none", when, flows, err)
	}
}

func TestAFlowIsWhatBeganAndTheGrowthOfTheDue(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		f.wantNoFlow("without a worker")
		f.began(0)
		f.wantNoFlow("after one sample")
		f.pass(30 * time.Second)
		client := f.session("w")
		var due []ledger.Due
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			due = append(due, f.requested(id))
		}
		f.began(20)
		f.wantFlow("5 more are due", 50, 40)
		for _, one := range due {
			f.claim(client, one, ledger.ClaimGranted)
		}
		f.pass(10 * time.Second)
		f.began(5)
		f.wantFlow("they have begun", 37.5, 37.5)
		f.pass(25 * time.Second) // the first sample is 65 s old
		f.began(0)
		f.wantFlow("after a quiet time", 0, 5*60/35.0)
	})
}

// TestTheNextRunIsFoundBehindABacklog has a run that was offered its locks. Its delivery may
// be behind that of a run that became due later.
func TestTheNextRunIsFoundBehindABacklog(t *testing.T) {
	each(t, func(f *fixture) {
		finds := func(when string, want ...ledger.Due) {
			f.Helper()
			first, err := f.Began(f.Context(), map[string]int64{f.job.Queue: 0})
			if err != nil || !slices.Equal(first, want) {
				f.Errorf("%s: got %+v, %v, want %+v", when, first, err, want)
			}
		}
		due := f.tick(f.job, f.cursor(f.job, 9), 2, ledger.VerdictRun).Due
		w := f.session("w")
		finds("neither run has waited")
		before := f.claim(w, due[0], ledger.ClaimGranted)
		f.claim(w, due[1], ledger.ClaimWaiting)
		finds("it waits")
		f.nextMillisecond()
		later := f.requested("later")
		offered := f.finish(before, ledger.OutcomeSuccess, ledger.FinishRecorded).Due[0]
		finds("its delivery is not in the queue yet")
		if err := f.Confirm(f.Context(), []ledger.Due{later, offered}); err != nil {
			f.Fatal(err)
		}
		finds("it was due first", offered)
		f.finish(f.claim(w, offered, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		finds("the other one has not waited")
	})
}

// A backlog that is canceled comes from nowhere and goes nowhere.
func TestAFlowIsNeverNegative(t *testing.T) {
	each(t, func(f *fixture) {
		due := f.requested("a")
		f.began(7)
		f.pass(10 * time.Second)
		if _, err := f.Cancel(f.Context(), due.Run, f.job, ledger.Act{Who: "ops", What: "cancel run"}); err != nil {
			f.Fatal(err)
		}
		f.began(0)
		f.wantFlow("canceled", 0, 0)
		f.rdb.Del(f.Context(), f.key("flow:"+f.job.Queue)) // Redis was emptied
		f.wantNoFlow("emptied")
		f.began(1)
		f.wantNoFlow("after a first sample")
		f.pass(10 * time.Second)
		f.began(1)
		f.wantFlow("filled again", 6, 6)
		f.pass(-time.Hour) // the clock of the server was set back
		f.wantNoFlow("samples of the future")
		f.began(1)
		f.wantNoFlow("they are dropped")
	})
}

func TestAFlowEndsWithItsWorkersAndIsBounded(t *testing.T) {
	each(t, func(f *fixture) {
		key := f.key("flow:" + f.job.Queue)
		for range 100 {
			f.began(1)
			f.pass(ledger.FlowEvery)
		}
		f.wantFlow("100 samples", 12, 12)
		if text := f.rdb.Get(f.Context(), key).Val(); strings.Count(text, "\x1f") > 14 {
			f.Errorf("got %q, want the samples of a minute", text)
		}
		for range 100 {
			f.began(1)
		}
		if text := f.rdb.Get(f.Context(), key).Val(); strings.Count(text, "\x1f") > 14 {
			f.Errorf("workers at the same time: got %q, want one sample of all", text)
		}
		f.pass(21 * time.Second)
		f.wantNoFlow("no worker has counted for 20 s")
		f.began(0)
		if left := f.rdb.PTTL(f.Context(), key).Val(); left <= 0 || left > time.Minute {
			f.Errorf("the key stays for %s, want at most a minute", left)
		}
	})
}
