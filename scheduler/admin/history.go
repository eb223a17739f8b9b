package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// HoldFilter selects entries of a history. The zero value selects all that are kept.
type HoldFilter struct {
	// The window. An entry is in it if it began no later than Until and ended no earlier than
	// Since. Zero: from the oldest entry; up to now.
	Since, Until      time.Time
	Worker, Lock, Job string    // "": any
	Kind              EntryKind // "": both
	Limit             int       // maximum number; 0: no limit
}

func (f HoldFilter) check() error {
	switch {
	case f.Limit < 0:
		return fmt.Errorf("%w: a limit of %d entries", ErrInvalid, f.Limit)
	case f.Kind != "" && f.Kind != KindHold && f.Kind != KindWait:
		return fmt.Errorf("%w: kind %q: it must be %s or %s", ErrInvalid, f.Kind, KindHold, KindWait)
	case !f.Until.IsZero() && f.Until.Before(f.Since):
		return fmt.Errorf("%w: until %s is before since %s", ErrInvalid, Instant{f.Until}, Instant{f.Since})
	}
	return nil
}

func (f HoldFilter) keeps(e *Entry) bool {
	return (f.Until.IsZero() || !e.From.After(f.Until)) && (e.To.IsZero() || !e.To.Before(f.Since)) &&
		(f.Worker == "" || string(e.Worker) == f.Worker) && (f.Job == "" || string(e.Job) == f.Job) &&
		(f.Kind == "" || e.Kind == f.Kind) && (f.Lock == "" || slices.Contains(e.Bundle, f.Lock))
}

// History is a part of what was held and waited for.
type History struct {
	Entries []Entry
	Next    string    // cursor of the page that follows, "" after the last one
	At      time.Time // by the server's clock
	// KeptSince is since when each end is known. Zero: Redis keeps no ends (admin.keep), and the
	// entries have not ended.
	KeptSince time.Time
}

// History returns a page of the entries that match a filter: first those that have not ended, the
// last to begin first; then the others, the last to end first. The cursor of the first page is "".
// A page has at most filter.Limit entries, and may have fewer although others follow, since it
// reads no more than [EntriesRead] ended ones. Without a limit it has all. An entry that ends
// between two pages may be in both.
func (r *Reader) History(ctx context.Context, filter HoldFilter, cursor string) (*History, error) {
	snapshot, err := r.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return snapshot.History(ctx, filter, cursor)
}

// EntriesRead is how many ended entries a page of a history reads.
const EntriesRead = 10_000

// entryPosition is where an entry is in a history.
type entryPosition struct {
	// of one that has not ended: its begin (ms), its kind and its id
	From int64        `json:"f,omitempty"`
	Kind EntryKind    `json:"k,omitempty"`
	ID   locks.HoldID `json:"i,omitempty"`

	Past string `json:"p,omitempty"` // of an ended one
}

func (p entryPosition) cursor() string {
	text, err := json.Marshal(p)
	if err != nil {
		panic("admin: a position is plain data: " + err.Error())
	}
	return string(text)
}

// History is [Reader.History] with the holds and waits of the snapshot. It reads those that have
// ended.
func (s *Snapshot) History(ctx context.Context, filter HoldFilter, cursor string) (*History, error) {
	if err := filter.check(); err != nil {
		return nil, err
	}
	var at entryPosition
	if cursor != "" {
		if json.Unmarshal([]byte(cursor), &at) != nil || at == (entryPosition{}) || at.Past != "" && !space.IsPosition(at.Past) {
			return nil, ErrCursor
		}
	}
	h := &History{At: s.At, Entries: []Entry{}}
	var err error
	if h.KeptSince, err = s.space.PastSince(ctx); err != nil {
		return nil, err
	}
	if at.Past == "" {
		for _, e := range s.present(!h.KeptSince.IsZero()) {
			if !filter.keeps(&e) || at.ID != "" && comparePresent(positionOf(&e), at) <= 0 {
				continue
			}
			if filter.Limit > 0 && len(h.Entries) == filter.Limit {
				h.Next = positionOf(&h.Entries[len(h.Entries)-1]).cursor()
				return h, nil
			}
			h.Entries = append(h.Entries, e)
		}
	}
	if h.KeptSince.IsZero() {
		return h, nil
	}
	return h, s.addPast(ctx, h, filter, at)
}

// addPast adds the ended entries from a position on.
func (s *Snapshot) addPast(ctx context.Context, h *History, filter HoldFilter, at entryPosition) error {
	hosts := make(map[locks.SessionID]Text, len(s.sessions))
	for _, session := range s.sessions {
		hosts[session.id] = Text(session.card.Host)
	}
	listed := make(map[entryPosition]bool, len(h.Entries))
	for i := range h.Entries {
		at = positionOf(&h.Entries[i])
		listed[at] = true
	}
	for from, read := at.Past, 0; ; {
		page, err := s.space.Past(ctx, from, filter.Since)
		if err != nil {
			return err
		}
		for i := range page.Entries {
			e := ended(&page.Entries[i], hosts)
			if !filter.keeps(&e) {
				continue
			}
			if filter.Limit > 0 && len(h.Entries) == filter.Limit {
				h.Next = at.cursor()
				return nil
			}
			if begin := positionOf(&e); listed[begin] { // it has ended since the snapshot was read
				h.Entries = slices.DeleteFunc(h.Entries, func(other Entry) bool { return positionOf(&other) == begin })
			}
			h.Entries = append(h.Entries, e)
			at = entryPosition{Past: page.Entries[i].Position}
		}
		if from = page.Next; from == "" {
			return nil
		}
		if read += page.Read; filter.Limit > 0 && read >= EntriesRead {
			h.Next = entryPosition{Past: from}.cursor()
			return nil
		}
	}
}

// present returns what has not ended, the last to begin first. kept: the end of a resting hold is
// kept already.
func (s *Snapshot) present(kept bool) []Entry {
	var all []Entry
	for i := range s.Holders {
		if h := &s.Holders[i]; !h.Resting || !kept {
			all = append(all, Entry{
				Kind: KindHold, ID: h.HoldID, Worker: Text(h.Worker), Host: h.Host, Job: h.Job, RunID: h.RunID, Token: &h.Token,
				Bundle: h.Bundle, Modes: h.Modes, From: h.Since, Lasted: h.Held, Info: h.Info,
			})
		}
	}
	for i := range s.Waits {
		w := &s.Waits[i]
		e := Entry{
			Kind: KindWait, ID: w.ID, Worker: w.Worker, Job: w.Job, RunID: w.RunID, Bundle: w.Wants, Modes: w.Modes,
			From: w.Since, Lasted: w.Waited, Info: w.Info,
		}
		if len(w.Blockers) > 0 {
			b := w.Blockers[0]
			e.BlockedBy = &EntryBlocker{ID: locks.HoldID(b.ID), Worker: Text(b.Worker)}
			if strings.ContainsAny(b.ID, "#@") {
				e.BlockedBy.RunID = Text(b.ID)
			}
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Entry) int { return comparePresent(positionOf(&a), positionOf(&b)) })
	return all
}

func positionOf(e *Entry) entryPosition {
	return entryPosition{From: e.From.UnixMilli(), Kind: e.Kind, ID: e.ID}
}

func comparePresent(a, b entryPosition) int {
	return cmp.Or(cmp.Compare(b.From, a.From), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
}

// ended returns an ended entry as it is shown. hosts has those of the sessions that live.
func ended(record *space.Entry, hosts map[locks.SessionID]Text) Entry {
	e := Entry{
		Kind: KindHold, ID: record.ID, Worker: Text(record.Session), RunID: Text(record.Run), Token: &record.Token,
		Bundle: record.Names, Modes: newModes(record.Items), From: Instant{record.Since}, To: Instant{record.To},
		Lasted: Seconds(max(0, record.To.Sub(record.Since))), Ended: Text(record.Ended), RestsUntil: Instant{record.RestsUntil}, Info: record.Info,
	}
	if record.Wait {
		e.Kind, e.Token = KindWait, nil
	}
	if a := readInfo(record.Info); a.Run != "" {
		e.RunID, e.Job, e.Info = Text(a.Run), Text(a.Job), nil
	} else if e.RunID != "" {
		e.Job = Text(jobs.RunID(e.RunID).Job())
	}
	if record.Session != "" {
		host, lives := hosts[record.Session]
		if !lives {
			host = Text(record.Session[:max(0, strings.LastIndexByte(string(record.Session), '.'))])
		}
		e.Host = host
	}
	if by := record.Blocker; by != nil {
		e.BlockedBy = &EntryBlocker{Lock: Text(by.Name), ID: by.ID, RunID: Text(by.Run)}
		if !strings.HasPrefix(string(by.ID), "+") { // not an offer to a run
			e.BlockedBy.Worker = Text(space.SessionOf(by.ID))
		}
	}
	return e
}

// EntryGroup is what one worker, lock or job held and waited for.
type EntryGroup struct {
	Group   string  `json:"group"` // "" for entries without a worker or a job
	Entries []Entry `json:"entries"`
}

// groupings return the names of the groups that an entry is in.
var groupings = map[string]func(*Entry) []string{
	"worker": func(e *Entry) []string { return []string{string(e.Worker)} },
	"lock":   (*Entry).Locks,
	"job":    func(e *Entry) []string { return []string{string(e.Job)} },
}

// Groupings returns what [GroupEntries] groups by.
func Groupings() []string { return slices.Sorted(maps.Keys(groupings)) }

// GroupEntries groups entries by worker, lock or job, in the order of these names. An entry is in
// the group of each of its locks.
func GroupEntries(entries []Entry, by string) ([]EntryGroup, error) {
	names := groupings[by]
	if names == nil {
		return nil, fmt.Errorf("%w: group %q: it must be worker, lock or job", ErrInvalid, by)
	}
	groups := make(map[string][]Entry)
	for _, e := range entries {
		for _, name := range names(&e) {
			groups[name] = append(groups[name], e)
		}
	}
	list := make([]EntryGroup, 0, len(groups))
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		list = append(list, EntryGroup{name, groups[name]})
	}
	return list, nil
}
