package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/trace"
)

// ErrSession means that the session of the caller has ended. Nothing was changed.
var ErrSession = errors.New("the session has ended")

// ErrUnsent means that an adoption was not sent, since one before it has got no reply.
var ErrUnsent = errors.New("not sent")

// Adoption is a request that came through the queue itself, from a client that knows nothing of the
// ledger.
type Adoption struct {
	Job     *jobs.Job
	Queue   string // where the request came through: its run stays in it
	ID      string // the sender's; unique in that queue for as long as the request is in it
	Payload []byte // JSON becomes the arguments; empty: those of the definition

	Session locks.SessionID // of the worker that received the request
	// a random word for the request, the same in each delivery of it; or for this delivery, the
	// same when it is sent again
	Giving string
	Again  bool // a worker may have received it before
	// when the request got its word, by the server's clock; zero: it may have been adopted before
	// that, or the word is only for this delivery
	Since time.Time
	Late  bool // its deadline has passed: the run fails at once
	Trace trace.Context
}

// GeneratedFor is the minimum time for which an adopted request's id is remembered if no client
// chose it: its queue generated it, so only another delivery of the same request has the same id.
const GeneratedFor = 10 * time.Minute

// generated reports whether an id is a random UUID, as asynq generates for tasks without an id of
// their own.
func generated(id string) bool { return randomUUID.MatchString(id) }

var randomUUID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// Adopt records the run <job>#<queue>/<id> of a request, once, however often the request is
// delivered. While that run is outstanding the request exists already. After its end the same id
// may be used again, and the run is then <job>#<queue>/<id>~2, ~3 and so on. But a request with
// Again is the old one if the last run of that id was made no earlier than Since: while one request
// is in its queue, no other one there has its id. All this is remembered for at least
// [RememberedFor], or [GeneratedFor] when no client chose the id; a request that got its word
// before that is the old one. A request that cannot be run becomes a failed run with the reason,
// since its sender waits for no reply.
//
// Send an adoption until a reply arrives, or the session is over: until then the run may exist.
// After the session the error is an [ErrSession]. The error is a [jobs.ErrUnknownKeys] for a
// definition that this build does not know in full: the request is for another worker.
func (l *Ledger) Adopt(ctx context.Context, a Adoption) (*Enqueued, error) {
	w, reason, err := l.adoption(&a, nil)
	if err != nil {
		return nil, err
	}
	return l.adoptAlone(ctx, &a, w, reason)
}

// AdoptAll is [Ledger.Adopt] for several requests that a session has received together. One script
// records those with new ids, unless their args are long. The replies are in the order of the
// requests. If some have an error, send these again. After a call without a reply, it makes no
// other one: the error of the requests that need one is an [ErrUnsent].
func (l *Ledger) AdoptAll(ctx context.Context, all []Adoption) []Replied {
	replies := make([]Replied, len(all))
	reasons := make([]string, len(all))
	wants := make([]*wanted, len(all))
	definitions := make(map[*jobs.Job]string)
	var together []*wanted
	var script load
	for i := range all {
		wants[i], reasons[i], replies[i].Err = l.adoption(&all[i], definitions)
		if w := wants[i]; w != nil && reasons[i] == "" && all[i].Session == all[0].Session && script.add(w) {
			together = append(together, w)
		}
	}
	var lost error
	if len(together) > 1 {
		lost = l.enqueueScript(ctx, together, "", all[0].Session, part{})
		if space.Over(lost) && !errors.Is(lost, ErrSession) {
			lost = nil // Redis may have refused all of them because of one
		}
	}
	for i, w := range wants {
		switch {
		case w == nil:
		case w.enqueued != nil && !w.enqueued.Exists:
			replies[i].Enqueued = w.enqueued
		case lost != nil && slices.Contains(together, w):
			replies[i].Err = fmt.Errorf("adopt %s: %w", w.run, lost)
		case lost != nil:
			replies[i].Err = fmt.Errorf("adopt %s: %w after: %w", w.run, ErrUnsent, lost)
		default:
			replies[i].Enqueued, replies[i].Err = l.adoptAlone(ctx, &all[i], w, reasons[i])
			if err := replies[i].Err; !space.Over(err) {
				lost = err
			}
		}
	}
	return replies
}

// adoption brings an adoption into the form for the scripts. reason is why the run fails at once,
// or "". known is as in [Ledger.define].
func (l *Ledger) adoption(a *Adoption, known map[*jobs.Job]string) (w *wanted, reason string, err error) {
	job := a.Job
	w = &wanted{run: jobs.RequestRunID(job.Name, AdoptedName(a.Queue, a.ID)), job: job, giving: a.Giving}
	arguments, items, reason := a.read(w.run, l.maxArgs)
	w.kind = kind{job: job.Name, queue: a.Queue, trigger: TriggerEnqueue, remember: RememberedFor.Milliseconds(), trace: storedTrace(a.Trace)}
	if generated(a.ID) {
		w.kind.remember = GeneratedFor.Milliseconds()
	}
	w.kind.patience, w.kind.onBusy, w.kind.limits = waitOf(job)
	w.args, w.items = storedArgs(arguments, job), joined(items)
	if err = job.CheckKeys(); err == nil {
		err = l.define(w, known)
	}
	if err != nil {
		return nil, "", fmt.Errorf("adopt %s: %w", w.run, err)
	}
	return w, reason, nil
}

// adoptAlone records one adoption.
func (l *Ledger) adoptAlone(ctx context.Context, a *Adoption, w *wanted, reason string) (*Enqueued, error) {
	job, k := a.Job, &w.kind
	since := int64(0)
	if !a.Since.IsZero() {
		since = a.Since.UnixMilli()
	}
	args := []any{job.Name, string(w.run), string(a.Session), a.Giving, a.Again, k.queue, k.remember, reason,
		w.args, k.name + "\x1f" + w.definition, k.patience, k.onBusy, k.limits,
		job.History.Runs, job.History.For.Milliseconds(), GeneratedFor.Milliseconds(), k.trace, since}
	own := locks.Item{Name: jobs.RunResource(w.run)}.String() // the script chooses the id
	for item := range strings.SplitSeq(w.items, "\x1f") {
		if item != "" && item != own {
			args = append(args, item)
		}
	}
	r := space.Read(l.run(ctx, "adopt", job.Name, args...))
	outcome := r.Text()
	enqueued, err := &Enqueued{}, ErrSession
	if outcome != "dead" {
		enqueued.Run = jobs.RunID(r.Text())
		err = enqueued.decode(outcome, k.queue, r)
	}
	if err != nil {
		return nil, fmt.Errorf("adopt %s: %w", w.run, err)
	}
	return enqueued, nil
}

// read returns the arguments and the bundle of the run; or why it fails at once.
func (a *Adoption) read(id jobs.RunID, maxArgs int) (arguments json.RawMessage, items []locks.Item, reason string) {
	source := json.RawMessage(a.Payload)
	if len(source) == 0 {
		source = a.Job.Args
	}
	arguments, err := compact(source)
	if large := jobs.CheckArgs(len(source), maxArgs); large != nil && (err != nil || jobs.CheckArgs(len(arguments), maxArgs) != nil) {
		return json.RawMessage("null"), nil, plain(large.Error())
	}
	if err != nil { // the text is shown to people; it is not used as arguments
		return asText(a.Payload), nil, plain(fmt.Sprintf("the payload of the task is not JSON: %v", err))
	}
	if a.Late {
		return arguments, nil, "the deadline of the task has passed"
	}
	if items, err = a.Job.Resources(id, arguments); err != nil {
		return arguments, nil, plain(err.Error())
	}
	return arguments, items, ""
}

// asText returns the beginning of a payload as a JSON string.
func asText(payload []byte) json.RawMessage {
	const most = 4 << 10
	text := string(payload[:min(len(payload), most)])
	quoted, err := json.Marshal(strings.ToValidUTF8(text, string(utf8.RuneError)))
	if err != nil {
		panic("ledger: a string is plain data: " + err.Error())
	}
	return quoted
}

// longName is the prefix of the names of adopted runs with a queue and an id that are too long for
// a name.
const longName = "%sha256-"

// AdoptedName makes one part of a run's id (see [jobs.ValidRunName]) of a queue's name and the id
// of a task in it, such that no two tasks share a name: <queue>/<id>, where bytes that are not
// allowed in a name, '%', '~' and the '/' of a queue are written as in a URL; %sha256-<digest> when
// that is too long.
func AdoptedName(queue, id string) string {
	name := escape(queue, "%~/") + "/" + escape(id, "%~")
	const longest = 180 // with room for ~2 and so on
	if len(name) > longest {
		return fmt.Sprintf("%s%x", longName, sha256.Sum256([]byte(queue+"\x00"+id)))
	}
	return name
}

func escape(text, special string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c > '~' || strings.IndexByte("\"'`\\"+special, c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
