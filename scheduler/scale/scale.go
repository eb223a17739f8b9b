// Package scale measures what the scripts of packages locks and ledger cost Redis in a namespace of the size that lockstep
// is made for: 100,000 holds, 10,000 waits and 100,000 outstanding runs. Redis runs one script at a time, so that a script
// that takes long delays every other client.
package scale

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"lockstep/scheduler/ledger"
)

// Longest is how long one script may keep Redis busy.
const Longest = 5 * time.Millisecond

// Size is how much a namespace has when its scripts are measured.
type Size struct{ Holds, Waits, Runs int }

// Full is the size that lockstep is made for.
var Full = Size{Holds: 100_000, Waits: 10_000, Runs: 100_000}

// Cost is what one script has cost in its dearest use.
type Cost struct {
	Script string // its package and name
	Use    string // the use in which it was the slowest
	Took   time.Duration
}

// rounds is how often each use is repeated: the fastest time of a call is what it costs, the rest is the machine's noise. A
// use that seems to take too long is repeated up to moreRounds times.
const (
	rounds     = 5
	moreRounds = 20
)

// Measure fills a namespace and returns what each script costs, the slowest first. rdb must have a Redis to itself; its
// log of slow commands is used.
func Measure(ctx context.Context, rdb *redis.Client, namespace string, size Size) ([]Cost, error) {
	names := make(map[string]string)
	for hash, name := range locks.ScriptNames() {
		names[hash] = "locks/" + name
	}
	for hash, name := range ledger.ScriptNames() {
		names[hash] = "ledger/" + name
	}
	client, err := locks.Open(ctx, rdb, locks.Options{Namespace: namespace, Name: "scale", Grace: -1})
	if err != nil {
		return nil, err
	}
	waiting, stop := context.WithCancel(ctx)
	m := &meter{rdb: rdb, locks: client, ledger: ledger.New(client.Redis(), client.Space()), names: names,
		costs: make(map[string]Cost), size: size, job: newJob("scale")}
	defer func() {
		stop()
		m.waits.Wait()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_ = client.Close(closing) // the server is the caller's to end
	}()
	if err := m.fill(ctx, waiting); err != nil {
		return nil, fmt.Errorf("fill the namespace: %w", err)
	}
	for _, set := range [][2]string{{"slowlog-log-slower-than", "0"}, {"slowlog-max-len", "50000"}} {
		if err := rdb.ConfigSet(ctx, set[0], set[1]).Err(); err != nil {
			return nil, err
		}
	}
	for _, use := range m.uses() {
		if err := m.measure(ctx, use); err != nil {
			return nil, fmt.Errorf("%s: %w", use.name, err)
		}
	}
	costs := make([]Cost, 0, len(m.costs))
	for _, cost := range m.costs {
		costs = append(costs, cost)
	}
	slices.SortFunc(costs, func(a, b Cost) int { return cmp.Or(cmp.Compare(b.Took, a.Took), cmp.Compare(a.Script, b.Script)) })
	return costs, nil
}

type meter struct {
	rdb    *redis.Client
	locks  *locks.Client
	ledger *ledger.Ledger
	names  map[string]string // of scripts, by hash
	costs  map[string]Cost   // by script
	size   Size
	job    *jobs.Job
	waits  sync.WaitGroup
	last   atomic.Int64 // the number of the last request
	crowd  *locks.Hold  // one of 1,000 that share a resource
}

func newJob(name string) *jobs.Job {
	return &jobs.Job{
		Name: name, Every: time.Second, Queue: "default", Command: []string{"true"},
		Overlap: jobs.OverlapAllow, MaxQueued: 10, OnMissed: jobs.MissedAll, OnCrash: jobs.CrashRerun, MaxCrashes: 3,
		Retry:   jobs.Retry{Max: 3, Backoff: jobs.BackoffFixed, Initial: time.Second},
		History: jobs.History{Runs: 10_000, For: time.Hour},
	}
}

// many calls f for each of n numbers, some at the same time.
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
	err = many(ctx, m.size.Runs, func(ctx context.Context, _ int) error { _, err := m.enqueue(ctx, "null", 0); return err })
	if err != nil {
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
	id := "r" + strconv.FormatInt(m.last.Add(1), 10)
	return m.ledger.Enqueue(ctx, ledger.Request{Job: m.job, ID: id, Args: json.RawMessage(args), Trigger: ledger.ByRequest, In: in})
}

// use is one way to use some scripts. What it does beforehand is not measured.
type use struct {
	name   string
	before func(ctx context.Context) error // may be nil
	run    func(ctx context.Context) error
}

// measure repeats a use. Its calls of a script come in the same order in each round, so that the first of one round is
// compared with the first of the others, and so on: of each, the fastest counts, and of these the slowest.
func (m *meter) measure(ctx context.Context, u use) error {
	best := make(map[string][]time.Duration)
	for round := 0; round <= rounds || round <= moreRounds && slowestOf(best) > Longest; round++ {
		if u.before != nil {
			if err := u.before(ctx); err != nil {
				return err
			}
		}
		if err := m.rdb.Do(ctx, "SLOWLOG", "RESET").Err(); err != nil {
			return err
		}
		if err := u.run(ctx); err != nil {
			return err
		}
		entries, err := m.rdb.SlowLogGet(ctx, -1).Result()
		if err != nil {
			return err
		}
		if round == 0 { // Redis may not have known the scripts
			continue
		}
		calls := make(map[string][]time.Duration)
		for _, entry := range slices.Backward(entries) { // the last one is the oldest
			if len(entry.Args) > 1 && strings.EqualFold(entry.Args[0], "evalsha") {
				if name := m.names[entry.Args[1]]; name != "" {
					calls[name] = append(calls[name], entry.Duration)
				}
			}
		}
		if round == 1 {
			best = calls
			continue
		}
		for name, fastest := range best {
			fastest = fastest[:min(len(fastest), len(calls[name]))]
			for i := range fastest {
				fastest[i] = min(fastest[i], calls[name][i])
			}
			best[name] = fastest
		}
	}
	for name, calls := range best {
		if len(calls) == 0 { // not in every round
			continue
		}
		if took := slices.Max(calls); took > m.costs[name].Took {
			m.costs[name] = Cost{name, u.name, took}
		}
	}
	return nil
}

func slowestOf(scripts map[string][]time.Duration) (slowest time.Duration) {
	for _, calls := range scripts {
		for _, took := range calls {
			slowest = max(slowest, took)
		}
	}
	return slowest
}

func named(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + strconv.Itoa(i)
	}
	return names
}

// try acquires a bundle that is free and releases it.
func (m *meter) try(ctx context.Context, parts ...locks.Part) error {
	hold, err := m.locks.Acquire(ctx, parts...)
	if err != nil {
		return err
	}
	return hold.Release()
}

func (m *meter) uses() []use {
	space := m.locks.Space()
	var runs []*ledger.Enqueued
	some := func(n int, args string, in time.Duration) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			runs = nil
			for range n {
				run, err := m.enqueue(ctx, args, in)
				if err != nil {
					return err
				}
				runs = append(runs, run)
			}
			return nil
		}
	}
	big := `"` + string(slices.Repeat([]byte("x"), 100<<10)) + `"`
	act := ledger.Act{Who: "scale", What: "measure", On: m.job.Name}
	var cursor time.Time
	return []use{
		{"a lock", nil, func(ctx context.Context) error { return m.try(ctx, locks.Exclusive("free")) }},
		{"a bundle of 1,000", nil, func(ctx context.Context) error { return m.try(ctx, locks.Exclusive(named("free:", 1000)...)) }},
		{"a bundle of 1,000, shared", nil, func(ctx context.Context) error { return m.try(ctx, locks.Shared(named("free:", 1000)...)) }},
		{"locks of 64 callers", nil, func(ctx context.Context) error {
			return many(ctx, 512, func(ctx context.Context, i int) error { return m.try(ctx, locks.Exclusive("free:"+strconv.Itoa(i))) })
		}},
		{"a wait behind 5,000 others that is given up", nil, func(ctx context.Context) error {
			_, err := m.locks.Acquire(ctx, locks.Exclusive("held:0"), locks.Wait(time.Millisecond))
			if !errors.Is(err, locks.ErrBusy) {
				return err
			}
			return nil
		}},
		{"all holds and waits", nil, func(ctx context.Context) error { _, err := space.Read(ctx); return err }},
		{"all sessions", nil, func(ctx context.Context) error { _, _, err := space.Sessions(ctx); return err }},
		{"who shares a lock", nil, func(ctx context.Context) error { _, err := space.HeldBy(ctx, "crowd"); return err }},
		{"a lock of 1,000 is asked for", nil, func(ctx context.Context) error {
			_, err := space.Revoke(ctx, "crowd", m.crowd.Token(), locks.Ask, locks.Revocation{By: "scale"})
			return err
		}},
		{"a declaration", nil, func(ctx context.Context) error {
			_, err := m.locks.Declare(ctx, "permits", locks.PermitLimit{Permits: 10, Version: time.Now().UnixMilli()})
			return err
		}},
		{"a new session of another client", nil, func(ctx context.Context) error {
			other, err := locks.Open(ctx, m.rdb, locks.Options{Namespace: namespaceOf(space), Name: "other"})
			if err != nil {
				return err
			}
			return other.Close(ctx)
		}},
		{"a session with 1,000 holds ends", nil, func(ctx context.Context) error {
			other, err := locks.Open(ctx, m.rdb, locks.Options{Namespace: namespaceOf(space), Name: "other"})
			if err != nil {
				return err
			}
			err = many(ctx, 1000, func(_ context.Context, i int) error {
				_, err := other.Acquire(ctx, locks.Exclusive("other:"+strconv.Itoa(i)))
				return err
			})
			return errors.Join(err, other.Close(ctx))
		}},
		{"a request", nil, some(1, "null", 0)},
		{"requests of 100 KiB", nil, some(10, big, time.Hour)},
		{"outstanding runs", nil, func(ctx context.Context) error { _, err := m.ledger.Outstanding(ctx, "", 5000); return err }},
		{"100 claims and finishes", some(ledger.Together, "null", 0), func(ctx context.Context) error { return m.work(ctx, runs) }},
		{"a run is found", some(1, "null", 0), func(ctx context.Context) error {
			_, _, err := m.ledger.Find(ctx, runs[0].Run)
			return err
		}},
		{"a run is canceled", some(1, "null", 0), func(ctx context.Context) error {
			_, err := m.ledger.Cancel(ctx, runs[0].Run, m.job, act)
			return err
		}},
		{"runs of 100 KiB end", some(20, big, 0), func(ctx context.Context) error { return m.work(ctx, runs) }},
		{"a history", nil, func(ctx context.Context) error { _, err := m.ledger.History(ctx, m.job.Name, 1000); return err }},
		{"deliveries are confirmed", some(500, "null", 0), func(ctx context.Context) error {
			var due []ledger.Due
			for _, run := range runs {
				due = append(due, run.Due...)
			}
			return m.ledger.Confirm(ctx, due)
		}},
		{"a poll", nil, func(ctx context.Context) error {
			_, err := m.ledger.Poll(ctx, m.locks.Session(), "scale", 0)
			return err
		}},
		{"a sweep of 100", nil, func(ctx context.Context) error {
			_, err := m.ledger.Sweep(ctx, ledger.SweepLimits{Most: 100, Unconfirmed: time.Millisecond, LookUp: time.Millisecond})
			return err
		}},
		{"as many ticks as a decision has", nil, func(ctx context.Context) error {
			job := newJob("ticks")
			registered, err := m.ledger.Register(ctx, "scale", []*jobs.Job{job})
			if err != nil {
				return err
			}
			// As if no worker had been up for an hour.
			cursor = registered.Now.Truncate(time.Second).Add(-time.Hour)
			key := "{" + namespaceOf(space) + "}:cursor"
			if err := m.rdb.HSet(ctx, key, job.Name, cursor.UnixMilli()).Err(); err != nil {
				return err
			}
			d := ledger.Decision{Job: job, Seen: cursor, By: m.locks.Session()}
			for i := range ledger.MaxTicks {
				d.Ticks = append(d.Ticks, ledger.Tick{At: cursor.Add(time.Duration(i+1) * time.Second), Verdict: ledger.CatchUp})
			}
			d.Cursor = d.Ticks[len(d.Ticks)-1].At
			return m.ledger.Create(ctx, []ledger.Decision{d})[0].Err
		}},
		{"as many definitions as are registered at a time", nil, func(ctx context.Context) error {
			definitions := make([]*jobs.Job, ledger.RegisterBatch)
			for i := range definitions {
				definitions[i] = newJob("job" + strconv.Itoa(i))
			}
			_, err := m.ledger.Register(ctx, "scale", definitions)
			return err
		}},
		{"a span of ticks is skipped", nil, func(ctx context.Context) error {
			_, _, err := m.ledger.Skip(ctx, newJob("ticks"), cursor, cursor.Add(time.Hour), act)
			return err
		}},
		{"a queue is paused and goes on", nil, func(ctx context.Context) error {
			if err := m.ledger.QueuePaused(ctx, "default"); err != nil {
				return err
			}
			_, err := m.ledger.QueueResumed(ctx, "default")
			return err
		}},
	}
}

// namespaceOf returns the namespace in the hash tag of a space's keys.
func namespaceOf(space *locks.Space) string {
	key := space.Keys()[0]
	return key[1 : len(key)-len("}:exp")]
}

// work claims runs together and finishes them together.
func (m *meter) work(ctx context.Context, runs []*ledger.Enqueued) error {
	var claims []ledger.Claim
	for _, run := range runs {
		request, err := m.locks.Begin()
		if err != nil {
			return err
		}
		claims = append(claims, ledger.Claim{Request: request, Due: run.Due[0]})
	}
	var finishes []ledger.Finish
	for i, claimed := range m.ledger.ClaimAll(ctx, claims, time.Second) {
		if claimed == nil || claimed.Outcome != ledger.Granted {
			return fmt.Errorf("claim of %s: %+v", runs[i].Run, claimed)
		}
		hold := claims[i].Request.Granted(ctx, claimed.Grant())
		hold.Freeing()
		defer hold.Released()
		finishes = append(finishes, ledger.Finish{Run: runs[i].Run, Job: m.job, Token: hold.Token(), Hold: hold.ID(), Outcome: ledger.Success})
	}
	for i, finished := range m.ledger.FinishAll(ctx, finishes) {
		if finished == nil {
			return fmt.Errorf("finish of %s was not answered", runs[i].Run)
		}
	}
	return nil
}
