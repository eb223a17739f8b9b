package top

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// pager is a text that scrolls.
type pager struct {
	lines []string
	top   int
}

// settle keeps the text on the screen.
func (p *pager) settle(rows int) { p.top = max(0, min(p.top, len(p.lines)-rows)) }

func (p *pager) visible(rows int) []string { return p.lines[p.top:min(p.top+rows, len(p.lines))] }

// runScreen is the screen of one run.
type runScreen struct {
	pager
	id     jobs.RunID
	from   Target // the row that opened it
	detail *Detail
	at     time.Time // when its read began
	gone   bool      // there is no such run any more

	follower Follower // nil: the run has not been in progress on this screen
	printed  transcript
	problem  string    // why the last call of the follower failed; "" if it did not
	ended    time.Time // when the follower reported the end of the run; zero: it has not

	tail bool // the text was scrolled to its end, and stays there when lines are added

	width int // of the lines
}

// following returns the follower of a run that is in progress, or nil. It must not be called while
// a call of the follower is in progress.
func (r *runScreen) following(fleet Fleet) Follower {
	switch {
	case r.detail == nil || r.gone:
		return nil
	case r.follower != nil && r.ended.IsZero():
		return r.follower
	case r.detail.Run.State.Final():
		return nil
	case r.follower != nil && !r.at.After(r.ended): // the data is from before the end
		return nil
	}
	r.follower, r.printed, r.ended = fleet.Follow(r.id), transcript{}, time.Time{}
	return r.follower
}

// print takes the result of a call of the follower.
func (r *runScreen) print(msg followedMsg) {
	problem := ""
	if msg.err != nil {
		problem = msg.err.Error()
	}
	if r.follower.Ended() {
		r.ended = msg.ended
	}
	if len(msg.events) == 0 && problem == r.problem {
		return
	}
	r.problem, r.width = problem, 0
	for _, e := range msg.events {
		r.printed.add(e)
	}
}

func (r *runScreen) take(msg detailMsg) {
	switch {
	case msg.err == nil:
		r.detail, r.at, r.gone = msg.detail, msg.began, false
	case errors.Is(msg.err, ledger.ErrUnknown):
		r.at, r.gone = msg.began, true
	default:
		return
	}
	r.width = 0 // the lines are old
}

// target is the run, with its hold if it has one.
func (r *runScreen) target() Target {
	if r.detail == nil {
		return r.from
	}
	t := runTarget(r.detail.Run)
	if h := r.detail.holder(); h != nil && len(h.Locks()) > 0 {
		t.Lock, t.Token = h.Locks()[0], h.Token
	}
	return t
}

// holder returns the hold of the run, or nil.
func (d *Detail) holder() *admin.Holder {
	if d.Snapshot != nil {
		holds := d.Snapshot.Holders
		if i := slices.IndexFunc(holds, func(h admin.Holder) bool { return jobs.RunID(h.RunID) == d.Run.ID }); i >= 0 {
			return &holds[i]
		}
	}
	return nil
}

// wait returns the request of the run for its locks, or nil.
func (d *Detail) wait() *admin.Wait {
	if d.Snapshot != nil {
		waits := d.Snapshot.Waits
		if i := slices.IndexFunc(waits, func(w admin.Wait) bool { return jobs.RunID(w.RunID) == d.Run.ID }); i >= 0 {
			return &waits[i]
		}
	}
	return nil
}

// scroll moves the text.
func (r *runScreen) scroll(by, rows int) {
	r.top += by
	r.tail = by > 0 && r.top >= len(r.lines)-rows
}

// layout makes the lines anew if the data or the width is new.
func (r *runScreen) layout(p palette, cells, rows int) {
	if r.width != cells {
		r.width = cells
		switch {
		case r.gone:
			r.lines = wrap("There is no such run (any more): its job's history has dropped it.", cells)
		case r.detail == nil:
			r.lines = []string{"Reading the run ..."}
		default:
			r.lines = append(runLines(p, r.detail, cells), r.outputLines(p, cells)...)
		}
		if r.tail {
			r.top = len(r.lines)
		}
	}
	r.settle(rows)
}

// runLines describes a run: its facts, why it does not run, and its attempts.
func runLines(p palette, d *Detail, cells int) []string {
	r, now := d.Run, d.At
	var lines []string
	fact := func(name, value, style string) {
		if value == "" {
			return
		}
		const indent = 10
		for i, line := range wrap(clean(value), max(1, cells-indent)) {
			if i > 0 {
				name = ""
			}
			lines = append(lines, fit(name, indent)+p.paint(style, cut(line, cells-indent)))
		}
	}
	when := func(t admin.Instant) string {
		if t.IsZero() {
			return ""
		}
		return t.String() + " (" + ago(now, t.Time) + ")"
	}
	fact("state", state(string(r.State)), styleOf(r.State.Facts().Tone))
	fact("reason", string(r.Reason), "")
	if r.WaitingFor != nil {
		fact("waits for", r.WaitingFor.Text, yellow)
	}
	if !r.DueAt.IsZero() {
		fact("due", r.DueAt.String()+" (in "+admin.Age(r.DueAt.Sub(now))+")", "")
	}
	if h := d.holder(); h != nil {
		fact("holds", many(h.Locks())+", "+age(h.LeaseLeft)+" of the lease left", "")
	}
	if w := d.wait(); w != nil {
		fact("wants", many(w.Wants)+", for "+age(w.Waited), "")
		fact("behind", blockedBy(w), "")
	}
	fact("job", r.Job, "")
	fact("trigger", string(r.Trigger), "")
	fact("tick", r.Tick.String(), "")
	fact("queue", r.Queue, "")
	if args := string(r.Args); args != "null" && args != "{}" {
		fact("args", args, "")
	}
	fact("created", when(r.CreatedAt), "")
	fact("started", when(r.StartedAt), "")
	fact("finished", when(r.FinishedAt), "")
	fact("took", r.Took(now), "")
	if r.Crashes > 0 {
		fact("crashes", strconv.Itoa(r.Crashes), red)
	}
	lines = append(lines, "", p.paint(bold, fmt.Sprintf("ATTEMPTS %d", len(r.Attempts))))
	for i := range r.Attempts {
		lines = append(lines, attemptLines(p, &r.Attempts[i], now, cells)...)
	}
	return lines
}

// attemptLines describes an attempt: one line, and its error below.
func attemptLines(p palette, a *admin.Attempt, now time.Time, cells int) []string {
	outcome, end, took := string(a.Outcome), a.FinishedAt.Time, "after"
	style := ""
	switch {
	case a.Stuck != nil:
		outcome, style, end, took = state("stuck"), red, now, "for"
	case a.FinishedAt.IsZero():
		outcome, style, end, took = state(string(ledger.StateRunning)), cyan, now, "for"
	case outcome == string(ledger.StateSucceeded):
		outcome, style = state(outcome), green
	default:
		outcome, style = "✗ "+outcome, red
	}
	if a.Times > 1 {
		outcome += fmt.Sprintf(" (%d times)", a.Times)
	}
	line := fmt.Sprintf("%d  %s %s %s, started %s on %s, token %s", a.Number, outcome, took, admin.Span(end.Sub(a.StartedAt.Time)),
		ago(now, a.StartedAt.Time), a.Worker, a.Token)
	var lines []string
	for i, part := range wrap(clean(line), max(1, cells-3)) {
		if i > 0 {
			part = "   " + part
		}
		lines = append(lines, p.paint(style, cut(part, cells)))
	}
	detail := string(a.Error)
	if a.Stuck != nil {
		detail = "it continues since " + a.Stuck.Since.String() + ", after the end of its context: " + a.Stuck.Because
	}
	if detail != "" {
		for text := range strings.Lines(detail) {
			for _, part := range wrap(clean(strings.TrimRight(text, "\r\n")), max(1, cells-3)) {
				lines = append(lines, cut("   "+part, cells))
			}
		}
	}
	return lines
}
