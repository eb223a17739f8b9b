package admin

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"lockstep/jobs"
)

// ErrorGroup is some runs of a list that have the same error.
type ErrorGroup struct {
	Error    Text       `json:"error"` // its first line; null for runs without one
	Runs     int        `json:"runs"`
	Jobs     []string   `json:"jobs"` // those of the runs, at most ten of them
	MoreJobs int        `json:"more_jobs"`
	LastRun  jobs.RunID `json:"last_run"` // the first one of the list
	LastAt   Instant    `json:"last_at"`  // its end; null while it is outstanding
}

const (
	groupJobs = 10 // jobs that a group names
	// groupReads bounds the steps of a page of groups. Each reads at most mostRead runs, and
	// looksAtMost others.
	groupReads = 50
)

// errorGroups groups runs by their errors.
type errorGroups struct {
	byError map[Text]*ErrorGroup
	jobs    map[Text]map[string]bool
	most    int // groups; 0: no limit
}

func newErrorGroups(most int) *errorGroups {
	return &errorGroups{make(map[Text]*ErrorGroup), make(map[Text]map[string]bool), most}
}

// add adds a run, and returns false if it would need one group too many.
func (g *errorGroups) add(run *Run) bool {
	line, _, _ := strings.Cut(run.Why(), "\n")
	text := Text(line)
	group := g.byError[text]
	if group == nil {
		if g.most > 0 && len(g.byError) == g.most {
			return false
		}
		group = &ErrorGroup{Error: text, LastRun: run.ID, LastAt: run.FinishedAt}
		g.byError[text], g.jobs[text] = group, make(map[string]bool)
	}
	group.Runs++
	g.jobs[text][run.Job] = true
	return true
}

// list returns the groups, that with the most runs first.
func (g *errorGroups) list() []ErrorGroup {
	groups := make([]ErrorGroup, 0, len(g.byError))
	for text, group := range g.byError {
		group.Jobs, group.MoreJobs = some(slices.Sorted(maps.Keys(g.jobs[text])), groupJobs)
		groups = append(groups, *group)
	}
	slices.SortFunc(groups, func(a, b ErrorGroup) int {
		return cmp.Or(cmp.Compare(b.Runs, a.Runs), cmp.Compare(a.Error, b.Error))
	})
	return groups
}

// RunErrors groups the runs that a filter selects by the first line of their reason or error. The
// group with the most runs is the first. The filter's limit is one of groups.
func (r *Reader) RunErrors(ctx context.Context, filter RunFilter) ([]ErrorGroup, error) {
	groups := newErrorGroups(0)
	if _, err := r.groupRuns(ctx, filter, nil, groups, 0); err != nil {
		return nil, err
	}
	list := groups.list()
	if filter.Limit > 0 {
		list, _ = some(list, filter.Limit)
	}
	return list, nil
}

// RunErrorPage returns groups as [Reader.RunErrors] does, of a part of the runs, and the cursor of
// the next part. A part has at most filter.Limit groups, which must not be 0, and at most 10,000
// runs; the same error may have groups in several parts.
func (r *Reader) RunErrorPage(ctx context.Context, filter RunFilter, cursor string) (groups []ErrorGroup, next string, err error) {
	after, err := readPosition(cursor)
	if err != nil {
		return nil, "", err
	}
	part := newErrorGroups(filter.Limit)
	next, err = r.groupRuns(ctx, filter, after, part, groupReads)
	return part.list(), next, err
}

// groupRuns adds the runs of a list to groups, and returns the cursor of those that did not fit.
// With reads > 0 it stops after that many steps.
func (r *Reader) groupRuns(ctx context.Context, filter RunFilter, after *position, groups *errorGroups, reads int) (next string, err error) {
	pager, err := r.runPager(filter, after)
	if err != nil {
		return "", err
	}
	if named, is, err := r.namedRun(ctx, filter); err != nil || is {
		for _, one := range named {
			run := newRun(one.record)
			groups.add(&run)
		}
		return "", err
	}
	last := pager.at
	for n := 0; !pager.done && (reads == 0 || n < reads); n++ {
		items, err := pager.next(ctx, mostRead, looksAtMost)
		if err != nil {
			return "", err
		}
		for _, one := range items {
			run := newRun(one.record)
			if !groups.add(&run) {
				return last.cursor(), nil
			}
			last = one.at
		}
		last = pager.at
	}
	if len(groups.byError) == 0 && filter.Job != "" {
		if _, err := r.book.Job(ctx, filter.Job); err != nil {
			return "", err
		}
	}
	if pager.done {
		return "", nil
	}
	return last.cursor(), nil
}
