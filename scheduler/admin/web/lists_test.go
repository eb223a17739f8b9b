package web

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// meter counts what a client reads: commands, and the values in their replies.
type meter struct{ commands, values atomic.Int64 }

func (m *meter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (m *meter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		m.count(cmd)
		return err
	}
}

func (m *meter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			m.count(cmd)
		}
		return err
	}
}

func (m *meter) count(cmd redis.Cmder) {
	m.commands.Add(1)
	switch cmd := cmd.(type) {
	case *redis.Cmd:
		m.values.Add(valuesIn(cmd.Val()))
	case *redis.StringSliceCmd:
		m.values.Add(int64(len(cmd.Val())))
	case *redis.SliceCmd:
		m.values.Add(int64(len(cmd.Val())))
	case *redis.ZSliceCmd:
		m.values.Add(2 * int64(len(cmd.Val())))
	default:
		m.values.Add(1)
	}
}

func valuesIn(value any) int64 {
	list, is := value.([]any)
	if !is {
		return 1
	}
	var n int64
	for _, one := range list {
		n += valuesIn(one)
	}
	return n
}

// crowd writes n outstanding runs of 20 jobs: copies of one run, most of them due, some retrying,
// waiting or running. It returns how many are in each state.
func (s *stage) crowd(n int) map[ledger.State]int {
	s.t.Helper()
	ctx := s.t.Context()
	job := &jobs.Job{Name: "crowd-00", Command: []string{"true"}, Queue: "default", History: jobs.History{Runs: 10000, For: time.Hour}}
	due := s.Enqueue(job, "template", `{"a":1}`)
	key := func(name string) string { return "{" + s.Namespace + "}:" + name }
	record, err := s.Redis.HGet(ctx, key("run"), string(due.Run)).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := s.Redis.HGet(ctx, key("body"), string(due.Run)).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	count := map[ledger.State]int{ledger.StateDue: 1}
	fields := strings.Split(record, "\x1f")
	since := fields[7]
	for begin := 0; begin < n; begin += 1000 {
		_, err := s.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := begin; i < min(n, begin+1000); i++ {
				name := fmt.Sprintf("crowd-%02d", i%20)
				id := fmt.Sprintf("%s#%06d", name, i)
				state := ledger.StateDue
				switch i % 10 {
				case 1, 2:
					state = ledger.StateRetrying
					// all at the same moment
					pipe.ZAdd(ctx, key("timer"), redis.Z{Score: 4e12, Member: id})
				case 3:
					state = ledger.StateWaiting
				case 4:
					if i >= 1000 {
						break
					}
					state = ledger.StateRunning
					pipe.ZAdd(ctx, key("busy"), redis.Z{Member: fmt.Sprintf("web-%d.aaaaaaaa\x00%s", i%7, id)})
				}
				if state == ledger.StateDue {
					pipe.ZAdd(ctx, key("ready"), redis.Z{Member: fmt.Sprintf("default\x00%016s\x00%s", since, id)})
				}
				count[state]++
				own := slices.Clone(fields)
				own[0], own[2], own[9], own[10] = string(state), name, "web-1.aaaaaaaa.1", "web-1.aaaaaaaa"
				pipe.HSet(ctx, key("run"), id, strings.Join(own, "\x1f"))
				pipe.HSet(ctx, key("body"), id, body)
				pipe.ZAdd(ctx, key("open"), redis.Z{Member: fmt.Sprintf("%s\x00%016d\x00%s", name, 0, id)})
			}
			return nil
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return count
}

// metered returns a reader like that of the stage, with a meter of its reads.
func (s *stage) metered() (*admin.Reader, *meter) {
	s.t.Helper()
	m := new(meter)
	rdb := redis.NewClient(s.Redis.Options())
	s.t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			s.t.Error(err)
		}
	})
	rdb.AddHook(m)
	space, err := locks.NewSpace(rdb, s.Namespace)
	if err != nil {
		s.t.Fatal(err)
	}
	return admin.NewReader(ledger.New(rdb, space)), m
}

func TestAPageOfRunsReadsNoMoreOfManyOutstandingRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t, redistest.Client(t))
	const outstanding, limit = 20000, 50
	s.crowd(outstanding)
	reader, read := s.metered()
	server := newServerOf(t, reader)
	get(server, "/api/v1/runs?limit=1") // loads the scripts

	next := ""
	for _, path := range []string{
		"/api/v1/runs?limit=50", "/api/v1/runs?limit=50&cursor=", "/api/v1/runs?limit=50&job=crowd-11", "/api/v1/runs?limit=50&state=due",
		"/api/v1/runs?limit=50&state=retrying", "/api/v1/runs?limit=50&state=retrying&cursor=", "/api/v1/runs?limit=50&state=running",
		"/api/v1/runs?limit=50&state=waiting&job=crowd-03",
	} {
		if strings.HasSuffix(path, "cursor=") {
			path += next
		}
		read.commands.Store(0)
		read.values.Store(0)
		l := getList(t, server, path)
		if len(l.Items) != limit || l.NextCursor == nil {
			t.Errorf("%s: got %d items, next_cursor %v, want a full page and more", path, len(l.Items), l.NextCursor)
			continue
		}
		next = *l.NextCursor
		t.Logf("%s: %d commands, %d values", path, read.commands.Load(), read.values.Load())
		// An entry is two values, a record three, the definition of an unregistered job one. A page
		// of runs among others takes some more reads.
		if commands, values := read.commands.Load(), read.values.Load(); commands > 20 || values > 10*limit+100 {
			t.Errorf("%s: read %d values with %d commands, want at most %d with 20", path, values, commands, 10*limit+100)
		}
	}

	// For a state without an index, the server looks at a bounded number of runs; pages may be
	// short, and lead on.
	found, pages := 0, 0
	for path := "/api/v1/runs?limit=1000&state=waiting"; path != ""; pages++ {
		read.values.Store(0)
		l := getList(t, server, path)
		if values := read.values.Load(); values > 6*(1000+1000+2*200) {
			t.Errorf("%s: read %d values", path, values)
		}
		found += len(l.Items)
		if path = ""; l.NextCursor != nil {
			path = "/api/v1/runs?limit=1000&state=waiting&cursor=" + *l.NextCursor
		}
	}
	if found != outstanding/10 {
		t.Errorf("found %d waiting runs in %d pages, want %d", found, pages, outstanding/10)
	}
}

func TestCountsOfOutstandingRunsReadNoRecords(t *testing.T) {
	t.Parallel()
	s := newStage(t, redistest.Client(t))
	count := s.crowd(20000)
	for i := range 20 {
		job := &jobs.Job{Name: fmt.Sprintf("crowd-%02d", i), Command: []string{"true"}, Queue: "default"}
		if _, err := s.Ledger.Register(t.Context(), "config", []*jobs.Job{job}); err != nil {
			t.Fatal(err)
		}
	}
	reader, read := s.metered()
	for _, list := range []func() ([]admin.Job, error){
		func() ([]admin.Job, error) { return reader.Jobs(t.Context(), admin.Filter{}, "") },
		func() ([]admin.Job, error) {
			job, err := reader.Job(t.Context(), "crowd-04")
			return []admin.Job{*job}, err
		},
	} {
		read.values.Store(0)
		all := must(list())
		values := read.values.Load()
		outstanding, running := 0, 0
		for _, job := range all {
			outstanding, running = outstanding+job.Outstanding, running+job.Running
		}
		wantOutstanding, wantRunning := 20001, count[ledger.StateRunning]
		if len(all) == 1 {
			wantOutstanding, wantRunning = 1000, count[ledger.StateRunning]/2
		}
		if outstanding != wantOutstanding || running != wantRunning {
			t.Errorf("%d jobs: %d outstanding and %d running, want %d and %d", len(all), outstanding, running, wantOutstanding, wantRunning)
		}
		if values > 1000 {
			t.Errorf("%d jobs: read %d values, want at most 1000", len(all), values)
		}
	}
}

// TestPagesTogetherAreTheWholeList follows next_cursor through every list of runs.
func TestPagesTogetherAreTheWholeList(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		s := newStage(t, rdb)
		count := s.crowd(300)
		server := newServerOf(t, s.reader)
		want := map[string]int{"": 301, "&job=crowd-03": 15, "&job=crowd-03&state=waiting": 15}
		for state, n := range count {
			want["&state="+string(state)] = n
		}
		for filter, n := range want {
			seen := make(map[string]bool)
			for path := "/api/v1/runs?limit=7" + filter; path != ""; {
				l := getList(t, server, path)
				for _, id := range l.names("id") {
					if seen[id] {
						t.Fatalf("%q: %s is listed twice", filter, id)
					}
					seen[id] = true
				}
				if path = ""; l.NextCursor != nil {
					path = "/api/v1/runs?limit=7" + filter + "&cursor=" + *l.NextCursor
				}
			}
			if len(seen) != n {
				t.Errorf("%q: pages of 7 have %d runs, want %d", filter, len(seen), n)
			}
		}
	})
}

func TestACursorOfAnotherFilterIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t, redistest.Client(t))
	s.crowd(30)
	server := newServerOf(t, s.reader)
	l := getList(t, server, "/api/v1/runs?limit=3")
	for _, filter := range []string{"state=due", "state=failed"} {
		if got := get(server, "/api/v1/runs?"+filter+"&cursor="+*l.NextCursor); got.Code != 400 {
			t.Errorf("%s: got %d, want 400: %s", filter, got.Code, got.Body)
		}
	}
}

// TestAPageOfTicksReadsNoMoreOfALongHistory has a history of 3,000 missed ticks, which end in
// bursts of one millisecond.
func TestAPageOfTicksReadsNoMoreOfALongHistory(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		s := newStage(t, rdb)
		ctx := t.Context()
		card := &worker.Card{Host: "web-1", State: "ready", Slots: 1}
		web := s.Open("web-1", card)
		job := &jobs.Job{Name: "ticker", Every: time.Second, Command: []string{"true"}, Queue: "default", Overlap: jobs.OverlapQueue,
			MaxQueued: 10, OnMissed: jobs.MissedAll, History: jobs.History{Runs: 10000, For: 24 * time.Hour}}
		registered := must(s.Ledger.Register(ctx, "config", []*jobs.Job{job}))
		const n, perCall = 3000, 500
		cursor := registered.Now.Truncate(time.Second).Add(-(n + 10) * time.Second)
		first := cursor.Add(time.Second)
		if err := s.Redis.HSet(ctx, "{"+s.Namespace+"}:cursor", job.Name, cursor.UnixMilli()).Err(); err != nil {
			t.Fatal(err)
		}
		for range n / perCall {
			d := ledger.Decision{Job: job, Seen: cursor, Cursor: cursor.Add(perCall * time.Second), By: web.Session()}
			for i := range perCall {
				d.Ticks = append(d.Ticks, ledger.Tick{At: cursor.Add(time.Duration(i+1) * time.Second), Verdict: ledger.VerdictMissed, Reason: "no worker was up"})
			}
			if created := s.Ledger.Create(ctx, []ledger.Decision{d})[0]; created.Err != nil || !created.Cursor.Equal(d.Cursor) {
				t.Fatalf("%+v", created)
			}
			cursor = d.Cursor
		}
		reader, read := s.metered()
		server := newServerOf(t, reader)
		get(server, "/api/v1/jobs/ticker/ticks?limit=1")

		read.values.Store(0)
		l := getList(t, server, "/api/v1/jobs/ticker/ticks?limit=50")
		if values := read.values.Load(); len(l.Items) != 50 || values > 1000 {
			t.Errorf("a page of %d ticks read %d values, want 50 and at most 1000", len(l.Items), values)
		}
		seen := make(map[string]bool)
		for path := "/api/v1/jobs/ticker/ticks?limit=300"; path != ""; {
			l := getList(t, server, path)
			for _, tick := range l.names("tick") {
				seen[tick] = true
			}
			if path = ""; l.NextCursor != nil {
				path = "/api/v1/jobs/ticker/ticks?limit=300&cursor=" + *l.NextCursor
			}
		}
		if len(seen) != n {
			t.Errorf("the pages have %d ticks, want %d", len(seen), n)
		}

		for name, at := range map[string]time.Time{"the last": {}, "the first": first} {
			read.values.Store(0)
			e, err := reader.Explain(ctx, "ticker", at)
			if err != nil || e.Outcome != "missed" {
				t.Errorf("explain %s: %+v, %v", name, e, err)
			}
			if values := read.values.Load(); values > 200 {
				t.Errorf("explain %s read %d values, want at most 200", name, values)
			}
		}
	})
}
