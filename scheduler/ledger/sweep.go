package ledger

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
)

var (
	//go:embed scripts/poll.lua
	pollSource string
	pollScript = script(pollSource)
	//go:embed scripts/asked.lua
	askedSource string
	askedScript = script(askedSource)
	//go:embed scripts/sweep.lua
	sweepSource string
	sweepScript = script(sweepSource)
	//go:embed scripts/crash.lua
	crashSource string
	crashScript = script(crashSource)
	//go:embed scripts/expire.lua
	expireSource string
	expireScript = script(expireSource)
)

// DutyStale is how long who has duty may go without a poll before another session takes it over.
const DutyStale = 1200 * time.Millisecond

// Poll is the answer to [Ledger.Poll].
type Poll struct {
	Now      time.Time             // the server's
	Duty     bool                  // this session creates ticks first and sweeps for all
	Revision int64                 // to go on with
	Moved    map[string]Moved      // by job
	More     bool                  // more cursors have moved than one answer holds: ask again at once
	Stop     map[jobs.RunID]string // runs of this session that are to stop, and why
	Drain    bool                  // the worker is asked to drain
}

// Moved is what changed about a job.
type Moved struct {
	Cursor time.Time
	Active string // the hash of the definition that decides its ticks
}

// Poll reads, in one command, what every worker has to know once a second: the server's time, whether it has duty, and
// what the session is asked to stop, and which cursors have moved or definitions become active since a revision. It
// keeps the definitions of the config of this digest carried. Sending it again does no harm.
func (l *Ledger) Poll(ctx context.Context, session locks.SessionID, digest string, revision int64) (*Poll, error) {
	const most = 1000
	position, err := l.position(ctx)
	if err != nil {
		return nil, fmt.Errorf("poll: read what is outstanding: %w", err)
	}
	r := read(l.run(ctx, pollScript, "", string(session), revision, most, DutyStale.Milliseconds(), digest, position))
	poll := &Poll{Now: r.time(), Duty: r.number() == 1, Revision: r.number(), Moved: make(map[string]Moved)}
	poll.Stop, poll.Drain = r.asked()
	position = r.text()
	var news []string
	r.each(func(list *reply) { news = append(news, list.text()) })
	changed := 0
	for r.more() {
		job, cursor, active := r.text(), r.text(), r.text()
		changed++
		ms, err := strconv.ParseInt(cursor, 10, 64)
		if r.err != nil || err != nil {
			continue // one that cannot be read must not hide the others
		}
		poll.Moved[job] = Moved{millis(ms), active}
		l.memory.saw(job, millis(ms))
	}
	if r.err != nil {
		return nil, fmt.Errorf("poll: %w", r.err)
	}
	l.memory.heard(position, news, len(news) == 2*most)
	poll.More = changed == most
	return poll, nil
}

// asked reads what a session is asked to stop.
func (r *reply) asked() (stop map[jobs.RunID]string, drain bool) {
	stop = make(map[jobs.RunID]string)
	r.each(func(list *reply) {
		if run, why := jobs.RunID(list.text()), list.text(); run == "" {
			drain = true
		} else {
			stop[run] = why
		}
	})
	return stop, drain
}

// Asked returns the runs of a session that are to stop, and why: for a worker that drains, and polls no more.
func (l *Ledger) Asked(ctx context.Context, session locks.SessionID) (map[jobs.RunID]string, error) {
	r := read(l.run(ctx, askedScript, "", string(session)))
	stop, _ := r.asked()
	if r.err != nil {
		return nil, fmt.Errorf("ask what is to stop: %w", r.err)
	}
	return stop, nil
}

// Dead is a run whose attempt's session has ended, or whose attempt goes on without its hold.
type Dead struct {
	Run   jobs.RunID
	Token locks.Token
	Job   string
	Fails int // attempts that have failed before
}

// Sweep is the answer to [Ledger.Sweep].
type Sweep struct {
	Now    time.Time     // the server's
	Next   time.Duration // until the next scheduled or retrying run becomes due; negative: there is none
	More   bool          // more is left to do now: sweep again at once
	Due    []Due         // runs that became due, or whose push was not confirmed: to be delivered
	Dead   []Dead        // to be closed by Crash, one by one
	Late   []jobs.RunID  // runs whose time may be over: to be given to Expire
	Broken []jobs.RunID  // runs whose record cannot be read: to be given to Refuse
	LookUp []Due         // deliveries nobody has heard of for a while: Confirm those that are there, Repush the others
}

// SweepLimits bound one sweep.
type SweepLimits struct {
	Most        int           // entries of each kind
	Unconfirmed time.Duration // after which a push that was not confirmed is repeated
	LookUp      time.Duration // after which a confirmed delivery is looked up again
}

// Sweep makes good for what went astray and makes due what has come due: offers of the lock space, scheduled and
// retrying runs, pushes that nobody confirmed. Whoever calls it has to deliver what it returns; if the answer is lost,
// the next sweep returns the same runs again, after Unconfirmed.
func (l *Ledger) Sweep(ctx context.Context, limits SweepLimits) (*Sweep, error) {
	r := read(l.run(ctx, sweepScript, "", limits.Most, limits.Unconfirmed.Milliseconds(), limits.LookUp.Milliseconds()))
	sweep := &Sweep{Now: r.time(), Next: time.Duration(r.number()) * time.Millisecond, More: r.number() == 1, Due: r.due()}
	r.each(func(list *reply) {
		sweep.Dead = append(sweep.Dead, Dead{Run: jobs.RunID(list.text()), Token: locks.Token(list.number()), Job: list.text(),
			Fails: int(list.number())})
	})
	sweep.LookUp = r.due()
	r.each(func(list *reply) { sweep.Late = append(sweep.Late, jobs.RunID(list.text())) })
	r.each(func(list *reply) { sweep.Broken = append(sweep.Broken, jobs.RunID(list.text())) })
	if r.err != nil {
		return nil, fmt.Errorf("sweep: %w", r.err)
	}
	return sweep, nil
}

// Crash closes the attempt of a run whose session has ended, by the policies of the definition the run was made with,
// and frees its locks. When only its hold has ended, because it was held for too long or was revoked, the attempt has
// failed, and its worker hears of it by the hold. Nothing happens, and closed is false, when that is not so (any more), or
// while workers say again what Redis has lost; hence it may be sent again.
func (l *Ledger) Crash(ctx context.Context, dead Dead, job *jobs.Job) (due []Due, closed bool, err error) {
	r := read(l.run(ctx, crashScript, dead.Job, string(dead.Run), dead.Token.String(), string(job.OnCrash), job.MaxCrashes,
		job.History.Runs, job.History.For.Milliseconds(), job.Retry.Max, job.Retry.Pause(dead.Run, dead.Fails+1).Milliseconds()))
	closed = r.text() == "closed"
	r.text()
	due = r.due()
	if r.err != nil {
		return nil, false, fmt.Errorf("close the attempt of %s: %w", dead.Run, r.err)
	}
	return due, closed, nil
}

// Expire ends a run that may not start any more, and does what its job wants with one that has waited for its bundle long
// enough. Nothing happens when neither is so (any more); hence it may be sent again. job is the definition that the run
// was made with.
func (l *Ledger) Expire(ctx context.Context, run jobs.RunID, job *jobs.Job) ([]Due, error) {
	r := read(l.run(ctx, expireScript, run.Job(), string(run), job.History.Runs, job.History.For.Milliseconds()))
	r.text()
	r.text()
	due := r.due()
	if r.err != nil {
		return nil, fmt.Errorf("look whether the time of %s is over: %w", run, r.err)
	}
	return due, nil
}
