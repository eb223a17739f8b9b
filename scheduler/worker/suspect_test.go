package worker

import (
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// TestOnlySuspectsAfterTheirFirstCrashShareAWorker: so two suspects crash together once more at most.
func TestOnlySuspectsAfterTheirFirstCrashShareAWorker(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		crashes, most int
		want          bool
	}{{1, 3, true}, {1, 2, false}, {2, 3, false}, {2, 10, false}, {1, 10, true}} {
		if got := sharesAfter(test.crashes, &jobs.Job{MaxCrashes: test.most}); got != test.want {
			t.Errorf("%d crashes of at most %d: shares %v, want %v", test.crashes, test.most, got, test.want)
		}
	}

	var s suspect
	step := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	step("a takes the free place", s.take("a", false), true)
	step("b takes the taken place", s.take("b", true), false)
	step("a leaves the place", s.leave("a"), true)
	step("b, which must be alone, comes beside a", s.take("b", false), false)
	step("c comes beside a", s.take("c", true), true)
	step("b leaves a place that it does not have", s.leave("b"), false)
	s.end("a")
	step("b comes while c has the place", s.take("b", false), false)
	s.end("c")
	step("b comes when all have ended", s.take("b", false), true)
	s.end("b")
	step("nothing is left", s.shared() || s.now() != "", false)
}

func TestARunIsPastItsCrashWhenItHasRunForLonger(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	attempt := func(outcome string, d time.Duration) ledger.AttemptRecord {
		return ledger.AttemptRecord{Outcome: outcome, Started: at, Finished: at.Add(d)}
	}
	for _, test := range []struct {
		attempts []ledger.AttemptRecord
		want     time.Duration
	}{
		{[]ledger.AttemptRecord{attempt("crashed", 2*time.Second)}, 3 * time.Second},
		{[]ledger.AttemptRecord{attempt("crashed", time.Minute), attempt("crashed", time.Second)}, 75 * time.Second},
		{[]ledger.AttemptRecord{attempt("failed", time.Hour), attempt("crashed", time.Minute), {Started: at}}, 75 * time.Second},
	} {
		if got := pastCrash(test.attempts); got != test.want {
			t.Errorf("%+v: got %v, want %v", test.attempts, got, test.want)
		}
	}
}
