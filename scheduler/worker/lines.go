package worker

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"golang.org/x/time/rate"
)

const (
	lineMost  = 4 << 10 // bytes of a line that are logged
	lineRate  = 1000    // lines of an attempt that are logged in a second
	lineBurst = 5000    // and at once
)

// lines logs each line that an attempt prints, for Options.LogOutput. The text has passed the
// attempt's redactor. A job that prints without end must not fill the log's disk, or wait for it:
// lines beyond a rate are counted instead.
type lines struct {
	log   *slog.Logger
	limit *rate.Limiter

	mu      sync.Mutex // guards the fields below
	line    []byte     // the beginning of a line without an end
	omitted int        // bytes of that line that are not in it
	skipped int        // lines since the last logged one
}

func newLines(log *slog.Logger) *lines {
	return &lines{log: log, limit: rate.NewLimiter(lineRate, lineBurst)}
}

// Write always returns len(p) and no error.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := p; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		n := min(len(part), lineMost-len(l.line))
		l.line = append(l.line, part[:n]...)
		l.omitted += len(part) - n
		if ended {
			l.write()
		}
		rest = after
	}
	return len(p), nil
}

// close logs what has no end of a line, and how many lines were left out.
func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.line) > 0 {
		l.write()
	}
	l.tellSkipped()
}

// write logs a line. The caller holds mu.
func (l *lines) write() {
	text := strings.ToValidUTF8(strings.TrimSuffix(string(l.line), "\r"), "?")
	if l.omitted > 0 {
		text += fmt.Sprintf(" [%d bytes left out]", l.omitted)
	}
	l.line, l.omitted = l.line[:0], 0
	if !l.limit.Allow() {
		l.skipped++
		return
	}
	l.tellSkipped()
	l.log.Info("output", "line", text)
}

// tellSkipped logs how many lines were left out. The caller holds mu.
func (l *lines) tellSkipped() {
	if l.skipped > 0 {
		l.log.Warn("lines of output were left out", "lines", l.skipped)
		l.skipped = 0
	}
}
