package worker

import (
	"testing"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// TestOnlySuspectsAfterTheirFirstCrashShareAWorker: so two crashed runs crash together at most once
// more.
func TestOnlySuspectsAfterTheirFirstCrashShareAWorker(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		crashes, most int
		want          bool
	}{{1, 3, false}, {1, 2, true}, {2, 3, true}, {2, 10, true}, {1, 10, false}} {
		job := &jobs.Job{MaxCrashes: test.most}
		if got := ledger.IsolationOf(job, test.crashes, true); !got.Place || got.Alone != test.want {
			t.Errorf("%d crashes of at most %d: %+v, want the place, alone %v", test.crashes, test.most, got, test.want)
		}
	}

	var s suspects
	admitted := func(what string, g *guest, want bool) *guest {
		t.Helper()
		if (g != nil) != want {
			t.Errorf("%s: %v, want %v", what, g != nil, want)
		}
		return g
	}
	a := admitted("a takes the free place", s.admit("a", ledger.Isolation{Place: true}), true)
	admitted("b takes the taken place", s.admit("b", ledger.Isolation{Place: true}), false)
	if !s.leave(a) || s.leave(a) {
		t.Error("a leaves the place, and does so once")
	}
	admitted("b, which must be alone, comes beside a", s.admit("b", ledger.Isolation{Place: true, Alone: true}), false)
	c := admitted("c comes beside a", s.admit("c", ledger.Isolation{Place: true}), true)
	d := admitted("d, which is cleared, comes beside c", s.admit("d", ledger.Isolation{}), true)
	if s.leave(a) {
		t.Error("a leaves the place that c has")
	}
	s.end(a)
	admitted("b comes while c has the place", s.admit("b", ledger.Isolation{Place: true, Alone: true}), false)
	s.end(c)
	admitted("b comes while d runs", s.admit("b", ledger.Isolation{Place: true, Alone: true}), false)
	s.end(d)
	b := admitted("b comes when all have ended", s.admit("b", ledger.Isolation{Place: true, Alone: true}), true)
	admitted("d, which is cleared, comes beside b, which must be alone", s.admit("d", ledger.Isolation{}), false)
	s.end(b)
	if run, _, beside := s.now(); run != "" || beside != 0 {
		t.Errorf("%s and %d others are left", run, beside)
	}
}

// TestARunThatAnotherCrashEndsRunsBesideNoOtherThatHasCrashed: the blame is never certain. Here
// poison crashed with a and b, ran for longer the next time, left the place, and killed the worker
// when a was in the place: a was blamed, and poison and b, which had left the place before, were
// cleared.
func TestARunThatAnotherCrashEndsRunsBesideNoOtherThatHasCrashed(t *testing.T) {
	t.Parallel()
	job := &jobs.Job{MaxCrashes: 3}
	var s suspects
	poison := s.admit("poison", ledger.IsolationOf(job, 2, false))
	if poison == nil {
		t.Fatal("a cleared run finds no place although nothing runs")
	}
	if s.admit("b", ledger.IsolationOf(job, 2, false)) != nil {
		t.Error("b, whose third crash ends it, runs beside poison")
	}
	if s.admit("new", ledger.IsolationOf(job, 1, false)) != nil {
		t.Error("a run that has crashed once runs beside one that must be alone")
	}
	s.end(poison)
	free := s.admit("free", ledger.IsolationOf(job, 1, false))
	if free == nil || s.admit("more", ledger.IsolationOf(job, 1, false)) == nil {
		t.Error("cleared runs that have crashed once do not run side by side")
	}
	if s.admit("b", ledger.IsolationOf(job, 2, false)) != nil {
		t.Error("b, whose third crash ends it, runs beside runs that have crashed")
	}
	if s.admit("b", ledger.IsolationOf(&jobs.Job{MaxCrashes: 4}, 2, false)) == nil {
		t.Error("a cleared run that survives another crash does not run beside others")
	}
}

// TestAnEarlierAttemptFreesNoPlaceOfItsRun: it has left the place, its handler ignores its context,
// and the run is back.
func TestAnEarlierAttemptFreesNoPlaceOfItsRun(t *testing.T) {
	t.Parallel()
	var s suspects
	first := s.admit("a", ledger.Isolation{Place: true})
	s.leave(first)
	second := s.admit("a", ledger.Isolation{Place: true})
	s.end(first)
	if run, _, beside := s.now(); run != "a" || beside != 0 {
		t.Errorf("the place is %q's, with %d beside it; want a's second attempt in it alone", run, beside)
	}
	s.end(second)
}
