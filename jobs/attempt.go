package jobs

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"lockstep/locks"
)

// Attempt is one try at a run, as its worker hands it to an [Executor].
type Attempt struct {
	Job    *Job // with every ${...} replaced
	Run    RunID
	Number int       // 1 for a run's first attempt, one more for each further one, however the last one ended
	Tick   time.Time // UTC; zero for a run without a tick
	Args   json.RawMessage
	Token  locks.Token
	Hold   locks.HoldID
	Locks  []string // every resource of the hold, sorted
	Worker string

	TraceParent string // W3C trace context; may be empty

	// Output takes what the work prints, and passes it on without secrets; its tail is kept with the run. Safe for
	// concurrent use.
	Output io.Writer

	// Redactor removes the values that replaced the job's ${...}. Output and the error that Execute returns go through
	// it anyway. An executor needs it only where it shortens a text itself, since a part of a secret is not recognized.
	// nil removes nothing.
	Redactor *Redactor

	// KillBy returns the reading of the boot clock (locks.BootTime) at which no process of this attempt may be alive
	// any more: it moves on with every renewal of the lease. Safe for concurrent use.
	KillBy func() time.Duration

	// Abandon is closed when the process is about to exit and the attempt has not ended although ctx has. An executor that
	// cannot stop its work returns [ErrAbandoned] then: the end of the process stops it. nil is never.
	Abandon <-chan struct{}
}

// IdempotencyKey returns the text that is the same for all attempts of this run and for no other run.
func (a *Attempt) IdempotencyKey() string { return string(a.Run) }

// Executor does the work of one attempt: [lockstep/jobs/command] and [lockstep/jobs/http] do it for jobs that need no
// Go code, a [Registry] for Go handlers.
//
// Execute returns when the work has ended and nothing of it runs, or with [ErrAbandoned]: nil for success, else the
// reason. ctx ends, with
// a cause, when the attempt has to stop: the lease is about to run out (locks.ErrLost), the time is up
// ([ErrTimeout]), the run is canceled ([ErrCanceled]), or the worker drains ([ErrDrain]). An error made with [Permanent] is not retried; one made with
// [RetryAfter] is retried after that pause.
type Executor interface {
	Execute(ctx context.Context, attempt *Attempt) error
}
