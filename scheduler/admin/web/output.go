package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// output answers with the end of the output of an attempt, or of the last one that has printed
// something. A header has the number of that attempt. With ?follow=true it follows the run.
func (s *Server) output(w http.ResponseWriter, r *http.Request) error {
	q, err := ask(r, "attempt", "follow")
	if err != nil {
		return err
	}
	switch follow := q.value("follow"); {
	case follow != "" && follow != "true" && follow != "false":
		return fmt.Errorf("%w: follow %q: it must be true or false", admin.ErrInvalid, follow)
	case follow == "true" && q.value("attempt") != "":
		return fmt.Errorf("%w: attempt and follow cannot be combined: follow=true follows the attempts that run", admin.ErrInvalid)
	case follow == "true":
		return s.followOutput(w, r, jobs.RunID(q.path("id")))
	}
	attempt := 0
	if text := q.value("attempt"); text != "" {
		if attempt, err = strconv.Atoi(text); err != nil || attempt < 1 {
			return fmt.Errorf("%w: attempt %q: it must be the number of an attempt, from 1", admin.ErrInvalid, text)
		}
	}
	output, err := s.outputOf(r.Context(), jobs.RunID(q.path("id")), attempt)
	if err != nil {
		return err
	}
	if output.Attempt > 0 {
		w.Header().Set("Lockstep-Attempt", strconv.Itoa(output.Attempt))
	}
	write(w, http.StatusOK, plainText, []byte(output.Text))
	return nil
}

func (s *Server) outputOf(ctx context.Context, id jobs.RunID, attempt int) (ledger.Output, error) {
	return shared(ctx, s.read, fmt.Sprintf("output %d %s", attempt, id), func(ctx context.Context) (ledger.Output, error) {
		return s.o.Reader.Output(ctx, id, attempt)
	})
}

const followersMost = 64 // clients that follow output at a time

// follower returns a follower of a run that shares its reads with all others.
func (s *Server) follower(id jobs.RunID) *admin.Follower {
	return admin.NewFollower(id, admin.FollowReads{
		Live: func(ctx context.Context, id jobs.RunID, last int64) (*ledger.Followed, error) {
			return shared(ctx, s.read, fmt.Sprintf("live %d %s", last, id), func(ctx context.Context) (*ledger.Followed, error) {
				return s.o.Reader.Live(ctx, id, last)
			})
		},
		Run: func(ctx context.Context, id jobs.RunID) (*admin.Run, error) {
			return shared(ctx, s.read, "followed run "+string(id), func(ctx context.Context) (*admin.Run, error) {
				return s.o.Reader.RunWithoutOutput(ctx, id)
			})
		},
		Output: s.outputOf,
	})
}

// followOutput streams what a follower of the run reports as server-sent events. The ID of an event
// is the place up to which the client has the output; a client that reconnects sends it and gets
// the rest. After the event end, the client must not reconnect; if it does, the answer is 204.
func (s *Server) followOutput(w http.ResponseWriter, r *http.Request, id jobs.RunID) error {
	follower := s.follower(id)
	switch attempt, upto, ok := placeOf(r.Header.Get("Last-Event-ID")); {
	case r.Header.Get("Last-Event-ID") == lastPlace:
		w.WriteHeader(http.StatusNoContent)
		return nil
	case ok:
		follower.Continue(attempt, upto)
	}
	if s.followers.Add(1) > followersMost {
		s.followers.Add(-1)
		w.Header().Set("Retry-After", "5")
		writeProblem(w, r, http.StatusServiceUnavailable, fmt.Sprintf("%d clients follow output here already, no more are served", followersMost))
		return nil
	}
	defer s.followers.Add(-1)
	ctx := r.Context()
	events, err := follower.Next(ctx)
	if err != nil {
		return err
	}
	out := newStream(w, r)
	if r.Method == http.MethodHead {
		return nil
	}
	admitted := time.Now()
	for {
		if text := encodeEvents(events); text != "" && !out.send(text) {
			return nil
		}
		if follower.Ended() || !out.beat() {
			return nil
		}
		if time.Since(admitted) >= heartbeat {
			if _, err := s.admit(r); err != nil {
				return nil
			}
			admitted = time.Now()
		}
		timer := time.NewTimer(follower.Pause())
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-shutdown(ctx):
			timer.Stop()
			return nil
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
		if events, err = follower.Next(ctx); errors.Is(err, ledger.ErrUnknown) {
			out.send(event(string(admin.FollowNote), admin.FollowEvent{Kind: admin.FollowNote, Text: "the run is no longer kept"}))
			return nil
		} // other errors: the client waits until Redis can be read again
	}
}

// lastPlace is the ID of the event that ends a stream.
const lastPlace = "end"

// encodeEvents formats events as a stream has them.
func encodeEvents(events []admin.FollowEvent) string {
	var b strings.Builder
	for _, e := range events {
		switch {
		case e.Kind == admin.FollowEnd:
			fmt.Fprintf(&b, "id: %s\n", lastPlace)
		case e.Kind == admin.FollowOutput && !e.Stored:
			fmt.Fprintf(&b, "id: %d-%d\n", e.Attempt, e.Upto)
		}
		b.WriteString(event(string(e.Kind), e))
	}
	return b.String()
}

// placeOf reads the ID of an event.
func placeOf(id string) (attempt int, upto int64, ok bool) {
	before, after, _ := strings.Cut(id, "-")
	attempt, err := strconv.Atoi(before)
	upto, err2 := strconv.ParseInt(after, 10, 64)
	return attempt, upto, err == nil && err2 == nil && attempt > 0 && upto >= 0
}
