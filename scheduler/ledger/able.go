package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// A Need is what a worker must have to run a definition: the kind of its work, the Go handler of
// that kind, and the keys of the definition that the worker which wrote the need did not know. It
// is a text for Redis.
type Need string

// needOf returns the needs of a definition, as far as this build knows them.
func needOf(job *jobs.Job) Need {
	work := jobs.KindCommand
	if kind := job.Kind(); kind != nil {
		work = kind.Name
		if name := kind.Need(job); name != "" {
			work += " " + name
		}
	}
	if unknown, ok := errors.AsType[*jobs.UnknownKeysError](job.CheckKeys()); ok {
		work += "\x1f" + strings.Join(unknown.Keys, ",")
	}
	return Need(jobs.Cut(strings.ReplaceAll(work, "\x00", " "), jobs.MaxReason))
}

// Kind returns the name of the kind of work: see [jobs.KindNames].
func (n Need) Kind() string {
	kind, _, _ := strings.Cut(n.Work(), " ")
	return kind
}

// Name returns the name that the executor of that kind must know, or "": see [jobs.Kind.Need].
func (n Need) Name() string {
	_, name, _ := strings.Cut(n.Work(), " ")
	return name
}

// Handler returns the required Go handler, or "".
func (n Need) Handler() string {
	if n.Kind() != jobs.KindHandler {
		return ""
	}
	return n.Name()
}

// Work returns the kind of work, and after a blank the name that its executor must know, if any.
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

// abilities are the definitions that a process can run. A claim names, by marks, the definitions of
// its job that the process is known to be able to run; the script replies with any other definition
// instead of a grant.
//
// The mark of a definition that Redis stores by its name is @ and that name. The process has its
// text, and the claim keeps it until the reply arrives, so a granted claim needs only the name.
// Where a run carries the text itself, the mark is the handler and the length of the text: another
// handler or another key makes another mark. The attempt still checks both, since two different
// definitions may have one mark.
type abilities struct {
	can func(Need) bool

	mu sync.Mutex
	// by job, the newest first; guarded by mu. The slices are never written to
	known map[string][]mark
	bytes int // of the definitions in known; guarded by mu
}

// A mark is that of a definition which this process can run.
type mark struct {
	text       string // as the scripts have it
	definition string // the definition, if the mark is its name; else ""
}

// byName reports whether a mark, or what a body has for a definition, is a name.
func byName(mark string) bool { return strings.HasPrefix(mark, "@") }

const (
	marksMost       = 4        // marks of one job: definitions that are in use side by side
	markedMost      = 50_000   // jobs with marks
	markedBytesMost = 32 << 20 // of the definitions
)

// marked is the outcome of a claim that must be sent again, since its needs are now known.
const claimMarked ClaimOutcome = "marked"

// Limit makes claims decline runs that this process cannot do, before they take a lock: their
// outcome is [ClaimUnable]. can reports whether the process has what a definition needs; its result
// must not change. Call it before the ledger is used.
func (l *Ledger) Limit(can func(Need) bool) {
	l.able = &abilities{can: can, known: make(map[string][]mark)}
}

// Through returns this ledger for a worker: it sends through the connections of the worker's
// session, keeps what it sees ([Ledger.Remember]), trusts the definitions that the worker carries
// itself ([Ledger.Sign]), and declines runs that the worker cannot do ([Ledger.Limit]).
func (l *Ledger) Through(client *locks.Client, own func(job string) *jobs.Job, can func(Need) bool) *Ledger {
	through := New(client.Extension().Redis(), client.Space())
	through.LimitArgs(l.maxArgs)
	through.Sign(l.signing, own)
	through.Remember()
	through.Limit(can)
	return through
}

// marks returns the marks of a job for a claim.
func (a *abilities) marks(job string) []mark {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known[job]
}

// text returns marks as the scripts take them; "" for a process that can run all definitions.
func (a *abilities) text(marks []mark) string {
	if a == nil {
		return ""
	}
	var b strings.Builder
	b.WriteByte('\x1e')
	for _, m := range marks {
		b.WriteString(m.text)
		b.WriteByte('\x1e')
	}
	return b.String()
}

// judge checks whether a definition can be run here, and remembers its mark if so.
func (a *abilities) judge(job string, m mark) (ClaimOutcome, Need) {
	// The claim itself detects a definition that cannot be read or trusted.
	if read, err := jobs.ReadJob(m.definition); err == nil {
		if need := needOf(read); !a.can(need) {
			return ClaimUnable, need
		}
	}
	if !byName(m.text) {
		m.definition = "" // each run brings its own
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= markedMost || a.bytes+len(m.definition) > markedBytesMost {
		clear(a.known)
		a.bytes = 0
	}
	marks := []mark{m} // the others may have it already: several claims can have had this reply
	a.bytes += len(m.definition)
	for _, old := range a.known[job] {
		if old.text != m.text && len(marks) < marksMost {
			marks = append(marks, old)
		} else {
			a.bytes -= len(old.definition)
		}
	}
	a.known[job] = marks
	return claimMarked, ""
}

// SetAside leaves a run that is due under this n to a worker that has what it needs: the run stays
// due, and has no delivery until such a worker picks it. All workers receive [NoticeAside] for the
// first such run. Sent again it changes nothing more. It returns false when the run was not due
// under this n any more.
func (l *Ledger) SetAside(ctx context.Context, due Due, need Need) (bool, error) {
	r := space.Read(l.run(ctx, "aside", "", string(due.Run), due.N, string(need)))
	done := r.Number() == 1
	if r.Err != nil {
		return false, fmt.Errorf("set run %s aside: %w", due.Run, r.Err)
	}
	return done, nil
}

// A Shelf is where runs of a queue are that were set aside for one need.
type Shelf struct {
	Queue string
	Need  Need
}

// text is a shelf for Redis; that of the zero Shelf is "".
func (s Shelf) text() string {
	if s == (Shelf{}) {
		return ""
	}
	return s.Queue + "\x00" + string(s.Need)
}

func shelfOf(text string) Shelf {
	queue, need, _ := strings.Cut(text, "\x00")
	need, _, _ = strings.Cut(need, "\x00")
	return Shelf{queue, Need(need)}
}

// Notices that scripts send to all sessions: see [locks.ExtensionOptions].
const (
	NoticeAside = "aside" // runs were set aside: [Ledger.Pick]
	// a worker has left, and with it perhaps definitions or duty: [Ledger.Leave]
	NoticeLeft = "left"
	// NoticeOutput comes before a run that a client follows. It asks the worker of the run, which
	// alone receives it, to pass on what the attempt prints: [Ledger.Follow].
	NoticeOutput = "output:"
)

const (
	shelvesPage = 64  // shelves that [Ledger.Shelves] returns at most
	asidesPage  = 200 // shelves that are counted in one call
	asidesPages = 5   // number of such calls
)

// Shelves returns where runs are set aside: the shelves that follow one, or the zero Shelf for the
// first ones. next is the shelf to continue after, the zero one after the last. On the way, Shelves
// removes some stale entries: of runs that are no longer due, or are due since later or in another
// queue.
func (l *Ledger) Shelves(ctx context.Context, after Shelf) (shelves []Shelf, next Shelf, err error) {
	r := space.Read(l.run(ctx, "pick", "", shelvesPage, "list", after.text()))
	next = shelfOf(r.Text())
	for r.More() {
		shelves = append(shelves, shelfOf(r.Text()))
	}
	if r.Err != nil {
		return nil, Shelf{}, fmt.Errorf("list runs that are set aside: %w", r.Err)
	}
	return shelves, next, nil
}

// Pick returns runs of some shelves, at most this number, those that have been due for longest
// first. They are due under a new n, for the caller to claim or to push; if it does neither, the
// sweep pushes them.
func (l *Ledger) Pick(ctx context.Context, most int, shelves []Shelf) ([]Due, error) {
	args := make([]any, 0, 2+len(shelves))
	args = append(args, most, "pick")
	for _, shelf := range shelves {
		args = append(args, shelf.text())
	}
	for {
		r := space.Read(l.run(ctx, "pick", "", args...))
		early := r.Number() == 1
		due := restDue(r)
		if r.Err != nil {
			return nil, fmt.Errorf("pick runs that are set aside: %w", r.Err)
		}
		if len(due) > 0 || !early { // each call that ends early has removed entries
			return due, nil
		}
	}
}

// Aside is how many runs are set aside in a shelf.
type Aside struct {
	Shelf
	Runs int // some may no longer be due
}

// Asides counts the runs that are set aside, in the first 1,000 shelves. It changes nothing.
func (l *Ledger) Asides(ctx context.Context) ([]Aside, error) {
	var all []Aside
	err := l.asides(ctx, "", func(some []Aside) (more bool, err error) {
		all = append(all, some...)
		return true, nil
	})
	return all, err
}

// asides passes the shelves of a queue, or with "" of all, to a function, page by page while it
// requests more.
func (l *Ledger) asides(ctx context.Context, queue string, page func([]Aside) (more bool, err error)) error {
	after := ""
	for range asidesPages {
		r := space.Read(l.run(ctx, "asides", "", asidesPage, queue, after))
		after = r.Text()
		var some []Aside
		for r.More() {
			some = append(some, Aside{shelfOf(r.Text()), int(r.Number())})
		}
		if r.Err != nil {
			return fmt.Errorf("count runs that are set aside: %w", r.Err)
		}
		if more, err := page(some); err != nil || !more || after == "" {
			return err
		}
	}
	return nil
}

// NeedOf returns the need of a due run if it was set aside, or "".
func (l *Ledger) NeedOf(ctx context.Context, record *Record) (need Need, err error) {
	entry := strings.TrimPrefix(readyMember(record), record.Queue)
	err = l.asides(ctx, record.Queue, func(some []Aside) (more bool, err error) {
		if len(some) == 0 {
			return false, nil
		}
		scores := make([]*redis.FloatCmd, len(some))
		err = l.pipeline(ctx, func(pipe redis.Pipeliner) {
			for i, aside := range some {
				scores[i] = pipe.ZScore(ctx, l.prefix+"aside", aside.text()+entry)
			}
		})
		if err != nil && !errors.Is(err, redis.Nil) {
			return false, fmt.Errorf("check whether run %s is set aside: %w", record.ID, err)
		}
		for i, aside := range some {
			if scores[i].Err() == nil {
				need = aside.Need
			}
		}
		return need == "", nil
	})
	return need, err
}
