package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// Verdict is the outcome of a tick when it is decided.
type Verdict string

const (
	VerdictRun Verdict = "run" // it runs, unless the job's overlap policy skips it
	// it was missed and runs all the same; overlap does not skip it
	VerdictCatchUp Verdict = "catch"
	VerdictMissed  Verdict = "missed" // it does not run: no worker was up
	VerdictBroken  Verdict = "failed" // it cannot run: its bundle cannot be made
)

// Tick is one due time with its verdict.
type Tick struct {
	At      time.Time
	After   time.Duration // how long after it its run becomes due
	Verdict Verdict
	Reason  string    // for VerdictMissed and VerdictBroken
	Upto    time.Time // the last tick of a line for a range of missed ticks; else zero
	Count   int       // how many ticks such a range has; 0: that is not known
}

// line returns the id of the record of a tick, or of the line for a range of ticks, and the last
// tick of that range in the form for the scripts.
func (t Tick) line(job string) (id jobs.RunID, upto string) {
	id = jobs.TickRunID(job, t.At)
	if t.Upto.IsZero() {
		return id, ""
	}
	return id + jobs.RunID(".."+t.Upto.UTC().Format(time.RFC3339)), strconv.FormatInt(t.Upto.UnixMilli(), 10)
}

// count returns how many ticks the record is for, at least 1.
func (t Tick) count() int { return max(1, t.Count) }

// Decision is what [Ledger.Create] records: every tick of a job after Seen, up to Cursor.
type Decision struct {
	Job    *jobs.Job
	Seen   time.Time // the cursor that the ticks were computed from
	Cursor time.Time // the new one: the last of the ticks
	Ticks  []Tick    // oldest first, at most MaxTicks
	By     locks.SessionID

	again bool // Redis has lost the runs of these ticks; the cursor stays
}

// A replacement is how far the runs are ended that a decision replaces.
type replacement struct {
	seen  time.Time // of the decision
	after string    // where to continue
}

// MaxTicks bounds the ticks of one decision; more ticks take several decisions, one after the
// other.
const MaxTicks = 100

// Created is the reply to a [Decision] or an [Activation].
type Created struct {
	Due    []Due     // runs to be delivered or claimed
	Cursor time.Time // the present cursor of the job
	// another worker had moved the cursor: nothing was recorded, Cursor has its value
	Moved bool
	Early bool // a tick has not come yet by the server's clock: nothing was recorded

	// Grace is how long the lock space still grants nothing, since Redis has lost data: nothing was
	// recorded.
	Grace time.Duration

	// Inactive means that another definition of the job decides its ticks: nothing was recorded.
	Inactive bool

	// More means that, with overlap replace, the first tick replaces more runs than one script may
	// end: it has ended some, and asked the running ones among them to stop, but recorded no tick.
	// The decision must be sent again, at once.
	More bool

	Err error // only this decision could not be sent or got no reply; it may be sent again

	ended map[jobs.RunID]State // ticks that did not become runs
	after string               // for More: where to continue
}

// Standing is the state of a definition among the others of its job.
type Standing string

const (
	StandingActive  Standing = "active"  // it decides the job's ticks
	StandingDrifted Standing = "drifted" // another one does
	// it will, and its trigger differs: the old one must decide the ticks up to now
	StandingChange Standing = "change"
)

// Registered is the reply to [Ledger.Register].
type Registered struct {
	Now      time.Time // the server's, at the last reply
	Revision int64     // from which [Ledger.Poll] starts
	Jobs     map[string]RegisteredJob
}

// RegisteredJob is the standing of one definition.
type RegisteredJob struct {
	Cursor   time.Time
	Standing Standing
	Old      *jobs.Job // for StandingChange: the definition that is still active
	OldHash  string    // its hash

	// Absence is set while the ticks that the job missed before it began anew have no line yet. The
	// caller settles it: see [Ledger.Settle].
	Absence *Absence
}

const (
	// a job that no worker carries is retired: when it comes back it begins anew
	retiredAfter = 7 * 24 * time.Hour

	// GoneAfter is how long a definition without a carrying worker is kept before it gives way to
	// one that is carried. It is shorter than [jobs.MissedAfter] by more than a worker needs to
	// detect that: no tick is missed meanwhile.
	GoneAfter = 45 * time.Second

	// RestartTime is how long a crashed worker's definitions are kept: the worker is started again.
	RestartTime = 3 * time.Second
)

// RegisterBatch is how many definitions [Ledger.Register] sends together.
const RegisterBatch = 250

// Hash names a definition. It covers the text before its ${...} are replaced, without its
// signature, so it is the same on all hosts.
func Hash(job *jobs.Job) (string, error) {
	e := Encoded{Job: job}
	err := e.encode()
	return e.Hash, err
}

func hashText(definition []byte) string {
	sum := sha256.Sum256(definition)
	return hex.EncodeToString(sum[:16])
}

// Digest names a set of definitions, which is what one worker carries. It also returns each of
// them, encoded.
func Digest(definitions []*jobs.Job) (digest string, encoded []*Encoded, err error) {
	all := make([]Encoded, len(definitions))
	encoded = make([]*Encoded, len(definitions))
	lines := make([]string, len(definitions))
	for i, job := range definitions {
		all[i].Job, encoded[i] = job, &all[i]
		if err := all[i].encode(); err != nil {
			return "", nil, err
		}
		lines[i] = job.Name + " " + all[i].Hash
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:8]), encoded, nil
}

// trigger writes the part of a definition that determines a job's ticks.
func trigger(job *jobs.Job) string {
	if job.Every > 0 {
		return "every " + job.Every.String()
	}
	return plain(job.Schedule + " " + job.Timezone)
}

// Register registers definitions, some or all of those in the config with this digest, and returns
// the standing of each. The newest definition of a job, by its first registration, is active as
// long as a worker carries it: the worker has polled with its config within [GoneAfter]. A
// definition that no worker has carried for that long counts as new when it is registered again,
// except by a process that remembers its order (see [Ledger.Remember]). The cursor
// of a job starts at the server's time if the ledger has never seen the job, if no worker has
// carried it for a week, or if it was removed: other workers were present and did not carry it. The
// ticks that it missed in these two cases are its [Absence]. Any other job continues where it
// stopped. Sent again, it changes nothing. With an error, Register returns the definitions with a
// reply to their registration, perhaps none.
func (l *Ledger) Register(ctx context.Context, digest string, definitions []*jobs.Job) (*Registered, error) {
	encoded := make([]*Encoded, len(definitions))
	for i, job := range definitions {
		encoded[i] = &Encoded{Job: job}
	}
	return l.RegisterEncoded(ctx, digest, encoded, true, func(string, string) *jobs.Job { return nil })
}

// RegisterEncoded is [Ledger.Register] for a caller that registers very many definitions. last
// reports that those are the last ones of the config: the caller has registered all others. carried
// returns the definition of a job with a hash, if the caller has it: RegisteredJob.Old is that one
// then, which costs less than decoding it again.
func (l *Ledger) RegisterEncoded(ctx context.Context, digest string, definitions []*Encoded, last bool, carried func(job, hash string) *jobs.Job) (*Registered, error) {
	registered := &Registered{Jobs: make(map[string]RegisteredJob, len(definitions))}
	lost := make(map[*jobs.Job]time.Time)
	batch := func(i int) []*Encoded {
		return definitions[i*RegisterBatch : min((i+1)*RegisterBatch, len(definitions))]
	}
	batches := max(1, (len(definitions)+RegisterBatch-1)/RegisterBatch)
	prepare := func(i int) ([]any, error) {
		args := make([]any, 0, 5+6*len(batch(i)))
		args = append(args, digest, GoneAfter.Milliseconds(), retiredAfter.Milliseconds(), l.signing != nil, last && i == batches-1)
		for _, e := range batch(i) {
			definition, hash, err := l.encoded(e)
			if err != nil {
				return nil, fmt.Errorf("register job %s: %w", e.Job.Name, err)
			}
			e.Hash = hash
			args = append(args, e.Job.Name, hash, trigger(e.Job), definition, l.memory.cursor(e.Job.Name), l.memory.orderOf(e.Job.Name, hash))
		}
		return args, nil
	}
	take := func(i int, r *space.Reader) error {
		now, revision := r.Time(), r.Number()
		if r.Err == nil {
			if registered.Now.IsZero() {
				registered.Revision = revision
			}
			registered.Revision = min(registered.Revision, revision)
			if now.After(registered.Now) {
				registered.Now = now
			}
		}
		for _, e := range batch(i) {
			job := e.Job
			one := RegisteredJob{Cursor: r.Time(), Standing: Standing(r.Text())}
			if old := r.Text(); old != "" && r.Err == nil {
				one.OldHash = hashText(jobs.Unsigned([]byte(old)))
				if one.Old = carried(job.Name, one.OldHash); one.Old == nil {
					one.Old, r.Err = jobs.ReadJob(old)
				}
			}
			begun := r.Number() == 1
			if begun && r.Err == nil && (job.Every > 0 || job.Schedule != "") {
				lost[job] = one.Cursor
			}
			if absence := r.Text(); absence != "" {
				one.Absence = readAbsence(job.Name, absence)
			}
			order := r.Number()
			if r.Err != nil {
				break
			}
			registered.Jobs[job.Name] = one
			if !begun { // else Redis has lost the cursor, and this one is the time of this call
				l.memory.saw(job.Name, one.Cursor)
			}
			l.memory.registered(job.Name, e.Hash, order)
		}
		if r.Err != nil {
			return fmt.Errorf("register %d jobs: %w", len(definitions), r.Err)
		}
		return nil
	}
	// Redis has all others before the last batch of the config, with which the config is carried.
	others := batches
	if last {
		others--
	}
	some := func(from, n int) error {
		return l.overlap(ctx, "register", n,
			func(i int) ([]any, error) { return prepare(from + i) },
			func(i int, r *space.Reader) error { return take(from+i, r) })
	}
	err := some(0, others)
	if err == nil {
		err = some(others, batches-others)
	}
	// Also after an error: the reply to the next registration of a job does not report the loss.
	return registered, errors.Join(err, l.writeLost(ctx, lost))
}

// overlap makes n calls of a script, of which two are under way at a time: while Redis works on
// one, the other travels. Meanwhile the arguments of the next are prepared and the reply to the
// last is taken, in the order of the calls. Redis may execute two calls in either order. After the
// first error of prepare or take, overlap begins no further call, but take still gets the replies
// to all calls that were made: Redis has executed them. take gets the error of a call with its
// reply.
func (l *Ledger) overlap(ctx context.Context, s script, n int, prepare func(i int) ([]any, error), take func(i int, r *space.Reader) error) error {
	var group errgroup.Group
	prepared, calls := make(chan []any, 1), make(chan chan *space.Reader)
	stop := make(chan struct{}) // closed at the first error of take
	group.Go(func() error {
		defer close(prepared)
		for i := range n {
			args, err := prepare(i)
			if err != nil {
				return err
			}
			select {
			case prepared <- args:
			case <-stop:
				return nil
			}
		}
		return nil
	})
	group.Go(func() error {
		defer close(calls)
		for args := range prepared {
			select {
			case <-stop:
				return nil
			default: // also when ctx has ended: then the call fails at once
			}
			reply := make(chan *space.Reader, 1)
			group.Go(func() error {
				reply <- space.Read(l.run(ctx, s, "", args...))
				return nil
			})
			calls <- reply
		}
		return nil
	})
	var failed error
	i := 0
	for reply := range calls {
		if err := take(i, <-reply); err != nil && failed == nil {
			failed = err
			close(stop)
		}
		i++
	}
	return errors.Join(failed, group.Wait())
}

// Leave notes that a session no longer carries the config with this digest: it has registered
// another one, and carries that; or, with digest "", it no longer polls, because its worker drains
// or has died. Definitions that no other session carries then give way, after keep: a crashed
// worker is started again. Without this call they would give way after [GoneAfter], as they do
// while a worker of an older build lives, which may carry them. Sent again it changes nothing more.
func (l *Ledger) Leave(ctx context.Context, session locks.SessionID, digest string, keep time.Duration) error {
	r := space.Read(l.run(ctx, "leave", "", string(session), digest, GoneAfter.Milliseconds(), keep.Milliseconds()))
	if r.Err != nil {
		return fmt.Errorf("leave a config: %w", r.Err)
	}
	return nil
}

// Carried returns the digests of the configs that workers carry, and an entry that changes whenever
// a worker leaves one. As long as no entry vanishes, no drifted definition becomes active.
func (l *Ledger) Carried(ctx context.Context) ([]string, error) {
	r := space.Read(l.run(ctx, "carried", "", GoneAfter.Milliseconds()))
	var digests []string
	for r.More() {
		digests = append(digests, r.Text())
	}
	if r.Err != nil {
		return nil, fmt.Errorf("read carried configs: %w", r.Err)
	}
	return digests, nil
}

// Create records decisions, each whole or not at all, in one round trip. It refuses (Moved) a
// decision that was computed from a cursor that has moved since, hence also one that is sent again
// after it was applied. A decision that replaces very many runs takes several calls (More); until
// the last of them, later decisions of its job are refused.
func (l *Ledger) Create(ctx context.Context, decisions []Decision) []Created {
	created := make([]Created, len(decisions))
	var (
		steps []step
		which []int // decision of a step
	)
	for i := range decisions {
		args, err := l.decisionArgs(&decisions[i])
		if err != nil {
			created[i].Err = err
			continue
		}
		steps, which = append(steps, step{decisions[i].Job.Name, args}), append(which, i)
	}
	for k, call := range l.runAll(ctx, "create", steps) {
		d, c := &decisions[which[k]], &created[which[k]]
		if err := c.decode(call.Read(), d.Cursor); err != nil {
			*c = Created{Err: fmt.Errorf("create ticks of %s: %w", d.Job.Name, err)}
			continue
		}
		l.replaced(d, c)
		if !c.Moved && !c.Early && !c.Inactive && !c.More && c.Grace == 0 {
			l.memory.created(d, c.ended)
		}
	}
	return created
}

// replaced notes, for the next call with a decision, how far it has ended the runs that it
// replaces.
func (l *Ledger) replaced(d *Decision, c *Created) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.More {
		l.replacing[d.Job.Name] = replacement{d.Seen, c.after}
	} else if l.replacing[d.Job.Name].seen.Equal(d.Seen) {
		delete(l.replacing, d.Job.Name)
	}
}

// replaceAfter returns where a decision continues to end the runs that it replaces,
// "" to begin.
func (l *Ledger) replaceAfter(d *Decision) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.replacing[d.Job.Name]; r.seen.Equal(d.Seen) {
		return r.after
	}
	return ""
}

// ActivateBatch is how many activations [Ledger.Activate] sends together.
const ActivateBatch = 200

// Activation requests that another definition of a job decide its ticks from now on. Ticks up to
// the new cursor belong to the definition that is still active: it must have decided those after
// Seen (see [Ledger.Create]) before this.
type Activation struct {
	Job    *jobs.Job // becomes active; it must be registered
	From   *jobs.Job // is still active
	Seen   time.Time // the cursor of the job
	Cursor time.Time // its new cursor, from which Job computes the next tick

	// Optional results that the caller already has; Activate computes the missing ones.
	Encoded  *Encoded // of Job
	FromHash string   // of From
}

// Activate makes definitions active whose triggers differ from those of the active ones, each whole
// or not at all, in calls of [ActivateBatch]. It refuses (Moved) an activation whose cursor has
// moved since, hence also one that is sent again after it was applied. Due is always empty.
func (l *Ledger) Activate(ctx context.Context, activations []Activation) []Created {
	results := make([]Created, len(activations))
	if len(activations) == 0 {
		return results
	}
	fail := func(i int, err error) {
		results[i] = Created{Err: fmt.Errorf("change the trigger of %s: %w", activations[i].Job.Name, err)}
	}
	batches := (len(activations) + ActivateBatch - 1) / ActivateBatch
	which := make([][]int, batches) // activations of a batch
	prepare := func(batch int) ([]any, error) {
		var args []any
		for i := batch * ActivateBatch; i < min((batch+1)*ActivateBatch, len(activations)); i++ {
			a := activations[i]
			before, e := a.FromHash, a.Encoded
			if before == "" {
				var err error
				if before, err = Hash(a.From); err != nil {
					fail(i, err)
					continue
				}
			}
			if e == nil {
				e = &Encoded{Job: a.Job}
			}
			definition, hash, err := l.encoded(e)
			if err != nil {
				fail(i, err)
				continue
			}
			args = append(args, a.Job.Name, a.Seen.UnixMilli(), a.Cursor.UnixMilli(), before, hash, definition)
			which[batch] = append(which[batch], i)
		}
		return args, nil
	}
	taken := 0
	err := l.overlap(ctx, "activate", batches, prepare, func(batch int, r *space.Reader) error {
		for _, i := range which[batch] {
			outcome, detail := r.Text(), r.Text()
			if r.Err != nil {
				fail(i, r.Err)
				continue
			}
			if outcome == "ok" {
				results[i].Cursor = activations[i].Cursor
				l.memory.saw(activations[i].Job.Name, results[i].Cursor)
			} else if err := results[i].refused(outcome, space.Read(space.Reply{detail}, nil)); err != nil {
				fail(i, err)
				continue
			}
		}
		taken = min((batch+1)*ActivateBatch, len(activations))
		return nil
	})
	for i := taken; i < len(activations); i++ {
		if results[i].Err == nil {
			fail(i, err)
		}
	}
	return results
}

// decode reads the reply to a decision.
func (c *Created) decode(r *space.Reader, cursor time.Time) error {
	switch outcome := r.Text(); outcome {
	case "ok":
		c.Cursor, c.ended = cursor, make(map[jobs.RunID]State)
		r.Each(func(list *space.Reader) { c.ended[jobs.RunID(list.Text())] = State(list.Text()) })
		c.Due = restDue(r)
	case "more":
		c.More, c.after = true, r.Text()
		c.Due = restDue(r)
	case "late":
		return ErrLate
	default:
		return c.refused(outcome, r)
	}
	return r.Err
}

// refused decodes an outcome for which nothing was recorded.
func (c *Created) refused(outcome string, r *space.Reader) error {
	switch outcome {
	case "moved":
		c.Moved = true
		if cursor := r.Text(); cursor != "" {
			r = space.Read(space.Reply{cursor}, nil)
			c.Cursor = r.Time()
		}
	case "early":
		c.Early = true
	case "inactive":
		c.Inactive = true
	case "grace":
		c.Grace = space.Millis(r.Number())
	default:
		return r.Unknown(outcome)
	}
	return r.Err
}

func (l *Ledger) decisionArgs(d *Decision) ([]any, error) {
	definition, hash, untrusted := l.encoded(&Encoded{Job: d.Job})
	if untrusted != nil && !errors.Is(untrusted, jobs.ErrSignature) {
		return nil, fmt.Errorf("create ticks of %s: %w", d.Job.Name, untrusted)
	}
	arguments, err := compact(d.Job.Args)
	if err != nil {
		return nil, fmt.Errorf("create ticks of %s: args: %w", d.Job.Name, err)
	}
	// The script adds the lock of each run, which is the only one that differs from tick to tick.
	first := jobs.TickRunID(d.Job.Name, d.Cursor)
	items, err := d.Job.Resources(first, arguments)
	items = slices.DeleteFunc(items, func(item locks.Item) bool { return item.Name == jobs.RunResource(first) })
	if unknown := d.Job.CheckKeys(); unknown != nil {
		err = unknown
	}
	ticks := d.Ticks
	err = errors.Join(untrusted, err)
	if err != nil { // a permanent error: the arguments of a tick are the definition's
		ticks = make([]Tick, len(d.Ticks))
		for i, tick := range d.Ticks {
			ticks[i] = tick
			if tick.Verdict != VerdictMissed {
				ticks[i].Verdict, ticks[i].Reason = VerdictBroken, plain(err.Error())
			}
		}
		items = nil
	}
	alone := ""
	if d.Job.Overlap == jobs.OverlapAllow && d.Job.Concurrency == 0 {
		alone = aloneItem(d.Job).String() // runs that catch up come one after the other
	}
	patience, onBusy, limits := waitOf(d.Job)
	seen := strconv.FormatInt(d.Seen.UnixMilli(), 10)
	if d.again {
		seen = "again"
	}
	args := []any{d.Job.Name, seen, d.Cursor.UnixMilli(), string(d.By), d.Job.Queue, string(d.Job.Overlap),
		min(d.Job.MaxQueued, jobs.QueuedMost), d.Job.History.Runs, d.Job.History.For.Milliseconds(), markedArgs(arguments, d.Job), named(string(definition)),
		positive(d.Job.StartDeadline), patience, onBusy, limits, d.Job.Paused, alone, hash, len(items), l.replaceAfter(d)}
	for _, item := range items {
		args = append(args, item.String())
	}
	for _, tick := range ticks {
		id, upto := tick.line(d.Job.Name)
		at := tick.At.Add(tick.After).UnixMilli()
		if upto != "" {
			at = int64(tick.count())
		}
		args = append(args, string(id), tick.At.UnixMilli(), string(tick.Verdict), plain(tick.Reason), upto, at)
	}
	return args, nil
}

// aloneItem is the lock of a job, for runs that must not overlap although the job's may.
func aloneItem(job *jobs.Job) locks.Item {
	return locks.Item{Name: jobs.JobResource(job.Name), Mode: locks.ModeExclusive}
}

// waitOf returns, in the form for the scripts, how long a run of a job waits for its bundle, what
// happens to it then, and the limits of its holds: max, min, crash delay in ms.
func waitOf(job *jobs.Job) (patience, onBusy, limits string) {
	if l := job.Lock; l.MaxHold > 0 || l.MinHold > 0 || l.CrashDelay > 0 {
		limits = fmt.Sprintf("%d,%d,%d", l.MaxHold.Milliseconds(), l.MinHold.Milliseconds(), l.CrashDelay.Milliseconds())
	}
	if job.Lock.Wait <= 0 {
		return "", "", limits
	}
	return strconv.FormatInt(job.Lock.Wait.Milliseconds(), 10), string(job.Lock.OnBusy), limits
}

// positive writes a duration in ms; "" for none.
func positive(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// compact writes JSON without white space, so that no control byte of it can be mistaken for a
// separator. Missing arguments are an empty object.
func compact(text json.RawMessage) (json.RawMessage, error) {
	if len(text) == 0 {
		return json.RawMessage("{}"), nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// storedArgs returns the args of a request as its record stores them. A leading blank marks args
// that are the definition's and have ${...}: only that definition can replace them, see
// [Ledger.Reopen].
func storedArgs(arguments json.RawMessage, job *jobs.Job) string {
	if jobs.HasPlaceholders(arguments) && jobs.SameArgs(arguments, job.Args) {
		return " " + markedArgs(arguments, job)
	}
	return markedArgs(arguments, job)
}

// markedArgs returns args as a body stores them: a blank at the end marks those of a job with
// targets, so that the end of any other run need not read its definition. JSON may have blanks
// there, so builds from before that read the same args.
func markedArgs(arguments json.RawMessage, job *jobs.Job) string {
	if len(job.Notify) > 0 {
		return string(arguments) + " "
	}
	return string(arguments)
}

// plain makes a text fit for a record: it replaces control bytes, which separate fields, with
// spaces.
func plain(text string) string {
	return string(bytes.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, []byte(text)))
}
