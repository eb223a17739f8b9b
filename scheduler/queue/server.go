package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"lockstep/scheduler/ledger"
	"lockstep/scheduler/repeats"
)

const (
	// DefaultFetchers is how many asynq servers one [Server] runs at most.
	DefaultFetchers = 4

	// DefaultPollInterval is the average pause between polls of an idle queue. Each pause is
	// between a half and one and a half of it.
	DefaultPollInterval = time.Second

	// maxWeight limits weights: asynq lists the name of each queue as often as its weight says, and
	// shuffles that list for every fetch.
	maxWeight = 1000

	// slotsPerFetcher limits the deliveries in hand for each asynq server if Options has no Slots.
	// With two, one could be fetched while the other is handled. The rest is for handlers that wait
	// for a reply from Redis.
	slotsPerFetcher = 4

	// fetchMost limits the deliveries, or foreign tasks, that one fetch takes. A higher limit would
	// save little, and all deliveries of one fetch come from one queue, whatever the weights.
	fetchMost = 16

	// ownInterval is how often a running server registers its queues again, in case Redis was
	// emptied.
	ownInterval = 5 * time.Second

	// recordsInterval is how often the server removes records of handled deliveries that no fetch
	// has removed.
	recordsInterval = 2 * time.Second

	// helpFor is for how long further asynq servers run after the last delivery.
	helpFor = 30 * time.Second

	// fetchAgain is asynq's own pause after a fetch that found nothing. It is negligible, because
	// the gate decides.
	fetchAgain = time.Millisecond

	// putBackLimit limits a call that returns, settles or forgets what was fetched.
	putBackLimit = 5 * time.Second
)

// Slots limit the deliveries that a worker has in hand. A [Server] takes a slot before it fetches,
// so that each delivery can run, at once or soon.
type Slots interface {
	// Acquire waits for a free slot. It returns an error only if ctx has ended, and then takes no
	// slot.
	Acquire(ctx context.Context) error
	// More takes up to most further slots that are free now, and returns how many it took.
	More(most int) int
	// Release returns slots.
	Release(n int)
	// HasFree reports whether a slot is free. Slots may be taken beyond those that are free.
	HasFree() bool
}

// Options configure a [Server]. Queues and Handle are required.
type Options struct {
	// Queues maps the queues to serve to their weights, 1 to 1000. With {a: 6, b: 3}, if both
	// queues have deliveries, a gets two thirds of the fetches.
	Queues map[string]int

	// Handle receives deliveries of one queue, oldest first. They have already ended. It should
	// only claim the runs and start them elsewhere. It is called from several goroutines at once.
	// ctx ends only when the server stops.
	//
	// With Slots, each delivery comes with one slot. Handle returns the slots, or passes them on to
	// the runs that it starts.
	Handle func(ctx context.Context, some []ledger.Due)

	// Adopt receives tasks from plain asynq clients, and returns an error for each. A nil Adopt
	// means that all of these are foreign. Without an error the task ends, because its request is
	// recorded. After an ErrForeign or ErrLater the task comes again after 10 s, to any server that
	// fetches it; asynq does not count that, so the task is never archived. Any other error leaves
	// open whether the request was adopted: asynq recovers the task within three minutes as it does
	// for a dead server, counted as tried, and archives one without retries left. Adopt is called
	// like Handle. Of the slots of the fetch, as many come along as there are tasks, if it had so
	// many: Adopt returns them, or passes them on to the runs that it starts. ctx also ends when
	// other servers may have the tasks.
	Adopt func(ctx context.Context, some []Request, slots int) []error

	// Session returns the session that fetches deliveries. It is recorded with them until Handle
	// returns: see [Client.Fetched]. If Session is nil or returns "", nothing is recorded.
	Session func() string

	// Ready reports whether Handle can start runs now. While it returns false, nothing is fetched:
	// Handle could only return the deliveries to their queue. Ready is called before each fetch, so
	// it must be fast. A nil Ready means always.
	Ready func() bool

	// Slots limit the fetches. If nil, each fetcher may have up to four deliveries in hand.
	Slots Slots

	// Disputed is called with the new owners when queues that this server already serves turn out
	// to belong to another namespace, at each further change, and with no owners when the dispute
	// has ended. The server continues to serve them, because any client that can write to Redis can
	// change an owner and must not be able to stop workers that way. If Disputed is nil, the server
	// only logs the change.
	Disputed func(owners map[string]string)

	Fetchers int // number of asynq servers; 0 means DefaultFetchers
	// The average pause between polls of idle queues by all fetchers together; each is between a
	// half and one and a half of it. 0 means DefaultPollInterval.
	PollInterval time.Duration
	Logger       *slog.Logger // nil means slog.Default()
}

// A Server fetches deliveries and passes them to [Options].Handle while [Server.Run] runs.
type Server struct {
	client *Client
	o      Options
	queues []string
	gate   *gate
	passOn chan struct{} // a message came while no slot was free; buffer of one
	log    *slog.Logger
	often  *repeats.Logger // for lines that a loop may repeat
}

// NewServer checks the options and returns a server that does nothing yet.
func NewServer(c *Client, o Options) (*Server, error) {
	if len(o.Queues) == 0 {
		return nil, errors.New("queue server: no queues")
	}
	for q, weight := range o.Queues {
		if err := checkQueueName(q); err != nil {
			return nil, fmt.Errorf("queue server: %w", err)
		}
		if weight < 1 || weight > maxWeight {
			return nil, fmt.Errorf("queue server: the weight of queue %q is %d, want 1 to %d", q, weight, maxWeight)
		}
	}
	if o.Handle == nil {
		return nil, errors.New("queue server: no Handle")
	}
	if o.Fetchers < 0 || o.PollInterval < 0 {
		return nil, fmt.Errorf("queue server: fetchers %d and poll interval %v must not be negative", o.Fetchers, o.PollInterval)
	}
	o.Queues = maps.Clone(o.Queues)
	o.Fetchers = cmp.Or(o.Fetchers, DefaultFetchers)
	o.PollInterval = cmp.Or(o.PollInterval, DefaultPollInterval)
	if o.Slots == nil {
		o.own(slotsPerFetcher * o.Fetchers)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	s := &Server{
		client: c, o: o, queues: slices.Sorted(maps.Keys(o.Queues)), passOn: make(chan struct{}, 1), log: o.Logger, often: repeats.New(o.Logger, "kind"),
	}
	s.gate = newGate(o.PollInterval, o.Slots, s.often.Logger)
	s.gate.ready = o.Ready
	return s, nil
}

// own gives a server without Slots n of its own, and has Handle and Adopt return them.
func (o *Options) own(n int) {
	s := NewSlots(semaphore.NewWeighted(int64(n)))
	o.Slots = s
	handle, adopt := o.Handle, o.Adopt
	o.Handle = func(ctx context.Context, some []ledger.Due) {
		defer s.Release(len(some))
		handle(ctx, some)
	}
	if adopt != nil {
		o.Adopt = func(ctx context.Context, some []Request, slots int) []error {
			defer s.Release(slots)
			return adopt(ctx, some, 0)
		}
	}
}

// NewSlots returns the slots of a semaphore, which may have other users too.
func NewSlots(free *semaphore.Weighted) Slots { return slots{free} }

type slots struct{ free *semaphore.Weighted }

func (s slots) Acquire(ctx context.Context) error { return s.free.Acquire(ctx, 1) }
func (s slots) Release(n int)                     { s.free.Release(int64(n)) }

func (s slots) HasFree() bool {
	free := s.More(1) > 0
	if free {
		s.Release(1)
	}
	return free
}

func (s slots) More(most int) int {
	n := 0
	for n < most && s.free.TryAcquire(1) {
		n++
	}
	return n
}

// Wake makes a sleeping server poll its queues at once, or wakes another one if no slot is free.
// Call it when the session has received [NoticePushed]. It may be called at any time, and does not
// block.
func (s *Server) Wake() {
	free := s.o.Slots.HasFree()
	s.gate.wake() // also without a slot: Redis has forgotten that this worker sleeps
	if free {
		return
	}
	select {
	case s.passOn <- struct{}{}:
	default: // it wakes others already
	}
}

// passOnWakes wakes other workers in the place of this one, until ctx ends. Best effort: a delivery
// that wakes no worker waits for the next poll.
func (s *Server) passOnWakes(ctx context.Context) {
	for {
		select {
		case <-s.passOn:
		case <-ctx.Done():
			return
		}
		for _, q := range s.queues {
			err := s.client.wake(ctx, q)
			if err != nil && ctx.Err() == nil {
				s.log.DebugContext(ctx, "could not wake another worker", "queue", q, "error", err)
			}
		}
	}
}

// Run serves until ctx ends. It returns when every Handle has returned and everything it started
// has stopped. It waits for a Redis that is unreachable. It returns nil, or an [ErrOwned] if a
// queue belongs to another namespace at the start; in that case it has fetched nothing. A queue
// that changes its owner later raises an alarm: see [Options].Disputed.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	r := &reception{Server: s, ctx: ctx}
	g.Go(func() error { return s.keepOwned(ctx) })
	g.Go(func() error { r.keepRecords(ctx); return nil })
	g.Go(func() error { s.passOnWakes(ctx); return nil })
	g.Go(func() error { return s.fetch(ctx, r) })
	for range s.o.Fetchers - 1 {
		g.Go(func() error { return s.help(ctx, r) })
	}
	err := g.Wait()
	defer s.often.Flush(context.WithoutCancel(ctx), true)
	r.handlers.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), putBackLimit)
	defer cancel()
	if failed := r.inHand.drop(last, s.client); failed != nil {
		s.log.DebugContext(last, "left records of fetched deliveries to the sweep", "error", failed)
	}
	return err
}

// keepRecords drops the records of handled deliveries until ctx ends. A fetch drops them too, but a
// worker without a free slot does not fetch.
func (r *reception) keepRecords(ctx context.Context) {
	timer := time.NewTicker(recordsInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		call, cancel := context.WithTimeout(ctx, putBackLimit)
		if err := r.inHand.drop(call, r.client); err != nil && ctx.Err() == nil {
			r.often.WarnContext(ctx, "removing records of fetched deliveries failed, will retry", "error", err)
		}
		cancel()
	}
}

// keepOwned registers the queues, opens the gate when they belong to this namespace, and registers
// them repeatedly. It logs a change of owner under the running server once, and the server
// continues.
func (s *Server) keepOwned(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	// The worker has already started, so a change of owner is too late for a refusal.
	serving := s.client.hasOwned(s.queues)
	var disputed map[string]string // as last reported
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		s.often.Flush(ctx, false)
		err := s.client.Own(ctx, s.queues)
		var owned *OwnedError
		switch {
		case err == nil:
			serving = true
			s.gate.open()
			disputed = s.dispute(ctx, disputed, nil)
			timer.Reset(ownInterval)
		case errors.As(err, &owned) && serving:
			s.gate.open()
			disputed = s.dispute(ctx, disputed, owned.Owners)
			timer.Reset(ownInterval)
		case errors.As(err, &owned):
			return err
		case ctx.Err() != nil:
			return nil
		default: // Redis is unreachable, which the gate logs once
			s.gate.failed(err)
			timer.Reset(errorPause)
		}
	}
}

// dispute reports queues that have changed their owner since the last call, and returns the owners
// for the next call.
func (s *Server) dispute(ctx context.Context, before, owners map[string]string) map[string]string {
	if maps.Equal(before, owners) {
		return before
	}
	for _, q := range slices.Sorted(maps.Keys(owners)) {
		if owners[q] != before[q] {
			s.log.ErrorContext(ctx, "a queue that this worker serves was given to another namespace; the worker keeps serving it",
				"queue", q, "namespace", s.client.namespace, "owner", owners[q],
				"remedy", fmt.Sprintf("find out which client wrote to %s; to undo it: redis-cli HSET %[1]s %s %s", ownersKey, q, s.client.namespace))
		}
	}
	for _, q := range slices.Sorted(maps.Keys(before)) {
		if _, still := owners[q]; !still {
			s.log.InfoContext(ctx, "a queue belongs to this worker's namespace again", "queue", q, "namespace", s.client.namespace)
		}
	}
	if s.o.Disputed != nil {
		s.o.Disputed(owners)
	}
	return owners
}

// help runs one more asynq server while there is more than one can fetch, until ctx ends: each
// costs an idle Redis some commands a second.
func (s *Server) help(ctx context.Context, r *reception) error {
	for s.gate.awaitBacklog(ctx) == nil {
		work, cancel := context.WithCancel(ctx)
		var watching sync.WaitGroup
		watching.Go(func() { s.gate.awaitIdle(work); cancel() })
		err := s.fetch(work, r)
		cancel()
		watching.Wait()
		if err != nil {
			return err
		}
	}
	return nil
}

// fetch runs one asynq server until ctx ends.
func (s *Server) fetch(ctx context.Context, r *reception) error {
	f := &fetcher{UniversalClient: s.client.rdb, reception: r, ctx: ctx, queues: len(s.queues)}
	server := asynq.NewServerFromRedisClient(f, asynq.Config{
		Concurrency:       1,
		Queues:            s.o.Queues,
		TaskCheckInterval: fetchAgain,
		RetryDelayFunc:    retryDelay,
		JanitorInterval:   time.Minute, // it deletes completed tasks after their retention
		Logger:            asynqLog{s.often, r.gate},
		LogLevel:          asynq.InfoLevel,
	})
	// asynq itself fetches nothing: see fetcher.
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return ErrForeign })
	if err := server.Start(handler); err != nil { // not Run, which waits for signals
		return fmt.Errorf("start an asynq server: %w", err)
	}
	<-ctx.Done()
	server.Shutdown()
	return nil
}

// retryDelay is the delay of a task that asynq has recovered.
func retryDelay(n int, err error, task *asynq.Task) time.Duration {
	if task.Type() == TaskType {
		return 0
	}
	// A server of another program may have lost it, whose rule is not known here.
	return asynq.DefaultRetryDelayFunc(n, err, task)
}

// reception receives the tasks and deliveries of all fetchers of a server.
type reception struct {
	*Server
	// The context of Run, because asynq passes none on. A reception exists only during Run.
	ctx      context.Context
	foreign  foreign
	inHand   inHand
	handlers sync.WaitGroup
}

// hand passes on the deliveries of a fetch, each with its slot. It does not wait. field is the
// field of their record.
func (r *reception) hand(queue, field string, some []ledger.Due) {
	r.handlers.Go(func() {
		if field != "" {
			defer r.inHand.done(queue, field)
		}
		if r.ctx.Err() == nil {
			r.o.Handle(r.ctx, some)
			return
		}
		// The server stopped just after the fetch.
		r.o.Slots.Release(len(some))
		for i := range some {
			some[i].PutBack = true
		}
		r.putBack(some...)
	})
}

// putBack returns deliveries to their queue.
func (r *reception) putBack(some ...ledger.Due) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), putBackLimit)
	defer cancel()
	if _, err := r.client.Push(ctx, some...); err != nil {
		r.often.Warn("returning deliveries failed, the sweep will push them again", "deliveries", len(some), "error", err)
	}
}
