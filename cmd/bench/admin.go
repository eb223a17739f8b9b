package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/web"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// crowd is the number of objects in a namespace when its pages are measured.
type crowd struct{ jobs, ended, outstanding, holds, waits, workers int }

// fullCrowd is the size that the pages are made for.
var fullCrowd = crowd{jobs: 100_000, ended: 1_000_000, outstanding: 10_000, holds: 10_000, waits: 1_000, workers: 200}

func (c crowd) tenth() crowd {
	return crowd{c.jobs / 10, c.ended / 10, c.outstanding / 10, c.holds / 10, c.waits / 10, c.workers / 10}
}

const (
	pageTime    = 300 // ms that a server may take for a page
	pageSize    = 200 // KiB
	crowdBatch  = 1000
	crowdEnds   = 1000 // ended runs of one job
	commandTime = 5000 // µs that a read may keep Redis busy
)

// measureAdmin measures what each page costs beside very many objects: the first page of a process,
// which does not know the jobs yet, and a later one. A server shares an answer for a second or
// longer, so each request goes to a new one.
func measureAdmin(ctx context.Context, set settings, r *result) error {
	size := fullCrowd
	if set.short {
		size = size.tenth()
	}
	r.note("%d jobs, %d ended runs, %d outstanding, %d holds, %d waits, %d workers; of a page's %d requests the fastest counts",
		size.jobs, size.ended, size.outstanding, size.holds, size.waits, size.workers, set.rounds)
	s, rdb, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	w, err := newWhole(ctx, rdb, concurrency)
	if err != nil {
		return err
	}
	defer w.stop()
	workers, leave, err := w.gather(ctx, set, size)
	defer leave()
	if err != nil {
		return fmt.Errorf("fill the namespace: %w", err)
	}
	run, err := w.ledger.OpenEntries(ctx, ledger.IndexJob, "", "", 1)
	if err != nil {
		return err
	}
	if len(run) == 0 {
		return errors.New("no run is outstanding")
	}
	if err := s.log(ctx, 0); err != nil {
		return err
	}
	if err := w.readAll(ctx, r); err != nil {
		return err
	}
	r.Columns = []string{"page", "first ms", "server ms", "KiB", "commands", "slowest command, µs", "it is"}
	for _, path := range []string{
		"/", "/jobs", "/jobs/job00007", "/jobs/next", "/runs", "/runs?state=succeeded", "/runs/" + url.PathEscape(string(run[0].Run)),
		"/locks", "/locks/held:0", "/timeline", "/timeline?group=lock&since=1h", "/workers", "/workers/" + string(workers[0].Session()),
		"/queues", "/config", "/audit",
	} {
		set.step("admin: %s", path)
		best, err := s.view(ctx, set, w, path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		r.row(path, best.first, best.ms, best.kib, float64(best.commands), best.slowest, best.command)
		r.atMost(pageTime, best.first, "ms of server time in a new process, %s", path)
		r.atMost(pageTime, best.ms, "ms of server time, %s", path)
		r.atMost(pageSize, best.kib, "KiB, %s", path)
		r.atMost(commandTime, best.slowest, "µs of the slowest command, %s", path)
	}
	return nil
}

// readAll measures how long it takes to read all jobs, as a process does before its pages show what
// depends on them, and then again, with the definitions that it has.
func (w *whole) readAll(ctx context.Context, r *result) error {
	reader := admin.NewReader(w.ledger)
	var took []float64
	for len(took) < 2 {
		began := time.Now()
		if _, err := reader.Drifted(ctx, 1); err != nil {
			return err
		}
		all := time.Since(began)
		if took = append(took, ms(all)); len(took) == 1 {
			select {
			case <-time.After(6 * all): // while they are kept
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	r.note("a new process has read all jobs after %.0f ms, and reads them again in %.0f ms; until then, its first pages lack what depends on them", took[0], took[1])
	return nil
}

// viewed is the cost of one page.
type viewed struct {
	first    float64 // ms, in a process that knows no job
	ms, kib  float64
	commands int
	slowest  float64 // µs of one command
	command  string
}

// view requests a page in each round, and returns the smallest cost.
func (s *server) view(ctx context.Context, set settings, w *whole, path string) (best viewed, err error) {
	for round := range set.rounds {
		reader := admin.NewReader(w.ledger).WithQueues(w.queue)
		first, err := s.request(ctx, reader, path)
		if err == nil {
			_, err = reader.Jobs(ctx, admin.Filter{Limit: 1}, "")
		}
		if err != nil {
			return best, err
		}
		seen, err := s.request(ctx, reader, path)
		if err != nil {
			return best, err
		}
		seen.first = first.ms
		if round == 0 {
			best = seen
		}
		best.first, best.ms = min(best.first, seen.first), min(best.ms, seen.ms)
		if seen.slowest < best.slowest {
			best.slowest, best.command = seen.slowest, seen.command
		}
	}
	return best, nil
}

// request requests a page of a new server.
func (s *server) request(ctx context.Context, reader *admin.Reader, path string) (seen viewed, err error) {
	pages, err := web.New(web.Options{Reader: reader, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return seen, err
	}
	get := func(path string) *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		pages.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9620"+path, nil))
		return answer
	}
	get("/nothing") // parses the templates, and reads nothing
	if err := s.admin.Do(ctx, "SLOWLOG", "RESET").Err(); err != nil {
		return seen, err
	}
	began := time.Now()
	answer := get(path)
	seen = viewed{ms: ms(time.Since(began)), kib: float64(answer.Body.Len()) / 1024}
	if answer.Code != http.StatusOK {
		return seen, fmt.Errorf("status %d: %.300s", answer.Code, answer.Body)
	}
	entries, err := s.admin.SlowLogGet(ctx, -1).Result()
	if err != nil {
		return seen, err
	}
	for _, entry := range entries {
		if len(entry.Args) == 0 || entry.Args[0] == "SLOWLOG" || entry.Args[0] == "slowlog" {
			continue
		}
		seen.commands++
		if micro := float64(entry.Duration.Microseconds()); micro > seen.slowest {
			seen.slowest, seen.command = micro, entry.Args[0]
			if len(entry.Args) > 1 {
				seen.command += fmt.Sprintf(" %.24s", entry.Args[1])
			}
		}
	}
	return seen, nil
}

// gather fills the namespace. leave, never nil, ends its sessions and waits.
func (w *whole) gather(ctx context.Context, set settings, size crowd) (workers []*locks.Client, leave func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	leave = func() {
		cancel()
		waiting.Wait()
		for _, client := range workers {
			_ = client.Close(context.WithoutCancel(ctx)) // the server ends next
		}
	}
	set.step("admin: %d jobs", size.jobs)
	w.job.History.Runs = crowdEnds
	named := func(i int) *jobs.Job {
		job := *w.job
		job.Name = fmt.Sprintf("job%05d", i)
		job.Every, job.Overlap = 30*24*time.Hour, jobs.OverlapAllow
		return &job
	}
	for from := 0; from < size.jobs; from += crowdBatch {
		var batch []*jobs.Job
		for i := from; i < min(from+crowdBatch, size.jobs); i++ {
			batch = append(batch, named(i))
		}
		if _, err := w.ledger.Register(ctx, "bench", batch); err != nil {
			return workers, leave, err
		}
	}
	set.step("admin: %d workers", size.workers)
	for i := range size.workers {
		card, err := json.Marshal(worker.Card{
			Host: fmt.Sprint("host-", i), PID: 4711, Version: "devel", Config: "a34824", State: "ready", Slots: 8,
			Queues: map[string]int{"default": 1}, StartedAt: time.Now(),
		})
		if err != nil {
			return workers, leave, err
		}
		client, err := locks.Open(ctx, w.rdb, locks.Options{Namespace: "bench", Name: fmt.Sprint("host-", i), Card: card, Lease: time.Minute})
		if err != nil {
			return workers, leave, err
		}
		workers = append(workers, client)
	}
	set.step("admin: %d runs end", size.ended)
	for done, i := 0, 0; done < size.ended; i++ {
		job := named(i % size.jobs)
		for range crowdEnds / ledger.MaxTogether {
			n := min(ledger.MaxTogether, size.ended-done)
			if n == 0 {
				break
			}
			if err := w.succeed(ctx, workers[i%len(workers)], job, n); err != nil {
				return workers, leave, err
			}
			done += n
		}
	}
	rest := func(ctx context.Context) error { return ctx.Err() }
	histories, err := w.ledger.HistorySize(ctx, rest)
	if err == nil {
		err = w.ledger.IndexEnds(ctx, histories, rest) // as the worker on duty does
	}
	if err != nil {
		return workers, leave, err
	}
	set.step("admin: %d outstanding runs, %d holds, %d waits", size.outstanding, size.holds, size.waits)
	if err := w.schedule(ctx, size.outstanding); err != nil {
		return workers, leave, err
	}
	for i := range size.holds {
		if _, err := workers[i%len(workers)].Acquire(ctx, locks.Exclusive(fmt.Sprint("held:", i))); err != nil {
			return workers, leave, err
		}
	}
	queued := make(chan struct{}, size.waits)
	for i := range size.waits {
		waiting.Go(func() {
			// It ends with ctx.
			_, _ = workers[i%len(workers)].Acquire(ctx, locks.Exclusive(fmt.Sprint("held:", i%100)),
				locks.OnWait(func(*locks.BusyError) { queued <- struct{}{} }))
		})
	}
	for range size.waits {
		select {
		case <-queued:
		case <-ctx.Done():
			return workers, leave, context.Cause(ctx)
		}
	}
	return workers, leave, nil
}
