package ledger

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
)

var (
	//go:embed scripts/claim.lua
	claimSource string
	claimScript = script(claimSource)
	//go:embed scripts/finish.lua
	finishSource string
	finishScript = script(finishSource)
	//go:embed scripts/confirm.lua
	confirmSource string
	confirmScript = script(confirmSource)
	//go:embed scripts/repush.lua
	repushSource string
	repushScript = script(repushSource)
)

// ClaimOutcome says what became of a claim.
type ClaimOutcome string

const (
	Granted     ClaimOutcome = "granted" // the attempt has begun, the bundle is held
	Waiting     ClaimOutcome = "waiting" // the bundle is not free: the run waits for it, without a worker
	Stale       ClaimOutcome = "stale"   // the run is not due, or not under this n: the delivery is to be dropped
	Behind      ClaimOutcome = "behind"  // earlier ticks of its job were due, too: it waits behind them
	Later       ClaimOutcome = "later"   // not here, or not yet: it is to be pushed instead, as Due says
	Over        ClaimOutcome = "over"    // it has ended without an attempt: its time to start was over, or its bundle can never be granted
	SessionDead ClaimOutcome = "dead"    // the claimant's session has ended
	Suspect     ClaimOutcome = "suspect" // the run has crashed before, and ClaimSound was called: nothing was changed
)

// Claimed is the answer to [Ledger.Claim].
type Claimed struct {
	Outcome ClaimOutcome
	Due     []Due // runs that became due in this step, whatever the outcome

	// For Granted:
	Record *Record   // with the attempt that begins as its only one
	Job    *jobs.Job // the definition that the run was made with
	Args   json.RawMessage
	Items  []locks.Item // what the hold holds

	// For Waiting: what stood in the way.
	Busy *locks.BusyError
}

// Grant says what was granted, to [locks.Request.Granted].
func (c *Claimed) Grant() locks.Grant {
	last, lock := c.Record.Last(), c.Job.Lock
	return locks.Grant{
		Token: last.Token, Since: last.Started, Items: c.Items, Info: info(c.Record),
		MaxHold: lock.MaxHold, MinHold: lock.MinHold, CrashDelay: lock.CrashDelay,
	}
}

// info is what the lock space tells of a run's hold, as the function of that name in scripts/ledger.lua.
func info(record *Record) json.RawMessage {
	return fmt.Appendf(nil, `{"job":"%s","run":"%s"}`, record.Job, record.ID)
}

// Claim starts an attempt at a run: in one step it looks whether the run is due under this n, takes its bundle under
// the request's hold id and begins the attempt under the new token. A run whose bundle is not free goes to wait
// instead. patience is how long younger requests may pass that wait. before names the queues in which a run that has
// been due for longer goes first, unless it has crashed before; it is for a claim that no delivery brought, else empty.
//
// A claim may be sent again with the same request: as long as its attempt runs it is answered the same. It has to be
// sent until it is answered or the request's session is over, for until then the attempt may have begun.
func (l *Ledger) Claim(ctx context.Context, request *locks.Request, due Due, patience time.Duration, before []string) (*Claimed, error) {
	return l.claim(ctx, request, due, patience, 1, before)
}

// ClaimSound is [Ledger.Claim] for a worker that wants no run now that has crashed before. Such a run stays as it is,
// and may be claimed after all with the same request.
func (l *Ledger) ClaimSound(ctx context.Context, request *locks.Request, due Due, patience time.Duration, before []string) (*Claimed, error) {
	return l.claim(ctx, request, due, patience, 0, before)
}

func (l *Ledger) claim(ctx context.Context, request *locks.Request, due Due, patience time.Duration, suspects int, before []string) (*Claimed, error) {
	args := []any{string(request.Session()), string(request.ID()), string(due.Run), due.N, patience.Milliseconds(), suspects,
		request.Cutoff().Milliseconds()}
	for _, queue := range before {
		args = append(args, queue)
	}
	r := read(l.run(ctx, claimScript, due.Run.Job(), args...))
	claimed := &Claimed{Outcome: ClaimOutcome(r.text())}
	switch claimed.Outcome {
	case Granted:
		r.text() // the token stands in the record too
		record := r.text()
		text := r.text()
		body := strings.SplitN(text, "\x1f", 2)
		claimed.Due = r.due()
		if r.err == nil && len(body) != 2 {
			r.err = fmt.Errorf("%w: a run without a definition", errReply)
		}
		if r.err != nil {
			break
		}
		claimed.Job, claimed.Args = new(jobs.Job), json.RawMessage(body[0])
		if claimed.Record, claimed.Items, r.err = decode(due.Run, record, "", body[0]); r.err == nil {
			r.err = json.Unmarshal([]byte(body[1]), claimed.Job)
		}
		if r.err == nil {
			l.memory.claimed(claimed, record, text)
		}
	case Waiting:
		busy := &locks.BusyError{Resource: r.text(), Holder: locks.SessionID(r.text()), Hold: locks.HoldID(r.text()), Info: r.text()}
		busy.Token = locks.Token(r.number())
		busy.HeldFor = time.Duration(r.number()) * time.Millisecond
		busy.LeaseLeft = time.Duration(r.number()) * time.Millisecond
		busy.Queue = int(r.number())
		claimed.Busy, claimed.Due = busy, r.due()
	case Later, Behind, Over:
		claimed.Due = r.due()
	case Stale, SessionDead, Suspect:
	default:
		r.err = r.unknown(string(claimed.Outcome))
	}
	if r.err != nil {
		return nil, fmt.Errorf("claim %s: %w", due.Run, r.err)
	}
	return claimed, nil
}

// Outcome says how an attempt ended.
type Outcome string

const (
	Success  Outcome = "succeeded"
	Failure  Outcome = "failed"   // for good: it is the run's end
	Again    Outcome = "retry"    // it failed, and the run is tried again after a pause
	HandBack Outcome = "handback" // the worker drains, or cannot do it: the run is due again, and nothing is counted
	Stopped  Outcome = "canceled" // it was asked to stop: it is the run's end
)

// ends tells whether it is the run's end, too.
func (o Outcome) ends() bool { return o != Again && o != HandBack }

// Finish tells how one attempt ended.
type Finish struct {
	Run     jobs.RunID
	Job     *jobs.Job
	Token   locks.Token
	Hold    locks.HoldID
	Outcome Outcome
	Pause   time.Duration // until the run is due again, for Again and HandBack
	Error   string        // for people; "" for none
	Output  string        // the tail of what the attempt printed; "" keeps what there is
}

// Finished is the answer to [Ledger.Finish].
type Finished struct {
	Verdict FinishVerdict
	State   State // the run's now
	Due     []Due // runs that became due in this step
}

// FinishVerdict says whether a finish was what decided.
type FinishVerdict string

const (
	Recorded FinishVerdict = "recorded" // it stands, by this call or an earlier one like it
	Counted  FinishVerdict = "counted"  // this attempt had been closed before; only a success could still count
	Fenced   FinishVerdict = "fenced"   // a later attempt has begun, or the run has ended otherwise
)

// Finish records how an attempt ended, frees its bundle and passes it on, in one step. It may be sent again: once
// recorded, a finish of the same token is answered the same. It frees the hold whatever the verdict.
func (l *Ledger) Finish(ctx context.Context, finish Finish) (*Finished, error) {
	failure := []byte("null")
	if finish.Error != "" {
		var err error
		if failure, err = json.Marshal(finish.Error); err != nil {
			return nil, fmt.Errorf("finish %s: %w", finish.Run, err)
		}
	}
	l.memory.finishing(finish)
	r := read(l.run(ctx, finishScript, finish.Job.Name, string(finish.Run), finish.Token.String(), string(finish.Hold),
		string(finish.Outcome), finish.Pause.Milliseconds(), failure, finish.Output, finish.Job.History.Runs,
		finish.Job.History.For.Milliseconds()))
	finished := &Finished{Verdict: FinishVerdict(r.text()), State: State(r.text()), Due: r.due()}
	if r.err != nil {
		return nil, fmt.Errorf("finish %s: %w", finish.Run, r.err)
	}
	l.memory.finished(finish, finished)
	return finished, nil
}

// Confirm notes that deliveries are known to be in their queues. What is not confirmed is pushed again by the sweep.
func (l *Ledger) Confirm(ctx context.Context, deliveries []Due) error {
	if len(deliveries) == 0 {
		return nil
	}
	args := make([]any, 0, 2*len(deliveries))
	for _, d := range deliveries {
		args = append(args, string(d.Run), d.N)
	}
	if _, err := l.run(ctx, confirmScript, "", args...); err != nil {
		return fmt.Errorf("confirm %d deliveries: %w", len(deliveries), err)
	}
	return nil
}

// Repush takes the next n for a run whose delivery has gone. Nothing is due when the run was not due
// under that n any more; so is the answer when it is sent again, and the sweep makes good for the delivery.
func (l *Ledger) Repush(ctx context.Context, delivery Due) ([]Due, error) {
	var due []Due
	r := read(l.run(ctx, repushScript, "", string(delivery.Run), delivery.N))
	for r.more() {
		due = append(due, r.oneDue())
	}
	if r.err != nil {
		return nil, fmt.Errorf("push %s again: %w", delivery.Run, r.err)
	}
	return due, nil
}
