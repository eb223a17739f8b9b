package cmd

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// TestAReplayThatEndsEarlyPrintsHowToContinue: after an interruption, after the loss of Redis, and
// after an interruption while Redis does not reply.
func TestAReplayThatEndsEarlyPrintsHowToContinue(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb := server.Client(t)
	space, err := locks.NewSpace(rdb, "lockstep")
	must(t, err)
	_, err = ledger.New(rdb, space).Register(t.Context(), "config", []*jobs.Job{{
		Name: "tick", Schedule: "* * * * *", Timezone: "UTC", Command: []string{"true"}, Queue: "default", Overlap: jobs.OverlapSkip,
		OnMissed: jobs.MissedLast, OnCrash: jobs.CrashRerun, MaxCrashes: 3, History: jobs.History{Runs: 100, For: time.Hour},
	}})
	must(t, err)
	proxy := server.Proxy(t)
	count := func() int {
		runs, err := rdb.HLen(t.Context(), "{lockstep}:run").Result()
		must(t, err)
		return int(runs)
	}
	from := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	// replay replays a thousand ticks, far from Redis, and ends when some of them run again
	replay := func(end func(p *process), code int, words string) (done int, next time.Time, stderr string) {
		t.Helper()
		before := count()
		proxy.Set(redistest.Faults{RequestDelay: 10 * time.Millisecond, ReplyDelay: 10 * time.Millisecond})
		p := launch(t, toolEnv(t, "REDIS_URL="+proxy.URL()), "job", "replay", "tick", "--new-key", "--yes",
			"--from", from.Format(time.RFC3339), "--to", from.Add(999*time.Minute).Format(time.RFC3339))
		p.told = true
		eventually(t, 20*time.Second, "some ticks run again", func() bool { return count() > before+3 })
		end(p)
		got := p.code(20 * time.Second)
		proxy.Set(redistest.Faults{})
		said := regexp.MustCompile(words + `replay tick: (\d+) of 1000 ticks run again(, and perhaps that of \S+)?; to continue, replay from (\S+): `).
			FindStringSubmatch(p.stderr.String())
		if got != code || said == nil {
			t.Fatalf("exit code %d, %s; want %d, and how to continue", got, p.stderr, code)
		}
		done, err := strconv.Atoi(said[1])
		must(t, err)
		next, err = time.Parse(time.RFC3339, said[3])
		must(t, err)
		if runs := count() - before; runs != done && (said[2] == "" || runs != done+1) {
			t.Errorf("%d ticks run again, and it said %s", runs, said[0])
		}
		if want := from.Add(time.Duration(done) * time.Minute); !next.Equal(want) {
			t.Errorf("%d ticks run again, and the next one is %s, want %s", done, next, want)
		}
		return done, next, p.stderr.String()
	}

	done, next, stderr := replay(func(p *process) { p.signal(syscall.SIGINT) }, exitInterrupted, "(?m)^lockstep: interrupted; ")
	queued, err := rdb.LLen(t.Context(), "asynq:{default}:pending").Result()
	must(t, err)
	// on a busy machine, the push may not end in time
	if queued != int64(done) && !strings.Contains(stderr, "a worker will push it") {
		t.Errorf("%d deliveries are in the queue, want those of %d ticks; %s", queued, done, stderr)
	}
	from = next
	_, from, _ = replay(func(*process) {
		proxy.Set(redistest.Faults{Refuse: true})
		proxy.Cut()
	}, exitRedis, "lockstep: lost connection to Redis at .*: ")
	if n := strings.Count(fmt.Sprint(rdb.HKeys(t.Context(), "{lockstep}:run").Val()), "tick#replay-"+next.Add(-time.Minute).Format(time.RFC3339)); n != 1 {
		t.Errorf("the last tick before the interruption has %d runs, want 1", n)
	}
	replay(func(p *process) {
		proxy.Set(redistest.Faults{DropReplies: true})
		p.signal(syscall.SIGINT)
	}, exitInterrupted, "(?m)^lockstep: interrupted; ")
}
