package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// FollowKind is what a [FollowEvent] reports.
type FollowKind string

const (
	FollowWaiting FollowKind = "waiting" // why the run does not run: Text
	// an attempt runs, or has ended: Attempt, Worker, State (running, or its outcome), Text (its
	// error)
	FollowAttempt FollowKind = "attempt"
	FollowOutput  FollowKind = "output" // a part of its output: Attempt, From, Upto, Stored, Text
	FollowNote    FollowKind = "note"   // why output is missing: Attempt, Text
	FollowEnd     FollowKind = "end"    // the run has ended: State, Text (the reason)
)

// FollowEvent is one thing that a [Follower] reports.
type FollowEvent struct {
	Kind    FollowKind      `json:"-"`
	Attempt int             `json:"attempt,omitempty"`
	Worker  locks.SessionID `json:"worker,omitempty"`
	State   string          `json:"state,omitempty"`
	// From and Upto are the place of a part in the output, in bytes.
	From int64 `json:"from,omitempty"`
	Upto int64 `json:"to,omitempty"`
	// Stored means that the part is the whole output that is stored with the run; it has no place.
	Stored bool   `json:"stored,omitempty"`
	Text   string `json:"text,omitempty"`
}

// FollowReads are the reads of a [Follower]. A caller with many followers shares them.
type FollowReads struct {
	Live   func(ctx context.Context, id jobs.RunID, last int64) (*ledger.Followed, error)
	Run    func(ctx context.Context, id jobs.RunID) (*Run, error)
	Output func(ctx context.Context, id jobs.RunID, attempt int) (ledger.Output, error)
}

// Live reads what the attempts at a run print while they run: see [ledger.Ledger.Follow].
func (r *Reader) Live(ctx context.Context, id jobs.RunID, last int64) (*ledger.Followed, error) {
	return r.book.Follow(ctx, id, last)
}

// Follow returns a follower of a run.
func (r *Reader) Follow(id jobs.RunID) *Follower {
	return NewFollower(id, FollowReads{Live: r.Live, Run: r.RunWithoutOutput, Output: r.Output})
}

const (
	followBusy  = 250 * time.Millisecond // between two reads while output is passed on
	followIdle  = 500 * time.Millisecond // and otherwise
	followLook  = time.Second            // between two looks at why a run waits
	followQuiet = 3 * time.Second        // for the first reply of a worker
)

// Follower follows a run until it has ended: why it waits, its attempts, wherever they run, and
// what they print while they print it. Make one with [Reader.Follow], and call [Follower.Next]
// again and again, after [Follower.Pause]. Only one goroutine may use it.
type Follower struct {
	id    jobs.RunID
	reads FollowReads

	ended bool
	last  int64            // of the entries that were read
	live  *ledger.Followed // the last reply
	seen  string           // the state and the attempt of the last look

	attempt int // the attempt that printed the output
	upto    int64
	whole   bool      // all of it was reported
	since   time.Time // when its worker was first seen to pass on nothing; zero: it does
	noted   bool      // that was reported
	closed  int       // the last attempt with an end that needs no report

	waits  string // the reason that was reported last
	looked time.Time
}

// NewFollower returns a follower with reads of its own.
func NewFollower(id jobs.RunID, reads FollowReads) *Follower {
	return &Follower{id: id, reads: reads, live: new(ledger.Followed)}
}

// Continue makes a new follower leave out what its client has: everything up to a place in the
// output of an attempt.
func (f *Follower) Continue(attempt int, upto int64) {
	f.attempt, f.upto, f.closed, f.seen = attempt, upto, attempt-1, "continued"
}

// Ended reports whether the end of the run was reported.
func (f *Follower) Ended() bool { return f.ended }

// Pause returns how long to wait before the next call of Next.
func (f *Follower) Pause() time.Duration {
	if f.live.Passing {
		return followBusy
	}
	return followIdle
}

// Next returns what has happened since the last call. The events are valid even with an error, and
// Next may be called again.
func (f *Follower) Next(ctx context.Context) (events []FollowEvent, err error) {
	live, err := f.reads.Live(ctx, f.id, f.last)
	if err != nil {
		return nil, err
	}
	if seen := fmt.Sprint(live.State, live.Attempt, live.Worker); seen != f.seen {
		done := false
		if events, done, err = f.look(ctx, live); err != nil || !done {
			return events, err
		}
		f.seen = seen
	} else {
		f.print(&events, live, f.attempt)
	}
	f.live, f.last = live, live.Last
	switch {
	case live.State.Final():
		f.ended = true
		return events, nil
	case live.Worker == "":
		return f.wait(ctx, events)
	}
	f.waits = ""
	return f.quiet(events, live), nil
}

// look compares the attempts of the run with what was reported, and reports the difference. It
// returns false if the run was read as it was before live: some time later it will be as new.
func (f *Follower) look(ctx context.Context, live *ledger.Followed) (events []FollowEvent, done bool, err error) {
	run, err := f.reads.Run(ctx, f.id)
	if err != nil {
		return nil, false, err
	}
	running := live.Worker != ""
	var last Attempt
	if n := len(run.Attempts); n > 0 {
		last = run.Attempts[n-1]
	}
	if last.Number < live.Attempt || last.Number == live.Attempt && live.Attempt > 0 && !running && last.FinishedAt.IsZero() ||
		live.State.Final() && !run.State.Final() {
		return nil, false, nil
	}
	if f.seen == "" { // what has ended before is not followed, but its output is shown
		f.closed = live.Attempt
		if running {
			f.closed--
		} else if err := f.stored(ctx, &events, 0); err != nil {
			return events, false, err
		}
	}
	f.print(&events, live, f.attempt)
	for _, a := range run.Attempts {
		if a.Number <= f.closed || a.Number > live.Attempt {
			continue
		}
		runs := running && a.Number == live.Attempt
		if a.Number != f.attempt {
			f.attempt, f.upto, f.whole, f.noted, f.since = a.Number, 0, false, false, time.Time{}
			if runs {
				events = append(events, FollowEvent{Kind: FollowAttempt, Attempt: a.Number, Worker: a.Worker, State: string(ledger.StateRunning)})
			}
			f.print(&events, live, a.Number)
		}
		if runs {
			break
		}
		if err := f.rest(ctx, &events, a.Number); err != nil {
			return events, false, err
		}
		f.whole = true // a part that arrives later is known, or was reported as missing
		events = append(events, FollowEvent{Kind: FollowAttempt, Attempt: a.Number, Worker: a.Worker, State: string(a.Outcome), Text: string(a.Error)})
		f.closed = a.Number
	}
	if live.State.Final() {
		events = append(events, FollowEvent{Kind: FollowEnd, State: string(run.State), Text: string(cmp.Or(run.Reason, last.Error))})
	}
	return events, true, nil
}

// print reports what was passed on of an attempt and was not reported yet.
func (f *Follower) print(events *[]FollowEvent, live *ledger.Followed, attempt int) {
	for _, p := range live.Printed {
		if p.Attempt != attempt || f.whole {
			continue
		}
		if p.From > f.upto {
			*events = append(*events, FollowEvent{Kind: FollowNote, Attempt: attempt,
				Text: fmt.Sprintf("%d bytes of the output of attempt %d are left out here", p.From-f.upto, attempt)})
		}
		if p.Upto > f.upto {
			// Text has as many bytes as the output, unless some of these were replaced.
			if known := f.upto - p.From; known > 0 && int64(len(p.Text)) == p.Upto-p.From {
				p.From, p.Text = f.upto, p.Text[known:]
			}
			*events = append(*events, FollowEvent{Kind: FollowOutput, Attempt: attempt, From: p.From, Upto: p.Upto, Text: p.Text})
			f.upto = p.Upto
		}
		f.whole = p.End
	}
}

// rest reports what was not passed on of an attempt that has ended.
func (f *Follower) rest(ctx context.Context, events *[]FollowEvent, attempt int) error {
	switch {
	case f.whole:
		return nil
	case f.upto == 0:
		return f.stored(ctx, events, attempt)
	}
	output, err := f.reads.Output(ctx, f.id, attempt)
	switch {
	case errors.Is(err, ledger.ErrUnknown): // its worker died, for example
		return nil
	case err != nil:
		return err
	}
	*events = append(*events, FollowEvent{Kind: FollowNote, Attempt: output.Attempt,
		Text: fmt.Sprintf("attempt %d may have printed more, which was not passed on; its output is stored with the run", output.Attempt)})
	return nil
}

// stored reports the stored output of an attempt; 0 for the last one that has printed something.
func (f *Follower) stored(ctx context.Context, events *[]FollowEvent, attempt int) error {
	output, err := f.reads.Output(ctx, f.id, attempt)
	switch {
	case errors.Is(err, ledger.ErrUnknown):
		return nil
	case err != nil:
		return err
	}
	if output.Text != "" {
		*events = append(*events, FollowEvent{Kind: FollowOutput, Attempt: output.Attempt, Stored: true, Text: output.Text})
	}
	return nil
}

// wait reports why the run does not run, if that has changed.
func (f *Follower) wait(ctx context.Context, events []FollowEvent) ([]FollowEvent, error) {
	if time.Since(f.looked) < followLook {
		return events, nil
	}
	run, err := f.reads.Run(ctx, f.id)
	if err != nil {
		return events, err
	}
	f.looked = time.Now()
	if why := run.WaitingFor; why != nil {
		// The rest of the text may change each second.
		if waits := fmt.Sprint(why.Reason, why.RunID, why.Worker); waits != f.waits {
			f.waits = waits
			events = append(events, FollowEvent{Kind: FollowWaiting, Text: why.Text})
		}
	}
	return events, nil
}

// quiet reports that the worker of a running attempt passes nothing on.
func (f *Follower) quiet(events []FollowEvent, live *ledger.Followed) []FollowEvent {
	text := ""
	switch {
	case live.Passing:
		f.since = time.Time{}
	case live.Refused != "":
		text = "its worker could not be asked for its output: " + live.Refused
	case f.since.IsZero():
		f.since = time.Now()
	case time.Since(f.since) >= followQuiet:
		text = fmt.Sprintf("worker %s passes no output on: it is of an older build, cannot be reached, or passes on that of as many attempts as it can", live.Worker)
	}
	if text == "" || f.noted {
		return events
	}
	f.noted = true
	return append(events, FollowEvent{Kind: FollowNote, Attempt: live.Attempt, Worker: live.Worker, Text: text + "; the output follows when the attempt ends"})
}
