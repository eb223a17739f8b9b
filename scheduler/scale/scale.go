// Package scale measures what the scripts of packages locks, ledger and queue cost Redis in a
// namespace of the size that lockstep is made for: 100,000 holds, 10,000 waits and 100,000
// outstanding runs. Redis runs one script at a time, so a slow script delays every other client.
package scale

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

// Longest is how long one script may keep Redis busy.
const Longest = 5 * time.Millisecond

// Size is the number of objects in a namespace when its scripts are measured.
type Size struct{ Holds, Waits, Runs int }

// Full is the size that lockstep is made for.
var Full = Size{Holds: 100_000, Waits: 10_000, Runs: 100_000}

// Cost is the time that one script took in its slowest use.
type Cost struct {
	Script string // its package and name
	Use    string // the use in which it was the slowest
	Took   time.Duration
}

// Each use is measured in several rounds: the fastest time of a call is its cost, the rest is the
// machine's noise. A use that seems too slow is repeated up to moreRounds times.
const (
	rounds        = 5
	compareRounds = 3
	moreRounds    = 30
)

// Growth is the cost of one script in one use, in a small and in a large namespace.
type Growth struct {
	Script, Use  string
	Small, Large time.Duration
}

// Grows reports whether a script costs clearly more in the large namespace than a script for which
// the work does not depend on the size: more than twice as much plus 1 ms.
func (g Growth) Grows() bool { return g.Large > 2*g.Small+time.Millisecond }

// Names returns the scripts that are known by name, as package/name. It includes those that
// [Measure] does not reach.
func Names() []string { return slices.Sorted(maps.Values(scriptNames())) }

func scriptNames() map[string]string {
	names := make(map[string]string)
	for of, scripts := range map[string]map[string]string{
		"locks/": space.ScriptNames(), "ledger/": ledger.ScriptNames(), "queue/": queue.ScriptNames(),
	} {
		for hash, name := range scripts {
			names[hash] = of + name
		}
	}
	return names
}

// Measure fills a namespace and returns the cost of each script, the slowest first. rdb must have a
// Redis to itself; Measure uses its log of slow commands.
func Measure(ctx context.Context, rdb *redis.Client, namespace string, size Size) (costs []Cost, err error) {
	slowest := make(map[string]Cost)
	err = measure(ctx, rdb, []*meter{{namespace: namespace, size: size}}, rounds, func(g Growth) bool { return g.Large > Longest }, func(g Growth) {
		if g.Large > slowest[g.Script].Took {
			slowest[g.Script] = Cost{g.Script, g.Use, g.Large}
		}
	})
	if err != nil {
		return nil, err
	}
	costs = slices.Collect(maps.Values(slowest))
	slices.SortFunc(costs, func(a, b Cost) int { return cmp.Or(cmp.Compare(b.Took, a.Took), cmp.Compare(a.Script, b.Script)) })
	return costs, nil
}

// Compare fills a small and a large namespace of one Redis and returns the cost of each script in
// both, in each use. The measurements of both alternate, so that other work of the machine affects
// both.
func Compare(ctx context.Context, rdb *redis.Client, namespace string, small, large Size) (growths []Growth, err error) {
	meters := []*meter{{namespace: namespace + "-small", size: small}, {namespace: namespace + "-large", size: large}}
	err = measure(ctx, rdb, meters, compareRounds, Growth.Grows, func(g Growth) { growths = append(growths, g) })
	return growths, err
}

// measure measures each use with each meter, the last of which has the large namespace. It repeats
// a use more often when the use seems to be slow.
func measure(ctx context.Context, rdb *redis.Client, meters []*meter, rounds int, slow func(Growth) bool, report func(Growth)) error {
	waiting, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		for _, m := range meters {
			m.waits.Wait()
			for _, client := range []*locks.Client{m.locks, m.calm} {
				if client != nil {
					_ = client.Close(closing) // the caller stops the server
				}
			}
		}
	}()
	var uses [][]use
	for _, m := range meters {
		if err := m.open(ctx, rdb); err != nil {
			return err
		}
		if err := m.fill(ctx, waiting); err != nil {
			return fmt.Errorf("fill the namespace: %w", err)
		}
		uses = append(uses, m.uses())
	}
	for _, set := range [][2]string{{"slowlog-log-slower-than", "0"}, {"slowlog-max-len", "50000"}} {
		if err := rdb.ConfigSet(ctx, set[0], set[1]).Err(); err != nil {
			return err
		}
	}
	for i, use := range uses[0] {
		best := make([]map[string][]time.Duration, len(meters))
		growths := func() (growths []Growth) {
			for script, calls := range best[len(best)-1] {
				// else it was not called in every round
				if small := best[0][script]; len(calls) > 0 && len(small) > 0 {
					growths = append(growths, Growth{script, use.name, slices.Max(small), slices.Max(calls)})
				}
			}
			return growths
		}
		for n := 0; n <= rounds || n <= moreRounds && slices.ContainsFunc(growths(), slow); n++ {
			for k, m := range meters {
				calls, err := m.round(ctx, uses[k][i])
				if err != nil {
					return fmt.Errorf("%s: %w", use.name, err)
				}
				if n > 0 { // in the first round, Redis may not have known the scripts
					best[k] = fastest(best[k], calls)
				}
			}
		}
		for _, growth := range growths() {
			report(growth)
		}
	}
	return nil
}

type meter struct {
	namespace string
	// of a namespace in which nothing waits, so that scripts take their fast paths
	calm   *locks.Client
	queue  *queue.Client
	told   *ledger.Ledger // reads news
	rdb    *redis.Client
	locks  *locks.Client
	ledger *ledger.Ledger
	names  map[string]string // of scripts, by hash
	size   Size
	job    *jobs.Job
	waits  sync.WaitGroup
	last   atomic.Int64 // the number of the last request
	crowd  *locks.Hold  // one of 1,000 that share a resource

	// a job with many outstanding ticks, which later ones replace, and the last of them
	piled   *jobs.Job
	piledTo time.Time
}

func (m *meter) open(ctx context.Context, rdb *redis.Client) (err error) {
	m.rdb, m.names, m.job = rdb, scriptNames(), newJob("scale")
	if m.locks, err = locks.Open(ctx, rdb, locks.Options{Namespace: m.namespace, Name: "scale", Grace: -1}); err != nil {
		return err
	}
	if m.calm, err = locks.Open(ctx, rdb, locks.Options{Namespace: m.namespace + "-calm", Name: "scale", Grace: -1}); err != nil {
		return err
	}
	m.ledger = ledger.New(m.locks.Extension().Redis(), m.locks.Space())
	m.told = ledger.New(m.locks.Extension().Redis(), m.locks.Space())
	m.told.Remember()
	m.queue, err = queue.New(rdb, m.namespace)
	return err
}

func newJob(name string) *jobs.Job {
	return &jobs.Job{
		Name: name, Every: time.Second, Queue: "default", Command: []string{"true"},
		Overlap: jobs.OverlapAllow, MaxQueued: 10, OnMissed: jobs.MissedAll, OnCrash: jobs.CrashRerun, MaxCrashes: 3,
		Retry:   jobs.Retry{Max: 3, Backoff: jobs.BackoffFixed, Initial: time.Second},
		History: jobs.History{Runs: 10_000, For: time.Hour},
	}
}

// many calls f for each of n numbers, several at the same time.
func many(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range 128 {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func (m *meter) fill(ctx, waiting context.Context) error {
	err := many(ctx, m.size.Holds, func(_ context.Context, i int) error {
		_, err := m.locks.Acquire(ctx, locks.Exclusive("held:"+strconv.Itoa(i)), locks.MaxHold(time.Hour))
		return err
	})
	if err != nil {
		return err
	}
	for range 1000 {
		if m.crowd, err = m.locks.Acquire(ctx, locks.Shared("crowd")); err != nil {
			return err
		}
	}
	if _, err := m.ledger.Register(ctx, "scale", []*jobs.Job{m.job}); err != nil {
		return err
	}
	for range 10 { // a history
		var ended []*ledger.Enqueued
		for range ledger.MaxTogether {
			run, err := m.enqueue(ctx, "null", 0)
			if err != nil {
				return err
			}
			ended = append(ended, run)
		}
		if err := m.work(ctx, m.job, ended, ""); err != nil {
			return err
		}
	}
	err = many(ctx, m.size.Runs, func(ctx context.Context, _ int) error { _, err := m.enqueue(ctx, "null", 0); return err })
	if err != nil {
		return err
	}
	m.piled = newJob("piled")
	m.piled.Overlap = jobs.OverlapReplace
	if m.piledTo, err = m.cursorOf(ctx, m.piled, 5*24*time.Hour); err != nil {
		return err
	}
	if err := m.pile(ctx, m.size.Runs); err != nil {
		return err
	}
	queued := make(chan struct{}, m.size.Waits)
	for i := range m.size.Waits {
		m.waits.Go(func() { // half of them want one lock, the others two each of all
			names := []string{"held:0", "held:" + strconv.Itoa(1+i%100)}
			if i%2 == 0 {
				names = []string{"held:" + strconv.Itoa(i%m.size.Holds), "held:" + strconv.Itoa((i+1)%m.size.Holds)}
			}
			_, _ = m.locks.Acquire(waiting, locks.Exclusive(names...), // it ends with waiting
				locks.OnWait(func(*locks.BusyError) { queued <- struct{}{} }))
		})
	}
	for range m.size.Waits {
		select {
		case <-queued:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (m *meter) enqueue(ctx context.Context, args string, in time.Duration) (*ledger.Enqueued, error) {
	return m.enqueueOf(ctx, m.job, args, in)
}

func (m *meter) enqueueOf(ctx context.Context, job *jobs.Job, args string, in time.Duration) (*ledger.Enqueued, error) {
	id := "r" + strconv.FormatInt(m.last.Add(1), 10)
	return m.ledger.Enqueue(ctx, ledger.Request{Job: job, ID: id, Args: json.RawMessage(args), Trigger: ledger.TriggerEnqueue, In: in})
}

// cursorOf registers a job and sets its cursor back.
func (m *meter) cursorOf(ctx context.Context, job *jobs.Job, back time.Duration) (time.Time, error) {
	registered, err := m.ledger.Register(ctx, "scale", []*jobs.Job{job})
	if err != nil {
		return time.Time{}, err
	}
	cursor := registered.Now.Truncate(time.Second).Add(-back)
	return cursor, m.rdb.HSet(ctx, "{"+m.namespace+"}:cursor", job.Name, cursor.UnixMilli()).Err()
}

// ticksOf makes a decision about the next n ticks of a job after its cursor.
func (m *meter) ticksOf(job *jobs.Job, cursor time.Time, n int, verdict ledger.Verdict) ledger.Decision {
	d := ledger.Decision{Job: job, Seen: cursor, Cursor: cursor.Add(time.Duration(n) * time.Second), By: m.locks.Session()}
	for i := range n {
		d.Ticks = append(d.Ticks, ledger.Tick{At: cursor.Add(time.Duration(i+1) * time.Second), Verdict: verdict})
	}
	return d
}

// pile makes n further outstanding ticks of the piled job, behind the others.
func (m *meter) pile(ctx context.Context, n int) error {
	for n > 0 {
		d := m.ticksOf(m.piled, m.piledTo, min(n, ledger.MaxTicks), ledger.VerdictCatchUp)
		if created := m.ledger.Create(ctx, []ledger.Decision{d})[0]; len(created.Due) != len(d.Ticks) {
			return fmt.Errorf("%d ticks made %d runs: %w", len(d.Ticks), len(created.Due), created.Err)
		}
		m.piledTo, n = d.Cursor, n-len(d.Ticks)
	}
	return nil
}

// use is one way to use some scripts. The time of before is not measured.
type use struct {
	name   string
	before func(ctx context.Context) error // may be nil
	run    func(ctx context.Context) error
}

// round performs a use once, and returns how long each call of each script took, in their order.
func (m *meter) round(ctx context.Context, u use) (map[string][]time.Duration, error) {
	if u.before != nil {
		if err := u.before(ctx); err != nil {
			return nil, err
		}
	}
	if err := m.rdb.Do(ctx, "SLOWLOG", "RESET").Err(); err != nil {
		return nil, err
	}
	if err := u.run(ctx); err != nil {
		return nil, err
	}
	entries, err := m.rdb.SlowLogGet(ctx, -1).Result()
	if err != nil {
		return nil, err
	}
	calls := make(map[string][]time.Duration)
	for _, entry := range slices.Backward(entries) { // the last one is the oldest
		if len(entry.Args) > 1 && strings.EqualFold(entry.Args[0], "evalsha") {
			if name := m.names[entry.Args[1]]; name != "" {
				calls[name] = append(calls[name], entry.Duration)
			}
		}
	}
	return calls, nil
}

// fastest merges the calls of one more round of a use into the fastest ones of the rounds before. A
// script's calls come in the same order in each round, so the first of one round is compared with
// the first of the others, and so on.
func fastest(best, calls map[string][]time.Duration) map[string][]time.Duration {
	if best == nil {
		return calls
	}
	for name, before := range best {
		before = before[:min(len(before), len(calls[name]))]
		for i := range before {
			before[i] = min(before[i], calls[name][i])
		}
		best[name] = before
	}
	return best
}
