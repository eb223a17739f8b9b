package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// must panics with an error, which fails the test; its one argument can be a call with two results.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func TestLocksOfAllModes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		stage := newStage(t, rdb)
		ctx := t.Context()
		one, two := stage.Open("one", nil), stage.Open("two", nil)
		for name, limit := range map[string]int{"api": 3, "idle": 2} {
			if _, err := one.Declare(ctx, name, locks.PermitLimit{Permits: limit}); err != nil {
				t.Fatal(err)
			}
		}
		acquire := func(client *locks.Client, parts ...locks.Part) *locks.Hold {
			t.Helper()
			hold, err := client.TryAcquire(ctx, parts...)
			if err != nil {
				t.Fatal(err)
			}
			return hold
		}
		first := acquire(one, locks.Exclusive("bill:1"), locks.Shared("rates"), locks.Permits("api", 2))
		acquire(two, locks.Shared("rates"))
		if _, err := stage.Ledger.Space().Revoke(ctx, "api", first.Token(), locks.Ask, locks.Revocation{By: "ada", Reason: "now"}); err != nil {
			t.Fatal(err)
		}
		kept := acquire(two, locks.Exclusive("kept"), locks.MinHold(time.Hour))
		if err := kept.Release(); err != nil {
			t.Fatal(err)
		}

		all, err := stage.reader.Locks(ctx)
		if err != nil {
			t.Fatal(err)
		}
		show := func(lock *Lock) string {
			text, err := json.Marshal(lock)
			if err != nil {
				t.Fatal(err)
			}
			var shape struct {
				Lock, Mode  string
				Limit, Used *int
				Holders     []struct {
					Shared  []string
					Permits map[string]int
					Asked   *Asked
					Resting bool
				}
			}
			if err := json.Unmarshal(text, &shape); err != nil {
				t.Fatal(err)
			}
			line := shape.Lock + " " + shape.Mode
			if shape.Limit != nil {
				line += fmt.Sprintf(" %d/%d", *shape.Used, *shape.Limit)
			}
			for _, h := range shape.Holders {
				line += fmt.Sprintf(" %v%v%v", h.Shared, h.Permits, h.Resting)
				if h.Asked != nil {
					line += fmt.Sprint(*h.Asked)
				}
			}
			return line
		}
		var got []string
		for _, lock := range all {
			got = append(got, show(&lock))
		}
		for _, name := range []string{"rates", "api", "idle", "free"} {
			lock, err := stage.reader.Lock(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, show(lock))
		}
		const about = "[rates]map[api:2]false{ask ada now}"
		want := []string{
			"api permits 2/3 " + about, "bill:1 exclusive " + about, "kept exclusive []map[]true",
			"rates shared " + about + " [rates]map[]false",
			"rates shared " + about + " [rates]map[]false", "api permits 2/3 " + about, "idle permits 0/2", "free exclusive",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}

		// A share with a nested exclusive hold: the lock shows as exclusive, held by both requests.
		share := acquire(one, locks.Shared("doc"))
		inner, err := one.Acquire(share.Context(), locks.Exclusive("doc"))
		if err != nil {
			t.Fatal(err)
		}
		lock, err := stage.reader.Lock(ctx, "doc")
		if err != nil || show(lock) != "doc exclusive [doc]map[]false []map[]false" {
			t.Errorf("got %v, %v; want it exclusive", lock, err)
		}
		if err := errors.Join(inner.Release(), share.Release()); err != nil {
			t.Error(err)
		}
	})
}

// TestTicksThatAJobMissedWhileItWasAbsentShow in its history, and in the explanation of each of
// them.
func TestTicksThatAJobMissedWhileItWasAbsentShow(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		s := newStage(t, rdb)
		job := &jobs.Job{Name: "j", Every: time.Hour, Command: []string{"true"}, Queue: "default", History: jobs.History{Runs: 100, For: time.Hour}}
		now := must(s.Ledger.Register(t.Context(), "config", []*jobs.Job{job})).Now
		first := now.Truncate(time.Hour).Add(-9 * time.Hour)
		last := first.Add(8 * time.Hour)
		key := func(name string) string { return "{" + s.Namespace + "}:" + name }
		ago := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
		pipe := rdb.Pipeline()
		pipe.HSet(t.Context(), key("cursor"), "j", first.Add(-time.Hour).UnixMilli())
		pipe.HSet(t.Context(), key("ledger"), "config:config", ago(9*time.Hour), "since:other", ago(8*time.Hour), "config:other", ago(0))
		must(pipe.Exec(t.Context()))
		absence := must(s.Ledger.Register(t.Context(), "back", []*jobs.Job{job})).Jobs["j"].Absence
		if absence == nil {
			t.Fatal("it returned without an absence")
		}
		line := &ledger.Tick{At: first, Upto: last, Verdict: ledger.VerdictMissed, Reason: "no worker carried it for 9 ticks"}
		if settled := s.Ledger.Settle(t.Context(), []ledger.Settlement{{Absence: absence, Line: line, By: "w.12345678"}})[0]; !settled.Written {
			t.Fatalf("%+v, want the line written", settled)
		}
		ticks := must(s.reader.Ticks(t.Context(), "j", 0))
		if len(ticks) != 1 || ticks[0].Outcome != "missed" || string(ticks[0].Reason) != line.Reason || !ticks[0].Tick.Equal(first) || !ticks[0].Upto.Equal(last) {
			t.Errorf("the history is %+v, want one line from %v to %v", ticks, first, last)
		}
		for _, tick := range []time.Time{first, first.Add(3 * time.Hour), last} {
			explained := must(s.reader.Explain(t.Context(), "j", tick))
			if explained.Outcome != "missed" || explained.Conclusion != "missed ("+line.Reason+")" {
				t.Errorf("tick %v is explained by %+v, want it missed: %s", tick, explained, line.Reason)
			}
		}
		if runs := must(s.reader.Runs(t.Context(), RunFilter{})); len(runs) != 0 {
			t.Errorf("runs %+v, want none", runs)
		}
	})
}
