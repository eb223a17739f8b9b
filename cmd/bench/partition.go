package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/locks/redistest"
)

const (
	shortLease = 3 * time.Second // so that losing it does not take long
	// A holder that has not learned of the loss by then never does.
	patience = 6 * shortLease
)

// silence is one trial. Counted from the moment at which the holder's connections fell silent, it
// is when the holder learned that it must stop, and when another client got its lock.
type silence struct{ told, passed time.Duration }

func measurePartition(ctx context.Context, set settings, r *result) error {
	trials := 8
	if set.short {
		trials = 4
	}
	set.step("%d trials for each library at the same time, some %s", trials, patience)
	// They mostly wait, so they can run at the same time.
	all := make([][]silence, len(peers))
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range peers {
		group.Go(func() (err error) {
			all[i], err = silences(ctx, p, trials)
			if err != nil {
				err = fmt.Errorf("%s: %w", p.name, err)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	r.note("lease %s, %d trials; seconds since the silence: the holder learns that it must stop, another client has the lock", shortLease, trials)
	r.note("overlap: the time in which both work; margin: what the holder has for stopping; both of the worst trial")
	r.Columns = []string{"library", "told, from", "to", "passed on, from", "to", "overlap", "margin"}
	for i, p := range peers {
		var told, passed []float64
		worst := patience
		for _, t := range all[i] {
			told = append(told, t.told.Seconds())
			passed = append(passed, t.passed.Seconds())
			worst = min(worst, t.passed-t.told)
		}
		r.row(p.name, slices.Min(told), slices.Max(told), slices.Min(passed), slices.Max(passed),
			max(0, -worst.Seconds()), max(0, worst.Seconds()))
		if slices.Max(told) >= patience.Seconds() {
			r.note("%s: the holder learned nothing within %s", p.name, patience)
		}
		if p.name == ours {
			r.atMost(0, max(0, -worst.Seconds()), "seconds in which two hold the lock")
		}
	}
	return nil
}

// silences makes trials at the same time; their silences begin at points spread over a renewal
// interval.
func silences(ctx context.Context, p peer, trials int) ([]silence, error) {
	s, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	rival, err := p.open(ctx, s.addr, shortLease)
	if err != nil {
		return nil, err
	}
	defer rival.close(context.WithoutCancel(ctx))
	all := make([]silence, trials)
	group, ctx := errgroup.WithContext(ctx)
	for i := range all {
		group.Go(func() (err error) {
			// rueidislock has the longest interval: it renews every half of the lease.
			after := shortLease/2 + shortLease/2*time.Duration(i)/time.Duration(trials)
			all[i], err = silenceAfter(ctx, s, p, rival, fmt.Sprintf("bill:%d", i), after)
			return err
		})
	}
	return all, group.Wait()
}

// silenceAfter lets a holder work undisturbed for some time, and then cuts it off.
func silenceAfter(
	ctx context.Context, s *server, p peer, rival locker, name string, peace time.Duration,
) (trial silence, err error) {
	proxy, err := redistest.NewProxy(ctx, "tcp", s.addr)
	if err != nil {
		return trial, err
	}
	addr, err := addrOf(proxy.URL())
	if err != nil {
		proxy.Close()
		return trial, err
	}
	holder, err := p.open(ctx, addr, shortLease)
	if err != nil {
		proxy.Close()
		return trial, err
	}
	// Without the proxy, commands fail at once, so that nothing below has to wait for them.
	defer func() { proxy.Close(); _ = holder.close(context.WithoutCancel(ctx)) }()

	got, err := holder.lock(ctx, name)
	if err != nil {
		return trial, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer proxy.Close()
	defer cancel()

	told := make(chan time.Time, 1)
	running.Go(func() { told <- toldAt(ctx, got) })
	type grant struct {
		at  time.Time
		err error
	}
	passed := make(chan grant, 1)
	running.Go(func() {
		_, err := rival.lock(ctx, name)
		passed <- grant{time.Now(), err}
	})
	if !pause(ctx, peace) {
		return trial, context.Cause(ctx)
	}
	if len(told) > 0 || len(passed) > 0 {
		return trial, errors.New("the lock was lost before anything was broken")
	}
	proxy.Set(redistest.Faults{DropRequests: true, DropReplies: true})
	silent := time.Now()
	limit := time.After(patience)
	trial = silence{patience, patience}
	for range 2 {
		select {
		case at := <-told:
			trial.told = at.Sub(silent)
		case g := <-passed:
			if g.err != nil {
				return trial, g.err
			}
			trial.passed = g.at.Sub(silent)
		case <-limit:
			return trial, nil
		case <-ctx.Done():
			return trial, context.Cause(ctx)
		}
	}
	return trial, nil
}

// toldAt returns when the holder of a lock learned that it must stop, or that ctx has ended.
func toldAt(ctx context.Context, got held) time.Time {
	if got.extend == nil {
		select {
		case <-got.ctx.Done():
		case <-ctx.Done():
		}
		return time.Now()
	}
	// The loop that a caller writes if the library has none.
	every := shortLease / 3
	for pause(ctx, every) {
		try, cancel := context.WithTimeout(ctx, every)
		err := got.extend(try)
		cancel()
		if err != nil {
			break
		}
	}
	return time.Now()
}
