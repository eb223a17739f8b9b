package worker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

const (
	shownStuck = 64 // stuck attempts that a card names, or fewer if it has no room
	// in addition to the cutoff, for a command: it may end in order before it is killed
	endingLimit = 10 * time.Second
)

// Stuck is an attempt that continues at least a cutoff after the end of its context. It keeps its
// slot, and its locks as long as the session is renewed.
type Stuck struct {
	Run     jobs.RunID  `json:"run"`
	Token   locks.Token `json:"token"`
	Since   time.Time   `json:"since"`   // end of its context, by the server's clock
	Because string      `json:"because"` // the cause of that end
}

// stuckAttempts are the stuck attempts of one worker.
type stuckAttempts struct {
	tell func(n int) // receives their number; called in order

	mu      sync.Mutex
	all     map[locks.Token]Stuck
	changes int // of all, so that a card shows them

	abandoned []jobs.RunID    // the drain no longer waits for these
	left      []ledger.Finish // how to record their ends once this process has ended
}

// watch notes an attempt as stuck when ctx has ended and returned is not called within the allowed
// time after that. The caller calls returned when the executor has returned. began is when the
// attempt began, by the clock of this process.
func (s *stuckAttempts) watch(ctx context.Context, record *ledger.Record, began time.Time, allowed time.Duration, log *slog.Logger) (returned func()) {
	var (
		mu    sync.Mutex
		over  bool
		timer *time.Timer
	)
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		last := record.Last()
		one := Stuck{Run: record.ID, Token: last.Token, Since: last.Started.Add(time.Since(began)), Because: jobs.Cut(context.Cause(ctx).Error(), 200)}
		timer = time.AfterFunc(allowed, func() {
			mu.Lock()
			defer mu.Unlock()
			if !over {
				log.WarnContext(ctx, "attempt is stuck: it continues after the end of its context, and keeps its slot and its locks", "because", one.Because)
				s.change(func() { s.all[one.Token] = one })
			}
		})
	})
	return func() {
		if stop() {
			return // ctx has not ended
		}
		mu.Lock()
		defer mu.Unlock()
		over = true
		if timer != nil && timer.Stop() {
			return
		}
		s.change(func() { delete(s.all, record.Last().Token) })
	}
}

// change applies a change to the attempts, which may turn out to be none.
func (s *stuckAttempts) change(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[locks.Token]Stuck)
	}
	before := len(s.all)
	change()
	if len(s.all) == before {
		return
	}
	s.changes++
	if s.tell != nil {
		s.tell(len(s.all))
	}
}

// version returns a number that changes with the attempts.
func (s *stuckAttempts) version() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// shown returns the attempts that a card names: at most most, which have been stuck for longest.
func (s *stuckAttempts) shown(most int) []Stuck {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Stuck
	for _, one := range s.all {
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b Stuck) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Token, b.Token)) })
	return list[:min(len(list), most)]
}

// StuckError is the error of a drain that has left attempts behind: handlers that ignored the end
// of their contexts, which only the end of this process ends, and commands that could not be
// killed. The worker's session continues until then, so no other worker gets their locks. The
// process that sees this one die makes sure that nothing of them is left, hands the runs back by
// Left, and then ends the session ([locks.Space.EndSession]).
type StuckError struct {
	Runs []jobs.RunID
	Left []ledger.Finish // how to record the ends of their attempts
	Err  error           // why the worker ended; nil: it was drained in order
}

func (e *StuckError) Error() string {
	text := fmt.Sprintf("the work of %d attempts continues after the end of their contexts: %v", len(e.Runs), e.Runs)
	if e.Err != nil {
		return fmt.Sprintf("%v; %s", e.Err, text)
	}
	return text
}

func (e *StuckError) Unwrap() error { return e.Err }

// abandon notes an attempt whose work continues, and whose hold therefore stays. finish is how to
// record its end once this process has ended; without an outcome its locks are lost, and a sweep
// closes the attempt.
func (w *Worker) abandon(finish ledger.Finish, log *slog.Logger) {
	log.ErrorContext(w.attempts, "attempt is left behind: its work continues after the end of its context, and this process must end", "error", finish.Error)
	// the fields that a finish needs
	finish.Job = &jobs.Job{Name: finish.Job.Name, History: finish.Job.History, OnCrash: finish.Job.OnCrash}
	s := &w.stuck
	s.mu.Lock()
	defer s.mu.Unlock()
	s.abandoned = append(s.abandoned, finish.Run)
	if finish.Outcome == ledger.OutcomeHandBack && finish.Job.OnCrash == jobs.CrashAbandon {
		finish.Outcome = ledger.OutcomeLeft
	}
	if finish.Outcome != "" {
		s.left = append(s.left, finish)
	}
}

// ended returns the error of a worker that has ended with err: a [StuckError] if its drain has left
// attempts behind.
func (s *stuckAttempts) ended(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.abandoned) == 0 {
		return err
	}
	return &StuckError{Runs: s.abandoned, Left: s.left, Err: err}
}
