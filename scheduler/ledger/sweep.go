package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// DutyStale is how long the session on duty may go without a poll before another session takes duty
// over.
const DutyStale = 1200 * time.Millisecond

// Poll is the reply to [Ledger.Poll].
type Poll struct {
	Now      time.Time             // the server's
	Duty     bool                  // this session creates ticks first and sweeps for all
	Revision int64                 // for the next poll
	Moved    map[string]Moved      // by job
	More     bool                  // more has changed than one reply holds: poll again at once
	Stop     map[jobs.RunID]string // runs of this session that must stop, and why
	Drain    bool                  // the worker is asked to drain
	Aside    bool                  // runs are set aside, see [Ledger.Pick]

	// Carries reports that the session is alive, so the definitions of its config are carried.
	Carries bool
	// Since is since when the config of this session is carried without a pause, and Dropped when a
	// registration last dropped definitions that no worker carried. If both are after the last poll
	// of this session, they may be its own.
	Since, Dropped time.Time
}

// Moved is the changes of a job.
type Moved struct {
	Cursor time.Time // zero: the job was removed, see [Ledger.Forget]
	Active string    // the hash of the definition that decides its ticks; "" for none
}

// Poll reads, in one command, what every worker must know once a second: the server's time, whether
// it has duty, what the session is asked to stop, and which cursors have moved or definitions
// become active since a revision. It keeps the definitions of the config with this digest carried.
// Sending it again does no harm.
func (l *Ledger) Poll(ctx context.Context, session locks.SessionID, digest string, revision int64) (*Poll, error) {
	return l.poll(ctx, session, digest, revision, false)
}

// PollDrifted is [Ledger.Poll] for a worker with drifted definitions. It would create ticks of
// these jobs late, so duty passes to a worker without drift.
func (l *Ledger) PollDrifted(ctx context.Context, session locks.SessionID, digest string, revision int64) (*Poll, error) {
	return l.poll(ctx, session, digest, revision, true)
}

func (l *Ledger) poll(ctx context.Context, session locks.SessionID, digest string, revision int64, drifted bool) (*Poll, error) {
	const most = 1000
	position, asserted, err := l.position(ctx)
	if err != nil {
		return nil, fmt.Errorf("poll: read the last of the news: %w", err)
	}
	r := space.Read(l.run(ctx, "poll", "", string(session), revision, most, DutyStale.Milliseconds(), digest, position,
		drifted, GoneAfter.Milliseconds(), asserted))
	poll := &Poll{Now: r.Time(), Duty: r.Number() == 1, Revision: r.Number(), Moved: make(map[string]Moved)}
	poll.Stop, poll.Drain = askedOf(r)
	upto := r.Text()
	var news []string
	r.Each(func(list *space.Reader) { news = append(news, list.Text()) })
	poll.Aside = r.Number() == 1
	if dropped := r.Text(); dropped != "" {
		poll.Carries, poll.Dropped = true, space.Read(space.Reply{dropped}, nil).Time()
	}
	poll.Since = r.Time()
	lacking := r.Number() == 1
	changed := 0
	for r.More() {
		job, cursor, active := r.Text(), r.Text(), r.Text()
		changed++
		ms, err := strconv.ParseInt(cursor, 10, 64)
		if r.Err != nil || err != nil {
			continue // one that cannot be read must not hide the others
		}
		poll.Moved[job] = Moved{millis(ms), active}
		switch {
		case lacking: // a worker that knows nothing of the job may have set it
		case ms == 0:
			l.memory.removed(job)
		default:
			l.memory.saw(job, millis(ms))
		}
	}
	if r.Err != nil {
		return nil, fmt.Errorf("poll: %w", r.Err)
	}
	l.memory.heard(position, upto, news)
	poll.More = changed == most || len(news) == 2*most
	if lacking { // a later poll reports these changes again, when they count
		poll.Revision, poll.More = revision, false
	}
	return poll, nil
}

// askedOf reads which runs a session is asked to stop.
func askedOf(r *space.Reader) (stop map[jobs.RunID]string, drain bool) {
	stop = make(map[jobs.RunID]string)
	r.Each(func(list *space.Reader) {
		if run, why := jobs.RunID(list.Text()), list.Text(); run == "" {
			drain = true
		} else {
			stop[run] = why
		}
	})
	return stop, drain
}

// Asked returns the runs of a session that must stop, and why: for a draining worker, which no
// longer polls.
func (l *Ledger) Asked(ctx context.Context, session locks.SessionID) (map[jobs.RunID]string, error) {
	r := space.Read(l.run(ctx, "asked", "", string(session)))
	stop, _ := askedOf(r)
	if r.Err != nil {
		return nil, fmt.Errorf("read which runs must stop: %w", r.Err)
	}
	return stop, nil
}

// Dead is a run with an attempt that has no session anymore, or that continues without its hold.
type Dead struct {
	Run   jobs.RunID
	Token locks.Token
	Job   string
	Fails int // attempts that have failed before
}

// Sweep is the reply to [Ledger.Sweep].
type Sweep struct {
	Now time.Time // the server's
	// until the next scheduled or retrying run becomes due; negative: none exists
	Next time.Duration
	More bool  // more is left to do now: sweep again at once
	Due  []Due // runs that became due, or have an unconfirmed push: to be delivered
	// how many of Due were returned because their push was not confirmed; they are the last ones
	Repeated int
	Dead     []Dead       // to be closed by CrashAll
	Late     []jobs.RunID // runs that may have expired: to be given to ExpireAll
	Broken   []jobs.RunID // runs with an unreadable record: to be given to Refuse
}

// SweepLimits bound one sweep.
type SweepLimits struct {
	Most        int           // entries of each kind
	Unconfirmed time.Duration // after which a push that was not confirmed is repeated

	// Room returns how many deliveries the caller can take: no more runs become due by their time,
	// and no more pushes are repeated. The rest waits for the next sweep. Nil: the caller takes
	// all.
	Room func() int

	// Pending reports whether the caller still has to push a delivery, or a newer one of its run.
	// Such a push keeps its n: a new one would make the delivery stale before it is pushed. Nil:
	// the caller pushes the results of a sweep at once.
	Pending func(Due) bool
}

// Sweep repairs faults and makes runs due at their time: offers of the lock space, scheduled
// and retrying runs, pushes that no process has confirmed. The caller must deliver the returned
// runs. If the reply is lost, the next sweep returns the same runs again, after Unconfirmed.
func (l *Ledger) Sweep(ctx context.Context, limits SweepLimits) (*Sweep, error) {
	room := limits.Most
	if limits.Room != nil {
		room = max(0, min(room, limits.Room()))
	}
	r := space.Read(l.run(ctx, "sweep", "", limits.Most, limits.Unconfirmed.Milliseconds(), room))
	sweep := &Sweep{Now: r.Time(), Next: space.Millis(r.Number()), More: r.Number() == 1, Due: dueOf(r)}
	r.Each(func(list *space.Reader) {
		sweep.Dead = append(sweep.Dead, Dead{Run: jobs.RunID(list.Text()), Token: locks.Token(list.Number()), Job: list.Text(),
			Fails: int(list.Number())})
	})
	unconfirmed := dueOf(r)
	r.Each(func(list *space.Reader) { sweep.Late = append(sweep.Late, jobs.RunID(list.Text())) })
	r.Each(func(list *space.Reader) { sweep.Broken = append(sweep.Broken, jobs.RunID(list.Text())) })
	for i := range min(int(r.Number()), len(sweep.Due)) {
		sweep.Due[i].Offered = true
	}
	if r.Err != nil {
		return nil, fmt.Errorf("sweep: %w", r.Err)
	}
	var repeat, pending []Due
	for _, due := range unconfirmed {
		if limits.Pending != nil && limits.Pending(due) {
			pending = append(pending, due)
		} else {
			repeat = append(repeat, due)
		}
	}
	if err := l.pending(ctx, pending); err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	if len(repeat) > 0 {
		// one that was pending a moment ago is confirmed by now
		repeated, err := l.repush(ctx, true, repeat)
		if err != nil {
			return nil, fmt.Errorf("sweep: %w", err)
		}
		sweep.Due, sweep.Repeated = append(sweep.Due, repeated...), len(repeated)
	}
	return sweep, nil
}

// pending notes that this process still has to push deliveries: they count as unconfirmed from now
// on.
func (l *Ledger) pending(ctx context.Context, deliveries []Due) error {
	if len(deliveries) == 0 {
		return nil
	}
	args := make([]any, len(deliveries))
	for i, d := range deliveries {
		args[i] = string(d.Run)
	}
	_, err := l.run(ctx, "pending", "", args...)
	return err
}

// Sent is the reply to [Ledger.Sent].
type Sent struct {
	All int // confirmed deliveries in all
	// those to look up in their queues: Confirm the ones that are there, Repush the others
	LookUp []Due
	Broken []jobs.RunID // runs with an unreadable record: to be given to Refuse
}

// Sent returns at most most deliveries that were last known to be in their queues at least since
// ago, the oldest first.
func (l *Ledger) Sent(ctx context.Context, most int, since time.Duration) (*Sent, error) {
	r := space.Read(l.run(ctx, "sent", "", most, since.Milliseconds()))
	sent := &Sent{All: int(r.Number()), LookUp: dueOf(r)}
	r.Each(func(list *space.Reader) { sent.Broken = append(sent.Broken, jobs.RunID(list.Text())) })
	if r.Err != nil {
		return nil, fmt.Errorf("list deliveries to look up: %w", r.Err)
	}
	return sent, nil
}

// Ended returns those of some sessions that have ended, or that Redis does not know.
func (l *Ledger) Ended(ctx context.Context, sessions []locks.SessionID) ([]locks.SessionID, error) {
	r := space.Read(l.run(ctx, "ended", "", appendTexts(nil, sessions...)...))
	var ended []locks.SessionID
	for r.More() {
		ended = append(ended, locks.SessionID(r.Text()))
	}
	if r.Err != nil {
		return nil, fmt.Errorf("find ended sessions: %w", r.Err)
	}
	return ended, nil
}

// MaxLostLeases is how many attempts at a run may lose their lease one after another, each without
// a report from its worker, before the run ends as failed. A host that a run brings down leaves no
// process that could report a crash. An outage of Redis does not count: a worker that survives one
// reports that, see [Ledger.LostLease].
const MaxLostLeases = 10

// Closed says how an attempt was closed after its session or hold had ended.
type Closed struct {
	State   State  // the run's now
	Outcome string // the attempt's: AttemptCrashed, AttemptLostLease or "failed"
	Due     []Due  // runs that became due in this step
}

// A Closing is an attempt to close, and the definition that its run was made with.
type Closing struct {
	Dead
	Job *jobs.Job
}

// CrashResult is the outcome of one [Closing]: nil and no error if there was nothing to close (any
// more).
type CrashResult struct {
	*Closed
	Err error
}

// Crash closes the attempt of a run after its session has ended, by the policies of the definition
// the run was made with, and frees its locks. If the session's process died ([Ledger.Died]), the
// attempt has crashed. Otherwise it has lost its lease, which counts as neither a crash nor a
// failure. When only its hold has ended, because it exceeded its max hold or was revoked, the
// attempt has failed, and its worker learns that from the hold. Crash returns nil and changes
// nothing when neither has ended (any more), or while workers re-assert what Redis has lost; hence
// it may be sent again.
func (l *Ledger) Crash(ctx context.Context, dead Dead, job *jobs.Job) (*Closed, error) {
	closed := l.CrashAll(ctx, []Closing{{dead, job}})[0]
	return closed.Closed, closed.Err
}

// CrashAll is [Ledger.Crash] for several attempts, in one round trip.
func (l *Ledger) CrashAll(ctx context.Context, closings []Closing) []CrashResult {
	steps := make([]step, len(closings))
	for i, c := range closings {
		steps[i] = step{c.Dead.Job, closeArgs(c.Dead, c.Job, "")}
	}
	results := make([]CrashResult, len(closings))
	for i, call := range l.runAll(ctx, "crash", steps) {
		_, results[i].Closed, results[i].Err = l.closed(closings[i].Dead, closings[i].Job, "", call.Read())
	}
	return results
}

// LostLease closes an attempt of this process that has lost its lease, and hands its run back. The
// caller must be certain that nothing of the attempt runs any more. session is the present one of
// the process. If a sweep has closed the attempt already, LostLease notes that the worker survived;
// then, and when the run has moved on, closed is nil. While it returns [ErrNotYet], the caller
// should call it again.
func (l *Ledger) LostLease(ctx context.Context, session locks.SessionID, lost Dead, job *jobs.Job) (*Closed, error) {
	reply, closed, err := l.closed(lost, job, session, space.Read(l.run(ctx, "crash", lost.Job, closeArgs(lost, job, session)...)))
	if err == nil && (reply == "later" || reply == "dead") {
		return nil, fmt.Errorf("report the lost lease of %s: %w", lost.Run, ErrNotYet)
	}
	return closed, err
}

// ErrNotYet is returned when a lost lease cannot be reported now: the new session has ended as
// well, or workers re-assert what Redis has lost.
var ErrNotYet = errors.New("not at this time")

func closeArgs(dead Dead, job *jobs.Job, reporter locks.SessionID) []any {
	return []any{string(dead.Run), dead.Token.String(), string(job.OnCrash), job.MaxCrashes,
		job.History.Runs, job.History.For.Milliseconds(), job.Retry.Max, job.Retry.Pause(dead.Run, dead.Fails+1).Milliseconds(),
		MaxLostLeases, string(reporter)}
}

// closed decodes the reply to the closing of an attempt.
func (l *Ledger) closed(dead Dead, job *jobs.Job, reporter locks.SessionID, r *space.Reader) (outcome string, closed *Closed, err error) {
	outcome = r.Text()
	closed = &Closed{State: State(r.Text()), Outcome: r.Text(), Due: dueOf(r)}
	if r.Err != nil {
		return "", nil, fmt.Errorf("close the attempt of %s: %w", dead.Run, r.Err)
	}
	if outcome != "closed" {
		closed = nil
	}
	if reporter != "" && outcome != "later" && outcome != "dead" {
		l.memory.lost(dead, job, closed)
	}
	return outcome, closed, nil
}

// Died notes that the process of a session has died: the attempts under it have crashed. The parent
// of that process calls it, before [locks.Space.EndSession]. Without it, the attempts of a session
// that ends have lost their lease.
func (l *Ledger) Died(ctx context.Context, session locks.SessionID) error {
	if _, err := l.run(ctx, "died", "", string(session)); err != nil {
		return fmt.Errorf("note the death of %s: %w", session, err)
	}
	return nil
}

// An Expiry is a run that may have expired, and the definition that it was made with.
type Expiry struct {
	Run jobs.RunID
	Job *jobs.Job
}

// Expired is the outcome of one [Expiry].
type Expired struct {
	Due   []Due // runs that became due in this step
	Ended bool  // the run has ended by it
	Err   error
}

// Expire ends a run that must not start any more, and applies its job's policy to one that has
// waited too long for its bundle. Otherwise nothing happens (any more); hence it may be sent again.
// job is the definition that the run was made with.
func (l *Ledger) Expire(ctx context.Context, run jobs.RunID, job *jobs.Job) ([]Due, error) {
	expired := l.ExpireAll(ctx, []Expiry{{run, job}})[0]
	return expired.Due, expired.Err
}

// ExpireAll is [Ledger.Expire] for several runs, in one round trip.
func (l *Ledger) ExpireAll(ctx context.Context, expiries []Expiry) []Expired {
	steps := make([]step, len(expiries))
	for i, e := range expiries {
		steps[i] = step{e.Run.Job(), []any{string(e.Run), e.Job.History.Runs, e.Job.History.For.Milliseconds()}}
	}
	results := make([]Expired, len(expiries))
	for i, call := range l.runAll(ctx, "expire", steps) {
		r := call.Read()
		outcome := r.Text()
		r.Text()
		due := dueOf(r)
		if r.Err != nil {
			results[i].Err = fmt.Errorf("check whether the time of %s is over: %w", expiries[i].Run, r.Err)
			continue
		}
		results[i].Due, results[i].Ended = due, outcome == "ended"
	}
	return results
}

// Postpone makes sweeps return runs as late again only after a pause: their expiry had an error
// that is [Final], and must not keep sweeps from other runs. Sent again it does no harm.
func (l *Ledger) Postpone(ctx context.Context, runs []jobs.RunID, pause time.Duration) error {
	if _, err := l.run(ctx, "postpone", "", appendTexts([]any{pause.Milliseconds()}, runs...)...); err != nil {
		return fmt.Errorf("postpone the expiry of %d runs: %w", len(runs), err)
	}
	return nil
}
