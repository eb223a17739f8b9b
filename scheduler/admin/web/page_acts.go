package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// asking is an act that a page asks about before it is done, and then its result.
type asking struct {
	Action string   // the path that the form is sent to
	Says   []string // what will happen, from the present state
	Fields []field
	Button string
	Danger bool
	// the state that Says describes: another one refuses the act. "" while Fields must be filled in
	// before that can be said
	Seen   string
	Reason string
	Wrong  string // why it was not done
	Back   string // the page of the thing
	Done   string // the result; "" before
	Led    string // the page of what the act made; "" for none

	Lacks  string   // what the form lacks, besides a reason; "" for nothing
	Rest   []string // what was not done, and why
	Partly bool     // not all of it was done

	on    string       // for the log: what it acts on, if the path does not name it
	found *admin.Match // for doFound
}

// field is an input of a form.
type field struct {
	Name, Label, Value string
	Kind               string // text, number, area, check, hidden
}

const nothingDone = "Nothing was done. This is what would happen now:"

// pageAct is an act with a page of its own: GET asks, POST does it and shows the result.
type pageAct struct {
	page   string   // its entry in the navigation
	action string   // as in the log and the audit
	fields []string // that its form has besides reason and seen
	title  func(r *http.Request) string
	ask    func(ctx context.Context, r *http.Request, values url.Values) (*asking, error)
	do     func(ctx context.Context, r *http.Request, values url.Values, by admin.Actor) (done, led string, err error)
	limit  time.Duration // default: actLimit

	// of an act on what ask has found; repeats is a field that the form may have several times
	repeats string
	doFound func(ctx context.Context, asked *asking, by admin.Actor) error // instead of do
}

// may reports whether the user that sent a request may do what needs a role.
func (s *Server) may(r *http.Request, least Role) bool {
	return s.o.Operator != nil && signedIn(r.Context()).role.May(least)
}

// actPages registers the pages of acts.
func (s *Server) actPages() {
	s.actPage("/jobs/{job}/pause", RoleOperator, s.pauseJob())
	s.actPage("/jobs/{job}/resume", RoleOperator, s.resumeJob())
	s.actPage("/jobs/{job}/run", RoleOperator, s.runJob())
	s.actPage("/jobs/{job}/replay", RoleOperator, s.replayTicks())
	s.actPage("/jobs/{job}/skip", RoleOperator, s.skipTicks())
	s.actPage("/runs/cancel", RoleOperator, s.cancelRuns())
	s.actPage("/runs/retry", RoleOperator, s.retryRuns())
	s.actPage("/runs/{id}/cancel", RoleOperator, s.cancelRun())
	s.actPage("/runs/{id}/retry", RoleOperator, s.retryRun())
	s.actPage("/locks/{lock}/release", RoleOperator, s.releaseLock())
	s.actPage("/workers/{id}/drain", RoleAdmin, s.drainWorker())
	s.actPage("/queues/{queue}/pause", RoleOperator, s.pauseQueue())
	s.actPage("/queues/{queue}/resume", RoleOperator, s.resumeQueue())
}

// actPage registers the page of an act. Its users need the role least. Each POST is logged as an
// action, done or refused.
func (s *Server) actPage(pattern string, least Role, a pageAct) {
	s.register(http.MethodPost, pattern, least, func(w http.ResponseWriter, r *http.Request) {
		told := line{who: asker(r), action: a.action, on: target(r)}
		if err := s.askOrDo(w, r, least, a, &told); err != nil {
			s.refuse(w, r, told, err)
		}
	})
}

func (s *Server) askOrDo(w http.ResponseWriter, r *http.Request, least Role, a pageAct, told *line) error {
	posted := r.Method == http.MethodPost
	switch {
	case !posted && r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD, POST")
		return errOnlyPost
	case s.o.Operator == nil:
		return errNoPath
	case posted && s.isForeign(r):
		return errOrigin
	}
	if err := s.demand(r.Context(), least); err != nil {
		return err
	}
	values, err := formOf(w, r, a.fields, a.repeats)
	if err != nil {
		return err
	}
	limit := cmp.Or(a.limit, actLimit)
	allow(w, limit)
	// An act that has begun is completed even if its client disconnects.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), limit)
	defer cancel()
	told.why = values.Get("reason")
	asked, err := a.ask(ctx, r, values)
	if err != nil {
		return err
	}
	told.on = cmp.Or(told.on, asked.on)
	asked.Action, asked.Reason = string(s.link())+r.URL.EscapedPath(), values.Get("reason")
	v := s.newView(r, a.page)
	v.Again, v.Title, v.Seen = "", a.title(r), asked
	status := http.StatusOK
	switch {
	case !posted || !values.Has("seen") || asked.Seen == "":
	case asked.Seen != values.Get("seen"):
		status = http.StatusConflict
		if asked.Wrong == "" {
			asked.Wrong = "It has changed since the page was drawn. " + nothingDone
		}
		told.status, told.because = status, "it has changed since the page was drawn"
		s.tell(ctx, *told, true)
	case asked.Reason == "":
		status, asked.Wrong = http.StatusBadRequest, "Give a reason: the audit keeps it, and those that it concerns can read it."
	case asked.Lacks != "":
		status, asked.Wrong = http.StatusBadRequest, asked.Lacks
	default:
		by := admin.Actor{Who: asker(r), Why: asked.Reason}
		if a.doFound != nil {
			err = a.doFound(ctx, asked, by)
		} else {
			asked.Done, asked.Led, err = a.do(ctx, r, values, by)
		}
		if err != nil {
			return err
		}
		told.done = true
		s.tell(ctx, *told, a.action == "run job")
	}
	return s.render(w, status, "act", v)
}

// formOf reads the fields of a form: of a POST from its body, else from the query. The form may
// have the field repeats several times.
func formOf(w http.ResponseWriter, r *http.Request, known []string, repeats string) (url.Values, error) {
	values := r.URL.Query()
	if r.Method == http.MethodPost {
		r.Body = http.MaxBytesReader(w, r.Body, bodyMost)
		if err := r.ParseForm(); err != nil {
			return nil, fmt.Errorf("%w: the form: %w", admin.ErrInvalid, err)
		}
		values = r.PostForm
		known = append([]string{"reason", "seen"}, known...)
	}
	for name, given := range values {
		if repeats != "" && name == repeats {
			continue
		}
		if !slices.Contains(known, name) || len(given) > 1 {
			return nil, fmt.Errorf("%w: the form has the field %q, or has it twice; it takes %s", admin.ErrInvalid, shorten(name, 60), strings.Join(known, ", "))
		}
	}
	return values, nil
}

func jobTitle(words string) func(*http.Request) string {
	return func(r *http.Request) string { return words + " " + r.PathValue("job") }
}

func (s *Server) pauseJob() pageAct {
	return pageAct{
		page: "jobs", action: "pause job", title: jobTitle("Pause the job"),
		ask: func(ctx context.Context, r *http.Request, _ url.Values) (*asking, error) {
			job, err := s.o.Reader.Job(ctx, r.PathValue("job"))
			if err != nil {
				return nil, err
			}
			a := &asking{Button: "Pause the job", Back: s.link().path("jobs", job.Name), Seen: "paused: " + string(job.Paused)}
			if job.Paused != "" {
				a.Says = append(a.Says, "It is paused already: "+string(job.Paused)+".")
			}
			a.Says = append(a.Says, "Its ticks are skipped from now on"+untilNext(job)+".",
				fmt.Sprintf("%s; pausing does not stop them. Requests and runs by hand continue.", plural(job.Running, "run of it is running", "runs of it are running")))
			return a, nil
		},
		do: func(ctx context.Context, r *http.Request, _ url.Values, by admin.Actor) (string, string, error) {
			news, err := s.o.Operator.PauseJob(ctx, r.PathValue("job"), by)
			return said(news, "The job is paused.", "The job was paused already."), "", err
		},
	}
}

func said(news bool, yes, no string) string {
	if news {
		return yes
	}
	return no
}

// untilNext names the next tick of a job in a sentence.
func untilNext(job *admin.Job) string {
	if job.NextTick.IsZero() {
		return ""
	}
	return "; the next one is " + job.NextTick.String()
}

func (s *Server) resumeJob() pageAct {
	return pageAct{
		page: "jobs", action: "resume job", title: jobTitle("Resume the job"),
		ask: func(ctx context.Context, r *http.Request, _ url.Values) (*asking, error) {
			job, err := s.o.Reader.Job(ctx, r.PathValue("job"))
			if err != nil {
				return nil, err
			}
			a := &asking{Button: "Resume the job", Back: s.link().path("jobs", job.Name), Seen: "paused: " + string(job.Paused)}
			if job.Paused == "" {
				a.Says = append(a.Says, "It is not paused.")
			} else {
				a.Says = append(a.Says, "It is paused "+string(job.Paused)+".")
			}
			a.Says = append(a.Says, "Its ticks run again"+untilNext(job)+". The ticks that were skipped do not run later.")
			return a, nil
		},
		do: func(ctx context.Context, r *http.Request, _ url.Values, by admin.Actor) (string, string, error) {
			news, err := s.o.Operator.ResumeJob(ctx, r.PathValue("job"), by)
			return said(news, "The job is resumed.", "The job was not paused."), "", err
		},
	}
}

// runJob asks for the args, then shows the locks that the run will need, and then makes the run.
func (s *Server) runJob() pageAct {
	return pageAct{
		page: "jobs", action: "run job", title: jobTitle("Run now:"), fields: []string{"args", "id"},
		ask: func(ctx context.Context, r *http.Request, values url.Values) (*asking, error) {
			name := r.PathValue("job")
			job, err := s.o.Reader.Definition(ctx, name)
			if err != nil {
				return nil, err
			}
			text := cmp.Or(values.Get("args"), "{}")
			if r.Method != http.MethodPost {
				text = shownArgs(job)
			}
			a := &asking{Button: "Show what it locks", Back: s.link().path("jobs", name), Fields: []field{
				{"args", "Args (JSON)", text, "area"}, {"id", "ID, to make it once only (optional)", values.Get("id"), "text"},
			}}
			if r.Method != http.MethodPost {
				a.Says = []string{"The run is made with these args. The next page shows the locks that it needs; nothing is sent before that."}
				return a, nil
			}
			if !json.Valid([]byte(text)) {
				a.Wrong = "The args are not JSON."
				return a, nil
			}
			args := givenArgs(job, text)
			if err := job.CheckShown(args); err != nil {
				a.Wrong = err.Error()
				return a, nil
			}
			if args == nil {
				args = job.Args
			}
			items, err := job.Resources(jobs.RequestRunID(name, cmp.Or(values.Get("id"), "new")), args)
			if err != nil {
				a.Wrong = err.Error()
				return a, nil
			}
			held, err := s.o.Reader.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			a.Says = append(a.Says, "A run of "+name+" becomes due in the queue "+job.Queue+" at once.")
			a.Says = append(a.Says, lockWords(items, held)...)
			a.Button, a.Seen = "Run it now", digest([]byte(text+"\x00"+values.Get("id")))
			return a, nil
		},
		do: func(ctx context.Context, r *http.Request, values url.Values, by admin.Actor) (string, string, error) {
			id := values.Get("id")
			named := askedRun{ID: id}
			if err := named.name(); err != nil {
				return "", "", err
			}
			job, err := s.o.Reader.Definition(ctx, r.PathValue("job"))
			if err != nil {
				return "", "", err
			}
			args := givenArgs(job, cmp.Or(values.Get("args"), "{}"))
			enqueued, err := s.o.Operator.RunNow(ctx, r.PathValue("job"), named.ID, args, id != "", by)
			if err != nil {
				return "", "", err
			}
			return said(!enqueued.Exists, "The run is made: ", "The run existed already: ") + string(enqueued.Run), s.link().path("runs", enqueued.Run), nil
		},
	}
}

// shownArgs is a job's own args as a form shows them: secret ones are hidden.
func shownArgs(job *jobs.Job) string { return cmp.Or(indented(job.HideArgs(job.Args)), "{}") }

// givenArgs returns the args that a form was sent with; nil, which means the job's own, if they are
// as [shownArgs] has shown them.
func givenArgs(job *jobs.Job, text string) json.RawMessage {
	var given, shown bytes.Buffer
	if err := errors.Join(json.Compact(&given, []byte(text)), json.Compact(&shown, []byte(shownArgs(job)))); err == nil &&
		len(job.Args) > 0 && bytes.Equal(given.Bytes(), shown.Bytes()) {
		return nil
	}
	return json.RawMessage(text)
}

// lockWords describes the locks that a run will need, and which of them are taken now.
func lockWords(items []locks.Item, held *admin.Snapshot) []string {
	const most = 50
	var words []string
	for _, item := range items {
		if strings.HasPrefix(item.Name, jobs.RunResource("")) {
			continue
		}
		text := fmt.Sprintf("It locks %s (%s)", shorten(item.Name, 120), item.Mode)
		for _, holder := range held.Holders {
			if slices.Contains(holder.Bundle, item.Name) {
				text += ", held now by " + shorten(cmp.Or(holder.Purpose(), string(holder.Worker)), 120)
				break
			}
		}
		words = append(words, text+".")
	}
	if len(words) == 0 {
		return []string{"It needs no locks."}
	}
	if more := len(words) - most; more > 0 {
		words = append(words[:most], fmt.Sprintf("It locks %d more.", more))
	}
	return words
}

// spanFields are the fields of an act on a span of ticks.
func spanFields(values url.Values) []field {
	return []field{
		{"from", "From, as 2026-11-20T01:00:00Z", values.Get("from"), "text"}, {"to", "To, included", values.Get("to"), "text"},
	}
}

func spanOf(values url.Values) (from, to time.Time, err error) {
	if from, err = time.Parse(time.RFC3339, strings.TrimSpace(values.Get("from"))); err == nil {
		to, err = time.Parse(time.RFC3339, strings.TrimSpace(values.Get("to")))
	}
	if err != nil {
		err = fmt.Errorf("%w: from and to must be times, as in RFC 3339", admin.ErrInvalid)
	}
	return from, to, err
}

// askSpan asks for a span of ticks, and then says how many ticks it has.
func (s *Server) askSpan(ctx context.Context, r *http.Request, values url.Values, button, what string,
	count func(ctx context.Context, job string, from, to time.Time) (int, error)) (*asking, error) {
	name := r.PathValue("job")
	if _, err := s.o.Reader.Definition(ctx, name); err != nil {
		return nil, err
	}
	a := &asking{Button: "Count the ticks", Back: s.link().path("jobs", name), Fields: spanFields(values)}
	if r.Method != http.MethodPost {
		a.Says = []string{"Name the first and the last due time. The next page counts the ticks between them; nothing is done before that."}
		return a, nil
	}
	from, to, err := spanOf(values)
	if err == nil {
		var ticks int
		if ticks, err = count(ctx, name, from, to); err == nil {
			a.Says = []string{fmt.Sprintf(what, plural(ticks, "tick", "ticks"), from.UTC().Format(time.RFC3339), to.UTC().Format(time.RFC3339))}
			a.Button, a.Seen = button, fmt.Sprintf("%d ticks from %d to %d %s", ticks, from.Unix(), to.Unix(), values.Get("keys"))
		}
	}
	if err != nil {
		a.Wrong = err.Error()
	}
	return a, nil
}

func (s *Server) replayTicks() pageAct {
	return pageAct{
		page: "jobs", action: "replay ticks", title: jobTitle("Replay ticks of"), limit: spanLimit, fields: []string{"from", "to", "keys"},
		ask: func(ctx context.Context, r *http.Request, values url.Values) (*asking, error) {
			a, err := s.askSpan(ctx, r, values, "Replay them", "%s from %s to %s run again, whatever their outcome was; those that have not ended stay as they are.", s.o.Operator.ToReplay)
			if err == nil {
				a.Fields = append(a.Fields, field{"keys", "New idempotency keys: effects are made again", values.Get("keys"), "check"})
			}
			return a, err
		},
		do: func(ctx context.Context, r *http.Request, values url.Values, by admin.Actor) (string, string, error) {
			from, to, err := spanOf(values)
			if err != nil {
				return "", "", err
			}
			n, err := s.o.Operator.Replay(ctx, r.PathValue("job"), from, to, admin.ReplayKeys(values.Get("keys") != ""), by)
			return plural(n, "run is due.", "runs are due."), s.link().path("runs") + "?job=" + url.QueryEscape(r.PathValue("job")), err
		},
	}
}

func (s *Server) skipTicks() pageAct {
	return pageAct{
		page: "jobs", action: "skip ticks", title: jobTitle("Skip ticks of"), limit: spanLimit, fields: []string{"from", "to"},
		ask: func(ctx context.Context, r *http.Request, values url.Values) (*asking, error) {
			return s.askSpan(ctx, r, values, "Skip them", "%s from %s to %s do not run: future ones, and those with runs that have not started.", s.o.Operator.ToSkip)
		},
		do: func(ctx context.Context, r *http.Request, values url.Values, by admin.Actor) (string, string, error) {
			from, to, err := spanOf(values)
			if err != nil {
				return "", "", err
			}
			n, err := s.o.Operator.Skip(ctx, r.PathValue("job"), from, to, by)
			return "The ticks are skipped; " + plural(n, "run that had not started was canceled.", "runs that had not started were canceled."), "", err
		},
	}
}

func runTitle(words string) func(*http.Request) string {
	return func(r *http.Request) string { return words + " " + r.PathValue("id") }
}

func (s *Server) cancelRun() pageAct {
	return pageAct{
		page: "runs", action: "cancel run", title: runTitle("Cancel the run"),
		ask: func(ctx context.Context, r *http.Request, _ url.Values) (*asking, error) {
			run, _, err := s.o.Reader.Run(ctx, jobs.RunID(r.PathValue("id")))
			if err != nil {
				return nil, err
			}
			if run.State.Final() {
				return nil, fmt.Errorf("cancel %s: %w: it has ended: it is %s", run.ID, ledger.ErrRefused, run.State)
			}
			a := &asking{Button: "Cancel the run", Danger: true, Back: s.link().path("runs", run.ID), Seen: fmt.Sprintf("%s %d", run.State, len(run.Attempts))}
			last := lastAttempt(*run)
			if run.State != ledger.StateRunning || last == nil {
				a.Says = []string{fmt.Sprintf("It is %s and does not run: it ends as canceled at once.", run.State)}
				return a, nil
			}
			a.Says = []string{fmt.Sprintf("It is running: its worker %s is asked to stop attempt %d. When it has stopped, the run ends as canceled.", last.Worker, last.Number)}
			snapshot, err := s.o.Reader.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			for _, holder := range snapshot.Holders {
				if holder.RunID != admin.Text(run.ID) {
					continue
				}
				for _, name := range holder.Locks()[:min(len(holder.Locks()), mostBlockers)] {
					lock, err := snapshot.Lock(ctx, name)
					if err != nil {
						return nil, err
					}
					a.Says = append(a.Says, "Then it releases "+shorten(name, 80)+". "+sentence(lock.AfterRelease(&holder)))
				}
			}
			return a, nil
		},
		do: func(ctx context.Context, r *http.Request, _ url.Values, by admin.Actor) (string, string, error) {
			asked, err := s.o.Operator.CancelRun(ctx, jobs.RunID(r.PathValue("id")), by)
			return said(asked, "Its worker is asked to stop it.", "The run is canceled."), "", err
		},
	}
}

func (s *Server) retryRun() pageAct {
	return pageAct{
		page: "runs", action: "retry run", title: runTitle("Retry the run"),
		ask: func(ctx context.Context, r *http.Request, _ url.Values) (*asking, error) {
			run, _, err := s.o.Reader.Run(ctx, jobs.RunID(r.PathValue("id")))
			if err != nil {
				return nil, err
			}
			if !run.State.Final() {
				return nil, fmt.Errorf("retry %s: %w: it is %s", run.ID, ledger.ErrRefused, run.State)
			}
			return &asking{
				Button: "Retry the run", Back: s.link().path("runs", run.ID), Seen: fmt.Sprintf("%s %s", run.State, run.FinishedAt),
				Says: []string{fmt.Sprintf("It is %s. It becomes due again, under its id and by the present definition of %s: an effect that is recorded under its key is not made again.", run.State, run.Job)},
			}, nil
		},
		do: func(ctx context.Context, r *http.Request, _ url.Values, by admin.Actor) (string, string, error) {
			return "The run is due again.", "", s.o.Operator.RetryRun(ctx, jobs.RunID(r.PathValue("id")), by)
		},
	}
}

func (s *Server) releaseLock() pageAct {
	return pageAct{
		page: "locks", action: "release lock", fields: []string{"token", "force"},
		title: func(r *http.Request) string { return "Release the lock " + r.PathValue("lock") },
		ask: func(ctx context.Context, r *http.Request, values url.Values) (*asking, error) {
			name := r.PathValue("lock")
			lock, err := s.o.Reader.Lock(ctx, name)
			if err != nil {
				return nil, err
			}
			token := values.Get("token")
			at := slices.IndexFunc(lock.Holders, func(h admin.Holder) bool { return h.Token.String() == token })
			if at < 0 {
				return nil, fmt.Errorf("release lock %s: %w: %s", name, locks.ErrStale, heldNow(lock, token))
			}
			holder := &lock.Holders[at]
			a := &asking{Button: "Release the lock", Danger: true, Back: s.link().path("locks", name), Seen: "token " + token, Fields: []field{
				{"token", "", token, "hidden"},
			}}
			if s.may(r, RoleAdmin) {
				a.Fields = append(a.Fields, field{"force", "By force: do not wait for the holder. Two holders may then be at work", values.Get("force"), "check"})
			}
			a.Says = []string{
				fmt.Sprintf("It is held by %s on %s for %s.", shorten(cmp.Or(holder.Purpose(), string(holder.HoldID)), 200), holder.Worker, admin.Span(time.Duration(holder.Held))),
				"The work under it is canceled, and all " + plural(len(holder.Locks()), "lock", "locks") + " of its bundle pass on when it has stopped, or when its session ends.",
				sentence(lock.AfterRelease(holder)),
			}
			return a, nil
		},
		do: func(ctx context.Context, r *http.Request, values url.Values, by admin.Actor) (string, string, error) {
			var token locks.Token
			if err := token.UnmarshalText([]byte(values.Get("token"))); err != nil {
				return "", "", fmt.Errorf("%w: token %q", admin.ErrInvalid, shorten(values.Get("token"), 60))
			}
			force := values.Get("force") != ""
			if force {
				if err := s.demand(ctx, RoleAdmin); err != nil {
					return "", "", err
				}
			}
			if _, err := s.o.Operator.ReleaseLock(ctx, r.PathValue("lock"), token, force, by); err != nil {
				return "", "", err
			}
			return said(force, "The lock has passed on; its holder learns of that.", "The holder is asked to release the lock."), "", nil
		},
	}
}

// heldNow describes the present holders of a lock to a client that named a token that none of them
// has.
func heldNow(lock *admin.Lock, token string) string {
	if len(lock.Holders) == 0 {
		return fmt.Sprintf("nothing holds it under the token %q: it is free, or reserved for the first waiter", shorten(token, 60))
	}
	first := &lock.Holders[0]
	return fmt.Sprintf("it is not held under the token %q; now it is held by %s on %s, token %s", shorten(token, 60), shorten(cmp.Or(first.Purpose(), string(first.HoldID)), 200),
		first.Worker, first.Token)
}

func (s *Server) drainWorker() pageAct {
	return pageAct{
		page: "workers", action: "drain worker", title: func(r *http.Request) string { return "Drain the worker " + r.PathValue("id") },
		ask: func(ctx context.Context, r *http.Request, _ url.Values) (*asking, error) {
			worker, err := s.o.Reader.Worker(ctx, locks.SessionID(r.PathValue("id")))
			if err != nil {
				return nil, err
			}
			a := &asking{Button: "Drain the worker", Danger: true, Back: s.link().path("workers", worker.ID), Seen: worker.State, Says: []string{
				"It is " + worker.State + " and runs " + plural(worker.Busy, "run", "runs") + ".",
				"It takes nothing new, lets its runs end for its drain_timeout, hands the others back, and exits. Its host may start it again.",
			}}
			return a, nil
		},
		do: func(ctx context.Context, r *http.Request, _ url.Values, by admin.Actor) (string, string, error) {
			news, err := s.o.Operator.DrainWorker(ctx, locks.SessionID(r.PathValue("id")), by)
			return said(news, "The worker is asked to drain.", "The worker was asked to drain already."), "", err
		},
	}
}

func queueTitle(words string) func(*http.Request) string {
	return func(r *http.Request) string { return words + " " + r.PathValue("queue") }
}

func (s *Server) pauseQueue() pageAct {
	return pageAct{
		page: "queues", action: "pause queue", title: queueTitle("Pause the queue"),
		ask: func(ctx context.Context, r *http.Request, _ url.Values) (*asking, error) {
			queue, err := s.o.Reader.Queue(ctx, r.PathValue("queue"))
			if err != nil {
				return nil, err
			}
			return &asking{
				Button: "Pause the queue", Danger: true, Back: s.link().path("queues"), Seen: fmt.Sprintf("paused: %t", queue.Paused), Says: []string{
					fmt.Sprintf("%s due in it, and %s from it.", plural(queue.Due, "run is", "runs are"), plural(queue.Workers, "worker starts runs", "workers start runs")),
					"No run of it starts until it is resumed. Running ones continue; those that wait for locks step back, and keep their places.",
				},
			}, nil
		},
		do: func(ctx context.Context, r *http.Request, _ url.Values, by admin.Actor) (string, string, error) {
			news, err := s.o.Operator.PauseQueue(ctx, r.PathValue("queue"), by)
			return said(news, "The queue is paused.", "The queue was paused already."), "", err
		},
	}
}

func (s *Server) resumeQueue() pageAct {
	return pageAct{
		page: "queues", action: "resume queue", title: queueTitle("Resume the queue"),
		ask: func(ctx context.Context, r *http.Request, _ url.Values) (*asking, error) {
			queue, err := s.o.Reader.Queue(ctx, r.PathValue("queue"))
			if err != nil {
				return nil, err
			}
			a := &asking{Button: "Resume the queue", Back: s.link().path("queues"), Seen: fmt.Sprintf("paused: %t", queue.Paused)}
			if !queue.Paused {
				a.Says = append(a.Says, "It is not paused.")
			} else if queue.PausedBy != "" {
				a.Says = append(a.Says, fmt.Sprintf("It is paused by %s: %s", queue.PausedBy, cmp.Or(string(queue.PausedWhy), "without a reason")))
			}
			a.Says = append(a.Says, plural(queue.Due, "run that is due in it starts", "runs that are due in it start")+" as soon as workers have free slots; its waiting runs get their places back.")
			return a, nil
		},
		do: func(ctx context.Context, r *http.Request, _ url.Values, by admin.Actor) (string, string, error) {
			news, err := s.o.Operator.ResumeQueue(ctx, r.PathValue("queue"), by)
			return said(news, "The queue is resumed.", "The queue was not paused."), "", err
		},
	}
}
