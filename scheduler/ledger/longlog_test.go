package ledger_test

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// ends claims a run and ends the attempt with a long error, which looks like an entry of the log.
// It returns the run's next delivery.
func (f *fixture) ends(client *locks.Client, due ledger.Due, outcome ledger.Outcome) ledger.Due {
	f.Helper()
	a := f.claim(client, due, ledger.ClaimGranted)
	finished, err := f.Finish(f.Context(), ledger.Finish{Run: a.Record.ID, Job: a.Job, Token: a.token(), Hold: a.request.ID(),
		Outcome: outcome, Error: `"},{"attempt":1,"worker":"` + strings.Repeat("x", 900) + fmt.Sprint(a.Record.Last().Number) + `{`})
	if err != nil || finished.Verdict != ledger.FinishRecorded {
		f.Fatalf("finish %s: %+v, %v", outcome, finished, err)
	}
	if outcome == ledger.OutcomeHandBack {
		return finished.Due[0]
	}
	return f.await()[0]
}

// TestTheLogOfARunWithManyAttemptsIsBounded hands a run back and retries it, in turns.
func TestTheLogOfARunWithManyAttemptsIsBounded(t *testing.T) {
	each(t, func(f *fixture) {
		due, web := f.run(), f.session("web")
		const n = 80
		for i := range n {
			due = f.ends(web, due, []ledger.Outcome{ledger.OutcomeHandBack, ledger.OutcomeRetry}[i%2])
		}
		record := f.find(due.Run)
		if size := f.rdb.HStrLen(f.Context(), f.key("log"), string(due.Run)).Val(); size > 64<<10 {
			t.Errorf("the log of %d attempts has %d bytes, want at most %d", n, size, 64<<10)
		}
		if record.Fails != n/2 || record.Attempts[0].Number != 1 || record.Last().Number != n {
			t.Errorf("%d failures, attempts %d to %d; want %d failures, and the first and the last attempt", record.Fails,
				record.Attempts[0].Number, record.Last().Number, n/2)
		}
		numbers, outcomes := make(map[int]bool), []string{"handed back", "failed"}
		for _, a := range record.Attempts {
			if numbers[a.Number] || a.Outcome != outcomes[(a.Number-1)%2] || !strings.HasSuffix(a.Error, fmt.Sprintf("x%d{", a.Number)) {
				t.Fatalf("%+v, want each attempt as it was, and once", a)
			}
			numbers[a.Number] = true
		}
		for i := range 8 {
			if !numbers[i+1] || !numbers[n-i] {
				t.Errorf("attempts %v are recorded, want the first ones and the last ones", numbers)
			}
		}
		f.finish(f.claim(web, due, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		if record = f.wantState(due.Run, ledger.StateSucceeded); record.Last().Number != n+1 {
			t.Errorf("the last attempt is %d, want %d", record.Last().Number, n+1)
		}
	})
}

// TestALongLogKeepsWhatDecidesAboutSuspects puts a crash into the middle of a long log, and
// sometimes a failure behind it, which the run has survived.
func TestALongLogKeepsWhatDecidesAboutSuspects(t *testing.T) {
	for _, survived := range []bool{false, true} {
		t.Run(fmt.Sprint(survived), func(t *testing.T) {
			each(t, func(f *fixture) {
				due, web := f.run(), f.session("web")
				for range 12 {
					due = f.ends(web, due, ledger.OutcomeHandBack)
				}
				f.claim(web, due, ledger.ClaimGranted)
				due, web = f.crash(web)[0], f.session("next")
				if survived {
					due = f.ends(web, due, ledger.OutcomeRetry)
				}
				for range 40 {
					due = f.ends(web, due, ledger.OutcomeHandBack)
				}
				record := f.find(due.Run)
				if n := len(record.Attempts); n > 45 || record.Crashes != 1 {
					t.Errorf("%d attempts are recorded with %d crashes, want a short log with one crash", n, record.Crashes)
				}
				f.suspected(due.Run, !survived)
				found, err := f.ClaimSound(f.Context(), f.request(web), due, 0, nil)
				if err != nil || found.Outcome != ledger.ClaimCrashed || found.Suspected == survived {
					t.Errorf("claim: %+v, %v; want the run suspected: %v", found, err, !survived)
				}
			})
		})
	}
}

// TestALongLogKeepsTheLostLeasesThatNoWorkerExplained has a run hand back many times between the
// leases that it loses.
func TestALongLogKeepsTheLostLeasesThatNoWorkerExplained(t *testing.T) {
	each(t, func(f *fixture) {
		due := f.run()
		for i := range ledger.MaxLostLeases {
			web := f.session(fmt.Sprint("web-", i))
			for range 8 {
				due = f.ends(web, due, ledger.OutcomeHandBack)
			}
			f.claim(web, due, ledger.ClaimGranted)
			again := f.loseLease(web)
			if last := i == ledger.MaxLostLeases-1; last != (len(again) == 0) {
				t.Fatalf("due after %d lost leases: %+v", i+1, again)
			} else if !last {
				due = again[0]
			}
		}
		f.wantState(due.Run, ledger.StateFailed)
	})
}
