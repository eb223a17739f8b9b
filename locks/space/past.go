package space

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Keep bounds what a space keeps of holds and waits that have ended. A negative number of entries
// keeps nothing. A zero field means its default, 48h and 100,000.
type Keep struct {
	For     time.Duration
	Entries int // of at most 150 bytes of memory; a bundle with a long list of names takes several
}

// The bounds of a space if no client declares any, and the highest ones.
const (
	defaultKeepFor, defaultKeepEntries = 48 * time.Hour, 100_000

	MostKeepFor     = 90 * 24 * time.Hour
	MostKeepEntries = 1_000_000
)

// Text returns the bounds as the scripts read them, or an [ErrInvalid].
func (k Keep) Text() (string, error) {
	switch age, most := cmp.Or(k.For, defaultKeepFor), cmp.Or(k.Entries, defaultKeepEntries); {
	case most < 0:
		return "0 0", nil
	case age < time.Millisecond || age > MostKeepFor:
		return "", fmt.Errorf("%w: Keep.For is %s; it must be 1ms to %s", ErrInvalid, age, MostKeepFor)
	case most > MostKeepEntries:
		return "", fmt.Errorf("%w: Keep.Entries is %d; it must be at most %d", ErrInvalid, most, MostKeepEntries)
	default:
		return fmt.Sprintf("%d %d", age.Milliseconds(), most), nil
	}
}

// Ending is how a hold or a wait has ended.
type Ending string

const (
	EndReleased Ending = "released"
	// EndLost: its session lost its lease, since Redis was unreachable, or its process was stopped,
	// or its host died; or Redis lost data, and another hold proved stronger.
	EndLost    Ending = "lost"
	EndExpired Ending = "expired" // it reached its max hold, and its holder had not released it
	EndRevoked Ending = "revoked" // released after it was revoked, or seized
	EndCrashed Ending = "crashed" // the process of its session died

	// Of waits, besides EndLost and EndCrashed.
	EndGranted  Ending = "granted"
	EndTimedOut Ending = "timed out"
	EndCanceled Ending = "canceled"
	EndDeadlock Ending = "deadlock" // a lowered limit of permits closed a circle of waits
	EndRefused  Ending = "refused"  // permits were declared, or lowered: it can never be granted
)

// endings has the letters of [StoredEntry].
var endings = map[string]Ending{
	"hr": EndReleased, "hl": EndLost, "he": EndExpired, "hv": EndRevoked, "hc": EndCrashed,
	"wg": EndGranted, "wt": EndTimedOut, "wk": EndCanceled, "wd": EndDeadlock, "wf": EndRefused, "wl": EndLost, "wc": EndCrashed,
}

// Entry is a hold or a wait that has ended.
type Entry struct {
	Position string // in the order of all ends, for [Space.Past]

	Wait    bool
	ID      HoldID
	Session SessionID // "" for a wait that belongs to the space: that of a run
	Token   Token     // 0 for a wait
	Since   time.Time // of the grant, or when it was queued
	To      time.Time // its end
	Ended   Ending
	// RestsUntil is until when the bundle stays taken after the end of the hold; zero for none.
	RestsUntil time.Time
	Blocker    *EntryBlocker // of a wait; nil if it is not known
	Run        string        // of the scheduler, "" for none
	Info       json.RawMessage
	Names      []string // sorted
	Items      []Item   // the same, with how each was held or wanted
}

// EntryBlocker is what a wait was waiting for.
type EntryBlocker struct {
	Name string // the resource
	ID   HoldID // the hold, or the request to which it was offered
	Run  string // of the scheduler, "" for none
}

// Past is a page of what has ended, the last end first.
type Past struct {
	Entries []Entry
	Next    string // where the page that follows begins; "" after the last one
	Read    int    // how many elements of the key endings were read for this page
}

// pastPage is how many elements of the key endings one script reads.
const pastPage = 1000

// clockStep is how far the server's clock may be set back. Behind an end that is older than a time,
// those of the next minute by an earlier clock are still found.
const clockStep = time.Minute

// Past reads what has ended at or after a time, from a position on: "" for the last end, then the
// Next of the page before, or the position of an entry.
func (s *Space) Past(ctx context.Context, from string, since time.Time) (*Past, error) {
	page := new(Past)
	var more []string // of the entry that comes next: its parts after the first one, the last first
	for {
		r := Read(Run(ctx, s.rdb, PastPage, s.keys, from, pastPage))
		number := r.Number()
		var elements []string
		for r.More() {
			elements = append(elements, r.Text())
		}
		if r.Err != nil {
			return nil, fmt.Errorf("read what is kept: %w", r.Err)
		}
		page.Read += len(elements)
		for i, element := range slices.Backward(elements) {
			at, text, _ := strings.Cut(element, "\x1f")
			if at == "" {
				more = append(more, text)
				continue
			}
			slices.Reverse(more)
			position := strconv.FormatInt(number+int64(i), 10)
			entry, ok := parseEntry(position, Time(Int(at)), text+strings.Join(more, ""))
			if ok && entry.To.Before(since.Add(-clockStep)) {
				page.Next = ""
				return page, nil
			}
			if ok && !entry.To.Before(since) {
				page.Entries = append(page.Entries, entry)
			}
			more, page.Next = nil, position
		}
		if len(elements) < pastPage {
			page.Next = ""
			return page, nil
		}
		if len(page.Entries) > 0 {
			return page, nil
		}
		from = strconv.FormatInt(number, 10)
	}
}

// IsPosition reports whether a text may be the Next of a page of [Space.Past].
func IsPosition(text string) bool {
	_, err := strconv.ParseUint(text, 10, 53)
	return err == nil
}

// PastSince returns since when each end is kept, by the server's clock; zero if the space keeps
// nothing.
func (s *Space) PastSince(ctx context.Context) (time.Time, error) {
	pipe := s.rdb.Pipeline()
	first := pipe.LIndex(ctx, s.key("endings"), 0)
	since := pipe.HGet(ctx, s.key("meta"), "endings_since")
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return time.Time{}, fmt.Errorf("read what is kept: %w", err)
	}
	if errors.Is(first.Err(), redis.Nil) {
		return time.Time{}, nil
	}
	at, _, _ := strings.Cut(first.Val(), "\x1f")
	return Time(max(Int(at), Int(since.Val()))), nil
}

// parseEntry reads an entry. It returns false for one that this build cannot read.
func parseEntry(position string, to time.Time, text string) (Entry, bool) {
	f, n := entries.Parse(text)
	ended, known := endings[f.How]
	if !known || n < entries.Fields()-1 {
		return Entry{}, false
	}
	e := Entry{Position: position, Wait: f.How[0] == 'w', ID: HoldID(f.ID), Since: Time(Int(f.Since)), To: to, Ended: ended, Info: rawInfo(f.Info)}
	if f.Items != "" {
		e.Items = ParseItems(FieldsOf(f.Items))
	}
	if run, is := strings.CutPrefix(f.Info, "#"); is {
		e.Run, e.Info = run, nil
		e.Items = append(e.Items, Item{Name: ownPrefix + run, Mode: ModeExclusive})
		slices.SortFunc(e.Items, func(a, b Item) int { return cmp.Compare(a.Name, b.Name) })
	}
	if len(f.ID) == 1 {
		e.ID += HoldID(runOf(e.Info, e.Run))
	} else {
		e.Session = SessionOf(e.ID)
	}
	e.Token, _ = ParseToken(f.Token)
	if f.Rest != "" {
		e.RestsUntil = Time(Int(f.Rest))
	}
	if by := strings.Split(f.Blocker, "\x1e"); len(by) == 3 {
		e.Blocker = &EntryBlocker{by[0], HoldID(by[1]), by[2]}
	}
	e.Names = NamesOf(e.Items)
	return e, true
}

// ownPrefix begins the name of a run's own resource, as RunResource of package jobs does.
const ownPrefix = "run:"

// runOf returns the run that an info names, if it is not known already.
func runOf(info json.RawMessage, run string) string {
	var about struct {
		Run string `json:"run"`
	}
	if run == "" && json.Unmarshal(info, &about) == nil {
		return about.Run
	}
	return run
}
