package ledger

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// Act is an act of a person or a program, for the audit, which keeps the last 50,000 entries of 90
// days. Repeats are one entry: the same actor does the same to the same thing.
type Act struct {
	Who    string `json:"who"`
	What   string `json:"what"` // "pause job", "cancel run"
	On     string `json:"on"`   // its object: a job, a run, a worker, a queue
	Why    string `json:"why,omitempty"`
	Detail string `json:"detail,omitempty"`

	// what else distinguishes it from repeats, such as a span of ticks
	Apart string        `json:"-"`
	Times int           `json:"-"` // how many acts this one counts for; 0: one
	Span  time.Duration `json:"-"` // for which repeats join the entry of the first; 0: ActSpan

	// Part is true for a part of an act on several things: that act has an entry, its parts have
	// none
	Part bool `json:"-"`
}

// ActSpan is how long the repeats of an act join its entry.
const ActSpan = 10 * time.Minute

// entry returns the act in the form for the scripts; "" for none.
func (a *Act) entry() string {
	if a == nil || a.Part {
		return ""
	}
	kept := *a
	for _, text := range []*string{&kept.Who, &kept.What, &kept.On, &kept.Why, &kept.Detail} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), jobs.MaxReason)], "")
	}
	text, err := json.Marshal(kept)
	if err != nil {
		panic("ledger: an act is plain data: " + err.Error())
	}
	digest := sha256.Sum256([]byte(kept.Who + "\x00" + kept.What + "\x00" + kept.On + "\x00" + kept.Apart))
	return fmt.Sprintf("%x\x1f%d\x1f%d\x1f%s", digest[:12], max(1, a.Times), cmp.Or(a.Span, ActSpan).Milliseconds(), text)
}

// runAct is [Ledger.run] for a script that records an act, unless entry, which is also among args,
// is "".
func (l *Ledger) runAct(ctx context.Context, s script, job, entry string, args ...any) (space.Reply, error) {
	return l.runChild(ctx, s, job, "", entry, args...)
}

// runChild is runAct for a script that makes a run, from within another one unless parent, which is
// also among args, is "".
func (l *Ledger) runChild(ctx context.Context, s script, job string, parent jobs.RunID, entry string, args ...any) (space.Reply, error) {
	keys := slices.Clip(l.keysOf(job))
	if parent != "" {
		keys = append(keys, l.prefix+childrenKey)
	}
	if entry != "" {
		keys = append(keys, l.prefix+"acts")
	}
	return space.RunText(ctx, l.rdb, s.assembled(), keys, args...)
}

// check refuses a reason that is too long to be kept.
func (a *Act) check() error {
	if a == nil {
		return nil
	}
	return jobs.CheckReason(a.Why)
}

// by returns the actor and the reason, as the reasons of runs and ticks contain them.
func (a *Act) by() string {
	if a.Why == "" {
		return plain("by " + a.Who)
	}
	return plain("by " + a.Who + ": " + a.Why)
}

// ErrRefused means that the state of a run or job does not allow the act. The error that wraps it
// has the reason.
var ErrRefused = errors.New("refused")

// Cancellation is the reply to [Ledger.Cancel].
type Cancellation struct {
	Asked bool  // it runs: its worker was asked to stop it, and receives that within a second
	Due   []Due // runs that became due in this step
}

// Cancel ends a run that has not started, or waits for its next attempt; it asks the worker of a
// running one to stop it. A run that has ended gives an [ErrRefused]. job is the definition that
// the run was made with. Cancel may be sent again: a canceled run then gives an [ErrRefused], and a
// stop that was requested stays requested.
func (l *Ledger) Cancel(ctx context.Context, run jobs.RunID, job *jobs.Job, act Act) (*Cancellation, error) {
	if err := act.check(); err != nil {
		return nil, fmt.Errorf("cancel %s: %w", run, err)
	}
	if run.Job() == "" { // for which the script would find no history
		return nil, fmt.Errorf("cancel %s: %w", run, ErrUnknown)
	}
	entry := act.entry()
	r := space.Read(l.runAct(ctx, "cancel", run.Job(), entry, string(run), "canceled "+act.by(), job.History.Runs,
		job.History.For.Milliseconds(), entry))
	outcome, state, due := outcomeOf(r), r.Text(), dueOf(r)
	switch {
	case r.Err != nil:
		return nil, fmt.Errorf("cancel %s: %w", run, r.Err)
	case outcome == "over":
		return nil, fmt.Errorf("cancel %s: %w: it has ended (%s)", run, ErrRefused, state)
	}
	return &Cancellation{Asked: outcome == "asked", Due: due}, nil
}

// Reopening is a request to run an ended run once more, under its id; the numbers of its attempts
// continue. Failures and crashes count anew.
type Reopening struct {
	Run  jobs.RunID
	Tick time.Time       // zero for a run without one
	Job  *jobs.Job       // the definition for the new attempts
	Args json.RawMessage // the run's own, from which the locks are read
	// also if it succeeded, or if the ledger has no record of it (any more): for a tick that must
	// run again
	Any bool
	// of the run's record, see [Record].Templated
	Templated bool
	// Parent is the run that a new one repeats; "" for none. See [Request].Parent.
	Parent jobs.RunID
	Act    *Act
}

// Reopen makes an ended run due again. An outstanding one stays unchanged, and Reopen returns no
// due run. So it may be sent again, but a copy that arrives when the run has ended once more is
// another request to reopen it.
//
// The error is an [ErrRefused] for a run that succeeded, unless Any is set; for a line for many
// ticks; and for a run whose args have ${...} of a definition with other args than Job, unless Any
// is set.
func (l *Ledger) Reopen(ctx context.Context, re Reopening) ([]Due, error) {
	fail := func(err error) ([]Due, error) { return nil, fmt.Errorf("run %s again: %w", re.Run, err) }
	job := re.Job
	arguments, err := compact(re.Args)
	if err != nil {
		return fail(err)
	}
	if err := errors.Join(jobs.CheckArgs(len(arguments), l.maxArgs), re.Act.check()); err != nil {
		return fail(err)
	}
	if !re.Any && jobs.HasPlaceholders(arguments) && !jobs.SameArgs(arguments, job.Args) && (!re.Tick.IsZero() || re.Templated) {
		remedy := "enqueue it again instead"
		if !re.Tick.IsZero() {
			remedy = "replay the tick instead, which then has the present args"
		}
		return fail(fmt.Errorf("%w: its args have ${...}, which only the definition that they come from can replace, and the "+
			"job's args have changed; %s", ErrRefused, remedy))
	}
	items, err := job.Resources(re.Run, arguments)
	if err != nil {
		return fail(err)
	}
	// a span of ticks: one after the other
	if job.Overlap == jobs.OverlapAllow && job.Concurrency == 0 && re.Any {
		items = append(items, aloneItem(job))
	}
	definition, err := l.write(job)
	if err != nil {
		return fail(err)
	}
	patience, onBusy, limits := waitOf(job)
	serial := ""
	for _, item := range items {
		if item.Name == jobs.JobResource(job.Name) {
			serial = "1"
		}
	}
	tick := ""
	if !re.Tick.IsZero() {
		tick = fmt.Sprint(re.Tick.UnixMilli())
	}
	entry := re.Act.entry()
	args := []any{string(re.Run), tick, job.Name, job.Queue, storedArgs(arguments, job), named(string(definition)), patience, onBusy, limits, serial, re.Any,
		entry, string(re.Parent)}
	for _, item := range items {
		args = append(args, item.String())
	}
	r := space.Read(l.runChild(ctx, "reopen", job.Name, re.Parent, entry, args...))
	switch outcome := outcomeOf(r); outcome {
	case "due":
		due := Due{Run: re.Run, N: r.Number(), Queue: job.Queue}
		if r.Err != nil {
			return fail(r.Err)
		}
		return []Due{due}, nil
	case "outstanding":
		return nil, nil
	case "refused":
		if state := r.Text(); state == string(StateSucceeded) {
			return fail(fmt.Errorf("%w: it succeeded", ErrRefused))
		}
		return fail(fmt.Errorf("%w: its record is for many ticks; replay the ticks that you want", ErrRefused))
	default:
		return fail(r.Unknown(outcome))
	}
}

// Pause makes a job skip its ticks from now on. Existing runs and requested runs continue. It
// returns false if the job was paused already.
func (l *Ledger) Pause(ctx context.Context, job string, act Act) (bool, error) {
	return l.pause(ctx, job, act.by(), act)
}

// Resume lets the ticks of a job run again. It returns false if the job was not paused.
func (l *Ledger) Resume(ctx context.Context, job string, act Act) (bool, error) {
	return l.pause(ctx, job, "", act)
}

func (l *Ledger) pause(ctx context.Context, job, by string, act Act) (bool, error) {
	if err := act.check(); err != nil {
		return false, fmt.Errorf("pause or resume job %s: %w", job, err)
	}
	entry := act.entry()
	r := space.Read(l.runAct(ctx, "pause", "", entry, job, by, entry))
	outcome := outcomeOf(r)
	if r.Err != nil {
		return false, fmt.Errorf("%s %s: %w", act.What, job, r.Err)
	}
	return outcome == "done", nil
}

// Skip declares that the ticks of a job from one instant to another, both included, do not run:
// future ticks are skipped when they come, runs of earlier ones end as skipped if they have not
// started. It returns the number of the latter. It may be sent again.
func (l *Ledger) Skip(ctx context.Context, job *jobs.Job, from, to time.Time, act Act) (skipped int, due []Due, err error) {
	if err := act.check(); err != nil {
		return 0, nil, fmt.Errorf("skip ticks of %s: %w", job.Name, err)
	}
	entry := act.entry()
	for last, more := "", true; more; entry, more = "", last != "" {
		r := space.Read(l.runAct(ctx, "skip", job.Name, entry, job.Name, max(0, from.UnixMilli()), max(0, to.UnixMilli()), "skipped "+act.by(),
			job.History.Runs, job.History.For.Milliseconds(), last, entry))
		outcome := r.Text()
		n := r.Number()
		last = r.Text()
		due = append(due, dueOf(r)...)
		skipped += int(n)
		switch {
		case r.Err != nil:
		case outcome == "none":
			r.Err = ErrUnknown
		case outcome == "many":
			r.Err = fmt.Errorf("%w: it has a hundred spans of ticks to skip already", ErrRefused)
		}
		if r.Err != nil {
			return skipped, due, fmt.Errorf("skip ticks of %s: %w", job.Name, r.Err)
		}
	}
	return skipped, due, nil
}

// Drain asks a worker to take nothing new and to end when its attempts have. The worker learns of
// it within a second. Drain returns false if the worker was asked already; a worker without a
// session gives [ErrUnknown].
func (l *Ledger) Drain(ctx context.Context, worker locks.SessionID, act Act) (bool, error) {
	if err := act.check(); err != nil {
		return false, fmt.Errorf("drain %s: %w", worker, err)
	}
	entry := act.entry()
	r := space.Read(l.runAct(ctx, "drain", "", entry, string(worker), entry))
	outcome := outcomeOf(r)
	if r.Err != nil {
		return false, fmt.Errorf("drain worker %s: %w", worker, r.Err)
	}
	return outcome == "asked", nil
}

// Audit records an act that no other method of the ledger does.
func (l *Ledger) Audit(ctx context.Context, act Act) error {
	entry := act.entry()
	if _, err := l.runAct(ctx, "audit", "", entry, entry); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// ActRecord is an act with its time; for repeats, the time of the last.
type ActRecord struct {
	ID    string // grows
	At    time.Time
	First time.Time // of the repeats
	Act             // with Times
}

// IsActID reports whether a text can be the id of an act.
func IsActID(id string) bool {
	ms, seq, ok := strings.Cut(id, "-")
	for _, number := range []string{ms, seq} {
		if _, err := strconv.ParseUint(number, 10, 64); err != nil {
			ok = false
		}
	}
	return ok && id != "0-0" // Redis finds no act before it, and returns an error
}

// Acts returns the recorded acts, the last first: at most limit, or, with 0, all that are kept;
// with before, only the acts before the one with that id.
func (l *Ledger) Acts(ctx context.Context, before string, limit int) ([]ActRecord, error) {
	var acts []ActRecord
	for {
		want := page
		if limit > 0 {
			want = min(page, limit-len(acts))
		}
		to := "+"
		if before != "" {
			to = "(" + before
		}
		messages, err := l.rdb.XRevRangeN(ctx, l.prefix+"audit", to, "-", int64(want)).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("read audit: %w", err)
		}
		for _, message := range messages {
			record, err := decodeAct(message)
			if err != nil {
				return nil, err
			}
			acts = append(acts, record)
			before = message.ID
		}
		if len(messages) < want || limit > 0 && len(acts) >= limit {
			return acts, nil
		}
	}
}

func decodeAct(message redis.XMessage) (ActRecord, error) {
	record := ActRecord{ID: message.ID}
	text, _ := message.Values["e"].(string)
	var ms int64
	if _, err := fmt.Sscanf(message.ID, "%d-", &ms); err != nil {
		return record, fmt.Errorf("%w: id %q in the audit", space.ErrReply, message.ID)
	}
	record.At, record.First, record.Times = millis(ms), millis(ms), 1
	if n, ok := message.Values["n"].(string); ok { // not what an older build has kept
		times, err1 := strconv.Atoi(n)
		text, _ := message.Values["f"].(string)
		first, err2 := strconv.ParseInt(text, 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return record, fmt.Errorf("%w: entry %s of the audit: %w", space.ErrReply, message.ID, err)
		}
		if record.Times = times; times > 1 {
			record.First = millis(first)
		}
	}
	if err := json.Unmarshal([]byte(text), &record.Act); err != nil {
		return record, fmt.Errorf("%w: entry %s of the audit: %w", space.ErrReply, message.ID, err)
	}
	return record, nil
}
