package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/trace"
)

const (
	bodyMost = 1 << 20          // bytes of a request's body
	listMost = 8 << 20          // the same for a list of requests
	actLimit = 10 * time.Second // how long an act may take
)

var (
	errOrigin = errors.New("this request comes from a page of another origin")
	errBody   = fmt.Errorf("%w: the body", admin.ErrInvalid)
)

// order is the body of a request. Each path takes some of its fields.
type order struct {
	Reason string      `json:"reason"`
	Token  locks.Token `json:"token"` // of the hold to release
	Force  bool        `json:"force"`
	askedRun

	// A list of requests, instead of one.
	Items  listedRuns `json:"items"`
	Atomic bool       `json:"atomic"` // all of them are recorded, or none
}

// askedRun describes the run that a request asks for.
type askedRun struct {
	Job  string          `json:"job"`
	Args json.RawMessage `json:"args,omitempty"`
	ID   string          `json:"id,omitempty"`
	In   string          `json:"in,omitempty"` // a duration: 5m
	At   *time.Time      `json:"at,omitempty"`
	// Parent is the run that asks for it.
	Parent jobs.RunID `json:"parent,omitempty"`
}

// listedRuns are the items of a list, at most [ledger.MaxRequests]. Items of two bytes would take a
// hundred times the memory of the body, so those of a longer list are counted, and not read.
type listedRuns []listedRun

// UnmarshalJSON reads the list, or returns the error of one that is too long.
func (l *listedRuns) UnmarshalJSON(text []byte) error {
	if n := commas(text) + 1; n > ledger.MaxRequests && text[0] == '[' {
		return ledger.TooMany(n)
	}
	if len(*l) > 0 {
		return errors.New("it has items twice") // each costs as much as one alone
	}
	return json.Unmarshal(text, (*[]listedRun)(l))
}

// commas returns the number of commas between the items of a list, which is valid JSON.
func commas(list []byte) (n int) {
	depth, quoted := 0, false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case quoted && c == '\\':
			i++ // the next byte is escaped
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[', c == '{':
			depth++
		case c == ']', c == '}':
			depth--
		case c == ',' && depth == 1:
			n++
		}
	}
	return n
}

// A listedRun is one item of a list. It is read on its own: one that cannot be read does not affect
// the others.
type listedRun struct {
	askedRun
	unread error // why it could not be read
}

// UnmarshalJSON reads the item, or keeps why it cannot be read.
func (l *listedRun) UnmarshalJSON(text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	l.unread = decoder.Decode(&l.askedRun)
	return nil
}

// runHeader is the header in which an HTTP job sends its run to a service. The service, or a
// handler, names it as the run that asks by sending it to the API.
const runHeader = "Lockstep-Run-Id"

// parent returns the run that asks: that of the body, or that of the header; "" for none.
func (a *askedRun) parent(r *http.Request) (jobs.RunID, error) {
	id, where := a.Parent, "the body: parent"
	if id == "" {
		id, where = jobs.RunID(r.Header.Get(runHeader)), "the header "+runHeader
	}
	if id == "" {
		return "", nil
	}
	if err := jobs.ValidRunID(id); err != nil {
		return "", fmt.Errorf("%w: %s: %w", admin.ErrInvalid, where, err)
	}
	return id, nil
}

// name checks the name that the request gives the run, or generates one.
func (a *askedRun) name() error {
	if a.ID == "" {
		a.ID = jobs.NewRunName(time.Now())
		return nil
	}
	if err := jobs.ValidRunName(a.ID); err != nil {
		return fmt.Errorf("%w: %w", admin.ErrInvalid, err)
	}
	return nil
}

// acts registers the paths that change something. The package's doc lists them.
func (s *Server) acts() {
	const v1 = apiPath
	r, o := s.o.Reader, s.o.Operator

	s.act(v1+"jobs/{job}/pause", "pause job", RoleOperator, changed("job", o.PauseJob, r.Job)).
		as("pauseJob", "Create no runs for the ticks of a job").takes(order{}, "reason").gives(http.StatusOK, admin.Job{})
	s.act(v1+"jobs/{job}/resume", "resume job", RoleOperator, changed("job", o.ResumeJob, r.Job)).
		as("resumeJob", "Create runs for the ticks of a job").takes(order{}, "reason").gives(http.StatusOK, admin.Job{})
	s.act(v1+"jobs/{job}/run", "run job", RoleOperator, func(ctx context.Context, request *http.Request, body order, by admin.Actor) (int, any, error) {
		if body.Job != "" || body.In != "" || body.At != nil || body.Parent != "" || body.Items != nil || body.Atomic {
			return 0, nil, fmt.Errorf("%w: this path takes args, id and reason", errBody)
		}
		named := body.ID != ""
		if err := body.name(); err != nil {
			return 0, nil, err
		}
		enqueued, err := o.RunNow(ctx, request.PathValue("job"), body.ID, body.Args, named, by)
		status, run, err := s.enqueued(ctx, enqueued, err)
		return status, run, err
	}).as("runJob", "Create a run by hand").takes(order{}, "args", "id", "reason").
		gives(http.StatusCreated, admin.Run{}).gives(http.StatusOK, admin.Run{})
	handleAct(s, v1+"enqueue", "enqueue", RoleOperator, waitMost+actLimit, s.enqueue, "wait").
		as("enqueue", "Create a run; with status 200, it already existed, and with 202, it has not ended. Or create the runs of a list (items)").
		takes(order{}, "job", "args", "id", "in", "at", "parent", "items", "atomic").asksFor().upTo(listMost).
		gives(http.StatusCreated, admin.Run{}).gives(http.StatusOK, admin.Run{}).gives(http.StatusAccepted, admin.Run{}).
		gives(http.StatusMultiStatus, requests{})
	handleAct(s, v1+"jobs/{job}/replay", "replay ticks", RoleOperator, spanLimit, s.replay).
		as("replayTicks", "Run the ticks of a span (again)").takes(spanOrder{}).requires("from", "to").gives(http.StatusOK, admin.TickSpan{})
	handleAct(s, v1+"jobs/{job}/skip", "skip ticks", RoleOperator, spanLimit, s.skip).
		as("skipTicks", "Declare the ticks of a span skipped").takes(spanOrder{}, "from", "to", "reason", "dry_run").requires("from", "to").
		gives(http.StatusOK, admin.TickSpan{})
	handleAct(s, v1+"runs/cancel", "cancel runs", RoleOperator, bulkLimit, s.bulk(r.ToCancel, o.CancelRuns), admin.RunFilters...).
		as("cancelRuns", "Cancel all runs that a filter finds").takes(bulkOrder{}).gives(http.StatusOK, admin.Bulk{})
	handleAct(s, v1+"runs/retry", "retry runs", RoleOperator, bulkLimit, s.bulk(r.ToRetry, o.RetryRuns), admin.RunFilters...).
		as("retryRuns", "Run all finished runs that a filter finds again").takes(bulkOrder{}).gives(http.StatusOK, admin.Bulk{})
	check := handleAct(s, v1+"config/check", "check config", RoleAdmin, reloadPatience, s.check).
		as("checkConfig", "Find what a reload of the config would do").takes(noOrder{}).gives(http.StatusOK, admin.ConfigCheck{})
	check.hidden = check.hidden || s.o.Check == nil

	retry := func(ctx context.Context, id jobs.RunID, by admin.Actor) (bool, error) {
		return true, o.RetryRun(ctx, id, by)
	}
	s.act(v1+"runs/{id}/cancel", "cancel run", RoleOperator, changed("id", o.CancelRun, r.RunWithoutOutput)).
		as("cancelRun", "Cancel a run").takes(order{}, "reason").gives(http.StatusOK, admin.Run{})
	s.act(v1+"runs/{id}/retry", "retry run", RoleOperator, changed("id", retry, r.RunWithoutOutput)).
		as("retryRun", "Run a finished run again").takes(order{}, "reason").gives(http.StatusOK, admin.Run{})
	s.act(v1+"workers/{id}/drain", "drain worker", RoleAdmin, changed("id", o.DrainWorker, r.Worker)).
		as("drainWorker", "Let a worker finish its runs and take no more").takes(order{}, "reason").gives(http.StatusOK, admin.Worker{})
	s.act(v1+"locks/{lock}/release", "release lock", RoleOperator, func(ctx context.Context, request *http.Request, body order, by admin.Actor) (int, any, error) {
		name := request.PathValue("lock")
		if body.Token == 0 {
			return 0, nil, fmt.Errorf("%w: names no token; it is the one of the hold that is meant, as locks/{lock} shows it", errBody)
		}
		if body.Force {
			if err := s.demand(ctx, RoleAdmin); err != nil {
				return 0, nil, err
			}
		}
		if _, err := o.ReleaseLock(ctx, name, body.Token, body.Force, by); err != nil {
			return 0, nil, err
		}
		lock, err := r.Lock(ctx, name)
		return http.StatusOK, lock, err
	}).as("releaseLock", "Request a lock back from its holder, or take it").takes(order{}, "token", "reason", "force").requires("token", "reason").
		gives(http.StatusOK, admin.Lock{})
	queue := func(paused bool, do func(ctx context.Context, name string, by admin.Actor) (bool, error)) doer {
		return func(ctx context.Context, request *http.Request, _ order, by admin.Actor) (int, any, error) {
			name := request.PathValue("queue")
			_, err := do(ctx, name, by)
			return http.StatusOK, pausedQueue{name, paused}, err
		}
	}
	s.act(v1+"queues/{queue}/pause", "pause queue", RoleOperator, queue(true, o.PauseQueue)).
		as("pauseQueue", "Stop starting runs from a queue").takes(order{}, "reason").gives(http.StatusOK, pausedQueue{})
	s.act(v1+"queues/{queue}/resume", "resume queue", RoleOperator, queue(false, o.ResumeQueue)).
		as("resumeQueue", "Start runs from a queue again").takes(order{}, "reason").gives(http.StatusOK, pausedQueue{})
}

// pausedQueue is the answer about a queue that was paused or resumed.
type pausedQueue struct {
	Queue  string `json:"queue"`
	Paused bool   `json:"paused"`
}

// changed carries out an act on the object that a path names, and answers with the object.
func changed[N ~string, T any](param string, do func(context.Context, N, admin.Actor) (bool, error), show func(context.Context, N) (T, error)) doer {
	return func(ctx context.Context, request *http.Request, _ order, by admin.Actor) (int, any, error) {
		name := N(request.PathValue(param))
		if _, err := do(ctx, name, by); err != nil {
			return 0, nil, err
		}
		object, err := show(ctx, name)
		return http.StatusOK, object, err
	}
}

// enqueued answers with a run: 201 when it is new, 200 when it already existed.
func (s *Server) enqueued(ctx context.Context, enqueued *ledger.Enqueued, err error) (int, *admin.Run, error) {
	if err != nil {
		return 0, nil, err
	}
	status := http.StatusCreated
	if enqueued.Exists {
		status = http.StatusOK
	}
	run, err := s.o.Reader.RunWithoutOutput(ctx, enqueued.Run)
	return status, run, err
}

// doer carries out a request and returns the reply.
type doer func(ctx context.Context, r *http.Request, body order, by admin.Actor) (status int, answer any, err error)

// act registers a path that changes something and takes an order: see [handleAct].
func (s *Server) act(pattern, action string, least Role, do doer) *route {
	return handleAct(s, pattern, action, least, actLimit, do)
}

// requestBody is the body of a request that changes something. It adds to the line of the log.
type requestBody interface{ tell(l *line) }

func (o order) tell(l *line) {
	if l.why, l.on = o.Reason, cmp.Or(l.on, o.Job); l.on == "" && o.Items != nil {
		l.on = "a list"
	}
}

// handleAct registers a path that changes something: POST, with a JSON object or nothing as the
// body. Its users need the role least. It takes the parameters in known. An act may take as long as
// limit. Each request is logged as an action, done or refused; a dry run only if it is refused.
func handleAct[B requestBody](s *Server, pattern, action string, least Role, limit time.Duration,
	do func(context.Context, *http.Request, B, admin.Actor) (int, any, error), known ...string) *route {
	counts := action == "enqueue" || action == "run job"
	var act *route
	act = s.register(http.MethodPost, pattern, least, func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(requester(r).In(r.Context()))
		told := line{who: asker(r), action: action, on: target(r)}
		status, answer, err := carryOut(s, w, r, act, limit, do, known, &told)
		if err == nil {
			if told.done = true; !told.dry {
				s.tell(r.Context(), told, counts)
			}
			err = writeJSON(w, status, answer)
		}
		if err != nil {
			s.refuse(w, r, told, err)
		}
	})
	act.hidden = s.o.Operator == nil
	return act.asks(known...)
}

// requester returns the trace context of the client. Several headers with a traceparent are
// invalid; several with a tracestate are one list.
func requester(r *http.Request) trace.Context {
	parents := r.Header.Values("traceparent")
	if len(parents) != 1 {
		return trace.Context{}
	}
	return trace.Parse(parents[0], strings.Join(r.Header.Values("tracestate"), ","))
}

// target returns the object that a path names.
func target(r *http.Request) string {
	return cmp.Or(r.PathValue("job"), r.PathValue("id"), r.PathValue("lock"), r.PathValue("queue"))
}

// refuse answers a request to change something with an error, and logs it.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, told line, err error) {
	told.status, told.because = s.problem(w, r, err), err.Error()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		s.tell(r.Context(), told, true)
	}
}

func carryOut[B requestBody](s *Server, w http.ResponseWriter, r *http.Request, act *route, limit time.Duration,
	do func(context.Context, *http.Request, B, admin.Actor) (int, any, error), known []string, told *line) (int, any, error) {
	switch {
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "POST")
		return 0, nil, errOnlyPost
	case s.o.Operator == nil:
		return 0, nil, errNoPath
	case s.isForeign(r):
		return 0, nil, errOrigin
	}
	if err := s.demand(r.Context(), act.least); err != nil {
		return 0, nil, err
	}
	if _, err := ask(r, known...); err != nil {
		return 0, nil, err
	}
	body, err := readBody[B](w, r, act.most)
	if err != nil {
		return 0, nil, err
	}
	body.tell(told)
	told.on = cmp.Or(told.on, r.URL.RawQuery)
	allow(w, limit)
	// An act that has begun is completed even if its client disconnects.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), limit)
	defer cancel()
	return do(ctx, r, body, admin.Actor{Who: asker(r), Why: told.why})
}

// allow lets a request take as long as limit, if that is longer than the write deadline of other
// requests. The deadline for reading ends with the body: net/http then waits for the next request,
// or for the end of the client, without one.
func allow(w http.ResponseWriter, limit time.Duration) {
	if limit > actLimit {
		// a writer without deadlines needs no longer one
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit + actLimit))
	}
}

func readBody[B requestBody](w http.ResponseWriter, r *http.Request, most int64) (body B, err error) {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, most))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		return body, fmt.Errorf("%w: %w", errBody, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return body, fmt.Errorf("%w: text follows the object", errBody)
	}
	return body, nil
}

// ActorHeader is the header in which the command line names its user, beside its ticket.
const ActorHeader = "Lockstep-Actor"

// commandLine names the user of the command line that sent a request with a ticket.
func commandLine(r *http.Request) string {
	if name := r.Header.Get(ActorHeader); name != "" && jobs.ValidUserName(name) == nil {
		return name
	}
	return "command line"
}

// asker names the sender of a request, for the audit.
func asker(r *http.Request) string {
	from := "http " + remoteHost(r)
	if user := signedIn(r.Context()).name; user != "" {
		return user + " (" + from + ")"
	}
	return from
}

// isForeign reports whether a page of another origin may have sent a request. [Server.checkHost]
// has already refused host names that an attacker made point here.
func (s *Server) isForeign(r *http.Request) bool { return s.foreign.Check(r) != nil }

func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
