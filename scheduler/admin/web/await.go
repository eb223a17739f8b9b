package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

const (
	waitMost    = 5 * time.Minute // how long a request may wait for the end of its run
	waitersMost = 64              // requests that may wait at a time
	waitFirst   = 50 * time.Millisecond
	waitLongest = time.Second // between two looks at the run
)

// readWait returns how long a request waits for the end of its run; 0: not at all.
func readWait(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait <= 0 || wait > waitMost {
		return 0, fmt.Errorf("%w: wait %q: want a duration with a unit, such as 30s, and at most %s", admin.ErrInvalid, text, waitMost)
	}
	return wait, nil
}

// await returns a run when it has ended. When that takes longer than limit, when the client
// disconnects, or when too many others wait, it returns the run as it is, and the status 202.
func (s *Server) await(ctx context.Context, status int, run *admin.Run, limit time.Duration) (int, any, error) {
	if run.State.Final() {
		return status, run, nil
	}
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > waitersMost {
		return http.StatusAccepted, run, nil
	}
	waited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for pause, ended := waitFirst, false; !ended && waited.Err() == nil; pause = min(pause*5/4, waitLongest) {
		select {
		case <-waited.Done():
		case <-time.After(pause):
		}
		state, err := s.o.Reader.State(waited, run.ID)
		if errors.Is(err, ledger.ErrUnknown) { // it has ended, and is no longer kept
			return http.StatusAccepted, run, nil
		}
		ended = err == nil && state.Final() // else Redis may be back before the limit
	}
	last, stop := context.WithTimeout(ctx, actLimit)
	defer stop()
	seen, err := s.o.Reader.RunWithoutOutput(last, run.ID)
	switch {
	case err != nil: // the run exists, whatever can be read now
		return http.StatusAccepted, run, nil
	case !seen.State.Final():
		status = http.StatusAccepted
	}
	return status, seen, nil
}
