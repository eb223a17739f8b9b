package ledger

import (
	"context"
	"maps"
	"slices"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// The race detector and other tests make a test's Redis slower than any other.
func init() { lostLimit = 5 * time.Minute }

// A FastPath is a script that has one: its two parts, and the digest of the whole.
type FastPath struct{ Name, Fast, Slow, Hash string }

// FastPaths returns all of them.
func FastPaths() []FastPath {
	var all []FastPath
	for _, s := range []script{"claim", "finish", "enqueue"} {
		all = append(all, FastPath{string(s), link(s.fast(), ""), link("", s.read()), s.assembled().Hash()})
	}
	return all
}

// ListScripts returns the script for several requests, and those for one: of a client, without its
// fast path, and of a task.
func ListScripts() (several, one, adopted, hash string) {
	return link("", script("enqueueall").read()), link("", script("enqueue").read()), link("", script("adopt").read()),
		script("enqueueall").assembled().Hash()
}

func link(fast, source string) string { return space.Link(library(), fast, source) }

// Expand replaces what a text of Lua names of the ledger's records.
func Expand(text string) string { return expand(text) }

// NameOf is the name under which Redis stores a definition.
func NameOf(definition string) string { return nameOf(definition) }

// DecodeOpen reads the record and the log of an outstanding run.
func DecodeOpen(id jobs.RunID, record, log string) (*Record, error) {
	decoded, _, err := decode(id, record, log, "")
	return decoded, err
}

// DecodeFinal reads a record of the history.
func DecodeFinal(id jobs.RunID, text string) (*Record, error) { return decodeFinal(id, text) }

// BodyScripts returns the texts of the scripts that write or remove bodies, by digest.
func BodyScripts() map[string]string {
	texts := make(map[string]string)
	for _, s := range []script{
		"claim", "finish", "enqueue", "enqueueall", "create", "adopt", "reopen", "assert", "cancel", "expire", "crash", "refuse", "skip",
	} {
		texts[s.assembled().Hash()] = link(s.fast(), s.read())
	}
	return texts
}

// AllScripts returns the texts of all scripts, by digest.
func AllScripts() map[string]string {
	texts := make(map[string]string)
	for s := range scripts() {
		texts[s.assembled().Hash()] = link(s.fast(), s.read())
	}
	return texts
}

// KnownOpen returns the runs of ticks that a ledger takes for outstanding, by what it has read and
// heard.
func (l *Ledger) KnownOpen() []jobs.RunID {
	l.memory.mu.Lock()
	defer l.memory.mu.Unlock()
	return slices.Sorted(maps.Keys(l.memory.open))
}

// SetClock gives a ledger the clock by which it forgets what it remembers.
func (l *Ledger) SetClock(now func() time.Time) { l.memory.now = now }

// ForgetNews makes a ledger take the news it has heard for incomplete.
func (l *Ledger) ForgetNews() {
	l.memory.mu.Lock()
	defer l.memory.mu.Unlock()
	l.memory.news = ""
}

// ClaimAs is [Ledger.Claim] for a session and a hold that have no client.
func (l *Ledger) ClaimAs(ctx context.Context, session locks.SessionID, hold locks.HoldID, due Due) (*Claimed, error) {
	return l.decodeClaim(due, nil, space.Read(l.run(ctx, "claim", due.Run.Job(), string(session), string(hold), string(due.Run), due.N,
		0, 1, 0, "")))
}

// Marks returns the definitions of a job that this process is known to be able to run.
func (l *Ledger) Marks(job string) []string {
	var texts []string
	for _, m := range l.able.marks(job) {
		texts = append(texts, m.text)
	}
	return texts
}

// Waiting returns how many requests wait to be sent with others.
func (l *Ledger) Waiting() int {
	_, queued := l.wanted.Outstanding()
	return queued
}
