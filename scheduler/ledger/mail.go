package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// Message is what a target receives about one event.
type Message struct {
	// ID is the same however often the message is sent, and for each target of the event.
	ID    string
	Event jobs.Event
	At    time.Time // when it was stored
	Job   string    // "" for a message about a worker

	// The end of a run. Run is "" for a message about a job or a worker.
	Run     jobs.RunID
	Trigger Trigger
	Tick    time.Time // zero: the run has none
	Upto    time.Time // the last tick of a line for a range of ticks; else zero
	Attempt int       // the number of its attempts
	Started time.Time // its first attempt; zero without one
	Fails   int
	Crashes int
	Worker  locks.SessionID // of the last attempt, or that reports something; "" without one
	Reason  string          // why it ended in this way without an attempt's error
	Error   string          // of its last attempt, redacted; "" without one

	// Silent is, for a late job, the time of its last success; or that of its registration, if
	// Never.
	Silent time.Time
	Never  bool
}

// Batch is what one request to a target contains: the messages about one job that wait together. A
// batch that is taken again, by any worker, has the same messages.
type Batch struct {
	Target   string
	Job      string // "" for messages about workers
	Tries    int    // requests that have failed
	Messages []Message
	Taken    time.Time // by the clock of the server

	// Expired means that no worker has declared the target for [MailFor]: [Ledger.MailFailed]
	// abandons the batch.
	Expired bool
	// Dropped is how many messages for the target were not stored, since too many were waiting, and
	// are not in the audit yet. All batches of the target have this number: the first report of the
	// end of one brings it into the audit.
	Dropped int

	upto string // the number of its last message
}

const (
	// MailFor is how long a message is tried again.
	MailFor = 24 * time.Hour
	// MailPause is the shortest time between two batches of a target and job: messages of that time
	// are sent together.
	MailPause = 10 * time.Second
	// MailLease is how long a worker has to send a batch that it took, before another one takes it.
	MailLease = 30 * time.Second
	// BatchMost is how many messages a batch has at most.
	BatchMost = 100
)

// TakeMail takes the batches that may be sent now to some targets, and those that no worker could
// send to theirs in time. after is 0, or the next of the call before; next is 0 when nothing is
// left. The caller must report the end of each batch ([Ledger.MailSent], [Ledger.MailFailed])
// within [MailLease].
func (l *Ledger) TakeMail(ctx context.Context, targets []string, after int) (batches []Batch, next int, err error) {
	args := appendTexts([]any{after, MailLease.Milliseconds(), MailFor.Milliseconds(), BatchMost}, targets...)
	r := space.Read(l.run(ctx, "mailtake", "", args...))
	taken := r.Time()
	next = int(r.Number())
	for r.More() {
		batch := Batch{Taken: taken, Expired: r.Text() == "expired", Target: r.Text(), Job: r.Text(), upto: r.Text(), Tries: int(r.Number())}
		batch.Dropped = int(r.Number())
		r.Each(func(list *space.Reader) {
			batch.Messages = append(batch.Messages, decodeMessage(batch.Job, list.Text()))
		})
		batches = append(batches, batch)
	}
	if r.Err != nil {
		return nil, 0, fmt.Errorf("take messages to send: %w", r.Err)
	}
	return batches, next, nil
}

// decodeMessage reads a message, as far as it can be read: one that is broken must not keep others
// from being sent.
func decodeMessage(job, text string) Message {
	f, _ := messageLayout.Parse(text)
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0 // most are those of a message without this fact
		}
		return n
	}
	m := Message{ID: f.ID, Event: jobs.Event(f.Event), At: millis(number(f.At)), Job: job, Run: jobs.RunID(f.Run), Trigger: Trigger(f.Trigger),
		Tick: millis(number(f.Tick)), Upto: millis(number(f.Upto)), Attempt: int(number(f.Attempt)), Started: millis(number(f.Started)),
		Fails: int(number(f.Fails)), Crashes: int(number(f.Crashes)), Worker: locks.SessionID(f.Worker), Reason: f.Reason}
	if m.Event == jobs.EventLate {
		m.Silent, m.Never = m.Started, f.Reason == "r"
		m.Started, m.Reason = time.Time{}, ""
	}
	if err := json.NewDecoder(strings.NewReader(f.Error)).Decode(&m.Error); err != nil {
		m.Error = ""
	}
	return m
}

// MailSent records that a batch was sent. Sent again, or after another worker has reported the end
// of the batch, it changes nothing.
func (l *Ledger) MailSent(ctx context.Context, batch *Batch) error {
	_, err := l.mailEnded(ctx, batch, "sent", MailPause, "")
	return err
}

// MailFailed records that a request with a batch has failed. The batch is sent again after a pause,
// or, if its first message has waited for [MailFor], abandoned: it returns true, and the audit has
// an entry. reason must not contain a secret.
func (l *Ledger) MailFailed(ctx context.Context, batch *Batch, pause time.Duration, reason string) (over bool, err error) {
	return l.mailEnded(ctx, batch, "failed", pause, plain(jobs.Cut(reason, jobs.MaxReason)))
}

func (l *Ledger) mailEnded(ctx context.Context, batch *Batch, outcome string, pause time.Duration, reason string) (over bool, err error) {
	about := batch.Job
	if about == "" {
		about = "workers"
	}
	lost := Act{Who: "lockstep", What: "abandon messages", On: batch.Target, Why: reason, Apart: batch.Job, Times: len(batch.Messages),
		Detail: fmt.Sprintf("%d about %s, %s", len(batch.Messages), about, idsOf(batch.Messages))}
	dropped := ""
	if batch.Dropped > 0 {
		act := Act{Who: "lockstep", What: "drop messages", On: batch.Target, Why: "too many were waiting to be sent", Times: batch.Dropped}
		dropped = act.entry()
	}
	// The last argument only gives the script the key that entries need.
	r := space.Read(l.runAct(ctx, "mailsent", "", "audit", batch.Target, batch.Job, batch.upto, outcome, pause.Milliseconds(),
		MailFor.Milliseconds(), reason, lost.entry(), dropped, batch.Dropped))
	switch outcome := r.Text(); outcome {
	case "sent", "later", "stale":
	case "over":
		over = true
	default:
		if r.Err == nil {
			r.Err = r.Unknown(outcome)
		}
	}
	if r.Err != nil {
		return false, fmt.Errorf("record the end of messages to %s: %w", batch.Target, r.Err)
	}
	return over, nil
}

// idsOf names the first of some messages.
func idsOf(messages []Message) string {
	const most = 5
	var ids []string
	for i, m := range messages {
		if i == most {
			ids = append(ids, "...")
			break
		}
		ids = append(ids, m.ID)
	}
	return strings.Join(ids, " ")
}

// AddMail stores a message of a worker to some targets. id names it among all others.
func (l *Ledger) AddMail(ctx context.Context, id string, event jobs.Event, worker locks.SessionID, text string, targets []string) error {
	args := appendTexts([]any{id, string(event), string(worker), plain(jobs.Cut(text, jobs.MaxReason))}, targets...)
	if _, err := l.run(ctx, "mailadd", "", args...); err != nil {
		return fmt.Errorf("store a message: %w", err)
	}
	return nil
}

// silencesMost is how many jobs one call of [Ledger.Silences] looks at.
const silencesMost = 200

// Silences stores the messages about those of some jobs that have had no success for longer than
// their MaxSilence. It returns in how long each of them must be looked at again.
func (l *Ledger) Silences(ctx context.Context, list []*Encoded) ([]time.Duration, error) {
	var again []time.Duration
	for len(again) < len(list) {
		some := list[len(again):min(len(again)+silencesMost, len(list))]
		var args []any
		for _, e := range some {
			if e.Hash == "" {
				if err := e.encode(); err != nil {
					return nil, fmt.Errorf("look for late jobs: %w", err)
				}
				e.Forget()
			}
			targets, err := json.Marshal(struct {
				Notify []jobs.Notify `json:"notify"`
			}{e.Job.Notify})
			if err != nil {
				panic("ledger: the targets of a job are plain data: " + err.Error())
			}
			args = append(args, e.Job.Name, e.Hash, e.Job.MaxSilence.Milliseconds(), string(targets))
		}
		r := space.Read(l.run(ctx, "silence", "", args...))
		for range some {
			again = append(again, space.Millis(r.Number()))
		}
		if r.Err != nil {
			return nil, fmt.Errorf("look for late jobs: %w", r.Err)
		}
	}
	return again, nil
}

// MailOf is what waits to be sent to a target, and what became of the rest.
type MailOf struct {
	Target  string
	Waiting int
	// Since, Next and Tries are those of the first batch that waits; zero if none does.
	Since time.Time // when its first message was stored
	Next  time.Time // when the next request may be sent
	Tries int       // requests that have failed

	Sent    int // messages
	Unsent  int // could not be sent, and are in the audit
	Dropped int // not stored, since too many were waiting

	Failed time.Time // the last failure, until a message is sent; else zero
	Error  string    // its error
}

// Mail returns what waits to be sent to some targets, and to others with messages.
func (l *Ledger) Mail(ctx context.Context, targets []string) ([]MailOf, error) {
	r := space.Read(l.run(ctx, "maillist", "", appendTexts(nil, targets...)...))
	var all []MailOf
	for r.More() {
		m := MailOf{Target: r.Text(), Waiting: int(r.Number()), Since: r.Time(), Next: r.Time(), Tries: int(r.Number()), Sent: int(r.Number()),
			Unsent: int(r.Number()), Dropped: int(r.Number())}
		at, failure, found := strings.Cut(r.Text(), "\x1f")
		if ms, err := strconv.ParseInt(at, 10, 64); found && err == nil {
			m.Failed, m.Error = millis(ms), failure
		}
		all = append(all, m)
	}
	if r.Err != nil {
		return nil, fmt.Errorf("read the messages to send: %w", r.Err)
	}
	return all, nil
}
