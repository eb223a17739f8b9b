package cmd

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// 10,000 changed triggers in one deploy: no tick is late for it. A tenth of them here, at a round
// trip of 40 ms, with which a round trip for each trigger takes forty seconds.
func TestFaultManyTriggersChangeInOneDeploy(t *testing.T) {
	t.Parallel()
	const many, turns = 1000, 5
	beats := []spec{{name: "stays", trigger: "every: 1s", work: ":"}}
	for i := range turns {
		beats = append(beats, spec{name: fmt.Sprintf("turns-%d", i), trigger: "every: 1s", work: ":"})
	}
	others := func(trigger string) []spec {
		list := slices.Clone(beats)
		for i := range many {
			list = append(list, spec{name: fmt.Sprintf("job-%d", i), trigger: trigger, work: ":"})
		}
		return list
	}
	f := newFleet(t, nil, others("every: 24h"))
	proxy := f.server.Proxy(t)
	proxy.Set(redistest.Faults{RequestDelay: 20 * time.Millisecond, ReplyDelay: 20 * time.Millisecond})
	f.env = append(slices.Clone(f.env), "REDIS_URL="+proxy.URL())
	f.startAll(1)
	conn := f.connection()
	ticks := func(job string) []*ledger.Record {
		records, err := conn.ledger.History(t.Context(), job, 0)
		if err != nil {
			t.Fatal(err)
		}
		return records
	}
	eventually(t, time.Minute, "the jobs have ticks", func() bool { return len(ticks("stays")) > 2 && len(ticks("turns-0")) > 2 })

	for i := range turns {
		beats[1+i].trigger = "every: 2s"
	}
	f.configure(others("every: 48h"))
	began := time.Now()
	f.start()
	eventually(t, time.Minute, "all triggers have changed", func() bool {
		records, err := conn.ledger.Jobs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(records, func(r ledger.JobRecord) bool { return r.Job.Every == 24*time.Hour })
	})
	took := time.Since(began)
	t.Logf("%d triggers had changed %s after the start of a worker", many+turns, took.Round(time.Millisecond))
	if took > 25*time.Second {
		t.Errorf("%d triggers had changed after %s, want a round trip for many of them together", many+turns, took)
	}
	pause(t.Context(), 4*time.Second)
	for _, beat := range beats {
		job := beat.name
		var worst time.Duration
		for _, tick := range ticks(job) {
			if worst = max(worst, tick.Created.Sub(tick.Tick)); tick.State == ledger.StateMissed {
				t.Errorf("%s was missed: %s", tick.ID, tick.Reason)
			}
		}
		t.Logf("the ticks of %s were %s late at most", job, worst)
		// ticks that wait for triggers are late by as much as these take
		if worst > max(4*time.Second, took/2) {
			t.Errorf("a tick of %s was decided %s late while triggers changed", job, worst)
		}
	}
	f.drain()
}

// 1,000,000 outstanding runs at a round trip of 10 ms: ticks, sweeps and views do not depend on
// them. Here a tenth of the runs and ten times the round trip, since what counted was the number of
// round trips.
func TestFaultMillionRunsAreOutstanding(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes many runs")
	}
	t.Parallel()
	const many = 100_000
	f := newFleet(t, nil, []spec{{name: "beat", trigger: "every: 1s", work: ":"}, {name: "work", work: ":"}})
	f.startAll(1)
	f.drain()
	conn := f.connection()
	record, err := conn.ledger.Job(t.Context(), "work")
	if err != nil {
		t.Fatal(err)
	}
	later, err := conn.ledger.Enqueue(t.Context(), ledger.Request{Job: record.Job, ID: "later", Trigger: ledger.TriggerEnqueue, In: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	// The others are copies of this one.
	const copies = `
local record, body = redis.call('HGET', KEYS[1], ARGV[1]), redis.call('HGET', KEYS[2], ARGV[1])
local at = redis.call('ZSCORE', KEYS[3], ARGV[1])
for i = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  local id = 'work#' .. i
  redis.call('HSET', KEYS[1], id, (string.gsub(record, ARGV[1], id, 1)))
  redis.call('HSET', KEYS[2], id, body)
  redis.call('ZADD', KEYS[3], at, id)
  redis.call('ZADD', KEYS[4], 0, 'work\0' .. string.rep('0', 16) .. '\0' .. id)
end`
	keys := []string{"{lockstep}:run", "{lockstep}:body", "{lockstep}:timer", "{lockstep}:open"}
	const step = 2000
	for i := 1; i < many; i += step {
		if err := conn.rdb.Eval(t.Context(), copies, keys, string(later.Run), i, min(many, i+step)-1).Err(); err != nil && err.Error() != "redis: nil" {
			t.Fatal(err)
		}
	}
	if n := conn.rdb.ZCard(t.Context(), "{lockstep}:open").Val(); n < many {
		t.Fatalf("%d runs are outstanding, want %d", n, many)
	}

	proxy := f.server.Proxy(t)
	proxy.Set(redistest.Faults{RequestDelay: 50 * time.Millisecond, ReplyDelay: 50 * time.Millisecond})
	f.env = append(slices.Clone(f.env), "REDIS_URL="+proxy.URL())
	began := time.Now()
	f.startAll(1)
	up := time.Now()
	soon, err := conn.ledger.Enqueue(t.Context(), ledger.Request{Job: record.Job, ID: "soon", Trigger: ledger.TriggerEnqueue, In: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "a run is made due, which takes duty and a sweep", func() bool {
		run, _, err := conn.ledger.Find(t.Context(), soon.Run)
		return err == nil && run.State == ledger.StateSucceeded
	})
	ran := time.Since(up)
	views := make(map[string]time.Duration)
	for _, view := range [][]string{{"job", "ls"}, {"run", "ls", "--limit", "50"}, {"run", "ls", "--state", "scheduled", "--limit", "50"}} {
		asked := time.Now()
		ask[any](t, f.env, view...)
		name := fmt.Sprint(view)
		if views[name] = time.Since(asked); views[name] > 10*time.Second {
			t.Errorf("%s took %s beside %d outstanding runs", name, views[name], many)
		}
	}
	t.Logf("%d outstanding at a round trip of 100 ms: up after %s, a run that came due had run %s later; views: %v", many, up.Sub(began), ran, views)
	f.drain()
}
