package cronspec_test

import (
	"testing"
	"time"

	"lockstep/scheduler/cronspec"
)

// TestBetweenEqualsAWalkAlongTheTicks compares with a walk from tick to tick, for bounds on ticks,
// beside them and far from them, and for a limit that is reached, met exactly, or not reached.
func TestBetweenEqualsAWalkAlongTheTicks(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 27, 22, 59, 59, 700e6, time.UTC)
	schedules := map[string]*cronspec.Schedule{}
	for _, expr := range []string{"*/10 * * * *", "30 2 * * *", "0 0 1 * *", "*/7 * 2 * * 6", "0 0 29 2 *"} {
		schedules[expr] = mustParse(t, expr, "Europe/Berlin") // the clock changes on 2026-03-29
	}
	for _, interval := range []time.Duration{time.Second, 90 * time.Second, 7 * time.Hour} {
		schedule, err := cronspec.Every(interval)
		if err != nil {
			t.Fatal(err)
		}
		schedules[schedule.String()] = schedule
	}
	for name, schedule := range schedules {
		for _, length := range []time.Duration{0, time.Second, 300 * time.Millisecond, 90 * time.Second, 3 * time.Hour, 3 * 24 * time.Hour} {
			for _, after := range []time.Time{start, schedule.Next(start), schedule.Next(start).Add(-time.Second)} {
				upto := after.Add(length)
				var want cronspec.Span
				for tick := schedule.Next(after); !tick.IsZero() && !tick.After(upto); tick = schedule.Next(tick) {
					if want.Last = tick; want.Ticks == 0 {
						want.First = tick
					}
					want.Ticks++
				}
				for _, most := range []int{max(1, want.Ticks-1), max(1, want.Ticks), want.Ticks + 1, 5} {
					limited := want
					if name[0] != 'e' && want.Ticks > most { // not an interval
						limited.Ticks, limited.More = most, true
					}
					if got := schedule.Between(after, upto, most); got != limited {
						t.Errorf("%s after %v, up to %v, at most %d: %+v, want %+v", name, after, upto, most, got, limited)
					}
				}
			}
		}
	}
}
