package scheduler

import (
	"context"
	"errors"
	"time"
)

const (
	// between two looks at the size of histories, when it may soon be too large
	historyEvery = time.Minute
	historyCalm  = 10                    // times that, while it is less than half of the bound
	historySoon  = 2 * time.Second       // between the start of duty and the first look
	historyPause = 50 * time.Millisecond // between two round trips of a look
)

// histories keeps, while this worker has duty, all finished runs together within
// [Options].MaxHistory, drops the definitions that none of them has any more, and completes the
// order of the jobs by their last ends.
func (s *Scheduler) histories(ctx context.Context) {
	every := s.o.HistoryEvery
	if every <= 0 {
		every = historyEvery
	}
	soon := min(every, historySoon)
	for wait := soon; sleep(ctx, wait); {
		switch {
		case !s.duty.Load():
			wait = soon
		case s.boundHistories(ctx):
			wait = historyCalm * every
		default:
			wait = every
		}
	}
}

// boundHistories removes the oldest finished runs if there are too many. It returns true when none
// will need to be removed for a while.
func (s *Scheduler) boundHistories(ctx context.Context) (calm bool) {
	rest := func(ctx context.Context) error {
		sleep(ctx, historyPause)
		return ctx.Err()
	}
	size, err := s.o.Ledger.HistorySize(ctx, rest)
	if err != nil {
		s.failed(ctx, "read the size of histories", err)
		return false
	}
	if err := s.o.Ledger.IndexEnds(ctx, size, rest); err != nil && !errors.Is(err, context.Canceled) {
		s.failed(ctx, "index the ends of runs", err)
	}
	if err := s.o.Ledger.TidyHistories(ctx, size, rest); err != nil && !errors.Is(err, context.Canceled) {
		s.failed(ctx, "drop definitions that no finished run has", err)
	}
	if s.o.MaxHistory == 0 {
		return true
	}
	if size.Bytes <= s.o.MaxHistory {
		return size.Bytes < s.o.MaxHistory/2
	}
	// Remove more than necessary, so that not every look removes a few.
	removed, oldest, err := s.o.Ledger.TrimHistory(ctx, size, s.o.MaxHistory-s.o.MaxHistory/10, rest)
	if removed > 0 {
		s.o.Logger.InfoContext(ctx, "the oldest finished runs were removed: all of them took more than limits.history", "runs", removed,
			"took", size.Bytes, "limit", s.o.MaxHistory, "ended_before", oldest)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		s.failed(ctx, "trim histories", err)
	}
	return false
}
