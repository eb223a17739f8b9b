package worker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

const (
	passEvery = 200 * time.Millisecond // how often output is passed on, while there is some
	passLimit = time.Second            // for one call
	endLimit  = 2 * time.Second        // for the rest, at the end of an attempt
	// how often a call is sent without output, to learn whether clients still follow
	passIdle = 3 * time.Second

	pieceMost = 16 << 10 // bytes of one entry; Redis keeps the last 32
	passMost  = 4        // entries of one attempt at a time
	// bytes of one attempt that are not passed on yet; older ones are left out
	aheadMost = 256 << 10

	followMost = 16 // attempts that are followed at a time
)

// printed receives what an attempt prints, after its redactor. It keeps the tail that is stored
// when the attempt ends and, only while a client follows the run, what is not passed on yet. It
// never makes the attempt wait.
type printed struct {
	run     jobs.RunID
	attempt int
	token   locks.Token

	mu     sync.Mutex // guards the fields below
	tail   *jobs.Tail
	total  int64  // bytes written
	ended  bool   // the attempt has ended
	follow bool   // a client follows the run
	ahead  []byte // the last bytes of total that are not passed on yet
	begun  bool   // something was passed on since ahead began with the tail
	anew   bool   // ahead began with the tail after the last call of pieces
	passed time.Time
}

func newPrinted(record *ledger.Record, size int) *printed {
	last := record.Last()
	return &printed{run: record.ID, attempt: last.Number, token: last.Token, tail: jobs.NewTail(size)}
}

// Write always returns len(b) and no error.
func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(b)
	_, _ = p.tail.Write(b) // it accepts everything
	p.total += int64(n)
	if p.follow {
		b = b[max(0, n-aheadMost):]
		if over := len(p.ahead) + len(b) - aheadMost; over > 0 {
			p.ahead = p.ahead[:copy(p.ahead, p.ahead[over:])]
		}
		p.ahead = append(p.ahead, b...)
	}
	return n, nil
}

// String returns the text to store.
func (p *printed) String() string { return p.tail.String() }

// begin makes what is kept the next to pass on. It returns false when the attempt has ended.
func (p *printed) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	p.fromTail()
	return true
}

// restart makes what is kept the next to pass on, also after the end of the attempt.
func (p *printed) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fromTail()
}

// fromTail is restart for a caller that holds mu.
func (p *printed) fromTail() {
	p.follow, p.begun, p.anew = true, false, true
	p.ahead = p.tail.Bytes()
	p.ahead = p.ahead[max(0, len(p.ahead)-aheadMost):]
}

// end notes that the attempt has ended, and reports whether it was followed.
func (p *printed) end() (followed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	return p.follow
}

// pieces returns the next entries to pass on, at most this number, and whether the call is due.
func (p *printed) pieces(most int, now time.Time) (next ledger.Passing, due bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = ledger.Passing{Run: p.run, Token: p.token, Attempt: p.attempt, First: !p.begun}
	p.anew = false
	rest := p.ahead
	for len(rest) > 0 && len(next.Printed) < most {
		n := wholeText(rest, pieceMost, p.ended)
		if n == 0 {
			break
		}
		from := p.total - int64(len(rest))
		next.Printed = append(next.Printed, ledger.Printed{
			From: from, Upto: from + int64(n), Text: strings.ToValidUTF8(string(rest[:n]), "?"),
		})
		rest = rest[n:]
	}
	if p.ended && len(rest) == 0 {
		next.Printed = append(next.Printed, ledger.Printed{From: p.total, Upto: p.total, End: true})
	}
	return next, len(next.Printed) > 0 || !p.begun || now.Sub(p.passed) >= passIdle
}

// wholeText returns how many bytes of a text to pass on, at most this many: none of the beginning
// of a character at its end, unless it is the last.
func wholeText(text []byte, most int, last bool) int {
	n := min(len(text), most)
	if n == len(text) && last {
		return n
	}
	for k := 1; k < utf8.UTFMax && k <= n; k++ {
		if utf8.RuneStart(text[n-k]) {
			if !utf8.FullRune(text[n-k : n]) {
				n -= k
			}
			break
		}
	}
	return n
}

// commit notes that a call was answered. If a client has come meanwhile, everything is sent again.
func (p *printed) commit(sent ledger.Passing, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.anew {
		return
	}
	p.begun, p.passed = true, now
	if k := len(sent.Printed); k > 0 {
		// Some of them may have been left out meanwhile.
		left := p.total - sent.Printed[k-1].Upto
		p.ahead = p.ahead[max(0, int64(len(p.ahead))-left):]
	}
}

// leave forgets the clients.
func (p *printed) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.follow, p.ahead = false, nil
}

// live passes on what attempts print, to the clients that follow their runs. Without such a client
// it does nothing.
type live struct {
	wake    chan struct{}       // an attempt is followed; buffer of one
	sending *semaphore.Weighted // 1, held during each call, so that entries arrive in their order

	mu       sync.Mutex
	followed map[*printed]struct{} // guarded by mu
}

func newLive() *live {
	return &live{wake: make(chan struct{}, 1), sending: semaphore.NewWeighted(1), followed: make(map[*printed]struct{})}
}

// add begins to pass on what an attempt prints, from the tail that is kept so far. It does not
// block. It returns false when too many are followed already.
func (l *live) add(p *printed) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.followed[p]; !known && len(l.followed) >= followMost {
		return false
	}
	if p.begin() {
		l.followed[p] = struct{}{}
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// all returns the followed attempts.
func (l *live) all() []*printed {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*printed, 0, len(l.followed))
	for p := range l.followed {
		all = append(all, p)
	}
	return all
}

func (l *live) remove(p *printed) {
	l.mu.Lock()
	delete(l.followed, p)
	l.mu.Unlock()
	p.leave()
}

// followed handles the notice that a client follows a run.
func (w *Worker) followed(run jobs.RunID) {
	attempt, ok := w.running.Load(run)
	if ok && !w.live.add(attempt.(*stopper).printed) {
		w.often.WarnContext(w.attempts, "too many attempts are followed here, the output of another one is not passed on",
			"run", run, "followed", followMost)
	}
}

// passOutputs passes on what attempts print until ctx ends.
func (w *Worker) passOutputs(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.live.wake:
		}
		for w.passSome(ctx) {
			if !wait(ctx, passEvery) {
				return
			}
		}
	}
}

// passSome passes on what the followed attempts have printed since the last call, up to a limit. It
// returns false when none is followed.
func (w *Worker) passSome(ctx context.Context) bool {
	if w.live.sending.Acquire(ctx, 1) != nil {
		return false
	}
	defer w.live.sending.Release(1)
	var of []*printed
	var some []ledger.Passing
	now, all := time.Now(), w.live.all()
	for _, p := range all {
		if next, due := p.pieces(passMost, now); due {
			of, some = append(of, p), append(some, next)
		}
	}
	if len(some) > 0 {
		call, cancel := context.WithTimeout(ctx, passLimit)
		defer cancel()
		for i, err := range w.ledger.PassOn(call, some) {
			w.passed(of[i], some[i], now, err)
		}
	}
	return len(all) > 0
}

// passed handles the reply to a call. Without one, the same is sent again.
func (w *Worker) passed(p *printed, sent ledger.Passing, now time.Time, err error) {
	switch {
	case err == nil:
		p.commit(sent, now)
	case errors.Is(err, ledger.ErrFromTail):
		p.begin()
	case errors.Is(err, ledger.ErrNotFollowed), ledger.Final(err):
		w.live.remove(p)
	default:
		w.often.DebugContext(w.attempts, "could not pass on the output of an attempt, will retry", "run", p.run, "error", err)
	}
}

// endOutput passes on the rest of what an attempt has printed, if a client follows its run, before
// the end of the attempt is recorded: a client that sees the end has the output.
func (w *Worker) endOutput(p *printed) {
	if !p.end() {
		return
	}
	defer w.live.remove(p)
	// An outage delays the end by this much once, however many attempts end.
	call, cancel := context.WithTimeout(w.calls, endLimit)
	defer cancel()
	err := w.live.sending.Acquire(call, 1)
	if err == nil {
		defer w.live.sending.Release(1)
		err = w.passRest(call, p)
		if errors.Is(err, ledger.ErrFromTail) {
			p.restart()
			err = w.passRest(call, p)
		}
	}
	if err != nil && !errors.Is(err, ledger.ErrNotFollowed) {
		w.often.DebugContext(w.attempts, "could not pass on the rest of the output of an attempt", "run", p.run, "error", err)
	}
}

// passRest passes on all that an attempt has printed and that was not passed on yet.
func (w *Worker) passRest(ctx context.Context, p *printed) error {
	rest, _ := p.pieces(aheadMost/pieceMost+2, time.Now())
	return w.ledger.PassOn(ctx, []ledger.Passing{rest})[0]
}
