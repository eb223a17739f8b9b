package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// FlowEvery is how often a worker sends what it has begun, and asks for runs with a lapsed
	// offer.
	FlowEvery = 5 * time.Second
	// a queue with a last sample that is older has no worker that sends any
	flowStale = 4 * FlowEvery
)

// Flow is how many runs come into a queue and leave it, over the last minute, or since the first
// worker has served the queue.
type Flow struct {
	// In is the runs in a minute that came: those that began, and the growth of the due ones.
	In float64
	// Out is the attempts in a minute that began.
	Out float64
}

// Began counts attempts that a worker has begun since its last call, by queue, and takes a sample
// of each of these queues. The queues are all that the worker serves, including those without an
// attempt. A call that is sent again counts twice.
//
// Began also returns the next run of each of these queues, if it has waited for its locks and its
// delivery is in the queue. Usually its offer has lapsed. That delivery may be behind those of runs
// that became due later, so a worker should claim the run in the next slot that becomes free.
func (l *Ledger) Began(ctx context.Context, began map[string]int64) (first []Due, err error) {
	queues := slices.Sorted(maps.Keys(began))
	steps := make([]keyedStep, len(queues))
	for i, queue := range queues {
		steps[i] = keyedStep{"", flowKey + queue, []any{queue, began[queue]}}
	}
	var errs []error
	for i, call := range l.runKeyed(ctx, "flow", steps) {
		r := call.Read()
		r.Number()
		first = append(first, dueOf(r)...)
		if r.Err != nil {
			errs = append(errs, fmt.Errorf("count the attempts of queue %s: %w", queues[i], r.Err))
		}
	}
	return first, errors.Join(errs...)
}

// Flows returns the flows of those of the queues that have one: a worker serves them and has sent
// two samples at least.
func (l *Ledger) Flows(ctx context.Context, queues []string) (map[string]Flow, error) {
	samples := make([]*redis.StringCmd, len(queues))
	var clock *redis.TimeCmd
	err := l.pipeline(ctx, func(pipe redis.Pipeliner) {
		clock = pipe.Time(ctx)
		for i, queue := range queues {
			samples[i] = pipe.Get(ctx, l.prefix+flowKey+queue)
		}
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read the flows of queues: %w", err)
	}
	flows := make(map[string]Flow)
	for i, queue := range queues {
		text, err := samples[i].Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the flow of queue %s: %w", queue, err)
		}
		if flow, is := flowOf(text, clock.Val()); is {
			flows[queue] = flow
		}
	}
	return flows, nil
}

// flowSample is a sample of a queue.
type flowSample struct{ at, due, began int64 }

// flowOf reads a value of the key flow. It returns false if the samples are too few or too old.
func flowOf(text string, now time.Time) (Flow, bool) {
	_, list, _ := strings.Cut(text, "\x1f")
	var samples []flowSample
	for entry := range strings.SplitSeq(list, "\x1f") {
		var s flowSample
		if n, err := fmt.Sscanf(entry, "%d %d %d", &s.at, &s.due, &s.began); n < 3 || err != nil {
			return Flow{}, false
		}
		samples = append(samples, s)
	}
	first, last := samples[0], samples[len(samples)-1]
	if last.at <= first.at || now.Sub(millis(last.at)).Abs() > flowStale {
		return Flow{}, false
	}
	minutes := float64(last.at-first.at) / float64(time.Minute.Milliseconds())
	out := last.began - first.began
	return Flow{In: float64(max(0, out+last.due-first.due)) / minutes, Out: float64(out) / minutes}, true
}
