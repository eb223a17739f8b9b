package jobs

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"lockstep/locks"
)

// Attempt is one try at a run, as its worker passes it to an [Executor].
type Attempt struct {
	Job *Job // with every ${...} replaced
	Run RunID
	// 1 for a run's first attempt. Each further attempt adds one, however the last one ended.
	Number int
	Tick   time.Time // UTC; zero for a run without a tick
	Args   json.RawMessage
	Token  locks.Token
	Hold   locks.HoldID
	Locks  []string // every resource of the hold, sorted
	Worker string

	// The W3C trace context for the work: its span, or, in a worker that makes no spans, what the
	// requester of the run gave. Empty without either. The ctx of Execute carries the same one.
	TraceParent, TraceState string

	// Note adds a number to the span of the work, under its name in the conventions of
	// OpenTelemetry, such as http.response.status_code. Nil: no span is made.
	Note func(name string, value int)

	// Output receives what the work prints, removes secrets, and passes the rest on. The tail of
	// each attempt is kept with its run. Output is safe for concurrent use.
	Output io.Writer

	// Redactor removes the values that replaced the job's ${...}. Output and the error that Execute
	// returns go through it anyway. An executor needs it only when it shortens a text itself,
	// because part of a secret is not recognized. A nil Redactor removes nothing.
	Redactor *Redactor

	// KillBy returns the deadline for this attempt's processes as a reading of the boot clock
	// (bootclock.Now): by then, all of them must be dead. Each renewal of the lease moves it
	// forward. KillBy is safe for concurrent use.
	KillBy func() time.Duration

	// Abandon is closed when the process is about to exit, ctx has ended, and the attempt has not.
	// An executor that cannot stop its work then returns [ErrAbandoned]. The exit of the process
	// stops a handler; the locks of a command that survives the exit pass on when the lease ends. A
	// nil channel means that the process never exits under an attempt.
	Abandon <-chan struct{}
}

// IdempotencyKey returns a text that all attempts of this run share and no other run has.
func (a *Attempt) IdempotencyKey() string { return string(a.Run) }

// Executor does the work of one attempt. [lockstep/jobs/command] and [lockstep/jobs/http] are the
// executors of jobs that need no Go code; a [Registry] is the executor of Go handlers.
//
// Execute returns when the work has ended and nothing of it still runs, or with [ErrAbandoned]. It
// returns nil for success, and otherwise the reason for the failure. ctx ends with a cause when the
// attempt must stop: the lease is about to expire (locks.ErrLost), the timeout has passed
// ([ErrTimeout]), the run was canceled ([ErrCanceled]), or the worker drains ([ErrDrain]). An error
// made with [Permanent] is not retried. An error made with [RetryAfter] is retried after that
// pause.
type Executor interface {
	Execute(ctx context.Context, attempt *Attempt) error
}

// Chooser is an [Executor] that does only some of the work of its kind. A [Registry] does that of
// its handlers.
type Chooser interface {
	Executor

	// Has reports whether the executor does the work that needs this name: see [Kind.Need]. The
	// result never changes from true to false.
	Has(name string) bool
}
