package web

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

func (s *Server) runPages() {
	s.show("/runs", "runs", s.runsPage, with(runsParams, "select")...)
	s.show("/runs/{id}", "run", s.runPage)
}

// runsParams are the parameters of the list of runs. Besides them, select=page checks all boxes.
var runsParams = with(admin.RunFilters, "group", "limit", "cursor")

// runsPage lists runs: the outstanding ones first, then the finished ones.
func (s *Server) runsPage(ctx context.Context, q question, v *view) (err error) {
	if v.Now, err = s.now(ctx); err != nil {
		return err
	}
	var seen runsSeen
	switch all := q.value("select"); all {
	case "", "page":
		seen.All = all != ""
	default:
		return fmt.Errorf("%w: select %q: it can only be page", admin.ErrInvalid, shorten(all, 60))
	}
	// Neither the links to other parts nor a later load of this page check boxes.
	q.query.Del("select")
	v.Again = withQuery(v.Here, q.query)
	s.offerActs(q, v, &seen)
	switch group := q.value("group"); group {
	case "":
		listed, err := partOf(ctx, s, q, s.o.Reader.RunPage)
		if err != nil {
			return err
		}
		seen.rows = newRows(s, q, listed)
	case "error":
		listed, err := partOf(ctx, s, q, s.o.Reader.RunErrorPage)
		if err != nil {
			return err
		}
		seen.Grouped, seen.Groups = true, newRows(s, q, listed)
	default:
		return fmt.Errorf("%w: group %q: runs are grouped by error only", admin.ErrInvalid, shorten(group, 60))
	}
	v.Title, v.Seen = "Runs", seen
	v.filterBy(with(admin.RunFilters, "group"), map[string][]string{"state": ledger.StateNames(), "group": {"error"}})
	return nil
}

// runsSeen is a list of runs, or of the errors of runs.
type runsSeen struct {
	rows[admin.Run]
	Grouped bool
	Groups  rows[admin.ErrorGroup]

	// for a user that may act
	All                 bool   // all boxes are checked
	SelectAll           string // the link that checks them
	From                string // the parameters of the page
	CancelAll, RetryAll string // links to acts on all runs that the filter finds; "" for none
}

// offerActs adds the links to acts on the runs of a list.
func (s *Server) offerActs(q question, v *view, seen *runsSeen) {
	if !v.May {
		return
	}
	seen.From = q.query.Encode()
	filter, all := make(url.Values), url.Values{"select": {"page"}}
	for name, values := range q.query {
		all[name] = values
		if slices.Contains(admin.RunFilters, name) && values[0] != "" {
			filter[name] = values
		}
	}
	seen.SelectAll = withQuery(v.Here, all)
	if len(filter) == 0 {
		return
	}
	state := ledger.State(filter.Get("state"))
	if state == "" || !state.Final() {
		seen.CancelAll = withQuery(s.link().path("runs", "cancel"), filter)
	}
	if state == "" || state.Final() && state != ledger.StateSucceeded {
		seen.RetryAll = withQuery(s.link().path("runs", "retry"), filter)
	}
}

// runSeen is what the page of a run shows.
type runSeen struct {
	Run         *admin.Run
	Made        string // what started it
	Args        string
	DefaultArgs string // of its definition
	Output      string
	Explanation *admin.Explanation
	Axis        *axis // nil: nothing of it has a time
	Holds       []admin.Holder
	Waits       []admin.Wait
}

func (s *Server) runPage(ctx context.Context, q question, v *view) error {
	snapshot, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	v.Now = snapshot.At
	found, err := s.find(ctx, q)
	if err != nil {
		return err
	}
	run := found.run
	seen := runSeen{Run: run, Made: madeBy(run), Args: readable(run.Args), Output: jobs.Cut(found.output, mostText), Axis: drawAttempts(run, v.Now)}
	if run.Definition != nil {
		seen.DefaultArgs = readable(run.Definition.Args)
	}
	if seen.Explanation, err = s.explainRun(ctx, run); err != nil {
		return err
	}
	for _, hold := range snapshot.Holders {
		if hold.RunID == admin.Text(run.ID) {
			seen.Holds = append(seen.Holds, hold)
		}
	}
	for _, wait := range snapshot.Waits {
		if wait.RunID == admin.Text(run.ID) {
			seen.Waits = append(seen.Waits, wait)
		}
	}
	v.Page, v.Title, v.Seen = "runs", string(run.ID), seen
	return nil
}

// explainRun describes what happened to a run. A tick that never became one is explained as a tick.
func (s *Server) explainRun(ctx context.Context, run *admin.Run) (*admin.Explanation, error) {
	if tick, is := run.ID.Tick(); is && run.State.Facts().Tick {
		return shared(ctx, s.read, fmt.Sprintf("explain %s %d", run.Job, tick.Unix()), func(ctx context.Context) (*admin.Explanation, error) {
			return s.o.Reader.Explain(ctx, run.Job, tick)
		})
	}
	return shared(ctx, s.read, "explain run "+string(run.ID), func(ctx context.Context) (*admin.Explanation, error) {
		return s.o.Reader.ExplainRun(ctx, run.ID)
	})
}

// madeBy describes what started a run.
func madeBy(run *admin.Run) string {
	if tick, is := run.ID.Replays(); is {
		return "by hand: it repeats the tick " + admin.TickTime{Time: tick}.String() + " under a new idempotency key"
	}
	switch run.Trigger {
	case ledger.TriggerSchedule:
		return "for the tick " + run.Tick.String()
	case ledger.TriggerHand:
		return "by hand"
	case ledger.TriggerEnqueue:
		return "by a request"
	}
	return string(run.Trigger)
}

// axis is a span of time with bars on it.
type axis struct {
	From, To time.Time
	Bars     []axisBar
}

// axisBar is a span on an axis: X and W are parts of axisWidth.
type axisBar struct {
	X, W  float64
	Kind  string // wait, or as of a badge
	Title string
}

const (
	axisWidth = 1000
	axisLeast = 3  // of a bar, so that it can be seen
	axisMost  = 50 // attempts
)

// drawAttempts draws the waits and attempts of a run, from its creation to its end or to now.
func drawAttempts(run *admin.Run, now time.Time) *axis {
	end := run.FinishedAt.Time
	if end.IsZero() {
		end = now
	}
	if run.CreatedAt.IsZero() || !end.After(run.CreatedAt.Time) {
		return nil
	}
	a := &axis{From: run.CreatedAt.Time, To: end}
	add := func(from, to time.Time, kind, title string) {
		x := a.place(from)
		a.Bars = append(a.Bars, axisBar{x, min(max(axisLeast, a.place(to)-x), axisWidth-x), kind,
			fmt.Sprintf("%s for %s, from %s", title, admin.Span(to.Sub(from)), from.UTC().Format("15:04:05.000 UTC"))})
	}
	since := a.From
	attempts := run.Attempts[max(0, len(run.Attempts)-axisMost):]
	for _, attempt := range attempts {
		if attempt.StartedAt.After(since) {
			add(since, attempt.StartedAt.Time, "wait", "not running")
		}
		to, kind, title := attempt.FinishedAt.Time, "bad", string(attempt.Outcome)
		switch {
		case to.IsZero():
			to, kind, title = end, "busy", "running"
		case attempt.Error == "":
			kind = "good"
		}
		add(attempt.StartedAt.Time, to, kind, fmt.Sprintf("attempt %d on %s: %s", attempt.Number, attempt.Worker, title))
		since = to
	}
	if end.After(since) && !run.State.Final() {
		add(since, end, "wait", strings.TrimSpace(string(run.State)))
	}
	return a
}

// place returns where an instant is on an axis.
func (a *axis) place(t time.Time) float64 {
	x := axisWidth * float64(t.Sub(a.From)) / float64(a.To.Sub(a.From))
	return min(max(0, x), axisWidth-axisLeast)
}
