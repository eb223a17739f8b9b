package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// ErrLate is returned when lost state cannot be re-asserted any more: the grace period is over, or
// there was none.
var ErrLate = errors.New("the grace period of the ledger is over")

// How many ends are asserted before the session is renewed. The last ones are those that Redis has
// probably lost, and every worker of a fleet asserts as many in one grace period.
const (
	urgentOwn   = 300
	urgentHeard = 1000
)

// Assert re-asserts what Redis may have lost, in the grace period after the loss: the cursors of
// these definitions, which are registered anew, this worker's running attempts, the last ends of
// its runs and of those it has heard of, and which runs of ticks are outstanding. Older ends are
// left to [Ledger.AssertMore]. session is the caller's, which has already re-asserted its holds.
// Only facts seen since [Ledger.Remember] are known. loss is the ID and the epoch of the space, as
// for [locks.ExtensionOptions].Recover: called again for the same one, Assert continues where an
// error has stopped it. [ErrLate] means that it is too late.
func (l *Ledger) Assert(ctx context.Context, session locks.SessionID, loss, digest string, definitions []*jobs.Job) error {
	if l.memory == nil {
		return nil
	}
	known := l.memory.recollect(session, loss, definitions)
	// Before the cursors, which say that ticks are decided: others may not know their runs. Ends
	// come after the cursors: another worker, to which the job is new, may have registered it, and
	// a success would make the cursor count that this gave it.
	if err := l.sayAgain(ctx, loss, known.recent); err != nil {
		return err
	}
	if err := l.say(ctx, loss, known.attempts); err != nil {
		return err
	}
	for i := 0; i < len(definitions) || i == 0; i += RegisterBatch {
		batch := fact{name: fmt.Sprintf("definitions %s from %d", digest, i)}
		if l.memory.hasSaid(batch) {
			continue
		}
		if _, err := l.Register(ctx, digest, definitions[i:min(i+RegisterBatch, len(definitions))]); err != nil {
			return err
		}
		l.memory.said(loss, []fact{batch})
	}
	if err := l.say(ctx, loss, known.urgent); err != nil {
		return err
	}
	if err := l.sayAgain(ctx, loss, known.again); err != nil {
		return err
	}
	// An attempt that was asserted as running may have ended since, and its finish may have come
	// before that assertion: then the finish did not count. A reply from before the loss may have
	// come, too.
	since := l.memory.recollect(session, loss, definitions)
	if err := l.say(ctx, loss, slices.Concat(since.attempts, since.urgent)); err != nil {
		return err
	}
	if err := l.sayAgain(ctx, loss, slices.Concat(since.recent, since.again)); err != nil {
		return err
	}
	l.memory.do(func() {
		l.memory.news = "" // the numbers of the news may start again
		if l.memory.loss == loss {
			l.memory.leave(since.older)
		}
	})
	return nil
}

// sayAgain re-asserts outstanding runs of ticks.
func (l *Ledger) sayAgain(ctx context.Context, loss string, again []Decision) (err error) {
	for i, created := range l.Create(ctx, again) {
		if created.Err != nil {
			err = created.Err
			continue
		}
		var facts []fact
		for _, tick := range again[i].Ticks {
			facts = append(facts, outstanding(jobs.TickRunID(again[i].Job.Name, tick.At)))
		}
		l.memory.said(loss, facts)
	}
	return err
}

// AssertMore re-asserts some of the ends that [Ledger.Assert] has left, the last ones first, and
// returns true when more remain. Nothing waits for it, since few of them matter: after a failover,
// Redis still knows them, and without its data it has lost the requests, too, that could run again.
// [ErrLate] means that the grace period has ended first; then nothing remains.
func (l *Ledger) AssertMore(ctx context.Context) (more bool, err error) {
	var older []fact
	var loss string
	l.memory.do(func() { older, loss = l.memory.older, l.memory.loss })
	if len(older) == 0 {
		return false, nil
	}
	some := older[:min(len(older), urgentHeard)]
	err = l.say(ctx, loss, some)
	if err != nil && !errors.Is(err, ErrLate) {
		return true, err
	}
	l.memory.do(func() {
		switch still := len(l.memory.older) > 0 && &l.memory.older[0] == &older[0]; {
		case !still: // there was another loss
			err = nil
		case err != nil:
			l.memory.older = nil
		default:
			l.memory.leave(older[len(some):])
		}
		more = len(l.memory.older) > 0
	})
	if err != nil {
		return more, fmt.Errorf("%w: %d older ends of runs are not re-asserted", err, len(older))
	}
	return more, nil
}

// say re-asserts facts: those of one job together, since time is short, and a call costs Redis more
// than a fact. Ends that Redis has kept are only looked up.
func (l *Ledger) say(ctx context.Context, loss string, facts []fact) error {
	facts, err := l.lacking(ctx, loss, facts)
	if err != nil {
		return err
	}
	for len(facts) > 0 {
		some := together(facts)
		facts = facts[len(some):]
		at := make(map[string]int) // a job's step
		var steps, ends []step
		for _, fact := range some {
			i, there := at[fact.job]
			if !there {
				i = len(steps)
				at[fact.job], steps = i, append(steps, step{fact.job, slices.Clone(fact.history)})
			}
			steps[i].args = append(steps[i].args, fact.args...)
			if fact.finish != nil {
				end, err := fact.finish.step()
				if err != nil {
					return err
				}
				ends = append(ends, end)
			}
		}
		said, ended := l.sayAtOnce(ctx, steps, ends)
		for i, call := range said {
			r := call.Read()
			if r.Text() == "late" {
				return ErrLate
			}
			if r.Err != nil {
				return fmt.Errorf("re-assert what is known of %s: %w", steps[i].job, r.Err)
			}
		}
		for i, call := range ended {
			if call.Err != nil {
				return fmt.Errorf("re-assert an end of a run of %s: %w", ends[i].job, call.Err)
			}
		}
		l.memory.said(loss, some)
	}
	return nil
}

// lacksMost is how many ends one call looks up.
const lacksMost = 100

// lacking returns those of some facts that Redis has lost. Only ends are looked up. They are
// returned in reverse, the last ones last: a history keeps those that were written last.
func (l *Ledger) lacking(ctx context.Context, loss string, facts []fact) ([]fact, error) {
	var steps []step
	var asked [][]fact
	open := make(map[string]int) // a job's last step
	lost, kept := []fact(nil), []fact(nil)
	for _, fact := range slices.Backward(facts) {
		if !fact.end {
			lost = append(lost, fact)
			continue
		}
		i, there := open[fact.job]
		if !there || len(asked[i]) == lacksMost {
			i = len(steps)
			open[fact.job], steps, asked = i, append(steps, step{fact.job, []any{fact.history[0]}}), append(asked, nil)
		}
		steps[i].args = append(steps[i].args, fact.args[1], fact.token, fact.age.Milliseconds())
		asked[i] = append(asked[i], fact)
	}
	for i, call := range l.runAll(ctx, "lacks", steps) {
		r := call.Read()
		lacks := make(map[int64]bool)
		for r.More() {
			lacks[r.Number()] = true
		}
		if r.Err != nil {
			return nil, fmt.Errorf("look up the ends of runs of %s: %w", steps[i].job, r.Err)
		}
		for k, fact := range asked[i] {
			if lacks[int64(k)] {
				lost = append(lost, fact)
			} else {
				kept = append(kept, fact)
			}
		}
	}
	l.memory.said(loss, kept)
	return lost, nil
}

// sayAtOnce sends assertions and then the ends of the attempts among them, as they were sent
// before, all of them or none: if the end of an attempt were missing, because its worker ended at
// this moment, the attempt would be taken for one that crashed, and a run that had succeeded would
// run again.
func (l *Ledger) sayAtOnce(ctx context.Context, steps, ends []step) (said, ended []*space.Call) {
	said, ended = l.calls("assert", steps), l.calls("finish", ends)
	space.SendWhole(ctx, l.rdb, slices.Concat(said, ended))
	return said, ended
}

// One transaction keeps Redis busy by the number of its facts, by their size, and by the calls of
// scripts that they take: one for each job, and one for each end of an attempt.
const (
	assertMost  = 100
	assertBytes = 256 << 10
	assertCalls = 25
)

// together returns the first of some facts, to be re-asserted in one transaction.
func together(facts []fact) []fact {
	size, calls, seen := 0, 0, make(map[string]bool)
	for i, fact := range facts {
		if !seen[fact.job] {
			calls, seen[fact.job] = calls+1, true
		}
		for _, arg := range fact.args {
			if text, is := arg.(string); is {
				size += len(text)
			}
		}
		if fact.finish != nil {
			calls, size = calls+1, size+len(fact.finish.Output)
		}
		if i > 0 && (size > assertBytes || calls > assertCalls) || i == assertMost {
			return facts[:i]
		}
	}
	return facts
}

// fact is one fact to re-assert: the arguments of assert.lua, and for an ended attempt its finish.
type fact struct {
	name    string // unique among facts
	job     string
	history []any // the bounds of its history, or "" for each
	args    []any // four
	finish  *Finish

	open  bool   // an attempt at a run that is outstanding
	end   bool   // of a run or an attempt; the fields below are set only then
	token string // of this worker's attempt, or ""
	age   time.Duration
}

// recollection is the facts that remain to be re-asserted.
type recollection struct {
	attempts []fact // at runs that are outstanding
	urgent   []fact
	older    []fact     // ends, the last ones first
	again    []Decision // ticks that were outstanding, of which no more is known
	recent   []Decision // those of them that this worker has decided recently
}

// split puts ends where they belong, the last ones first.
func (r *recollection) split(ends []fact, urgent int) {
	slices.SortFunc(ends, func(a, b fact) int { return cmp.Compare(a.age, b.age) })
	urgent = min(len(ends), urgent)
	for _, end := range ends[:urgent] {
		if end.open {
			r.attempts = append(r.attempts, end)
		} else {
			r.urgent = append(r.urgent, end)
		}
	}
	r.older = append(r.older, ends[urgent:]...)
}

// leave notes which ends remain to be re-asserted after the last loss.
func (m *memory) leave(older []fact) {
	m.older = older
	if len(older) == 0 {
		m.asserted = m.loss
	}
}

// outstanding is the fact that a run of a tick is outstanding.
func outstanding(run jobs.RunID) fact { return fact{name: "due " + string(run)} }

// said notes that facts need not be re-asserted again after a loss. If there was another one in the
// meantime, Redis may have lost them again.
func (m *memory) said(loss string, facts []fact) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loss != loss {
		return
	}
	for _, fact := range facts {
		m.told[fact.name] = true
	}
}

func (m *memory) hasSaid(f fact) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told[f.name]
}

// recollect returns the facts that were not yet re-asserted after a loss.
func (m *memory) recollect(session locks.SessionID, loss string, definitions []*jobs.Job) recollection {
	carried := make(map[string]*jobs.Job, len(definitions))
	for _, job := range definitions {
		carried[job.Name] = job
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loss != loss {
		m.loss, m.told, m.older = loss, make(map[string]bool), nil
	}
	now := m.now()
	var known recollection
	add := func(list *[]fact, f fact) {
		f.history = []any{"", ""}
		if c := carried[f.job]; c != nil {
			f.history = []any{c.History.Runs, c.History.For.Milliseconds()}
		}
		*list = append(*list, f)
	}
	for name, cursor := range m.cursors {
		if carried[name] == nil { // else it was asserted by registering the job
			add(&known.urgent, fact{name: "cursor " + name, job: name, args: []any{"cursor", name, fmt.Sprint(cursor.UnixMilli()), retiredAfter.Milliseconds()}})
		}
	}
	var ends, heard []fact
	own := make(map[jobs.RunID]bool)
	for run, t := range m.own {
		_, ended := m.ended[run]
		switch {
		case t.finish == nil && t.session != session:
			continue // that attempt is over, and the sweep counts it
		case ended && (t.finish == nil || !t.finish.Outcome.ends()):
			continue // other workers know more
		}
		own[run] = true
		f, _ := runLayout.Parse(t.record)
		f.Session = string(session) // the session that is now responsible for it
		said := fact{
			name: fmt.Sprintf("%s %s %t", run, t.token, t.finish != nil), job: run.Job(), finish: t.finish,
			args: []any{"ran", string(run), runLayout.Text(&f), t.args + "\x1f" + named(t.definition)},
			open: t.finish == nil || !t.finish.Outcome.ends(),
		}
		if t.finish == nil {
			add(&known.attempts, said)
			continue
		}
		said.end, said.token, said.age = true, t.token.String(), now.Sub(t.at)
		add(&ends, said)
	}
	for run, e := range m.ended {
		add(&heard, fact{
			name: "ended " + string(run), job: run.Job(), args: []any{"ended", string(run), string(e.state), tickOf(run)},
			end: true, age: now.Sub(e.at),
		})
	}
	known.split(ends, urgentOwn)
	known.split(heard, urgentHeard)
	slices.SortStableFunc(known.older, func(a, b fact) int { return cmp.Compare(a.age, b.age) })
	told := func(f fact) bool { return m.told[f.name] }
	for _, facts := range []*[]fact{&known.attempts, &known.urgent, &known.older} {
		*facts = slices.DeleteFunc(*facts, told)
	}
	open := m.open
	if m.mirror != nil { // including what the reading has found so far
		open = maps.Clone(open)
		maps.Copy(open, m.mirror.open)
	}
	remains := func(run jobs.RunID) bool {
		return open[run] && !own[run] && carried[run.Job()] != nil && !told(outstanding(run))
	}
	recent := make(map[jobs.RunID]bool)
	for _, r := range m.recent {
		if remains(r.run) {
			recent[r.run] = true
		}
	}
	again := make(map[jobs.RunID]bool)
	for run := range open {
		if remains(run) && !recent[run] {
			again[run] = true
		}
	}
	known.recent, known.again = decideAgain(session, carried, recent), decideAgain(session, carried, again)
	return known
}

// decideAgain returns decisions that make these runs of ticks due again.
func decideAgain(session locks.SessionID, carried map[string]*jobs.Job, runs map[jobs.RunID]bool) (again []Decision) {
	ticks := make(map[*jobs.Job][]Tick)
	for run := range runs {
		if tick, ok := run.Tick(); ok {
			job := carried[run.Job()]
			ticks[job] = append(ticks[job], Tick{At: tick, Verdict: VerdictCatchUp})
		}
	}
	for job, list := range ticks {
		slices.SortFunc(list, func(a, b Tick) int { return a.At.Compare(b.At) })
		for some := range slices.Chunk(list, MaxTicks) {
			again = append(again, Decision{Job: job, Ticks: some, By: session, again: true})
		}
	}
	return again
}

// tickOf returns the tick in a run's id, in the form for the scripts.
func tickOf(run jobs.RunID) string {
	if tick, ok := run.Tick(); ok {
		return fmt.Sprint(tick.UnixMilli())
	}
	return ""
}

// lostLimit bounds the time for writing the lines for what was lost. Tests have a longer one.
var lostLimit = 5 * time.Second

// writeLost writes a line for each of these jobs, up to a cursor each: earlier ticks are no longer
// known. It does so even if ctx has ended, because the lines could not be written later.
func (l *Ledger) writeLost(ctx context.Context, lost map[*jobs.Job]time.Time) error {
	if len(lost) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lostLimit)
	defer cancel()
	var steps []step
	for job, upto := range lost {
		id := job.Name + "@.." + upto.UTC().Format(time.RFC3339)
		steps = append(steps, step{job.Name, []any{job.Name, id, upto.Add(-job.History.For).UnixMilli(), upto.UnixMilli(),
			string(StateLost), "Redis was emptied: what no live worker knew of these ticks is lost", "", "", 1}})
	}
	var errs []error
	for i, call := range l.runAll(ctx, "line", steps) {
		if call.Err != nil {
			errs = append(errs, fmt.Errorf("note what was lost of %s: %w", steps[i].job, call.Err))
		}
	}
	return errors.Join(errs...)
}
