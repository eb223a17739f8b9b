package ledger_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// decline lets a worker claim a run and hand it back because it cannot do it, and makes it due
// again.
func (f *fixture) decline(client *locks.Client, due ledger.Due, why string) ledger.Due {
	f.Helper()
	a := f.claim(client, due, ledger.ClaimGranted)
	finished, err := f.Finish(f.Context(), ledger.Finish{Run: a.Record.ID, Job: a.Job, Token: a.token(), Hold: a.request.ID(),
		Outcome: ledger.OutcomeHandBack, Pause: time.Hour, Error: why})
	if err != nil || finished.Verdict != ledger.FinishRecorded || finished.State != ledger.StateScheduled {
		f.Fatalf("hand-back: %+v, %v", finished, err)
	}
	if err := f.rdb.ZAdd(f.Context(), f.key("timer"), redis.Z{Score: 1, Member: string(due.Run)}).Err(); err != nil {
		f.Fatal(err)
	}
	return f.await()[0]
}

// TestARunThatNoWorkerCanDoGrowsNothing lets four workers of two builds decline one run 1,000
// times.
func TestARunThatNoWorkerCanDoGrowsNothing(t *testing.T) {
	large(t, func(f *fixture) {
		due := f.run()
		var workers []*locks.Client
		for i := range 4 {
			workers = append(workers, f.session(fmt.Sprint("web-", i)))
		}
		size := func() (n int64) {
			return f.rdb.HStrLen(f.Context(), f.key("log"), string(due.Run)).Val() + f.rdb.XLen(f.Context(), f.key("news")).Val() +
				f.rdb.HStrLen(f.Context(), f.key("run"), string(due.Run)).Val()
		}
		const n = 1000
		var early int64
		for i := range n {
			due = f.decline(workers[i%4], due, fmt.Sprintf("unknown handler \"%d\",{\"attempt\":1}", i%2))
			if i == 9 {
				early = size()
			}
		}
		record := f.find(due.Run)
		if len(record.Attempts) != 2 || record.Fails != 0 || record.Suspect() {
			t.Fatalf("%d attempts are recorded, %+v, want one for each reason", len(record.Attempts), record)
		}
		for i, a := range record.Attempts {
			if a.Times != n/2 || a.Number != n-1+i || a.Outcome != ledger.AttemptHandedBack || !a.First.Before(a.Started) ||
				!strings.Contains(a.Error, fmt.Sprint(i)) {
				t.Errorf("%+v, want attempt %d with %d times", a, n-1+i, n/2)
			}
		}
		if late := size(); late > early+100 {
			t.Errorf("after %d hand-backs the run has %d bytes, after 10 %d", n, late, early)
		}

		// Later attempts are recorded as usual.
		a := f.claim(workers[0], due, ledger.ClaimGranted)
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		if record = f.wantState(due.Run, ledger.StateSucceeded); len(record.Attempts) != 3 || record.Last().Times != 1 || record.Last().Number != n+1 {
			t.Errorf("%+v", record)
		}
	})
}

// TestDeclinedAttemptsLeaveOthersAlone mixes them with a failure and a drain.
func TestDeclinedAttemptsLeaveOthersAlone(t *testing.T) {
	each(t, func(f *fixture) {
		due, web := f.run(), f.session("web")
		f.finish(f.claim(web, due, ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
		due = f.await()[0]
		for range 3 {
			due = f.decline(web, due, "no handler")
		}
		a := f.claim(web, due, ledger.ClaimGranted)
		finished, err := f.Finish(f.Context(), ledger.Finish{Run: a.Record.ID, Job: a.Job, Token: a.token(), Hold: a.request.ID(),
			Outcome: ledger.OutcomeHandBack, Error: "no handler"})
		if err != nil {
			t.Fatal(err)
		}
		due = f.decline(web, finished.Due[0], "no handler")
		for i := range 12 {
			due = f.decline(web, due, "reason "+fmt.Sprint(i))
		}
		var got []string
		for _, a := range f.find(due.Run).Attempts {
			got = append(got, fmt.Sprintf("%d %s x%d", a.Number, a.Error, a.Times))
		}
		want := []string{"1 it said: \"no\"\n x1", "4 no handler x3", "5 no handler x1"}
		for i := 4; i < 12; i++ {
			want = append(want, fmt.Sprintf("%d reason %d x1", i+7, i))
		}
		if strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("got %q\nwant %q", got, want)
		}
	})
}
