package queue

import (
	"context"
	_ "embed"
	"errors"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/trace"
)

const (
	// foreignDelay is the time after which a foreign task is tried again.
	foreignDelay = 10 * time.Second

	// leaseTime is for how long asynq leaves a task to the worker that has fetched it.
	leaseTime = 30 * time.Second
)

//go:embed scripts/settle.lua
var settleSource string

var settleScript = script("settle", settleSource)

var (
	// ErrForeign says that this worker does not know what a request asks for.
	ErrForeign = errors.New("not a lockstep delivery")

	// ErrLater says that a request was certainly not adopted, and can be retried.
	ErrLater = errors.New("not now")
)

// Request is a task from a plain asynq client. Its type may be the name of a job.
type Request struct {
	Queue string
	// asynq's ID of the task, which is unique in its queue as long as asynq keeps the task.
	ID      string
	Type    string
	Payload []byte

	// Trace is the trace context in the headers of the task, traceparent and tracestate (see
	// asynq.NewTaskWithHeaders).
	Trace trace.Context

	// Again says that asynq has counted the task as tried, so an earlier attempt may have adopted
	// it. Otherwise the task is new, even if it has the ID of an earlier task that asynq has
	// forgotten.
	Again bool

	// Word is a random text that the task got when it was first taken. It keeps the text for as
	// long as asynq keeps the task; a later task with the same ID has another one. "" if it had
	// been tried before, by an earlier build or by another program.
	Word  string
	Since time.Time // when it got its word, by the server's clock

	// Late says that the deadline of the task has passed, by the server's clock.
	Late bool
}

// errNoResult leaves open whether a request was adopted.
var errNoResult = errors.New("there is no result")

// adopt offers the foreign tasks of a fetch to [Options].Adopt, with the slots of that fetch, and
// settles them in asynq. until is when their leases end: then other servers may have them.
func (r *reception) adopt(queue string, some []task, until time.Time, slots int) {
	errs := make([]error, len(some))
	var (
		requests []Request
		offered  []int // their indices
		copied   []ledger.Due
		later    int
	)
	for i, t := range some {
		switch {
		case t.Type == TaskType:
			copied = append(copied, r.read(t)...)
		case r.ctx.Err() != nil, r.o.Adopt == nil, t.Type == "":
			errs[i] = ErrForeign
		default:
			errs[i] = errNoResult
			requests, offered = append(requests, t.Request), append(offered, i)
		}
	}
	if with := min(slots, len(requests)); with < slots {
		r.o.Slots.Release(slots - with)
		slots = with
	}
	if len(requests) > 0 {
		for k, err := range r.offer(requests, until, slots) {
			if errs[offered[k]] = err; errors.Is(err, ErrLater) {
				later++
			}
		}
	}
	if later == len(some) {
		r.gate.pause() // else the whole queue would go to those that come again later
	}
	r.handlers.Go(func() { // the next fetch need not wait for it
		r.settle(queue, some, errs, until)
		if len(copied) > 0 { // now that no task has the ID
			r.putBack(copied...)
		}
	})
}

// offer calls [Options].Adopt. As with a handler of asynq, a panic ends only that call.
func (r *reception) offer(requests []Request, until time.Time, slots int) (errs []error) {
	ctx, cancel := context.WithDeadline(r.ctx, until)
	defer cancel()
	defer func() {
		if x := recover(); x != nil {
			r.log.Error("adopting tasks panicked", "queue", requests[0].Queue, "panic", x, "stack", string(debug.Stack()))
			errs = nil
		}
	}()
	errs = r.o.Adopt(ctx, requests, slots)
	return errs[:min(len(errs), len(requests))]
}

// read returns the delivery in a task of our type that does not have the ID of one. There is none
// unless a tool of asynq has copied it.
func (r *reception) read(t task) []ledger.Due {
	p, err := decode(t.Payload)
	switch {
	case err != nil:
		r.log.Warn("unreadable delivery ended", "queue", t.Queue, "task", t.ID, "error", err)
		return nil
	case p.Namespace != r.client.namespace:
		r.log.Warn("delivery of another namespace ended", "queue", t.Queue, "run", p.Run, "namespace", p.Namespace)
		return nil
	}
	return []ledger.Due{{Run: p.Run, N: p.N, Queue: t.Queue}}
}

// settle ends the tasks that were adopted, and puts back those that certainly were not. It leaves
// the others to asynq's recovery, and after the end of the leases all of them.
func (r *reception) settle(queue string, some []task, errs []error, until time.Time) {
	now := time.Now().UTC()
	back := now
	if r.ctx.Err() == nil { // else another worker can take them at once
		back = now.Add(foreignDelay)
	}
	args := []any{taskKey(queue, ""), now.Add(statsKept).Unix(), back.Unix()}
	for i, t := range some {
		what, message := "done", ""
		switch err := errs[i]; {
		case err == nil && t.retention > 0:
			what, message = strconv.FormatInt(now.Add(t.retention).Unix(), 10), t.completed(now)
		case err == nil:
		case errors.Is(err, ErrForeign), errors.Is(err, ErrLater):
			what = "back"
			if errors.Is(err, ErrForeign) && r.ctx.Err() == nil && r.foreign.news(queue, t.Type) {
				r.log.Warn("task of an unknown type goes back to its queue", "queue", queue, "type", t.Type, "task", t.ID)
			}
		default:
			r.often.Warn("task stays active until asynq recovers it, counted as tried", "queue", queue, "type", t.Type, "task", t.ID, "error", err)
			continue
		}
		args = append(args, t.ID, what, message, t.unique)
	}
	keys := []string{
		queueKey(queue, "active"), queueKey(queue, "lease"), queueKey(queue, "retry"), queueKey(queue, "completed"),
		processedKey(queue, now), queueKey(queue, "processed"),
	}
	lease, cancel := context.WithDeadline(context.WithoutCancel(r.ctx), until)
	defer cancel()
	err := ledger.Insist(func() (done bool, err error) {
		if lease.Err() != nil {
			return true, context.Cause(lease)
		}
		call, cancel := context.WithTimeout(lease, putBackLimit)
		defer cancel()
		err = settleScript().Run(call, r.client.rdb, keys, args...).Err()
		return space.Over(err), err
	}, r.ctx.Done(), lease.Done())
	if err != nil {
		r.often.Warn("settling tasks failed, they stay active until asynq recovers them", "queue", queue, "tasks", len(some), "error", err)
	}
}

// foreign tracks the types of foreign tasks that a log line has reported.
type foreign struct {
	mu   sync.Mutex
	told map[[2]string]bool // queue and type; guarded by mu
}

// news reports whether a type is new. Other programs choose the types, so their number is
// unlimited, and the later ones are no news.
func (f *foreign) news(queue, taskType string) bool {
	const enough = 1000
	f.mu.Lock()
	defer f.mu.Unlock()
	name := [2]string{queue, taskType}
	if f.told[name] || len(f.told) >= enough {
		return false
	}
	if f.told == nil {
		f.told = make(map[[2]string]bool)
	}
	f.told[name] = true
	return true
}
