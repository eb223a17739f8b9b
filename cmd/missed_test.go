package cmd

import (
	"context"
	"testing"
	"time"
)

type tickJSON struct {
	Tick    time.Time
	Outcome string
	Reason  *string
	Decided time.Time `json:"decided_at"`
}

// TestFirstWorkerDecidesWhatCameWhileAllWereDown: when the last worker has gone, the cursors are put ten minutes back, as
// if that had been so long ago. The next worker accounts for each tick since, and runs what its job's policy says.
func TestFirstWorkerDecidesWhatCameWhileAllWereDown(t *testing.T) {
	t.Parallel()
	const job = `{every: 1m, overlap: queue, command: [sh, -c, 'echo "$LOCKSTEP_RUN_ID"'], on_missed: `
	f, server := newPack(t, `
jobs:
  skip: `+job+`skip}
  last: `+job+`last}
  all: `+job+`all}
`)
	f.startAll(1)
	rdb := server.Client(t)
	const cursors = "{lockstep}:cursor"
	eventually(t, 30*time.Second, "the jobs are registered", func() bool {
		n, err := rdb.HLen(t.Context(), cursors).Result()
		return err == nil && n == 3
	})
	f.drain()
	since := time.Now().Add(-10*time.Minute - 30*time.Second).UnixMilli()
	for _, name := range []string{"skip", "last", "all"} {
		if err := rdb.HSet(context.WithoutCancel(t.Context()), cursors, name, since).Err(); err != nil {
			t.Fatal(err)
		}
	}

	began := time.Now()
	f.startAll(2)
	for name, least := range map[string]int{"skip": 0, "last": 1, "all": 9} {
		var ticks []tickJSON
		eventually(t, time.Minute, name+" has decided ten ticks", func() bool {
			ticks = ask[[]tickJSON](t, f.env, "job", "history", name)
			for _, tick := range ticks {
				if tick.Outcome == "pending" {
					return false
				}
			}
			return len(ticks) >= 10
		})
		seen, late := make(map[time.Time]bool), 0
		for _, tick := range ticks {
			if seen[tick.Tick] || tick.Tick.Second() != 0 || tick.Tick.UnixMilli() <= since {
				t.Errorf("%s: tick %s again, or none of its ticks", name, tick.Tick)
			}
			seen[tick.Tick] = true
			if tick.Decided.Sub(tick.Tick) <= time.Minute {
				continue // not missed
			}
			switch tick.Outcome {
			case "succeeded":
				late++
			case "missed":
				if tick.Reason == nil {
					t.Errorf("%s: tick %s is missed and does not say why", name, tick.Tick)
				}
			default:
				t.Errorf("%s: tick %s is %s", name, tick.Tick, tick.Outcome)
			}
		}
		for tick := time.UnixMilli(since).Truncate(time.Minute).Add(time.Minute); tick.Before(began.Add(-time.Second)); tick = tick.Add(time.Minute) {
			if !seen[tick.UTC()] {
				t.Errorf("%s: nothing was decided about %s", name, tick)
			}
		}
		if late < least || name != "all" && late != least {
			t.Errorf("on_missed: %s ran %d of the missed ticks, want %d", name, late, least)
		}
	}
	f.drain()
}
