package web

import (
	"context"
	"errors"

	"lockstep/scheduler/admin"
)

func (s *Server) fleetPages() {
	s.show("/config", "config", s.configPage)
	s.show("/audit", "audit", s.auditPage, with(admin.ActFilters, "limit", "cursor")...)
	s.show("/queues", "queues", s.queuesPage, "limit", "cursor")
}

// mostCompared bounds the workers and the jobs that the page of the config compares.
const mostCompared = 200

// configSeen is what the page of the config shows.
type configSeen struct {
	Config  *admin.Config // of the worker that serves the page; nil: it has none
	Workers []carried
	More    int
	Same    bool // all workers have the same config
	Drifted []admin.Job
	Places  map[string]string // as of the config
}

// carried is the config of a worker.
type carried struct {
	admin.Worker
	Differs bool // from the config that most workers have
}

// configPage compares the configs of the workers.
func (s *Server) configPage(ctx context.Context, q question, v *view) error {
	snapshot, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	v.Title, v.Now = "Config", snapshot.At
	drifted, err := shared(ctx, s.read, "page drifted", func(ctx context.Context) ([]admin.Job, error) { return s.reader(q).Drifted(ctx, mostCompared) })
	if err != nil && !errors.As(err, &v.Reading) {
		return err
	}
	seen := configSeen{Config: s.config(), Drifted: drifted}
	if seen.Config != nil {
		seen.Places = seen.Config.Places
	}
	workers := snapshot.Workers()
	usual := mostCarried(workers)
	seen.Same = true
	for _, w := range workers {
		one := carried{w, w.State != admin.Gone && w.Config != usual}
		seen.Same = seen.Same && !one.Differs
		if len(seen.Workers) < mostCompared {
			seen.Workers = append(seen.Workers, one)
		}
	}
	seen.More = len(workers) - len(seen.Workers)
	v.Seen = seen
	return nil
}

// mostCarried returns the digest of the config that most live workers have; of several, the first
// by its text.
func mostCarried(workers []admin.Worker) string {
	counts := make(map[string]int)
	most := ""
	for _, w := range workers {
		if w.State == admin.Gone {
			continue
		}
		counts[w.Config]++
	}
	for digest, n := range counts {
		if n > counts[most] || n == counts[most] && digest < most {
			most = digest
		}
	}
	return most
}

// auditPage lists the acts of people and programs.
func (s *Server) auditPage(ctx context.Context, q question, v *view) (err error) {
	if v.Now, err = s.now(ctx); err != nil {
		return err
	}
	acts, err := s.audit(ctx, q)
	if err != nil {
		return err
	}
	v.Title, v.Seen = "Audit", newRows(s, q, acts)
	v.filterBy(admin.ActFilters, nil)
	return nil
}

// queuesPage lists the queues.
func (s *Server) queuesPage(ctx context.Context, q question, v *view) (err error) {
	if v.Now, err = s.now(ctx); err != nil {
		return err
	}
	all, err := shared(ctx, s.read, "queues", s.o.Reader.Queues)
	if err != nil {
		return err
	}
	v.Title = "Queues"
	v.Seen = struct {
		rows[admin.Queue]
		Known int
	}{newRows(s, q, cut(q, all, func(queue *admin.Queue) string { return queue.Name })), len(all)}
	return nil
}

// actLink returns the path of the page of the thing on which someone acted; "" when it has none.
func (l linker) actLink(act admin.Act) string {
	page := map[string]string{
		"enqueue": "jobs", "run job": "jobs", "pause job": "jobs", "resume job": "jobs", "replay ticks": "jobs", "skip ticks": "jobs",
		"cancel run": "runs", "retry run": "runs", "release lock": "locks", "drain worker": "workers", "reload config": "workers",
	}[act.What]
	if page == "" || !linked(act.On, mostLink) {
		return ""
	}
	return l.path(page, act.On)
}
