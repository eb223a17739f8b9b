package main

import (
	"context"
	"time"
)

// everybody returns a load of goroutines that request the same resource.
func everybody(goroutines int, work time.Duration) load {
	return load{goroutines: goroutines, resource: func(int) string { return "the-one" }, work: work}
}

func measureHandoff(ctx context.Context, set settings, r *result) error {
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	libraries, closeAll, err := openAll(ctx, s.addr, true)
	if err != nil {
		return err
	}
	defer closeAll()
	loads := []load{everybody(4, 0), everybody(32, 0), everybody(256, 0)}
	set.step("hand-off of one resource")
	all, err := rounds(ctx, set, s, libraries, loads)
	if err != nil {
		return err
	}
	each := func(what func(usage) float64) func(sample) float64 {
		return func(s sample) float64 { return what(s.redis) / s.pairs }
	}
	scripts := each(usage.scripts)
	messages := each(func(u usage) float64 { return u.calls["publish"] })
	r.note("medians of %d rounds of %s; all but the rate is per grant", set.rounds, set.turn)
	r.Columns = []string{"goroutines", "library", "grants/s", "scripts", "messages", "commands", "bytes out", "server µs"}
	for i, load := range loads {
		for j, p := range peers {
			of := all[i][j]
			r.row(load.goroutines, p.name, of.median(sample.rate), of.median(scripts), of.median(messages),
				of.median(each(usage.commands)),
				of.median(each(func(u usage) float64 { return u.sent })), serverTime(of, j))
		}
		// One percent for renewals, and for grants in progress when the count began or ended.
		r.atMost(2.02, all[i][0].median(scripts), "scripts per grant, %d goroutines", load.goroutines)
		r.atMost(1.01, all[i][0].median(messages), "messages per grant, %d goroutines", load.goroutines)
		if load.goroutines == 32 {
			r.atMost(45, serverTime(all[i][0], 0), "server time of a grant, 32 goroutines, µs")
			r.atLeast(8000, all[i][0].median(sample.rate), "grants per second, 32 goroutines")
		}
	}
	return nil
}
