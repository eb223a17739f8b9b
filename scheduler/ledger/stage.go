package ledger

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/gob"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/space"
)

// maxStaged bounds the lists that are staged at the same time.
const maxStaged = 200

// ErrPending is the error for a request of an atomic list that is not recorded yet: the list is
// stored, and a worker will record it within a minute, or once Redis no longer refuses it.
var ErrPending = errors.New("the list is stored, and a worker will record this request")

var (
	// errAhead means that another process has recorded a part of a list.
	errAhead = errors.New("another process has recorded this part of the list")

	errGone = errors.New("the list is no longer stored: Redis has lost it, or a worker has recorded it and some of its runs have left the history")
)

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

// stagedList is a list as the key lists has it.
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

// stagedRequest is a request of a kind, by its number from 1.
type stagedRequest struct {
	Kind        int
	Run         jobs.RunID
	At, In      int64 // ms; In: from when the list was staged
	Args, Items string
}

// encodeList returns a list as it is staged. The text is the same if the list is sent again.
func encodeList(some []*wanted, entry string, of kinds) (string, error) {
	list := stagedList{Entry: entry}
	for _, w := range of.first {
		k := w.kind
		list.Kinds = append(list.Kinds, stagedKind{k.job, k.queue, k.trigger, k.remember, k.parent, k.trace, k.name, w.definition,
			k.patience, k.onBusy, k.limits})
	}
	for _, w := range some {
		list.Requests = append(list.Requests, stagedRequest{of.number[w.kind], w.run, w.at, w.in, w.args, w.items})
	}
	var text bytes.Buffer // not JSON, which changes and lengthens some texts
	err := gob.NewEncoder(&text).Encode(list)
	return text.String(), err
}

// decodeList returns the requests of a list that was staged at an instant (server ms), and its
// entry for the audit.
func decodeList(text string, at int64) ([]*wanted, string, error) {
	var list stagedList
	if err := gob.NewDecoder(strings.NewReader(text)).Decode(&list); err != nil {
		return nil, "", err
	}
	some := make([]*wanted, 0, len(list.Requests))
	for _, r := range list.Requests {
		if r.Kind < 1 || r.Kind > len(list.Kinds) {
			return nil, "", fmt.Errorf("request %s is of kind %d, and there are %d", r.Run, r.Kind, len(list.Kinds))
		}
		k := list.Kinds[r.Kind-1]
		w := &wanted{run: r.Run, definition: k.Definition, at: r.At, args: r.Args, items: r.Items}
		w.kind = kind{k.Job, k.Queue, k.Trigger, k.Remember, k.Parent, k.Trace, k.Name, k.Patience, k.OnBusy, k.Limits}
		if r.In > 0 {
			w.at = max(w.at, at+r.In)
		}
		some = append(some, w)
	}
	return some, list.Entry, nil
}

// enqueueInParts records an atomic list that is too long for one script. If it returns no error,
// each request has its reply, or ErrPending.
func (l *Ledger) enqueueInParts(ctx context.Context, some []*wanted, entry string) error {
	of := kindsOf(some)
	text, err := encodeList(some, entry, of)
	if err != nil {
		return err
	}
	if most := 2 * MaxAtomic; len(text) > most {
		return jobs.Permanent(fmt.Errorf("an atomic list with the definitions of its jobs may have %d bytes, and this one has %d: %w", most, len(text), jobs.ErrTooLarge))
	}
	// A list that is sent again, after a lost reply, is the same list.
	digest := sha256.Sum256([]byte(text))
	name := base64.RawURLEncoding.EncodeToString(digest[:])
	keys := l.keysOfKinds(of, entry)
	args := []any{name, text, 2 * maxStaged, len(l.keys) + 1}
	for _, w := range of.first {
		args = append(args, w.kind.name)
	}
	r := space.Read(l.runLists(ctx, "stage", keys, args))
	switch outcome := r.Text(); {
	case r.Err != nil && space.Unsent(r.Err):
		return r.Err
	case r.Err != nil:
		return fmt.Errorf("%w%s", r.Err, inDoubt)
	case outcome == "full":
		return errors.New("too many atomic lists are being recorded: send this one later; if that does not help, lockstep doctor says why")
	}
	err = l.recordParts(ctx, name, some, entry, 0)
	if err == nil {
		return nil
	}
	if some[0].enqueued == nil && (space.Unsent(err) || errors.Is(err, errGone)) {
		r := space.Read(l.runLists(ctx, "unstage", append(slices.Clip(l.keys), l.prefix+listsKey), []any{name}))
		switch outcome := r.Text(); {
		case r.Err != nil:
			return fmt.Errorf("%w; %w%s", err, r.Err, inDoubt)
		case outcome != "recorded":
			return err
		}
	}
	if !errors.Is(err, errGone) {
		err = fmt.Errorf("%w: %w", ErrPending, err)
	}
	for _, w := range some {
		if w.enqueued == nil {
			w.fail(err)
		}
	}
	return nil
}

// inDoubt ends the error for a list if it is not known whether that is staged.
const inDoubt = "; if the list is stored nevertheless, a worker will record it"

// recordParts records the requests of a staged list from an index on.
func (l *Ledger) recordParts(ctx context.Context, name string, some []*wanted, entry string, from int) error {
	for from < len(some) {
		upto := from + firstPart(some[from:])
		batch := some[from:upto]
		err := l.enqueueScript(ctx, batch, entry, "", part{name, from, upto, upto == len(some)})
		if errors.Is(err, errGone) {
			err = l.wereRecorded(ctx, batch)
		}
		switch {
		case errors.Is(err, errAhead): // this process was slow, or a reply was lost
			for _, w := range batch {
				w.enqueued, w.err = &Enqueued{Run: w.run, Exists: true}, nil
			}
		case err != nil:
			return err
		}
		from = upto
	}
	return nil
}

// wereRecorded looks for the runs of a list that is no longer staged. It returns errAhead if all of
// them exist.
func (l *Ledger) wereRecorded(ctx context.Context, some []*wanted) error {
	found := make([][2]*redis.BoolCmd, len(some))
	err := l.pipeline(ctx, func(pipe redis.Pipeliner) {
		for i, w := range some {
			found[i] = [2]*redis.BoolCmd{pipe.HExists(ctx, l.prefix+"run", string(w.run)), pipe.HExists(ctx, l.prefix+"hist:"+w.kind.job, string(w.run))}
		}
	})
	if err != nil {
		return err
	}
	for _, f := range found {
		if !f[0].Val() && !f[1].Val() {
			return errGone
		}
	}
	return errAhead
}

// A Staged is an atomic list that is not recorded yet, or not all of it.
type Staged struct {
	Name string
	For  time.Duration // for how long it has been staged; negative if the clock of Redis went back

	at       int64 // server ms
	recorded int   // requests
	err      error // it is unreadable
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
	fields, err := l.rdb.HKeys(ctx, l.prefix+listsKey).Result()
	if err != nil {
		return fail(err)
	}
	if len(fields) == 0 {
		return nil, nil
	}
	names := make(map[string]bool)
	for _, field := range fields {
		names[strings.TrimPrefix(strings.TrimPrefix(field, "l:"), "n:")] = true
	}
	lists := make([]Staged, 0, len(names))
	var progress []string
	for name := range names {
		lists, progress = append(lists, Staged{Name: name}), append(progress, "n:"+name)
	}
	values, err := l.rdb.HMGet(ctx, l.prefix+listsKey, progress...).Result()
	if err != nil {
		return fail(err)
	}
	now, err := l.rdb.Time(ctx).Result()
	if err != nil {
		return fail(err)
	}
	for i := range lists {
		list := &lists[i]
		text, _ := values[i].(string)
		if _, err := fmt.Sscanf(text, "%d %d", &list.at, &list.recorded); err != nil {
			list.err = fmt.Errorf("its progress is %q, want two numbers", text)
		}
		list.For = now.Sub(time.UnixMilli(list.at))
	}
	slices.SortFunc(lists, func(a, b Staged) int { return cmp.Or(cmp.Compare(b.For, a.For), strings.Compare(a.Name, b.Name)) })
	return lists, nil
}

// RecordStaged records what is missing of the lists that have been staged for some time: their
// senders, which need a few round trips, have died. It returns the runs that are due by that, and
// an error for lists that it could not record; they stay staged.
func (l *Ledger) RecordStaged(ctx context.Context, least time.Duration) (due []Due, err error) {
	lists, err := l.Staged(ctx)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, list := range lists {
		if list.For >= 0 && list.For < least {
			continue
		}
		some, err := l.recordStaged(ctx, list)
		for _, w := range some {
			if w.enqueued != nil {
				due = append(due, w.enqueued.Due...)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("record the staged list %s: %w", list.Name, err))
		}
		if err != nil && !Final(err) {
			break // Redis does not reply, or is full
		}
	}
	return due, errors.Join(errs...)
}

// recordStaged returns the requests of a list, with replies to those that it has recorded.
func (l *Ledger) recordStaged(ctx context.Context, list Staged) ([]*wanted, error) {
	text, err := l.rdb.HGet(ctx, l.prefix+listsKey, "l:"+list.Name).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, l.space.Explain(err)
	}
	some, entry, err := decodeList(text, list.at)
	if list.err != nil {
		err = list.err
	}
	if err == nil && (list.recorded < 0 || list.recorded >= len(some)) {
		err = fmt.Errorf("%d of its %d requests are recorded", list.recorded, len(some))
	}
	if err != nil {
		fields, failed := l.rdb.HMGet(ctx, l.prefix+listsKey, "l:"+list.Name, "n:"+list.Name).Result()
		if failed != nil {
			return nil, l.space.Explain(failed)
		}
		if fields[0] == nil && fields[1] == nil {
			return nil, nil // it was recorded in the meantime
		}
		return nil, fmt.Errorf("`redis-cli HDEL %s l:%s n:%[2]s` drops it: %s: %w", l.prefix+listsKey, list.Name, err.Error(), ErrUnreadable)
	}
	err = l.recordParts(ctx, list.Name, some, entry, list.recorded)
	if errors.Is(err, errGone) {
		err = nil // another worker has recorded it, or Redis has lost it
	}
	return some, err
}
