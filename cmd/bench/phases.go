package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"lockstep/locks/space"
)

// spent is what the calls of one script took of the server.
type spent struct{ calls, micro float64 }

// log makes the server log all commands and scripts that take so many µs or more.
func (s *server) log(ctx context.Context, micro int) error {
	for _, setting := range [][2]string{{"slowlog-log-slower-than", strconv.Itoa(micro)}, {"slowlog-max-len", "1000000"}} {
		if err := s.admin.ConfigSet(ctx, setting[0], setting[1]).Err(); err != nil {
			return err
		}
	}
	return nil
}

// logScripts makes the server log its scripts, so that [server.usage] covers each. It leaves out
// what no script is as quick as, as are most commands inside scripts: logging takes time.
func (s *server) logScripts(ctx context.Context) error {
	s.logged = make(map[string]spent)
	return s.log(ctx, 4)
}

// readLog adds the scripts of the log to those of before, and empties the log.
func (s *server) readLog(ctx context.Context) error {
	entries, err := s.admin.SlowLogGet(ctx, -1).Result()
	if err != nil {
		return err
	}
	if err := s.admin.Do(ctx, "SLOWLOG", "RESET").Err(); err != nil {
		return err
	}
	for _, entry := range entries {
		if len(entry.Args) < 2 || !strings.EqualFold(entry.Args[0], "evalsha") && !strings.EqualFold(entry.Args[0], "eval") {
			continue
		}
		name := cmp.Or(space.NameOf(entry.Args[1]), "those of asynq")
		one := s.logged[name]
		s.logged[name] = spent{one.calls + 1, one.micro + float64(entry.Duration.Microseconds())}
	}
	return nil
}

// measurePhases measures what each script takes of the server in each phase of a lock and of a run.
func measurePhases(ctx context.Context, set settings, r *result) error {
	r.note("a single round, while the server logs each script; the last columns are per pair, request or run")
	r.Columns = []string{"phase", "script", "calls", "µs a call", "calls", "µs"}
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	if err := s.logScripts(ctx); err != nil {
		return err
	}
	ours, err := openOurs(ctx, s.addr, lease)
	if err != nil {
		return err
	}
	if got, err := ours.lock(ctx, "first"); err != nil { // a new space grants nothing for a second
		return err
	} else if err := got.unlock(); err != nil {
		return err
	}
	for _, what := range []struct {
		name string
		load load
	}{
		{"a pair, 1 goroutine", distinct(1)[0]},
		{"a pair, 64 goroutines", distinct(64)[0]},
		{"a hand-off, 32 goroutines", everybody(32, 0)},
	} {
		set.step("phases: %s", what.name)
		one, err := take(ctx, s, ours, what.load, set.turn)
		if err != nil {
			return fmt.Errorf("%s: %w", what.name, err)
		}
		r.phase(what.name, one.redis, one.pairs)
	}
	if err := ours.close(ctx); err != nil {
		return err
	}
	n := 4000
	if set.short {
		n = 1000
	}
	for _, pass := range []passing{{slots: 16}, {slots: 16, adopt: true}} {
		ask, do := "a request, 16 goroutines", "a run, 16 slots"
		if pass.adopt {
			ask, do = "a task of asynq, 16 goroutines", "a task as a run, 16 slots"
		}
		set.step("phases: %s", do)
		if err := s.admin.FlushAll(ctx).Err(); err != nil {
			return err
		}
		one, err := pass.through(ctx, s, "lockstep", s.addr, n)
		if err != nil {
			return fmt.Errorf("%s: %w", do, err)
		}
		r.phase(ask, one[asking].redis, one[asking].jobs)
		r.phase(do, one[doing].redis, one[doing].jobs)
	}
	return nil
}

// phase adds a row for each script that took at least a hundredth of the phase, the most expensive
// ones first, and one for all of them. n is how many pairs, requests or runs the phase has.
func (r *result) phase(name string, u usage, n float64) {
	var all spent
	for _, one := range u.logged {
		all = spent{all.calls + one.calls, all.micro + one.micro}
	}
	row := func(script string, one spent) {
		r.row(name, script, one.calls, one.micro/one.calls, one.calls/n, one.micro/n)
	}
	for _, script := range slices.SortedFunc(maps.Keys(u.logged), func(a, b string) int {
		return cmp.Compare(u.logged[b].micro, u.logged[a].micro)
	}) {
		if one := u.logged[script]; one.micro >= all.micro/100 {
			row(script, one)
		}
	}
	row("all", all)
}
