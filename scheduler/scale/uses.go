package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

func named(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + strconv.Itoa(i)
	}
	return names
}

// try acquires a free bundle and releases it.
func (m *meter) try(ctx context.Context, parts ...locks.Part) error {
	hold, err := m.locks.Acquire(ctx, parts...)
	if err != nil {
		return err
	}
	return hold.Release()
}

func (m *meter) uses() []use {
	return slices.Concat(m.usesOfLocks(), m.usesOfRuns(), m.usesOfOperators())
}

func (m *meter) usesOfLocks() []use {
	space := m.locks.Space()
	var hold *locks.Hold
	wide := func(mode func(...string) locks.Part) func(ctx context.Context) error {
		return func(ctx context.Context) (err error) {
			hold, err = m.locks.Acquire(ctx, mode(named("free:", 1000)...))
			return err
		}
	}
	return []use{
		{"a lock", nil, func(ctx context.Context) error { return m.try(ctx, locks.Exclusive("free")) }},
		{"a bundle of 1,000", nil, func(ctx context.Context) error { return m.try(ctx, locks.Exclusive(named("free:", 1000)...)) }},
		{"a bundle of 1,000, shared", nil, func(ctx context.Context) error { return m.try(ctx, locks.Shared(named("free:", 1000)...)) }},
		{"locks of 64 callers", nil, func(ctx context.Context) error {
			return many(ctx, 512, func(ctx context.Context, i int) error { return m.try(ctx, locks.Exclusive("free:"+strconv.Itoa(i))) })
		}},
		{"a wait behind 5,000 others that is abandoned", nil, func(ctx context.Context) error {
			_, err := m.locks.Acquire(ctx, locks.Exclusive("held:0"), locks.Wait(time.Millisecond))
			if !errors.Is(err, locks.ErrBusy) {
				return err
			}
			return nil
		}},
		{"all holds and waits", nil, func(ctx context.Context) error { _, err := space.Read(ctx); return err }},
		{"a page of what has ended", nil, func(ctx context.Context) error {
			_, err := space.Past(ctx, "", time.Time{})
			return err
		}},
		{"all sessions", nil, func(ctx context.Context) error { _, _, err := space.Sessions(ctx); return err }},
		{"the holders that share a lock", nil, func(ctx context.Context) error { _, err := space.HeldBy(ctx, "crowd"); return err }},
		{"a lock of 1,000 is asked for", nil, func(ctx context.Context) error {
			_, err := space.Revoke(ctx, "crowd", m.crowd.Token(), locks.Ask, locks.Revocation{By: "scale"})
			return err
		}},
		{"a declaration", nil, func(ctx context.Context) error {
			_, err := m.locks.Declare(ctx, "permits", locks.PermitLimit{Permits: 10, Version: time.Now().UnixMilli()})
			return err
		}},
		{"a new session of another client", nil, func(ctx context.Context) error {
			other, err := locks.Open(ctx, m.rdb, locks.Options{Namespace: m.namespace, Name: "other"})
			if err != nil {
				return err
			}
			return other.Close(ctx)
		}},
		{"a session with 1,000 holds ends", nil, func(ctx context.Context) error {
			other, err := locks.Open(ctx, m.rdb, locks.Options{Namespace: m.namespace, Name: "other"})
			if err != nil {
				return err
			}
			err = many(ctx, 1000, func(_ context.Context, i int) error {
				_, err := other.Acquire(ctx, locks.Exclusive("other:"+strconv.Itoa(i)))
				return err
			})
			return errors.Join(err, other.Close(ctx))
		}},
		{"a bundle of 1,000 is shared", wide(locks.Exclusive), func(ctx context.Context) error {
			return errors.Join(hold.Downgrade(ctx, named("free:", 1000)...), hold.Release())
		}},
		{"a bundle of 1,000 beside waits for similar names", nil, func(ctx context.Context) error {
			return m.try(ctx, locks.Exclusive(named("held:1+", 1000)...))
		}},
		{"a bundle of 1,000 where nothing waits", nil, func(ctx context.Context) error {
			hold, err := m.calm.Acquire(ctx, locks.Exclusive(named("free:", 1000)...))
			if err != nil {
				return err
			}
			return hold.Release()
		}},
		{"locks of 64 callers where nothing waits", nil, func(ctx context.Context) error {
			return many(ctx, 512, func(ctx context.Context, i int) error {
				hold, err := m.calm.Acquire(ctx, locks.Exclusive("free:"+strconv.Itoa(i)))
				if err != nil {
					return err
				}
				return hold.Release()
			})
		}},
		{"a hold ends by its limit", func(ctx context.Context) (err error) {
			hold, err = m.locks.Acquire(ctx, locks.Exclusive("limited"), locks.MaxHold(10*time.Millisecond))
			return err
		}, func(ctx context.Context) error { // a waiting session reaps what is due
			next, err := m.locks.Acquire(ctx, locks.Exclusive("limited"))
			if err != nil {
				return err
			}
			_ = hold.Release() // it was lost
			return next.Release()
		}},
		{"a hold is joined", nil, func(ctx context.Context) error {
			joined, err := m.locks.Join(ctx, m.crowd.ID())
			if err != nil {
				return err
			}
			return joined.Release()
		}},
		{"a card of 15 KiB", nil, func(ctx context.Context) error {
			return m.locks.Extension().SetCard(ctx, []byte(`{"a":`+quoted(15<<10)+"}"))
		}},
		{"permits are undeclared", func(ctx context.Context) error {
			_, err := m.locks.Declare(ctx, "short-lived", locks.PermitLimit{Permits: 10, Version: 1})
			return err
		}, func(ctx context.Context) error { return m.locks.Undeclare(ctx, "short-lived", 1) }},
		{"a check", nil, space.Check},
		{"the session of a dead process", nil, func(ctx context.Context) error {
			other, err := locks.Open(ctx, m.rdb, locks.Options{Namespace: m.namespace, Name: "other"})
			if err != nil {
				return err
			}
			err = space.EndSession(ctx, other.Session())
			return errors.Join(err, other.Close(ctx))
		}},
	}
}

// list returns a call that makes a list of requests.
func (m *meter) list(n int, args string, atomic bool) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		list := ledger.List{Atomic: atomic}
		for range n {
			list.Items = append(list.Items, ledger.Request{Job: m.job, ID: fmt.Sprint("list", m.last.Add(1)), Args: json.RawMessage(args),
				Trigger: ledger.TriggerEnqueue, Named: true})
		}
		replies, err := m.ledger.EnqueueAll(ctx, list)
		for _, r := range replies {
			err = errors.Join(err, r.Err)
		}
		return err
	}
}

func (m *meter) usesOfRuns() []use {
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
	big := quoted(100 << 10)
	bundles := newJob("bundles")
	bundles.Lock = jobs.Lock{Exclusive: []string{"{names[*]}"}}
	act := m.act()
	var decision ledger.Decision
	var activations []ledger.Activation
	targets := 0 // of messages
	return []use{
		{"a request", nil, some(1, "null", 0)},
		{"a list of 1,000 requests", nil, m.list(1000, "null", false)},
		{"an atomic list of 1,000 requests", nil, m.list(1000, "null", true)},
		{"an atomic list of 1 MiB", nil, m.list(10, big, true)},
		{"an atomic list of 1,000 requests, 1 MiB in all", nil, m.list(1000, quoted(1000), true)},
		{"a list of 4 MiB", nil, m.list(40, big, false)},
		{"requests of 100 KiB", nil, some(10, big, time.Hour)},
		{"outstanding runs", nil, func(ctx context.Context) error { _, err := m.ledger.Outstanding(ctx, "", 5000); return err }},
		{"100 claims and finishes", some(ledger.MaxTogether, "null", 0), func(ctx context.Context) error { return m.work(ctx, m.job, runs, "") }},
		{"a run is found", some(1, "null", 0), func(ctx context.Context) error {
			_, _, err := m.ledger.Find(ctx, runs[0].Run)
			return err
		}},
		{"the definition of a run with args of 100 KiB", some(1, big, time.Hour), func(ctx context.Context) error {
			_, err := m.ledger.Definition(ctx, runs[0].Run)
			return err
		}},
		{"runs with 150 definitions of one job", nil, func(ctx context.Context) error {
			for i := range 150 {
				job := newJob("deployed")
				job.Description, job.Args = strconv.Itoa(i), json.RawMessage(quoted(500))
				run, err := m.enqueueOf(ctx, job, "null", 0)
				if err != nil {
					return err
				}
				if _, err := m.ledger.Cancel(ctx, run.Run, job, act); err != nil {
					return err
				}
			}
			return nil
		}},
		{"a run is canceled", some(1, "null", 0), func(ctx context.Context) error {
			_, err := m.ledger.Cancel(ctx, runs[0].Run, m.job, act)
			return err
		}},
		{"runs of 100 KiB end", some(20, big, 0), func(ctx context.Context) error { return m.work(ctx, m.job, runs, "") }},
		{"runs with outputs of 100 KiB end", some(20, "null", 0), func(ctx context.Context) error { return m.work(ctx, m.job, runs, big) }},
		{"a followed run prints 1 MiB in each of two attempts", some(1, "null", 0), func(ctx context.Context) error {
			return m.follow(ctx, runs[0], jobs.MaxTail, jobs.MaxTail)
		}},
		{"attempts print 1 MiB in all, the last one half of it", some(1, "null", 0), func(ctx context.Context) error {
			return m.follow(ctx, runs[0], jobs.MaxTail/2, jobs.MaxTail/2, jobs.MaxTail/2)
		}},
		{"runs of 990 locks begin and end", func(ctx context.Context) error {
			runs = nil
			for i := range 20 {
				names := make([]string, 990)
				for k := range names {
					names[k] = fmt.Sprintf("account:%d:%020d", i, k)
				}
				args, err := json.Marshal(map[string]any{"names": names})
				if err != nil {
					return err
				}
				run, err := m.enqueueOf(ctx, bundles, string(args), 0)
				if err != nil {
					return err
				}
				runs = append(runs, run)
			}
			return nil
		}, func(ctx context.Context) error { return m.work(ctx, bundles, runs, "") }},
		{"a history", nil, func(ctx context.Context) error { _, err := m.ledger.History(ctx, m.job.Name, 1000); return err }},
		{"attempts are counted", nil, func(ctx context.Context) error {
			_, err := m.ledger.Began(ctx, map[string]int64{m.job.Queue: 500})
			return err
		}},
		{"the flow of a queue", nil, func(ctx context.Context) error {
			_, err := m.ledger.Flows(ctx, []string{m.job.Queue})
			return err
		}},
		{"deliveries are confirmed", some(500, "null", 0), func(ctx context.Context) error {
			var due []ledger.Due
			for _, run := range runs {
				due = append(due, run.Due...)
			}
			return m.ledger.Confirm(ctx, due)
		}},
		{"a poll with 500 pieces of news", func(ctx context.Context) error {
			// from now on
			if _, err := m.told.Poll(ctx, m.locks.Session(), "scale", 0); err != nil {
				return err
			}
			if err := some(500, "null", 0)(ctx); err != nil {
				return err
			}
			return each(runs, func(run *ledger.Enqueued) error { _, err := m.ledger.Cancel(ctx, run.Run, m.job, act); return err })
		}, func(ctx context.Context) error { _, err := m.told.Poll(ctx, m.locks.Session(), "scale", 0); return err }},
		{"which runs are outstanding is read", nil, func(ctx context.Context) error {
			m.told.Remember() // forget everything known
			if _, err := m.told.Poll(ctx, m.locks.Session(), "scale", 0); err != nil {
				return err
			}
			for more := true; more; {
				var err error
				if more, err = m.told.Mirror(ctx); err != nil {
					return err
				}
			}
			return nil
		}},
		{"a sweep of 100", nil, func(ctx context.Context) error {
			_, err := m.ledger.Sweep(ctx, ledger.SweepLimits{Most: 100, Unconfirmed: time.Millisecond})
			return err
		}},
		{"deliveries are looked up", some(500, "null", 0), func(ctx context.Context) error {
			var due []ledger.Due
			for _, run := range runs {
				due = append(due, run.Due...)
			}
			if err := m.ledger.Confirm(ctx, due); err != nil {
				return err
			}
			_, err := m.ledger.Sent(ctx, 500, 0)
			return err
		}},
		{"deliveries are sent again", some(200, "null", 0), func(ctx context.Context) error {
			var due []ledger.Due
			for _, run := range runs {
				due = append(due, run.Due...)
			}
			_, err := m.ledger.Repush(ctx, due...)
			return err
		}},
		{"a sweep of pushes that are still to be done", some(200, "null", 0), func(ctx context.Context) error {
			_, err := m.ledger.Sweep(ctx, ledger.SweepLimits{Most: 200, Unconfirmed: time.Nanosecond, Pending: func(ledger.Due) bool { return true }})
			return err
		}},
		{"1,000 sessions are looked at", nil, func(ctx context.Context) error {
			_, err := m.ledger.Ended(ctx, slices.Repeat([]locks.SessionID{m.locks.Session()}, 1000))
			return err
		}},
		{"as many ticks as a decision has", m.missTicks(&decision), func(ctx context.Context) error {
			return m.ledger.Create(ctx, []ledger.Decision{decision})[0].Err
		}},
		{"a tick replaces earlier ones", func(ctx context.Context) error {
			_, err := m.ledger.Register(ctx, "scale", []*jobs.Job{m.piled})
			return errors.Join(err, m.pile(ctx, 50)) // as many as it ends
		}, func(ctx context.Context) error {
			created := m.ledger.Create(ctx, []ledger.Decision{m.ticksOf(m.piled, m.piledTo, 1, ledger.VerdictRun)})[0]
			if !created.More {
				return fmt.Errorf("a tick behind very many: %+v", created)
			}
			return nil
		}},
		{"50 ticks are skipped behind others that wait", func(ctx context.Context) error {
			queued := *m.piled
			queued.Overlap, queued.MaxQueued = jobs.OverlapQueue, 400
			if _, err := m.ledger.Register(ctx, "scale", []*jobs.Job{&queued}); err != nil {
				return err
			}
			decision = m.ticksOf(&queued, m.piledTo, 50, ledger.VerdictRun)
			return nil
		}, func(ctx context.Context) error {
			created := m.ledger.Create(ctx, []ledger.Decision{decision})[0]
			if len(created.Due) > 0 || !created.Cursor.Equal(decision.Cursor) {
				return fmt.Errorf("ticks behind very many: %+v", created)
			}
			m.piledTo = decision.Cursor
			return nil
		}},
		{"a span of as many ticks is skipped", func(ctx context.Context) error {
			if err := m.missTicks(&decision)(ctx); err != nil {
				return err
			}
			return m.ledger.Create(ctx, []ledger.Decision{decision})[0].Err
		}, func(ctx context.Context) error {
			_, _, err := m.ledger.Skip(ctx, decision.Job, decision.Seen, decision.Cursor, act)
			return err
		}},
		{"a batch of messages is stored and sent", nil, func(ctx context.Context) error {
			targets++ // after a batch, the next one to its target has to wait
			target := "target" + strconv.Itoa(targets)
			if err := many(ctx, ledger.BatchMost, func(ctx context.Context, i int) error {
				return m.ledger.AddMail(ctx, target+"."+strconv.Itoa(i), jobs.EventRefused, m.locks.Session(), "a text", []string{target})
			}); err != nil {
				return err
			}
			if _, err := m.ledger.Mail(ctx, nil); err != nil {
				return err
			}
			batches, _, err := m.ledger.TakeMail(ctx, []string{target}, 0)
			if err != nil || len(batches) != 1 {
				return errors.Join(fmt.Errorf("%d batches were taken, want 1", len(batches)), err)
			}
			return m.ledger.MailSent(ctx, &batches[0])
		}},
		{"late jobs are looked for", nil, func(ctx context.Context) error {
			_, err := m.ledger.Silences(ctx, slices.Repeat([]*ledger.Encoded{{Job: m.job}}, 1000))
			return err
		}},
		{"as many definitions as are registered at a time", nil, func(ctx context.Context) error {
			definitions := make([]*jobs.Job, ledger.RegisterBatch)
			for i := range definitions {
				definitions[i] = newJob("job" + strconv.Itoa(i))
			}
			_, err := m.ledger.Register(ctx, "scale", definitions)
			return err
		}},
		{"as many triggers as change at a time", m.otherTriggers(&activations), func(ctx context.Context) error {
			for _, activated := range m.ledger.Activate(ctx, activations) {
				if activated.Err != nil || activated.Cursor.IsZero() {
					return fmt.Errorf("change of a trigger: %+v", activated)
				}
			}
			return nil
		}},
		{"a history is trimmed", func(ctx context.Context) error {
			for range 2 {
				if err := some(ledger.MaxTogether, "null", 0)(ctx); err != nil {
					return err
				}
				if err := m.work(ctx, m.job, runs, ""); err != nil {
					return err
				}
			}
			return nil
		}, func(ctx context.Context) error {
			rest := func(ctx context.Context) error { return ctx.Err() }
			size, err := m.ledger.HistorySize(ctx, rest)
			if err != nil {
				return err
			}
			_, _, err = m.ledger.TrimHistory(ctx, size, size.Bytes/2, rest)
			return err
		}},
		{"a queue is paused and resumed", nil, func(ctx context.Context) error {
			if err := m.ledger.QueuePaused(ctx, "default"); err != nil {
				return err
			}
			_, err := m.ledger.QueueResumed(ctx, "default")
			return err
		}},
	}
}

// work claims runs of a job together and finishes them together, with some output.
func (m *meter) work(ctx context.Context, job *jobs.Job, runs []*ledger.Enqueued, output string) error {
	var claims []ledger.Claim
	for _, run := range runs {
		request, err := m.locks.Extension().Begin()
		if err != nil {
			return err
		}
		claims = append(claims, ledger.Claim{Request: request, Due: run.Due[0]})
	}
	var finishes []ledger.Finish
	for i, claimed := range m.ledger.ClaimAll(ctx, claims, time.Second) {
		if claimed == nil || claimed.Outcome != ledger.ClaimGranted {
			return fmt.Errorf("claim of %s: %+v", runs[i].Run, claimed)
		}
		hold := claims[i].Request.Granted(ctx, claimed.Grant())
		m.locks.Extension().Freeing(hold)
		defer m.locks.Extension().Released(hold)
		finishes = append(finishes, ledger.Finish{Run: runs[i].Run, Job: job, Token: hold.Token(), Hold: hold.ID(), Outcome: ledger.OutcomeSuccess,
			Output: output})
	}
	for i, finished := range m.ledger.FinishAll(ctx, finishes) {
		if finished == nil {
			return fmt.Errorf("finish of %s was not answered", runs[i].Run)
		}
	}
	return nil
}

// follow runs attempts at a run, the last of which succeeds. Each prints so many bytes, and as much
// as Redis keeps for the clients that follow it.
func (m *meter) follow(ctx context.Context, run *ledger.Enqueued, prints ...int) error {
	due, outcome := run.Due[0], ledger.OutcomeHandBack
	for attempt, size := range prints {
		output := strings.Repeat("x", size)
		if attempt == len(prints)-1 {
			outcome = ledger.OutcomeSuccess
		}
		request, err := m.locks.Extension().Begin()
		if err != nil {
			return err
		}
		claimed, err := m.ledger.Claim(ctx, request, due, time.Second, nil)
		if err != nil {
			return err
		}
		if claimed.Outcome != ledger.ClaimGranted {
			return fmt.Errorf("claim of %s: %s", run.Run, claimed.Outcome)
		}
		hold := request.Granted(ctx, claimed.Grant())
		m.locks.Extension().Freeing(hold)
		defer m.locks.Extension().Released(hold)
		passing := ledger.Passing{Run: run.Run, Token: hold.Token(), Attempt: attempt + 1}
		for i := range int64(16) {
			passing.Printed = append(passing.Printed, ledger.Printed{From: i << 14, Upto: (i + 1) << 14, Text: output[:1<<14]})
		}
		for round := range 3 {
			passing.First = round == 0
			if _, err := m.ledger.Follow(ctx, run.Run, 0); err != nil {
				return err
			}
			if err := m.ledger.PassOn(ctx, []ledger.Passing{passing})[0]; err != nil {
				return err
			}
		}
		finished, err := m.ledger.Finish(ctx, ledger.Finish{Run: run.Run, Job: m.job, Token: hold.Token(), Hold: hold.ID(), Outcome: outcome, Output: output})
		if err != nil {
			return err
		}
		for _, d := range finished.Due {
			if d.Run == run.Run {
				due = d
			}
		}
	}
	return nil
}

// missTicks registers a new job and makes a decision about its ticks, as if no worker had been up
// for an hour.
func (m *meter) missTicks(d *ledger.Decision) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		job := newJob("ticks" + strconv.FormatInt(m.last.Add(1), 10))
		cursor, err := m.cursorOf(ctx, job, time.Hour)
		*d = m.ticksOf(job, cursor, ledger.MaxTicks, ledger.VerdictCatchUp)
		return err
	}
}

// otherTriggers registers as many new jobs as change at a time, and then definitions of them with
// other triggers.
func (m *meter) otherTriggers(list *[]ledger.Activation) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		*list = nil
		var before, after []*jobs.Job
		for range ledger.ActivateBatch {
			job := newJob("trigger" + strconv.FormatInt(m.last.Add(1), 10))
			next := *job
			next.Every += time.Hour
			before, after = append(before, job), append(after, &next)
		}
		if _, err := m.ledger.Register(ctx, "scale", before); err != nil {
			return err
		}
		registered, err := m.ledger.Register(ctx, "scale", after)
		if err != nil {
			return err
		}
		for i, job := range after {
			cursor := registered.Jobs[job.Name].Cursor
			*list = append(*list, ledger.Activation{Job: job, From: before[i], Seen: cursor, Cursor: cursor})
		}
		return nil
	}
}

// usesOfOperators are the acts of people, and the ledger's handling of runs that go wrong.
func (m *meter) usesOfOperators() []use {
	var run *ledger.Enqueued
	var claimed []*ledger.Claimed
	var holds []*locks.Hold
	var other *locks.Client
	var moving []*ledger.Record
	var settlements []ledger.Settlement
	act := m.act()
	one := func(job *jobs.Job) func(ctx context.Context) (err error) {
		return func(ctx context.Context) (err error) {
			run, err = m.enqueueOf(ctx, job, "null", 0)
			return err
		}
	}
	blocked := newJob("blocked")
	blocked.Lock = jobs.Lock{Exclusive: []string{"held:0"}, Wait: time.Millisecond, OnBusy: jobs.BusySkip}
	start := func(ctx context.Context, client *locks.Client, n int) error {
		claimed, holds = nil, nil
		for range n {
			enqueued, err := m.enqueue(ctx, "null", 0)
			if err != nil {
				return err
			}
			request, err := client.Extension().Begin()
			if err != nil {
				return err
			}
			granted, err := m.ledger.Claim(ctx, request, enqueued.Due[0], time.Second, nil)
			if err != nil || granted.Outcome != ledger.ClaimGranted {
				return fmt.Errorf("claim of %s: %+v: %w", enqueued.Run, granted, err)
			}
			claimed, holds = append(claimed, granted), append(holds, request.Granted(ctx, granted.Grant()))
		}
		return nil
	}
	return []use{
		{"a run comes by the queue itself", nil, func(ctx context.Context) error {
			id := strconv.FormatInt(m.last.Add(1), 10)
			_, err := m.ledger.Adopt(ctx, ledger.Adoption{Job: m.job, Queue: "default", ID: id, Payload: []byte(quoted(100 << 10)),
				Session: m.locks.Session(), Giving: id})
			return err
		}},
		{"a worker is asked to stop 200 runs", func(ctx context.Context) error {
			if err := start(ctx, m.locks, 200); err != nil {
				return err
			}
			return each(claimed, func(c *ledger.Claimed) error {
				_, err := m.ledger.Cancel(ctx, c.Record.ID, m.job, act)
				return err
			})
		}, func(ctx context.Context) error {
			_, err := m.ledger.Asked(ctx, m.locks.Session())
			for i, c := range claimed {
				m.locks.Extension().Freeing(holds[i])
				_, failed := m.ledger.Finish(ctx, ledger.Finish{Run: c.Record.ID, Job: m.job, Token: holds[i].Token(), Hold: holds[i].ID(),
					Outcome: ledger.OutcomeSuccess})
				m.locks.Extension().Released(holds[i])
				err = errors.Join(err, failed)
			}
			return err
		}},
		{"100 runs of a worker that died", func(ctx context.Context) (err error) {
			other, err = locks.Open(ctx, m.rdb, locks.Options{Namespace: m.namespace, Name: "other"})
			if err != nil {
				return err
			}
			if err := start(ctx, other, 100); err != nil {
				return err
			}
			return m.locks.Space().EndSession(ctx, other.Session())
		}, func(ctx context.Context) error {
			return errors.Join(m.ledger.Died(ctx, other.Session()), each(claimed, func(c *ledger.Claimed) error {
				_, err := m.ledger.Crash(ctx, ledger.Dead{Run: c.Record.ID, Token: c.Grant().Token, Job: m.job.Name}, m.job)
				return err
			}), other.Close(ctx))
		}},
		{"a run waits behind others for too long", func(ctx context.Context) error {
			if err := one(blocked)(ctx); err != nil {
				return err
			}
			request, err := m.locks.Extension().Begin()
			if err != nil {
				return err
			}
			_, err = m.ledger.Claim(ctx, request, run.Due[0], time.Second, nil)
			return err
		}, func(ctx context.Context) error {
			for { // until its time is over
				if _, err := m.ledger.Expire(ctx, run.Run, blocked); err != nil {
					return err
				}
				if record, _, err := m.ledger.Find(ctx, run.Run); err != nil || record.State.Final() {
					return err
				}
			}
		}},
		{"a run is done again", func(ctx context.Context) error {
			err := one(m.job)(ctx)
			if err == nil {
				_, err = m.ledger.Cancel(ctx, run.Run, m.job, act)
			}
			return err
		}, func(ctx context.Context) error {
			_, err := m.ledger.Reopen(ctx, ledger.Reopening{Run: run.Run, Job: m.job, Args: []byte(quoted(100 << 10)), Act: &act})
			return err
		}},
		{"the expiry of 50 runs is postponed", nil, func(ctx context.Context) error {
			return m.ledger.Postpone(ctx, slices.Repeat([]jobs.RunID{"scale#none"}, 50), time.Minute)
		}},
		{"a delivery is sent again", one(m.job), func(ctx context.Context) error {
			_, err := m.ledger.Repush(ctx, run.Due[0])
			return err
		}},
		{"a run is refused", one(m.job), func(ctx context.Context) error {
			_, _, err := m.ledger.Refuse(ctx, ledger.Refusal{Run: run.Run, Queue: "default", N: run.Due[0].N, Cause: errors.New("refused")})
			return err
		}},
		{"a job is paused and resumed", nil, func(ctx context.Context) error {
			if _, err := m.ledger.Pause(ctx, m.job.Name, act); err != nil {
				return err
			}
			_, err := m.ledger.Resume(ctx, m.job.Name, act)
			return err
		}},
		{"an act is kept", nil, func(ctx context.Context) error { return m.ledger.Audit(ctx, act) }},
		{"a worker is asked to drain", func(ctx context.Context) (err error) {
			other, err = locks.Open(ctx, m.rdb, locks.Options{Namespace: m.namespace, Name: "other"})
			return err
		}, func(ctx context.Context) error {
			_, err := m.ledger.Drain(ctx, other.Session(), act)
			return errors.Join(err, other.Close(ctx))
		}},
		{"a config is left", nil, func(ctx context.Context) error { return m.ledger.Leave(ctx, m.locks.Session(), "another", 0) }},
		{"the carried configs", nil, func(ctx context.Context) error { _, err := m.ledger.Carried(ctx); return err }},
		{"a run is set aside and picked", one(m.job), func(ctx context.Context) error {
			if _, err := m.ledger.SetAside(ctx, run.Due[0], "handler other"); err != nil {
				return err
			}
			places, _, err := m.ledger.Shelves(ctx, ledger.Shelf{})
			if err != nil {
				return err
			}
			if _, err := m.ledger.Asides(ctx); err != nil {
				return err
			}
			_, err = m.ledger.Pick(ctx, 16, places)
			return err
		}},
		{"a page of an index", nil, func(ctx context.Context) error {
			_, err := m.ledger.OpenEntries(ctx, ledger.IndexJob, "", "", 200)
			return err
		}},
		{"200 runs move to another queue", func(ctx context.Context) error {
			elsewhere := *m.job
			elsewhere.Queue, moving = "elsewhere", nil
			for range 200 {
				enqueued, err := m.enqueueOf(ctx, &elsewhere, "null", 0)
				if err != nil {
					return err
				}
				moving = append(moving, &ledger.Record{ID: enqueued.Run, Job: m.job.Name, Queue: "elsewhere"})
			}
			return nil
		}, func(ctx context.Context) error {
			_, _, err := m.ledger.Requeue(ctx, moving)
			return err
		}},
		{"a page of the runs that wait in a queue", nil, func(ctx context.Context) error {
			_, err := m.ledger.WaitingRuns(ctx, "default", "", 100)
			return err
		}},
		{"absences of jobs that returned get their lines", func(ctx context.Context) error {
			settlements = nil
			var returned []*jobs.Job
			for range 100 {
				job := newJob("returned" + strconv.FormatInt(m.last.Add(1), 10))
				returned = append(returned, job)
			}
			if _, err := m.ledger.Register(ctx, "scale", returned); err != nil {
				return err
			}
			for _, job := range returned {
				if err := m.rdb.HSet(ctx, "{"+m.namespace+"}:facts", "m"+job.Name, "1000\x1e9000\x1eevery 1s").Err(); err != nil {
					return err
				}
			}
			registered, err := m.ledger.Register(ctx, "scale", returned)
			if err != nil {
				return err
			}
			for _, one := range registered.Jobs {
				line := &ledger.Tick{At: one.Absence.From, Upto: one.Absence.Upto, Verdict: ledger.VerdictMissed}
				settlements = append(settlements, ledger.Settlement{Absence: one.Absence, Line: line})
			}
			return nil
		}, func(ctx context.Context) error {
			for _, settled := range m.ledger.Settle(ctx, settlements) {
				if settled.Err != nil || !settled.Written {
					return fmt.Errorf("settle an absence: %+v", settled)
				}
			}
			return nil
		}},
		{"a job is forgotten", func(ctx context.Context) error {
			_, err := m.ledger.Register(ctx, "forgotten", []*jobs.Job{newJob("forgotten")})
			return errors.Join(err, m.ledger.Leave(ctx, m.locks.Session(), "forgotten", 0))
		}, func(ctx context.Context) error { return m.ledger.Forget(ctx, "forgotten", act) }},
		{"100 queues are registered", nil, func(ctx context.Context) error {
			return m.queue.Own(ctx, named(m.namespace+strconv.FormatInt(m.last.Add(1), 10)+"-", 100))
		}},
		{"500 deliveries are pushed", nil, func(ctx context.Context) error {
			deliveries := make([]ledger.Due, 500)
			for i := range deliveries {
				deliveries[i] = ledger.Due{Run: jobs.RequestRunID(m.job.Name, fmt.Sprint("pushed", m.last.Add(1))), N: 1, Queue: m.namespace}
			}
			_, err := m.queue.Push(ctx, deliveries...)
			return err
		}},
	}
}

func (m *meter) act() ledger.Act { return ledger.Act{Who: "scale", What: "measure", On: m.job.Name} }

// quoted returns a JSON string of n bytes.
func quoted(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }

func each[T any](list []T, f func(T) error) error {
	for _, one := range list {
		if err := f(one); err != nil {
			return err
		}
	}
	return nil
}
