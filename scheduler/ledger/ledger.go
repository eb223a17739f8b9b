package ledger

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// Ledger reads and writes the record of ticks and runs of one namespace. Its methods are safe for
// concurrent use, and each that changes something is one script: it happens whole, or not at all.
// All of them may be sent again after an error in transit; each one states the effect.
type Ledger struct {
	rdb     redis.UniversalClient
	space   *locks.Space
	prefix  string
	keys    []string // the lock space's and the ledger's own, in KEYS order
	maxArgs int      // bytes; 0 for the default
	memory  *memory  // nil unless Remember was called

	signing *jobs.Keys                 // nil: nothing is signed, see Sign
	own     func(job string) *jobs.Job // nil: this process carries none
	able    *abilities                 // nil: this process can run every definition, see Limit

	mu          sync.Mutex
	definitions map[string]*jobs.Job // recent definitions of claims, by their marks; guarded by mu
	// by job: decisions that have not yet replaced all earlier runs; guarded by mu
	replacing map[string]replacement

	// Requests of several goroutines, see Enqueue. A goroutine that waits for its reply makes the
	// next call, which it receives from sends: so the ledger starts no goroutine.
	wanted space.Commit[*wanted]
	sends  chan func()
}

// New returns the ledger that belongs to a lock space. It sends through rdb, which must not resend
// scripts by itself (MaxRetries -1) if the caller wants to know of every doubtful reply.
func New(rdb redis.UniversalClient, space *locks.Space) *Ledger {
	keys := space.Keys()
	prefix := strings.TrimSuffix(keys[0], "exp")
	for _, name := range ownKeys {
		keys = append(keys, prefix+name)
	}
	l := &Ledger{rdb: rdb, space: space, prefix: prefix, keys: keys, definitions: make(map[string]*jobs.Job),
		replacing: make(map[string]replacement), sends: make(chan func(), 1)}
	l.wanted.Flights, l.wanted.Most, l.wanted.Once, l.wanted.Send = cap(l.sends), enqueuedTogether, true, l.enqueueGroup
	l.wanted.Spawn = func(send func()) bool { l.sends <- send; return true }
	return l
}

// LimitArgs sets how many bytes the args of a run may have, instead of [jobs.DefaultMaxArgs]. Call
// it before the ledger is used.
func (l *Ledger) LimitArgs(bytes int) { l.maxArgs = bytes }

// Space returns the lock space in which the ledger's runs take their locks.
func (l *Ledger) Space() *locks.Space { return l.space }

// Due is a run that is due under its n-th delivery: to be pushed to its queue, or claimed at once.
// A run never uses the same N twice.
type Due struct {
	Run   jobs.RunID
	N     int64
	Queue string

	// Offered reports that the run has waited for its locks, which are now reserved for it for a
	// moment. Set by Sweep.
	Offered bool

	// PutBack reports that the delivery has come from the head of its queue and was not claimed. So
	// it goes back to the head. Callers that push it again set it.
	PutBack bool
}

// Writable returns why Redis takes no writes of this namespace now, or nil. It changes nothing: it
// makes Redis update a member that no set has, which needs memory, rights, a master and its
// replicas like any other write.
func (l *Ledger) Writable(ctx context.Context) error {
	if err := l.rdb.ZAddXX(ctx, l.prefix+"push", redis.Z{Member: ""}).Err(); err != nil {
		return fmt.Errorf("write to the ledger: %w", l.space.Explain(err))
	}
	return nil
}

//go:embed scripts
var scriptFiles embed.FS

// A script is a file in scripts, by its name. Each one describes its arguments and its reply.
// Before it comes its fast path, if it has one (<name>.fast.lua).
type script string

// read returns the text of a script, with the fields of records expanded.
func (s script) read() string {
	source, err := scriptFiles.ReadFile("scripts/" + string(s) + ".lua")
	if err != nil {
		panic(err) // the name is wrong
	}
	return expand(string(source))
}

// library is what scripts of the ledger share, by nouns (scripts/lib). A declaration uses only
// those before it.
var library = sync.OnceValue(func() string {
	var text strings.Builder
	text.WriteString(space.DeclareKeys(slices.Concat(ownKeys, historyKeys)))
	text.WriteString(declareUntimed())
	for _, noun := range []script{
		"values", "run", "child", "body", "total", "attempt", "output", "wait", "order", "news", "message", "end", "tick", "job", "carry", "list",
	} {
		text.WriteString(("lib/" + noun).read())
	}
	return text.String()
})

// scripts has all of them.
var scripts = sync.OnceValue(func() map[script]func() *redis.Script {
	files, err := fs.Glob(scriptFiles, "scripts/*.lua")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	all := make(map[script]func() *redis.Script)
	for _, file := range files {
		if s := script(strings.TrimSuffix(path.Base(file), ".lua")); !strings.HasSuffix(string(s), ".fast") {
			all[s] = space.Named("ledger/"+string(s), func() string { return space.Link(library(), s.fast(), s.read()) })
		}
	}
	return all
})

// fast returns the fast path of a script, or "".
func (s script) fast() string {
	source, _ := scriptFiles.ReadFile("scripts/" + string(s) + ".fast.lua") // few have one
	return expand(string(source))
}

// assembled returns the script as it is sent.
func (s script) assembled() *redis.Script {
	assemble, ok := scripts()[s]
	if !ok {
		panic("no script has the name " + string(s))
	}
	return assemble()
}

// ScriptNames returns the names of the scripts that this package sends, by the hashes that SLOWLOG
// and MONITOR show.
func ScriptNames() map[string]string {
	names := make(map[string]string)
	for s := range scripts() {
		names[s.assembled().Hash()] = string(s)
	}
	return names
}

// run sends a script. job "" is for scripts that touch no job's history.
func (l *Ledger) run(ctx context.Context, s script, job string, args ...any) (space.Reply, error) {
	return space.RunText(ctx, l.rdb, s.assembled(), l.keysOf(job), args...)
}

// pipeline sends commands in one round trip.
func (l *Ledger) pipeline(ctx context.Context, fill func(redis.Pipeliner)) error {
	_, err := l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		fill(pipe)
		return nil
	})
	return l.space.Explain(err)
}

// appendTexts appends arguments of a script.
func appendTexts[T ~string](args []any, texts ...T) []any {
	for _, text := range texts {
		args = append(args, string(text))
	}
	return args
}

// keysOf returns the keys of a script that may touch the history of a job, if it is not "".
func (l *Ledger) keysOf(job string) []string {
	if job == "" {
		return l.keys
	}
	return append(slices.Clip(l.keys), l.historyOf(job)...)
}

// historyOf returns the keys of the history of a job.
func (l *Ledger) historyOf(job string) []string {
	keys := make([]string, len(historyKeys))
	for i, name := range historyKeys {
		keys[i] = l.prefix + name + ":" + job
	}
	return keys
}

// A step is one call of a script among several.
type step struct {
	job  string // as in run
	args []any
}

// calls returns calls of a script, one for each step.
func (l *Ledger) calls(s script, steps []step) []*space.Call {
	calls := make([]*space.Call, len(steps))
	for i, step := range steps {
		calls[i] = &space.Call{Prepared: space.Prepare(s.assembled(), l.keysOf(step.job)), Args: step.args}
	}
	return calls
}

// runAll sends calls of a script, see [space.Send].
func (l *Ledger) runAll(ctx context.Context, s script, steps []step) []*space.Call {
	calls := l.calls(s, steps)
	space.Send(ctx, l.rdb, calls)
	return calls
}

// A keyedStep is a step of a script with a key that belongs to one thing, such as a run. That is
// the last key.
type keyedStep struct {
	job  string // as in run
	key  string // without the prefix of the namespace
	args []any
}

// runKeyed is [Ledger.runAll] for such a script.
func (l *Ledger) runKeyed(ctx context.Context, s script, steps []keyedStep) []*space.Call {
	calls := make([]*space.Call, len(steps))
	for i, step := range steps {
		keys := append(slices.Clip(l.keysOf(step.job)), l.prefix+step.key)
		calls[i] = &space.Call{Prepared: space.Prepare(s.assembled(), keys), Args: step.args}
	}
	space.Send(ctx, l.rdb, calls)
	return calls
}

// ErrUnreadable means that a record in Redis is not one that lockstep wrote.
var ErrUnreadable = errors.New("the record of the run cannot be read")

// outcomeOf reads the outcome of a script. The outcome none, for an object that does not exist,
// sets [ErrUnknown].
func outcomeOf(r *space.Reader) string {
	outcome := r.Text()
	if outcome == "none" {
		r.Err = ErrUnknown
	}
	return outcome
}

// dueOf reads a list of runs to push.
func dueOf(r *space.Reader) (due []Due) {
	r.Each(func(list *space.Reader) { due = append(due, oneDue(list)) })
	return due
}

// restDue reads the rest of a reply, which are runs to push.
func restDue(r *space.Reader) (due []Due) {
	for r.More() {
		due = append(due, oneDue(r))
	}
	return due
}

func oneDue(r *space.Reader) Due {
	return Due{Run: jobs.RunID(r.Text()), N: r.Number(), Queue: r.Text()}
}

// millis is the instant of a server time in ms; 0 is no time.
func millis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func unixMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
