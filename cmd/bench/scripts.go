package main

import (
	"context"

	"lockstep/scheduler/scale"
)

// measureScripts measures the cost of each script for Redis in a namespace of the size that
// lockstep is built for.
func measureScripts(ctx context.Context, set settings, r *result) error {
	size := scale.Full
	if set.short {
		size = scale.Size{Holds: size.Holds / 10, Waits: size.Waits / 10, Runs: size.Runs / 10}
	}
	r.note("with %d holds, %d waits and %d outstanding runs; of a call's times the smallest counts", size.Holds, size.Waits, size.Runs)
	r.Columns = []string{"script", "server µs", "in this use"}
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	set.step("filling a namespace with %d holds, %d waits and %d outstanding runs", size.Holds, size.Waits, size.Runs)
	costs, err := scale.Measure(ctx, s.admin, "scripts", size)
	if err != nil {
		return err
	}
	slowest := 0.0
	for _, cost := range costs {
		took := float64(cost.Took.Microseconds())
		slowest = max(slowest, took)
		r.row(cost.Script, took, cost.Use)
	}
	r.atMost(float64(scale.Longest.Microseconds()), slowest, "server µs of the slowest script")
	return nil
}
