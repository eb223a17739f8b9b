package scheduler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func every(d time.Duration) func(time.Time) time.Time {
	return func(after time.Time) time.Time { return after.Truncate(d).Add(d) }
}

// verdicts formats decisions as one letter per tick, and checks that they account for every tick
// after the cursor exactly once.
func verdicts(t *testing.T, decisions []ledger.Decision, next func(time.Time) time.Time, cursor, now time.Time) string {
	t.Helper()
	var b strings.Builder
	for _, d := range decisions {
		if !d.Seen.Equal(cursor) {
			t.Errorf("a decision from cursor %v, want %v", d.Seen, cursor)
		}
		if len(d.Ticks) == 0 || len(d.Ticks) > ledger.MaxTicks {
			t.Errorf("a decision of %d ticks", len(d.Ticks))
		}
		for _, tick := range d.Ticks {
			if !tick.At.Equal(next(cursor)) {
				t.Fatalf("tick %v after %v, want %v", tick.At, cursor, next(cursor))
			}
			cursor = tick.At
			if !tick.Upto.IsZero() {
				cursor = tick.Upto
				b.WriteString("R")
				continue
			}
			b.WriteString(map[ledger.Verdict]string{ledger.VerdictRun: "r", ledger.VerdictCatchUp: "c", ledger.VerdictMissed: "m"}[tick.Verdict])
		}
		if !d.Cursor.Equal(cursor) {
			t.Errorf("the new cursor is %v, want %v", d.Cursor, cursor)
		}
	}
	if tick := next(cursor); !tick.After(now) {
		t.Errorf("tick %v is not accounted for", tick)
	}
	return b.String()
}

func TestEveryTickSinceTheCursorIsAccountedFor(t *testing.T) {
	m, c, r := func(n int) string { return strings.Repeat("m", n) }, func(n int) string { return strings.Repeat("c", n) },
		func(n int) string { return strings.Repeat("r", n) }
	tests := []struct {
		every, since time.Duration
		policy       jobs.OnMissed
		want         string
	}{
		{time.Second, 0, jobs.MissedLast, ""},
		{time.Second, time.Second, jobs.MissedLast, "r"},
		{time.Second, 60 * time.Second, jobs.MissedSkip, r(60)},
		{time.Minute, time.Minute, jobs.MissedSkip, "r"}, // exactly a minute late is not missed
		{time.Second, 65 * time.Second, jobs.MissedSkip, m(4) + r(61)},
		{time.Second, 65 * time.Second, jobs.MissedLast, m(3) + c(1) + r(61)},
		{time.Second, 65 * time.Second, jobs.MissedAll, c(4) + r(61)},
		{time.Hour, 24 * time.Hour, jobs.MissedLast, m(22) + "cr"},
		{time.Minute, 200 * time.Minute, jobs.MissedAll, m(98) + c(100) + "rr"},
		{time.Minute, 1001 * time.Minute, jobs.MissedLast, m(998) + "crr"},
		{time.Minute, 5000 * time.Minute, jobs.MissedLast, "R" + m(999) + "crr"},
		{time.Minute, 5000 * time.Minute, jobs.MissedAll, "R" + m(900) + c(100) + "rr"},
		{time.Minute, 5000 * time.Minute, jobs.MissedSkip, "R" + m(1000) + "rr"},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("every %v for %v, %s", test.every, test.since, test.policy), func(t *testing.T) {
			job := &jobs.Job{Name: "j", OnMissed: test.policy}
			cursor := epoch.Add(-test.since)
			got := verdicts(t, decide(job, every(test.every), cursor, epoch, "w.1"), every(test.every), cursor, epoch)
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestAJobThatNeverFiresAgainHasNothingToDecide(t *testing.T) {
	never := func(time.Time) time.Time { return time.Time{} }
	if got := decide(&jobs.Job{Name: "j"}, never, epoch, epoch.Add(time.Hour), "w.1"); got != nil {
		t.Errorf("%+v, want nothing", got)
	}
}

func TestAlarmsGoOffInTheOrderOfTheirTicks(t *testing.T) {
	var a alarms
	for i := range 100 {
		d := time.Duration(i%10+1) * time.Minute
		a.add(&alarm{job: &jobs.Job{Name: fmt.Sprint(i)}, next: every(d)})
	}
	if due := a.due(epoch.Add(time.Hour), 1000); len(due) != 0 {
		t.Errorf("%d alarms without a cursor went off", len(due))
	}
	for i := range 100 {
		a.move(fmt.Sprint(i), epoch)
	}
	a.move("unknown", epoch)
	if got := a.until(epoch); got != time.Minute {
		t.Errorf("first alarm in %v, want 1m", got)
	}
	if due := a.due(epoch.Add(3*time.Minute), 1000); len(due) != 30 {
		t.Errorf("%d alarms within 3 minutes, want 30", len(due))
	}
	if due := a.due(epoch.Add(3*time.Minute), 7); len(due) != 7 {
		t.Errorf("%d alarms, want at most 7", len(due))
	}
	for i := range 100 {
		a.move(fmt.Sprint(i), epoch.Add(time.Hour))
	}
	if due := a.due(epoch.Add(time.Hour), 1000); len(due) != 0 {
		t.Errorf("%d alarms went off again", len(due))
	}
}

// TestWorkersTakeTicksOfOneInstantInOrdersOfTheirOwn: else each of them creates what the others
// create.
func TestWorkersTakeTicksOfOneInstantInOrdersOfTheirOwn(t *testing.T) {
	const all, some = 1000, 100
	taken := make(map[string]bool)
	for range 2 {
		var a alarms
		for i := range all {
			a.add(&alarm{job: &jobs.Job{Name: fmt.Sprint(i)}, next: every(time.Minute)})
			a.move(fmt.Sprint(i), epoch)
		}
		for _, one := range a.due(epoch.Add(time.Minute), some) {
			taken[one.job.Name] = true
		}
	}
	if len(taken) < some*3/2 { // some 190
		t.Errorf("two workers took %d ticks each, and %d together", some, len(taken))
	}
}

func TestTicksOfAnUnknownDefinitionAreLeftForAMinuteAndThenMissed(t *testing.T) {
	job := &jobs.Job{Name: "j", OnMissed: jobs.MissedAll}
	for since, want := range map[time.Duration]bool{0: false, 30 * time.Second: true, 90 * time.Second: true, 91 * time.Second: false} {
		cursor := epoch.Add(-since)
		decisions := decide(job, every(30*time.Second), cursor, epoch, "w.1")
		if got := leave(decisions, epoch); got != want {
			t.Errorf("cursor %v ago: left is %t, want %t", since, got, want)
		}
	}
	cursor := epoch.Add(-200 * time.Minute)
	decisions := decide(job, every(time.Minute), cursor, epoch, "w.1")
	missAll(decisions, jobs.ErrUnknownKeys)
	if got, want := verdicts(t, decisions, every(time.Minute), cursor, epoch), strings.Repeat("m", 200); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if reason := decisions[1].Ticks[99].Reason; reason != jobs.ErrUnknownKeys.Error() {
		t.Errorf("the reason is %q", reason)
	}
}
