package ledger

import (
	"context"
	"errors"
	"fmt"

	"lockstep/jobs"
	"lockstep/locks"
)

// Printed is a part of what an attempt has printed.
type Printed struct {
	Attempt    int
	From, Upto int64  // where it begins and ends in the output, in bytes
	End        bool   // the output ends here
	Text       string // UTF-8: other bytes of the output were replaced
}

// Followed is the reply to [Ledger.Follow].
type Followed struct {
	State   State
	Attempt int             // number of the last attempt; 0: none has begun
	Worker  locks.SessionID // of an attempt that runs, else ""
	Passing bool            // that worker passes the output on
	Refused string          // why the worker could not be asked for it; ""
	Last    int64           // for the next call
	Printed []Printed       // in order
}

// Follow reads what the attempts at a run print while they run, and makes the worker pass that on:
// as long as a client calls Follow at least every few seconds, and no longer. last is that of the
// reply before, or 0. Parts that were passed on earlier are returned as far as they are still
// there, so some may be missing or arrive twice, as their places show. A worker of a build from
// before Follow passes nothing on.
func (l *Ledger) Follow(ctx context.Context, id jobs.RunID, last int64) (*Followed, error) {
	job := id.Job()
	if job == "" {
		return nil, fmt.Errorf("run %s: %w", id, ErrUnknown)
	}
	r := l.runKeyed(ctx, "follow", []keyedStep{{job, liveKey + string(id), []any{string(id), last}}})[0].Read()
	f := &Followed{State: State(outcomeOf(r))}
	f.Attempt, f.Worker, f.Passing, f.Refused, f.Last = int(r.Number()), locks.SessionID(r.Text()), r.Number() == 1, r.Text(), r.Number()
	for r.More() {
		f.Printed = append(f.Printed, Printed{int(r.Number()), r.Number(), r.Number(), r.Number() == 1, r.Text()})
	}
	if r.Err != nil {
		return nil, fmt.Errorf("follow run %s: %w", id, r.Err)
	}
	return f, nil
}

// Passing is what a worker passes on of an attempt.
type Passing struct {
	Run     jobs.RunID
	Token   locks.Token
	Attempt int
	First   bool      // Printed begins with the tail that the worker has kept
	Printed []Printed // may be empty
}

var (
	// ErrNotFollowed means that no client follows a run any more, or that a later attempt at it
	// passes its output on.
	ErrNotFollowed = errors.New("the attempt is not followed")

	// ErrFromTail means that a new client needs the output from the tail on: Passing.First.
	ErrFromTail = errors.New("a client needs the output from its tail on")
)

// PassOn passes on what some attempts have printed to the clients that follow their runs. It
// returns an error for each: nil if it was passed on, [ErrNotFollowed] or [ErrFromTail]. After any
// other error it may be sent again.
func (l *Ledger) PassOn(ctx context.Context, some []Passing) []error {
	steps := make([]keyedStep, len(some))
	for i, p := range some {
		args := []any{p.Token.String(), p.Attempt, p.First}
		for _, part := range p.Printed {
			args = append(args, part.From, part.Upto, part.End, part.Text)
		}
		steps[i] = keyedStep{p.Run.Job(), liveKey + string(p.Run), args}
	}
	errs := make([]error, len(some))
	for i, call := range l.runKeyed(ctx, "pass", steps) {
		r := call.Read()
		switch reply := r.Number(); {
		case r.Err != nil:
			errs[i] = fmt.Errorf("pass on the output of run %s: %w", some[i].Run, r.Err)
		case reply == 0:
			errs[i] = ErrNotFollowed
		case reply == 2:
			errs[i] = ErrFromTail
		}
	}
	return errs
}
