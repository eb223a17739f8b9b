package web

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// requests is the answer to a list of requests.
type requests struct {
	Items []admin.Requested `json:"items"` // in the order of the requests
}

// enqueue asks for the run that the body describes, or for those of its list.
func (s *Server) enqueue(ctx context.Context, r *http.Request, body order, by admin.Actor) (int, any, error) {
	if body.Reason != "" || body.Force || body.Token != 0 {
		return 0, nil, fmt.Errorf("%w: this path takes job, args, id, in, at and parent, or items and atomic", errBody)
	}
	wait, err := readWait(r)
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, actLimit)
	defer cancel()
	if body.Items != nil {
		if wait > 0 {
			return 0, nil, fmt.Errorf("%w: wait is for one run, and the body has a list", admin.ErrInvalid)
		}
		return s.enqueueAll(ctx, r, body, by)
	}
	if body.Atomic {
		return 0, nil, fmt.Errorf("%w: atomic is for a list, in items", errBody)
	}
	request, err := s.request(ctx, r, &body.askedRun, s.o.Reader.Definition)
	if err != nil {
		return 0, nil, err
	}
	enqueued, err := s.o.Operator.Enqueue(ctx, request, by)
	status, run, err := s.enqueued(ctx, enqueued, err)
	if err != nil || wait == 0 {
		return status, run, err
	}
	return s.await(r.Context(), status, run, wait)
}

// request returns the request that a client has described. It gets an ID before it is first sent.
func (s *Server) request(ctx context.Context, r *http.Request, a *askedRun, definition func(context.Context, string) (*jobs.Job, error)) (ledger.Request, error) {
	if a.Job == "" {
		return ledger.Request{}, fmt.Errorf("%w: names no job", errBody)
	}
	job, err := definition(ctx, a.Job)
	if err != nil {
		return ledger.Request{}, err
	}
	request := ledger.Request{Job: job, Named: a.ID != "", Args: a.Args, Trigger: ledger.TriggerEnqueue}
	if request.Parent, err = a.parent(r); err != nil {
		return request, err
	}
	if err := a.name(); err != nil {
		return request, err
	}
	request.ID = a.ID
	if a.At != nil {
		request.At = *a.At
	}
	if a.In != "" {
		if request.In, err = time.ParseDuration(a.In); err != nil || request.In < 0 || a.At != nil {
			return request, fmt.Errorf("%w: in %q: want a duration with a unit, such as 5m, and no at beside it", errBody, a.In)
		}
	}
	return request, nil
}

// enqueueAll asks for the runs of a list. Each item has the status that the request would have had
// alone, and does not affect the others, unless the list is atomic.
func (s *Server) enqueueAll(ctx context.Context, r *http.Request, body order, by admin.Actor) (int, any, error) {
	if one := body.askedRun; one.Job != "" || one.Args != nil || one.ID != "" || one.In != "" || one.At != nil || one.Parent != "" {
		return 0, nil, fmt.Errorf("%w: a body with items has no other field but atomic", errBody)
	}
	list := ledger.List{Atomic: body.Atomic, Items: make([]ledger.Request, len(body.Items)), Refused: make(map[int]error)}
	definition := s.definitions()
	for i := range body.Items {
		item := &body.Items[i]
		if item.unread != nil {
			list.Refused[i] = fmt.Errorf("%w: %w", errBody, item.unread)
			continue
		}
		request, err := s.request(ctx, r, &item.askedRun, definition)
		if list.Items[i] = request; err != nil {
			list.Refused[i] = err
		}
	}
	replies, err := s.o.Operator.EnqueueAll(ctx, list, "", by)
	if err != nil {
		return 0, nil, err
	}
	answer := requests{make([]admin.Requested, len(replies))}
	for i, reply := range replies {
		answer.Items[i] = admin.NewRequested(reply, statusOf)
	}
	return http.StatusMultiStatus, answer, nil
}

// definitions returns a function that reads each definition once.
func (s *Server) definitions() func(context.Context, string) (*jobs.Job, error) {
	type read struct {
		job *jobs.Job
		err error
	}
	known := make(map[string]read)
	return func(ctx context.Context, name string) (*jobs.Job, error) {
		one, is := known[name]
		if !is {
			one.job, one.err = s.o.Reader.Definition(ctx, name)
			known[name] = one
		}
		return one.job, one.err
	}
}
