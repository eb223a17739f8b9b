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
	lines *Counter[line]
}

// line is a line that was not written, and where to write it.
type line struct {
	slog.Record
	to slog.Handler
}

// New returns a logger that writes to log. by names an attribute that distinguishes lines of one
// message, "" for none. It must not be one with many values, like a run's.
func New(log *slog.Logger, by string) *Logger {
	lines := NewCounter[line](Every, most)
	return &Logger{slog.New(handler{log.Handler(), by, lines}), lines}
}

// Flush writes the counted lines that are due. Call it regularly from a loop that runs anyway,
// and once more at the end with all set.
func (l *Logger) Flush(ctx context.Context, all bool) {
	for _, due := range l.lines.Due(time.Now(), all) {
		_ = write(ctx, due) // as slog does: there is no place left to report it
	}
}

// write writes the last of some lines, with the number of those that it replaces.
func write(ctx context.Context, lines Counted[line]) error {
	record := lines.Last.Clone()
	record.AddAttrs(slog.Int("repeated", lines.Times))
	return lines.Last.to.Handle(ctx, record)
}

// handler passes on the first line of each kind, and the others when their span is over.
type handler struct {
	slog.Handler
	by    string
	lines *Counter[line]
}

func (h handler) Handle(ctx context.Context, record slog.Record) error {
	by := ""
	record.Attrs(func(a slog.Attr) bool {
		if a.Key == h.by {
			by = a.Value.String()
		}
		return by == ""
	})
	kind, now := record.Level.String()+"\x00"+record.Message+"\x00"+by, time.Now()
	switch first, counted, over := h.lines.Take(kind, line{record, h.Handler}, now); {
	case first:
		return h.Handler.Handle(ctx, record)
	case !over:
		return nil
	case counted.Times == 1:
		return h.Handler.Handle(ctx, record)
	default:
		return write(ctx, counted)
	}
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.by, h.lines}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.by, h.lines}
}
