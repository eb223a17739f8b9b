package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

// Queue is a queue of this Redis. Its numbers, apart from Due, count deliveries, which are the
// messages that bring due runs to a worker, and tasks of plain asynq clients.
type Queue struct {
	Name      string  `json:"queue"`
	Namespace Text    `json:"namespace"` // null when no lockstep worker has served it
	Paused    bool    `json:"paused"`
	PausedAt  Instant `json:"paused_at"`
	// the actor and the reason; null if another tool paused it
	PausedBy  Text `json:"paused_by"`
	PausedWhy Text `json:"paused_why"`

	Due     int      `json:"due"`            // due runs of this namespace that do not run yet
	Oldest  *Seconds `json:"oldest_seconds"` // how long the first of them has been due
	Workers int      `json:"workers"`        // that start runs from it

	// The runs in a minute, over the last minute, that came (those that began, and the growth of
	// the due ones) and that began. They are null where no worker has counted for ten seconds.
	In  *float64 `json:"in_per_minute"`
	Out *float64 `json:"out_per_minute"`

	Pending   int64   `json:"pending"`
	Active    int64   `json:"active"`
	Scheduled int64   `json:"scheduled"`
	Retry     int64   `json:"retry"`
	Archived  int64   `json:"archived"`
	Latency   Seconds `json:"latency_seconds"` // how long the oldest pending one has waited
}

// Queues is the part of a queue client that a [Reader] reads.
type Queues interface {
	Queues(ctx context.Context) ([]queue.Info, error)
}

// WithQueues returns a reader that also reads queues.
func (r *Reader) WithQueues(queues Queues) *Reader {
	with := *r
	with.queues = queues
	return &with
}

const (
	queuesDue = 1000 // queues with a count of due runs
	// the entry of a pause in the audit is this much later, or, by rounding, that much earlier
	pauseWithin = time.Minute
	pauseSlack  = time.Second
	pauseActs   = 1000 // acts that are searched for that entry
)

// Queues returns the queues of this Redis, by name, including those of other namespaces.
func (r *Reader) Queues(ctx context.Context) ([]Queue, error) {
	if r.queues == nil {
		return nil, unknownError("this process reads no queues")
	}
	infos, err := r.queues.Queues(ctx)
	if err != nil {
		return nil, err
	}
	due, err := r.book.DueQueues(ctx, queuesDue, 1)
	if err != nil {
		return nil, err
	}
	c, err := r.conditions(ctx)
	if err != nil {
		return nil, err
	}
	now, err := r.now(ctx)
	if err != nil {
		return nil, err
	}
	since, err := r.book.PausedSince(ctx, c.paused)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(infos))
	for i, info := range infos {
		names[i] = info.Name
	}
	flows, err := r.book.Flows(ctx, names)
	if err != nil {
		return nil, err
	}
	all := make([]Queue, len(infos))
	for i, info := range infos {
		q := &all[i]
		*q = Queue{
			Name: info.Name, Namespace: Text(info.Namespace), Paused: info.Paused, Pending: info.Pending, Active: info.Active,
			Scheduled: info.Scheduled, Retry: info.Retry, Archived: info.Archived, Latency: Seconds(info.Latency), Workers: len(c.serve(info.Name)),
		}
		if at := slices.IndexFunc(due, func(d ledger.DueQueue) bool { return d.Name == q.Name }); at >= 0 {
			q.Due = due[at].Due
			for _, record := range due[at].Oldest {
				age := Seconds(max(0, now.Sub(record.DueSince)))
				q.Oldest = &age
			}
		}
		if flow, is := flows[q.Name]; is {
			in, out := tenths(flow.In), tenths(flow.Out)
			q.In, q.Out = &in, &out
		}
		if at := since[q.Name]; q.Paused && !at.IsZero() {
			if err := r.pausedBy(ctx, q, at); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

func tenths(n float64) float64 { return math.Round(10*n) / 10 }

// Rate returns a number of runs in a minute for people; "" for none.
func Rate(perMinute *float64) string {
	if perMinute == nil {
		return ""
	}
	return strconv.FormatFloat(*perMinute, 'f', -1, 64) + "/min"
}

// pausedBy adds the actor and the reason of a pause that began at an instant: those of the first
// act after it.
func (r *Reader) pausedBy(ctx context.Context, q *Queue, at time.Time) error {
	q.PausedAt = Instant{at}
	acts, err := r.book.Acts(ctx, fmt.Sprintf("%d-0", at.Add(pauseWithin).UnixMilli()), pauseActs)
	for _, a := range acts {
		if a.At.Before(at.Add(-pauseSlack)) {
			break
		}
		if a.What == actPauseQueue && a.On == q.Name {
			q.PausedBy, q.PausedWhy = Text(a.Who), Text(a.Why)
		}
	}
	return err
}

// Queue returns one queue. An unknown name gives an error that is [queue.ErrNoQueue].
func (r *Reader) Queue(ctx context.Context, name string) (*Queue, error) {
	all, err := r.Queues(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("queue %s: %w", name, queue.ErrNoQueue)
}
