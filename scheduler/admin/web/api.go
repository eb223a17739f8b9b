package web

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin"
)

const (
	defaultLimit = 100
	mostLimit    = 1000
)

const apiPath = "/api/v1/"

// routes registers the paths of the API. The package's doc lists them.
func (s *Server) routes() {
	const v1 = apiPath
	r := s.o.Reader

	list(s, v1+"jobs", func(ctx context.Context, q question) (*part[admin.Job], error) {
		jobs, err := s.jobs(ctx, q)
		if err != nil {
			return nil, err
		}
		return jobs.part, nil
	}, with(admin.JobFilters, "note")...).as("listJobs", "Jobs, by name")
	list(s, v1+"jobs/{job}/ticks", s.ticks, admin.TickFilters...).as("listTicks", "Ticks of a job and their outcomes")
	one(s, v1+"runs", s.runs, with(admin.RunFilters, "group", "limit", "cursor")...).
		among("group", "error").gives(http.StatusOK, part[admin.Run]{}).gives(http.StatusOK, part[admin.ErrorGroup]{}).
		as("listRuns", "Runs, the outstanding ones before the finished ones, or groups of them")
	listSnapshot(s, v1+"locks", func(s *admin.Snapshot, f admin.Filter) ([]admin.Lock, error) { return f.Locks(s.Locks()), nil },
		func(lock *admin.Lock) string { return lock.Name }, admin.LockFilters...).
		as("listLocks", "Locks that are held or wanted, by name")
	listSnapshot(s, v1+"waits", func(s *admin.Snapshot, f admin.Filter) ([]admin.Wait, error) { return f.Waits(s.Waits) },
		func(wait *admin.Wait) string { return fmt.Sprintf("%020d", wait.Ticket) }, admin.WaitFilters...).
		as("listWaits", "Requests that wait for locks, in the order of their tickets")
	one(s, v1+"holds", s.holds, "since", "until", "group", "worker", "lock", "job", "kind", "limit", "cursor").
		among("group", admin.Groupings()...).gives(http.StatusOK, history[admin.Entry]{}).gives(http.StatusOK, history[admin.EntryGroup]{}).
		as("listHolds", "Holds and waits, present and ended, or groups of them")
	listSnapshot(s, v1+"workers", func(s *admin.Snapshot, f admin.Filter) ([]admin.Worker, error) { return f.Workers(s) },
		func(w *admin.Worker) string { return string(w.ID) }, admin.WorkerFilters...).
		as("listWorkers", "Workers, by ID")

	s.configRoutes(v1)

	one(s, v1+"whoami", func(ctx context.Context, _ question) (*WhoAmI, error) {
		user := signedIn(ctx)
		return &WhoAmI{admin.Text(user.name), s.o.SignIn.mode, user.role}, nil
	}).as("whoAmI", "The user that sends the request")
	s.handle(v1+"events", s.events).resumes().givesText(http.StatusOK, "text/event-stream").
		as("followEvents", "Server-sent events: run, overview, problem; Last-Event-ID resumes")
	s.handle(v1+"openapi.json", s.openAPI).gives(http.StatusOK, object{}).as("getOpenAPI", "This document")

	list(s, v1+"audit", s.audit, admin.ActFilters...).as("listActs", "The audit: acts of people and programs, newest first")

	one(s, v1+"overview", func(ctx context.Context, _ question) (*admin.Overview, error) {
		return s.overview(ctx)
	}).as("getOverview", "What the first page shows")
	list(s, v1+"jobs/next", s.next, admin.NextFilters...).as("listNextTicks", "Future ticks of all jobs")
	list(s, v1+"queues", func(ctx context.Context, q question) (*part[admin.Queue], error) {
		queues, err := shared(ctx, s.read, "queues", r.Queues)
		return cut(q, queues, func(queue *admin.Queue) string { return queue.Name }), err
	}).as("listQueues", "Queues, by name")
	one(s, v1+"queues/{queue}", func(ctx context.Context, q question) (*admin.Queue, error) {
		name := q.path("queue")
		return shared(ctx, s.read, "queue "+name, func(ctx context.Context) (*admin.Queue, error) { return r.Queue(ctx, name) })
	}).as("getQueue", "One queue")

	one(s, v1+"jobs/{job}/explain", s.explain, "at", "run").
		as("explainJob", "Why the job did or did not run at an instant, or what became of a run")
	one(s, v1+"jobs/{job}", func(ctx context.Context, q question) (*admin.Job, error) {
		name := q.path("job")
		return shared(ctx, s.read, "job "+name, func(ctx context.Context) (*admin.Job, error) { return r.Job(ctx, name) })
	}).as("getJob", "One job")
	one(s, v1+"runs/{id}", func(ctx context.Context, q question) (*admin.Run, error) {
		found, err := s.find(ctx, q)
		return found.run, err
	}).as("getRun", "One run, and why it does not run")
	one(s, v1+"locks/{lock}", func(ctx context.Context, q question) (*admin.Lock, error) {
		snapshot, err := s.snapshot(ctx)
		if err != nil {
			return nil, err
		}
		name := q.path("lock")
		return shared(ctx, s.read, "lock "+name, func(ctx context.Context) (*admin.Lock, error) { return snapshot.Lock(ctx, name) })
	}).as("getLock", "One lock; a free one has no holders")
	one(s, v1+"workers/{id}", func(ctx context.Context, q question) (*admin.Worker, error) {
		snapshot, err := s.snapshot(ctx)
		if err != nil {
			return nil, err
		}
		return snapshot.Worker(locks.SessionID(q.path("id")))
	}).as("getWorker", "One worker")
	s.handle(v1+"runs/{id}/output", s.output).asks("attempt", "follow").resumes().
		givesText(http.StatusOK, "text/plain").givesText(http.StatusOK, "text/event-stream").givesText(http.StatusNoContent, "").
		as("getOutput", "The end of the output of an attempt; with follow, server-sent events until the run has ended, "+
			"and with status 204, the client has them all")
}

// openAPI answers with the document of the API.
func (s *Server) openAPI(w http.ResponseWriter, r *http.Request) error {
	if _, err := ask(r); err != nil {
		return err
	}
	body, err := s.described()
	if err != nil {
		return errors.Join(errBroken, err)
	}
	write(w, http.StatusOK, "application/json", body)
	return nil
}

func (s *Server) explain(ctx context.Context, q question) (*admin.Explanation, error) {
	name, text, id := q.path("job"), q.value("at"), jobs.RunID(q.value("run"))
	if id != "" {
		if text != "" || id.Job() != name {
			return nil, fmt.Errorf("%w: run %q: it must be the ID of a run of %s, without at", admin.ErrInvalid, id, name)
		}
		return shared(ctx, s.read, "explain run "+string(id),
			func(ctx context.Context) (*admin.Explanation, error) { return s.o.Reader.ExplainRun(ctx, id) })
	}
	var at time.Time
	if text != "" {
		var err error
		if at, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, fmt.Errorf("%w: at %q: it must be a time, as in RFC 3339", admin.ErrInvalid, text)
		}
	}
	return shared(ctx, s.read, fmt.Sprintf("explain %s %d", name, at.Unix()),
		func(ctx context.Context) (*admin.Explanation, error) { return s.o.Reader.Explain(ctx, name, at) })
}

// found is a run and the output of its last attempt.
type found struct {
	run    *admin.Run
	output string
}

func (s *Server) find(ctx context.Context, q question) (found, error) {
	id := q.path("id")
	return shared(ctx, s.read, "run "+id, func(ctx context.Context) (f found, err error) {
		f.run, f.output, err = s.o.Reader.Run(ctx, jobs.RunID(id))
		return f, err
	})
}

// filter reads the filters of a list.
func (s *Server) filter(ctx context.Context, q question) (admin.Filter, error) {
	filter, err := s.o.Reader.ReadFilter(ctx, q.value)
	filter.Limit = q.limit
	return filter, err
}

// runs answers with a part of the runs, or of the groups of runs that have the same error.
func (s *Server) runs(ctx context.Context, q question) (*any, error) {
	var answer any
	var err error
	switch group := q.value("group"); group {
	case "":
		answer, err = partOf(ctx, s, q, s.o.Reader.RunPage)
	case "error":
		answer, err = partOf(ctx, s, q, s.o.Reader.RunErrorPage)
	default:
		err = fmt.Errorf("%w: group %q: runs are grouped by error only", admin.ErrInvalid, group)
	}
	return &answer, err
}

// history is a page of the holds and waits of a window, or of groups of them.
type history[T any] struct {
	part[T]
	At        admin.Instant `json:"at"`         // by Redis' clock
	KeptSince admin.Instant `json:"kept_since"` // null: ends are not kept
}

func newHistory[T any](h *admin.History, items []T) *history[T] {
	return &history[T]{*newPart(items, h.Next), admin.Instant{Time: h.At}, admin.Instant{Time: h.KeptSince}}
}

func (s *Server) holds(ctx context.Context, q question) (*any, error) {
	filter := admin.HoldFilter{
		Worker: q.value("worker"), Lock: q.value("lock"), Job: q.value("job"), Kind: admin.EntryKind(q.value("kind")), Limit: q.limit,
	}
	for name, at := range map[string]*time.Time{"since": &filter.Since, "until": &filter.Until} {
		var err error
		if *at, err = s.o.Reader.ReadTime(ctx, name, q.value(name)); err != nil {
			return nil, err
		}
	}
	snapshot, err := s.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("holds %q %q %q %q %s %s %d %s", filter.Worker, filter.Lock, filter.Job, filter.Kind, q.value("since"), q.value("until"), q.limit, q.cursor)
	h, err := shared(ctx, s.read, name, func(ctx context.Context) (*admin.History, error) { return snapshot.History(ctx, filter, q.cursor) })
	if err != nil {
		return nil, err
	}
	var answer any = newHistory(h, h.Entries)
	if by := q.value("group"); by != "" {
		groups, err := admin.GroupEntries(h.Entries, by)
		if err != nil {
			return nil, err
		}
		answer = newHistory(h, groups)
	}
	return &answer, nil
}

func (s *Server) ticks(ctx context.Context, q question) (*part[admin.Tick], error) {
	return partOf(ctx, s, q, func(ctx context.Context, filter admin.Filter, cursor string) ([]admin.Tick, string, error) {
		filter.Job = q.path("job")
		return s.o.Reader.TickPage(ctx, filter, cursor)
	})
}

// next answers with future ticks.
func (s *Server) next(ctx context.Context, q question) (*part[admin.NextTick], error) {
	return shared(ctx, s.read, q.address(), func(ctx context.Context) (*part[admin.NextTick], error) {
		filter, err := s.o.Reader.ReadNextFilter(ctx, q.value)
		if err != nil {
			return nil, err
		}
		filter.Limit = q.limit
		ticks, next, err := s.reader(q).NextPage(ctx, filter, q.cursor)
		return newPart(ticks, next), err
	})
}

func (s *Server) audit(ctx context.Context, q question) (*part[admin.Act], error) {
	return partOf(ctx, s, q, s.o.Reader.AuditPage)
}

// partOf returns a part of a list that the reader filters and cuts. Clients that send the same
// request share it.
func partOf[T any](ctx context.Context, s *Server, q question, read func(context.Context, admin.Filter, string) ([]T, string, error)) (*part[T], error) {
	return shared(ctx, s.read, q.address(), func(ctx context.Context) (*part[T], error) {
		filter, err := s.filter(ctx, q)
		if err != nil {
			return nil, err
		}
		items, next, err := read(ctx, filter, q.cursor)
		return newPart(items, next), err
	})
}

// question is the checked parameters of a request, without its path.
type question struct {
	request *http.Request
	query   url.Values
	limit   int
	cursor  string // the position of the client's last item; "" to begin with the first
	page    bool   // a person waits for the answer
}

// patience is how long a page waits until all jobs have been read.
const patience = 150 * time.Millisecond

// reader returns the reader for a question about all jobs.
func (s *Server) reader(q question) *admin.Reader {
	if q.page {
		return s.o.Reader.Hasty(patience)
	}
	return s.o.Reader
}

func (q question) path(name string) string  { return q.request.PathValue(name) }
func (q question) value(name string) string { return q.query.Get(name) }

// address is the path and the parameters: a page and the API have other limits for the same list.
func (q question) address() string { return q.request.URL.EscapedPath() + "?" + q.query.Encode() }

// ask reads the parameters of a request, and accepts only those in known.
func ask(r *http.Request, known ...string) (question, error) {
	q := question{request: r, limit: defaultLimit}
	var err error
	if q.query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return q, fmt.Errorf("%w: the query cannot be read: %w", admin.ErrInvalid, err)
	}
	for name, values := range q.query {
		if !slices.Contains(known, name) {
			if len(known) == 0 {
				return q, fmt.Errorf("%w: %q: this path takes no parameters", admin.ErrInvalid, name)
			}
			return q, fmt.Errorf("%w: unknown parameter %q; this path takes %s", admin.ErrInvalid, name, strings.Join(known, ", "))
		}
		if len(values) > 1 {
			return q, fmt.Errorf("%w: parameter %q is given %d times", admin.ErrInvalid, name, len(values))
		}
	}
	if text := q.query.Get("limit"); text != "" {
		if q.limit, err = strconv.Atoi(text); err != nil || q.limit < 1 || q.limit > mostLimit {
			return q, fmt.Errorf("%w: limit %q: it must be a number from 1 to %d", admin.ErrInvalid, text, mostLimit)
		}
	}
	if text := q.query.Get("cursor"); text != "" {
		position, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			return q, admin.ErrCursor
		}
		q.cursor = string(position)
	}
	return q, nil
}

// part is one page of a list and the cursor of the next.
type part[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"` // null: nothing comes after
}

// newPart returns some items. next is the position of the last one, or "" if nothing comes after.
func newPart[T any](items []T, next string) *part[T] {
	p := &part[T]{Items: items}
	if items == nil {
		p.Items = []T{}
	}
	if next != "" {
		next = base64.RawURLEncoding.EncodeToString([]byte(next))
		p.NextCursor = &next
	}
	return p
}

// jobPage is a part of the jobs.
type jobPage struct {
	*part[admin.Job]
	known int // how many jobs exist
}

// jobs returns the requested part of the jobs that match the filter of a question.
func (s *Server) jobs(ctx context.Context, q question) (*jobPage, error) {
	return shared(ctx, s.read, q.address(), func(ctx context.Context) (*jobPage, error) {
		filter, err := s.filter(ctx, q)
		if err != nil {
			return nil, err
		}
		filter.Limit = q.limit
		jobs, next, known, err := s.reader(q).JobPage(ctx, filter, q.value("note"), q.cursor)
		return &jobPage{newPart(jobs, next), known}, err
	})
}

// cut takes the requested part out of a list, in the order of its positions. An item may have
// vanished when the cursor that names its position comes back.
func cut[T any](q question, items []T, position func(*T) string) *part[T] {
	if q.cursor != "" {
		begin := slices.IndexFunc(items, func(item T) bool { return position(&item) > q.cursor })
		if begin < 0 {
			begin = len(items)
		}
		items = items[begin:]
	}
	if len(items) <= q.limit {
		return newPart(items, "")
	}
	return newPart(items[:q.limit], position(&items[q.limit-1]))
}

// list registers a path that answers with a part of a list. It takes limit, cursor, and the
// parameters in known.
func list[T any](s *Server, pattern string, read func(context.Context, question) (*part[T], error), known ...string) *route {
	return one(s, pattern, read, with(known, "limit", "cursor")...)
}

// with returns names of parameters and further ones.
func with(names []string, more ...string) []string { return slices.Concat(names, more) }

// listSnapshot registers a path that answers with a part of a list in the snapshot.
func listSnapshot[T any](s *Server, pattern string, items func(*admin.Snapshot, admin.Filter) ([]T, error), position func(*T) string, known ...string) *route {
	return list(s, pattern, func(ctx context.Context, q question) (*part[T], error) {
		filter, err := s.filter(ctx, q)
		if err != nil {
			return nil, err
		}
		snapshot, err := s.snapshot(ctx)
		if err != nil {
			return nil, err
		}
		all, err := items(snapshot, filter)
		return cut(q, all, position), err
	}, known...)
}

// one registers a path that answers with a single object. It takes the parameters in known.
func one[T any](s *Server, pattern string, read func(context.Context, question) (*T, error), known ...string) *route {
	return s.handle(pattern, func(w http.ResponseWriter, r *http.Request) error {
		q, err := ask(r, known...)
		if err != nil {
			return err
		}
		it, err := read(r.Context(), q)
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, it)
	}).asks(known...).gives(http.StatusOK, new(T))
}

func writeJSON(w http.ResponseWriter, status int, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	write(w, status, "application/json", append(body, '\n'))
	return nil
}
