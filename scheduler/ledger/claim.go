package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// ClaimOutcome is the outcome of a claim.
type ClaimOutcome string

const (
	ClaimGranted ClaimOutcome = "granted" // the attempt has begun, the bundle is held
	// the bundle is not free: the run waits for it, without a worker
	ClaimWaiting ClaimOutcome = "waiting"
	// the run is not due, or not under this n: drop the delivery
	ClaimStale ClaimOutcome = "stale"
	// earlier ticks of its job were due, too: it waits behind them
	ClaimBehind ClaimOutcome = "behind"
	ClaimLater  ClaimOutcome = "later" // not here, or not yet: push it instead, as in Due
	// it has ended without an attempt: its time to start was over, or its bundle can never be
	// granted
	ClaimOver         ClaimOutcome = "over"
	ClaimSessionEnded ClaimOutcome = "dead" // the claimant's session has ended
	// this process cannot run its definition, see [Claimed.Need]: nothing was changed
	ClaimUnable ClaimOutcome = "unable"
	// the run has crashed before, and ClaimSound was called: nothing was changed
	ClaimCrashed ClaimOutcome = "crashed"
)

// Claimed is the reply to [Ledger.Claim].
type Claimed struct {
	Outcome ClaimOutcome
	Due     []Due // runs that became due in this step, whatever the outcome

	// For [ClaimGranted]:
	Record *Record // with the attempt that begins as its only one
	// the definition that the run was made with; it is shared and must not be changed
	Job   *jobs.Job
	Args  json.RawMessage
	Items []locks.Item // the content of the hold

	// Refused is why the run must not be executed: its definition cannot be trusted, and Job
	// contains none of it. The error is a [*jobs.SignatureError]; nil for a trusted run.
	Refused error

	// For [ClaimLater]: a run that goes first and that may be claimed instead of this one, since
	// its delivery is still in its queue, and may not be the next one that is fetched: the run was
	// offered its locks before, or is in another queue. Nil for none.
	First *Due

	// For [ClaimCrashed]: how often, and whether the run is a suspect, see [Record.Suspect].
	Crashes   int
	Suspected bool

	// For [ClaimUnable]: the needs of the run, for [Ledger.SetAside].
	Need Need

	// For [ClaimWaiting]: what was in the way.
	Busy *locks.BusyError
}

// Grant describes the grant, for [locks.Request.Granted].
func (c *Claimed) Grant() locks.Grant {
	last, lock := c.Record.Last(), c.Job.Lock
	return locks.Grant{
		Token: last.Token, Since: last.Started, Items: c.Items, Info: info(c.Record),
		MaxHold: lock.MaxHold, MinHold: lock.MinHold, CrashDelay: lock.CrashDelay,
	}
}

// info is the lock space's description of a run's hold, as the function of that name in
// scripts/lib/run.lua makes it.
func info(record *Record) json.RawMessage {
	return fmt.Appendf(nil, `{"job":"%s","run":"%s"}`, record.Job, record.ID)
}

// Claim starts an attempt at a run: in one step it checks that the run is due under this n, takes
// its bundle under the request's hold id and begins the attempt under the new token. A run whose
// bundle is not free goes to wait instead. patience is how long younger requests may pass that
// wait. before names the queues in which a run that has been due for longer goes first, unless it
// has crashed before; it is for a claim without a delivery, else empty.
//
// A claim may be sent again with the same request: as long as its attempt runs it gets the same
// reply. Send it until a reply arrives or the request's session is over, for until then the attempt
// may have begun. An error that is [Final] is also a reply: the run is for [Ledger.Refuse].
func (l *Ledger) Claim(ctx context.Context, request *locks.Request, due Due, patience time.Duration, before []string) (*Claimed, error) {
	return l.claim(ctx, request, due, patience, true, before)
}

// ClaimSound is [Ledger.Claim] for runs that have never crashed. A run that has crashed stays
// unchanged, and may still be claimed with the same request.
func (l *Ledger) ClaimSound(ctx context.Context, request *locks.Request, due Due, patience time.Duration, before []string) (*Claimed, error) {
	return l.claim(ctx, request, due, patience, false, before)
}

func (l *Ledger) claim(ctx context.Context, request *locks.Request, due Due, patience time.Duration, suspects bool, before []string) (*Claimed, error) {
	for {
		marks := l.able.marks(due.Run.Job())
		step := l.claimStep(request, due, patience, suspects, marks, before)
		claimed, err := l.decodeClaim(due, marks, space.Read(l.run(ctx, "claim", step.job, step.args...)))
		if err != nil || claimed.Outcome != claimMarked {
			return claimed, err
		}
	}
}

func (l *Ledger) claimStep(request *locks.Request, due Due, patience time.Duration, suspects bool, marks []mark, before []string) step {
	args := []any{string(request.Session()), string(request.ID()), string(due.Run), due.N, patience.Milliseconds(), suspects,
		request.Cutoff().Milliseconds(), l.able.text(marks)}
	return step{due.Run.Job(), appendTexts(args, before...)}
}

// A Claim is one of several, see [Ledger.ClaimAll].
type Claim struct {
	Request *locks.Request
	Due     Due
}

// MaxTogether bounds the claims or finishes of one call: a script must be short.
const MaxTogether = 100

// outputsTogether bounds the bytes of output that one script stores, for the same reason. A longer
// output is stored by a script of its own.
const outputsTogether = 256 << 10

// ClaimAll is [Ledger.ClaimSound] for up to [MaxTogether] runs that deliveries brought: in one
// round trip when all of them can begin at once, as most can, else in two, or in three if a
// definition is new to this process. The replies are in the order of the claims. A claim with a nil
// reply must be sent again by ClaimSound.
func (l *Ledger) ClaimAll(ctx context.Context, claims []Claim, patience time.Duration) []*Claimed {
	claimed := make([]*Claimed, len(claims))
	marks := make([][]mark, len(claims))
	var which []int // claim of a step
	if len(claims) > 1 {
		session := claims[0].Request.Session()
		args := make([]any, 0, 2+4*len(claims))
		args = append(args, string(session), "")
		for i, c := range claims {
			if c.Request.Session() == session { // else it has just been replaced
				marks[i] = l.able.marks(c.Due.Run.Job())
				args = append(args, string(c.Request.ID()), string(c.Due.Run), c.Due.N, l.able.text(marks[i]))
				which = append(which, i)
			}
		}
		answers, err := l.run(ctx, "claim", "", args...)
		if err != nil {
			return claimed
		}
		for k, answer := range answers {
			if plain, ok := answer.([]any); ok {
				i := which[k]
				claimed[i], _ = l.decodeClaim(claims[i].Due, marks[i], space.Read(plain, nil))
			}
		}
		which = nil
	}
	for i := range claims {
		if claimed[i] == nil {
			which = append(which, i)
		}
	}
	for _, i := range l.claimEach(ctx, claims, claimed, which, patience) {
		claimed[i] = nil
	}
	return claimed
}

// claimEach sends some claims, each by a step of its own. Those of definitions that are new here
// are sent once more. It returns those that must be sent yet again.
func (l *Ledger) claimEach(ctx context.Context, claims []Claim, claimed []*Claimed, which []int, patience time.Duration) (again []int) {
	for range 2 {
		steps, marks := make([]step, len(which)), make([][]mark, len(which))
		for k, i := range which {
			marks[k] = l.able.marks(claims[i].Due.Run.Job())
			steps[k] = l.claimStep(claims[i].Request, claims[i].Due, patience, false, marks[k], nil)
		}
		again = nil
		for k, call := range l.runAll(ctx, "claim", steps) {
			i := which[k]
			// It is nil with an error.
			claimed[i], _ = l.decodeClaim(claims[i].Due, marks[k], call.Read())
			if claimed[i] != nil && claimed[i].Outcome == claimMarked {
				again = append(again, i)
			}
		}
		if which = again; len(which) == 0 {
			break
		}
	}
	return again
}

// decodeClaim reads the reply to a claim that had these marks.
func (l *Ledger) decodeClaim(due Due, marks []mark, r *space.Reader) (*Claimed, error) {
	if r.Err != nil {
		return nil, fmt.Errorf("claim %s: %w", due.Run, r.Err)
	}
	claimed := &Claimed{Outcome: ClaimOutcome(r.Text())}
	switch claimed.Outcome {
	case ClaimGranted:
		r.Text() // the record has the token, too
		record := r.Text()
		args, definition, _ := strings.Cut(r.Text(), "\x1f")
		claimed.Due = dueOf(r)
		key := definition
		if byName(definition) {
			definition = textOf(definition, marks)
		}
		if r.Err == nil && definition == "" {
			r.Err = errMissing
		}
		if r.Err != nil {
			break
		}
		claimed.Args = json.RawMessage(strings.Trim(args, " ")) // see storedArgs
		if claimed.Record, claimed.Items, r.Err = decode(due.Run, record, "", args); r.Err == nil {
			claimed.Job, r.Err = l.definition(due.Run, key, definition)
			if errors.Is(r.Err, jobs.ErrSignature) {
				claimed.Refused, r.Err = r.Err, nil
				claimed.Job = refusedJob(due.Run)
			}
		}
		if r.Err == nil {
			l.memory.claimed(claimed, record, args, definition)
		}
	case ClaimWaiting:
		busy := &locks.BusyError{Resource: r.Text(), Holder: locks.SessionID(r.Text()), Hold: locks.HoldID(r.Text()), Info: r.Text()}
		busy.Token = locks.Token(r.Number())
		busy.HeldFor = space.Millis(r.Number())
		busy.LeaseLeft = space.Millis(r.Number())
		busy.Queue = int(r.Number())
		claimed.Busy, claimed.Due = busy, dueOf(r)
	case ClaimLater:
		claimed.Due = dueOf(r)
		if first := dueOf(r); len(first) > 0 {
			claimed.First = &first[0]
		}
	case ClaimBehind, ClaimOver:
		claimed.Due = dueOf(r)
	case "needs":
		needed := mark{r.Text(), r.Text()}
		if byName(needed.text) && r.Err == nil {
			r.Err = checkName(needed.text, needed.definition)
		}
		if r.Err == nil {
			claimed.Outcome, claimed.Need = l.able.judge(due.Run.Job(), needed)
		}
	case ClaimCrashed:
		claimed.Crashes, claimed.Suspected = int(r.Number()), r.Number() == 1
	case ClaimStale, ClaimSessionEnded:
	case "broken":
		return nil, fmt.Errorf("claim %s: %w", due.Run, ErrUnreadable)
	default:
		r.Err = r.Unknown(string(claimed.Outcome))
	}
	if r.Err != nil { // this was a reply, and another one would not be better
		return nil, fmt.Errorf("claim %s: %w: %w", due.Run, ErrUnreadable, r.Err)
	}
	return claimed, nil
}

// Outcome is how an attempt ended.
type Outcome string

const (
	OutcomeSuccess Outcome = "succeeded"
	OutcomeFailure Outcome = "failed" // permanently: the run has failed
	OutcomeRetry   Outcome = "retry"  // it failed, and the run is tried again after a pause
	// the worker drains, or cannot do it: the run is due again, and nothing is counted
	OutcomeHandBack Outcome = "handback"
	OutcomeCanceled Outcome = "canceled" // it was asked to stop: the run is canceled

	// OutcomeLeft is for a run of `on_crash: abandon` whose handler ignored the end of its context,
	// so that only the end of its process stopped it: the run is lost.
	OutcomeLeft Outcome = "left"
)

// ends reports whether the outcome also ends the run.
func (o Outcome) ends() bool { return o != OutcomeRetry && o != OutcomeHandBack }

// Finish is the end of one attempt.
type Finish struct {
	Run     jobs.RunID
	Job     *jobs.Job
	Token   locks.Token
	Hold    locks.HoldID
	Outcome Outcome
	Pause   time.Duration // until the run is due again, for OutcomeRetry and OutcomeHandBack
	Error   string        // for people; "" for none
	Output  string        // the tail of the attempt's output; "" for none
}

// Finished is the reply to [Ledger.Finish].
type Finished struct {
	Verdict FinishVerdict
	State   State // the run's now
	Due     []Due // runs that became due in this step

	token locks.Token // of the run's last attempt, where this one does not count
}

// FinishVerdict is how the ledger judged a finish.
type FinishVerdict string

const (
	// it is the attempt's end, by this call or an earlier one like it
	FinishRecorded FinishVerdict = "recorded"
	// this attempt had been closed before, perhaps by an earlier copy of this call; only a success
	// could still count
	FinishCounted FinishVerdict = "counted"
	// a later attempt has begun, or the run has ended otherwise
	FinishFenced  FinishVerdict = "fenced"
	FinishRefused FinishVerdict = "refused" // Redis refused to record it, see [Ledger.Refuse]
)

// Finish records how an attempt ended, frees its bundle and passes it on, in one step. It may be
// sent again: once recorded, a finish that has ended its run gets the same reply, and one after
// which the run is tried again is FinishCounted, since it has closed the attempt itself. Finish
// frees the hold whatever the verdict. After an error that is [Final] nothing has changed, and the
// run is for [Ledger.Refuse].
func (l *Ledger) Finish(ctx context.Context, finish Finish) (*Finished, error) {
	l.memory.finishing(finish)
	step, err := finish.step()
	if err != nil {
		return nil, err
	}
	finished, err := finish.decode(space.Read(l.run(ctx, "finish", step.job, step.args...)))
	l.memory.finished(finish, finished)
	return finished, err
}

func (f *Finish) step() (step, error) {
	failure := []byte("null")
	if f.Error != "" {
		var err error
		if failure, err = json.Marshal(f.Error); err != nil {
			return step{}, fmt.Errorf("finish %s: %w", f.Run, err)
		}
	}
	return step{f.Job.Name, []any{string(f.Run), f.Token.String(), string(f.Hold), string(f.Outcome), f.Pause.Milliseconds(),
		failure, f.Output, f.Job.History.Runs, f.Job.History.For.Milliseconds()}}, nil
}

func (f *Finish) decode(r *space.Reader) (*Finished, error) {
	if r.Err != nil {
		return nil, fmt.Errorf("finish %s: %w", f.Run, r.Err)
	}
	finished := &Finished{Verdict: FinishVerdict(r.Text()), State: State(r.Text()), Due: dueOf(r)}
	if finished.Verdict != FinishRecorded {
		finished.token = locks.Token(r.Number())
	}
	if r.Err != nil {
		return nil, fmt.Errorf("finish %s: %w: %w", f.Run, ErrUnreadable, r.Err)
	}
	return finished, nil
}

// FinishAll is [Ledger.Finish] for up to [MaxTogether] attempts that succeeded: in one round trip
// while no request waits for any of their locks, as is usual, else in two. The replies are in the
// order of the finishes. A nil reply did not arrive: its finish must be sent again, by Finish.
func (l *Ledger) FinishAll(ctx context.Context, finishes []Finish) []*Finished {
	finished := make([]*Finished, len(finishes))
	jobs := make(map[string]int) // index of a job's last step
	var steps []step
	var which [][]int // finishes of a step
	var bytes []int   // of output in a step
	for i, f := range finishes {
		l.memory.finishing(f)
		k, ok := jobs[f.Job.Name]
		if !ok || bytes[k] > 0 && bytes[k]+len(f.Output) > outputsTogether {
			k = len(steps)
			jobs[f.Job.Name], which, bytes = k, append(which, nil), append(bytes, 0)
			steps = append(steps, step{f.Job.Name, []any{"", f.Job.History.Runs, f.Job.History.For.Milliseconds()}})
		}
		which[k], bytes[k] = append(which[k], i), bytes[k]+len(f.Output)
		steps[k].args = append(steps[k].args, string(f.Run), f.Token.String(), string(f.Hold), f.Output)
	}
	var single []step
	var rest []int // finish of a single step
	for k, call := range l.runAll(ctx, "finish", steps) {
		if len(call.Reply) != len(which[k]) {
			continue // with an error, it is empty
		}
		for j, i := range which[k] {
			if call.Reply[j] == int64(1) {
				finished[i] = &Finished{Verdict: FinishRecorded, State: StateSucceeded}
			} else if step, err := finishes[i].step(); err == nil {
				single, rest = append(single, step), append(rest, i)
			}
		}
	}
	for k, call := range l.runAll(ctx, "finish", single) {
		i := rest[k]
		finished[i], _ = finishes[i].decode(call.Read()) // nil with an error
		l.memory.finished(finishes[i], finished[i])
	}
	return finished
}

// Confirm notes that deliveries are known to be in their queues. The sweep pushes unconfirmed ones
// again.
func (l *Ledger) Confirm(ctx context.Context, deliveries []Due) error {
	if len(deliveries) == 0 {
		return nil
	}
	args := make([]any, 0, 2*len(deliveries))
	for _, d := range deliveries {
		args = append(args, string(d.Run), d.N)
	}
	if _, err := l.run(ctx, "confirm", "", args...); err != nil {
		return fmt.Errorf("confirm %d deliveries: %w", len(deliveries), err)
	}
	return nil
}

// Repush takes the next n for runs that lost their deliveries, and returns them as they are due
// now. It omits a run that is no longer due under the n of its delivery. So it may be sent again;
// when the first reply was lost, the sweep repeats the pushes.
func (l *Ledger) Repush(ctx context.Context, deliveries ...Due) ([]Due, error) {
	return l.repush(ctx, false, deliveries)
}

// repush is Repush, with unconfirmed for deliveries with an unconfirmed push.
func (l *Ledger) repush(ctx context.Context, unconfirmed bool, deliveries []Due) ([]Due, error) {
	args := append(make([]any, 0, 1+2*len(deliveries)), unconfirmed)
	for _, d := range deliveries {
		args = append(args, string(d.Run), d.N)
	}
	r := space.Read(l.run(ctx, "repush", "", args...))
	due := restDue(r)
	if r.Err != nil {
		return nil, fmt.Errorf("push %s again: %w", describe(deliveries), r.Err)
	}
	return due, nil
}

// describe names a delivery, or the number of several.
func describe(deliveries []Due) string {
	if len(deliveries) == 1 {
		return string(deliveries[0].Run)
	}
	return fmt.Sprintf("%d deliveries", len(deliveries))
}
