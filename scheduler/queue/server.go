package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"lockstep/scheduler/repeats"
)

const (
	// DefaultFetchers is how many asynq servers one [Server] runs. Each fetches one delivery per round trip.
	DefaultFetchers = 4

	// DefaultPollInterval is how often an idle queue is looked at.
	DefaultPollInterval = 100 * time.Millisecond

	// maxWeight bounds weights: asynq writes the name of each queue down as often as its weight says and shuffles that
	// list for every fetch.
	maxWeight = 1000

	// handlersPerFetcher is how many deliveries are in hand for each asynq server at most, when there are no Slots. Two
	// would do to fetch the next one while one is handled; the rest is for handlers that wait for an answer from Redis.
	handlersPerFetcher = 4

	// fetchMost is how many deliveries one fetch takes at most. More would save little, and what one fetch takes all comes
	// from one queue, whatever the weights.
	fetchMost = 16

	// foreignDelay is after what time a task that is not ours is tried again.
	foreignDelay = 10 * time.Second

	// ownInterval is how often a running server registers its queues again, should Redis have been emptied.
	ownInterval = 5 * time.Second

	// recordsInterval is how often records of handled deliveries are removed that no fetch has removed.
	recordsInterval = 2 * time.Second

	// fetchAgain is asynq's own pause after a fetch that found nothing: as good as none, the gate decides.
	fetchAgain = time.Millisecond

	// handlerPatience is how long asynq waits for handlers at a shutdown before it leaves them behind. We wait for them
	// whatever it does; this only has to be longer than any Handle takes.
	handlerPatience = time.Hour

	// putBackLimit is how long a server that stops tries to give back what it has fetched in that moment.
	putBackLimit = 5 * time.Second
)

// Slots bound what a worker has in hand. A [Server] takes one before it fetches, so that what it fetches can run.
type Slots interface {
	// Acquire waits for a free slot. It returns an error only when ctx has ended, and then holds none.
	Acquire(ctx context.Context) error
	// More takes up to so many further slots, as far as they are free now, and returns how many it took.
	More(most int) int
	// Release gives slots back.
	Release(n int)
}

// Options say what a [Server] serves and how. Queues and Handle are required.
type Options struct {
	// Queues are the weights, 1 to 1000, of the queues to serve: of {a: 6, b: 3}, when both have something to do, a gets
	// two thirds of the fetches.
	Queues map[string]int

	// Handle takes deliveries of one queue in, the oldest first; they have ended already. It should do no more than claim
	// the runs and start them elsewhere. It is called from several goroutines at once. ctx ends when the server stops;
	// nothing else ends it.
	//
	// With Slots, each delivery comes with one slot. Handle gives them back, or hands them on to what it starts.
	Handle func(ctx context.Context, some []Delivery)

	// Adopt is offered what plain asynq clients have sent; without it all of that is foreign. When it returns nil, the
	// task is ended: what it asks for is recorded. With ErrForeign or ErrLater it comes again after 10 s, to whoever
	// fetches it, and asynq counts nothing, so it is never given up. Any other error leaves open whether the request was
	// taken in: the task comes again, counted as tried; one that has no retries left is archived then. It is called like
	// Handle, but a slot is kept for it until it returns.
	Adopt func(ctx context.Context, request Request) error

	// Session returns the session in whose name deliveries are fetched, which goes on record with them until Handle returns:
	// see [Client.Fetched]. Nil or "": nothing is recorded.
	Session func() string

	// Slots, when given, bound what is fetched. Without them up to four deliveries for each fetcher are in hand.
	Slots Slots

	// Disputed is called when queues that this server already serves turn out to belong to another namespace, with their
	// new owners, and again at each change; with none when the dispute is over. The server keeps serving them: any client
	// that may write to Redis can change an owner, and must not be able to stop workers by that. Nil: only the log tells.
	Disputed func(owners map[string]string)

	Fetchers     int           // asynq servers to run; 0 means DefaultFetchers
	PollInterval time.Duration // between looks at idle queues, all fetchers together; 0 means DefaultPollInterval
	Logger       *slog.Logger  // nil means slog.Default()
}

// A Server fetches deliveries and hands them to [Options].Handle, while [Server.Run] runs.
type Server struct {
	client *Client
	o      Options
	queues []string
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
	if o.Fetchers == 0 {
		o.Fetchers = DefaultFetchers
	}
	if o.PollInterval == 0 {
		o.PollInterval = DefaultPollInterval
	}
	if o.Slots == nil {
		o.Slots, o.Handle = own(handlersPerFetcher*o.Fetchers, o.Handle)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Server{client: c, o: o, queues: slices.Sorted(maps.Keys(o.Queues)), log: o.Logger, often: repeats.New(o.Logger, "kind")}, nil
}

// own returns n slots for a server that is given none, and a handle that gives them back.
func own(n int, handle func(context.Context, []Delivery)) (Slots, func(context.Context, []Delivery)) {
	s := NewSlots(semaphore.NewWeighted(int64(n)))
	return s, func(ctx context.Context, some []Delivery) {
		defer s.Release(len(some))
		handle(ctx, some)
	}
}

// NewSlots returns the slots of a semaphore, of which others may take some, too.
func NewSlots(free *semaphore.Weighted) Slots { return slots{free} }

type slots struct{ free *semaphore.Weighted }

func (s slots) Acquire(ctx context.Context) error { return s.free.Acquire(ctx, 1) }
func (s slots) Release(n int)                     { s.free.Release(int64(n)) }

func (s slots) More(most int) int {
	n := 0
	for n < most && s.free.TryAcquire(1) {
		n++
	}
	return n
}

// Run serves until ctx ends, and returns when every Handle has returned and everything it started has stopped. It
// waits for a Redis that is unreachable. The error is nil, or an [ErrOwned] when a queue belongs to another namespace at the start;
// then nothing was fetched. A queue that changes its owner later raises an alarm: see [Options].Disputed.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	gate := newGate(s.o.PollInterval, s.o.Slots, s.often.Logger)
	r := &reception{Server: s, ctx: ctx, gate: gate, foreign: newForeign()}
	g.Go(func() error { return s.keepOwned(ctx, gate) })
	g.Go(func() error { r.keepRecords(ctx); return nil })
	for range s.o.Fetchers {
		g.Go(func() error { return s.fetch(ctx, r) })
	}
	err := g.Wait()
	defer s.often.Flush(context.WithoutCancel(ctx), true)
	r.handlers.Wait() // asynq leaves some of them behind: those whose lease it lost
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), putBackLimit)
	defer cancel()
	if failed := r.inHand.drop(last, s.client); failed != nil {
		s.log.DebugContext(last, "records of fetched deliveries are left to the sweep", "error", failed)
	}
	return err
}

// keepRecords drops the records of deliveries that were handled, until ctx ends. A fetch does that, too; but a worker without
// a free slot fetches nothing.
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
			r.often.WarnContext(ctx, "records of fetched deliveries are not removed, it is tried again", "error", err)
		}
		cancel()
	}
}

// keepOwned registers the queues, opens the gate when they are ours, and keeps registering them. A change of owner under
// the running server is logged once, and the server continues.
func (s *Server) keepOwned(ctx context.Context, g *gate) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	serving := s.client.hasOwned(s.queues) // then the worker has begun: a change of owner comes too late to refuse that
	var disputed map[string]string         // as told last
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
			g.open()
			disputed = s.dispute(ctx, disputed, nil)
			timer.Reset(ownInterval)
		case errors.As(err, &owned) && serving:
			g.open()
			disputed = s.dispute(ctx, disputed, owned.Owners)
			timer.Reset(ownInterval)
		case errors.As(err, &owned):
			return err
		case ctx.Err() != nil:
			return nil
		default: // Redis is unreachable: the gate logs that, once
			g.failed(err)
			timer.Reset(errorPause)
		}
	}
}

// dispute tells of queues whose owner has changed since the last call, and returns the owners for the next one.
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

// fetch runs one asynq server until ctx ends.
func (s *Server) fetch(ctx context.Context, r *reception) error {
	f := &fetcher{UniversalClient: s.client.rdb, reception: r, queues: len(s.queues), arrived: make(chan struct{}, 1)}
	server := asynq.NewServerFromRedisClient(f, asynq.Config{
		Concurrency:       handlersPerFetcher,
		Queues:            s.o.Queues,
		TaskCheckInterval: fetchAgain,
		BaseContext:       f.receive,
		ErrorHandler:      asynq.ErrorHandlerFunc(r.returnUnused),
		IsFailure:         countsAsFailure,
		RetryDelayFunc:    retryDelay,
		ShutdownTimeout:   handlerPatience,
		JanitorInterval:   time.Minute, // it looks for completed tasks to delete, and we keep none
		Logger:            asynqLog{s.often, r.gate},
		LogLevel:          asynq.InfoLevel,
	})
	if err := server.Start(r); err != nil { // not Run: that one waits for signals
		return fmt.Errorf("start an asynq server: %w", err)
	}
	<-ctx.Done()
	server.Shutdown()
	f.settle() // the last fetch may have brought something that asynq could not read
	return nil
}

var (
	// errStopping sends a delivery back that was fetched while the server stops.
	errStopping = errors.New("worker stops")
)

// countsAsFailure tells which errors use up a retry. An expired lease does: a count above 0 tells a task that asynq has
// recovered from one that was sent anew.
func countsAsFailure(err error) bool {
	return !errors.Is(err, ErrForeign) && !errors.Is(err, errStopping)
}

func retryDelay(n int, err error, task *asynq.Task) time.Duration {
	switch {
	case task.Type() == TaskType:
		return 0
	case errors.Is(err, ErrForeign), errors.Is(err, errDoubt):
		return foreignDelay
	default: // of a task that another program's server lost: as that program would have it
		return asynq.DefaultRetryDelayFunc(n, err, task)
	}
}

// reception takes in what all fetchers of a server have fetched.
type reception struct {
	*Server
	ctx      context.Context // the one of Run: asynq hands on none. A reception lives only as long as Run does
	gate     *gate
	foreign  *foreign
	inHand   inHand
	handlers sync.WaitGroup
}

// ticket goes with a fetched task through asynq, and with it a slot.
type ticket struct {
	slot bool        // a slot was taken for it before the fetch
	used atomic.Bool // whoever sets it decides what becomes of the slot
}

type ticketKey struct{}

func ticketOf(ctx context.Context) *ticket { return ctx.Value(ticketKey{}).(*ticket) }

// ProcessTask is what asynq calls for each task. asynqCtx ends when asynq wants the task to stop, which is nothing to us.
func (r *reception) ProcessTask(asynqCtx context.Context, task *asynq.Task) error {
	r.handlers.Add(1)
	defer r.handlers.Done()
	t := ticketOf(asynqCtx)
	if t.used.Swap(true) {
		return nil // asynq has given the task up already, and sent it back
	}
	d, err := r.read(asynqCtx, task)
	if err != nil || d.Run == "" {
		if t.slot {
			r.o.Slots.Release(1)
		}
		return err
	}
	if !t.slot && r.o.Slots.Acquire(r.ctx) != nil {
		return errStopping
	}
	r.o.Handle(r.ctx, []Delivery{d})
	return nil
}

// hand hands over what a fetch has taken, each delivery with its slot. It does not wait. field is that of their record.
func (r *reception) hand(queue, field string, some []Delivery) {
	r.handlers.Go(func() {
		if field != "" {
			defer r.inHand.done(queue, field)
		}
		if r.ctx.Err() == nil {
			r.o.Handle(r.ctx, some)
			return
		}
		// It was taken in the moment in which the server stops.
		r.o.Slots.Release(len(some))
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), putBackLimit)
		defer cancel()
		if _, err := r.client.Push(ctx, some...); err != nil {
			r.often.Warn("deliveries are not put back, the sweep will push them again", "deliveries", len(some), "error", err)
		}
	})
}

// read returns the delivery in a task; none, when the task is to be ended; an error, when it is to go back.
func (r *reception) read(asynqCtx context.Context, task *asynq.Task) (Delivery, error) {
	if task.Type() != TaskType {
		return Delivery{}, r.adopt(asynqCtx, task)
	}
	queue, _ := asynq.GetQueueName(asynqCtx)
	id, _ := asynq.GetTaskID(asynqCtx)
	if r.ctx.Err() != nil {
		return Delivery{}, errStopping
	}
	p, err := decode(task.Payload())
	switch {
	case err != nil:
		r.log.Warn("unreadable delivery ended", "queue", queue, "task", id, "error", err)
		return Delivery{}, nil
	case p.Namespace != r.client.namespace:
		r.log.Warn("delivery of another namespace ended", "queue", queue, "run", p.Run, "namespace", p.Namespace)
		return Delivery{}, nil
	}
	return Delivery{Run: p.Run, N: p.N, Queue: queue}, nil
}

// returnUnused gives back the slot of a task that asynq sends away without having called ProcessTask: one whose own
// deadline has passed. asynq calls it for every error.
func (r *reception) returnUnused(asynqCtx context.Context, _ *asynq.Task, _ error) {
	if t := ticketOf(asynqCtx); !t.used.Swap(true) && t.slot {
		r.o.Slots.Release(1)
	}
}

// foreign remembers tasks that are not ours.
type foreign struct {
	mu        sync.Mutex
	exhausted map[string]bool    // by task key: on their way back, with no retries left; guarded by mu
	told      map[[2]string]bool // queue and type that the log has a line about; guarded by mu
}

func newForeign() *foreign {
	return &foreign{exhausted: make(map[string]bool), told: make(map[[2]string]bool)}
}

// add records a task and tells whether its type is news.
func (f *foreign) add(key, queue, taskType string, exhausted bool) (news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if exhausted {
		f.exhausted[key] = true
	}
	const enough = 1000 // types come from others: there may be any number
	name := [2]string{queue, taskType}
	if f.told[name] || len(f.told) >= enough {
		return false
	}
	f.told[name] = true
	return true
}

// take tells whether a task is an exhausted one, and forgets it.
func (f *foreign) take(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.exhausted[key] {
		return false
	}
	delete(f.exhausted, key)
	return true
}
