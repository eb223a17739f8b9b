package ledger

import (
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

// Assert re-asserts what Redis may have lost, in the grace period after the loss: the cursors of
// these definitions, which are registered anew, the outcomes of this worker's runs, the ends it has
// heard of, and which runs of ticks are outstanding. session is the caller's, which has already
// re-asserted its holds. Only facts seen since [Ledger.Remember] are known. loss identifies the
// loss: called again for the same one, Assert continues where an error has stopped it. [ErrLate]
// means that it is too late.
func (l *Ledger) Assert(ctx context.Context, session locks.SessionID, loss, digest string, definitions []*jobs.Job) error {
	if l.memory == nil {
		return nil
	}
	known := l.memory.recollect(session, loss, definitions)
	for i := 0; i < len(definitions) || i == 0; i += RegisterBatch {
		batch := fact{name: fmt.Sprintf("definitions %s from %d", digest, i)}
		if l.memory.hasSaid(batch) {
			continue
		}
		if _, err := l.Register(ctx, digest, definitions[i:min(i+RegisterBatch, len(definitions))]); err != nil {
			return err
		}
		l.memory.said([]fact{batch})
	}
	if err := l.say(ctx, known.facts); err != nil {
		return err
	}
	for _, created := range l.Create(ctx, known.again) {
		if created.Err != nil {
			return created.Err
		}
	}
	// An attempt that was asserted as running may have ended since, and its finish may have come
	// before that assertion: then the finish did not count.
	if err := l.say(ctx, l.memory.recollect(session, loss, definitions).facts); err != nil {
		return err
	}
	l.memory.mu.Lock()
	defer l.memory.mu.Unlock()
	l.memory.news = "" // the numbers of the news may start again
	return nil
}

// say re-asserts facts: those of one job together, since time is short, and a call costs Redis more
// than a fact.
func (l *Ledger) say(ctx context.Context, facts []fact) error {
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
		l.memory.said(some)
	}
	return nil
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
}

// recollection is the facts that remain to be re-asserted.
type recollection struct {
	facts []fact
	again []Decision // ticks that were outstanding, of which no more is known
}

// said notes that facts need not be re-asserted again after this loss.
func (m *memory) said(facts []fact) {
	m.mu.Lock()
	defer m.mu.Unlock()
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
		m.loss, m.told = loss, make(map[string]bool)
	}
	var known recollection
	add := func(job, name string, finish *Finish, args ...any) {
		if m.told[name] {
			return
		}
		history := []any{"", ""}
		if c := carried[job]; c != nil {
			history = []any{c.History.Runs, c.History.For.Milliseconds()}
		}
		known.facts = append(known.facts, fact{name, job, history, args, finish})
	}
	for name, cursor := range m.cursors {
		if carried[name] == nil { // else it was asserted by registering the job
			add(name, "cursor "+name, nil, "cursor", name, fmt.Sprint(cursor.UnixMilli()), retiredAfter.Milliseconds())
		}
	}
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
		name := fmt.Sprintf("%s %s %t", run, t.token, t.finish != nil)
		add(run.Job(), name, t.finish, "ran", string(run), runLayout.Text(&f), t.args+"\x1f"+named(t.definition))
	}
	for run, e := range m.ended {
		add(run.Job(), "ended "+string(run), nil, "ended", string(run), string(e.state), tickOf(run))
	}
	ticks := make(map[*jobs.Job][]Tick)
	open := m.open
	if m.mirror != nil { // including what the reading has found so far
		open = maps.Clone(open)
		maps.Copy(open, m.mirror.open)
	}
	for run := range open {
		tick, ok := run.Tick()
		if job := carried[run.Job()]; ok && job != nil && !own[run] {
			ticks[job] = append(ticks[job], Tick{At: tick, Verdict: VerdictCatchUp})
		}
	}
	for job, list := range ticks {
		slices.SortFunc(list, func(a, b Tick) int { return a.At.Compare(b.At) })
		for some := range slices.Chunk(list, MaxTicks) {
			known.again = append(known.again, Decision{Job: job, Ticks: some, By: session, again: true})
		}
	}
	return known
}

// tickOf returns the tick in a run's id, in the form for the scripts.
func tickOf(run jobs.RunID) string {
	if tick, ok := run.Tick(); ok {
		return fmt.Sprint(tick.UnixMilli())
	}
	return ""
}

// lostLimit bounds the time for writing the lines for what was lost.
const lostLimit = 5 * time.Second

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
