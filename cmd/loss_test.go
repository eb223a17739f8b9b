package cmd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

// Redis loses its data while workers live: the row "Redis restarted empty, failover with lost
// writes" of the failure table, with real processes.

func TestWorkersReassertWhatRedisLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, server *redistest.Server, moment redistest.Moment) error{
		"FLUSHALL": func(t *testing.T, server *redistest.Server, _ redistest.Moment) error {
			return server.Client(t).FlushAll(t.Context()).Err()
		},
		"restarted empty": func(t *testing.T, server *redistest.Server, _ redistest.Moment) error {
			return server.RestartEmpty(t.Context())
		},
		"last writes lost": func(t *testing.T, server *redistest.Server, moment redistest.Moment) error {
			return server.RestartFrom(t.Context(), moment)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, server := newPackOn(t, []string{"appendonly yes"}, `
jobs:
  tick:
    every: 1s
    overlap: allow
    command: [sh, -c, 'EFFECT; e start; e end']
  work:
    lock: {exclusive: [desk]}
    command: [sh, -c, 'EFFECT; e start; until [ -e EFFECTS.go ]; do sleep 0.1; done; e end']
  quick: {command: ["true"]}
`, "LOCKSTEP_LOCKS__LEASE=10s")
			f.startAll(3)
			eventually(t, time.Minute, "a tick", func() bool { return len(f.succeeded("tick")) > 0 })
			// the data after this moment is lost, unless all of it is
			moment, err := server.Moment()
			if err != nil {
				t.Fatal(err)
			}
			work := f.enqueue("work", "a")
			f.await(work, "running")
			waits := f.enqueue("work", "b")
			f.await(waits, "waiting")
			quick := f.enqueue("quick", "c")
			f.await(quick, "succeeded")
			eventually(t, time.Minute, "ticks", func() bool { return len(f.succeeded("tick")) > 2 })
			before := f.show(work)

			lost := time.Now()
			if err := lose(t, server, moment); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Minute, "what was running is known again", func() bool {
				_, _, code := runTool(t, f.env, "run", "show", work)
				return code == 0
			})
			eventually(t, 2*time.Minute, "ticks after the loss", func() bool {
				ran := f.succeeded("tick")
				return len(ran) > 0 && ran[len(ran)-1].Tick.After(lost.Add(20*time.Second))
			})
			if got := f.show(work); got.State != "running" || len(got.Attempts) != 1 || got.Attempts[0].Token != before.Attempts[0].Token {
				t.Errorf("after the loss: %+v, want it as before: %+v", got, before)
			}
			if got := f.show(quick); got.State != "succeeded" {
				t.Errorf("a run that had succeeded: %+v", got)
			}
			if err := os.WriteFile(filepath.Clean(f.effects+".go"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if got := f.await(work, "succeeded"); len(got.Attempts) != 1 {
				t.Errorf("%+v, want one attempt", got)
			}
			// No live worker knew the request, which was still waiting.
			again := f.enqueue("work", "d")
			f.await(again, "succeeded")
			f.drain()
			f.checkOverlap()
			f.checkTicks(t, "tick")
		})
	}
}

// succeeded returns the runs of a job that succeeded, by tick.
func (f *fleet) succeeded(job string) []runJSON {
	f.t.Helper()
	var out []runJSON
	for _, run := range f.runs() {
		if run.Job == job && run.State == "succeeded" && run.Tick != nil {
			out = append(out, run)
		}
	}
	slices.SortFunc(out, func(a, b runJSON) int { return a.Tick.Compare(*b.Tick) })
	return out
}

// checkTicks proves that no tick of a job with an interval of one second ran twice, and that each
// tick has an outcome, even if only in a line for lost ticks.
func (f *fleet) checkTicks(t *testing.T, job string) {
	t.Helper()
	ends := make(map[string]int)
	for _, e := range f.readEffects() {
		if e.end && e.job() == job {
			ends[e.run]++
		}
	}
	for run, n := range ends {
		if n != 1 {
			t.Errorf("%s has done its work %d times", run, n)
		}
	}
	type tickJSON struct {
		Tick, Upto time.Time
		Outcome    string
	}
	outcome := make(map[int64]string)
	var line *tickJSON
	var first, last int64
	ticks := ask[[]tickJSON](t, f.env, "job", "history", job)
	for i, tick := range ticks {
		if !tick.Upto.IsZero() {
			line = &ticks[i]
			continue
		}
		at := tick.Tick.Unix()
		outcome[at] = tick.Outcome
		if first == 0 || at < first {
			first = at
		}
		last = max(last, at)
	}
	for at := first; at <= last; at++ {
		covered := line != nil && at >= line.Tick.Unix() && at <= line.Upto.Unix()
		id := fmt.Sprintf("%s@%s", job, time.Unix(at, 0).UTC().Format(time.RFC3339))
		got := outcome[at]
		// workers that drain may create a run for the last tick, and leave it due
		left := got == "pending" && at == last && ends[id] == 0
		if got == "" && !covered || got == "pending" && !left {
			t.Errorf("%s has no outcome (%q)", id, got)
		}
		if ends[id] == 1 && outcome[at] != "succeeded" && !covered {
			t.Errorf("%s has done its work, and is %q", id, outcome[at])
		}
	}
}
