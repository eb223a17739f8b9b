package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

const (
	mostNamed   = 10  // runs that the page of an act names
	mostSkipped = 10  // runs of which it says why they are skipped
	mostName    = 120 // characters of a name there

	// the field of a selected run. It is not called id: a form has a property of that name, and a
	// field would hide it from the script of the page
	selectedRun = "run"
)

// bulkAct is an act on many runs: those that a person has selected, or all that a filter finds.
type bulkAct struct {
	action, title, button string
	danger                bool
	pick                  func(context.Context, []jobs.RunID) (*admin.Match, error)
	find                  func(context.Context, admin.RunFilter) (*admin.Match, error)
	do                    func(context.Context, *admin.Match, string, admin.Actor) (*admin.Bulk, error)
	says                  func(*admin.Match) []string // what will happen to some runs
	did                   func(*admin.Bulk) string
}

func (s *Server) cancelRuns() pageAct {
	r, o := s.o.Reader, s.o.Operator
	return s.bulkPage(bulkAct{
		action: "cancel runs", title: "Cancel runs", button: "Cancel", danger: true, pick: r.SelectToCancel, find: r.ToCancel, do: o.CancelRuns,
		says: func(m *admin.Match) []string {
			var words []string
			running := m.States[ledger.StateRunning]
			if n := len(m.Runs) - running; n > 0 {
				words = append(words, plural(n, "run does not run: it ends as canceled at once.", "runs do not run: they end as canceled at once."))
			}
			if running > 0 {
				words = append(words, plural(running, "run is running: its worker is asked to stop it.", "runs are running: their workers are asked to stop them.")+
					" A run that has stopped ends as canceled.")
			}
			return words
		},
		did: func(b *admin.Bulk) string {
			var did []string
			if n := b.Done - b.Asked; n > 0 || b.Asked == 0 {
				did = append(did, plural(n, "run is canceled", "runs are canceled"))
			}
			if b.Asked > 0 {
				did = append(did, plural(b.Asked, "running run is asked to stop", "running runs are asked to stop"))
			}
			return strings.Join(did, ", ") + "."
		},
	})
}

func (s *Server) retryRuns() pageAct {
	r, o := s.o.Reader, s.o.Operator
	return s.bulkPage(bulkAct{
		action: "retry runs", title: "Retry runs", button: "Retry", pick: r.SelectToRetry, find: r.ToRetry, do: o.RetryRuns,
		says: func(m *admin.Match) []string {
			if len(m.Runs) == 0 {
				return nil
			}
			return []string{plural(len(m.Runs), "run becomes due again, under its id and by the present definition of its job",
				"runs become due again, under their ids and by the present definitions of their jobs") +
				": an effect that is recorded under its key is not made again."}
		},
		did: func(b *admin.Bulk) string { return plural(b.Done, "run is due again.", "runs are due again.") },
	})
}

// bulkPage is the page of an act on many runs. Selected ones are sent as ids; otherwise the form
// has the filter. It refuses when the runs that it finds, or their states, are not those that the
// page showed, and it acts on exactly those that it has compared.
func (s *Server) bulkPage(b bulkAct) pageAct {
	return pageAct{
		page: "runs", action: b.action, title: func(*http.Request) string { return b.title }, limit: bulkLimit,
		fields: with(admin.RunFilters, "from", "number", "fewer"), repeats: selectedRun,
		ask: func(ctx context.Context, r *http.Request, values url.Values) (*asking, error) {
			a := &asking{Danger: b.danger, Back: s.runsLink(values)}
			match, err := s.matchOf(ctx, b, values, a)
			if err != nil || match == nil {
				return a, err
			}
			n := len(match.Runs)
			a.found, a.Seen = match, fmt.Sprintf("%d %s", n, match.Mark())
			a.Says = append(a.Says, b.says(match)...)
			a.Says = append(a.Says, runWords(match)...)
			if n == 0 {
				a.Says = append([]string{"No run is left to act on."}, a.Says...)
			} else {
				a.Button = b.button + " " + plural(n, "run", "runs")
			}
			if r.Method == http.MethodPost {
				n = compare(a, n, values)
			}
			if n > admin.BulkTyped {
				a.Fields = append(a.Fields, field{"number", "These are many. Type their number, " + strconv.Itoa(n) + ", to continue", "", "number"})
			}
			return a, nil
		},
		doFound: func(ctx context.Context, a *asking, by admin.Actor) error {
			outcome, err := b.do(ctx, a.found, a.on, by)
			if err != nil {
				return err
			}
			a.Done, a.Rest = b.did(outcome), outcomeWords(outcome)
			a.Partly = outcome.Refused > 0 || outcome.Left > 0
			return nil
		},
	}
}

// compare compares the runs that a form was drawn for with those that are found now, and the number
// that the person has typed. It returns the number to type.
func compare(a *asking, now int, values url.Values) int {
	seen := values.Get("seen")
	drawn, _, _ := strings.Cut(seen, " ")
	then, err := strconv.Atoi(drawn)
	switch {
	case err != nil: // the form of the list: nothing was drawn yet
		return now
	case seen == a.Seen:
	case values.Get("fewer") != "" && now > 0 && now <= then:
		a.Seen = seen
	case now == then:
		a.Wrong = "The runs have changed since the page was drawn: others match now, or some have started or ended. " + nothingDone
		return now
	default:
		a.Wrong = fmt.Sprintf("The runs have changed since the page was drawn: there were %d, and now there are %d. %s", then, now, nothingDone)
		return now
	}
	if then > admin.BulkTyped && strings.TrimSpace(values.Get("number")) != drawn {
		a.Lacks = "Type the number of the runs to continue. Nothing was done."
	}
	return then
}

// matchOf finds the runs that a form is about, and adds what it must send again. It returns nil if
// the form selects none.
func (s *Server) matchOf(ctx context.Context, b bulkAct, values url.Values, a *asking) (*admin.Match, error) {
	hide := func(name, value string) { a.Fields = append(a.Fields, field{name, "", value, "hidden"}) }
	if selected := values[selectedRun]; len(selected) > 0 {
		if len(selected) > pageRows {
			return nil, fmt.Errorf("%w: %d runs are selected; a page has at most %d, and a filter selects more", admin.ErrInvalid, len(selected), pageRows)
		}
		ids := make([]jobs.RunID, len(selected))
		for i, id := range selected {
			ids[i] = jobs.RunID(id)
			hide(selectedRun, id)
		}
		hide("from", values.Get("from"))
		a.on = "selected: " + strings.Join(selected, " ")
		return b.pick(ctx, ids)
	}
	given := make(url.Values)
	for _, name := range admin.RunFilters {
		if value := values.Get(name); value != "" {
			given.Set(name, value)
		}
	}
	if len(given) == 0 {
		a.Wrong = "No run is selected, and no filter is given. Check the boxes of some runs, or filter the list."
		return nil, nil
	}
	filter, err := s.o.Reader.ReadFilter(ctx, given.Get)
	if err != nil {
		return nil, err
	}
	hide("from", cmp.Or(values.Get("from"), given.Encode()))
	// The form has fixed times, so that no run begins or ceases to match by the passing of time
	// alone, and runs that are made, or end, after the page was drawn are not among them.
	if filter.Until.IsZero() {
		now, err := s.o.Reader.Now(ctx)
		if err != nil {
			return nil, err
		}
		filter.Until = now.Add(time.Millisecond) // with the runs of this one
	}
	given.Set("until", filter.Until.Format(time.RFC3339Nano))
	if !filter.Since.IsZero() {
		given.Set("since", filter.Since.Format(time.RFC3339Nano))
	}
	for _, name := range admin.RunFilters {
		if given.Has(name) {
			hide(name, given.Get(name))
		}
	}
	if a.on, err = url.QueryUnescape(given.Encode()); err != nil {
		return nil, err
	}
	a.Says = []string{"The filter is " + shorten(a.on, 300) + "."}
	a.Fields = append(a.Fields, field{"fewer", "Act also if fewer runs match by then, because some have started or ended", values.Get("fewer"), "check"})
	return b.find(ctx, filter)
}

// runWords counts the runs of a match by state, and names the first of them and of those that are
// skipped.
func runWords(m *admin.Match) []string {
	var words, counts []string
	for _, state := range ledger.StateNames() {
		if n := m.States[ledger.State(state)]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if len(counts) > 0 {
		words = append(words, "By state: "+strings.Join(counts, ", ")+".")
	}
	names := make([]string, 0, mostNamed)
	for _, id := range m.Runs[:min(len(m.Runs), mostNamed)] {
		names = append(names, shorten(string(id), mostName))
	}
	switch more := len(m.Runs) - len(names); {
	case more > 0:
		words = append(words, fmt.Sprintf("The first ones are %s; %d more follow.", strings.Join(names, ", "), more))
	case len(names) > 0:
		words = append(words, "By name: "+strings.Join(names, ", ")+".")
	}
	if m.More {
		words = append(words, fmt.Sprintf("More runs may match: the search ended with its bound of %d. Act on the others afterward, or bound the filter by since and until.", admin.BulkMost))
	}
	for _, skipped := range m.Skipped[:min(len(m.Skipped), mostSkipped)] {
		words = append(words, fmt.Sprintf("%s is skipped: %s.", shorten(string(skipped.RunID), mostName), skipped.Why))
	}
	if more := len(m.Skipped) - mostSkipped; more > 0 {
		words = append(words, plural(more, "more is skipped.", "more are skipped."))
	}
	return words
}

// outcomeWords says what an act on many runs has not done, and why.
func outcomeWords(b *admin.Bulk) []string {
	var words []string
	if b.Refused > 0 {
		words = append(words, plural(b.Refused, "run has refused.", "runs have refused."))
	}
	if b.Left > 0 {
		words = append(words, plural(b.Left, "run is left, because of an error. Repeat the act for it.", "runs are left, because of an error. Repeat the act for them."))
	}
	for _, refusal := range b.Refusals {
		words = append(words, fmt.Sprintf("%s: %s", shorten(string(refusal.RunID), mostName), shorten(refusal.Why, 300)))
	}
	if b.More {
		words = append(words, "More runs may match: repeat the act for them.")
	}
	return words
}

// runsLink returns the address of the list that a form came from, or that its filter selects.
func (s *Server) runsLink(values url.Values) string {
	query := make(url.Values)
	from := values // of the address of a question
	if values.Has("from") {
		from, _ = url.ParseQuery(values.Get("from")) // without what cannot be read
	}
	for name, given := range from {
		if slices.Contains(runsParams, name) && given[0] != "" {
			query.Set(name, given[0])
		}
	}
	return withQuery(s.link().path("runs"), query)
}

func withQuery(path string, query url.Values) string {
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}
