package locks_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/locks"
)

// The resources that the actors compete for.
const (
	pool       = "pool" // permits
	poolSize   = 3
	narrow     = "narrow" // shared by at most that many
	narrowSize = 2
)

func newJournal() *journal {
	return &journal{limits: map[string]int{pool: poolSize, narrow: narrowSize}}
}

// declarePool declares the permits of a space.
func declarePool(t testing.TB, c *locks.Client) {
	t.Helper()
	if _, err := c.Declare(within(t, patient), pool, locks.PermitLimit{Permits: poolSize, Version: 1}); err != nil {
		t.Fatal(err)
	}
}

// An actor takes random bundles in all modes and in all ways, nests others in them, works under
// them for a moment, and records in the journal what it has. Only one goroutine uses it.
type actor struct {
	client  *locks.Client
	journal *journal
	rand    *rand.Rand

	depth  int           // how deep requests are nested at most
	limits bool          // holds have limits
	loses  bool          // holds may be lost, and requests may get no reply
	closes bool          // the client may be closed meanwhile
	deaf   bool          // a fault: it keeps working when its context has ended
	asks   bool          // it asks Redis whether its holds are held there
	waits  time.Duration // how long its requests wait at most; 0 for hangs
	calls  int           // the number of requests granted
	dead   int           // the number of deadlocks found
	deep   int           // the most holds it ever had on its stack
}

// having is one hold on an actor's stack.
type having struct {
	hold   *locks.Hold
	own    []locks.Item // what its own grant has, beside what its outer holds have
	claims []*claim
}

// hangs is how long a request may wait before it counts as one that never gets a reply: all holds
// here are short.
const hangs = 90 * time.Second

func (a *actor) dice(n int) bool { return a.rand.IntN(n) == 0 }

// bundle draws 1 to 3 of the resources.
func (a *actor) bundle() (items []locks.Item) {
	for _, i := range a.rand.Perm(6)[:1+a.rand.IntN(3)] {
		switch {
		case i == 0:
			items = append(items, locks.Item{Name: pool, Mode: locks.ModePermits, N: 1 + a.rand.IntN(2)})
		case i <= 1:
			items = append(items, locks.Item{Name: narrow, Mode: locks.ModeShared, N: narrowSize})
		default:
			mode := locks.ModeExclusive
			if a.dice(2) {
				mode = locks.ModeShared
			}
			items = append(items, locks.Item{Name: string(rune('a' + i)), Mode: mode})
		}
	}
	return items
}

// parts turns a bundle into the parts of a request.
func parts(items []locks.Item) (parts []locks.Part) {
	for _, item := range items {
		switch {
		case item.Mode == locks.ModePermits:
			parts = append(parts, locks.Permits(item.Name, item.N))
		case item.N > 0:
			parts = append(parts, locks.AtMost(item.N, item.Name))
		case item.Mode == locks.ModeShared:
			parts = append(parts, locks.Shared(item.Name))
		default:
			parts = append(parts, locks.Exclusive(item.Name))
		}
	}
	return parts
}

// ask asks for a bundle in a random way. own is the least time that it keeps the bundle, in ms.
func (a *actor) ask(ctx context.Context, items []locks.Item) (hold *locks.Hold, least time.Duration, err error) {
	asked := parts(items)
	if a.limits && a.dice(4) {
		asked = append(asked, locks.MaxHold(time.Duration(1+a.rand.IntN(300))*time.Millisecond))
	}
	if a.limits && a.dice(8) {
		least = time.Duration(1+a.rand.IntN(40)) * time.Millisecond
		if a.dice(4) {
			least *= 10 // visible on a slow machine
		}
		asked = append(asked, locks.MinHold(least))
	}
	if a.limits && a.dice(8) {
		asked = append(asked, locks.CrashDelay(50*time.Millisecond))
	}
	bounded, cancel := context.WithTimeoutCause(ctx, cmp.Or(a.waits, hangs), errHangs)
	switch a.rand.IntN(6) {
	case 0:
		hold, err = a.client.TryAcquire(bounded, asked...)
	case 1:
		hold, err = a.client.Acquire(bounded, append(asked, locks.Wait(time.Duration(a.rand.IntN(20))*time.Millisecond))...)
	case 2:
		timer := time.AfterFunc(time.Duration(a.rand.IntN(20_000))*time.Microsecond, cancel)
		hold, err = a.client.Acquire(bounded, asked...)
		timer.Stop()
	default:
		hold, err = a.client.Acquire(bounded, asked...)
	}
	if hold != nil { // its context is derived from the request's
		context.AfterFunc(hold.Context(), cancel)
	} else {
		cancel()
	}
	return hold, least, err
}

var errHangs = errors.New("no reply: a deadlock that was not found, or a grant without its message")

// judge records an error that a request must not end with.
func (a *actor) judge(ctx context.Context, err error) {
	switch {
	case errors.Is(err, errHangs):
		a.journal.fault("process %d: %v", a.journal.who, err)
	case errors.Is(err, locks.ErrDeadlock):
		a.dead++
	case ctx.Err() != nil, errors.Is(err, locks.ErrBusy), errors.Is(err, context.Canceled):
	case a.closes && errors.Is(err, locks.ErrClosed):
	case a.loses && (errors.Is(err, locks.ErrLost) || errors.Is(err, locks.ErrNoSession) || errors.Is(err, locks.ErrGrace) || strings.Contains(err.Error(), "no reply within")):
	default:
		a.journal.fault("process %d: %v", a.journal.who, err)
	}
}

// visit takes a bundle under the actor's holds, works, and releases it.
func (a *actor) visit(ctx context.Context, outer []*having) {
	items := a.bundle()
	hold, least, err := a.ask(ctx, items)
	if err != nil {
		a.judge(ctx, err)
		return
	}
	a.calls++
	mine := a.note(hold, items, least, outer)
	stack := append(outer[:len(outer):len(outer)], mine)
	a.deep = max(a.deep, len(stack))
	a.touch(stack)
	for range 1 + a.rand.IntN(3) {
		switch a.rand.IntN(5) {
		case 0, 1:
			if len(stack) <= a.depth {
				a.visit(hold.Context(), stack)
			}
		case 2:
			a.downgrade(ctx, stack)
		case 3:
			a.touch(stack)
			time.Sleep(time.Duration(a.rand.IntN(2000)) * time.Microsecond) // the work
		}
		a.touch(stack)
		if a.asks {
			a.verify(ctx, mine)
		}
	}
	if len(outer) > 0 && a.dice(8) { // a nested request may hold it for longer
		a.release(outer[a.rand.IntN(len(outer))])
		a.touch(stack)
	}
	a.release(mine)
}

func (a *actor) release(h *having) {
	if err := h.hold.Release(); err != nil && (!errors.Is(err, locks.ErrLost) || !a.loses && !a.limits) {
		a.journal.fault("process %d: %v", a.journal.who, err)
	}
}

// note records the claims of a hold.
func (a *actor) note(hold *locks.Hold, items []locks.Item, least time.Duration, outer []*having) *having {
	mine := &having{hold: hold}
	var under []locks.HoldID
	for i := len(outer) - 1; i >= 0; i-- {
		if len(outer[i].own) > 0 {
			under = append(under, outer[i].hold.ID())
		}
	}
	add := func(item locks.Item, of *locks.Hold) {
		mine.claims = append(mine.claims, &claim{
			Resource: item.Name, Mode: item.Mode, Permits: item.N, By: of.ID(), Under: under, Token: of.Token(),
			Since: of.Since().UnixMilli(),
		})
	}
wants:
	for _, want := range items {
		for i := len(outer) - 1; i >= 0; i-- {
			for _, has := range outer[i].own {
				switch {
				case has.Name != want.Name:
				case has.Mode == locks.ModePermits && has.N < want.N:
					add(has, outer[i].hold)
					want.N -= has.N
				case has.Mode != locks.ModeShared || want.Mode == locks.ModeShared:
					add(want, outer[i].hold)
					continue wants
				}
			}
		}
		mine.own = append(mine.own, want)
		add(want, hold)
		mine.claims[len(mine.claims)-1].Least = least.Milliseconds()
	}
	return mine
}

// touch records which holds are alive.
func (a *actor) touch(stack []*having) {
	for _, h := range stack {
		at := stamp()
		if h.hold.Context().Err() != nil && !a.deaf {
			continue
		}
		for _, c := range h.claims {
			if c.From == 0 {
				a.journal.add(c, at)
			} else {
				a.journal.seen(c, at)
			}
		}
	}
}

// downgrade shares what the innermost hold has exclusively.
func (a *actor) downgrade(ctx context.Context, stack []*having) {
	h := stack[len(stack)-1]
	var names []string
	for _, item := range h.own {
		if item.Mode == locks.ModeExclusive && a.dice(2) {
			names = append(names, item.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	a.touch(stack) // the last time that it has them exclusively
	if err := h.hold.Downgrade(ctx, names...); err != nil {
		if h.hold.Context().Err() == nil && !a.loses && !a.limits {
			a.journal.fault("process %d: %v", a.journal.who, err)
		}
		for _, name := range names { // it is unknown whether it was applied
			a.journal.eased(h.forget(name))
		}
		return
	}
	for _, name := range names {
		old := h.forget(name)
		shared := *old
		shared.Mode, shared.From = locks.ModeShared, 0
		a.journal.eased(old)
		h.claims = append(h.claims, &shared)
		h.own = append(h.own, locks.Item{Name: name, Mode: locks.ModeShared})
	}
	a.touch(stack)
}

// forget ends a hold's claim to a resource.
func (h *having) forget(name string) (old *claim) {
	for i := len(h.claims) - 1; i >= 0; i-- {
		if h.claims[i].Resource == name {
			old = h.claims[i]
			h.claims = append(h.claims[:i:i], h.claims[i+1:]...)
		}
	}
	for i := len(h.own) - 1; i >= 0; i-- {
		if h.own[i].Name == name {
			h.own = append(h.own[:i:i], h.own[i+1:]...)
		}
	}
	return old
}

// verify asks Redis for the content of a hold.
func (a *actor) verify(ctx context.Context, h *having) {
	for _, c := range h.claims {
		lock, err := a.client.Space().HeldBy(ctx, c.Resource)
		if err != nil {
			if ctx.Err() == nil {
				a.journal.fault("process %d: %v", a.journal.who, err)
			}
			return
		}
		found := false
		for _, by := range lock.Holds {
			found = found || by.ID == c.By
		}
		if !found && h.hold.Context().Err() == nil {
			a.journal.fault("process %d: redis does not have what is at work here: %s; it has %+v", a.journal.who, c, lock)
		}
	}
}

// rounds repeats visits until ctx ends.
func (a *actor) rounds(ctx context.Context) {
	for ctx.Err() == nil {
		a.visit(context.WithoutCancel(ctx), nil) // ends in order
		time.Sleep(time.Duration(a.rand.IntN(3000)) * time.Microsecond)
	}
}

// A cast is a group of actors that act at the same time.
type cast []*actor

// act runs rounds of all actors until ctx ends.
func (c cast) act(ctx context.Context) {
	var running sync.WaitGroup
	for _, a := range c {
		running.Go(func() { a.rounds(ctx) })
	}
	running.Wait()
}

// span is how long a test acts: short in a plain run, up to a minute in a soak.
func span(short time.Duration) time.Duration {
	return min(short*time.Duration(locks.Soak()), time.Minute)
}

// atLeast returns a context that ends after d if enough has happened by then. A busy machine may
// stall for seconds: then it ends once enough has happened, and a minute later at the latest.
func atLeast(t *testing.T, d time.Duration, enough func() bool) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d+time.Minute)
	t.Cleanup(cancel)
	time.AfterFunc(d, func() {
		for !enough() && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	})
	return ctx
}

// emptied waits until a space has no hold or wait, and returns how long that took.
func emptied(t *testing.T, c *locks.Client) time.Duration {
	t.Helper()
	began := time.Now()
	eventually(t, "all is given back", func() bool {
		listing, err := c.Space().Read(t.Context())
		return err == nil && len(listing.Holds)+len(listing.Waits) == 0
	})
	return time.Since(began)
}
