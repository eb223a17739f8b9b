package ledger

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

const (
	// MaxRequests bounds the requests of a [List].
	MaxRequests = 1000

	// MaxAtomic bounds the bytes of arguments and lock keys of a list that is atomic: one script
	// stages it.
	MaxAtomic = 1 << 20

	// enqueuedTogether and bytesTogether bound the requests that one script records.
	enqueuedTogether = 200
	bytesTogether    = 1 << 20

	// enqueueLimit is how long a script may take that records the requests of several callers.
	enqueueLimit = 10 * time.Second
)

// A List is several requests that are made together.
type List struct {
	Items  []Request // at most MaxRequests. Their acts are ignored
	Atomic bool      // all of them are recorded, or none
	// Refused has, by index, what the caller has found wrong with items: they are not recorded.
	Refused map[int]error
	// Act is for the audit: one entry, which counts the new runs; nil for none.
	Act *Act
}

// Replied is the reply to one request of a [List].
type Replied struct {
	*Enqueued       // nil with an error
	Err       error // this request was not recorded, or its reply was lost
}

// RequestError is the error of one request, for which a list was refused. Nothing was recorded.
type RequestError struct {
	Index int // from 0
	Err   error
}

func (e *RequestError) Error() string { return fmt.Sprintf("items[%d]: %v", e.Index, e.Err) }

func (e *RequestError) Unwrap() error { return e.Err }

// TooMany returns the error of a list with n requests, which are more than [MaxRequests].
func TooMany(n int) *RequestError {
	return &RequestError{MaxRequests, jobs.Permanent(fmt.Errorf("the list has %d requests, and at most %d are taken: %w", n, MaxRequests, jobs.ErrTooLarge))}
}

// EnqueueAll records many requested runs with few scripts. The replies are in the order of the
// requests. It refuses a list that is too long, and an atomic one with a request that cannot be
// recorded; the error is a [*RequestError]. Otherwise such a request has its own error, and does
// not affect the others. An existing id is no error: as with [Ledger.Enqueue], the reply names the
// run. If an id occurs twice, the second request finds the run of the first.
//
// An atomic list is recorded as a whole or, after an error, not at all. An error in transit leaves
// open which; of a list that is not atomic, it is the same error for all requests without a reply,
// and for those that were not sent after that. The list may be sent again, with the same ids. If a
// long atomic list could only be recorded in part, the other requests have the error [ErrPending]:
// a worker will record them.
func (l *Ledger) EnqueueAll(ctx context.Context, list List) ([]Replied, error) {
	if len(list.Items) > MaxRequests {
		return nil, TooMany(len(list.Items))
	}
	if err := list.Act.check(); err != nil {
		return nil, fmt.Errorf("enqueue a list: %w", err)
	}
	all := make([]*wanted, len(list.Items))
	replies := make([]Replied, len(list.Items))
	definitions := make(map[*jobs.Job]string)
	var some []*wanted
	bytes := 0
	for i := range list.Items {
		w, err := (*wanted)(nil), list.Refused[i]
		if err == nil {
			request := list.Items[i]
			request.Act = nil
			if w, err = l.prepare(ctx, &request); err == nil {
				err = l.define(w, definitions)
			}
		}
		if err == nil {
			if bytes += w.size(); list.Atomic && bytes > MaxAtomic {
				err = jobs.Permanent(fmt.Errorf("the args and lock keys up to here have more than the %d bytes of an atomic list: %w", MaxAtomic, jobs.ErrTooLarge))
			}
		}
		if err != nil {
			if list.Atomic {
				return nil, &RequestError{i, err}
			}
			replies[i].Err = err
			continue
		}
		all[i], some = w, append(some, w)
	}
	var err error
	switch entry := list.Act.entry(); {
	case !list.Atomic:
		l.enqueueSome(ctx, some, entry)
	case firstPart(some) < len(some):
		err = l.enqueueInParts(ctx, some, entry)
	default:
		err = l.enqueueScript(ctx, some, entry, "", part{})
	}
	if err != nil {
		return nil, fmt.Errorf("enqueue %d runs, all or none: %w", len(some), err)
	}
	for i, w := range all {
		if w != nil {
			replies[i] = Replied{w.enqueued, w.err}
		}
	}
	return replies, nil
}

// CheckRequest returns the error with which a request would be refused before it is sent, or nil.
func (l *Ledger) CheckRequest(ctx context.Context, request Request) error {
	w, err := l.prepare(ctx, &request)
	if err == nil {
		err = l.define(w, nil)
	}
	return err
}

// size is how many bytes the request adds to a script that has others of its kind.
func (w *wanted) size() int { return len(w.args) + len(w.items) }

// A load is what one script records. The zero value is empty.
type load struct {
	bytes int
	kinds map[kind]bool
}

// add adds a request, unless the script would then be too long. The first one always fits.
func (l *load) add(w *wanted) bool {
	size := w.size()
	if !l.kinds[w.kind] {
		size += len(w.definition)
	}
	if l.bytes > 0 && l.bytes+size > bytesTogether {
		return false
	}
	if l.kinds == nil {
		l.kinds = make(map[kind]bool)
	}
	l.bytes += size
	l.kinds[w.kind] = true
	return true
}

// enqueueWithOthers records a request together with those of other goroutines. One of the waiting
// goroutines makes the call for all. leave reports whether this one has entered, to make a call.
func (l *Ledger) enqueueWithOthers(ctx context.Context, w *wanted, leave bool) {
	w.done = make(chan struct{})
	if l.wanted.Add(ctx, w); leave {
		l.wanted.Leave(ctx)
	}
	ended := ctx.Done()
	for {
		select {
		case <-w.done:
			return
		case send := <-l.sends:
			send()
		case <-ended:
			if l.wanted.Withdraw(func(other *wanted) bool { return other == w }) {
				w.fail(context.Cause(ctx))
				return
			}
			ended = nil // it is being sent, which takes enqueueLimit at most
		}
	}
}

// enqueueGroup records the requests of several goroutines, in their order.
func (l *Ledger) enqueueGroup(ctx context.Context, some []*wanted) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueLimit)
	defer cancel()
	definitions := make(map[*jobs.Job]string)
	defined := make([]*wanted, 0, len(some))
	for _, w := range some {
		if w.err = l.define(w, definitions); w.err == nil {
			defined = append(defined, w)
		}
	}
	l.enqueueSome(ctx, defined, "")
	for _, w := range some {
		close(w.done)
	}
}

// enqueueSome records requests with scripts of bounded length. Each request gets its reply or its
// error. Once one script has got no reply, it sends no further one.
func (l *Ledger) enqueueSome(ctx context.Context, some []*wanted, entry string) {
	var lost error
	for len(some) > 0 {
		n := firstPart(some)
		batch := some[:n]
		some = some[n:]
		err := lost
		if err == nil {
			err = l.enqueueScript(ctx, batch, entry, "", part{})
		}
		switch {
		case err == nil:
		case lost == nil && space.Over(err) && n > 1:
			// Redis has refused all of them, perhaps because of one.
			for _, w := range batch {
				l.enqueueAlone(ctx, w, entry)
			}
		default:
			if !space.Over(err) {
				lost = err
			}
			for _, w := range batch {
				w.fail(err)
			}
		}
	}
}

// firstPart returns how many of the first requests one script records.
func firstPart(some []*wanted) int {
	var script load
	n := 0
	for n < min(len(some), enqueuedTogether) && script.add(some[n]) {
		n++
	}
	return n
}

// runLists is [Ledger.run] for a script that names the histories of several jobs.
func (l *Ledger) runLists(ctx context.Context, s script, keys []string, args []any) (space.Reply, error) {
	return space.RunText(ctx, l.rdb, s.assembled(), keys, args...)
}

// kinds are the kinds of requests that a script records together.
type kinds struct {
	number  map[kind]int // from 1
	first   []*wanted    // the first request of each
	parents bool         // a kind has a parent
}

func kindsOf(some []*wanted) kinds {
	of := kinds{number: make(map[kind]int)}
	for _, w := range some {
		if of.number[w.kind] == 0 {
			of.first = append(of.first, w)
			of.number[w.kind], of.parents = len(of.first), of.parents || w.kind.parent != ""
		}
	}
	return of
}

// keysOfKinds returns the keys of enqueueall.
func (l *Ledger) keysOfKinds(of kinds, entry string) []string {
	keys := append(slices.Clip(l.keys), l.prefix+listsKey)
	for _, w := range of.first {
		keys = append(keys, l.historyOf(w.kind.job)...)
	}
	if of.parents {
		keys = append(keys, l.prefix+childrenKey)
	}
	if entry != "" {
		keys = append(keys, l.prefix+"acts")
	}
	return keys
}

// enqueueScript records requests with one script, or, after an error, none of them. adopting is the
// session of a worker that adopts them, or "". of names a part of a staged list: enqueueScript
// returns errAhead if another process has recorded that, and errGone if the list is not staged.
func (l *Ledger) enqueueScript(ctx context.Context, some []*wanted, entry string, adopting locks.SessionID, of part) error {
	if len(some) == 0 {
		return nil
	}
	kinds := kindsOf(some)
	args := make([]any, 2, 2+10*len(kinds.first)+5*len(some)+5)
	args[0], args[1] = entry, len(kinds.first)
	for _, w := range kinds.first {
		k := w.kind
		args = append(args, k.job, k.queue, string(k.trigger), k.remember, string(k.parent)+k.trace, k.name, w.definition, k.patience, k.onBusy, k.limits)
	}
	for _, w := range some {
		when := w.giving
		if w.at > 0 || w.in > 0 {
			when = strconv.FormatInt(w.at, 10) + " " + strconv.FormatInt(w.in, 10)
		}
		args = append(args, kinds.number[w.kind], string(w.run), when, w.args, w.items)
	}
	args = append(append(args, of.args()...), string(adopting), GeneratedFor.Milliseconds())
	reply, err := l.runLists(ctx, "enqueueall", l.keysOfKinds(kinds, entry), args)
	switch {
	case err == nil && adopting != "" && len(reply) > 0 && reply[0] == "dead":
		return ErrSession
	case err == nil && of.list != "" && len(reply) > 0 && reply[0] == "ahead":
		return errAhead
	case err == nil && of.list != "" && len(reply) > 0 && reply[0] == "gone":
		return errGone
	}
	if err == nil && len(reply) != len(some) {
		err = fmt.Errorf("%w: %d replies to %d requests", space.ErrReply, len(reply), len(some))
	}
	if err != nil {
		return err
	}
	for i, w := range some {
		w.enqueued, w.err = &Enqueued{Run: w.run}, nil
		switch answer := reply[i].(type) {
		case string:
			w.enqueued.Exists, w.enqueued.State = true, State(answer)
		case int64:
			if w.enqueued.State = StateScheduled; answer == 1 {
				w.enqueued.State, w.enqueued.Due = StateDue, []Due{{Run: w.run, N: 1, Queue: w.kind.queue}}
			}
		default:
			return fmt.Errorf("%w: %T", space.ErrReply, answer)
		}
	}
	return nil
}
