package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lockstep/scheduler/ledger"
)

// Ends returns the last runs of a job that ended, the last one first: at most n of them. Skipped
// and missed ticks are not runs.
func (r *Reader) Ends(ctx context.Context, job string, n int) ([]Run, error) {
	if n < 1 {
		return nil, fmt.Errorf("%w: the last %d runs", ErrInvalid, n)
	}
	if _, err := r.book.Job(ctx, job); err != nil {
		return nil, err
	}
	listed, err := r.endedPager(job, wasRun).next(ctx, n, lastRunWithin)
	if err != nil {
		return nil, err
	}
	return r.listedRuns(ctx, RunFilter{}, listed)
}

// Now returns the time of the server, which all ages refer to.
func (r *Reader) Now(ctx context.Context) (time.Time, error) { return r.now(ctx) }

// Usual is how long the runs of a job take, from the start of the first attempt to the end.
type Usual struct {
	Of       int // how many runs were counted: those that succeeded
	P50, P95 time.Duration
}

const (
	// UsualOver is from how many of a job's last ends its usual duration is computed.
	UsualOver = 50

	usualLeast = 5 // runs that must have succeeded before a duration is called unusual
)

// UsualOf returns how long runs usually take.
func UsualOf(runs []Run) Usual {
	var took []time.Duration
	for _, run := range runs {
		if run.State == ledger.StateSucceeded && !run.StartedAt.IsZero() && !run.FinishedAt.IsZero() {
			took = append(took, max(0, run.FinishedAt.Sub(run.StartedAt.Time)))
		}
	}
	if len(took) == 0 {
		return Usual{}
	}
	slices.Sort(took)
	// the nearest rank: the smallest duration that this share of the runs did not exceed
	rank := func(percent int) time.Duration { return took[(len(took)*percent+99)/100-1] }
	return Usual{len(took), rank(50), rank(95)}
}

// Exceeds reports whether a duration is unusually long: longer than 95 % of the runs took. With
// fewer than five of them no duration is unusual.
func (u Usual) Exceeds(d time.Duration) bool { return u.Of >= usualLeast && d > u.P95 }

// Unusual describes by how much a running run exceeds what is usual; "" if it does not.
func (u Usual) Unusual(run *Run, now time.Time) string {
	if run.State != ledger.StateRunning || len(run.Attempts) == 0 {
		return ""
	}
	took := now.Sub(run.Attempts[len(run.Attempts)-1].StartedAt.Time)
	if !u.Exceeds(took) {
		return ""
	}
	return fmt.Sprintf("runs for %s, unusually long: 95 %% of the last %d successful runs took at most %s", Span(took), u.Of, Span(u.P95))
}

// unusual describes by how much a running run exceeds the usual duration of its job's runs; "" if
// it does not. Of a job that was forgotten no usual duration is known.
func (r *Reader) unusual(ctx context.Context, run *Run) (Text, error) {
	if run.State != ledger.StateRunning {
		return "", nil
	}
	ends, err := r.Ends(ctx, run.Job, UsualOver)
	if errors.Is(err, ledger.ErrUnknown) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	now, err := r.now(ctx)
	return Text(UsualOf(ends).Unusual(run, now)), err
}
