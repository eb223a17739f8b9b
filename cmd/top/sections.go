package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// newSections returns the tables of the overview, in their order.
func newSections() []section {
	return []section{workerSection(), holdSection(), waitSection(), pendingSection(), endSection(), jobSection()}
}

// state shows a word for a state with its sign.
func state(word string) string {
	mark, _ := admin.SignOf(word)
	return mark + " " + word
}

func toneOf(word string) ledger.Tone {
	_, tone := admin.SignOf(word)
	return tone
}

func ago(now, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return admin.Age(now.Sub(at)) + " ago"
}

func age(s admin.Seconds) string { return admin.Age(time.Duration(s)) }

// few names the first of some things, and the number of the others.
func few(names []string) string {
	switch len(names) {
	case 0:
		return ""
	case 1:
		return names[0]
	}
	return fmt.Sprintf("%s (+%d)", names[0], len(names)-1)
}

// many names the first of some things, as many as a few lines take, and the number of the others.
func many(names []string) string {
	const most = 20
	if len(names) > most {
		return fmt.Sprintf("%s (+%d)", strings.Join(names[:most], " "), len(names)-most)
	}
	return strings.Join(names, " ")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func workerSection() section {
	queues := func(w *admin.Worker) []string {
		return slices.SortedFunc(maps.Keys(w.Queues), func(a, b string) int {
			return cmp.Or(cmp.Compare(w.Queues[b], w.Queues[a]), cmp.Compare(a, b))
		})
	}
	shown := func(w *admin.Worker) string {
		if w.Drifted > 0 {
			return state(w.State) + ", drifted"
		}
		return state(w.State)
	}
	return &list[admin.Worker]{
		name: "WORKERS", none: "none is running; lockstep start starts one",
		from: func(s *Seen) []admin.Worker { return s.Snapshot.Workers() },
		id:   func(w *admin.Worker) string { return string(w.ID) },
		texts: func(w *admin.Worker) []string {
			return append(queues(w), string(w.ID), w.Host, shown(w), w.Version, w.Config)
		},
		about: func(w *admin.Worker) Target { return Target{Worker: w.ID, Queues: queues(w)} },
		columns: []column[admin.Worker]{
			{least: 16, cell: func(w *admin.Worker, _ time.Time) string { return string(w.ID) }},
			{title: "STATE", least: 10, cell: func(w *admin.Worker, _ time.Time) string { return shown(w) },
				tone: func(w *admin.Worker) ledger.Tone {
					if w.Drifted > 0 {
						return ledger.ToneWarn
					}
					return toneOf(w.State)
				}},
			{title: "BUSY", cell: func(w *admin.Worker, _ time.Time) string { return fmt.Sprintf("%d/%d", w.Busy, w.Slots) },
				compare: func(a, b *admin.Worker) int {
					return cmp.Or(cmp.Compare(a.Busy*max(1, b.Slots), b.Busy*max(1, a.Slots)), cmp.Compare(a.Busy, b.Busy))
				}},
			{title: "LEASE", cell: func(w *admin.Worker, _ time.Time) string {
				if w.State == admin.Gone {
					return "over"
				}
				return age(w.LeaseLeft)
			}, compare: func(a, b *admin.Worker) int { return cmp.Compare(a.LeaseLeft, b.LeaseLeft) }},
			{title: "HOST", least: 6, most: 24, cell: func(w *admin.Worker, _ time.Time) string { return w.Host }},
			{title: "PID", cell: func(w *admin.Worker, _ time.Time) string { return strconv.Itoa(w.PID) },
				compare: func(a, b *admin.Worker) int { return cmp.Compare(a.PID, b.PID) }},
			{title: "QUEUES", least: 8, most: 40, cell: func(w *admin.Worker, _ time.Time) string { return strings.Join(queues(w), " ") }},
			{title: "STARTED", cell: func(w *admin.Worker, now time.Time) string { return ago(now, w.StartedAt.Time) },
				compare: func(a, b *admin.Worker) int { return a.StartedAt.Compare(b.StartedAt.Time) }},
			{title: "VERSION", least: 7, most: 20, cell: func(w *admin.Worker, _ time.Time) string { return w.Version }},
		},
	}
}

func holdSection() section {
	name := func(h *admin.Holder) string { return cmp.Or(h.Purpose(), string(h.HoldID)) }
	note := func(h *admin.Holder) string {
		switch {
		case h.Stuck != nil:
			return state("stuck")
		case h.Asked != nil:
			return "wanted back"
		case h.Resting:
			return "resting"
		}
		return ""
	}
	return &list[admin.Holder]{
		name: "HOLDS", none: "no locks are held",
		from: func(s *Seen) []admin.Holder { return s.Snapshot.Holders },
		id:   func(h *admin.Holder) string { return string(h.HoldID) },
		texts: func(h *admin.Holder) []string {
			return append([]string{name(h), string(h.Worker), string(h.Host), note(h), h.Token.String()}, h.Bundle...)
		},
		about: func(h *admin.Holder) Target {
			t := Target{Run: jobs.RunID(h.RunID), Job: string(h.Job), Token: h.Token}
			if names := h.Locks(); len(names) > 0 {
				t.Lock = names[0]
			}
			if t.Run != "" {
				t.State = ledger.StateRunning
			}
			return t
		},
		columns: []column[admin.Holder]{
			{least: 24, cell: func(h *admin.Holder, _ time.Time) string { return name(h) }},
			{title: "LOCKS", least: 12, most: 40, cell: func(h *admin.Holder, _ time.Time) string { return few(h.Locks()) }},
			{title: "HELD", cell: func(h *admin.Holder, _ time.Time) string { return age(h.Held) },
				compare: func(a, b *admin.Holder) int { return cmp.Compare(a.Held, b.Held) }},
			{title: "NOTE", least: 4, cell: func(h *admin.Holder, _ time.Time) string { return note(h) },
				tone: func(h *admin.Holder) ledger.Tone {
					if h.Stuck != nil {
						return ledger.ToneBad
					}
					return ledger.ToneWarn
				}},
			{title: "WORKER", least: 14, cell: func(h *admin.Holder, _ time.Time) string { return string(h.Worker) }},
			{title: "LEASE", cell: func(h *admin.Holder, _ time.Time) string { return age(h.LeaseLeft) },
				compare: func(a, b *admin.Holder) int { return cmp.Compare(a.LeaseLeft, b.LeaseLeft) }},
			{title: "TOKEN", cell: func(h *admin.Holder, _ time.Time) string { return h.Token.String() },
				compare: func(a, b *admin.Holder) int { return cmp.Compare(a.Token, b.Token) }},
		},
	}
}

// blockedBy explains what a wait waits for.
func blockedBy(w *admin.Wait) string {
	switch {
	case w.State == space.Kept:
		return "its queue is paused"
	case w.State == space.Offered:
		return "nothing: its turn has come"
	case w.State == space.Lapsed:
		return "nothing: its turn came, and no worker had a slot yet"
	case len(w.Blockers) == 0:
		return "nothing any more"
	}
	names := make([]string, len(w.Blockers))
	for i, b := range w.Blockers {
		names[i] = b.ID
		if b.Waits {
			names[i] += ", which waits too"
		}
	}
	return few(names)
}

func waitSection() section {
	name := func(w *admin.Wait) string { return cmp.Or(w.Purpose(), string(w.Worker), string(w.ID)) }
	return &list[admin.Wait]{
		name: "WAITS", none: "no request waits for a lock",
		from: func(s *Seen) []admin.Wait { return s.Snapshot.Waits },
		id:   func(w *admin.Wait) string { return string(w.ID) },
		texts: func(w *admin.Wait) []string {
			return append(append([]string{name(w), string(w.Worker), string(w.State)}, w.Wants...), w.BlockedBy...)
		},
		about: func(w *admin.Wait) Target {
			t := Target{Run: jobs.RunID(w.RunID), Job: string(w.Job)}
			if t.Run != "" {
				t.State = ledger.StateWaiting
			}
			return t
		},
		columns: []column[admin.Wait]{
			{least: 24, cell: func(w *admin.Wait, _ time.Time) string { return name(w) }},
			{title: "WANTS", least: 10, most: 40, cell: func(w *admin.Wait, _ time.Time) string { return few(w.Wants) }},
			{title: "FOR", cell: func(w *admin.Wait, _ time.Time) string { return age(w.Waited) },
				compare: func(a, b *admin.Wait) int { return cmp.Compare(a.Waited, b.Waited) }},
			{title: "BLOCKED BY", least: 12, cell: func(w *admin.Wait, _ time.Time) string { return blockedBy(w) }},
		},
	}
}

// runColumns are the columns that all lists of runs begin with.
func runColumns(more ...column[admin.Run]) []column[admin.Run] {
	return append([]column[admin.Run]{
		{least: 24, cell: func(r *admin.Run, _ time.Time) string { return string(r.ID) }},
		{title: "STATE", least: 11, cell: func(r *admin.Run, _ time.Time) string { return state(string(r.State)) },
			tone: func(r *admin.Run) ledger.Tone { return r.State.Facts().Tone }},
	}, more...)
}

func runTexts(r *admin.Run) []string {
	texts := []string{string(r.ID), string(r.State), r.Queue, r.Why(), string(r.Args)}
	for i := range r.Attempts {
		texts = append(texts, string(r.Attempts[i].Worker))
	}
	return texts
}

func runTarget(r *admin.Run) Target {
	return Target{Run: r.ID, State: r.State, Job: r.Job, Queues: []string{r.Queue}}
}

// whyNot explains why a run does not run, or what its last attempt met.
func whyNot(r *admin.Run) string {
	// the column WHEN has the time for which it waits
	tried := r.State.Facts().Index == ledger.IndexTime && len(r.Attempts) > 0
	if r.WaitingFor != nil && !tried {
		return r.WaitingFor.Text
	}
	return firstLine(r.Why())
}

// outstanding returns how many runs are neither finished nor running.
func outstanding(o *admin.Overview) string {
	if !o.CountedAll {
		return strconv.Itoa(o.Outstanding()) + " or more"
	}
	return strconv.Itoa(o.Outstanding())
}

func pendingSection() section {
	return &list[admin.Run]{
		name: "NOT RUNNING", none: "no run is due",
		from:  func(s *Seen) []admin.Run { return s.Overview.Pending },
		total: func(s *Seen) string { return outstanding(s.Overview) },
		id:    func(r *admin.Run) string { return string(r.ID) },
		texts: func(r *admin.Run) []string { return append(runTexts(r), whyNot(r)) },
		about: runTarget,
		columns: runColumns(
			column[admin.Run]{title: "WHEN", cell: func(r *admin.Run, now time.Time) string {
				if r.DueAt.IsZero() {
					return "made " + ago(now, r.CreatedAt.Time)
				}
				return "due in " + admin.Age(r.DueAt.Sub(now))
			}, compare: func(a, b *admin.Run) int { return a.CreatedAt.Compare(b.CreatedAt.Time) }},
			column[admin.Run]{title: "WHY", least: 12, cell: func(r *admin.Run, _ time.Time) string { return whyNot(r) }},
		),
	}
}

func endSection() section {
	worker := func(r *admin.Run) string {
		if n := len(r.Attempts); n > 0 {
			return string(r.Attempts[n-1].Worker)
		}
		return ""
	}
	return &list[admin.Run]{
		name: "LAST ENDS", none: "no run has finished yet",
		from:  func(s *Seen) []admin.Run { return s.Overview.Runs },
		id:    func(r *admin.Run) string { return string(r.ID) },
		texts: runTexts,
		about: runTarget,
		columns: runColumns(
			column[admin.Run]{title: "ENDED", cell: func(r *admin.Run, now time.Time) string { return ago(now, r.FinishedAt.Time) },
				compare: func(a, b *admin.Run) int { return b.FinishedAt.Compare(a.FinishedAt.Time) }},
			column[admin.Run]{title: "TOOK", cell: func(r *admin.Run, now time.Time) string { return r.Took(now) },
				compare: func(a, b *admin.Run) int {
					return cmp.Compare(a.FinishedAt.Sub(a.StartedAt.Time), b.FinishedAt.Sub(b.StartedAt.Time))
				}},
			column[admin.Run]{title: "WHY", least: 12, cell: func(r *admin.Run, _ time.Time) string { return firstLine(r.Why()) }},
			column[admin.Run]{title: "TRIES", cell: func(r *admin.Run, _ time.Time) string { return strconv.Itoa(len(r.Attempts)) },
				compare: func(a, b *admin.Run) int { return cmp.Compare(len(a.Attempts), len(b.Attempts)) }},
			column[admin.Run]{title: "WORKER", least: 10, cell: func(r *admin.Run, _ time.Time) string { return worker(r) }},
		),
	}
}

func jobSection() section {
	return &list[admin.Job]{
		name: "JOBS TO LOOK AT", none: "no job is late, paused or drifted",
		from:  func(s *Seen) []admin.Job { return s.Overview.Noted },
		total: func(s *Seen) string { return strconv.Itoa(len(s.Overview.Noted) + s.Overview.MoreNote) },
		id:    func(j *admin.Job) string { return j.Name },
		texts: func(j *admin.Job) []string {
			return append(j.Notes(), j.Name, string(j.Paused), j.Queue)
		},
		about: func(j *admin.Job) Target { return Target{Job: j.Name, Queues: []string{j.Queue}} },
		columns: []column[admin.Job]{
			{least: 12, cell: func(j *admin.Job, _ time.Time) string { return j.Name }},
			{title: "NOTED", least: 14, cell: func(j *admin.Job, _ time.Time) string {
				notes := j.Notes()
				for i, note := range notes {
					notes[i] = state(note)
				}
				return strings.Join(notes, ", ")
			}, tone: func(j *admin.Job) ledger.Tone {
				if j.Late {
					return ledger.ToneBad
				}
				return ledger.ToneWarn
			}},
			{title: "LAST SUCCESS", cell: func(j *admin.Job, now time.Time) string { return ago(now, j.LastSuccess.Time) },
				compare: func(a, b *admin.Job) int { return a.LastSuccess.Compare(b.LastSuccess.Time) }},
			{title: "WHY", least: 10, cell: func(j *admin.Job, _ time.Time) string { return string(j.Paused) }},
		},
	}
}
