package admin

import (
	"testing"
	"time"

	"lockstep/scheduler/ledger"
)

func TestUsualCountsOnlyRunsThatSucceeded(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var runs []Run
	for i := range 20 {
		runs = append(runs, Run{State: ledger.StateSucceeded, StartedAt: Instant{begin}, FinishedAt: Instant{begin.Add(time.Duration(20-i) * time.Second)}})
	}
	runs = append(runs,
		Run{State: ledger.StateFailed, StartedAt: Instant{begin}, FinishedAt: Instant{begin.Add(time.Hour)}},
		Run{State: ledger.StateSucceeded, FinishedAt: Instant{begin}})
	if got, want := UsualOf(runs), (Usual{20, 10 * time.Second, 19 * time.Second}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := UsualOf(nil); got != (Usual{}) {
		t.Errorf("of no runs: got %+v", got)
	}
}

func TestOnlyALongRunOfAKnownJobIsUnusual(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		usual Usual
		took  time.Duration
		want  bool
	}{
		{Usual{20, 10 * time.Second, 19 * time.Second}, 20 * time.Second, true},
		{Usual{20, 10 * time.Second, 19 * time.Second}, 19 * time.Second, false},
		{Usual{4, 10 * time.Second, 19 * time.Second}, time.Hour, false},
		{Usual{}, time.Hour, false},
	} {
		if got := test.usual.Exceeds(test.took); got != test.want {
			t.Errorf("%+v exceeded by %s: got %v, want %v", test.usual, test.took, got, test.want)
		}
	}
}
