package ledger_test

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// prints ends an attempt that has printed a text, and returns what became due.
func (f *fixture) prints(a attempt, outcome ledger.Outcome, text string) []ledger.Due {
	f.Helper()
	finished, err := f.Finish(f.Context(), ledger.Finish{
		Run: a.Record.ID, Job: a.Job, Token: a.token(), Hold: a.request.ID(), Outcome: outcome, Output: text,
	})
	if err != nil {
		f.Fatal(err)
	}
	return finished.Due
}

// wantOutput compares the output of an attempt, 0 for the last one that has printed something, with
// what is wanted: the number of its attempt, 0 for none, and the text.
func (f *fixture) wantOutput(run jobs.RunID, attempt, number int, text string) {
	f.Helper()
	_, output, err := f.FindOutput(f.Context(), run, attempt)
	if err != nil {
		f.Fatal(err)
	}
	if output.Attempt != number || output.Text != text {
		f.Errorf("output %d: got %.40q (%d bytes) of attempt %d, want %.40q (%d bytes) of attempt %d", attempt,
			output.Text, len(output.Text), output.Attempt, text, len(text), number)
	}
}

func TestEachAttemptKeepsItsOutput(t *testing.T) {
	each(t, func(f *fixture) {
		client, due := f.session("w"), f.run()
		run := due.Run
		f.wantOutput(run, 0, 0, "")
		first := f.claim(client, due, ledger.ClaimGranted)
		due = f.prints(first, ledger.OutcomeHandBack, "one\x1f\nö")[0]
		f.wantOutput(run, 0, 1, "one\x1f\nö")
		f.wantOutput(run, 2, 0, "")
		second := f.claim(client, due, ledger.ClaimGranted)
		due = f.prints(second, ledger.OutcomeHandBack, "")[0]
		f.wantOutput(run, 0, 1, "one\x1f\nö") // of the last one that has printed something
		third := f.claim(client, due, ledger.ClaimGranted)
		f.prints(third, ledger.OutcomeSuccess, "three")
		for range 2 {
			f.wantOutput(run, 0, 3, "three")
			f.wantOutput(run, 1, 1, "one\x1f\nö")
			f.wantOutput(run, 2, 0, "")
			f.wantOutput(run, 3, 3, "three")
			f.prints(third, ledger.OutcomeSuccess, "three") // sent again
		}
		record, err := f.FindRecord(f.Context(), run)
		if err != nil || record.State != ledger.StateSucceeded || len(record.Attempts) != 3 {
			f.Errorf("the record is %+v, %v", record, err)
		}
	})
}

func TestOutputsOfARunAreBounded(t *testing.T) {
	each(t, func(f *fixture) {
		client := f.session("w")
		for name, c := range map[string]struct{ bytes, attempts, kept int }{
			"many":  {100, 12, 8},
			"large": {jobs.MaxTail, 4, 1},
			"half":  {jobs.MaxTail / 2, 4, 2},
			"mixed": {400 << 10, 7, 2},
		} {
			due := f.enqueues(f.Ledger, f.job, name)
			text := func(n int) string { return fmt.Sprint(n, strings.Repeat("x", c.bytes-2)) }
			for n := 1; n <= c.attempts; n++ {
				a := f.claim(client, due, ledger.ClaimGranted)
				if n == c.attempts {
					f.prints(a, ledger.OutcomeSuccess, text(n))
				} else {
					due = f.prints(a, ledger.OutcomeHandBack, text(n))[0]
				}
			}
			for n := 1; n <= c.attempts; n++ {
				if n > c.attempts-c.kept {
					f.wantOutput(due.Run, n, n, text(n))
				} else {
					f.wantOutput(due.Run, n, 0, "")
				}
			}
			if size := f.rdb.HStrLen(f.Context(), f.key("output:j"), string(due.Run)).Val(); size > 1<<20+100 {
				f.Errorf("%s: the outputs take %d bytes, want 1 MiB at most", name, size)
			}
		}
	})
}

// TestOutputsOfAnOlderBuildAreShown stores the output of one attempt alone, as builds do that keep
// only that of the last one.
func TestOutputsOfAnOlderBuildAreShown(t *testing.T) {
	each(t, func(f *fixture) {
		client, due := f.session("w"), f.run()
		for _, text := range []string{"one", ""} {
			due = f.prints(f.claim(client, due, ledger.ClaimGranted), ledger.OutcomeHandBack, text)[0]
		}
		if err := f.rdb.HSet(f.Context(), f.key("output:j"), string(due.Run), "of an older build").Err(); err != nil {
			f.Fatal(err)
		}
		f.wantOutput(due.Run, 0, 2, "of an older build")
		f.wantOutput(due.Run, 1, 0, "")
		third := f.claim(client, due, ledger.ClaimGranted)
		f.wantOutput(due.Run, 0, 2, "of an older build")
		f.prints(third, ledger.OutcomeSuccess, "three")
		f.wantOutput(due.Run, 0, 3, "three")
		f.wantOutput(due.Run, 2, 2, "of an older build")
	})
}

func TestAReopenedRunKeepsTheOutputOfItsSuccess(t *testing.T) {
	each(t, func(f *fixture) {
		client := f.session("w")
		first := f.claim(client, f.run(), ledger.ClaimGranted)
		run := first.Record.ID
		f.prints(first, ledger.OutcomeSuccess, "one")
		f.wantOutput(run, 0, 1, "one")
		due, err := f.reopen(run, first.Record.Tick, true)
		if err != nil {
			f.Fatal(err)
		}
		f.wantOutput(run, 0, 1, "one")
		second := f.claim(client, due[0], ledger.ClaimGranted)
		f.wantOutput(run, 0, 1, "one")
		f.prints(second, ledger.OutcomeFailure, "two")
		f.wantOutput(run, 0, 2, "two")
		f.wantOutput(run, 1, 1, "one")
	})
}
