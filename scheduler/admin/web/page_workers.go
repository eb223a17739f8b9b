package web

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

func (s *Server) workerPages() {
	s.show("/workers", "workers", s.workersPage, with(admin.WorkerFilters, "limit", "cursor")...)
	s.show("/workers/{id}", "worker", s.workerPage, "at", "cursor")
}

// workersPage lists the workers.
func (s *Server) workersPage(ctx context.Context, q question, v *view) error {
	snapshot, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	filter, err := s.filter(ctx, q)
	if err != nil {
		return err
	}
	all, err := filter.Workers(snapshot)
	if err != nil {
		return err
	}
	v.Title, v.Now = "Workers", snapshot.At
	seen := struct {
		rows[admin.Worker]
		Known, Slots, Busy int
	}{rows: newRows(s, q, cut(q, all, func(w *admin.Worker) string { return string(w.ID) })), Known: len(all)}
	for _, w := range all {
		if w.State != admin.Gone {
			seen.Slots, seen.Busy = seen.Slots+w.Slots, seen.Busy+w.Busy
		}
	}
	v.filterBy(admin.WorkerFilters, map[string][]string{"state": {"ready", "draining", admin.Gone}})
	v.Seen = seen
	return nil
}

// workerSeen is what the page of a worker shows.
type workerSeen struct {
	ID       locks.SessionID
	Worker   *admin.Worker // nil: no worker of this id has a session
	Queues   string
	Holds    []admin.Holder
	MoreHold int
	Past     past
}

func (s *Server) workerPage(ctx context.Context, q question, v *view) error {
	snapshot, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	seen := workerSeen{ID: locks.SessionID(q.path("id"))}
	seen.Worker, err = snapshot.Worker(seen.ID)
	switch {
	case err == nil:
		seen.Queues = queuesOf(seen.Worker.Queues)
	case !errors.Is(err, ledger.ErrUnknown) || !wasSession(seen.ID):
		return err
	}
	for _, hold := range snapshot.Holders {
		if hold.Worker == seen.ID {
			seen.Holds = append(seen.Holds, hold)
		}
	}
	seen.MoreHold = max(0, len(seen.Holds)-mostWaiters)
	seen.Holds = seen.Holds[:len(seen.Holds)-seen.MoreHold]
	if seen.Past, err = s.past(ctx, q, snapshot, admin.HoldFilter{Worker: string(seen.ID)}); err != nil {
		return err
	}
	v.Page, v.Title, v.Now, v.Seen = "workers", string(seen.ID), snapshot.At, seen
	return nil
}

// wasSession reports whether a text looks like the id of a session: a name, a dot, and the eight
// characters that make it unique. The histories of runs name sessions that have ended long ago.
func wasSession(id locks.SessionID) bool {
	at := strings.LastIndexByte(string(id), '.')
	return at > 0 && len(id)-at-1 == 8
}

// queuesOf describes queues and their weights, the heaviest first.
func queuesOf(queues map[string]int) string {
	names := slices.SortedFunc(maps.Keys(queues), func(a, b string) int {
		if queues[a] != queues[b] {
			return queues[b] - queues[a]
		}
		return strings.Compare(a, b)
	})
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = fmt.Sprintf("%s=%d", name, queues[name])
	}
	return shorten(strings.Join(texts, " "), 300)
}
