package web

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

const (
	streamsMost = 128 // streams of events at a time
	// between two looks of a stream: a bit longer than an answer is shared
	lookEvery = keepAtLast + 10*time.Millisecond
	reconnect = 2 * time.Second // how long a client waits before it connects again

	revisionsMost = 64  // revisions that are kept for clients that connect again
	changesMost   = 100 // runs of a revision of which the change is reported
	// for how long a run that a look does not show is not forgotten: it may have changed its state
	// between two reads of the look
	unseenFor = 5 * time.Second
)

// The sections are the parts of the state in which a revision reports changes. Fields that change
// with time alone, such as the seconds since a grant, are in none of them.
const (
	inWorkers = "workers"
	inLocks   = "locks" // holds
	inWaits   = "waits"
	inJobs    = "jobs" // their notes, the next ticks
	inRuns    = "runs" // the outstanding ones and their numbers, the last ends
	inConfig  = "config"
	inAudit   = "audit"
)

var sections = []string{inWorkers, inLocks, inWaits, inJobs, inRuns, inConfig, inAudit}

// revision is the data of an event overview: what has changed since the one before.
type revision struct {
	Number   int           `json:"revision"`
	At       admin.Instant `json:"at"`
	Sections []string      `json:"sections"`
	MoreRuns int           `json:"more_runs"` // changed too, without a report

	runs []runChange
}

// runChange is the data of an event run.
type runChange struct {
	ID    jobs.RunID   `json:"id"`
	Job   string       `json:"job"`
	State ledger.State `json:"state"`
	Was   admin.Text   `json:"was"` // null: it was not seen before

	at   time.Time // when it entered the state, as far as that is known
	seen time.Time // the last look that showed it
}

// feed turns what the server reads into revisions. It has no goroutine: the streams ask for the
// state, as other clients do, and the first one to notice a change adds a revision. So it reads
// nothing while no client listens, and for many no more than for one.
type feed struct {
	name string // in the ids of revisions: those of other processes mean nothing here
	seed maphash.Seed

	mu        sync.Mutex               // guards the fields below
	streams   int                      // open ones
	at        time.Time                // of the last look
	marks     map[string]uint64        // what each section looked like
	runs      map[jobs.RunID]runChange // what the last look saw of runs
	revisions []revision               // the last ones
}

func newFeed() *feed {
	return &feed{name: strings.ToLower(rand.Text()[:8]), seed: maphash.MakeSeed()}
}

// errStreams is returned when as many clients follow the events as the server takes.
var errStreams = fmt.Errorf("%d clients follow the events of this worker, and it takes no more: close some, or use another worker", streamsMost)

// join counts a stream, and returns the function that ends it.
func (f *feed) join() (leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams >= streamsMost {
		return nil, errStreams
	}
	f.streams++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.streams--
	}, nil
}

// look reads the state, at most once a second for all streams, and returns the number of the latest
// revision.
func (s *Server) look(ctx context.Context) (int, error) {
	return shared(ctx, s.read, "events", func(ctx context.Context) (int, error) {
		snapshot, err := s.snapshot(ctx)
		if err != nil {
			return 0, err
		}
		seen, err := s.overview(ctx)
		if err != nil {
			return 0, err
		}
		acts, err := s.o.Reader.Audit(ctx, admin.Filter{Limit: 1})
		if err != nil {
			return 0, err
		}
		return s.feed.note(seen.At.Time, s.feed.marksOf(snapshot, seen, acts, s.config()), runsIn(snapshot, seen)), nil
	})
}

// marksOf returns a hash of each section.
func (f *feed) marksOf(snapshot *admin.Snapshot, seen *admin.Overview, acts []admin.Act, config *admin.Config) map[string]uint64 {
	var h maphash.Hash
	h.SetSeed(f.seed)
	marks := make(map[string]uint64, len(sections))
	mark := func(section string) {
		marks[section] = h.Sum64()
		h.Reset()
	}
	for _, w := range snapshot.Workers() {
		fmt.Fprintln(&h, w.ID, w.State, w.Slots, w.Busy, w.Version, w.Config, w.Drifted, w.Admin, w.Key, w.Refused, w.Queues, w.Disputed)
	}
	mark(inWorkers)
	for i := range snapshot.Holders {
		hold := &snapshot.Holders[i]
		fmt.Fprintln(&h, hold.HoldID, hold.Token, len(hold.Bundle), hold.Resting, hold.Asked != nil, hold.Stuck != nil)
	}
	mark(inLocks)
	for i := range snapshot.Waits {
		wait := &snapshot.Waits[i]
		fmt.Fprintln(&h, wait.ID, wait.State, wait.BlockedBy)
	}
	mark(inWaits)
	fmt.Fprintln(&h, seen.Jobs, seen.MoreNote, seen.MoreNext)
	for i := range seen.Noted {
		fmt.Fprintf(&h, "%s %q\n", seen.Noted[i].Name, seen.Noted[i].Notes())
	}
	for _, next := range seen.Next {
		fmt.Fprintln(&h, next.Job, next.Tick)
	}
	mark(inJobs)
	fmt.Fprintln(&h, seen.Count, seen.Unable)
	for i := range seen.Pending {
		run := &seen.Pending[i]
		fmt.Fprintln(&h, run.ID, run.State, run.DueAt)
		if why := run.WaitingFor; why != nil {
			fmt.Fprintln(&h, why.Reason, why.Text)
		}
	}
	for i := range seen.Runs {
		fmt.Fprintln(&h, seen.Runs[i].ID, seen.Runs[i].State, seen.Runs[i].FinishedAt)
	}
	mark(inRuns)
	if config != nil {
		fmt.Fprintln(&h, config.Digest, config.Reloads, config.Refused, config.NeedsRestart)
	}
	mark(inConfig)
	for _, act := range acts {
		fmt.Fprintln(&h, act.ID, act.At, act.Times)
	}
	mark(inAudit)
	return marks
}

// runsIn returns the runs of which a look shows the state. The later reads, of the ledger, have the
// last word.
func runsIn(snapshot *admin.Snapshot, seen *admin.Overview) map[jobs.RunID]runChange {
	runs := make(map[jobs.RunID]runChange, len(snapshot.Holders)+len(snapshot.Waits)+len(seen.Runs)+len(seen.Pending))
	add := func(id jobs.RunID, state ledger.State, at time.Time) {
		if id != "" {
			runs[id] = runChange{ID: id, Job: id.Job(), State: state, at: at}
		}
	}
	for i := range snapshot.Waits {
		add(jobs.RunID(snapshot.Waits[i].RunID), ledger.StateWaiting, snapshot.Waits[i].Since.Time)
	}
	for i := range snapshot.Holders {
		add(jobs.RunID(snapshot.Holders[i].RunID), ledger.StateRunning, snapshot.Holders[i].Since.Time)
	}
	for i := range seen.Pending {
		add(seen.Pending[i].ID, seen.Pending[i].State, seen.Pending[i].CreatedAt.Time)
	}
	for i := range seen.Runs {
		add(seen.Runs[i].ID, seen.Runs[i].State, seen.Runs[i].FinishedAt.Time)
	}
	return runs
}

// note adds a revision if a look shows a change, and returns the number of the latest one. A run
// that no look has shown before has changed if it is about as new as the last look. Older ones only
// came into view, because the lists are short.
func (f *feed) note(at time.Time, marks map[string]uint64, runs map[jobs.RunID]runChange) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := revision{Number: 1, At: admin.Instant{Time: at}}
	if n := len(f.revisions); n > 0 {
		next.Number = f.revisions[n-1].Number + 1
		for id, run := range runs {
			before, known := f.runs[id]
			if known && before.State != run.State || !known && f.at.Sub(run.at) < unseenFor {
				run.Was = admin.Text(before.State)
				next.runs = append(next.runs, run)
			}
		}
	}
	for id, run := range runs {
		run.seen = at
		runs[id] = run
	}
	for id, run := range f.runs {
		if _, shown := runs[id]; !shown && at.Sub(run.seen) < unseenFor {
			runs[id] = run
		}
	}
	for _, section := range sections {
		if len(f.revisions) == 0 || marks[section] != f.marks[section] || section == inRuns && len(next.runs) > 0 {
			next.Sections = append(next.Sections, section)
		}
	}
	f.at, f.marks, f.runs = at, marks, runs
	if len(next.Sections) == 0 {
		return next.Number - 1
	}
	slices.SortFunc(next.runs, func(a, b runChange) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.ID, b.ID)) })
	if next.MoreRuns = len(next.runs) - changesMost; next.MoreRuns > 0 {
		next.runs = next.runs[:changesMost]
	} else {
		next.MoreRuns = 0
	}
	if len(f.revisions) == revisionsMost {
		f.revisions = slices.Delete(f.revisions, 0, 1)
	}
	f.revisions = append(f.revisions, next)
	return next.Number
}

// since returns the events after a revision. When the feed no longer knows what has changed since
// then, that is everything. Without a new revision the event overview has no sections.
func (f *feed) since(number int) (events string, last int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	latest := f.revisions[len(f.revisions)-1]
	sum := revision{Number: latest.Number, At: latest.At, Sections: []string{}}
	changed := make(map[string]bool)
	if number < f.revisions[0].Number-1 || number > latest.Number || number < 1 {
		sum.Sections = sections
	} else {
		for _, r := range f.revisions {
			if r.Number > number {
				sum.runs, sum.MoreRuns = append(sum.runs, r.runs...), sum.MoreRuns+r.MoreRuns
				for _, section := range r.Sections {
					changed[section] = true
				}
			}
		}
		for _, section := range sections {
			if changed[section] {
				sum.Sections = append(sum.Sections, section)
			}
		}
	}
	var text strings.Builder
	for _, run := range sum.runs {
		text.WriteString(event("run", run))
	}
	// Only this event has an id, and it comes last: a client that was cut off before it gets the
	// runs once more.
	fmt.Fprintf(&text, "id: %s-%d\n", f.name, sum.Number)
	text.WriteString(event("overview", sum))
	return text.String(), sum.Number
}

// parse returns the number in the id of a revision; 0 if it is not one of this feed.
func (f *feed) parse(id string) int {
	text, ours := strings.CutPrefix(id, f.name+"-")
	number, err := strconv.Atoi(text)
	if !ours || err != nil {
		return 0
	}
	return number
}

// events answers with a stream of events, which ends when the client disconnects, when the server
// stops, or when the user loses access. The package's doc describes the events.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	if _, err := ask(r); err != nil {
		return err
	}
	leave, err := s.feed.join()
	if err != nil {
		return err
	}
	defer leave()
	out := newStream(w, r)
	if r.Method != http.MethodHead {
		s.follow(r, out, s.feed.parse(r.Header.Get("Last-Event-ID")))
	}
	return nil
}

// follow sends events, beginning with what has changed since a revision, until the stream ends.
func (s *Server) follow(r *http.Request, out *stream, revision int) {
	ctx := r.Context()
	if !out.send(fmt.Sprintf(": lockstep\nretry: %d\n\n", reconnect.Milliseconds())) {
		return
	}
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	admitted, greeted, problem := time.Now(), false, ""
	for {
		number, err := s.look(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			text := event("problem", unreadable(err))
			if text != problem && !out.send(text) {
				return
			}
			problem = text
		case !greeted || problem != "" || number != revision:
			var text string
			text, revision = s.feed.since(revision)
			if greeted, problem = true, ""; !out.send(text) {
				return
			}
		}
		if time.Since(admitted) >= heartbeat {
			if _, err := s.admit(r); err != nil {
				return
			}
			admitted = time.Now()
		}
		if !out.beat() {
			return
		}
		timer.Reset(lookEvery)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		case <-shutdown(ctx):
			return
		}
	}
}

// unread is the data of an event problem.
type unread struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

// unreadable describes why Redis cannot be read.
func unreadable(err error) unread {
	status, detail := http.StatusServiceUnavailable, "Redis cannot be read: "+err.Error()
	if space.Refused(err) {
		status, detail = http.StatusInternalServerError, "Redis refuses this: "+err.Error()+"; lockstep doctor looks for the reason"
	}
	return unread{status, http.StatusText(status), detail}
}
