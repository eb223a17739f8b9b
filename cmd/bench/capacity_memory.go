package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// stored is something that takes memory of Redis. store stores n of it. It may return a function
// that ends what it has begun.
type stored struct {
	name  string
	n     int
	keys  string // a pattern: the memory of these keys counts; "": that of the server
	store func(ctx context.Context, w *whole, n int) (end func() error, err error)
}

// measureCapacityMemory measures how many bytes of Redis each thing takes that is stored.
func measureCapacityMemory(ctx context.Context, set settings, r *result) error {
	s, rdb, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	r.markdown = true
	r.note("used_memory with so many of them, less what was used before, for each (of the last three, MEMORY USAGE of their keys); definitions of %d bytes, "+
		"args of about 15", definitionBytes)
	r.Columns = []string{"what is stored", "number", "bytes each"}
	for _, what := range allStored {
		n := what.n
		if set.short {
			n /= 10
		}
		set.step("capacity-memory: %d times %s", n, what.name)
		if err := s.admin.FlushAll(ctx).Err(); err != nil {
			return err
		}
		w, err := newWhole(ctx, rdb, concurrency)
		if err != nil {
			return err
		}
		bytes, err := s.bytesOf(ctx, w, what, n)
		w.stop()
		if err != nil {
			return fmt.Errorf("%s: %w", what.name, err)
		}
		r.row(what.name, n, bytes)
	}
	return nil
}

// bytesOf returns how many bytes one of n things takes.
func (s *server) bytesOf(ctx context.Context, w *whole, what stored, n int) (bytes float64, err error) {
	if err := enlarge(w.job, definitionBytes); err != nil {
		return 0, err
	}
	before, err := s.memoryOf(ctx, what.keys)
	if err != nil {
		return 0, err
	}
	end, err := what.store(ctx, w, n)
	if end != nil {
		defer func() { err = errors.Join(err, end()) }()
	}
	if err != nil {
		return 0, err
	}
	after, err := s.memoryOf(ctx, what.keys)
	return (after - before) / float64(n), err
}

// memoryOf returns how much memory Redis uses, for keys of a pattern if there is one.
func (s *server) memoryOf(ctx context.Context, pattern string) (bytes float64, err error) {
	if pattern == "" {
		return s.memory(ctx)
	}
	keys, err := s.admin.Keys(ctx, pattern).Result()
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		n, err := s.admin.MemoryUsage(ctx, key, 0).Result() // of all elements
		if err != nil {
			return 0, err
		}
		bytes += float64(n)
	}
	return bytes, nil
}

var allStored = []stored{
	{"job: its definition and its cursor", 10_000, "", storeJobs},
	{"run, scheduled for later", 20_000, "", func(ctx context.Context, w *whole, n int) (func() error, error) { return nil, w.schedule(ctx, n) }},
	{"run, due, with its delivery", 20_000, "", storeDue},
	{"run that waits for a lock", 5_000, "", storeWaiting},
	{"run that succeeded, without output", 20_000, "", func(ctx context.Context, w *whole, n int) (func() error, error) {
		return storeEnded(ctx, w, n, ledger.OutcomeSuccess, nil)
	}},
	{"run that failed, without output", 20_000, "", func(ctx context.Context, w *whole, n int) (func() error, error) {
		return storeEnded(ctx, w, n, ledger.OutcomeFailure, nil)
	}},
	{"hold of one lock", 20_000, "", func(ctx context.Context, w *whole, n int) (func() error, error) { return storeHolds(ctx, w, n, 1) }},
	{"hold of 5 locks", 10_000, "", func(ctx context.Context, w *whole, n int) (func() error, error) { return storeHolds(ctx, w, n, 5) }},
	{"wait of a client for a lock", 5_000, "", storeWaits},
	{"message about a failed run, to one target", 1_000, "{bench}:mail", func(ctx context.Context, w *whole, n int) (func() error, error) {
		return storeEnded(ctx, w, n, ledger.OutcomeFailure, []jobs.Notify{{Target: "ops", On: []jobs.Event{jobs.EventFailed}}})
	}},
	{"entry in the history of holds", 20_000, "{bench}:endings", storePast},
	{"worker: its session", 200, "{bench}:*", storeSessions},
}

func storeJobs(ctx context.Context, w *whole, n int) (func() error, error) {
	batch := make([]*jobs.Job, n)
	for i := range batch {
		job := *w.job
		job.Name, job.Every = fmt.Sprintf("job%05d", i), time.Hour
		batch[i] = &job
	}
	_, err := w.ledger.Register(ctx, "bench", batch)
	return nil, err
}

func storeDue(ctx context.Context, w *whole, n int) (func() error, error) {
	for i := range n {
		if err := w.ask(ctx, i); err != nil {
			return nil, err
		}
	}
	return nil, until(ctx, func() (bool, error) {
		pushed, err := w.rdb.LLen(ctx, "asynq:{default}:pending").Result()
		return pushed >= int64(n), err
	})
}

// storeWaiting has a worker claim runs of which the lock is held, until all of them wait.
func storeWaiting(ctx context.Context, w *whole, n int) (func() error, error) {
	client, err := locks.Open(ctx, w.rdb, locks.Options{Namespace: "bench", Name: "bench"})
	if err != nil {
		return nil, err
	}
	if _, err := client.Acquire(ctx, locks.Exclusive("record:0")); err != nil {
		return nil, errors.Join(err, client.Close(ctx))
	}
	_, stop, err := begin(ctx, w.rdb, []*jobs.Job{w.job}, func() {})
	if err != nil {
		return nil, errors.Join(err, client.Close(ctx))
	}
	end := func() error {
		return errors.Join(stop(), client.Close(context.WithoutCancel(ctx)))
	}
	for i := range n {
		enqueued, err := w.ledger.Enqueue(ctx, ledger.Request{Job: w.job, ID: fmt.Sprint(i), Trigger: ledger.TriggerEnqueue, Args: []byte(`{"record":0}`)})
		if err != nil {
			return end, err
		}
		w.pusher.Add(enqueued.Due...)
	}
	return end, until(ctx, func() (bool, error) {
		queued, err := w.rdb.ZCard(ctx, "{bench}:q").Result()
		return queued >= int64(n), err
	})
}

// storeEnded has runs of a job end, all of which its history keeps.
func storeEnded(ctx context.Context, w *whole, n int, outcome ledger.Outcome, targets []jobs.Notify) (func() error, error) {
	client, err := locks.Open(ctx, w.rdb, locks.Options{Namespace: "bench", Name: "bench"})
	if err != nil {
		return nil, err
	}
	job := *w.job
	job.Name, job.History.Runs, job.Notify = "ended", n, targets
	for done := 0; done < n && err == nil; done += ledger.MaxTogether {
		err = w.endAs(ctx, client, &job, min(ledger.MaxTogether, n-done), outcome)
	}
	return nil, errors.Join(err, client.Close(context.WithoutCancel(ctx)))
}

// storeHolds takes n bundles of so many locks each.
func storeHolds(ctx context.Context, w *whole, n, wide int) (func() error, error) {
	client, err := locks.Open(ctx, w.rdb, locks.Options{Namespace: "bench", Name: "bench", Lease: time.Minute})
	if err != nil {
		return nil, err
	}
	end := func() error { return client.Close(context.WithoutCancel(ctx)) }
	for i := range n {
		names := make([]string, wide)
		for k := range names {
			names[k] = fmt.Sprintf("bill:%d", i*wide+k)
		}
		if _, err := client.Acquire(ctx, locks.Exclusive(names...)); err != nil {
			return end, err
		}
	}
	return end, nil
}

// storeWaits has n requests wait for one lock.
func storeWaits(ctx context.Context, w *whole, n int) (func() error, error) {
	end, err := storeHolds(ctx, w, 1, 1)
	if err != nil {
		return end, err
	}
	client, err := locks.Open(ctx, w.rdb, locks.Options{Namespace: "bench", Name: "bench", Lease: time.Minute})
	if err != nil {
		return end, err
	}
	waits, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	for range n {
		waiting.Go(func() {
			_, _ = client.Acquire(waits, locks.Exclusive("bill:0")) // it ends with the context
		})
	}
	all := func() error {
		cancel()
		waiting.Wait()
		return errors.Join(end(), client.Close(context.WithoutCancel(ctx)))
	}
	return all, until(ctx, func() (bool, error) {
		queued, err := w.rdb.ZCard(ctx, "{bench}:q").Result()
		return queued >= int64(n), err
	})
}

// storePast releases as many holds as entries are wanted.
func storePast(ctx context.Context, w *whole, n int) (func() error, error) {
	client, err := locks.Open(ctx, w.rdb, locks.Options{Namespace: "bench", Name: "bench"})
	if err != nil {
		return nil, err
	}
	for i := range n {
		hold, err := client.Acquire(ctx, locks.Exclusive(fmt.Sprintf("bill:%d", i)))
		if err == nil {
			err = hold.Release()
		}
		if err != nil {
			return nil, errors.Join(err, client.Close(context.WithoutCancel(ctx)))
		}
	}
	return nil, client.Close(ctx)
}

// storeSessions opens a session for each of n workers.
func storeSessions(ctx context.Context, w *whole, n int) (func() error, error) {
	var clients []*locks.Client
	end := func() (err error) {
		for _, client := range clients {
			err = errors.Join(err, client.Close(context.WithoutCancel(ctx)))
		}
		return err
	}
	for i := range n {
		card, err := json.Marshal(worker.Card{
			Host: fmt.Sprint("host-", i), PID: 4711, Version: "v1.2.3", Config: "a34824", State: "ready", Slots: 8,
			Queues: map[string]int{"default": 1}, StartedAt: time.Now(), Admin: "127.0.0.1:9620",
		})
		if err != nil {
			return end, err
		}
		client, err := locks.Open(ctx, w.rdb, locks.Options{Namespace: "bench", Name: fmt.Sprint("host-", i), Card: card, Lease: time.Minute})
		if err != nil {
			return end, err
		}
		clients = append(clients, client)
	}
	return end, nil
}
