package ledger

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
)

var (
	//go:embed scripts/aside.lua
	asideSource string
	asideScript = script(asideSource)
	//go:embed scripts/pick.lua
	pickSource string
	pickScript = script(pickSource)
)

// A Need is what a worker must have to run a definition: the kind of its work, the Go handler of that kind, and the keys
// of the definition that the worker which wrote the need did not know. It is a text for Redis.
type Need string

// The kinds of work.
const (
	NeedCommand = "command"
	NeedHTTP    = "http"
	needHandler = "handler "
)

// needOf returns what a definition needs, as far as this build knows it.
func needOf(job *jobs.Job) Need {
	work := NeedCommand
	switch {
	case job.Handler != "":
		work = needHandler + job.Handler
	case job.HTTP != nil:
		work = NeedHTTP
	}
	var unknown *jobs.UnknownKeysError
	if errors.As(job.CheckKeys(), &unknown) {
		work += "\x1f" + strings.Join(unknown.Keys, ",")
	}
	return Need(jobs.Cut(strings.ReplaceAll(work, "\x00", " "), jobs.MaxReason))
}

// Handler returns the Go handler that is needed, or "".
func (n Need) Handler() string {
	handler, _ := strings.CutPrefix(n.Work(), needHandler)
	if handler == n.Work() {
		return ""
	}
	return handler
}

// Work returns the kind of work, with the handler: [NeedCommand], [NeedHTTP] or another text for a handler.
func (n Need) Work() string {
	work, _, _ := strings.Cut(string(n), "\x1f")
	return work
}

// Keys returns the keys of the definition that must be known, such as lock.until.
func (n Need) Keys() []string {
	_, keys, found := strings.Cut(string(n), "\x1f")
	if !found {
		return nil
	}
	return strings.Split(keys, ",")
}

// String describes a need to people.
func (n Need) String() string {
	if keys := n.Keys(); len(keys) > 0 {
		return fmt.Sprintf("%s, and a build that knows its keys (%s)", n.Work(), strings.Join(keys, ", "))
	}
	return n.Work()
}

// abilities are what a process can run. A claim names, by marks, the definitions of its job that the process is known to be
// able to run; the script replies with any other definition instead of a grant. A mark is the handler and the length of a
// definition: another handler or another key makes another mark. The attempt still checks both, for two definitions
// that differ and have one mark.
type abilities struct {
	can func(Need) bool

	mu    sync.Mutex
	known map[string][]string // marks by job, the newest first; guarded by mu
}

const (
	marksMost  = 4      // marks of one job: definitions that are in use side by side
	markedMost = 50_000 // jobs with marks
)

// marked is the outcome of a claim that is to be sent again, since what it needs is known now.
const marked ClaimOutcome = "marked"

// Limit has claims decline runs that this process cannot do, before they take a lock: their outcome is [Unable]. can
// reports whether the process has what a definition needs; its result must not change. Call it before the ledger is used.
func (l *Ledger) Limit(can func(Need) bool) {
	l.able = &abilities{can: can, known: make(map[string][]string)}
}

// marks returns the marks of a job for a claim.
func (a *abilities) marks(job string) string {
	if a == nil {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return "\x1e" + strings.Join(a.known[job], "\x1e") + "\x1e"
}

// judge looks whether a definition can be run here, and remembers its mark if so.
func (a *abilities) judge(job, mark, definition string) (ClaimOutcome, Need) {
	// What cannot be read, or not be trusted, is for the claim itself to find out.
	if read, err := jobs.ReadJob(definition); err == nil {
		if need := needOf(read); !a.can(need) {
			return Unable, need
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= markedMost {
		clear(a.known)
	}
	marks := append([]string{mark}, a.known[job]...)
	a.known[job] = marks[:min(len(marks), marksMost)]
	return marked, ""
}

// SetAside leaves a run that is due under this n to a worker that has what it needs: it stays due, and has no delivery until
// such a worker picks it. All workers are told of the first such run by [NoticeAside]. Sent again it changes
// nothing more. It returns false when the run was not due under this n any more.
func (l *Ledger) SetAside(ctx context.Context, due Due, need Need) (bool, error) {
	r := read(l.run(ctx, asideScript, "", string(due.Run), due.N, string(need)))
	done := r.number() == 1
	if r.err != nil {
		return false, fmt.Errorf("set run %s aside: %w", due.Run, r.err)
	}
	return done, nil
}

// A Place is where runs of a queue are that were set aside for one need.
type Place struct {
	Queue string
	Need  Need
}

func (p Place) text() string { return p.Queue + "\x00" + string(p.Need) }

func placeOf(text string) Place {
	queue, need, _ := strings.Cut(text, "\x00")
	need, _, _ = strings.Cut(need, "\x00")
	return Place{queue, Need(need)}
}

// Notices that scripts send to all sessions: see locks.Options.OnNotice.
const (
	NoticeAside = "aside" // runs were set aside: [Ledger.Pick]
	NoticeLeft  = "left"  // a worker has left, and with it perhaps definitions or duty: [Ledger.Leave]
)

// placesMost is how many places are looked at together.
const placesMost = 64

// Places returns where runs are set aside, and drops what is left there of runs that are due no more, some of it.
func (l *Ledger) Places(ctx context.Context) ([]Place, error) {
	r := read(l.run(ctx, pickScript, "", placesMost))
	var places []Place
	for r.more() {
		places = append(places, placeOf(r.text()))
	}
	if r.err != nil {
		return nil, fmt.Errorf("look for runs that are set aside: %w", r.err)
	}
	return places, nil
}

// Pick returns runs of some places, at most so many, the one that has been due for longest first. They are due under a new n,
// for the caller to claim or to push; if it does not, the sweep pushes them.
func (l *Ledger) Pick(ctx context.Context, most int, places []Place) ([]Due, error) {
	args := make([]any, 0, 1+len(places))
	args = append(args, most)
	for _, place := range places {
		args = append(args, place.text())
	}
	r := read(l.run(ctx, pickScript, "", args...))
	var due []Due
	for r.more() {
		due = append(due, r.oneDue())
	}
	if r.err != nil {
		return nil, fmt.Errorf("pick runs that are set aside: %w", r.err)
	}
	return due, nil
}

// Aside is how many runs are set aside in a place.
type Aside struct {
	Place
	Runs int // some may be due no more
}

// Asides counts the runs that are set aside, of at most 64 places. It changes nothing.
func (l *Ledger) Asides(ctx context.Context) ([]Aside, error) {
	key := l.prefix + "aside"
	var found []Aside
	for from := "-"; len(found) < placesMost; {
		next, err := l.rdb.ZRangeByLex(ctx, key, &redis.ZRangeBy{Min: from, Max: "+", Count: 1}).Result()
		if err != nil {
			return nil, fmt.Errorf("read which runs are set aside: %w", err)
		}
		if len(next) == 0 {
			break
		}
		place := placeOf(next[0])
		from = "(" + place.text() + "\x01"
		n, err := l.rdb.ZLexCount(ctx, key, "["+place.text()+"\x00", from).Result()
		if err != nil {
			return nil, fmt.Errorf("count runs that are set aside: %w", err)
		}
		found = append(found, Aside{place, int(n)})
	}
	return found, nil
}

// NeedOf returns what a due run needs if it was set aside, or "".
func (l *Ledger) NeedOf(ctx context.Context, record *Record) (Need, error) {
	asides, err := l.Asides(ctx)
	if err != nil || len(asides) == 0 {
		return "", err
	}
	scores := make([]*redis.FloatCmd, len(asides))
	_, err = l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, aside := range asides {
			scores[i] = pipe.ZScore(ctx, l.prefix+"aside", aside.text()+strings.TrimPrefix(readyMember(record), record.Queue))
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("look whether run %s is set aside: %w", record.ID, err)
	}
	for i, aside := range asides {
		if aside.Queue == record.Queue && scores[i].Err() == nil {
			return aside.Need, nil
		}
	}
	return "", nil
}
