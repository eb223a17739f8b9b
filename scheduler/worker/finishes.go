package worker

import (
	"context"
	"sync"

	"lockstep/scheduler/ledger"
)

// finishes records the ends of attempts. While no record is in flight, a caller sends its end at
// once; the ends that arrive in the meantime are collected and sent together: the more attempts
// end, the fewer round trips each of them needs (group commit). The zero value is ready.
type finishes struct {
	mu      sync.Mutex
	under   bool         // a goroutine is sending; guarded by mu
	waiting []*finishing // guarded by mu
}

// finishing is an end that waits to be recorded with others.
type finishing struct {
	finish   ledger.Finish
	finished *ledger.Finished // nil when no reply arrived
	done     chan struct{}    // closed when finished is final
}

// send records the end of an attempt that succeeded. It returns nil when no reply arrived: then the
// caller must send it again. spawn starts a goroutine that the worker waits for.
func (f *finishes) send(ctx context.Context, l *ledger.Ledger, finish ledger.Finish, spawn func(func())) *ledger.Finished {
	f.mu.Lock()
	if f.under {
		one := &finishing{finish: finish, done: make(chan struct{})}
		f.waiting = append(f.waiting, one)
		f.mu.Unlock()
		<-one.done // for as long as two calls take at most
		return one.finished
	}
	f.under = true
	f.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, callLimit)
	finished, _ := l.Finish(call, finish) // nil with an error
	cancel()
	if some := f.take(); len(some) > 0 {
		spawn(func() { f.deliver(ctx, l, some) })
	}
	return finished
}

// deliver sends the collected ends until none are left.
func (f *finishes) deliver(ctx context.Context, l *ledger.Ledger, some []*finishing) {
	for ; len(some) > 0; some = f.take() {
		batch := make([]ledger.Finish, len(some))
		for i, one := range some {
			batch[i] = one.finish
		}
		call, cancel := context.WithTimeout(ctx, callLimit)
		finished := l.FinishAll(call, batch)
		cancel()
		for i, one := range some {
			one.finished = finished[i]
			close(one.done)
		}
	}
}

// take returns the ends to send next. When it returns none, no goroutine is sending any more.
func (f *finishes) take() []*finishing {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(len(f.waiting), ledger.MaxTogether)
	some := f.waiting[:n:n]
	f.waiting = f.waiting[n:]
	f.under = n > 0
	return some
}
