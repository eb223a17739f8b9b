package web

import (
	"context"
	"net"
	"net/http"
	"time"
)

const (
	flushEvery = time.Second
	flushLimit = 5 * time.Second // for the last flush
	lineSpan   = time.Minute     // for which repeated lines of the log are counted
	lineKinds  = 200             // of lines; others are counted together
	lineText   = 200             // bytes of a name in a line
)

// line is a log line about a request to change something.
type line struct {
	done    bool // else it was refused, or failed
	dry     bool // it changes nothing, and is logged only if it is refused
	who     string
	action  string
	on      string
	why     string
	status  int
	because string // why it was refused
}

// kind returns a key; lines with the same key are counted together.
func (l *line) kind() string {
	return l.who + "\x00" + l.action + "\x00" + l.on + "\x00" + http.StatusText(l.status)
}

// tell logs a request. Acts by hand are logged each time; requests for runs and refusals may come
// by the thousand, so their repeats are counted and logged with their number.
func (s *Server) tell(ctx context.Context, l line, counts bool) {
	for _, text := range []*string{&l.who, &l.action, &l.on, &l.why, &l.because} {
		*text = (*text)[:min(len(*text), lineText)]
	}
	if !counts && l.done {
		s.writeLine(ctx, l, 1)
		return
	}
	kind, now := l.kind(), time.Now()
	first, known := s.lines.First(kind, now)
	switch {
	case !known:
		s.lines.Count("", line{done: l.done, who: "various", action: "various", on: "various", status: l.status}, now)
	case first:
		s.writeLine(ctx, l, 1)
	default:
		s.lines.Count(kind, l, now)
	}
}

func (s *Server) writeLine(ctx context.Context, l line, times int) {
	facts := []any{"who", l.who, "action", l.action, "on", l.on}
	if l.why != "" {
		facts = append(facts, "why", l.why)
	}
	if times > 1 {
		facts = append(facts, "times", times)
	}
	switch {
	case l.done:
		s.o.Logger.InfoContext(ctx, "action is done", facts...)
	case l.status < http.StatusInternalServerError:
		s.o.Logger.WarnContext(ctx, "action is refused", append(facts, "status", l.status, "because", l.because)...)
	default:
		s.o.Logger.ErrorContext(ctx, "action failed", append(facts, "status", l.status, "because", l.because)...)
	}
}

// flush logs the counted lines, and records the counted requests.
func (s *Server) flush(ctx context.Context, all bool) {
	now := time.Now()
	for _, counted := range s.lines.Due(now, all) {
		s.writeLine(ctx, counted.Last, counted.Times)
	}
	if s.o.Operator == nil {
		return
	}
	if err := s.o.Operator.Flush(ctx, now, all); err != nil {
		s.o.Logger.WarnContext(ctx, "requests are not in the audit yet, they are counted on", "error", err)
	}
}

// Serve is [Serve] of this server. It also logs the counted lines and records the counted requests
// in the audit, at the end too.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	// until the last request is answered
	counting, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(flushEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				s.flush(counting, false)
			case <-counting.Done():
				return
			}
		}
	}()
	err := Serve(ctx, listener, s)
	stop()
	<-ended
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushLimit)
	defer cancel()
	s.flush(last, true)
	return err
}
