package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

const (
	pickMost   = 16              // runs that are picked together
	shelfPages = 16              // pages of shelves that are read together
	lookOlder  = 5 * time.Second // how long the knowledge about workers of older builds is valid
	// how long a run stays away that perhaps only a worker of an older build can do
	forOlder = time.Second

	// Runs that were set aside before a worker of an older build came are pushed for it.
	pushAside = 200         // runs that are pushed together
	pushEvery = time.Second // by the worker on duty
	// by any other worker: a worker of an older build may have duty
	pushOtherwise = 15 * time.Second
)

// can reports whether this worker has what a definition needs.
func (w *Worker) can(need ledger.Need) bool {
	if slices.ContainsFunc(need.Keys(), func(key string) bool { return !jobs.KnowsKey(key) }) {
		return false
	}
	return w.executorOf(need.Kind(), need.Name()) != nil
}

// executorOf returns the executor of a kind of work, or nil if this worker has none. The executor
// must know name: see [jobs.Kind.Need].
func (w *Worker) executorOf(kind, name string) jobs.Executor {
	executor := w.o.Executors[kind]
	if chooser, ok := executor.(jobs.Chooser); ok && !chooser.Has(name) {
		return nil
	}
	return executor
}

// setAside leaves a run to a worker that has what it needs, and notifies such workers at once.
// Until one exists the run stays due.
func (w *Worker) setAside(due ledger.Due, need ledger.Need) {
	call, cancel := context.WithTimeout(w.attempts, callLimit)
	defer cancel()
	if w.olderServes(call, due.Queue) {
		w.putOff(due, forOlder)
		return
	}
	if len(need.Keys()) > 0 {
		w.often.WarnContext(w.attempts, "runs are left to workers of a newer build", "run", due.Run, "needs", need)
	} else {
		w.often.InfoContext(w.attempts, "runs are left to workers that have their handler", "run", due.Run, "needs", need)
	}
	if _, err := w.ledger.SetAside(call, due, need); err != nil {
		w.often.WarnContext(w.attempts, "could not set a run aside, the sweep will push it", "call", "set aside", "run", due.Run, "error", err)
	}
}

// served returns the queues that live workers serve, without those workers that drain.
func (w *Worker) served(ctx context.Context) (map[string]bool, error) {
	return w.servedBy(ctx, func(Card) bool { return true })
}

// servedBy is served for the workers with a matching card.
func (w *Worker) servedBy(ctx context.Context, match func(Card) bool) (map[string]bool, error) {
	served := make(map[string]bool)
	sessions, _, err := w.locks.Space().Sessions(ctx)
	for _, session := range sessions {
		var card Card
		if json.Unmarshal(session.Card, &card) != nil || session.LeaseLeft <= 0 || card.State == "draining" || !match(card) {
			continue
		}
		for name := range card.Queues {
			served[name] = true
		}
	}
	return served, err
}

// older is the queues that workers of older builds serve, which do not look for runs that are set
// aside.
type older struct {
	queues map[string]bool
	at     time.Time
}

// olderServes reports whether a worker of an older build may serve a queue.
func (w *Worker) olderServes(ctx context.Context, queue string) bool {
	queues, err := w.olderQueues(ctx)
	return err != nil || queues[queue] // in doubt, true costs nothing but time
}

// olderQueues returns the queues that workers of older builds served at most [lookOlder] ago.
func (w *Worker) olderQueues(ctx context.Context) (map[string]bool, error) {
	w.olderReading.Lock() // the runs of one fetch that are set aside need one read
	defer w.olderReading.Unlock()
	if seen := w.older.Load(); seen != nil && time.Since(seen.at) <= lookOlder {
		return seen.queues, nil
	}
	queues, err := w.servedBy(ctx, func(card Card) bool { return !card.Picks })
	if err == nil {
		w.older.Store(&older{queues, time.Now()})
	}
	return queues, err
}

// someAside notes that a poll found runs that are set aside.
func (w *Worker) someAside() {
	w.polled.Store(true)
	w.lookAside()
}

// watchOlder pushes runs that are set aside where a worker of an older build serves their queue,
// until ctx ends. A worker that cannot do such a run then puts it off ([Worker.setAside]), so the
// run is delivered about once a second.
func (w *Worker) watchOlder(ctx context.Context) {
	ticker := time.NewTicker(pushEvery)
	defer ticker.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !w.polled.Swap(false) || !w.loop.Load().Duty() && time.Since(last) < pushOtherwise {
			continue
		}
		last = time.Now()
		if err := w.pushForOlder(ctx); err != nil && ctx.Err() == nil {
			w.often.WarnContext(ctx, "could not push runs that are set aside for a worker of an older build, will retry",
				"call", "push for older builds", "error", err)
		}
	}
}

// pushForOlder pushes some runs that are set aside where a worker of an older build serves their
// queue.
func (w *Worker) pushForOlder(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	queues, err := w.olderQueues(ctx)
	if err != nil || len(queues) == 0 {
		return err
	}
	var due []ledger.Due
	for range shelfPages {
		var shelves []ledger.Shelf
		if shelves, w.olderAfter, err = w.ledger.Shelves(ctx, w.olderAfter); err != nil {
			return err
		}
		shelves = slices.DeleteFunc(shelves, func(p ledger.Shelf) bool { return !queues[p.Queue] })
		if len(shelves) > 0 {
			if due, err = w.ledger.Pick(ctx, pushAside, shelves); err != nil {
				return err
			}
		}
		if len(due) > 0 || w.olderAfter == (ledger.Shelf{}) {
			break
		}
	}
	if len(due) > 0 {
		w.often.InfoContext(ctx, "runs that were set aside are pushed for a worker of an older build", "call", "push for older builds",
			"runs", len(due), "run", due[0].Run)
		w.pusher.Add(due...)
	}
	return nil
}

// notice handles a notice that a script has sent.
func (w *Worker) notice(notice string) {
	if run, is := strings.CutPrefix(notice, ledger.NoticeOutput); is {
		w.followed(jobs.RunID(run))
		return
	}
	switch ticks := w.loop.Load(); notice {
	case queue.NoticePushed:
		if s := w.server.Load(); s != nil {
			s.Wake()
		}
	case ledger.NoticeAside:
		w.lookAside()
	case ledger.NoticeLeft:
		if ticks != nil {
			ticks.Left()
		}
	}
}

// lookAside makes the worker look for runs that are set aside. It does not block.
func (w *Worker) lookAside() {
	select {
	case w.aside <- struct{}{}:
	default:
	}
}

// watchAside picks runs that other workers set aside, as long as this worker can do some of them,
// until ctx ends.
func (w *Worker) watchAside(ctx context.Context) {
	var after ledger.Shelf
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.aside:
		}
		after = walkShelves(after, func(after ledger.Shelf) (ledger.Shelf, bool) { return w.pick(ctx, after) })
	}
}

// walkShelves picks in some pages of shelves, and returns the shelf to continue after the next
// time: where the pages were too many, or where pick failed. It begins behind the shelf at which
// the last walk ended, and continues with the first shelves after the last one, as far as that
// shelf: a run that was set aside since may be in front of it.
func walkShelves(from ledger.Shelf, pick func(after ledger.Shelf) (next ledger.Shelf, ok bool)) ledger.Shelf {
	var first ledger.Shelf // no shelf: the first ones follow it
	after, again := from, from == first
	for range shelfPages {
		next, ok := pick(after)
		if !ok {
			break
		}
		if after = next; after == first {
			if again {
				break
			}
			again = true
		} else if again && from != first && compareShelves(after, from) >= 0 {
			return first
		}
	}
	return after
}

// compareShelves compares shelves in the order in which they are read.
func compareShelves(a, b ledger.Shelf) int {
	return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Need, b.Need))
}

// pick claims runs that were set aside in a page of shelves, in slots that it waits for, until none
// are left there for this worker. It returns the shelf to continue after; false when the caller
// must try again later.
func (w *Worker) pick(ctx context.Context, after ledger.Shelf) (next ledger.Shelf, ok bool) {
	for {
		call, cancel := context.WithTimeout(ctx, callLimit)
		shelves, next, err := w.ledger.Shelves(call, after)
		cancel()
		paused := w.paused.Load()
		if err != nil || paused == nil { // the next poll asks again
			return after, false
		}
		shelves = slices.DeleteFunc(shelves, func(p ledger.Shelf) bool {
			return w.o.Queues[p.Queue] == 0 || (*paused)[p.Queue] || !w.can(p.Need)
		})
		if len(shelves) == 0 {
			return next, true
		}
		if w.slots.Take(ctx) != nil {
			return after, false
		}
		if !w.canBegin() {
			w.slots.Free(1)
			return after, false
		}
		slices.SortStableFunc(shelves, func(a, b ledger.Shelf) int { return cmp.Compare(w.o.Queues[b.Queue], w.o.Queues[a.Queue]) })
		n := 1
		for n < pickMost && w.slots.TryTake() {
			n++
		}
		call, cancel = context.WithTimeout(ctx, callLimit)
		due, err := w.ledger.Pick(call, n, shelves)
		cancel()
		w.slots.Free(n - len(due))
		if err != nil {
			w.often.WarnContext(ctx, "could not pick runs that are set aside, will retry", "call", "pick", "error", err)
			return after, false
		}
		if len(due) == 0 {
			return next, true
		}
		w.claimAll(w.startable(due))
	}
}

// startable returns the runs of those it has picked that this worker may start now. While it waited
// for slots, a queue may have been paused. It pushes the other runs, and releases their slots.
func (w *Worker) startable(picked []ledger.Due) []ledger.Due {
	paused := w.paused.Load()
	return slices.DeleteFunc(picked, func(d ledger.Due) bool {
		if w.o.Queues[d.Queue] > 0 && paused != nil && !(*paused)[d.Queue] {
			return false
		}
		w.slots.Free(1)
		w.pusher.Add(d)
		return true
	})
}
