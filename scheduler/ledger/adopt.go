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

// Adoption is a request that came through the queue itself, from a client that knows nothing of the
// ledger.
type Adoption struct {
	Job     *jobs.Job
	Queue   string // where the request came through: its run stays in it
	ID      string // the sender's; unique in that queue for as long as the request is in it
	Payload []byte // JSON becomes the arguments; empty: those of the definition

	Session locks.SessionID // of the worker that received the request
	// a random word for this delivery of the request; the same when it is sent again
	Giving string
	Again  bool // a worker may have received it before
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
// may be used again, and the run is then <job>#<queue>/<id>~2, ~3 and so on; but a request with
// Again is the old one. All this is remembered for at least [RememberedFor], or [GeneratedFor] when
// no client chose the id. A request that cannot be run becomes a failed run with the reason, since
// its sender waits for no reply.
//
// The run keeps the trace context of the span that ctx has, if any.
//
// Send an adoption until a reply arrives, or the session is over: until then the run may exist.
// After the session the error is an [ErrSession]. The error is a [jobs.ErrUnknownKeys] for a
// definition that this build does not know in full: the request is for another worker.
func (l *Ledger) Adopt(ctx context.Context, a Adoption) (*Enqueued, error) {
	job, id := a.Job, jobs.RequestRunID(a.Job.Name, AdoptedName(a.Queue, a.ID))
	fail := func(err error) (*Enqueued, error) { return nil, fmt.Errorf("adopt %s: %w", id, err) }
	if err := job.CheckKeys(); err != nil {
		return fail(err)
	}
	arguments, items, reason := a.read(id, l.maxArgs)
	definition, err := l.write(job)
	if err != nil {
		return fail(err)
	}
	remembered := RememberedFor
	if generated(a.ID) {
		remembered = GeneratedFor
	}
	patience, onBusy, limits := waitOf(job)
	args := []any{job.Name, string(id), string(a.Session), a.Giving, a.Again, a.Queue, remembered.Milliseconds(), reason,
		storedArgs(arguments, job), named(string(definition)), patience, onBusy, limits,
		job.History.Runs, job.History.For.Milliseconds(), GeneratedFor.Milliseconds(), storedTrace(trace.Of(ctx))}
	for _, item := range items {
		args = append(args, item.String())
	}
	r := space.Read(l.run(ctx, "adopt", job.Name, args...))
	outcome := r.Text()
	if outcome == "dead" {
		return fail(ErrSession)
	}
	enqueued := &Enqueued{Run: jobs.RunID(r.Text())}
	if err := enqueued.decode(outcome, a.Queue, r); err != nil {
		return fail(err)
	}
	return enqueued, nil
}

// read returns the arguments and the bundle of the run, without its own lock; or why it fails at
// once.
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
	if items, err = a.Job.Resources(id, arguments); err != nil {
		return arguments, nil, plain(err.Error())
	}
	return arguments, slices.DeleteFunc(items, func(item locks.Item) bool { return item.Name == jobs.RunResource(id) }), ""
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
