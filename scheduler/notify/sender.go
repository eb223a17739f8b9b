package notify

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// Mailbox is the part of the ledger that a sender uses.
type Mailbox interface {
	TakeMail(ctx context.Context, targets []string, after int) (batches []ledger.Batch, next int, err error)
	MailSent(ctx context.Context, batch *ledger.Batch) error
	MailFailed(ctx context.Context, batch *ledger.Batch, pause time.Duration, reason string) (over bool, err error)
	AddMail(ctx context.Context, id string, event jobs.Event, worker locks.SessionID, text string, targets []string) error
	Silences(ctx context.Context, list []*ledger.Encoded) ([]time.Duration, error)
}

// Options configure a [Sender]. All fields are required.
type Options struct {
	Mailbox Mailbox
	Client  *Client
	Source  string                 // names the namespace in events
	Worker  func() locks.SessionID // this worker
	Logger  *slog.Logger
}

// Sender sends the messages of a namespace to the targets that its worker declares. [Sender.Set]
// gives it a config, and [Sender.Run] sends.
type Sender struct {
	Options

	refusals chan string // texts about refused configs

	mu      sync.Mutex
	targets map[string]Target // replaced, never modified; guarded by mu
	late    []*lateJob        // jobs that can be late; replaced with the config; guarded by mu
	busy    map[string]bool   // targets with a request under way; guarded by mu
}

// lateJob is a job that can be late, and when it must be looked at. Only the loop of Run uses next.
type lateJob struct {
	encoded *ledger.Encoded
	next    time.Time
}

const (
	poll = time.Second // between two looks for messages
	// the same, for a worker without targets, which only abandons old messages
	idlePoll  = time.Minute
	pauseMin  = 10 * time.Second // before the second request; it doubles with each failure
	pauseMost = time.Hour
	// takenFor is how long after it took batches a worker begins to send one: the last request must
	// end before the lease does.
	takenFor = ledger.MailLease - 2*RequestLimit
	// refusedPause is between two messages of a worker about refused configs.
	refusedPause = 10 * time.Minute
	recordLimit  = 5 * time.Second // of a call to Redis
	stopLimit    = 2 * time.Second // of the requests that are under way when the worker stops
)

// New returns a sender without targets.
func New(options Options) (*Sender, error) {
	if options.Mailbox == nil || options.Client == nil || options.Source == "" || options.Worker == nil || options.Logger == nil {
		return nil, errors.New("notify: an option is missing")
	}
	return &Sender{Options: options, refusals: make(chan string, 1), busy: make(map[string]bool)}, nil
}

// Set gives the sender the targets and the jobs of a config.
func (s *Sender) Set(targets []Target, definitions []*jobs.Job) {
	byName := make(map[string]Target, len(targets))
	for _, t := range targets {
		byName[t.Name] = t
	}
	var late []*lateJob
	for _, job := range definitions {
		if job.MaxSilence > 0 && job.Notifies(jobs.EventLate) {
			late = append(late, &lateJob{encoded: &ledger.Encoded{Job: job}})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets, s.late = byName, late
}

// ConfigRefused stores a message that this worker has refused a config. It does not wait. Further
// ones within ten minutes are left out.
func (s *Sender) ConfigRefused(text string) {
	select {
	case s.refusals <- text:
	default: // one about the same files is still to be stored
	}
}

// Run sends until ctx ends, and returns when the last request has ended.
func (s *Sender) Run(ctx context.Context) error {
	// A request that is under way should end before the process does: it would be sent again.
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var sending sync.WaitGroup
	defer func() {
		defer time.AfterFunc(stopLimit, cancel).Stop()
		sending.Wait()
		cancel()
	}()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	var looked, refused time.Time
	var failing bool
	after := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case text := <-s.refusals:
			if !refused.IsZero() && time.Since(refused) < refusedPause {
				continue
			}
			if err := s.refuse(ctx, text); err != nil {
				s.Logger.WarnContext(ctx, "a message that the config was refused could not be stored", "error", err)
				continue
			}
			refused = time.Now()
			continue
		case <-ticker.C:
		}
		idle := s.idle()
		if len(idle) == 0 && time.Since(looked) < idlePoll {
			continue
		}
		looked = time.Now()
		call, cancel := context.WithTimeout(ctx, recordLimit)
		batches, next, err := s.Mailbox.TakeMail(call, idle, after)
		if err == nil {
			err = s.lookForLate(call)
		}
		cancel()
		after = next
		if err != nil && !failing && ctx.Err() == nil {
			s.Logger.WarnContext(ctx, "could not look for messages to send, will retry", "error", err)
		}
		failing = err != nil
		for target, some := range byTarget(batches) {
			if !s.begin(target) {
				continue // it was busy when these were taken as those of no target here
			}
			sending.Go(func() {
				defer s.end(target)
				s.sendAll(requests, ctx.Done(), target, some, looked)
			})
		}
	}
}

// idle returns the targets without a request under way.
func (s *Sender) idle() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.targets {
		if !s.busy[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// begin marks a target as busy. It returns false if it is.
func (s *Sender) begin(target string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[target] {
		return false
	}
	s.busy[target] = true
	return true
}

func (s *Sender) end(target string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, target)
}

// byTarget groups batches; they keep their order.
func byTarget(batches []ledger.Batch) map[string][]ledger.Batch {
	groups := make(map[string][]ledger.Batch)
	for _, batch := range batches {
		groups[batch.Target] = append(groups[batch.Target], batch)
	}
	return groups
}

// sendAll sends batches to one target, one after the other, for as long as this worker may. Another
// one takes the rest.
func (s *Sender) sendAll(ctx context.Context, stop <-chan struct{}, name string, batches []ledger.Batch, taken time.Time) {
	s.mu.Lock()
	target, known := s.targets[name]
	s.mu.Unlock()
	for i := range batches {
		select {
		case <-stop:
			return
		default:
		}
		if time.Since(taken) > takenFor {
			return
		}
		var err error
		if batch := &batches[i]; !known {
			err = s.failed(ctx, batch, errors.New("no worker declares this target"))
		} else {
			// also one that has Expired while the target was busy
			err = s.sendOne(ctx, &target, batch, batch.Taken.Add(time.Since(taken)))
		}
		if err != nil {
			s.Logger.WarnContext(ctx, "could not record that messages were sent, they may be sent again", "target", name, "error", err)
			return
		}
	}
}

// sendOne sends a batch. now is the time of its signature, by the clock of the server: that of this
// host may be wrong, and receivers refuse an old signature.
func (s *Sender) sendOne(ctx context.Context, target *Target, batch *ledger.Batch, now time.Time) error {
	_, err := s.Client.send(ctx, target, &event{s.Source, batch.Messages}, now)
	if err != nil {
		return s.failed(ctx, batch, err)
	}
	call, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	return s.Mailbox.MailSent(call, batch)
}

// failed records a request that has failed, or that no worker can send.
func (s *Sender) failed(ctx context.Context, batch *ledger.Batch, why error) error {
	pause := pauseMost
	if batch.Tries < 9 {
		pause = min(pauseMin<<batch.Tries, pauseMost)
	}
	if asked, ok := errors.AsType[*requestError](why); ok {
		pause = max(pause, asked.after)
	}
	call, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	over, err := s.Mailbox.MailFailed(call, batch, pause, why.Error())
	switch {
	case err != nil:
		return err
	case over:
		s.Logger.ErrorContext(ctx, "messages could not be sent and were abandoned", "target", batch.Target, "job", batch.Job,
			"messages", len(batch.Messages), "error", why.Error())
	case batch.Tries == 0:
		s.Logger.WarnContext(ctx, "messages could not be sent, will retry", "target", batch.Target, "job", batch.Job,
			"messages", len(batch.Messages), "error", why.Error())
	}
	return nil
}

// refuse stores messages about a refused config.
func (s *Sender) refuse(ctx context.Context, text string) error {
	s.mu.Lock()
	var names []string
	for name, t := range s.targets {
		if slices.Contains(t.On, jobs.EventRefused) {
			names = append(names, name)
		}
	}
	s.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	call, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	worker := s.Worker()
	return s.Mailbox.AddMail(call, fmt.Sprintf("config.%s.%s", worker, rand.Text()), jobs.EventRefused, worker, text, names)
}

// lookForLate looks at the jobs that may be late by now. Only the loop of Run calls it.
func (s *Sender) lookForLate(ctx context.Context) error {
	s.mu.Lock()
	all := s.late
	s.mu.Unlock()
	var due []*lateJob
	var list []*ledger.Encoded
	for _, job := range all {
		if !job.next.After(time.Now()) {
			due, list = append(due, job), append(list, job.encoded)
		}
		if len(due) == lateMost {
			break
		}
	}
	if len(due) == 0 {
		return nil
	}
	again, err := s.Mailbox.Silences(ctx, list)
	if err != nil {
		return err
	}
	for i, job := range due {
		job.next = time.Now().Add(again[i])
	}
	return nil
}

// lateMost is how many jobs one look examines.
const lateMost = 1000

// Test sends a test message to a target and returns its reply. The error has no secret.
func (c *Client) Test(ctx context.Context, target Target, source string, now time.Time) (*Reply, error) {
	return c.send(ctx, &target, &event{source, []ledger.Message{{
		ID: "test." + rand.Text(), Event: eventTest, At: now, Reason: "a message of lockstep notify test " + target.Name,
	}}}, now)
}
