package ledger

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks/space"
)

// maxStaged bounds the lists that are staged at the same time. One of which a part is recorded
// counts twice.
const maxStaged = 100

// errGone means that another process has recorded a part of a list.
var errGone = errors.New("a worker has recorded this part of the list")

// part names requests of a staged list: those from an index to before another one. last: they are
// the last ones. The zero part is for requests of no staged list.
type part struct {
	list       string
	from, upto int
	last       bool
}

// args returns the arguments of enqueueall for a part.
func (p part) args() []any {
	if p.list == "" {
		return []any{"", "", ""}
	}
	upto := ""
	if !p.last {
		upto = strconv.Itoa(p.upto)
	}
	return []any{p.list, strconv.Itoa(p.from), upto}
}

// stagedList is a list as the key lists has it, in JSON.
type stagedList struct {
	Entry    string // for the audit
	Kinds    []stagedKind
	Requests []stagedRequest
}

// stagedKind is a kind and the definition that it names.
type stagedKind struct {
	Job, Queue               string
	Trigger                  Trigger
	Remember                 int64
	Parent                   jobs.RunID
	Trace, Name, Definition  string
	Patience, OnBusy, Limits string
}

// stagedRequest is a request of a kind, by its index.
type stagedRequest struct {
	Kind        int
	Run         jobs.RunID
	At, In      int64 // ms; In: from when the list was staged
	Args, Items string
}

// encodeList returns a list as it is staged.
func encodeList(some []*wanted, entry string) (string, error) {
	list, kinds := stagedList{Entry: entry}, make(map[kind]int)
	for _, w := range some {
		k, known := kinds[w.kind]
		if !known {
			k, kinds[w.kind] = len(kinds), len(kinds)
			of := w.kind
			list.Kinds = append(list.Kinds, stagedKind{of.job, of.queue, of.trigger, of.remember, of.parent, of.trace, of.name, w.definition,
				of.patience, of.onBusy, of.limits})
		}
		list.Requests = append(list.Requests, stagedRequest{k, w.run, w.at, w.in, w.args, w.items})
	}
	text, err := json.Marshal(list)
	return string(text), err
}

// decodeList returns the requests of a list that was staged at an instant (server ms), and its
// entry for the audit.
func decodeList(text string, at int64) ([]*wanted, string, error) {
	var list stagedList
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, "", err
	}
	some := make([]*wanted, 0, len(list.Requests))
	for _, r := range list.Requests {
		if r.Kind < 0 || r.Kind >= len(list.Kinds) {
			return nil, "", fmt.Errorf("request %s is of kind %d, and there are %d", r.Run, r.Kind, len(list.Kinds))
		}
		k := list.Kinds[r.Kind]
		w := &wanted{run: r.Run, definition: k.Definition, at: r.At, args: r.Args, items: r.Items}
		w.kind = kind{k.Job, k.Queue, k.Trigger, k.Remember, k.Parent, k.Trace, k.Name, k.Patience, k.OnBusy, k.Limits}
		if r.In > 0 {
			w.at = max(w.at, at+r.In)
		}
		some = append(some, w)
	}
	return some, list.Entry, nil
}

// enqueueInParts records an atomic list that is too long for one script. If
// a worker will record the rest, the error says so.
func (l *Ledger) enqueueInParts(ctx context.Context, some []*wanted, entry string) error {
	text, err := encodeList(some, entry)
	if err != nil {
		return err
	}
	of := kindsOf(some)
	keys := l.keysOfKinds(of, entry)
	args := []any{rand.Text(), text, maxStaged, len(l.keys) + 1}
	for _, w := range of.first {
		args = append(args, w.kind.name)
	}
	r := space.Read(l.runLists(ctx, "stage", keys, args))
	name := r.Text()
	if r.Err != nil {
		return r.Err
	}
	if name == "full" {
		return errors.New("too many lists are staged: their senders have died, and no worker records the rest of them: `lockstep doctor` says more")
	}
	recorded, err := l.recordParts(ctx, name, some, entry, 0)
	if err == nil {
		return nil
	}
	if recorded == 0 && space.Over(err) {
		dropped, failed := l.unstage(ctx, name)
		if dropped {
			return err
		}
		err = errors.Join(err, failed)
	}
	return fmt.Errorf("%w; a worker will record the rest of the list, which is stored", err)
}

// recordParts records the requests of a staged list from an index on. It returns up to which one
// they are recorded.
func (l *Ledger) recordParts(ctx context.Context, name string, some []*wanted, entry string, from int) (int, error) {
	for from < len(some) {
		upto := from + firstPart(some[from:])
		batch := some[from:upto]
		err := l.enqueueScript(ctx, batch, entry, "", part{name, from, upto, upto == len(some)})
		switch {
		case errors.Is(err, errGone): // this process was slow, or a reply was lost
			for _, w := range batch {
				w.enqueued, w.err = &Enqueued{Run: w.run, Exists: true}, nil
			}
		case err != nil:
			return from, err
		}
		from = upto
	}
	return from, nil
}

// unstage drops a staged list. It returns false if a part of the list is recorded.
func (l *Ledger) unstage(ctx context.Context, name string) (bool, error) {
	r := space.Read(l.runLists(ctx, "unstage", append(slices.Clip(l.keys), l.prefix+listsKey), []any{name}))
	return r.Number() == 1, r.Err
}

// A Staged is an atomic list that is not recorded yet, or not all of it.
type Staged struct {
	Name string
	For  time.Duration // for how long it has been staged
}

// Staged returns the lists that are staged, the oldest first: see "Lists of requests" in the
// package doc.
func (l *Ledger) Staged(ctx context.Context) ([]Staged, error) {
	fail := func(err error) ([]Staged, error) {
		return nil, fmt.Errorf("read staged lists: %w", l.space.Explain(err))
	}
	n, err := l.rdb.HLen(ctx, l.prefix+listsKey).Result()
	if err != nil {
		return fail(err)
	}
	if n == 0 {
		return nil, nil
	}
	names, err := l.rdb.HKeys(ctx, l.prefix+listsKey).Result()
	if err != nil {
		return fail(err)
	}
	now, err := l.rdb.Time(ctx).Result()
	if err != nil {
		return fail(err)
	}
	var lists []Staged
	for _, name := range names {
		if at, ok := stagedAt(name); ok {
			lists = append(lists, Staged{name, now.Sub(time.UnixMilli(at))})
		}
	}
	slices.SortFunc(lists, func(a, b Staged) int { return cmp.Or(cmp.Compare(b.For, a.For), strings.Compare(a.Name, b.Name)) })
	return lists, nil
}

// stagedAt returns when a list was staged (server ms). ok is false for the field of a list that
// counts what is recorded of it.
func stagedAt(name string) (at int64, ok bool) {
	before, _, ok := strings.Cut(name, "-")
	if !ok || strings.HasSuffix(name, "\x00") {
		return 0, false
	}
	at, err := strconv.ParseInt(before, 10, 64)
	return at, err == nil
}

// RecordStaged records what is missing of the lists that have been staged for some time: their
// senders, which need a few round trips, have died. It returns an error for those that it could not
// record; they stay staged.
func (l *Ledger) RecordStaged(ctx context.Context, least time.Duration) error {
	lists, err := l.Staged(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, list := range lists {
		if list.For < least {
			break
		}
		if err := l.recordStaged(ctx, list.Name); err != nil {
			errs = append(errs, fmt.Errorf("record the staged list %s: %w", list.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (l *Ledger) recordStaged(ctx context.Context, name string) error {
	values, err := l.rdb.HMGet(ctx, l.prefix+listsKey, name, name+"\x00").Result()
	if err != nil {
		return l.space.Explain(err)
	}
	text, staged := values[0].(string)
	if !staged {
		return nil // it was recorded in the meantime
	}
	at, _ := stagedAt(name)
	some, entry, err := decodeList(text, at)
	from := 0
	if n, is := values[1].(string); is && err == nil {
		from, err = strconv.Atoi(n)
	}
	if err == nil && (from < 0 || from > len(some)) {
		err = fmt.Errorf("%d of its %d requests are recorded", from, len(some))
	}
	if err != nil {
		return fmt.Errorf("it is unreadable, and `redis-cli HDEL %s %s` drops it: %w", l.prefix+listsKey, name, err)
	}
	_, err = l.recordParts(ctx, name, some, entry, from)
	return err
}
