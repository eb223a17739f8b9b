package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// How long, and at most how many, ends of this worker's own attempts are remembered.
const (
	rememberFor  = 10 * time.Minute
	rememberMost = 10_000
)

// Ticks that this worker has decided recently: no other worker may have polled since.
const (
	recentFor  = 5 * time.Second
	recentMost = 1000
)

// memory is a worker's knowledge of the ledger, to re-assert it should Redis lose it. A nil memory
// keeps nothing.
type memory struct {
	now func() time.Time // monotonic

	mu   sync.Mutex // guards the fields below
	news string     // read up to here; "" when the position is unknown
	// the present reading of the outstanding runs; nil once all of them have been read
	mirror  *mirror
	cursors map[string]time.Time // the highest that was seen, by job
	// the orders of the definitions that this process carries or has begun to register
	orders map[definitionOf]int64
	open   map[jobs.RunID]bool  // outstanding runs of ticks, as far as was heard
	recent []recentRun          // those that this worker has made last, the latest one last
	ended  map[jobs.RunID]end   // how runs ended, as was heard; kept as long as own has the run
	own    map[jobs.RunID]*turn // the last attempt of this worker at a run
	order  []jobs.RunID         // of own, in the order in which their attempts ended

	loss     string          // the last one
	told     map[string]bool // the facts that were re-asserted after it, by name
	older    []fact          // what Assert has left to AssertMore
	asserted string          // the last loss after which everything was re-asserted
}

// mirror is one reading of the outstanding runs of ticks, page by page, while the news are also
// read.
type mirror struct {
	after string              // the page begins after this place in the index
	all   bool                // the index has been read
	open  map[jobs.RunID]bool // outstanding, by the pages and the news since the reading began
	// once all is true: own attempts that must still be looked up, because their runs may have
	// ended unheard
	check []jobs.RunID
}

// definitionOf is one definition of a job.
type definitionOf struct{ job, hash string }

// recentRun is a run of a tick, and when this worker made it.
type recentRun struct {
	run jobs.RunID
	at  time.Time
}

// end is how a run ended, and when that was heard.
type end struct {
	state State
	at    time.Time
}

// turn is one attempt of this worker.
type turn struct {
	record     string
	args       string
	definition string // shared with other attempts, if Redis stores it by its name
	token      locks.Token
	session    locks.SessionID
	finish     *Finish // once it is being sent
	at         time.Time
}

// Remember makes the ledger keep what its caller sees of it, so that [Ledger.Assert] can re-assert
// it: for a worker, before its first call.
func (l *Ledger) Remember() {
	l.memory = &memory{
		now: time.Now, cursors: make(map[string]time.Time), orders: make(map[definitionOf]int64), open: make(map[jobs.RunID]bool), ended: make(map[jobs.RunID]end),
		own: make(map[jobs.RunID]*turn), told: make(map[string]bool),
	}
}

// do calls a function under the lock, unless nothing is kept.
func (m *memory) do(f func()) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// saw keeps a cursor.
func (m *memory) saw(job string, cursor time.Time) {
	m.do(func() {
		if cursor.After(m.cursors[job]) {
			m.cursors[job] = cursor
		}
	})
}

// cursor returns the highest cursor of a job that was seen, in the form for the scripts; "" for
// none.
func (m *memory) cursor(job string) (text string) {
	m.do(func() {
		if seen, ok := m.cursors[job]; ok {
			text = fmt.Sprint(seen.UnixMilli())
		}
	})
	return text
}

// registered keeps the order of a definition among those of its job: see [Ledger.Register].
func (m *memory) registered(job, hash string, order int64) {
	m.do(func() { m.orders[definitionOf{job, hash}] = order })
}

// orderOf returns the order of a definition, in the form for the scripts; "" if this process has
// not registered it, or has carried others since.
func (m *memory) orderOf(job, hash string) (text string) {
	m.do(func() {
		if order, ok := m.orders[definitionOf{job, hash}]; ok {
			text = strconv.FormatInt(order, 10)
		}
	})
	return text
}

// Carries notes that this process carries these definitions now and no others, whether it has
// replaced those or abandoned their registration. If it carries one of the others again later, it
// registers it as a new one.
func (l *Ledger) Carries(definitions []*Encoded) {
	m := l.memory
	m.do(func() {
		orders := make(map[definitionOf]int64, len(definitions))
		for _, e := range definitions {
			if order, ok := m.orders[definitionOf{e.Job.Name, e.Hash}]; ok {
				orders[definitionOf{e.Job.Name, e.Hash}] = order
			}
		}
		m.orders = orders
	})
}

// created keeps the cursor and the outcomes of ticks that were decided here, which a poll reports
// only later. ended are the ticks that did not become runs.
func (m *memory) created(d *Decision, ended map[jobs.RunID]State) {
	if d.again {
		return
	}
	m.saw(d.Job.Name, d.Cursor)
	m.do(func() {
		now := m.now()
		for _, tick := range d.Ticks {
			if run := jobs.TickRunID(d.Job.Name, tick.At); tick.Upto.IsZero() {
				m.hear(run, ended[run])
				m.recent = append(m.recent, recentRun{run, now})
			}
		}
		old := now.Add(-recentFor)
		m.recent = slices.DeleteFunc(m.recent, func(r recentRun) bool { return r.at.Before(old) })
		m.recent = m.recent[max(0, len(m.recent)-recentMost):]
	})
}

// removed forgets the cursor of a job that a person has removed.
func (m *memory) removed(job string) {
	m.do(func() { delete(m.cursors, job) })
}

// claimed keeps an attempt that begins.
func (m *memory) claimed(c *Claimed, record, args, definition string) {
	if tick := c.Record.Tick; !tick.IsZero() {
		m.saw(c.Record.Job, tick)
	}
	last := c.Record.Last()
	m.do(func() {
		m.own[c.Record.ID] = &turn{record: record, args: args, definition: definition, token: last.Token, session: last.Worker, at: m.now()}
	})
}

// finishing keeps how an attempt ended, before the finish is sent: if the reply does not arrive
// because Redis has lost the run, it is an end all the same.
func (m *memory) finishing(finish Finish) {
	m.do(func() {
		t := m.own[finish.Run]
		if t == nil || t.token != finish.Token {
			return
		}
		finish.Output = "" // too long to keep
		if t.finish == nil {
			m.order = append(m.order, finish.Run)
		}
		t.finish, t.at = &finish, m.now()
		for ; len(m.order) > rememberMost; m.order = m.order[1:] {
			if old := m.own[m.order[0]]; old != nil && old.finish != nil && old.finish.Outcome.ends() {
				delete(m.own, m.order[0])
			}
		}
	})
}

// finished forgets an attempt that did not count, and one if its run has ended in another way: it
// was canceled, or had crashed too often. finished is nil while there is no reply. If Redis knows
// of no attempt as late as this one, it has lost data, perhaps still undetected: then this is an
// end all the same. If the attempt was closed before and none has begun since, perhaps only this
// worker knows of the run.
func (m *memory) finished(finish Finish, finished *Finished) {
	if finished == nil {
		return
	}
	otherwise := finished.State.Final() && string(finished.State) != string(finish.Outcome)
	if finished.Verdict == FinishRecorded && !otherwise || finished.Verdict != FinishRecorded && finished.token < finish.Token {
		return
	}
	m.do(func() {
		switch t := m.own[finish.Run]; {
		case t == nil || t.token != finish.Token:
		case finished.Verdict == FinishCounted && finished.State != StateRunning:
			m.pass(t, finish)
		default: // without an announcement, a sweep may still end the run of a running attempt
			delete(m.own, finish.Run)
		}
		if finished.State.Final() {
			m.hear(finish.Run, finished.State)
		}
	})
}

// pass keeps an attempt at a run that is outstanding and waits for the next one, like an attempt
// that was handed back. The end of the run will be announced.
func (m *memory) pass(t *turn, finish Finish) {
	if t.finish == nil {
		m.order = append(m.order, finish.Run)
	}
	finish.Output = ""
	if finish.Outcome.ends() {
		finish.Outcome, finish.Pause = OutcomeHandBack, 0
	}
	t.finish, t.at = &finish, m.now()
}

// lost keeps an attempt that has lost its lease if that has handed its run back, and forgets it
// otherwise. closed is nil if the run has moved on.
func (m *memory) lost(dead Dead, job *jobs.Job, closed *Closed) {
	m.do(func() {
		t := m.own[dead.Run]
		switch {
		case t == nil || t.token != dead.Token:
		case closed == nil || closed.State.Final():
			delete(m.own, dead.Run)
		default:
			f, _ := runLayout.Parse(t.record)
			m.pass(t, Finish{Run: dead.Run, Job: job, Token: dead.Token, Hold: locks.HoldID(f.Holder), Outcome: OutcomeHandBack})
		}
	})
}

// refused forgets an attempt of a run that was ended because it cannot be processed.
func (m *memory) refused(run jobs.RunID) {
	m.do(func() {
		delete(m.own, run)
		m.hear(run, StateFailed)
	})
}

// hear applies one entry of the news. A run without a final state is outstanding.
func (m *memory) hear(run jobs.RunID, state State) {
	if state == "" {
		m.open[run] = true
		if m.mirror != nil {
			m.mirror.open[run] = true
		}
		delete(m.ended, run)
		return
	}
	delete(m.open, run)
	if m.mirror != nil {
		delete(m.mirror.open, run)
	}
	m.ended[run] = end{state, m.now()}
}

// forget drops entries that are too old to be useful: attempts at runs that have ended or moved on,
// and ends. An end is never dropped before an attempt at its run. Without it, the run of an attempt
// that failed or was handed back would seem outstanding, and would run again after a loss.
func (m *memory) forget() {
	old := m.now().Add(-rememberFor)
	maps.DeleteFunc(m.own, func(run jobs.RunID, t *turn) bool {
		if t.finish == nil || !t.at.Before(old) {
			return false
		}
		_, ended := m.ended[run]
		return t.finish.Outcome.ends() || ended
	})
	maps.DeleteFunc(m.ended, func(run jobs.RunID, e end) bool { return e.at.Before(old) && m.own[run] == nil })
}

// position returns how far the news were read, and the last loss after which everything was
// re-asserted, for the next poll. If the former is unknown, the news are read from now on, and
// [Ledger.Mirror] finds what became outstanding before. After a loss in this moment it stays
// unknown: "".
func (l *Ledger) position(ctx context.Context) (news, asserted string, err error) {
	m := l.memory
	if m == nil {
		return "", "", nil
	}
	var loss string
	m.do(func() { news, asserted, loss = m.news, m.asserted, m.loss })
	if news != "" {
		return news, asserted, nil
	}
	last, err := l.rdb.XRevRangeN(ctx, l.prefix+"news", "+", "-", 1).Result()
	if err != nil {
		return "", "", err
	}
	news = "0-0"
	if len(last) > 0 {
		news = last[0].ID
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loss != loss { // this may be a position in lost news: the next poll reads it
		return "", m.asserted, nil
	}
	if m.mirror != nil { // Redis may lose what that reading has found before the next one finds it
		maps.Copy(m.open, m.mirror.open)
	}
	m.news, m.mirror = news, &mirror{open: make(map[jobs.RunID]bool)}
	return news, m.asserted, nil
}

// heard applies the news of a poll, which were read from one position to another one, or to "" when
// some are missing. If the position has changed during the poll, that may have read lost news.
func (m *memory) heard(from, to string, news []string) {
	m.do(func() {
		if m.news == from {
			m.news = to
		}
		for i := 0; i+1 < len(news); i += 2 {
			m.hear(jobs.RunID(news[i]), State(news[i+1]))
		}
		m.forget()
	})
}

// mirrorPage is how many runs [Ledger.Mirror] reads at most.
const mirrorPage = 1000

// Mirror reads one page of the outstanding runs of ticks, which a worker remembers in addition to
// the news: see [Ledger.Remember]. It returns true when more remain to be read. Polls do not wait
// for it, and it may be called during polls: however many runs are outstanding, a poll costs the
// same. It reads nothing while nothing is missing, and while Redis may lack what this process has
// yet to re-assert.
func (l *Ledger) Mirror(ctx context.Context) (more bool, err error) {
	m := l.memory
	if m == nil {
		return false, nil
	}
	m.mu.Lock()
	reading, news, asserted, asked := m.mirror, m.news, m.asserted, m.now()
	m.mu.Unlock()
	if reading == nil || news == "" { // the next poll begins a reading
		return false, nil
	}
	args := []any{news, asserted, reading.after, mirrorPage}
	if reading.all {
		for _, run := range reading.check[:min(len(reading.check), mirrorPage)] {
			args = append(args, string(run))
		}
	}
	r := space.Read(l.run(ctx, "mirror", "", args...))
	after := r.Text()
	if r.Err == nil && after == "lags" {
		return false, nil
	}
	var runs []jobs.RunID
	for r.More() {
		runs = append(runs, jobs.RunID(r.Text()))
	}
	if r.Err != nil {
		return true, fmt.Errorf("read which runs are outstanding: %w", r.Err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mirror != reading {
		return m.mirror != nil, nil
	}
	if reading.all {
		m.checked(reading, len(args)-4, runs, asked)
	} else {
		m.read(reading, after, runs, asked)
	}
	if reading.all && len(reading.check) == 0 {
		m.open, m.mirror = reading.open, nil
	}
	return m.mirror != nil, nil
}

// read adds a page of the index to a reading: the outstanding runs before the place after.
func (m *memory) read(reading *mirror, after string, runs []jobs.RunID, asked time.Time) {
	for _, run := range runs {
		if _, ok := run.Tick(); !ok {
			continue
		}
		if e, ended := m.ended[run]; ended && !e.at.Before(asked) {
			continue // heard during the read of the page
		}
		reading.open[run] = true
	}
	if reading.after = after; after != "" {
		return
	}
	reading.all = true
	for run, t := range m.own {
		if t.finish != nil && !t.finish.Outcome.ends() {
			reading.check = append(reading.check, run)
		}
	}
}

// checked notes that the first n of the own attempts to check were looked up. It forgets those
// whose runs others have ended.
func (m *memory) checked(reading *mirror, n int, ended []jobs.RunID, asked time.Time) {
	for _, run := range ended {
		if t := m.own[run]; t != nil && t.finish != nil && !t.finish.Outcome.ends() && t.at.Before(asked) {
			delete(m.own, run)
		}
	}
	reading.check = reading.check[n:]
}
