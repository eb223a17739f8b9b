package web

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/cronspec"
	"lockstep/scheduler/ledger"
)

const (
	nextTicks = 10 // that a job's page shows
	openRuns  = 10
)

func (s *Server) jobPages() {
	s.show("/jobs", "jobs", s.jobsPage, with(admin.JobFilters, "note", "limit", "cursor")...)
	s.show("/jobs/next", "next", s.nextPage, with(admin.NextFilters, "limit", "cursor")...)
	s.show("/jobs/{job}", "job", s.jobPage, "limit", "cursor")
	s.show("/jobs/{job}/explain", "explain", s.explainPage, "at", "run")
}

// jobsPage lists the jobs.
func (s *Server) jobsPage(ctx context.Context, q question, v *view) (err error) {
	if v.Now, err = s.now(ctx); err != nil {
		return err
	}
	v.Title = "Jobs"
	listed, err := s.jobs(ctx, q)
	if err != nil {
		return err
	}
	v.Seen = struct {
		rows[admin.Job]
		Known int // without the filter
	}{newRows(s, q, listed.part), listed.known}
	v.filterBy(with(admin.JobFilters, "note"), map[string][]string{"note": admin.Notes, "state": admin.Outcomes()[1:]})
	return nil
}

// nextPage lists the next ticks of all jobs.
func (s *Server) nextPage(ctx context.Context, q question, v *view) (err error) {
	if v.Now, err = s.now(ctx); err != nil {
		return err
	}
	v.Page, v.Title = "jobs", "Next ticks"
	ticks, err := s.next(ctx, q)
	if err != nil {
		return err
	}
	v.Seen = newRows(s, q, ticks)
	v.filterBy(admin.NextFilters, nil)
	return nil
}

// localTick is a future tick, also in the job's time zone.
type localTick struct {
	Tick  admin.TickTime
	Local string
}

// jobSeen is what the page of a job shows.
type jobSeen struct {
	Job   *admin.Job
	At    string      // its place in the config of the worker that serves the page; "" for none
	Open  []admin.Run // some of those that have not ended
	Long  []string    // the running ones that take unusually long, in words
	Next  []localTick
	Ends  []endBar // the last ones, the oldest first
	Ended []admin.Run
	Usual admin.Usual
	Args  string
	Ticks rows[admin.Tick]
}

func (s *Server) jobPage(ctx context.Context, q question, v *view) (err error) {
	r, name := s.o.Reader, q.path("job")
	if v.Now, err = s.now(ctx); err != nil {
		return err
	}
	job, err := shared(ctx, s.read, "job "+name, func(ctx context.Context) (*admin.Job, error) { return r.Job(ctx, name) })
	if err != nil {
		return err
	}
	seen := jobSeen{Job: job, Args: readable(job.Args)}
	if config := s.config(); config != nil {
		seen.At = config.Places[name]
	}
	seen.Ended, err = shared(ctx, s.read, "page ends "+name, func(ctx context.Context) ([]admin.Run, error) { return r.Ends(ctx, name, admin.UsualOver) })
	if err != nil {
		return err
	}
	seen.Usual = admin.UsualOf(seen.Ended)
	seen.Ends = drawEnds(s.link(), seen.Ended)
	open, err := shared(ctx, s.read, "page open "+name, func(ctx context.Context) ([]admin.Run, error) {
		runs, _, err := r.RunPage(ctx, admin.RunFilter{Job: name, Limit: openRuns}, "")
		return runs, err
	})
	if err != nil {
		return err
	}
	for _, run := range open {
		if !run.State.Final() {
			seen.Open = append(seen.Open, run)
			if text := seen.Usual.Unusual(&run, v.Now); text != "" {
				seen.Long = append(seen.Long, fmt.Sprintf("%s %s", run.ID, text))
			}
		}
	}
	if !job.NextTick.IsZero() {
		ticks, err := shared(ctx, s.read, "page next "+name, func(ctx context.Context) ([]admin.NextTick, error) { return r.Next(ctx, name, nextTicks) })
		if err != nil {
			return err
		}
		seen.Next = localTicks(ticks, string(job.Timezone))
	}
	ticks, err := s.ticks(ctx, q)
	if err != nil {
		return err
	}
	seen.Ticks = newRows(s, q, ticks)
	v.Page, v.Title, v.Seen = "jobs", name, seen
	return nil
}

func localTicks(ticks []admin.NextTick, timezone string) []localTick {
	zone, err := cronspec.LoadZone(timezone)
	if err != nil {
		zone = time.UTC
	}
	local := make([]localTick, len(ticks))
	for i, tick := range ticks {
		local[i] = localTick{tick.Tick, tick.Tick.In(zone).Format("Mon 2006-01-02 15:04:05 MST")}
	}
	return local
}

// indented returns JSON on several lines, "" for null.
func indented(text json.RawMessage) string {
	if len(text) == 0 || string(text) == "null" {
		return ""
	}
	pretty, err := json.MarshalIndent(text, "", "  ")
	if err != nil {
		return string(text)
	}
	return string(pretty)
}

// readable is indented, without the end of what is very long.
func readable(text json.RawMessage) string {
	if len(text) > mostText {
		return jobs.Cut(string(text), mostText)
	}
	return jobs.Cut(indented(text), mostText)
}

const mostText = 20_000 // bytes of a text that a page shows as it is

// endBar is one end of a run in the strip of a job.
type endBar struct {
	X, Y, H int
	Kind    string // as of a badge
	Sign    string // "" for success
	Href    string
	Title   string
}

const (
	endWidth  = 18 // of a bar with its gap
	endHeight = 56
)

// drawEnds draws the last runs of a job, the oldest first. The longest one has the full height.
func drawEnds(link linker, runs []admin.Run) []endBar {
	longest := time.Millisecond
	for _, run := range runs {
		longest = max(longest, durationOf(run))
	}
	bars := make([]endBar, 0, len(runs))
	for _, run := range slices.Backward(runs) {
		state := newBadge(run.State)
		bar := endBar{X: len(bars) * endWidth, H: 3, Kind: state.Kind, Href: link.path("runs", run.ID), Title: fmt.Sprintf("%s: %s", run.ID, state.Word)}
		if !run.StartedAt.IsZero() {
			took := durationOf(run)
			bar.H = max(bar.H, int(endHeight*float64(took)/float64(longest)))
			bar.Title += " after " + admin.Span(took)
		}
		bar.Title += ", ended " + run.FinishedAt.UTC().Format("2006-01-02 15:04:05 UTC")
		if run.State != ledger.StateSucceeded {
			bar.Sign = state.Sign
		}
		bar.Y = 16 + endHeight - bar.H
		bars = append(bars, bar)
	}
	return bars
}

// durationOf returns how long a run took; 0 for one that never started, or has not ended.
func durationOf(run admin.Run) time.Duration {
	if run.StartedAt.IsZero() || run.FinishedAt.IsZero() {
		return 0
	}
	return max(0, run.FinishedAt.Sub(run.StartedAt.Time))
}

// explainPage says why a tick of a job ran, or did not.
func (s *Server) explainPage(ctx context.Context, q question, v *view) error {
	e, err := s.explain(ctx, q)
	if err != nil {
		return err
	}
	v.Page, v.Title, v.Seen = "jobs", "Why "+e.Job+" ran, or not", e
	return nil
}
