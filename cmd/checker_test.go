package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/scheduler/ledger"
)

// The checker proves the promise from the ledger and the effect log of a fleet: every tick has one
// outcome, every run succeeds at most once, no attempt acts under a lock that another holds, and
// tokens and attempts grow. It computes the ticks again, in a simpler way than the program does.

// runJSON has the fields of a run that tests read.
type runJSON struct {
	ID       string
	Job      string
	Tick     *time.Time
	State    string
	Reason   *string
	Attempts []attemptJSON
	Crashes  int
	Created  time.Time `json:"created_at"`
	Finished time.Time `json:"finished_at"` // zero: not yet
}

// final reports whether the run is over.
func (r runJSON) final() bool {
	return ledger.State(r.State).Final()
}

type attemptJSON struct {
	Attempt  int
	Worker   string
	Token    string
	Outcome  *string
	Error    *string
	Started  time.Time `json:"started_at"`
	Finished time.Time `json:"finished_at"` // zero: not yet
}

// token returns the token as a number, or -1 if it is not one.
func (a attemptJSON) token() int64 {
	token, err := strconv.ParseInt(a.Token, 10, 64)
	if err != nil {
		return -1
	}
	return token
}

func (a attemptJSON) outcome() string { return textOf(a.Outcome) }

func textOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// tickJSON has the fields of a tick that tests read.
type tickJSON struct {
	Tick    time.Time
	Upto    time.Time // the last tick of a line that covers many; else zero
	Outcome string
	Reason  *string
	Run     string    `json:"run_id"`
	Decided time.Time `json:"decided_at"`
}

// effect is one line of the effect log.
type effect struct {
	end     bool
	run     string
	attempt int
	token   int64
	at      time.Duration // since the boot of this machine
	locks   []string      // held by its attempt
}

func (e effect) job() string {
	job, _, _ := strings.Cut(e.run, "@")
	job, _, _ = strings.Cut(job, "#")
	return job
}

func parseEffect(line string) (effect, error) {
	fields := strings.Fields(line)
	if len(fields) != 6 {
		return effect{}, errors.New("want six words")
	}
	attempt, err1 := strconv.Atoi(fields[2])
	token, err2 := strconv.ParseInt(fields[3], 10, 64)
	at, err3 := parseUptime(fields[4])
	e := effect{end: fields[0] == "end", run: fields[1], attempt: attempt, token: token, at: at}
	return e, errors.Join(err1, err2, err3, json.Unmarshal([]byte(fields[5]), &e.locks))
}

// history is the evidence that a fleet leaves behind.
type history struct {
	jobs    map[string]spec
	runs    []runJSON
	ticks   map[string][]tickJSON // by job
	effects []effect
	asked   []string // runs for which the request got a reply
	losses  []loss   // in order

	from, to time.Time     // the time during which the fleet was up
	slack    time.Duration // tolerance around it; 0: five seconds
}

// loss is an event in which Redis lost data, with the state right before.
type loss struct {
	from  int       // the first lost line of the effect log; 0: all lines before the event
	since time.Time // the same as a time; may be zero
	line  int       // the first line after the event
	at    time.Time
	runs  []runJSON
	ticks map[string][]tickJSON

	waiting map[string]bool // the ids of messages that waited to be sent
}

// lostRequest reports whether a request that was answered at a given time may be lost: no worker
// knows a run that none has started.
func lostRequest(losses []loss, answered time.Time) bool {
	return slices.ContainsFunc(losses, func(l loss) bool {
		return answered.After(l.since) && answered.Before(l.at.Add(time.Second))
	})
}

// remembered returns a history that also has the runs and ticks that ended before Redis lost its
// data. They prove what a loss must not change: an outcome stays as it was.
func (c *checker) remembered(h *history) *history {
	merged := *h
	// All but the line for ticks that are lost.
	noRun := func(run runJSON) bool { return strings.Contains(run.ID, "@..") }
	merged.runs, merged.ticks = slices.DeleteFunc(slices.Clone(h.runs), noRun), make(map[string][]tickJSON)
	for job, lines := range h.ticks {
		merged.ticks[job] = slices.Clone(lines)
	}
	at := make(map[string]int) // where a run is in merged.runs
	for i, run := range merged.runs {
		if _, twice := at[run.ID]; !twice {
			at[run.ID] = i
		}
	}
	for _, loss := range slices.Backward(h.losses) {
		for _, run := range loss.runs {
			if !run.final() || noRun(run) {
				continue
			}
			i, known := at[run.ID]
			if !known {
				at[run.ID] = len(merged.runs)
				merged.runs = append(merged.runs, run)
				continue
			}
			if later := merged.runs[i]; later.State != run.State {
				c.found("run %s was %s when Redis lost its data, and is %s", run.ID, run.State, later.State)
			}
			merged.runs[i] = run // with all its attempts, which no worker needs to have known
		}
		for job, lines := range loss.ticks {
			for _, line := range lines {
				i := slices.IndexFunc(merged.ticks[job], func(l tickJSON) bool { return l.Tick.Equal(line.Tick) && l.Upto.Equal(line.Upto) })
				if line.Outcome == "pending" {
					continue
				}
				if i < 0 {
					merged.ticks[job] = append(merged.ticks[job], line)
					continue
				}
				if later := merged.ticks[job][i]; later.Outcome != line.Outcome {
					c.found("tick %s of %s was %s when Redis lost its data, and is %s", line.Tick, job, line.Outcome, later.Outcome)
				}
				merged.ticks[job][i] = line
			}
		}
		// No worker repeats a run that had succeeded.
		done := make(map[string]bool)
		for _, run := range loss.runs {
			done[run.ID] = run.State == "succeeded"
		}
		for i, e := range h.effects[min(loss.line, len(h.effects)):] {
			if done[e.run] {
				c.found("line %d: %+v is of a run that had succeeded before Redis lost its data", loss.line+i+1, e)
			}
		}
	}
	return &merged
}

// lost returns when Redis last lost its data; zero if never.
func (h *history) lost() time.Time {
	if n := len(h.losses); n > 0 {
		return h.losses[n-1].at
	}
	return time.Time{}
}

// forgotten reports whether a line covers ticks with records that Redis has lost.
func (l tickJSON) forgotten() bool {
	return l.Outcome == "lost" && strings.HasPrefix(textOf(l.Reason), "Redis was emptied")
}

// checker collects problems.
type checker struct{ problems []string }

func (c *checker) found(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// report fails the test with the problems that were found.
func (c *checker) report(t *testing.T) {
	t.Helper()
	for i, problem := range c.problems {
		if i == 20 {
			t.Errorf("and %d more", len(c.problems)-i)
			break
		}
		t.Error(problem)
	}
}

func (c *checker) all(h *history) {
	h = c.remembered(h)
	runs := make(map[string]runJSON)
	for _, run := range h.runs {
		if _, twice := runs[run.ID]; twice {
			c.found("run %s is listed twice", run.ID)
		}
		runs[run.ID] = run
	}
	for name, job := range h.jobs {
		if job.trigger != "" {
			c.ticks(job, h.ticks[name], h)
			c.outcomes(job, h, runs)
		}
	}
	for _, run := range h.runs {
		c.run(run, h.jobs[run.Job], run.Created.Before(h.lost()))
	}
	for _, id := range h.asked {
		if _, there := runs[id]; !there {
			c.found("run %s was requested, and does not exist", id)
		}
	}
	c.effects(h, runs)
	c.locks(h.effects, h.jobs)
	c.permits(h.effects, h.jobs)
}

// firesAt reports whether a trigger has a tick at a second. It knows the fields that the fleets'
// jobs use, and looks only at that second; the program computes the next tick instead.
func firesAt(trigger string, second int64) bool {
	kind, text, _ := strings.Cut(trigger, ": ")
	if kind == "every" {
		every, err := time.ParseDuration(text)
		return err == nil && second%int64(every/time.Second) == 0
	}
	fields := strings.Fields(strings.Trim(text, `"`))
	at := time.Unix(second, 0).UTC()
	for i, now := range []int{at.Second(), at.Minute()} {
		fires := false
		for part := range strings.SplitSeq(fields[i], ",") {
			span, step, stepped := strings.Cut(part, "/")
			n, by := 0, 1
			if stepped {
				by, _ = strconv.Atoi(step)
			}
			if span != "*" {
				n, _ = strconv.Atoi(span)
				fires = fires || now == n
				continue
			}
			fires = fires || now%by == 0
		}
		if !fires {
			return false
		}
	}
	return true
}

// ticks proves that a job has exactly one line for each tick between its first and its last one,
// and that these cover the time during which the fleet was up, except its start and end. It does
// not know when a trigger changed, only that it changed once, and not before workers could know the
// new one: it accepts any second after that.
func (c *checker) ticks(job spec, lines []tickJSON, h *history) {
	slack := h.slack
	if slack == 0 {
		// enough for a worker to start, be killed, and be succeeded by one that decides
		slack = 5 * time.Second
	}
	if len(lines) == 0 {
		c.found("%s has no ticks", job.name)
		return
	}
	// Ticks covered by a line because no worker remembered them.
	lost := make(map[int64]bool)
	lines = slices.DeleteFunc(slices.Clone(lines), func(line tickJSON) bool {
		for second := line.Tick.Unix(); line.forgotten() && len(h.losses) > 0 && second <= line.Upto.Unix(); second++ {
			lost[second] = true
		}
		return line.forgotten() && len(h.losses) > 0
	})
	if len(lines) == 0 {
		c.found("%s has no ticks but those that are lost", job.name)
		return
	}
	turns := settledTurns(append([]turn{{trigger: job.trigger}}, job.turns...), h.losses)
	have := make(map[int64]int)
	first, last := lines[0].Tick.Unix(), lines[0].Tick.Unix()
	for _, line := range lines {
		upto := line.Tick
		if !line.Upto.IsZero() {
			upto = line.Upto
		}
		for second := line.Tick.Unix(); second <= upto.Unix(); second++ {
			if second == line.Tick.Unix() || second == upto.Unix() || firesAt(job.trigger, second) {
				have[second]++
			}
		}
		first, last = min(first, line.Tick.Unix()), max(last, upto.Unix())
	}
	can := make([]bool, len(turns)) // the triggers that may be in force
	for i := range can {
		can[i] = true
	}
	for second := first; second <= last; second++ {
		if have[second] > 1 {
			c.found("%s: the tick %s has %d lines", job.name, time.Unix(second, 0).UTC(), have[second])
		}
		next, any := make([]bool, len(turns)), false
		for i, one := range turns {
			if (i == 0 || time.Unix(second, 0).After(one.after)) && slices.Contains(can[:i+1], true) && (firesAt(one.trigger, second) == (have[second] > 0) || lost[second] && have[second] == 0) {
				next[i], any = true, true
			}
		}
		if !any {
			c.found("%s: tick %s: there are %d lines; none of its triggers has it", job.name, time.Unix(second, 0).UTC(), have[second])
			return
		}
		can = next
	}
	if !can[len(can)-1] {
		c.found("%s: its last trigger was never in force", job.name)
	}
	every := time.Duration(1)
	for next := last + 1; !firesAt(job.now(), next); next++ {
		every++
	}
	begin, end := time.Unix(first, 0), time.Unix(last, 0)
	if begin.Sub(h.from) > every*time.Second+slack || h.to.Sub(end) > every*time.Second+slack {
		c.found("%s: ticks from %s to %s; the fleet was up from %s to %s", job.name, begin, end, h.from, h.to)
	}
}

// outcomes proves that each tick has an outcome that its job allows, with a reason if it did not
// run.
func (c *checker) outcomes(job spec, h *history, runs map[string]runJSON) {
	for _, line := range h.ticks[job.name] {
		if line.forgotten() && len(h.losses) > 0 {
			continue
		}
		tick := job.name + "@" + line.Tick.UTC().Format(time.RFC3339)
		if line.Outcome != "succeeded" && !slices.Contains(job.ends, line.Outcome) {
			c.found("tick %s is %s: %s", tick, line.Outcome, textOf(line.Reason))
		}
		switch line.Outcome {
		case "skipped", "missed":
			if _, ran := runs[line.Run]; ran {
				c.found("tick %s is %s and has a run", tick, line.Outcome)
			}
			if textOf(line.Reason) == "" {
				c.found("tick %s is %s, without a reason", tick, line.Outcome)
			}
		default:
			if run, ran := runs[line.Run]; !ran || line.Run != tick || run.State != line.Outcome || run.Tick == nil || !run.Tick.Equal(line.Tick) {
				c.found("tick %s is %s, and its run %s is %+v", tick, line.Outcome, line.Run, run)
			}
		}
		if late := line.Decided.Sub(line.Tick); line.Outcome == "missed" && late <= time.Minute {
			c.found("tick %s was missed, though it was decided after %s", tick, late)
		}
		// A tick is skipped because of another one, which is not over at that moment.
		if reason, ok := strings.CutPrefix(textOf(line.Reason), "overlap: skip; "); ok {
			other, _, _ := strings.Cut(reason, " ")
			if line.Decided.Before(h.lost()) {
				// The end of that run may be known only since a worker re-asserted it.
				continue
			}
			if run, ran := runs[other]; !ran || run.Created.After(line.Decided) || run.Finished.Before(line.Decided) {
				c.found("tick %s was skipped at %s for %s, which was there from %s to %s", tick, line.Decided, other, run.Created, run.Finished)
			}
		}
	}
}

// lateSuccess is the reason of a run that succeeded after its worker had lost its lease.
const lateSuccess = "succeeded after its attempt had been counted"

// heardOf is the reason of a run if all that workers knew about it, when Redis lost its data, was
// its outcome.
const heardOf = "re-asserted after Redis had lost it"

// broke reports whether an attempt with this outcome was cut short: its worker died or lost its
// lease.
func broke(outcome string) bool { return outcome == crashed || outcome == lostLease }

// run proves that a run ended once, with an outcome that follows from its attempts, and that its
// attempts came one after the other, under growing tokens. An old run is from before Redis lost its
// data: its first attempts may be unknown, all of them if it had ended, and an outcome that was
// re-asserted has the time of that.
func (c *checker) run(run runJSON, job spec, old bool) {
	count := make(map[string]int)
	var before attemptJSON
	for i, a := range run.Attempts {
		if a.token() <= before.token() && i > 0 {
			c.found("run %s: token %s of attempt %d is not higher than %s", run.ID, a.Token, a.Attempt, before.Token)
		}
		follows := a.Attempt == i+1 || old && (i == 0 || a.Attempt > before.Attempt)
		if !follows || a.outcome() == "" || a.Started.Before(before.Finished) && !old || a.Finished.Before(a.Started) {
			c.found("run %s: attempt %d is %+v, after %+v", run.ID, i+1, a, before)
		}
		if i > 0 && (before.outcome() == "succeeded" || before.outcome() == "canceled") {
			c.found("run %s: attempt %d has %s, and there is another one", run.ID, i, before.outcome())
		}
		if i > 0 && broke(before.outcome()) && job.abandon {
			c.found("run %s: attempt %d has %s, and the run was not abandoned", run.ID, i, before.outcome())
		}
		if job.only != "" && !strings.HasPrefix(a.Worker, job.only+".") {
			c.found("run %s: attempt %d is by %s, and %s alone has its handler", run.ID, i+1, a.Worker, job.only)
		}
		count[a.outcome()]++
		before = a
	}
	last := before.outcome()
	justified := false
	switch run.State {
	case "succeeded":
		justified = last == "succeeded" || old && textOf(run.Reason) == heardOf || textOf(run.Reason) == lateSuccess && (broke(last) || last == "failed")
	case "failed":
		justified = last == "failed" && (count["failed"] > job.retries || old) || last == "crashed" && job.crashes > 0 && run.Crashes >= job.crashes ||
			old && textOf(run.Reason) == heardOf
	case "lost":
		justified = job.abandon && (broke(last) || old && textOf(run.Reason) == heardOf)
	case "canceled":
		justified = last != "succeeded"
	}
	allowed := run.State == "succeeded" || slices.Contains(job.ends, run.State)
	counted := count["crashed"] == run.Crashes || old && count["crashed"] < run.Crashes
	if !allowed || !justified || !counted || count["failed"] > job.retries+1 || job.crashes > 0 && run.Crashes > job.crashes {
		why := textOf(run.Reason)
		if why == "" {
			why = textOf(before.Error)
		}
		c.found("run %s is %s after %v, with %d crashes: %s", run.ID, run.State, count, run.Crashes, why)
	}
}

// effects proves that the ledger and the effects agree: each effect belongs to an attempt in the
// ledger with its token, each attempt has each effect once and in order, and a run that succeeded
// ended in its last attempt.
//
// An attempt may be missing if Redis lost its record.
func (c *checker) effects(h *history, runs map[string]runJSON) {
	lost := func(line int) bool {
		return slices.ContainsFunc(h.losses, func(l loss) bool { return line >= l.from && line < l.line })
	}
	type attempt struct {
		run   string
		token int64
	}
	began, ended := make(map[attempt]bool), make(map[attempt]bool)
	for i, e := range h.effects {
		run, ok := runs[e.run]
		if lost(i) && (!ok || !slices.ContainsFunc(run.Attempts, func(a attemptJSON) bool { return a.token() == e.token })) {
			continue
		}
		if !ok || !slices.ContainsFunc(run.Attempts, func(a attemptJSON) bool { return a.Attempt == e.attempt && a.token() == e.token }) {
			c.found("the effect %+v is of no attempt in the ledger: %+v", e, run.Attempts)
			continue
		}
		one := attempt{e.run, e.token}
		switch {
		case e.end && !began[one]:
			c.found("line %d: %+v ends what did not begin", i+1, e)
		case e.end && ended[one] || !e.end && began[one]:
			c.found("line %d: %+v for the second time", i+1, e)
		}
		began[one], ended[one] = began[one] || !e.end, ended[one] || e.end
	}
	for _, run := range runs {
		// If workers knew only the outcome, the last attempts may be lost.
		if n := len(run.Attempts); run.State == "succeeded" && n > 0 && textOf(run.Reason) != heardOf && !ended[attempt{run.ID, run.Attempts[n-1].token()}] {
			c.found("run %s succeeded under token %s, without the end of its effect", run.ID, run.Attempts[n-1].Token)
		}
	}
}

// locks proves that no attempt acts under a lock after an attempt that excludes it has started:
// from the first line of a later token on, earlier tokens write no more lines.
func (c *checker) locks(effects []effect, jobs map[string]spec) {
	// The line of the highest token, by lock.
	alone, shared := make(map[string]effect), make(map[string]effect)
	for i, e := range effects {
		for _, lock := range append([]string{"run:" + e.run}, e.locks...) {
			mode := jobs[e.job()].modes[lock]
			if mode > 0 {
				continue
			}
			before := alone[lock]
			if mode != readers && shared[lock].token > before.token {
				before = shared[lock]
			}
			switch {
			case e.token < before.token:
				c.found("line %d: %+v acts under %s although %+v has it since", i+1, e, lock, before)
			case e.token == before.token && e.run != before.run:
				c.found("line %d: %+v and %+v under one token of %s", i+1, before, e, lock)
			}
			highest := alone
			if mode == readers {
				highest = shared
			}
			if e.token >= highest[lock].token {
				highest[lock] = e
			}
		}
	}
}

// permits proves that no more attempts act at the same time than there are permits, from the first
// line of each to its last.
func (c *checker) permits(effects []effect, jobs map[string]spec) {
	last := make(map[int64]int)
	for i, e := range effects {
		last[e.token] = i
	}
	acting := make(map[string]map[int64]effect)
	for i, e := range effects {
		for lock, limit := range jobs[e.job()].modes {
			if limit <= 0 {
				continue
			}
			if acting[lock] == nil {
				acting[lock] = make(map[int64]effect)
			}
			acting[lock][e.token] = e
			if len(acting[lock]) > limit {
				c.found("line %d: %d attempts act under %s, of which there are %d: %+v", i+1, len(acting[lock]), lock, limit, acting[lock])
			}
			if last[e.token] == i {
				delete(acting[lock], e.token)
			}
		}
	}
}

// TestCheckerFindsPlantedFaults runs the checker on small histories, each with one fault.
func TestCheckerFindsPlantedFaults(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	at := func(second int) time.Time { return time.Date(2027, 1, 1, 0, 0, second, 0, time.UTC) }
	id := func(job string, second int) string { return job + "@" + at(second).Format(time.RFC3339) }
	// run returns a run for the tick of a second, with attempts of a fifth of a second each, given
	// as pairs of outcome and token.
	run := func(job string, second int, state string, attempts ...string) runJSON {
		tick, now := at(second), at(second)
		r := runJSON{ID: id(job, second), Job: job, Tick: &tick, State: state, Created: tick}
		for i := 0; i < len(attempts); i += 2 {
			if attempts[i] == "crashed" {
				r.Crashes++
			}
			a := attemptJSON{Attempt: i/2 + 1, Outcome: text(attempts[i]), Token: attempts[i+1], Started: now}
			now = now.Add(200 * time.Millisecond)
			a.Finished = now
			r.Attempts = append(r.Attempts, a)
		}
		r.Finished = now
		return r
	}
	tick := func(job string, second int, outcome, reason string) tickJSON {
		return tickJSON{Tick: at(second), Outcome: outcome, Reason: text(reason), Run: id(job, second), Decided: at(second)}
	}
	line := func(end bool, r runJSON, attempt int, locks ...string) effect {
		return effect{end: end, run: r.ID, attempt: attempt, token: r.Attempts[attempt-1].token(), locks: locks}
	}
	// Job a runs every second under a lock, except for the tick at 4, which comes while the run for
	// 3 is running. Job b changes its trigger between 2 and 4, abandons crashed runs, and shares
	// two permits; c takes a's lock in shared mode.
	good := func() *history {
		a1, a2, a3 := run("a", 1, "succeeded", "succeeded", "10"), run("a", 2, "succeeded", "crashed", "20", "succeeded", "30"), run("a", 3, "succeeded", "succeeded", "50")
		a3.Finished = at(5)
		a3.Attempts[0].Finished = at(5)
		b1, b2, b4 := run("b", 1, "succeeded", "succeeded", "12"), run("b", 2, "lost", "crashed", "22"), run("b", 4, "failed", "failed", "42", "failed", "44")
		c2 := run("c", 2, "canceled", "canceled", "15")
		c2.Attempts[0].Worker = "special.12345678"
		return &history{
			from: at(0), to: at(5),
			jobs: map[string]spec{
				"a": {name: "a", trigger: "every: 1s", ends: []string{"skipped"}},
				"b": {
					name: "b", trigger: "every: 1s", turns: []turn{{trigger: `schedule: "*/2 * * * * *"`, after: at(1)}}, ends: []string{"lost", "failed", "missed"},
					retries: 1, abandon: true, modes: map[string]int{"gate": 2},
				},
				"c": {name: "c", ends: []string{"canceled"}, only: "special", modes: map[string]int{"job:a": readers, "gate": 2}},
			},
			runs: []runJSON{a1, a2, a3, b1, b2, b4, c2},
			ticks: map[string][]tickJSON{
				"a": {
					tick("a", 4, "skipped", "overlap: skip; "+a3.ID+" is running"), tick("a", 3, "succeeded", ""), tick("a", 2, "succeeded", ""),
					tick("a", 1, "succeeded", ""),
				},
				"b": {tick("b", 4, "failed", ""), tick("b", 2, "lost", ""), tick("b", 1, "succeeded", "")},
			},
			effects: []effect{
				line(false, a1, 1, "job:a"), line(true, a1, 1, "job:a"), line(false, b1, 1, "gate"), line(false, c2, 1, "job:a", "gate"),
				line(true, b1, 1, "gate"), line(true, c2, 1, "job:a", "gate"), line(false, a2, 1, "job:a"), line(false, b2, 1, "gate"),
				line(false, a2, 2, "job:a"), line(true, a2, 2, "job:a"), line(false, b4, 1, "gate"), line(false, b4, 2, "gate"),
				line(false, a3, 1, "job:a"), line(true, a3, 1, "job:a"),
			},
			asked: []string{c2.ID},
		}
	}
	// The places in it where faults are planted.
	const (
		a1, a2, a3, b1, b2, b4, c2 = 0, 1, 2, 3, 4, 5, 6
		startC2, endB1, endC2      = 3, 4, 5
		startA2, againA2, endA2    = 6, 8, 9
		startB4, againB4           = 10, 11
	)
	swap := func(e []effect, i, k int) { e[i], e[k] = e[k], e[i] }
	for _, test := range []struct {
		name  string
		wrong func(h *history)
		want  string // "": no problem
	}{
		{"nothing", func(*history) {}, ""},
		{"lost tick", func(h *history) { h.ticks["a"] = slices.Delete(h.ticks["a"], 2, 3) }, "a: tick 2027-01-01 00:00:02 +0000 UTC: there are 0 lines"},
		{"no ticks", func(h *history) { h.ticks["a"] = nil }, "a has no ticks"},
		{"double tick", func(h *history) { h.ticks["a"] = append(h.ticks["a"], h.ticks["a"][1]) }, "has 2 lines"},
		{"tick of no trigger", func(h *history) { h.jobs["a"] = spec{name: "a", trigger: "every: 2s"} }, "none of its triggers has it"},
		{"ticks begin late", func(h *history) { h.from = at(-7) }, "the fleet was up from"},
		{"ticks end early", func(h *history) { h.to = at(12) }, "the fleet was up from"},
		{"tick by a trigger that came later", func(h *history) { h.jobs["b"].turns[0].after = at(3) }, "b: tick 2027-01-01 00:00:03 +0000 UTC"},
		{"tick by the old trigger", func(h *history) { h.ticks["b"][0] = tick("b", 3, "succeeded", "") }, "its last trigger was never in force"},
		{"tick without an end", func(h *history) { h.ticks["a"][1].Outcome = "pending" }, "is pending"},
		{"tick and run differ", func(h *history) { h.runs[b2].State = "failed" }, "is lost, and its run"},
		{"tick without its run", func(h *history) { h.runs = slices.Delete(h.runs, a3, a3+1) }, "and its run"},
		{"tick skipped that was to run", func(h *history) { h.ticks["b"][2] = tick("b", 1, "skipped", "why not") }, "is skipped: why not"},
		{"tick skipped and run", func(h *history) { h.ticks["a"][0].Run = h.runs[a3].ID }, "is skipped and has a run"},
		{"skipped for nothing", func(h *history) { h.ticks["a"][0].Reason = nil }, "without a reason"},
		{"skipped for what was over", func(h *history) { h.runs[a3].Finished = at(3) }, "was skipped at"},
		{"missed in time", func(h *history) { h.ticks["b"][1] = tick("b", 2, "missed", "no worker was up") }, "though it was decided after 0s"},
		{"double run", func(h *history) { h.runs = append(h.runs, h.runs[a3]) }, "listed twice"},
		{"run that does not exist", func(h *history) { h.asked = append(h.asked, "c#2") }, "was requested, and does not exist"},
		{"failed run", func(h *history) { h.runs[a1].State = "failed" }, "is failed"},
		{"run that is not over", func(h *history) { h.runs[c2].State = "running" }, "is running"},
		{"failed too early", func(h *history) { h.runs[b4].Attempts = h.runs[b4].Attempts[:1] }, "is failed after map[failed:1]"},
		{"tried too often", func(h *history) {
			h.runs[b4].State, h.runs[b4].Attempts = "succeeded", run("b", 4, "", "failed", "42", "failed", "44", "failed", "46", "succeeded", "48").Attempts
		}, "after map[failed:3 succeeded:1]"},
		{"crash that is not counted", func(h *history) { h.runs[a2].Crashes = 0 }, "with 0 crashes"},
		{"finished twice", func(h *history) { h.runs[a2].Attempts[0].Outcome = text("succeeded") }, "and there is another one"},
		{"abandoned and run again", func(h *history) {
			h.runs[b2] = run("b", 2, "succeeded", "crashed", "22", "succeeded", "23")
			h.ticks["b"][1].Outcome = "succeeded"
		}, "was not abandoned"},
		{"token shrinks", func(h *history) { h.runs[a2].Attempts[0].Token = "31" }, "is not higher than 31"},
		{"attempt left out", func(h *history) { h.runs[a2].Attempts[1].Attempt = 3 }, "attempt 2 is"},
		{"attempts overlap", func(h *history) { h.runs[a2].Attempts[0].Finished = at(3) }, "attempt 2 is"},
		{"attempt by a worker without the handler", func(h *history) {
			h.runs[c2].Attempts[0].Worker = "other.12345678"
		}, "alone has its handler"},
		{"effect without an attempt", func(h *history) { h.effects[startA2].attempt = 3 }, "is of no attempt"},
		{"effect twice", func(h *history) { h.effects = append(h.effects[:2:2], h.effects[1:]...) }, "for the second time"},
		{"end without a start", func(h *history) { h.effects = slices.Delete(h.effects, againA2, againA2+1) }, "ends what did not begin"},
		{"no effect", func(h *history) { h.effects = h.effects[:len(h.effects)-1] }, "without the end of its effect"},
		{"overlap", func(h *history) { swap(h.effects, 1, startA2) }, "although"},
		{"zombie", func(h *history) { swap(h.effects, startA2, againA2) }, "although"},
		{"two runs under one token", func(h *history) { h.effects[startA2].token, h.runs[a2].Attempts[0].Token = 15, "15" }, "under one token"},
		{"reader beside a writer", func(h *history) { swap(h.effects, endC2, startA2) }, "although"},
		{"more than there are permits", func(h *history) {
			h.effects = slices.Insert(slices.Delete(h.effects, startB4, againB4), startC2, h.effects[startB4])
		}, "3 attempts act under gate"},
	} {
		h := good()
		test.wrong(h)
		c := new(checker)
		c.all(h)
		found := strings.Join(c.problems, "\n")
		if test.want == "" && found != "" || !strings.Contains(found, test.want) {
			t.Errorf("%s: found %q, want %q", test.name, found, test.want)
		}
	}
}

// settledTurns returns turns as they may have been in force when Redis lost data around them.
//
// Soon after workers have left, their definition is active for up to a minute, but only Redis has
// it: with it lost, the trigger of the other workers decides all ticks after the last one that
// these know, also those of the time before the others left.
//
// When the loss and the turn come together, no worker may be left that knew the older definition
// before the newer one. Then a worker that is still starting with the older one makes it active
// again, until the newer one is loaded there, too, or that worker leaves.
func settledTurns(turns []turn, losses []loss) []turn {
	const start = 10 * time.Second // of a worker, or of one that returns after the loss
	for i := len(turns) - 1; i > 0; i-- {
		came := turns[i].after
		if !turns[i].returns && slices.ContainsFunc(losses, func(l loss) bool { return l.at.Sub(came).Abs() < start }) {
			turns = slices.Insert(turns, i+1, turn{trigger: turns[i-1].trigger, after: came}, turn{trigger: turns[i].trigger, after: came})
		}
	}
	for i := 1; i < len(turns); i++ {
		left := turns[i].after
		if turns[i].returns && slices.ContainsFunc(losses, func(l loss) bool { return l.at.After(left) && l.at.Before(left.Add(time.Minute)) }) {
			turns[i].after = turns[i-1].after
		}
	}
	return turns
}

// TestTheOlderTriggerDecidesFromTheCursorAfterALoss checks which triggers may decide ticks from
// when on: a canary has come at 0 s and left at 6 s.
func TestTheOlderTriggerDecidesFromTheCursorAfterALoss(t *testing.T) {
	t.Parallel()
	came := time.Unix(0, 0)
	left := came.Add(6 * time.Second)
	for _, test := range []struct {
		lost int // s; -1: never
		want time.Time
	}{{-1, left}, {5, left}, {14, came}, {67, left}} {
		var losses []loss
		if test.lost >= 0 {
			losses = []loss{{at: came.Add(time.Duration(test.lost) * time.Second)}}
		}
		turns := settledTurns([]turn{{trigger: "every: 2s"}, {trigger: "every: 5s", after: came}, {trigger: "every: 2s", after: left, returns: true}}, losses)
		if test.lost == 5 { // it also comes with the first turn, which may be taken back once
			if len(turns) != 5 || turns[2].trigger != "every: 2s" || turns[3].trigger != "every: 5s" || !turns[3].after.Equal(came) {
				t.Errorf("with a loss at %d s, the turns are %v", test.lost, turns)
			}
			turns = slices.Delete(turns, 2, 4)
		}
		if len(turns) != 3 || !turns[2].after.Equal(test.want) || !turns[1].after.Equal(came) {
			t.Errorf("with a loss at %d s, the older trigger decides ticks after %s, want %s", test.lost, turns[2].after, test.want)
		}
	}
}

// TestCheckerKnowsTheTriggersOfFleets checks firesAt at the seconds around a minute.
func TestCheckerKnowsTheTriggersOfFleets(t *testing.T) {
	t.Parallel()
	for trigger, want := range map[string]string{
		`every: 3s`:                       "57 60 63",
		`every: 7s`:                       "57 64", // 3 h 57 s is 1551 times 7 s
		`schedule: "* * * * * *"`:         "55 56 57 58 59 60 61 62 63 64",
		`schedule: "*/7 * * * * *"`:       "56 60",
		`schedule: "1,59 * * * * *"`:      "59 61",
		`schedule: "*/30,2 */2 * * * *"`:  "",
		`schedule: "*/30,57 */2 * * * *"`: "57",
	} {
		const from, to = 3*3600 + 55, 3*3600 + 64
		var got []string
		for second := int64(from); second <= to; second++ {
			if firesAt(trigger, second) {
				got = append(got, strconv.FormatInt(second-3*3600, 10))
			}
		}
		if want := strings.Fields(want); !slices.Equal(got, want) {
			t.Errorf("%s fires at %v, want %v", trigger, got, want)
		}
	}
}
