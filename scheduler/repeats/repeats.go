// Package repeats writes log lines that a loop may repeat: the first of each kind at once, the
// others as one line with their number. While Redis refuses writes, each claim, finish, push and
// fetch fails many times a second, and a line for each would fill a disk and hide what else
// happens.
//
// Lines that each tell of another run, such as the end of an attempt, belong to a plain
// [slog.Logger].
package repeats

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Every is how often a kind of line is written while it keeps coming.
const Every = 10 * time.Second

// most is how many kinds are kept apart. Messages are constants, so that only a bug has more.
const most = 1000

// Logger is an [slog.Logger] that writes one line per kind and [Every]. Two lines are of one kind
// when their level and message are the same, and the attribute that was named to [New]. A line that
// replaces others has the attribute repeated, their number, and is the last of them. Lines that are
// still counted are written by [Logger.Flush].
type Logger struct {
	*slog.Logger
	lines *lines
}

// New returns a logger that writes to log. by names an attribute that distinguishes lines of one
// message, "" for none. It must not be one with many values, like a run's.
func New(log *slog.Logger, by string) *Logger {
	l := &lines{by: by, kinds: make(map[kind]*line)}
	return &Logger{slog.New(handler{log.Handler(), l}), l}
}

// Flush writes the counted lines that are due. Call it regularly from a loop that runs anyway,
// and once more at the end with all set.
func (l *Logger) Flush(ctx context.Context, all bool) {
	for _, due := range l.lines.due(time.Now(), all) {
		_ = due.to.Handle(ctx, due.counted()) // as slog does: there is no place left to report it
	}
}

type kind struct {
	level   slog.Level
	message string
	by      string
}

// line is a kind of line that was written, and what came since.
type line struct {
	written  time.Time
	repeated int // lines that were counted since
	last     slog.Record
	to       slog.Handler
}

// counted returns the last line, with the number of those that it replaces.
func (l *line) counted() slog.Record {
	record := l.last.Clone()
	record.AddAttrs(slog.Int("repeated", l.repeated))
	return record
}

type lines struct {
	by string

	mu    sync.Mutex
	kinds map[kind]*line // guarded by mu
}

// take counts a line. It returns what to write now instead of it, or false.
func (l *lines) take(k kind, record slog.Record, to slog.Handler, now time.Time) (slog.Record, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, known := l.kinds[k]
	switch {
	case !known && len(l.kinds) >= most:
		return record, true
	case !known:
		l.kinds[k] = &line{written: now}
		return record, true
	}
	one.repeated++
	one.last, one.to = record, to
	if now.Sub(one.written) < Every {
		return slog.Record{}, false
	}
	counted := one.counted()
	if one.repeated == 1 {
		counted = record
	}
	one.written, one.repeated = now, 0
	return counted, true
}

// due returns the kinds to write now, and forgets those that did not come again.
func (l *lines) due(now time.Time, all bool) []line {
	l.mu.Lock()
	defer l.mu.Unlock()
	var due []line
	for k, one := range l.kinds {
		switch over := now.Sub(one.written) >= Every; {
		case one.repeated > 0 && (over || all):
			due = append(due, *one)
			one.written, one.repeated = now, 0
		case over:
			delete(l.kinds, k)
		}
	}
	return due
}

// handler passes on what lines lets through.
type handler struct {
	slog.Handler
	lines *lines
}

func (h handler) Handle(ctx context.Context, record slog.Record) error {
	k := kind{level: record.Level, message: record.Message}
	if h.lines.by != "" {
		record.Attrs(func(a slog.Attr) bool {
			if a.Key == h.lines.by {
				k.by = a.Value.String()
			}
			return k.by == ""
		})
	}
	if record, now := h.lines.take(k, record, h.Handler, time.Now()); now {
		return h.Handler.Handle(ctx, record)
	}
	return nil
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.lines}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.lines}
}
